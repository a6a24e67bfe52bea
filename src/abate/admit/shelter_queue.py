"""The wait queue of the shelter: which calls wait, and which goes next. No clock, no I/O.

At most `capacity` calls wait. The next one is the one with the earliest deadline, but calls have two deadlines:

* An answer within `SOON` seconds is nearly as good as an immediate one. A call that can still have it is **fresh**, and
  is due by then.
* A call that can't is **late**, and is due by its own deadline.

Fresh calls go first: if there is more work than capacity, those are lost that have waited longest, and the others are
answered soon. A late call goes before them only if it is due earlier than they are, and if all of them can still be
answered soon. While the calls of a long outage are worked off, all count as late: if the capacity suffices for all of
them before their deadlines, none is lost.

A signal handler may raise out of any call in here. So a waiter is marked `queued` and counted by statements without a
call between them; it is put into a heap before that, and removed from it after it is no longer `queued`. Entries of
waiters that are not `queued`, or were queued again since, are stale.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import chain, count
from math import inf

from abate.admit.limiter import Permit
from abate.wakeups import Wakeup

SOON = 1.0
"""A call is fresh as long as it can be answered within this many seconds of its begin."""
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
        "entry",
        "next_check",
        "queued",
        "send_anyway_at",
        "since",
        "wakeup",
    )

    def __init__(
        self,
        began: float,
        deadline: float,
        end: float = inf,
        send_anyway_at: float | None = None,
        since: float | None = None,
    ) -> None:
        self.began = began
        self.deadline = deadline
        self.end = end
        self.send_anyway_at = deadline if send_anyway_at is None else send_anyway_at
        """The instant at which it is sent, even above the limit, if nothing has failed since it arrived."""
        self.since = began if since is None else since
        """It may be refused only for failures after this instant."""
        self.next_check = inf
        """The instant at which it checks for all waiters of its loop, if it is their timekeeper; infinite otherwise."""
        self.entry = -1
        """The number of its last entry in the queue."""
        self.wakeup: Wakeup | None = None
        self.answer: Permit | str | None = None
        self.queued = self.claimed = False


Entry = tuple[float, int, Waiter]
"""When a waiter is due, the number of the entry, and the waiter."""


class ShelterQueue:
    """The calls that wait, in the order in which they are sent.

    >>> queue = ShelterQueue(capacity=10)
    >>> for began, deadline in ((0.0, 9.0), (0.5, 5.0), (3.0, 20.0)):
    ...     queue.add(Waiter(began, deadline))
    >>> queue.next(3.1).began, queue.next(3.1, catching_up=True).began
    (3.0, 0.5)
    """

    __slots__ = ("_entries", "_fresh", "_last_due", "_late", "_moved", "capacity", "size", "stale")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.stale = 0
        """The number of stale entries."""
        self._fresh: list[Entry] = []
        self._late: list[Entry] = []
        self._entries = count()
        self._last_due = self._moved = -inf
        """When the last of the fresh calls is due, and the instant of the last turn."""

    @property
    def full(self) -> bool:
        """Whether `capacity` calls wait already."""
        return self.size >= self.capacity

    def add(self, waiter: Waiter) -> None:
        """Queue a waiter, also one that has missed its turn."""
        due, entry = min(waiter.began + SOON, waiter.deadline), next(self._entries)
        heappush(self._fresh, (due, entry, waiter))
        self._last_due = max(self._last_due, due)
        waiter.answer = None
        waiter.entry = entry
        waiter.queued = True
        self.size += 1

    def next(
        self, now: float, answer_time: float = 0.0, interval: float = 0.0, catching_up: bool = False
    ) -> Waiter | None:
        """Return the waiter whose turn is next; it stays queued until it is removed.

        * Answers take `answer_time` seconds, and turns come every `interval` seconds.
        * `catching_up`: the calls of a long outage are worked off, by their own deadlines.
        """
        self._moved = now
        self._age(inf if catching_up else now + answer_time)
        self.trim()
        fresh, late = self._fresh, self._late
        if late and (not fresh or (late[0][0] < fresh[0][0] and self._spare(now + answer_time, interval) > 0.0)):
            return late[0][2]
        return fresh[0][2] if fresh else None

    def probe(self, now: float, chance: float) -> Waiter | None:
        """Return the waiter that finds out whether the dependency is up again; it stays queued until it is removed.

        It has more than `SOON` left, if any has: a deadline that cuts a probe off leaves the answer unknown.
        It is one of those that have come since the last turn, by `chance`, a random number in [0, 1): so a new caller
        gets a turn soon. If none has come, they take turns.
        """
        moved, self._moved = self._moved, now
        waiting = _live(self._fresh) + _live(self._late)
        waiting = [waiter for waiter in waiting if waiter.deadline > now + SOON] or waiting
        if newest := [waiter for waiter in waiting if waiter.began >= moved]:
            return newest[int(chance * len(newest))]
        return min(waiting, key=_entry, default=None)

    def _spare(self, now: float, interval: float) -> float:
        """Return how many seconds the fresh calls can spare, if one turn is for another call."""
        return min(self._fresh[0][0], self._last_due - len(self._fresh) * interval) - interval - now

    def _age(self, until: float) -> None:
        """Make those late that are due soon by this instant, and can't be answered by then."""
        fresh = self._fresh
        while fresh and fresh[0][0] <= until:
            _, entry, waiter = fresh[0]
            if _is_live(fresh[0]):
                heappush(self._late, (waiter.deadline, entry, waiter))
            else:
                self.stale -= 1
            heappop(fresh)

    def remove(self, waiter: Waiter, answer: Permit | str) -> None:
        """Remove a waiter, and give it this answer."""
        waiter.answer = answer
        if waiter.queued:  # false if an exception came before it was queued
            waiter.queued = False
            self.size -= 1
            self.stale += 1
            self.trim()

    def trim(self) -> None:
        """Remove stale entries from the heads, or all if there are many."""
        for heap in (self._fresh, self._late):
            while heap and not _is_live(heap[0]):
                heappop(heap)
                self.stale -= 1
        if self.stale > max(MAX_STALE, self.size):
            self.sweep()

    def sweep(self) -> None:
        """Remove all stale entries."""
        fresh, late = list(filter(_is_live, self._fresh)), list(filter(_is_live, self._late))
        heapify(fresh)
        heapify(late)
        self._fresh, self._late, self.stale = fresh, late, 0

    def waiter_in_loop(self, loop: object) -> Waiter | None:
        """Return a waiter of this event loop (None for threads), a fresh one if there is one."""
        for entry in chain(self._fresh, self._late):
            waiter = entry[2]
            if _is_live(entry) and waiter.wakeup is not None and waiter.wakeup.loop == loop:
                return waiter
        return None

    def expiring_by(self, until: float) -> list[Waiter]:
        """Return the waiters whose deadline is not after `until`."""
        return [waiter for waiter in _live(self._fresh) + _live(self._late) if waiter.deadline <= until]


def _is_live(entry: Entry) -> bool:
    _, number, waiter = entry
    return waiter.queued and waiter.entry == number


def _entry(waiter: Waiter) -> int:
    return waiter.entry


def _live(heap: list[Entry]) -> list[Waiter]:
    return [entry[2] for entry in heap if _is_live(entry)]
