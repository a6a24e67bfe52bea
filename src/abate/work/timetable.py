"""What comes due later, in the order of its instants, without a clock.

A sorted list in pages. What is due first stands at the front of the first page, so that taking it costs the same
however much waits; a heap would touch a place on each of its levels, most of them far apart in memory. Where something
belongs is found by bisection, to enter it and to take it out again: nothing is left of what was cancelled.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable
from operator import itemgetter
from typing import Generic, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)

Due: TypeAlias = tuple[float, int, K, int]
"""A key that comes later: when, in what order, with what priority. No two have one order: keys are never compared."""

PAGE = 512
"""A page that has grown beyond this is split in two."""

_last = itemgetter(-1)


class Timetable(Generic[K]):
    """Keys by the instant at which they come due; of those with one instant the first in order is first.

    >>> table = Timetable()
    >>> for due in ((2.0, 0, "b", 0), (1.0, 1, "a", 0), (3.0, 2, "c", 0)):
    ...     table.add(due)
    >>> table.remove((2.0, 0, "b", 0))
    >>> table.first(), table.pop(2.5), table.pop(2.5), len(table)
    (1.0, [(1.0, 1, 'a', 0)], [], 1)
    """

    __slots__ = ("_pages",)

    def __init__(self) -> None:
        self._pages: list[list[Due[K]]] = []  # none of them is empty

    def __len__(self) -> int:
        return sum(map(len, self._pages))

    def add(self, due: Due[K]) -> None:
        """Enter something."""
        pages = self._pages
        if not pages:
            pages.append([due])
            return
        place = min(bisect_left(pages, due, key=_last), len(pages) - 1)
        page = pages[place]
        insort(page, due)
        if len(page) > PAGE:
            pages.insert(place + 1, page[PAGE // 2 :])
            del page[PAGE // 2 :]

    def remove(self, due: Due[K]) -> None:
        """Take out something that was entered."""
        place = bisect_left(self._pages, due, key=_last)
        page = self._pages[place]
        del page[bisect_left(page, due)]
        if not page:
            del self._pages[place]

    def first(self) -> float | None:
        """The instant of what is due first; None where nothing is to come."""
        return self._pages[0][0][0] if self._pages else None

    def pop(self, now: float) -> list[Due[K]]:
        """Take out what is due by now, in its order."""
        pages: list[list[Due[K]]] = self._pages
        due: list[Due[K]] = []
        while pages and pages[0][-1][0] <= now:
            due += pages.pop(0)
        if pages and pages[0][0][0] <= now:
            page, ripe = pages[0], 1
            while page[ripe][0] <= now:  # its last is not due
                ripe += 1
            due += page[:ripe]
            del page[:ripe]
        return due

    def clear(self) -> None:
        """Forget everything."""
        self._pages.clear()
