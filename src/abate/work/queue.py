"""The key queue for threads, and for the tasks of asyncio and trio: `KeyQueue` with a clock, a lock, and waiting."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from math import inf
from threading import Lock
from time import monotonic
from typing import Generic, TypeVar

from abate import clock as clocks
from abate.admit.bells import AsyncioBell, Bell, ThreadBell, TrioBell
from abate.clock import Clock, in_trio, switch
from abate.errors import AbateError, AttemptTimeout, number, whole
from abate.schedule.backoff import Backoff, Schedule, Uniform, schedule
from abate.work.keys import KeyQueue, QueueFull

K = TypeVar("K", bound=Hashable)


class ShutDown(AbateError):
    """The queue was shut down, and everything that was ready has been delivered.

    >>> queue = WorkQueue()
    >>> queue.shutdown()
    >>> queue.get()
    Traceback (most recent call last):
    abate.work.queue.ShutDown: the queue is shut down
    """


class Front(Generic[K]):
    """What both queues share: everything that does not wait. It may be called from any thread."""

    __slots__ = ("_clock", "_closed", "_keys", "_lock", "_ready", "_rng", "_waiting", "_watching")

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
        self._ready = self._keys.ready
        self._clock = clocks.given(clock)
        self._rng: Uniform = random if rng is None else rng
        self._lock = Lock()
        self._closed = False
        self._waiting: deque[Bell] = deque()  # those who wait for a key
        self._watching: list[Bell] = []  # those who wait for room, or for the end

    def _now(self) -> float:
        if self._clock is None and not switch.virtual:
            return monotonic()
        return (self._clock or clocks.current()).now()

    # -- in

    def add(self, key: K, priority: int = 0) -> None:
        """Add a key, unless it waits already; of two priorities the higher counts.

        >>> queue = WorkQueue()
        >>> queue.add("a"); queue.add("b", priority=1); queue.add("a")
        >>> len(queue), queue.get(), queue.get()
        (2, 'b', 'a')
        """
        try:
            if key in self._ready and not priority:
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
        ...     queue = WorkQueue()
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

    def add_rate_limited(self, key: K, priority: int = 0) -> float:
        """Add a key that has failed, after its backoff: the seconds until then.

        >>> import abate
        >>> with abate.testing.VirtualClock():
        ...     queue = WorkQueue(backoff=abate.Backoff(1.0, 60.0, jitter="none"))
        ...     [queue.add_rate_limited(key) for key in "aab"], queue.requeues("a")
        ([1.0, 2.0, 1.0], 2)
        """
        _check(key, priority)
        with self._lock:
            self._open()
            now = self._now()
            delay = self._keys.next_delay(key, now, self._rng)
            self._keys.add_after(key, delay, now, priority)
            rung = self._woken(timed=True)
        _ring(rung)
        return delay

    def cancel(self, key: K) -> bool:
        """Take back what was to be added later: was there anything?

        >>> queue = WorkQueue()
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

        >>> queue = WorkQueue()
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

    def shutdown(self) -> None:
        """Take no more keys: what is ready is still delivered, what was to come later is not."""
        with self._lock:
            self._closed = True
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

    def next_due(self) -> float | None:
        """The instant at which the next delayed key is ready; None where there is none."""
        with self._lock:
            return self._keys.next_due()

    def age(self) -> float:
        """Seconds for which the oldest key has been ready; 0 where none is.

        >>> import abate
        >>> with abate.testing.VirtualClock() as clock:
        ...     queue = WorkQueue()
        ...     queue.add("a"); clock.advance(3.0); queue.age()
        3.0
        """
        with self._lock:
            now = self._now()
            self._keys.ripen(now)
            oldest = self._keys.oldest()
            return 0.0 if oldest is None else max(0.0, now - oldest)

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

    def _look(self, bell: Bell, clock: Clock, deadline: float, timeout: float | None) -> tuple[K | None, float]:
        """A key for a worker; where there is none yet it lines up: None, and until when to wait for the bell."""
        with self._lock:
            if bell in self._waiting:
                self._waiting.remove(bell)
            now = clock.now()
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


