"""How many keys or messages were added, where a store has them: by this process, without asking the store again."""

from __future__ import annotations

from abate.counts import Tick


class Adds:
    """Adds of keys or messages, and how many of them were of one that waited already.

    >>> adds = Adds()
    >>> adds.note(new=True); adds.note(new=False)
    >>> adds.all.read(), adds.coalesced.read()
    (2, 1)
    """

    __slots__ = ("all", "coalesced")

    def __init__(self) -> None:
        self.all, self.coalesced = Tick(), Tick()

    def note(self, new: bool) -> None:
        """One was added; was it new?"""
        self.all.add()
        if not new:
            self.coalesced.add()
