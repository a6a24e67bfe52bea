"""Keeps delayed keys sorted by the instant at which they are due, without a clock.

The data structure is a sorted list in pages. The next due key is at the front of the first page, so taking it costs the
same for any number of keys; a heap would touch one entry per level, most of them far apart in memory. Bisection finds
the place of a key to add or remove it, so a cancelled key leaves nothing behind.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable
from operator import itemgetter
from typing import Generic, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)

Due: TypeAlias = tuple[float, int, K, int]
"""A delayed key: (instant, order, key, priority). Every order number is unique, so keys are never compared."""

PAGE = 512
"""Entries of a page; a longer page is split in two."""

_last = itemgetter(-1)


class DueKeys(Generic[K]):
    """Delayed keys, sorted by instant and then by order.

    >>> table = DueKeys()
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
        """Add an entry."""
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
        """Remove an entry, which must be present."""
        place = bisect_left(self._pages, due, key=_last)
        page = self._pages[place]
        del page[bisect_left(page, due)]
        if not page:
            del self._pages[place]

    def first(self) -> float | None:
        """Return the instant of the first entry; None if there is none."""
        return self._pages[0][0][0] if self._pages else None

    def pop(self, now: float) -> list[Due[K]]:
        """Remove and return all entries that are due, in order."""
        pages: list[list[Due[K]]] = self._pages
        due: list[Due[K]] = []
        while pages and pages[0][-1][0] <= now:
            due += pages.pop(0)
        if pages and pages[0][0][0] <= now:
            page, ripe = pages[0], 1
            while page[ripe][0] <= now:  # the last entry of the page is not due
                ripe += 1
            due += page[:ripe]
            del page[:ripe]
        return due

    def clear(self) -> None:
        """Remove all entries."""
        self._pages.clear()
