"""A histogram of latencies that reads as a sorted sequence: millions of them in little memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import overload


class LatencyHistogram(Sequence[float]):
    """Latencies in ascending order, stored as a count per bin.

    `bins` are the numbers of the bins that are not empty, `counts` their counts; `total` is the sum of all latencies.
    Within a bin latencies are taken as evenly spread.

    >>> found = LatencyHistogram(0.5, bins=[0, 3], counts=[1, 2], total=3.5)
    >>> len(found), found[0], found[-1]
    (3, 0.25, 1.875)
    """

    __slots__ = ("_bins", "_counts", "_ends", "_width", "total")

    def __init__(self, width: float, bins: Sequence[int], counts: Sequence[int], total: float) -> None:
        self._width = width
        self._bins = bins
        self._counts = counts
        self._ends = list(accumulate(counts))
        self.total = total

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, place: int) -> float: ...
    @overload
    def __getitem__(self, place: slice) -> list[float]: ...
    def __getitem__(self, place: int | slice) -> float | list[float]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        wanted = place if place >= 0 else place + len(self)
        if not 0 <= wanted < len(self):
            raise IndexError(f"there are {len(self)} latencies, none at {place}")
        at = bisect_right(self._ends, wanted)
        before = self._ends[at] - self._counts[at]
        return self._width * (self._bins[at] + (wanted - before + 0.5) / self._counts[at])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LatencyHistogram):
            return NotImplemented
        return (self._width, self._bins, self._counts) == (other._width, other._bins, other._counts)

    def __hash__(self) -> int:
        return hash((self._width, len(self), self.total))
