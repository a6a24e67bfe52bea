"""The queue of requests before a service, first in, first out, as columns."""

from __future__ import annotations

import numpy as np

from abate.sim.fleet.vector_rules import Floats, Whole

FIRST = 1024
GROWTH = 1.5

Waiting = tuple[Whole, Floats, Floats]
"""Numbers of calls, the instants of arrival, and the deadlines."""


class RequestQueue:
    """Waiting requests.

    >>> line = RequestQueue()
    >>> line.append(np.array([1, 2, 3]), np.array([0.1, 0.2, 0.3]), np.full(3, np.inf))
    >>> line.take(1)[0], line.drop_last(1)[0], len(line)
    (array([1]), array([3]), 1)
    """

    __slots__ = ("_at", "_calls", "_due", "_end", "_start")

    def __init__(self) -> None:
        self._calls = np.empty(FIRST, np.intp)
        self._at = np.empty(FIRST)
        self._due = np.empty(FIRST)
        self._start = self._end = 0

    def __len__(self) -> int:
        return self._end - self._start

    def append(self, calls: Whole, at: Floats, due: Floats) -> None:
        """Add requests to the end."""
        if self._end + len(calls) > len(self._calls):
            self._make_room(len(calls))
        place = slice(self._end, self._end + len(calls))
        self._calls[place], self._at[place], self._due[place] = calls, at, due
        self._end += len(calls)

    def front(self, count: int) -> Waiting:
        """Return the first `count` requests, without removing them."""
        place = slice(self._start, min(self._end, self._start + count))
        return self._calls[place], self._at[place], self._due[place]

    def take(self, count: int) -> Waiting:
        """Remove and return the first `count` requests."""
        found = self.front(count)
        self._start += len(found[0])
        return found

    def drop_last(self, count: int) -> Waiting:
        """Remove and return the last `count` requests."""
        self._end -= count
        place = slice(self._end, self._end + count)
        # copies: the next requests are written to the same place
        return self._calls[place].copy(), self._at[place].copy(), self._due[place].copy()

    def _make_room(self, coming: int) -> None:
        length = len(self)
        size = max(FIRST, int(GROWTH * (length + coming)) + 1)
        for name in ("_calls", "_at", "_due"):
            column = getattr(self, name)
            moved = np.empty(size, column.dtype)
            moved[:length] = column[self._start : self._end]
            setattr(self, name, moved)
        self._start, self._end = 0, length
