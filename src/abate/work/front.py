"""What the queues for threads and for tasks share: `KeyQueue` with a clock, a lock, and lines of those who wait.

Everything but the waiting itself is here. What has to wait is written as steps: they yield an instant, are sent whether
the bell rang before it, and end with the answer. So the two queues cannot disagree. There is no background thread: each
who waits for a key wakes when the next one is due, and whoever leaves wakes another where there is something to do.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable
from itertools import count
from math import inf
from threading import Lock
from time import monotonic
from typing import Generic, TypeAlias, TypeVar

from abate import clock as clocks
from abate.admit import bells
from abate.admit.bells import Bell
from abate.clock import Clock, switch
from abate.errors import AbateError, number, whole
from abate.schedule.backoff import Backoff, Schedule, Uniform, schedule
from abate.work.keys import KeyQueue, QueueFull

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

Steps: TypeAlias = Generator[float, bool, T]
"""A wait: yields the instant until which to listen for the bell, is sent whether it rang, returns the answer."""


class ShutDown(AbateError):
    """The queue was shut down, and everything that was ready has been delivered.

    >>> import abate
    >>> queue = abate.WorkQueue()
    >>> queue.shutdown()
    >>> queue.get()
    Traceback (most recent call last):
    abate.work.front.ShutDown: the queue is shut down
    """


class Front(Generic[K]):
    """What both queues share: everything that does not wait. It may be called from any thread."""

    __slots__ = (
        "_calls",
        "_clock",
        "_closed",
        "_keys",
        "_lock",
        "_ready",
        "_repeats",
        "_rng",
        "_standing",
        "_waiting",
        "_watching",
    )

    def __init__(
        self,
        capacity: int | None = None,
        backoff: Schedule | Callable[[int], float] | Iterable[float] | None = None,
        rate: float | None = None,
        burst: int = 1,
        *,
        clock: Clock | Callable[[], float] | None = None,
        rng: Uniform | None = None,
    ) -> None:
        plan = Backoff() if backoff is None else schedule(backoff)
        self._keys: KeyQueue[K] = KeyQueue(
            None if capacity is None else whole("capacity", capacity, least=1),
            plan,
            None if rate is None else number("rate", rate, above=0),
            whole("burst", burst, least=1),
        )
        self._ready = self._standing = self._keys.ready  # the latter is empty once the queue is shut down
        self._clock = clocks.given(clock)
        self._rng: Uniform = random if rng is None else rng
        self._lock = Lock()
        self._closed = False
        self._waiting: deque[Bell] = deque()  # those who wait for a key
        self._watching: list[Bell] = []  # those who wait for room, or for the end
        self._calls = count(1)  # that a task may await
        # adds of a key that was ready, without the lock: the interpreter lets no other thread go on within such a line
        self._repeats = 0

    def _now(self) -> float:
        if self._clock is None and not switch.virtual:
            return monotonic()
        return (self._clock or clocks.current()).now()

    # -- in

    def add(self, key: K, priority: int = 0) -> None:
        """Add a key, unless it waits already; of two priorities the higher counts.

        >>> import abate
        >>> queue = abate.WorkQueue()
        >>> queue.add("a"); queue.add("b", priority=1); queue.add("a")
        >>> len(queue), queue.get(), queue.get()
        (2, 'b', 'a')
        """
        try:
            if key in self._standing and not priority:
                self._repeats += 1
                return  # without the lock: whoever takes the key from now on sees what it was added for
        except TypeError:
            raise TypeError(f"a key must be hashable, not {key!r}") from None
        if key is None or priority.__class__ is not int or priority < 0:
            _check(key, priority)
        bell = None
        with self._lock:
            if self._closed:
                raise ShutDown("the queue is shut down")
            self._keys.add(key, self._now(), priority)
            if self._waiting and self._ready:
                bell = self._waiting.popleft()
        if bell is not None:
            bell.ring()

    def add_after(self, key: K, seconds: float, priority: int = 0) -> None:
        """Add a key after so many seconds; of two delays the earlier counts.

        >>> import abate
        >>> with abate.testing.VirtualClock() as clock:
        ...     queue = abate.WorkQueue()
        ...     queue.add_after("a", 5.0); queue.add_after("a", 2.0)
        ...     queue.get(), clock.now()
        ('a', 2.0)
        """
        seconds = number("seconds", seconds)
        _check(key, priority)
        with self._lock:
            self._open()
            self._keys.add_after(key, seconds, self._now(), priority)
            rung = self._woken(timed=True)
        _ring(rung)

    def add_rate_limited(self, key: K, priority: int = 0, *, least: float = 0.0) -> float:
        """Add a key that has failed, after its backoff and not before `least` seconds: the seconds until then.

        >>> import abate
        >>> with abate.testing.VirtualClock():
        ...     queue = abate.WorkQueue(backoff=abate.Backoff(1.0, 60.0, jitter="none"))
        ...     [queue.add_rate_limited(key) for key in "aab"], queue.requeues("a")
        ([1.0, 2.0, 1.0], 2)
        """
        _check(key, priority)
        number("least", least, least=0)
        with self._lock:
            self._open()
            now = self._now()
            delay = max(least, self._keys.next_delay(key, now, self._rng))
            self._keys.add_after(key, delay, now, priority)
            rung = self._woken(timed=True)
        _ring(rung)
        return delay

    def cancel(self, key: K) -> bool:
        """Take back what was to be added later: was there anything?

        >>> import abate
        >>> queue = abate.WorkQueue()
        >>> queue.add_after("a", 60.0)
        >>> queue.cancel("a"), queue.cancel("a")
        (True, False)
        """
        with self._lock:
            cancelled = self._keys.cancel(key)
            rung = self._woken(room=cancelled)
        _ring(rung)
        return cancelled

    def forget(self, key: K) -> None:
        """A key is fine again: its next failure is its first."""
        with self._lock:
            self._keys.forget(key)

    def requeues(self, key: K) -> int:
        """How often a key has failed since it was last forgotten."""
        return self._keys.requeues(key)

    def done(self, key: K) -> None:
        """A worker has finished with a key that it got.

        >>> import abate
        >>> queue = abate.WorkQueue()
        >>> queue.done("a")
        Traceback (most recent call last):
        ValueError: 'a' is not in hand: done is called once for each key that get returned
        """
        with self._lock:
            self._keys.done(key, self._now())
            if not self._waiting and not self._watching:
                return
            rung = self._woken(room=True)
        _ring(rung)

    def take(self, most: int) -> list[K]:
        """Keys that are ready now, so many at most, without waiting: each is yours until `done`. [] where none is.

        >>> import abate
        >>> queue = abate.WorkQueue()
        >>> for key in "abc":
        ...     queue.add(key)
        >>> queue.take(2), queue.take(2), queue.take(2)
        (['a', 'b'], ['c'], [])
        """
        whole("most", most, least=0)
        taken: list[K] = []
        with self._lock:
            self._keys.ripen(self._now())
            while len(taken) < most and (key := self._keys.take()) is not None:
                taken.append(key)
            rung = self._woken(room=bool(taken))
        _ring(rung)
        return taken

    def shutdown(self) -> None:
        """Take no more keys: what is ready is still delivered, what was to come later is not."""
        with self._lock:
            self._closed = True
            self._standing = {}
            self._keys.ripen(self._now())  # what has come due is ready, though nobody has looked
            self._keys.cancel_all()
            rung = [*self._waiting, *self._watching]
            self._waiting.clear()
            self._watching.clear()
        _ring(rung)

    # -- what there is

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def in_hand(self) -> int:
        """How many keys workers have."""
        return len(self._keys.in_hand)

    @property
    def delayed(self) -> int:
        """How many keys are to come later."""
        return len(self._keys.later)

    @property
    def adds(self) -> int:
        """How many adds there have been, of whatever kind; those that were refused are not counted."""
        return self._keys.adds + self._repeats

    @property
    def coalesced(self) -> int:
        """How many of the adds were of a key that was waiting already, now or for later.

        >>> import abate
        >>> queue = abate.WorkQueue()
        >>> for key in "aab":
        ...     queue.add(key)
        >>> queue.adds, queue.coalesced, len(queue)
        (3, 1, 2)
        """
        return self._keys.coalesced + self._repeats

    def next_due(self) -> float | None:
        """The instant at which the next delayed key is ready; None where there is none."""
        with self._lock:
            return self._keys.next_due()

    def age(self) -> float:
        """Seconds for which the oldest key has been ready; 0 where none is.

        >>> import abate
        >>> with abate.testing.VirtualClock() as clock:
        ...     queue = abate.WorkQueue()
        ...     queue.add("a"); clock.advance(3.0); queue.age()
        3.0
        """
        with self._lock:
            now = self._now()
            self._keys.ripen(now)
            oldest = self._keys.oldest()
            return 0.0 if oldest is None else max(0.0, now - oldest)

    # -- waiting

    def _here(self) -> Clock:
        return self._clock or clocks.current()

    def _at_once(self) -> K | None:
        """A key for a worker, where nobody else is to be woken for that."""
        with self._lock:
            keys = self._keys
            if self._watching or (keys.later and self._waiting):
                return None
            if keys.later:
                keys.ripen(self._now())
            return keys.take()

    def _getting(self, bell: Bell, clock: Clock, timeout: float | None) -> Steps[K]:
        """Wait for a key."""
        now = clock.now()
        deadline = now + patience(timeout)
        while True:
            key, until = self._look(bell, now, deadline, timeout)
            if key is not None:
                return key
            try:
                rung = yield until
            except BaseException:
                self._gone(bell)
                raise
            now = _then(clock, until, rung)

    def _putting(self, key: K, priority: int, bell: Bell, clock: Clock, timeout: float | None) -> Steps[None]:
        """Wait for room, and add a key."""
        return self._watched(
            lambda: self._admitted(key, priority, bell),
            lambda: f"the queue has had no room for {timeout} s",
            bell,
            clock,
            timeout,
        )

    def _draining(self, bell: Bell, clock: Clock, timeout: float | None) -> Steps[None]:
        """Wait until everything has been done."""
        return self._watched(
            lambda: self._over(bell),
            lambda: f"{len(self)} keys wait and {self.in_hand} are in hand after {timeout} s",
            bell,
            clock,
            timeout,
        )

    def _watched(
        self, met: Callable[[], bool], late: Callable[[], str], bell: Bell, clock: Clock, timeout: float | None
    ) -> Steps[None]:
        """Wait until something is so, which may be whenever a key has been taken or is done."""
        now = clock.now()
        deadline = now + patience(timeout)
        try:
            while not met():
                if now >= deadline:
                    raise TimeoutError(late())
                rung = yield deadline
                now = _then(clock, deadline, rung)
        finally:
            self._unwatch(bell)

    # -- with the lock

    def _open(self) -> None:
        if self._closed:
            raise ShutDown("the queue is shut down")

    def _woken(self, timed: bool = False, room: bool = False) -> list[Bell]:
        """Who is to be woken: one who waits for a key if there is one, or looks after the time; those who watch."""
        rung: list[Bell] = []
        if self._waiting:
            if self._closed and self._idle():
                rung += self._waiting  # nothing will come any more
                self._waiting.clear()
            elif self._ready or (timed and self._keys.later):
                rung.append(self._waiting.popleft())
        if room and self._watching:
            rung += self._watching
            self._watching.clear()
        return rung

    def _look(self, bell: Bell, now: float, deadline: float, timeout: float | None) -> tuple[K | None, float]:
        """A key for a worker; where there is none yet it lines up: None, and until when to wait for the bell."""
        with self._lock:
            if bell in self._waiting:
                self._waiting.remove(bell)
            self._keys.ripen(now)
            key = self._keys.take()
            if key is None:
                if self._closed and not self._keys.in_hand:
                    raise ShutDown("the queue is shut down")
                if now < deadline:
                    self._waiting.append(bell)
                    due = self._keys.next_due()
                    return None, deadline if due is None else min(deadline, due)
            # of several that came due together the next is for the next; who gives up leaves the time to another
            rung = self._woken(timed=key is None, room=True)
        _ring(rung)
        if key is None:
            raise TimeoutError(f"no key within {timeout} s")
        return key, now

    def _gone(self, bell: Bell) -> None:
        """Who waited for a key was broken off: what it was woken for, or the time, is for the next."""
        with self._lock:
            if bell in self._waiting:
                self._waiting.remove(bell)
            rung = self._woken(timed=True)
        _ring(rung)

    def _admitted(self, key: K, priority: int, bell: Bell) -> bool:
        """Add a key; where there is no room, watch for it."""
        with self._lock:
            self._open()
            try:
                self._keys.add(key, self._now(), priority)
            except QueueFull:
                self._watch(bell)
                return False
            rung = self._woken()
        _ring(rung)
        return True

    def _over(self, bell: Bell) -> bool:
        """Has everything been done? Where it has not, watch for it."""
        with self._lock:
            if not self._idle():
                self._watch(bell)
                return False
        return True

    def _watch(self, bell: Bell) -> None:
        if bell not in self._watching:
            self._watching.append(bell)

    def _unwatch(self, bell: Bell) -> None:
        with self._lock:
            if bell in self._watching:
                self._watching.remove(bell)

    def _idle(self) -> bool:
        return not self._ready and not self._keys.in_hand


def _check(key: object, priority: object) -> None:
    try:
        hash(key)
    except TypeError:
        raise TypeError(f"a key must be hashable, not {key!r}") from None
    if key is None:
        raise TypeError("a key must not be None")
    whole("priority", priority, least=0)


def _ring(bells: list[Bell]) -> None:
    for bell in bells:
        bell.ring()


def patience(timeout: float | None) -> float:
    """Seconds that a wait may take: for ever without a timeout."""
    return inf if timeout is None else number("timeout", timeout, least=0)


def _then(clock: Clock, until: float, rung: bool) -> float:
    """The time after a wait."""
    return bells.now(clock, None if rung or until == inf else until)
