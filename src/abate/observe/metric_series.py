"""Counts and durations by label, in a bounded number of series, for metrics sinks.

Nothing here takes a lock: writers and readers hold one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import accumulate

from abate.call.counters import OTHER
from abate.observe.snapshot import MAX_NAMES, display_name

UNNAMED = "unnamed"

BUCKET_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of a histogram's buckets."""

Labels = tuple[str, ...]
Fold = Callable[[Iterable[float]], float]


def known_or_other(known: Collection[str], value: str) -> str:
    """Return a value of a closed set, or ``other``.

    >>> known_or_other(("blip", "overload"), "blip"), known_or_other(("blip", "overload"), "full moon")
    ('blip', 'other')
    """
    return value if value in known else OTHER


class LabelValues:
    """The values of a label: the first `most` names unchanged, ``other`` for all further ones.

    >>> names = LabelValues(most=1)
    >>> names.of("orders"), names.of("mail"), names.of("orders")
    ('orders', 'other', 'orders')
    """

    __slots__ = ("_known", "_most")

    def __init__(self, most: int = MAX_NAMES) -> None:
        self._known: set[str] = set()
        self._most = most

    def of(self, name: str) -> str:
        """Return the label value for this name."""
        if name in self._known:
            return name
        label = display_name(name) or UNNAMED
        if label not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(label)
        return label


class Counters:
    """A count for each combination of labels.

    >>> counts = Counters()
    >>> counts.add("orders", "blip"); counts.add("orders", "blip")
    >>> dict(counts), counts.of("mail", "blip")
    ({('orders', 'blip'): 2}, 0)
    """

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[Labels, int] = {}

    def add(self, *labels: str) -> None:
        """Add one."""
        self._values[labels] = self._values.get(labels, 0) + 1

    def of(self, *labels: str) -> int:
        """Return the count."""
        return self._values.get(labels, 0)

    def __iter__(self) -> Iterator[tuple[Labels, int]]:
        return iter(list(self._values.items()))


class Histograms:
    """A histogram of seconds for each combination of labels.

    >>> durations = Histograms()
    >>> durations.add(0.3, "orders"); durations.add(1000.0, "orders")
    >>> [(labels, buckets[6], buckets[-1], total) for labels, buckets, total in durations]
    [(('orders',), ('0.5', 1.0), ('+Inf', 2.0), 1000.3)]
    """

    __slots__ = ("_series",)

    def __init__(self) -> None:
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}

    def add(self, seconds: float, *labels: str) -> None:
        """Add a duration."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = [0] * (len(BUCKET_BOUNDS) + 1), [0.0]
        buckets, total = series
        buckets[bisect_left(BUCKET_BOUNDS, seconds)] += 1
        total[0] += seconds

    def __iter__(self) -> Iterator[tuple[Labels, list[tuple[str, float]], float]]:
        """Yield for each combination the cumulative buckets and the sum."""
        bounds = [*map(str, BUCKET_BOUNDS), "+Inf"]
        for labels, (buckets, total) in list(self._series.items()):
            yield labels, list(zip(bounds, map(float, accumulate(buckets)), strict=True)), total[0]


class Gauges:
    """A gauge for each combination of labels; several values for one combination are added up, or the worst is kept.

    >>> levels = Gauges(min)
    >>> levels.put(0.5, "other"); levels.put(0.25, "other")
    >>> dict(levels)
    {('other',): 0.25}
    """

    __slots__ = ("_fold", "_values")

    def __init__(self, fold: Fold = sum) -> None:
        self._fold = fold
        self._values: dict[Labels, float] = {}

    def put(self, value: float | None, *labels: str) -> None:
        """Add a value; None is left out."""
        if value is not None:
            known = self._values.get(labels)
            self._values[labels] = value if known is None else self._fold((known, value))

    def __iter__(self) -> Iterator[tuple[Labels, float]]:
        return iter(self._values.items())
