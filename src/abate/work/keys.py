"""The key queue, without clock, lock or I/O: what waits, what is in hand, what comes later.

The guarantees (see `abate.work`) are kept here; the fronts for threads and tasks add waiting to it.

    add ──► ready ──► take ──► in hand ──► done ──► gone, or ready again if it was added meanwhile
             ▲                                │
             └── due ◄── later ◄── add_after ─┘
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Generic, TypeAlias, TypeVar

from abate.errors import AbateError
from abate.schedule.backoff import Schedule, Uniform

K = TypeVar("K", bound=Hashable)

TURNS = 8
"""Of this many keys that are taken, one is the oldest, whatever its priority."""
SLACK = 64
"""Places of what is gone are kept up to this number, or up to as many as there are others."""
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


Entry: TypeAlias = tuple[K, int, float]
"""A key that is ready: with its priority, and since when. It is live as long as `ready` holds this very entry."""


Due: TypeAlias = tuple[float, int, K, int]
"""A key that comes later: when, in what order, with what priority. Live as long as `later` holds this very one."""


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
        "_due",
        "_failures",
        "_free",
        "_lanes",
        "_order",
        "_per_key",
        "_priorities",
        "_rate",
        "_turns",
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
        self._capacity = inf if capacity is None else capacity
        self._per_key = backoff
        self._rate = rate
        self._burst = burst
        self._free = -inf  # when the next token of the rate is there
        self.ready: dict[K, Entry[K]] = {}
        self.in_hand: set[K] = set()
        self._again: dict[K, int] = {}  # added while in hand, with what priority
        self._lanes: dict[int, deque[Entry[K]]] = {0: deque()}
        self._priorities: list[int] = [0]  # of the lanes, the highest first
        self._dead = 0
        self.later: dict[K, Due[K]] = {}
        """Keys that are to be added, and when; none of them is ready, or to come back after `done`."""
        self._due: list[Due[K]] = []
        self._order = count()
        self._failures: dict[K, int] = {}
        self._turns = 0

    # -- in

    def add(self, key: K, now: float, priority: int = 0) -> bool:
        """A key wants work: is it new here?

        One that is ready stays where it is, unless this priority is higher; one that is in hand comes back after it;
        one that waits for its time is ready at once.
        """
        if self._due and self._due[0][0] <= now:
            self.ripen(now)  # what came due before goes before
        if key in self.ready:
            if priority > self.ready[key][1]:
                self._raise(key, priority)
            return False
        if key in self.in_hand:
            self._again[key] = max(priority, self._again.get(key, 0), self._unplanned(key))
            return True
        if key in self.later:  # it is counted already
            priority = max(priority, self._unplanned(key))
        elif len(self.ready) + len(self.later) + len(self._again) >= self._capacity:
            raise QueueFull(f"the queue holds {self._capacity} keys, and no more")
        self._push(key, priority, now)
        return True

    def add_after(self, key: K, seconds: float, now: float, priority: int = 0) -> bool:
        """Add a key later; of two delays the earlier one counts. Is it the one that counts?"""
        if seconds <= 0:
            return self.add(key, now, priority)
        at = now + seconds
        if key in self.ready or key in self._again or (key in self.later and self.later[key][0] <= at):
            return False
        if (
            key not in self.later
            and key not in self.in_hand
            and len(self.ready) + len(self.later) + len(self._again) >= self._capacity
        ):
            raise QueueFull(f"the queue holds {self._capacity} keys, and no more")
        due = self.later[key] = (at, next(self._order), key, priority)
        heappush(self._due, due)
        self._tidy()
        return True

    def cancel(self, key: K) -> bool:
        """Forget that a key was to be added later: was it?"""
        planned = key in self.later
        self._unplanned(key)
        return planned

    def cancel_all(self) -> None:
        """Forget everything that was to be added later."""
        self.later.clear()
        self._due.clear()

    def next_delay(self, key: K, now: float, rng: Uniform) -> float:
        """Count a failure of a key: seconds until it may come back, by its own backoff and by the rate of all."""
        failures = self._failures.pop(key, 0) + 1
        self._failures[key] = failures  # at the end: who failed longest ago comes first
        if len(self._failures) > MOST_FAILURES:
            del self._failures[next(iter(self._failures))]
        own = 0.0 if self._per_key is None else self._per_key.delay(failures, rng)
        if self._rate is None:
            return own
        self._free = max(self._free, now - self._burst / self._rate) + 1 / self._rate
        return max(own, self._free - now)

    def forget(self, key: K) -> None:
        """A key is fine again: its failures don't count any more."""
        self._failures.pop(key, None)

    def requeues(self, key: K) -> int:
        """How often a key has failed since it was last forgotten."""
        return self._failures.get(key, 0)

    # -- out

    def take(self) -> K | None:
        """The key that is next, for a worker; None where none is ready. What has come due is ripened before."""
        if not self.ready:
            return None
        if len(self._priorities) == 1 and not self._dead:
            key = self._lanes[0].popleft()[0]
        else:
            self._turns += 1
            key = (self._oldest() if self._turns % TURNS == 0 else self._highest())[0]
        del self.ready[key]
        if self._dead and self._dead > len(self.ready) + SLACK:
            self._sweep()
        self.in_hand.add(key)
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
        self._push(key, self._again.pop(key), now)
        return True

    def ripen(self, now: float) -> int:
        """Make ready what has come due: how many."""
        ripe, due = 0, self._due
        while due and due[0][0] <= now:
            item = heappop(due)
            at, _, key, priority = item
            if self.later.get(key) is not item:
                continue  # cancelled, or added by now
            del self.later[key]
            if key in self.in_hand:
                self._again[key] = priority
            else:
                self._push(key, priority, at)
                ripe += 1
        return ripe

    # -- what there is

    def __len__(self) -> int:
        """How many keys are ready."""
        return len(self.ready)

    def next_due(self) -> float | None:
        """The instant at which the next key comes due; None where none waits."""
        while self._due and self.later.get(self._due[0][2]) is not self._due[0]:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def oldest(self) -> float | None:
        """The instant since which the oldest key has been ready; None where none is."""
        return next(iter(self.ready.values()))[2] if self.ready else None

    def keys(self) -> Iterator[K]:
        """The keys that are ready."""
        return iter(tuple(self.ready))

    # -- later

    def _unplanned(self, key: K) -> int:
        """A key is not to come later any more: the priority that it would have had, or 0."""
        due = self.later.pop(key, None)
        if due is None:
            return 0
        self._tidy()
        return due[3]

    def _tidy(self) -> None:
        if len(self._due) > 2 * len(self.later) + SLACK:
            self._due = list(self.later.values())
            heapify(self._due)

    # -- lanes

    def _push(self, key: K, priority: int, now: float) -> None:
        entry = self.ready[key] = (key, priority, now)
        if priority not in self._lanes:
            self._prune()
            self._lanes[priority] = deque()
            self._priorities = sorted(self._lanes, reverse=True)
        self._lanes[priority].append(entry)

    def _raise(self, key: K, priority: int) -> None:
        """Move a key to a higher lane; what is left of it in the old one is dead."""
        self._dead += 1
        self._push(key, priority, self.ready[key][2])
        if self._dead > len(self.ready) + SLACK:
            self._sweep()

    def _sweep(self) -> None:
        """Drop what is dead."""
        for level, lane in self._lanes.items():
            self._lanes[level] = deque(entry for entry in lane if self._live(entry))
        self._dead = 0
        self._prune()

    def _prune(self) -> None:
        """Drop the lanes that are empty, or every priority that was ever used would stay."""
        self._lanes = {level: lane for level, lane in self._lanes.items() if lane or not level}
        self._priorities = sorted(self._lanes, reverse=True)

    def _live(self, entry: Entry[K]) -> bool:
        return self.ready.get(entry[0]) is entry

    def _highest(self) -> Entry[K]:
        for priority in self._priorities:
            lane = self._lanes[priority]
            while lane:
                entry = lane.popleft()
                if self._live(entry):
                    return entry
                self._dead -= 1
            if priority:
                del self._lanes[priority]
                self._priorities = sorted(self._lanes, reverse=True)
        raise AssertionError("a key is ready and in no lane")

    def _oldest(self) -> Entry[K]:
        """The entry that was added first, of those at the head of a lane."""
        found: Entry[K] | None = None
        for lane in self._lanes.values():
            while lane and not self._live(lane[0]):
                lane.popleft()
                self._dead -= 1
            if lane and (found is None or lane[0][2] < found[2]):
                found = lane[0]
        assert found is not None
        self._lanes[found[1]].popleft()
        return found
