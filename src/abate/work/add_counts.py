"""Counts the adds that this process makes to a store, so that reading the counts needs no call to the store."""

from __future__ import annotations

from abate.atomic_counter import AtomicCounter


class AddCounts:
    """How many keys or messages were added, and how many of them were coalesced with a waiting one.

    >>> adds = AddCounts()
    >>> adds.record(new=True); adds.record(new=False)
    >>> adds.total.read(), adds.coalesced.read()
    (2, 1)
    """

    __slots__ = ("coalesced", "total")

    def __init__(self) -> None:
        self.total, self.coalesced = AtomicCounter(), AtomicCounter()

    def record(self, new: bool) -> None:
        """Count an add; `new` is False if the key waited already."""
        self.total.add()
        if not new:
            self.coalesced.add()
