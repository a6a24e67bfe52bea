"""The wait queue of the shelter: which calls wait, and which goes next. No clock, no I/O.

* At most `capacity` calls wait.
* Fresh calls go first, because their callers are most likely still there, and an answer within a second is nearly as
  good as an immediate one.
* No call starves: every other turn is for the oldest call. Once fresh calls become urgent, one turn of `OLDEST_EVERY`
  is.
* Fresh calls go first in, first out. If calls have been aging for `LIFO_AFTER` seconds, demand exceeds capacity, and
  they go last in, first out (adaptive LIFO): a few calls wait too long instead of all.
* A call that returns after a failed attempt queues behind the calls that have made none.

A signal handler may raise out of any call in here. So a waiter is marked `queued` and counted by statements without a
call between them; it is put into a list before that, and removed from it after it is no longer `queued`. Entries of
waiters that are not `queued` are stale.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import chain, count, takewhile
from math import inf

from abate.admit.limiter import Permit
from abate.wakeups import Wakeup

FRESH_SECONDS = 0.85
"""A call is fresh for this many seconds after it began."""
URGENT_AFTER = 0.55
"""Seconds after which a fresh call is urgent."""
OLDEST_EVERY = 16
"""One turn of this many is for the oldest call, however urgent the fresh ones are."""
LIFO_AFTER = 3.0
"""LIFO begins after calls have been aging for this many seconds: passing `FRESH_SECONDS` in the queue."""
LIFO_ENDS_AFTER = 1.0
"""FIFO returns after this many seconds without a call that ages."""
MOVING_WITHIN = 0.25
"""The queue is moving if the last turn was at most this many seconds ago."""
MAX_STALE = 64
"""Stale entries are removed when there are more than this, and more than waiters."""


class Waiter:
    """A call that waits for its turn until `deadline`; the call itself ends at `end`.

    `answer` is the permit or the refusal, None as long as it waits. A permit that is not `claimed` in time goes to
    another waiter.
    """

    __slots__ = (
        "answer",
        "began",
        "claimed",
        "deadline",
        "end",
        "next_check",
        "order",
        "queued",
        "send_anyway_at",
        "wakeup",
    )

    def __init__(self, began: float, deadline: float, end: float = inf, send_anyway_at: float | None = None) -> None:
        self.began = began
        self.deadline = deadline
        self.end = end
        self.send_anyway_at = deadline if send_anyway_at is None else send_anyway_at
        """The instant at which it is sent, even above the limit, if nothing has failed since it arrived."""
        self.next_check = inf
        """The instant at which it checks for all waiters of its loop, if it is their timekeeper; infinite otherwise."""
        self.order: tuple[float, int] = (began, 0)
        """The instant at which it queued for this attempt, and a serial number."""
        self.wakeup: Wakeup | None = None
        self.answer: Permit | str | None = None
        self.queued = self.claimed = False

    def __lt__(self, other: Waiter) -> bool:
        return self.order < other.order


class ShelterQueue:
    """The calls that wait, in the order in which they are sent."""

    __slots__ = (
        "_aged",
        "_fresh",
        "_moved",
        "_oldest",
        "_orders",
        "_overflowing",
        "_turns",
        "capacity",
        "size",
        "stale",
    )

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self._fresh: deque[Waiter] = deque()
        self._oldest: list[Waiter] = []
        self._orders = count()
        self._turns = 0
        self.stale = 0
        """The number of stale entries."""
        self._aged = self._overflowing = self._moved = -inf
        """The instants when a call aged last, when calls began to age, and of the last turn."""

    @property
    def full(self) -> bool:
        """Whether `capacity` calls wait already."""
        return self.size >= self.capacity

    def add(self, waiter: Waiter, now: float, first: bool) -> None:
        """Queue a waiter, for a first attempt or a later one."""
        waiter.order = (waiter.began if first else now, next(self._orders))
        self.add_again(waiter, now)

    def add_again(self, waiter: Waiter, now: float) -> None:
        """Queue a waiter again that has missed its turn, at its old position."""
        if now - waiter.began < FRESH_SECONDS:
            self._fresh.append(waiter)
        else:
            heappush(self._oldest, waiter)
        waiter.answer = None
        waiter.queued = True
        self.size += 1

    def next(self, now: float, chance: float | None = None) -> Waiter | None:
        """Return the waiter whose turn is next; it stays queued until it is removed.

        `chance`, a random number in [0, 1), picks any fresh call instead, preferably one that has come since the last
        turn: so a new caller gets a turn sooner.
        """
        self._age(now)
        moved, self._moved = self._moved, now
        self._turns += 1
        pressed = self._fresh and now - self._fresh[0].began >= URGENT_AFTER
        oldest_first = self._turns % (OLDEST_EVERY if pressed else 2) == 0
        newest_first = now - self._overflowing > LIFO_AFTER and now - self._aged < LIFO_ENDS_AFTER
        self.trim()
        if chance is not None and self._fresh:
            newest = takewhile(lambda waiter: waiter.order[0] >= moved, reversed(self._fresh))
            choice = [waiter for waiter in newest if waiter.queued and waiter.began >= moved]
            choice = choice or [waiter for waiter in self._fresh if waiter.queued]
            return choice[int(chance * len(choice))]
        if self._oldest and (oldest_first or not self._fresh):
            return self._oldest[0]
        return self._fresh[-1 if newest_first else 0] if self._fresh else None

    def remove(self, waiter: Waiter, answer: Permit | str) -> None:
        """Remove a waiter, and give it this answer."""
        waiter.answer = answer
        if waiter.queued:  # false if an exception came before it was queued
            waiter.queued = False
            self.size -= 1
            self.stale += 1
            self.trim()

    def sweep(self) -> None:
        """Remove all stale entries."""
        fresh = deque([other for other in self._fresh if other.queued])
        oldest = [other for other in self._oldest if other.queued]
        heapify(oldest)
        self._fresh, self._oldest, self.stale = fresh, oldest, 0

    def waiter_in_loop(self, loop: object) -> Waiter | None:
        """Return a waiter of this event loop (None for threads), the next in turn first."""
        for waiter in chain(self._fresh, self._oldest):
            if waiter.queued and waiter.wakeup is not None and waiter.wakeup.loop == loop:
                return waiter
        return None

    def expiring_by(self, until: float) -> list[Waiter]:
        """Return the waiters whose deadline is not after `until`."""
        return [waiter for waiter in (*self._fresh, *self._oldest) if waiter.queued and waiter.deadline <= until]

    def _age(self, now: float) -> None:
        while self._fresh and (not self._fresh[0].queued or now - self._fresh[0].began >= FRESH_SECONDS):
            waiter = self._fresh[0]
            if waiter.queued:
                heappush(self._oldest, waiter)
                # calls that age while no call has a turn, because the shelter is paused, are no sign of overflow
                if now - self._aged > LIFO_ENDS_AFTER or now - self._moved > MOVING_WITHIN:
                    self._overflowing = now
                self._aged = now
            else:
                self.stale -= 1
            del self._fresh[0]

    def trim(self) -> None:
        """Remove stale entries from the ends, or all if there are many."""
        fresh, oldest = self._fresh, self._oldest
        while fresh and not fresh[0].queued:
            del fresh[0]
            self.stale -= 1
        while fresh and not fresh[-1].queued:
            del fresh[-1]
            self.stale -= 1
        while oldest and not oldest[0].queued:
            heappop(oldest)
            self.stale -= 1
        if self.stale > max(MAX_STALE, self.size):
            self.sweep()
