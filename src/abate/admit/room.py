"""The waiting room of the shelter: who waits, and who goes next. No clock, no I/O.

* At most `capacity` wait.
* Fresh calls go first, then the oldest: the callers of fresh ones are the most likely to be there still, and an answer
  within a second is nearly as good as if nothing had happened.
* Nobody starves: as long as no fresh call is pressed for time, every other turn is for the oldest; from there on still
  one of `TURNS`.
* Of the fresh ones, the first come go first; where calls have been losing their freshness for `OVERFLOW` seconds, there
  is more to do than can be done, and the last come do (adaptive LIFO): better a few who wait too long than all.
* A call that comes back from a failed attempt lines up behind those that have had none.

An exception may come out of any call in here (a signal handler raises). So a waiter becomes `inside`, and is counted,
by statements without a call between; and it is in a line before, and until after, it is inside. A place in a line whose
waiter is not inside counts for nothing.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import chain, count, islice
from math import inf

from abate.admit.bells import Bell
from abate.admit.weather import Ticket

FRESH = 0.85
"""Seconds since its beginning for which a call is fresh."""
PRESSED = 0.55
"""Seconds that a fresh call may wait before it goes before all others."""
TURNS = 16
"""Of this many turns, one is for the oldest however pressed the fresh ones are."""
OVERFLOW, SETTLED, MOVING = 3.0, 1.0, 0.25
"""Seconds for which calls lose their freshness before the last come go first; without that before it ends; and between
two turns as long as it is open."""
FEW = 64
"""Places of waiters who have left are kept up to this number, or up to as many as still wait."""


class Waiter:
    """A call that waits for its turn, until `deadline`; the call itself has until its `end`.

    When the wait is over, `answer` is its ticket, or why it gets none. A ticket that is not `picked` up goes to
    another.
    """

    __slots__ = ("alarm", "answer", "began", "bell", "deadline", "end", "inside", "latest", "line", "picked")

    def __init__(self, began: float, deadline: float, end: float = inf, latest: float | None = None) -> None:
        self.began = began
        self.deadline = deadline
        self.end = end
        self.latest = deadline if latest is None else latest
        """The instant at which it is sent anyway, where nothing has failed since it came."""
        self.alarm = inf
        """The instant at which it looks for all who wait where it does; infinite where another one does."""
        self.line: tuple[float, int] = (began, 0)
        """When it came in with this attempt, and the order in which it did."""
        self.bell: Bell | None = None
        self.answer: Ticket | str | None = None
        self.inside = self.picked = False

    def __lt__(self, other: Waiter) -> bool:
        return self.line < other.line


class Room:
    """Those who wait."""

    __slots__ = (
        "_aged",
        "_fresh",
        "_moved",
        "_oldest",
        "_orders",
        "_overflowing",
        "_turns",
        "capacity",
        "gone",
        "size",
    )

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self._fresh: deque[Waiter] = deque()
        self._oldest: list[Waiter] = []
        self._orders = count()
        self._turns = 0
        self.gone = 0
        """Places in the lines of those who have left."""
        self._aged = self._overflowing = self._moved = -inf

    @property
    def full(self) -> bool:
        """Has it no room for another?"""
        return self.size >= self.capacity

    def add(self, waiter: Waiter, now: float, first: bool) -> None:
        """Somebody comes in, with a first attempt or a later one."""
        waiter.line = (waiter.began if first else now, next(self._orders))
        self.add_again(waiter, now)

    def add_again(self, waiter: Waiter, now: float) -> None:
        """Somebody comes in again whose turn came while it was asleep: it lines up where it was."""
        if now - waiter.began < FRESH:
            self._fresh.append(waiter)
        else:
            heappush(self._oldest, waiter)
        waiter.answer = None
        waiter.inside = True
        self.size += 1

    def next(self, now: float, chance: float | None = None) -> Waiter | None:
        """Who goes next, or any of the fresh by `chance`, from 0 to 1; it is in the room until it is removed."""
        self._age(now)
        self._moved = now
        self._turns += 1
        pressed = self._fresh and now - self._fresh[0].began >= PRESSED
        oldest_first = self._turns % (TURNS if pressed else 2) == 0
        last_come = now - self._overflowing > OVERFLOW and now - self._aged < SETTLED
        self.trim()
        if chance is not None and self._fresh:
            some = int(chance * len(self._fresh))
            return next(waiter for waiter in islice(self._fresh, some, None) if waiter.inside)
        if self._oldest and (oldest_first or not self._fresh):
            return self._oldest[0]
        return self._fresh[-1 if last_come else 0] if self._fresh else None

    def remove(self, waiter: Waiter, answer: Ticket | str) -> None:
        """Somebody leaves, with this answer."""
        waiter.answer = answer
        if waiter.inside:  # or it was broken off before it was
            waiter.inside = False
            self.size -= 1
            self.gone += 1
            self.trim()

    def sweep(self) -> None:
        """Keep nothing of those who have left."""
        fresh = deque([other for other in self._fresh if other.inside])
        oldest = [other for other in self._oldest if other.inside]
        heapify(oldest)
        self._fresh, self._oldest, self.gone = fresh, oldest, 0

    def waiting_in(self, place: object) -> Waiter | None:
        """Somebody who waits there, in this event loop or in threads; the search begins with those who go first."""
        for waiter in chain(self._fresh, self._oldest):
            if waiter.inside and waiter.bell is not None and waiter.bell.place is place:
                return waiter
        return None

    def hopeless(self, until: float) -> list[Waiter]:
        """Those whose deadline is not after `until`."""
        return [waiter for waiter in (*self._fresh, *self._oldest) if waiter.inside and waiter.deadline <= until]

    def _age(self, now: float) -> None:
        while self._fresh and (not self._fresh[0].inside or now - self._fresh[0].began >= FRESH):
            waiter = self._fresh[0]
            if waiter.inside:
                heappush(self._oldest, waiter)
                # where nobody goes for a while, as it is closed, nothing overflows
                if now - self._aged > SETTLED or now - self._moved > MOVING:
                    self._overflowing = now
                self._aged = now
            else:
                self.gone -= 1
            del self._fresh[0]

    def trim(self) -> None:
        """Drop the places of those who have left from the ends of the lines; all of them where they are many."""
        fresh, oldest = self._fresh, self._oldest
        while fresh and not fresh[0].inside:
            del fresh[0]
            self.gone -= 1
        while fresh and not fresh[-1].inside:
            del fresh[-1]
            self.gone -= 1
        while oldest and not oldest[0].inside:
            heappop(oldest)
            self.gone -= 1
        if self.gone > max(FEW, self.size):
            self.sweep()