class WorkQueue(Front[K]):
    """A queue of keys for threads; see `abate.work` for what it guarantees.

    * `capacity`: so many keys wait at most, those of later included; None for no bound.
    * `backoff`: of a key that fails, as for a policy.
    * `rate`, `burst`: keys that fail come back at this rate at most, all together.
    * `clock`, `rng`: its own time and chance.

    >>> queue = WorkQueue(capacity=100)
    >>> queue.add("orders/42"); queue.add("orders/42")
    >>> key = queue.get()
    >>> queue.done(key)
    >>> len(queue)
    0
    """

    __slots__ = ()

    def shutdown(self, drain: bool = False) -> None:
        """Take no more keys: what is ready is still delivered, what was to come later is not.

        With `drain`, wait until all of it has been done, as `drain` does.

        >>> queue = WorkQueue()
        >>> queue.shutdown(drain=True)
        """
        super().shutdown()
        if drain:
            self.drain()

    def put(self, key: K, priority: int = 0, *, timeout: float | None = None) -> None:
        """Add a key, and wait for room where the queue is full: TimeoutError where there is none in time.

        >>> queue = WorkQueue(capacity=1)
        >>> queue.put("a")
        >>> queue.put("b", timeout=0.001)
        Traceback (most recent call last):
        TimeoutError: the queue has had no room for 0.001 s
        """
        clock = self._clock or clocks.current()
        deadline, bell = _deadline(clock, timeout), ThreadBell()
        _check(key, priority)
        try:
            while not self._admitted(key, priority, bell):
                if clock.now() >= deadline:
                    raise TimeoutError(f"the queue has had no room for {timeout} s")
                bell.wait(clock, deadline - clock.now())
        finally:
            self._unwatch(bell)

    def get(self, timeout: float | None = None) -> K:
        """The next key: it is yours until `done`. TimeoutError where there is none in time, `ShutDown` at the end.

        >>> WorkQueue().get(timeout=0.0)
        Traceback (most recent call last):
        TimeoutError: no key within 0.0 s
        """
        with self._lock:
            if not self._watching and not (self._keys.later and self._waiting):  # nobody else is to be woken
                if self._keys.later:
                    self._keys.ripen(self._now())
                key = self._keys.take()
                if key is not None:
                    return key
        clock = self._clock or clocks.current()
        deadline, bell = _deadline(clock, timeout), ThreadBell()
        while True:
            key, due = self._look(bell, clock, deadline, timeout)
            if key is not None:
                return key
            try:
                bell.wait(clock, due - clock.now())
            except BaseException:
                self._gone(bell)
                raise

    def drain(self, timeout: float | None = None) -> None:
        """Shut down, and wait until everything that was ready has been done: TimeoutError where it is not in time.

        >>> queue = WorkQueue()
        >>> queue.drain()
        """
        self.shutdown()
        clock = self._clock or clocks.current()
        deadline, bell = _deadline(clock, timeout), ThreadBell()
        try:
            while not self._over(bell):
                if clock.now() >= deadline:
                    raise TimeoutError(f"{len(self)} keys wait and {self.in_hand} are in hand after {timeout} s")
                bell.wait(clock, deadline - clock.now())
        finally:
            self._unwatch(bell)


class AsyncWorkQueue(Front[K]):
    """A queue of keys for tasks of asyncio or trio: as `WorkQueue`, with `get`, `put` and `drain` awaited.

    >>> import asyncio
    >>> async def main():
    ...     queue = AsyncWorkQueue()
    ...     queue.add("a")
    ...     key = await queue.get()
    ...     queue.done(key)
    ...     await queue.drain()
    ...     return key
    >>> asyncio.run(main())
    'a'
    """

    __slots__ = ()

    async def put(self, key: K, priority: int = 0, *, timeout: float | None = None) -> None:
        """Add a key, and wait for room where the queue is full; see `WorkQueue.put`."""
        clock = self._clock or clocks.current()
        deadline, bell = _deadline(clock, timeout), _bell()
        _check(key, priority)
        try:
            while not self._admitted(key, priority, bell):
                if clock.now() >= deadline:
                    raise TimeoutError(f"the queue has had no room for {timeout} s")
                await _heard(bell, clock, deadline)
                bell.rearm()
        finally:
            self._unwatch(bell)

    async def get(self, timeout: float | None = None) -> K:
        """The next key; see `WorkQueue.get`."""
        with self._lock:
            if not self._watching and not (self._keys.later and self._waiting):  # nobody else is to be woken
                if self._keys.later:
                    self._keys.ripen(self._now())
                key = self._keys.take()
                if key is not None:
                    return key
        clock = self._clock or clocks.current()
        deadline, bell = _deadline(clock, timeout), _bell()
        while True:
            key, due = self._look(bell, clock, deadline, timeout)
            if key is not None:
                return key
            try:
                await _heard(bell, clock, due)
            except BaseException:
                self._gone(bell)
                raise
            bell.rearm()

    async def drain(self, timeout: float | None = None) -> None:
        """Shut down, and wait until everything that was ready has been done; see `WorkQueue.drain`."""
        self.shutdown()
        clock = self._clock or clocks.current()
        deadline, bell = _deadline(clock, timeout), _bell()
        try:
            while not self._over(bell):
                if clock.now() >= deadline:
                    raise TimeoutError(f"{len(self)} keys wait and {self.in_hand} are in hand after {timeout} s")
                await _heard(bell, clock, deadline)
                bell.rearm()
        finally:
            self._unwatch(bell)


def _deadline(clock: Clock, timeout: float | None) -> float:
    return inf if timeout is None else clock.now() + number("timeout", timeout, least=0)


def _bell() -> AsyncioBell | TrioBell:
    return TrioBell() if in_trio() else AsyncioBell()


async def _heard(bell: AsyncioBell | TrioBell, clock: Clock, until: float) -> bool:
    """Wait for a bell until an instant: has it rung?"""
    if until == inf:
        await bell.rung()
        return True
    try:
        async with clock.within(max(0.0, until - clock.now())):
            await bell.rung()
            return True
    except AttemptTimeout:
        return False
