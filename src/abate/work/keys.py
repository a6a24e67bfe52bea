"""The key queue, without clock, lock or I/O: what waits, what is in hand, what comes later.

The guarantees (see `abate.work`) are kept here; the fronts for threads and tasks add waiting to it.

    add ──► ready ──► take ──► in hand ──► done ──► gone, or ready again if it was added meanwhile
             ▲                                │
             └── due ◄── later ◄── add_after ─┘

Every key that is ready stands in the line, in the order in which it became so. One with a priority stands in the lane
of that priority besides. A turn takes the first of the highest lane, or of the line where no lane has any; each eighth
turn takes the first of the line in any case. So a key that has n others before it in the line goes within 8 (n + 1)
turns, whatever comes after it. What was taken from one of its places is dead in the others, until it is come across or
swept out.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from itertools import count
from math import inf
from typing import Generic, TypeAlias, TypeVar

from abate.errors import AbateError, number, whole
from abate.schedule.backoff import Schedule, Uniform
from abate.work.timetable import Due, Timetable

K = TypeVar("K", bound=Hashable)

TURNS = 8
"""Of this many keys that are taken, one is the oldest, whatever its priority."""
SLACK = 64
"""Dead places are kept up to this number, or up to as many as there are keys."""
MOST_FAILURES = 100_000
"""Keys whose failures are counted; the one that failed longest ago is forgotten for one more."""


class QueueFull(AbateError):
    """A queue has no room for another key.

    >>> queue = KeyQueue(capacity=1)
    >>> queue.add("a", 0.0)
    True
    >>> queue.add("b", 0.0)
    Traceback (most recent call last):
    abate.work.keys.QueueFull: the queue holds 1 keys, and no more
    """


Entry: TypeAlias = tuple[K, float]
"""A key that is ready, and since when. It is live as long as `ready` holds this very entry."""


class KeyQueue(Generic[K]):
    """Keys that wait for a worker. Every method that needs the time is told it.

    >>> queue = KeyQueue()
    >>> queue.add("a", 0.0), queue.add("b", 0.0), queue.add("a", 0.0)
    (True, True, False)
    >>> queue.take(), queue.add("a", 0.0), queue.take(), queue.take()
    ('a', True, 'b', None)
    >>> queue.done("a", 0.0), queue.take()
    (True, 'a')
    """

    __slots__ = (
        "_again",
        "_burst",
        "_capacity",
        "_dead",
        "_failures",
        "_free",
        "_lanes",
        "_line",
        "_order",
        "_per_key",
        "_priorities",
        "_priority",
        "_rate",
        "_timetable",
        "_turns",
        "coalesced",
        "fresh",
        "in_hand",
        "later",
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
        self._per_key = backoff
        self._rate = None if rate is None else number("rate", rate, above=0)
        self._burst = whole("burst", burst, least=1)
        self._free = -inf  # when the next token of the rate is there
        self.ready: dict[K, Entry[K]] = {}
        self.in_hand: set[K] = set()
        self.later: dict[K, Due[K]] = {}
        """Keys that are to be added, and when; none of them is ready, or to come back after `done`."""
        self.fresh = 0
        """Adds that brought a key: it was not waiting, neither for a worker, nor to come back, nor for its time."""
        self.coalesced = 0
        """Adds of a key that was waiting already: it is taken once for both."""
        self._again: dict[K, int] = {}  # added while in hand, with what priority
        self._line: deque[Entry[K]] = deque()
        self._lanes: dict[int, deque[Entry[K]]] = {}  # none of them is empty
        self._priorities: list[int] = []  # of the lanes, the highest last
        self._priority: dict[K, int] = {}  # of the keys that stand in a lane
        self._dead = 0
        self._turns = 0
        self._timetable: Timetable[K] = Timetable()
        self._order = count()
        self._failures: OrderedDict[K, int] = OrderedDict()

    # -- in

    def add(self, key: K, now: float, priority: int = 0, *, promised: bool = False) -> bool:
        """A key wants work: is it fresh, that is, was it not waiting already?

        One that is ready stays where it is, unless this priority is higher; one that is in hand comes back after it;
        one that waits for its time is ready at once. One that was `promised` room is added also to a full queue.
        """
        if self.later:
            self.ripen(now)  # what came due before goes before
        if key in self.ready:
            self.coalesced += 1
            if priority > self._priority.get(key, 0):
                self._raise(key, priority)
            return False
        held = key in self.in_hand
        fresh = key not in self.later and key not in self._again
        if fresh:
            if self._capacity is not None and not held and not promised:
                self.check_room()
            self.fresh += 1
        else:
            self.coalesced += 1
            planned = self.later.get(key)
            priority = max(priority, 0 if planned is None else planned[3], self._again.get(key, 0))
        if held:
            self._again[key] = priority
        else:
            self._push(key, priority, now)
        if not fresh:
            self._unplan(key)
        return fresh

    def add_after(self, key: K, seconds: float, now: float, priority: int = 0, *, promised: bool = False) -> bool:
        """Add a key later; of two delays the earlier one counts, with its priority. Is it fresh?"""
        if seconds <= 0:
            return self.add(key, now, priority, promised=promised)
        at, planned = now + seconds, self.later.get(key)
        fresh = planned is None and key not in self.ready and key not in self._again
        if fresh:
            if self._capacity is not None and key not in self.in_hand and not promised:
                self.check_room()
            self.fresh += 1
        else:
            self.coalesced += 1
            if planned is None or planned[0] <= at:
                return False
            self._timetable.remove(planned)
        due = self.later[key] = (at, next(self._order), key, priority)
        self._timetable.add(due)
        return fresh

    def check_room(self) -> None:
        """For a key that is not in hand: one that is has always room, or what it was added for would be lost."""
        capacity = self._capacity
        if capacity is not None and len(self.ready) + len(self.later) + len(self._again) >= capacity:
            raise QueueFull(f"the queue holds {capacity} keys, and no more")

    def cancel(self, key: K) -> bool:
        """Forget that a key was to be added later: was it?"""
        planned = key in self.later
        self._unplan(key)
        return planned

    def cancel_all(self) -> None:
        """Forget everything that was to be added later."""
        self.later.clear()
        self._timetable.clear()

    def next_delay(self, key: K, now: float, rng: Uniform) -> float:
        """Count a failure of a key: seconds until it may come back, by its own backoff and by the rate of all."""
        failures = self._failures.pop(key, 0) + 1
        self._failures[key] = failures  # at the end: who failed longest ago comes first
        if len(self._failures) > MOST_FAILURES:
            self._failures.popitem(last=False)
        own = self.own_delay(failures, rng)
        if self._rate is None:
            return own
        self._free = max(self._free, now - self._burst / self._rate) + 1 / self._rate
        return max(own, self._free - now)

    def forget(self, key: K) -> None:
        """A key is fine again: its failures don't count any more."""
        self._failures.pop(key, None)

    def own_delay(self, failures: int, rng: Uniform) -> float:
        """Seconds until a key that has failed so often may come back by its own backoff."""
        return 0.0 if self._per_key is None else self._per_key.delay(failures, rng)

    def requeues(self, key: K) -> int:
        """How often a key has failed since it was last forgotten."""
        return self._failures.get(key, 0)

    # -- out

    def take(self) -> K | None:
        """The key that is next, for a worker; None where none is ready. What has come due is ripened before."""
        if not self.ready:
            return None
        key = self._of_several() if self._lanes or self._dead else self._line.popleft()[0]
        self.in_hand.add(key)
        del self.ready[key]  # last, and no call: who takes a key has it, or else it is ready
        return key

    def done(self, key: K, now: float) -> bool:
        """A worker is done with a key: is it ready again, as it was added meanwhile?"""
        try:
            self.in_hand.remove(key)
        except KeyError:
            raise ValueError(f"{key!r} is not in hand: done is called once for each key that get returned") from None
        if not self._again or key not in self._again:
            return False
        self.ripen(now)  # what came due before goes before
        self._push(key, self._again[key], now)
        del self._again[key]
        return True

    def ripen(self, now: float) -> int:
        """Make ready what has come due: how many."""
        ripe = 0
        for at, _, key, priority in self._timetable.pop(now):
            if key in self.in_hand:
                self._again[key] = priority
            else:
                self._push(key, priority, at)
                ripe += 1
            del self.later[key]
        return ripe

    def mend(self) -> None:
        """Make good what an exception has left half done: each key is ready, in hand, or to come, and none is lost."""
        self.in_hand.difference_update(self.ready)  # to take it was broken off
        for key in [key for key in self._again if key not in self.in_hand]:
            self.ready.setdefault(key, (key, -inf))  # to be done with it was
            if self._again[key]:
                self._priority[key] = self._again[key]
            del self._again[key]
        for key in [key for key in self.later if key in self.ready or key in self._again]:
            del self.later[key]
        self._timetable = Timetable()
        for due in self.later.values():
            self._timetable.add(due)
        self._priority = {key: priority for key, priority in self._priority.items() if key in self.ready}
        self._line, self._lanes, self._priorities, self._dead = deque(self.ready.values()), {}, [], 0
        for entry in self._line:
            if entry[0] in self._priority:
                self._line_up(entry, self._priority[entry[0]])

    # -- what there is

    def __len__(self) -> int:
        """How many keys are ready."""
        return len(self.ready)

    @property
    def adds(self) -> int:
        """Adds that were not refused."""
        return self.fresh + self.coalesced

    def next_due(self) -> float | None:
        """The instant at which the next key comes due; None where none waits."""
        return self._timetable.first()

    def oldest(self) -> float | None:
        """The instant since which the oldest key has been ready; None where none is."""
        return self._first()[1] if self.ready else None

    def soonest(self) -> float | None:
        """Like `next_due`, but scans all keys, so it is safe while they change."""
        return min((due[0] for due in self.later.values()), default=None)

    def longest(self, now: float) -> float | None:
        """Like `oldest`, but scans all keys, so it is safe while they change."""
        return min((since for _, since in self.ready.values()), default=None)

    def keys(self) -> Iterator[K]:
        """The keys that are ready."""
        return iter(tuple(self.ready))

    # -- later

    def _unplan(self, key: K) -> None:
        """A key is not to come later any more."""
        due = self.later.pop(key, None)
        if due is not None:
            self._timetable.remove(due)

    # -- the line and the lanes

    def _push(self, key: K, priority: int, now: float) -> None:
        entry = self.ready[key] = (key, now)
        self._line.append(entry)
        if priority:
            self._line_up(entry, priority)

    def _raise(self, key: K, priority: int) -> None:
        """Let a key stand in a higher lane; its place in the line is the same."""
        if key in self._priority:
            self._dead += 1  # its place in the lower lane
        self._line_up(self.ready[key], priority)
        self._sweep()

    def _line_up(self, entry: Entry[K], priority: int) -> None:
        """Let an entry of the line stand in a lane, too."""
        self._priority[entry[0]] = priority
        if priority in self._lanes:
            self._lanes[priority].append(entry)
        else:
            self._lanes[priority] = deque((entry,))
            insort(self._priorities, priority)

    def _of_several(self) -> K:
        """Choose a key where there are several, and take it out of the lines."""
        self._turns += 1
        entry = self._highest() if self._turns % TURNS else None
        if entry is None:
            entry = self._first()
            self._line.popleft()
        key = entry[0]
        if self._priority.pop(key, 0):
            self._dead += 1  # its other place, in the line or in its lane
        self._sweep(entry)
        return key

    def _highest(self) -> Entry[K] | None:
        """Take the first of the highest lane out of it; None where no lane has any."""
        while self._lanes:
            priority = self._priorities[-1]
            lane = self._lanes[priority]
            entry = lane.popleft()
            if not lane:
                del self._lanes[self._priorities.pop()]
            if self._stands(entry, priority):
                return entry
            self._dead -= 1
        return None

    def _first(self) -> Entry[K]:
        """The first of the line: the key that has been ready for longest."""
        while not self._live(self._line[0]):
            self._line.popleft()
            self._dead -= 1
        return self._line[0]

    def _live(self, entry: Entry[K]) -> bool:
        return self.ready.get(entry[0]) is entry

    def _stands(self, entry: Entry[K], priority: int) -> bool:
        return self._live(entry) and self._priority.get(entry[0]) == priority

    def _sweep(self, gone: Entry[K] | None = None) -> None:
        """Drop the dead places where they are many; one that is about to be taken is `gone`."""
        if self._dead <= len(self.ready) - (gone is not None) + SLACK:
            return
        self._line = deque(entry for entry in self._line if entry is not gone and self._live(entry))
        lanes = (
            (level, deque(entry for entry in lane if entry is not gone and self._stands(entry, level)))
            for level, lane in self._lanes.items()
        )
        self._lanes = {level: lane for level, lane in lanes if lane}
        self._priorities = sorted(self._lanes)
        self._dead = 0
