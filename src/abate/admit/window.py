"""How many in the last so many seconds: a ring of counters on a fixed grid of slots, in constant memory.

An event counts from its slot on until that slot leaves the window, so it is forgotten at most one slot (a
fiftieth of the window) before its time, and never after it.
"""

from __future__ import annotations

from array import array

SLOTS = 50
SHORTEST = 0.001
"""Seconds; no window may be shorter."""


class Window:
    """A count over a sliding window."""

    __slots__ = ("_place", "_ring", "_slot", "_width", "total")

    def __init__(self, seconds: float, now: float) -> None:
        self._width = seconds / SLOTS
        self._ring = array("q", bytes(8 * SLOTS))
        self._slot = int(now / self._width)
        self._place = self._slot % SLOTS
        self.total = 0

    @property
    def end(self) -> float:
        """The instant at which the open slot ends."""
        return (self._slot + 1) * self._width

    @property
    def latest(self) -> int:
        """The count of the open slot."""
        return self._ring[self._place]

    def roll(self, now: float) -> int:
        """Open the slot of `now`, forget what has left the window, and say how many slots that was ahead."""
        slot = int(now / self._width)
        ahead = slot - self._slot
        if ahead <= 0:
            return 0
        if ahead >= SLOTS:
            self._ring = array("q", bytes(8 * SLOTS))
            self.total = 0
        else:
            ring = self._ring
            for passed in range(self._slot + 1, slot + 1):
                self.total -= ring[passed % SLOTS]
                ring[passed % SLOTS] = 0
        self._slot = slot
        self._place = slot % SLOTS
        return ahead

    def add(self, count: int) -> None:
        """Count this many in the open slot."""
        self._ring[self._place] += count
        self.total += count

    def take_back(self) -> None:
        """Forget the newest one, if there is any."""
        ring = self._ring
        for slot in range(self._slot, self._slot - SLOTS, -1):
            if ring[slot % SLOTS]:
                ring[slot % SLOTS] -= 1
                self.total -= 1
                return

    def recount(self) -> None:
        """Mend a total that was left half-way."""
        self.total = sum(self._ring)
