"""Implements the key queue without clock, lock or I/O: its ready keys, keys in hand, and delayed keys.

The guarantees (see `abate.work`) are kept here; the queues for threads and tasks add waiting.

    add ──► ready ──► take ──► in hand ──► done ──► gone, or ready again if it was added meanwhile
             ▲                                │
             └── due ◄── later ◄── add_after ─┘

Every ready key has an entry in the line, in the order in which keys became ready. A key with a priority also has its
entry in the lane of that priority. A take returns the first key of the highest lane, or of the line if there are no
lanes; every eighth take returns the first key of the line. So a key with n others before it in the line is taken within
8 (n + 1) takes, whatever is added after it. A taken key leaves a stale entry in the line or lane that it was not taken
from. Stale entries are dropped when they are reached, or all together once there are many.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Hashable, Iterator
from itertools import count
from typing import TypeAlias, TypeVar

from abate.errors import AbateError, whole
from abate.schedule.backoff import Schedule
from abate.work.due_keys import Due, DueKeys
from abate.work.key_failures import KeyFailures

K = TypeVar("K", bound=Hashable)

FAIRNESS_TURNS = 8
"""Every eighth take returns the oldest key, whatever its priority."""
MAX_STALE = 64
"""Stale entries are dropped when there are more than this number plus the number of ready keys."""


class QueueFull(AbateError):
    """The queue holds as many keys as its capacity allows.

    >>> queue = KeyQueue(capacity=1)
    >>> queue.add("a", 0.0)
    True
    >>> queue.add("b", 0.0)
    Traceback (most recent call last):
    abate.work.key_queue.QueueFull: the queue is full: it holds 1 keys
    """


Entry: TypeAlias = tuple[K, float]
"""A ready key, and since when it is ready. The entry is stale unless `ready` holds the same object."""


class KeyQueue(KeyFailures[K]):
    """Keys that wait for a worker. Methods that need the time take it as `now`.

    >>> queue = KeyQueue()
    >>> queue.add("a", 0.0), queue.add("b", 0.0), queue.add("a", 0.0)
    (True, True, False)
    >>> queue.take(), queue.add("a", 0.0), queue.take(), queue.take()
    ('a', True, 'b', None)
    >>> queue.done("a", 0.0), queue.take()
    (True, 'a')
    """

    __slots__ = (
        "_capacity",
        "_due_keys",
        "_lanes",
        "_line",
        "_not_here",
        "_order",
        "_priorities",
        "_priority",
        "_stale",
        "_turns",
        "coalesced",
        "in_hand",
        "later",
        "new_adds",
        "re_added",
        "ready",
    )

    def __init__(
        self,
        capacity: int | None = None,
        backoff: Schedule | None = None,
        rate: float | None = None,
        burst: int = 1,
    ) -> None:
        self._capacity = None if capacity is None else whole("capacity", capacity, least=1)
        super().__init__(backoff, rate, burst)
        self.ready: dict[K, Entry[K]] = {}
        self.in_hand: set[K] = set()
        self._not_here: set[K] = set()  # keys that were in hand when the process was forked
        self.later: dict[K, Due[K]] = {}
        """Delayed keys, and when they are due. None of them is ready, or was added again while in hand."""
        self.new_adds = 0
        """Adds of a key that was not waiting: not ready, not delayed, and not added again while in hand."""
        self.coalesced = 0
        """Adds of a key that was waiting already."""
        self.re_added: dict[K, int] = {}
        """Keys added while in hand, with their priority. Only for a moment is one of them not in hand: see `done`."""
        self._line: deque[Entry[K]] = deque()
        self._lanes: dict[int, deque[Entry[K]]] = {}  # none of them is empty
        self._priorities: list[int] = []  # of the lanes, the highest last
        self._priority: dict[K, int] = {}  # of keys that are in a lane
        self._stale = 0
        self._turns = 0
        self._due_keys: DueKeys[K] = DueKeys()
        self._order = count()

    # -- in

    def add(self, key: K, now: float, priority: int = 0, room_reserved: bool = False) -> bool:
        """Add a key. Return whether it was new, that is, not waiting already.

        A ready key keeps its place unless this priority is higher. A key in hand is ready again after `done`. A delayed
        key is ready at once. With `room_reserved`, the capacity is not checked.
        """
        simple = not (priority or self.later or self.re_added or self._capacity)
        if simple and key not in self.ready and key not in self.in_hand:  # what follows would do the same, more slowly
            self.new_adds += 1
            entry = self.ready[key] = (key, now)
            self._line.append(entry)
            return True
        if self.later:
            self.promote_due(now)  # keys that were due earlier go first
        if key in self.ready:
            self.coalesced += 1
            if priority > self._priority.get(key, 0):
                self._raise(key, priority)
            return False
        held = key in self.in_hand
        new_adds = key not in self.later and key not in self.re_added
        if new_adds:
            if self._capacity is not None and not held and not room_reserved:
                self.check_room()
            self.new_adds += 1
        else:
            self.coalesced += 1
            planned = self.later.get(key)
            priority = max(priority, 0 if planned is None else planned[3], self.re_added.get(key, 0))
        if held:
            self.re_added[key] = priority
            self.bring_back(key, now)  # if a worker is done with it since `held` was set, and has not seen this
        else:
            self._push(key, priority, now)
        if not new_adds:
            self._cancel_delayed(key)
            if not held:
                self.re_added.pop(key, None)
        return new_adds

    def add_after(self, key: K, seconds: float, now: float, priority: int = 0, room_reserved: bool = False) -> bool:
        """Add a delayed key; of two delays the shorter one counts. Return whether the key was not waiting."""
        if seconds <= 0:
            return self.add(key, now, priority, room_reserved)
        at, planned = now + seconds, self.later.get(key)
        new_adds = planned is None and key not in self.ready and key not in self.re_added
        if new_adds:
            if self._capacity is not None and key not in self.in_hand and not room_reserved:
                self.check_room()
            self.new_adds += 1
        else:
            self.coalesced += 1
            if planned is None or planned[0] <= at:
                return False
            self._due_keys.remove(planned)
        due = self.later[key] = (at, next(self._order), key, priority)
        self._due_keys.add(due)
        return new_adds

    def check_room(self) -> None:
        """Raise `QueueFull` if the queue is full.

        Do not call this for a key in hand: it is always accepted, or the change it was added for would be lost.
        """
        capacity = self._capacity
        if capacity is not None and len(self.ready) + len(self.later) + len(self.re_added) >= capacity:
            raise QueueFull(f"the queue is full: it holds {capacity} keys")

    def cancel(self, key: K) -> bool:
        """Cancel a delayed key. Return whether there was one."""
        planned = key in self.later
        self._cancel_delayed(key)
        return planned

    def cancel_all(self) -> None:
        """Cancel all delayed keys."""
        self.later.clear()
        self._due_keys.clear()

    # -- out

    def take(self) -> K | None:
        """Return the next key for a worker; None if none is ready. Call `promote_due` first."""
        if not self.ready:
            return None
        key = self._take_by_priority() if self._lanes or self._stale else self._line.popleft()[0]
        self.in_hand.add(key)
        del self.ready[key]  # last: an exception before this leaves the key ready, and `repair` restores the rest
        return key

    def done(self, key: K, now: float) -> bool:
        """Note that a worker is done with a key. Return whether it is ready again, as it was added meanwhile."""
        try:
            self.in_hand.remove(key)
        except KeyError:
            self.refuse_done(key)
        return self.bring_back(key, now)

    def refuse_done(self, key: K) -> None:
        """Raise an error about a key that is not in hand, unless it was when the process was forked."""
        try:
            self._not_here.remove(key)
        except KeyError:
            raise ValueError(f"{key!r} is not in hand: done is called once for each key that get returned") from None

    def bring_back(self, key: K, now: float) -> bool:
        """Make a key ready that was added while in hand, and is in hand no more. Return whether it was such a key."""
        if key not in self.re_added or key in self.in_hand:
            return False
        self.promote_due(now)  # keys that were due earlier go first
        self._push(key, self.re_added[key], now)
        del self.re_added[key]
        return True

    def promote_due(self, now: float) -> int:
        """Make due keys ready. Return how many."""
        ripe = 0
        for at, _, key, priority in self._due_keys.pop(now):
            if key in self.in_hand:
                self.re_added[key] = priority
                ripe += self.bring_back(key, at)
            else:
                self._push(key, priority, at)
                ripe += 1
            del self.later[key]
        return ripe

    def forget_in_hand(self, now: float) -> None:
        """Forget which keys are in hand, in a forked child without their workers. Their `done` has no effect."""
        self.in_hand.difference_update(self.ready)
        self._not_here.update(self.in_hand)
        self.in_hand.clear()
        self.repair(now)

    def repair(self, now: float) -> None:
        """Restore consistency after an interrupted operation: every key is ready, in hand or delayed; none is lost."""
        self.in_hand.difference_update(self.ready)  # `take` was interrupted
        for key in [key for key in self.re_added if key not in self.in_hand]:
            self.ready.setdefault(key, (key, now))  # `done` was interrupted
            if self.re_added[key]:
                self._priority[key] = self.re_added[key]
            del self.re_added[key]
        for key in [key for key in self.later if key in self.ready or key in self.re_added]:
            del self.later[key]
        self._due_keys = DueKeys()
        for due in self.later.values():
            self._due_keys.add(due)
        self._priority = {key: priority for key, priority in self._priority.items() if key in self.ready}
        self._line, self._lanes, self._priorities, self._stale = deque(self.ready.values()), {}, [], 0
        for entry in self._line:
            if entry[0] in self._priority:
                self._enter_lane(entry, self._priority[entry[0]])

    # -- state

    def __len__(self) -> int:
        """Return how many keys are ready."""
        return len(self.ready)

    @property
    def adds(self) -> int:
        """Return how many adds were not refused."""
        return self.new_adds + self.coalesced

    def next_due(self) -> float | None:
        """Return the instant at which the next delayed key is due; None if there is none."""
        return self._due_keys.first()

    def oldest(self) -> float | None:
        """Return the instant since which the oldest key has been ready; None if none is."""
        return self._first()[1] if self.ready else None

    def scan_next_due(self) -> float | None:
        """Like `next_due`, but scans all keys, so it is safe while they change."""
        return min((due[0] for due in self.later.values()), default=None)

    def longest(self, now: float) -> float | None:
        """Like `oldest`, but scans all keys, so it is safe while they change."""
        return min((since for _, since in self.ready.values()), default=None)

    def keys(self) -> Iterator[K]:
        """Return the keys that are ready."""
        return iter(tuple(self.ready))

    # -- later

    def _cancel_delayed(self, key: K) -> None:
        """Remove a key from the delayed keys, if it is one."""
        due = self.later.pop(key, None)
        if due is not None:
            self._due_keys.remove(due)

    # -- the line and the lanes

    def _push(self, key: K, priority: int, now: float) -> None:
        entry = self.ready[key] = (key, now)
        self._line.append(entry)
        if priority:
            self._enter_lane(entry, priority)

    def _raise(self, key: K, priority: int) -> None:
        """Put a ready key into a higher lane. Its place in the line stays the same."""
        if key in self._priority:
            self._stale += 1  # its entry in the lower lane
        self._enter_lane(self.ready[key], priority)
        self._sweep()

    def _enter_lane(self, entry: Entry[K], priority: int) -> None:
        """Append an entry of the line to the lane of a priority."""
        self._priority[entry[0]] = priority
        if priority in self._lanes:
            self._lanes[priority].append(entry)
        else:
            self._lanes[priority] = deque((entry,))
            insort(self._priorities, priority)

    def _take_by_priority(self) -> K:
        """Remove the next key from the lanes and the line, and return it."""
        self._turns += 1
        entry = self._highest() if self._turns % FAIRNESS_TURNS else None
        if entry is None:
            entry = self._first()
            self._line.popleft()
        key = entry[0]
        if self._priority.pop(key, 0):
            self._stale += 1  # its other entry, in the line or in its lane
        self._sweep(entry)
        return key

    def _highest(self) -> Entry[K] | None:
        """Remove and return the first current entry of the highest lane; None if there is none."""
        while self._lanes:
            priority = self._priorities[-1]
            lane = self._lanes[priority]
            entry = lane.popleft()
            if not lane:
                del self._lanes[self._priorities.pop()]
            if self._is_in_lane(entry, priority):
                return entry
            self._stale -= 1
        return None

    def _first(self) -> Entry[K]:
        """Return the first current entry of the line: the key that has been ready for longest."""
        while not self._is_current(self._line[0]):
            self._line.popleft()
            self._stale -= 1
        return self._line[0]

    def _is_current(self, entry: Entry[K]) -> bool:
        return self.ready.get(entry[0]) is entry

    def _is_in_lane(self, entry: Entry[K], priority: int) -> bool:
        return self._is_current(entry) and self._priority.get(entry[0]) == priority

    def _sweep(self, gone: Entry[K] | None = None) -> None:
        """Drop all stale entries if there are many; `gone` is an entry that is being taken."""
        if self._stale <= len(self.ready) - (gone is not None) + MAX_STALE:
            return
        self._line = deque(entry for entry in self._line if entry is not gone and self._is_current(entry))
        lanes = (
            (level, deque(entry for entry in lane if entry is not gone and self._is_in_lane(entry, level)))
            for level, lane in self._lanes.items()
        )
        self._lanes = {level: lane for level, lane in lanes if lane}
        self._priorities = sorted(self._lanes)
        self._stale = 0
