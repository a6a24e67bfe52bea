"""A rate that changes at known instants: how much is done by when."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from math import inf


class VaryingRate:
    """A rate: `usual`, times a factor within each span. The factors of overlapping spans are multiplied.

    >>> half = VaryingRate(1.0, [(10.0, 20.0, 0.5)])
    >>> half.after(5.0, 4.0), half.after(5.0, 6.0), half.after(0.0, 20.0)
    (9.0, 12.0, 25.0)
    >>> VaryingRate(1.0, [(10.0, 20.0, 0.0)]).after(9.0, 1.5)
    20.5
    """

    __slots__ = ("rates", "starts", "steady", "usual")

    def __init__(self, usual: float, spans: Iterable[tuple[float, float, float]] = ()) -> None:
        changes = tuple(spans)
        edges = sorted({-inf, inf, *(edge for start, end, _ in changes for edge in (start, end))})
        self.usual = usual
        self.starts = edges
        self.rates = [self._rate(changes, start) for start, _ in pairwise(edges)]
        self.steady = all(rate == usual for rate in self.rates)
        """Whether it never changes."""

    def _rate(self, changes: tuple[tuple[float, float, float], ...], at: float) -> float:
        rate = self.usual
        for start, end, factor in changes:
            if start <= at < end:
                rate *= factor
        return rate

    def at(self, now: float) -> float:
        """Return the rate at an instant."""
        return self.rates[bisect_right(self.starts, now) - 1]

    def done(self, start: float, end: float) -> float:
        """Return the amount done between two instants.

        >>> VaryingRate(1.0, [(10.0, 20.0, 0.5)]).done(5.0, 30.0)
        20.0
        """
        spans = zip(self.rates, pairwise(self.starts), strict=True)
        return sum(
            rate * (min(end, last) - max(start, first)) for rate, (first, last) in spans if first < end > start < last
        )

    def after(self, now: float, amount: float) -> float:
        """Return the instant by which `amount` is done, from now on; infinity if the rate stays 0."""
        if self.steady:
            return now + amount / self.usual if self.usual else inf
        place = bisect_right(self.starts, now) - 1
        while True:
            rate, end = self.rates[place], self.starts[place + 1]
            done = rate * (end - now) if rate else 0.0
            if rate and done >= amount:  # an amount done exactly at the edge is done in this span
                return now + amount / rate
            if end == inf:
                return inf
            amount -= done
            now, place = end, place + 1
