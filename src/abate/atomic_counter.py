"""A counter that many threads add to without a lock."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count


def count_taken(numbers: count[int]) -> int:
    """Return how many items were taken from ``count()``.

    >>> numbers = count()
    >>> next(numbers), next(numbers), count_taken(numbers)
    (0, 1, 2)
    """
    return int(repr(numbers)[6:-1])  # "count(7)": the only way to read it without taking an item


class AtomicCounter:
    """A counter without a lock: taking the next item of an iterator is atomic.

    >>> tick = AtomicCounter()
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
        """Return the count."""
        return count_taken(self._count)
