"""Counts that many threads add to without a lock."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count


def taken(numbers: count[int]) -> int:
    """How many items were taken from ``count()``.

    >>> numbers = count()
    >>> next(numbers), next(numbers), taken(numbers)
    (0, 1, 2)
    """
    return int(repr(numbers)[6:-1])  # "count(7)": the one way to look at it without taking an item


class Tick:
    """A count that many may add to without a lock: taking the next item of an iterator is atomic.

    >>> tick = Tick()
    >>> [tick.add(), tick.add()]
    [0, 1]
    >>> tick.read(), tick.read()
    (2, 2)
    """

    __slots__ = ("_count", "add")

    def __init__(self) -> None:
        self._count = count()
        self.add: Callable[[], int] = self._count.__next__

    def read(self) -> int:
        """How many so far."""
        return taken(self._count)
