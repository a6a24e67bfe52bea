"""The line of requests before a service, first come, first served: columns that are taken from the front."""

from __future__ import annotations

import numpy as np

from abate.sim.arrays import Floats, Whole

FIRST = 1024
GROWTH = 1.5

Waiting = tuple[Whole, Floats, Floats]
"""Numbers of calls, the instants at which their requests came, and until when they are waited for."""


class Line:
    """Requests that wait.

    >>> line = Line()
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
        """Requests come to the end of the line."""
        if self._end + len(calls) > len(self._calls):
            self._make_room(len(calls))
        place = slice(self._end, self._end + len(calls))
        self._calls[place], self._at[place], self._due[place] = calls, at, due
        self._end += len(calls)

    def front(self, count: int) -> Waiting:
        """The first so many, which stay where they are until they are taken."""
        place = slice(self._start, min(self._end, self._start + count))
        return self._calls[place], self._at[place], self._due[place]

    def take(self, count: int) -> Waiting:
        """The first so many."""
        found = self.front(count)
        self._start += len(found[0])
        return found

    def drop_last(self, count: int) -> Waiting:
        """The last so many."""
        self._end -= count
        place = slice(self._end, self._end + count)
        # copies: who comes next is written to the same place
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
