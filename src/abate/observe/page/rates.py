"""Growing totals as lines of a chart: the growth per second over the last minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

POINTS = 240
"""Points of a line: four minutes, at one per second."""


class Rates:
    """The lines of one chart.

    >>> rates = Rates()
    >>> rates.note((100, 0), 1.0), rates.note((110, 3), 2.0)
    ((0, 0), (5, 1.5))
    >>> rates.lines()
    [[0, 5], [0, 1.5]]
    """

    __slots__ = ("_lines", "_totals")

    def __init__(self) -> None:
        self._totals: Sequence[float] | None = None
        self._lines: list[deque[float]] = []

    def note(self, totals: Sequence[float], seconds: float, *levels: float) -> tuple[float, ...]:
        """Add points: the growth of the totals in these seconds, and `levels` unchanged. Return the new points."""
        before = totals if self._totals is None else self._totals
        grown = (max(0.0, new - old) / seconds for new, old in zip(totals, before, strict=True))
        points = tuple(rounded(value) for value in (*grown, *levels))
        self._totals = totals
        if not self._lines:
            self._lines = [deque(maxlen=POINTS) for _ in points]
        for line, point in zip(self._lines, points, strict=True):
            line.append(point)
        return points

    def recent_sum(self, line: int, points: int) -> float:
        """Return the sum of a line's last points."""
        return sum(islice(reversed(self._lines[line]), points)) if self._lines else 0.0

    def lines(self) -> list[list[float]]:
        """Return the lines, each with its oldest point first."""
        return [list(line) for line in self._lines]


def rounded(value: float) -> float:
    """Round a number to the digits that a chart shows.

    >>> rounded(3.0), rounded(0.123456), rounded(1234.56)
    (3, 0.12, 1235)
    """
    rounded = round(value, 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0)
    return int(rounded) if rounded == int(rounded) else rounded
