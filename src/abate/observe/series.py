"""Counts and durations by label: what a metrics sink keeps of events, in a bounded number of series.

None of this has a lock: who writes or reads holds one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import accumulate

from abate.call.tally import OTHER
from abate.observe.snapshot import MOST, named

UNNAMED = "unnamed"

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of a histogram's buckets."""

Labels = tuple[str, ...]
Fold = Callable[[Iterable[float]], float]


def one_of(known: Collection[str], value: str) -> str:
    """A value of a closed set, or ``other``.

    >>> one_of(("blip", "overload"), "blip"), one_of(("blip", "overload"), "full moon")
    ('blip', 'other')
    """
    return value if value in known else OTHER


class Names:
    """The values of a label that names things: the first so many as they are, ``other`` for all that come later.

    >>> names = Names(most=1)
    >>> names.of("orders"), names.of("mail"), names.of("orders")
    ('orders', 'other', 'orders')
    """

    __slots__ = ("_known", "_most")

    def __init__(self, most: int = MOST) -> None:
        self._known: set[str] = set()
        self._most = most

    def of(self, name: str) -> str:
        """The label's value for this name."""
        if name in self._known:
            return name
        label = named(name) or UNNAMED
        if label not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(label)
        return label


class Counts:
    """A count for each combination of labels.

    >>> counts = Counts()
    >>> counts.add("orders", "blip"); counts.add("orders", "blip")
    >>> dict(counts), counts.of("mail", "blip")
    ({('orders', 'blip'): 2}, 0)
    """

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[Labels, int] = {}

    def add(self, *labels: str) -> None:
        """One more."""
        self._values[labels] = self._values.get(labels, 0) + 1

    def of(self, *labels: str) -> int:
        """How many so far."""
        return self._values.get(labels, 0)

    def __iter__(self) -> Iterator[tuple[Labels, int]]:
        return iter(list(self._values.items()))


class Durations:
    """A histogram of seconds for each combination of labels.

    >>> durations = Durations()
    >>> durations.add(0.3, "orders"); durations.add(1000.0, "orders")
    >>> [(labels, buckets[6], buckets[-1], total) for labels, buckets, total in durations]
    [(('orders',), ('0.5', 1.0), ('+Inf', 2.0), 1000.3)]
    """

    __slots__ = ("_series",)

    def __init__(self) -> None:
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}

    def add(self, seconds: float, *labels: str) -> None:
        """Something took so long."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = [0] * (len(SECONDS) + 1), [0.0]
        buckets, total = series
        buckets[bisect_left(SECONDS, seconds)] += 1
        total[0] += seconds

    def __iter__(self) -> Iterator[tuple[Labels, list[tuple[str, float]], float]]:
        """For each combination: what fell below each bound, and the sum."""
        bounds = [*map(str, SECONDS), "+Inf"]
        for labels, (buckets, total) in list(self._series.items()):
            yield labels, list(zip(bounds, map(float, accumulate(buckets)), strict=True)), total[0]


class Levels:
    """Gauges; where several things have come under one label, they are one: added up, or the worst of them.

    >>> levels = Levels(min)
    >>> levels.put(0.5, "other"); levels.put(0.25, "other")
    >>> dict(levels)
    {('other',): 0.25}
    """

    __slots__ = ("_fold", "_values")

    def __init__(self, fold: Fold = math.fsum) -> None:
        self._fold = fold
        self._values: dict[Labels, float] = {}

    def put(self, value: float | None, *labels: str) -> None:
        """One of them is at this value; None where it can't tell."""
        if value is not None:
            known = self._values.get(labels)
            self._values[labels] = float(value) if known is None else self._fold((known, float(value)))

    def __iter__(self) -> Iterator[tuple[Labels, float]]:
        return iter(self._values.items())
