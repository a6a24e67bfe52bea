"""Counts the adds that this process makes to a store, so that reading the counts needs no call to the store."""

from __future__ import annotations

from abate.atomic_counter import AtomicCounter


class AddCounts:
    """How many keys or messages were added, and how many of them were coalesced with a waiting one.

    >>> adds = AddCounts()
    >>> adds.record(1); adds.record(2, coalesced=1)
    >>> adds.total.read(), adds.coalesced.read()
    (3, 1)
    """

    __slots__ = ("coalesced", "total")

    def __init__(self) -> None:
        self.total, self.coalesced = AtomicCounter(), AtomicCounter()

    def record(self, added: int, coalesced: int = 0) -> None:
        """Count messages that were added, and how many of their keys waited already."""
        for _ in range(added):
            self.total.add()
        for _ in range(coalesced):
            self.coalesced.add()
