"""A count over the last seconds: a ring of counters on a fixed grid of slots, in constant memory.

An event counts until its slot leaves the window, so it is forgotten up to one slot (a fiftieth of the window) early,
and never late.
"""

from __future__ import annotations

from array import array
from math import floor, inf, nextafter

SLOTS = 50
MAX_PER_SLOT = 2**32 - 1
"""The largest count of one slot."""
MIN_WINDOW = 0.001
"""The shortest window, in seconds."""


NO_COUNTS = array("I")
"""The ring of an empty window, shared to save memory: most budgets never have a withdrawal."""


class SlidingWindow:
    """A count over a sliding window."""

    __slots__ = ("_place", "_ring", "_slot", "_width", "end", "total")

    def __init__(self, seconds: float, now: float) -> None:
        self._width = seconds / SLOTS
        self._ring = NO_COUNTS
        self.total = 0
        self._open(floor(now / self._width))

    def _open(self, slot: int) -> None:
        self._slot = slot
        self._place = slot % SLOTS
        width = self._width
        # the first instant that `roll` puts into the next slot: the product may be off by a rounding error
        end = (slot + 1) * width
        while floor(end / width) > slot:
            end = nextafter(end, -inf)
        while floor(end / width) <= slot:
            end = nextafter(end, inf)
        self.end = end

    @property
    def latest(self) -> int:
        """Return the count of the open slot."""
        return self._ring[self._place] if self._ring else 0

    @property
    def before_latest(self) -> int:
        """Return the count of the slot before the open one."""
        return self._ring[self._place - 1] if self._ring else 0

    def roll(self, now: float) -> int:
        """Open the slot of `now`, forget what has left the window, and return by how many slots it moved."""
        if now < self.end:
            return 0
        slot = floor(now / self._width)
        ahead = slot - self._slot
        if ahead >= SLOTS or not self.total:
            self.clear()
        else:
            ring = self._ring
            for passed in range(self._slot + 1, slot + 1):
                self.total -= ring[passed % SLOTS]
                ring[passed % SLOTS] = 0
        self._open(slot)
        return ahead

    def add(self, count: int) -> None:
        """Add to the count of the open slot."""
        if not count:
            return
        if not self._ring:
            self._ring = array("I", [0]) * SLOTS
        count = min(count, MAX_PER_SLOT - self._ring[self._place])
        self._ring[self._place] += count
        self.total += count

    def add_instants(self, instants: list[float]) -> None:
        """Count what happened at these instants, up to now; what has left the window already is forgotten."""
        ring = self._ring[:] or array("I", [0]) * SLOTS
        width, open_slot, added = self._width, self._slot, 0
        for instant in instants:
            slot = min(floor(instant / width), open_slot)
            if slot > open_slot - SLOTS and ring[slot % SLOTS] < MAX_PER_SLOT:
                ring[slot % SLOTS] += 1
                added += 1
        self._ring = ring
        self.total += added

    def clear(self) -> None:
        """Forget everything."""
        self._ring = NO_COUNTS
        self.total = 0

    def take_back(self) -> None:
        """Subtract one from the newest slot that is not empty."""
        ring = self._ring
        for slot in range(self._slot, self._slot - len(ring), -1):
            if ring[slot % SLOTS]:
                ring[slot % SLOTS] -= 1
                self.total -= 1
                return

    def recount(self) -> None:
        """Recompute the total from the slots: an interrupted operation may have left it wrong."""
        self.total = sum(self._ring)
