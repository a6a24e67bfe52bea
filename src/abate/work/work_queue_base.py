"""Implements the methods that `WorkQueue` and `AsyncWorkQueue` share: all that do not wait."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable
from itertools import count
from time import monotonic
from typing import TypeVar

from abate import clock as clocks
from abate.atomic_counter import count_taken
from abate.clock import Clock, ever_used
from abate.errors import number, suggests_settings, whole
from abate.reentrant_locks import may_wait, takes_lock
from abate.schedule.backoff import Backoff, RandomSource, Schedule, schedule
from abate.wakeups import Wakeup
from abate.work.key_queue import KeyQueue
from abate.work.queue_waiters import QueueWaiters, is_own_refusal, repairs_on_error

K = TypeVar("K", bound=Hashable)


class BaseWorkQueue(QueueWaiters[K]):
    """The methods that don't wait. Any thread may call them."""

    __slots__ = ("_calls", "_in_hand", "_lock_free_repeats", "_re_added", "_rng", "_waiting_keys")

    @suggests_settings
    def __init__(
        self,
        capacity: int | None = None,
        backoff: Schedule | Callable[[int], float] | Iterable[float] | None = None,
        rate: float | None = None,
        burst: int = 1,
        *,
        clock: Clock | Callable[[], float] | None = None,
        rng: RandomSource | None = None,
    ) -> None:
        per_key = Backoff() if backoff is None else schedule(backoff)
        super().__init__(KeyQueue(capacity, per_key, rate, burst), clocks.as_clock(clock))
        self._rng: RandomSource = random if rng is None else rng
        self._calls = count(1)  # awaited calls of `AsyncWorkQueue`
        self._in_hand, self._re_added = self._keys.in_hand, self._keys.re_added
        self._waiting_keys = self._ready  # another add of these changes nothing; empty after a shutdown
        self._lock_free_repeats = count()  # counts these adds without the lock

    # -- in

    @takes_lock
    def add(self, key: K, priority: int = 0) -> None:  # noqa: C901 - the hottest call: `Section.call` is written out
        """Add a key. If it waits already, keep it once, with the higher of the two priorities.

        >>> import abate
        >>> queue = abate.WorkQueue()
        >>> queue.add("a"); queue.add("b", priority=1); queue.add("a")
        >>> len(queue), queue.get(), queue.get()
        (2, 'b', 'a')
        """
        try:
            if key in self._waiting_keys and not priority:
                for _ in self._lock_free_repeats:
                    return  # no lock needed: the worker that takes the key sees every change made before this add
        except TypeError:
            raise TypeError(f"a key must be hashable, not {key!r}") from None
        if key is None or priority.__class__ is not int or priority < 0:
            _check(key, priority)
        woken: list[Wakeup] | None = None
        section = self._section
        # `woken = section.call(add, otherwise=defer)`, written out for speed: `add` adds it and finds what to wake;
        # `defer`, for a call that interrupted this section, checks the room and leaves the add to the interrupted call.
        for entered in section.entering_with_timeout() if section.busy else section.entering:
            if not entered and may_wait():
                continue
            try:
                if self._closed:
                    self._check_open()
                if not entered or section.busy:
                    self._keys.check_room()
                    section.deferred.append((self._add_reserved, (key, 0.0, priority)))
                else:
                    try:
                        section.busy = True
                        now = self._now() if ever_used.virtual or self._clock is not None else monotonic()
                        self._keys.add(key, now, priority)
                        if self._getters:
                            woken = self._to_wake()
                    except BaseException as error:
                        if not is_own_refusal(error):
                            self._keys.repair(self._now())
                        raise
                    finally:
                        section.busy = False
            finally:
                if entered:
                    for _ in section.leaving:
                        break
            break
        if section.deferred:
            section.run_deferred()
        if woken:
            self._notify(woken)

    @repairs_on_error
    def _add_reserved(self, key: K, seconds: float, priority: int) -> None:
        """Carry out a deferred add. Its capacity was checked when it was called."""
        self._keys.add_after(key, seconds, self._now(), priority, room_reserved=True)
        self._notify(self._to_wake(timed=True))

    def add_after(self, key: K, seconds: float, priority: int = 0) -> None:
        """Add a key after a delay in seconds; of two delays of a key the one that ends first counts.

        >>> import abate
        >>> with abate.testing.VirtualClock() as clock:
        ...     queue = abate.WorkQueue()
        ...     queue.add_after("a", 5.0); queue.add_after("a", 2.0)
        ...     queue.get(), clock.now()
        ('a', 2.0)
        """
        seconds = number("seconds", seconds)
        _check(key, priority)
        self._notify(self._section.call(self._add_after, key, seconds, priority, otherwise=self._add_after_reentrant))

    @repairs_on_error
    def _add_after(self, key: K, seconds: float, priority: int) -> list[Wakeup]:
        self._check_open()
        self._keys.add_after(key, seconds, self._now(), priority)
        return self._to_wake(timed=True)

    def _add_after_reentrant(self, key: K, seconds: float, priority: int) -> list[Wakeup]:
        self._check_open()
        self._keys.check_room()
        self._section.run_or_defer(self._add_reserved, key, seconds, priority)
        return []

    def add_rate_limited(self, key: K, priority: int = 0, *, least: float = 0.0) -> float:
        """Add a key that failed, after its backoff and at least `least` seconds. Return the delay in seconds.

        >>> import abate
        >>> with abate.testing.VirtualClock():
        ...     queue = abate.WorkQueue(backoff=abate.Backoff(1.0, 60.0, jitter="none"))
        ...     [queue.add_rate_limited(key) for key in "aab"], queue.requeues("a")
        ([1.0, 2.0, 1.0], 2)
        """
        _check(key, priority)
        number("least", least, least=0)
        delay, woken = self._section.call(self._add_failed, key, priority, least, otherwise=self._add_failed_reentrant)
        self._notify(woken)
        return delay

    @repairs_on_error
    def _add_failed(self, key: K, priority: int, least: float) -> tuple[float, list[Wakeup]]:
        self._check_open()
        now = self._now()
        delay = max(least, self._keys.next_delay(key, now, self._rng))
        self._keys.add_after(key, delay, now, priority)
        return delay, self._to_wake(timed=True)

    def _add_failed_reentrant(self, key: K, priority: int, least: float) -> tuple[float, list[Wakeup]]:
        """Defer the add of a failed key. The delay ignores the shared rate, which is charged when the add runs."""
        self._check_open()
        self._keys.check_room()
        delay = max(least, self._keys.backoff_delay(self._keys.requeues(key) + 1, self._rng))
        self._section.run_or_defer(self._add_failed_reserved, key, priority, delay)
        return delay, []

    @repairs_on_error
    def _add_failed_reserved(self, key: K, priority: int, delay: float) -> None:
        self._keys.next_delay(key, self._now(), self._rng)  # counts the failure
        self._add_reserved(key, delay, priority)

    def cancel(self, key: K) -> bool:
        """Cancel the delayed add of a key. Return whether there was one.

        >>> import abate
        >>> queue = abate.WorkQueue()
        >>> queue.add_after("a", 60.0)
        >>> queue.cancel("a"), queue.cancel("a")
        (True, False)
        """
        return self._section.call(self._cancel, key, otherwise=self._cancel_reentrant)

    @repairs_on_error
    def _cancel(self, key: K) -> bool:
        cancelled = self._keys.cancel(key)
        self._notify(self._to_wake(room=cancelled))
        return cancelled

    def _cancel_reentrant(self, key: K) -> bool:
        self._section.run_or_defer(self._cancel, key)
        return key in self._keys.later

    def forget(self, key: K) -> None:
        """Forget the failures of a key."""
        self._section.run_or_defer(self._keys.forget, key)

    def requeues(self, key: K) -> int:
        """Return how often a key has failed since `forget`."""
        return self._keys.requeues(key)

    def done(self, key: K) -> None:
        """Mark a key from `get` or `take` as finished. If it was added meanwhile, it is ready again.

        >>> import abate
        >>> queue = abate.WorkQueue()
        >>> queue.done("a")
        Traceback (most recent call last):
        ValueError: 'a' is not in hand: done is called once for each key that get returned
        """
        try:
            # Without the lock: first take the key out of `in_hand`, then look who concerns that. An operation under the
            # lock first says that it does, and then looks into `in_hand`, so at least one of the two sees the other.
            self._in_hand.remove(key)
            back = self._re_added and key in self._re_added
            if not (back or self._watchers or (self._getters and (self._ready or self._closed))):
                return
            woken = self._section.call(self._after_done, key, otherwise=self._after_done_reentrant)
        except BaseException as error:
            self._section.run_or_defer(self._bring_back, key)  # in case a signal handler has raised
            if not isinstance(error, KeyError):
                raise
            # in the middle of another operation this error would surface in unrelated code
            self._section.call(self._keys.refuse_done, key, otherwise=_nothing)
            return
        self._notify(woken)

    @repairs_on_error
    def _after_done(self, key: K) -> list[Wakeup]:
        self._keys.bring_back(key, self._now())
        return self._to_wake(room=True)

    def _after_done_reentrant(self, key: K) -> list[Wakeup]:
        self._section.run_or_defer(self._bring_back, key)
        return []

    def _bring_back(self, key: K) -> None:
        self._notify(self._after_done(key))

    def take(self, max_keys: int) -> list[K]:
        """Return up to `max_keys` keys that are ready now, without waiting. Call `done` for each of them.

        >>> import abate
        >>> queue = abate.WorkQueue()
        >>> for key in "abc":
        ...     queue.add(key)
        >>> queue.take(2), queue.take(2), queue.take(2)
        (['a', 'b'], ['c'], [])
        """
        whole("max_keys", max_keys, least=0)
        got: list[K] = []
        try:
            self._section.call(self._take, max_keys, got, otherwise=_nothing)
        except BaseException:
            self._return_keys(got)
            raise
        return got

    @repairs_on_error
    def _take(self, most: int, got: list[K]) -> None:
        self._keys.promote_due(self._now())
        while len(got) < most:
            key = self._keys.take()
            if key is None:
                break
            got.append(key)  # at once, so that a signal handler that raises can't lose the key
        self._notify(self._to_wake(room=bool(got)))

    def plans(self) -> list[tuple[K, float, int]]:
        """Return the delayed keys, each with its seconds left and its priority.

        >>> import abate
        >>> with abate.testing.VirtualClock():
        ...     queue = abate.WorkQueue()
        ...     queue.add_after("a", 5.0, priority=1)
        ...     queue.plans()
        [('a', 5.0, 1)]
        """
        return self._section.call(self._plans, otherwise=self._plans)

    def _plans(self) -> list[tuple[K, float, int]]:
        now = self._now()
        return [(key, max(0.0, at - now), priority) for at, _, key, priority in self._keys.later.values()]

    def shutdown(self) -> None:
        """Take no more keys: ready keys are still delivered, delayed keys are dropped."""
        self._closed = True
        self._waiting_keys = {}
        self._section.run_or_defer(self._shut_down)

    @repairs_on_error
    def _shut_down(self) -> None:
        self._keys.promote_due(self._now())  # keys that are due count as ready
        self._keys.cancel_all()
        woken = [*self._getters, *self._watchers]
        self._getters.clear()
        self._watchers.clear()
        self._notify(woken)

    # -- state

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def in_hand(self) -> int:
        """Return how many keys were taken and are not done."""
        return len(self._keys.in_hand)

    @property
    def delayed(self) -> int:
        """Return how many keys are delayed."""
        return len(self._keys.later)

    @property
    def adds(self) -> int:
        """Return how many adds were accepted."""
        return self._keys.adds + count_taken(self._lock_free_repeats)

    @property
    def coalesced(self) -> int:
        """Return how many of these adds were of a key that was already ready or delayed.

        >>> import abate
        >>> queue = abate.WorkQueue()
        >>> for key in "aab":
        ...     queue.add(key)
        >>> queue.adds, queue.coalesced, len(queue)
        (3, 1, 2)
        """
        return self._keys.coalesced + count_taken(self._lock_free_repeats)

    def next_due(self) -> float | None:
        """Return the instant at which the next delayed key is ready; None if there is none."""
        return self._section.call(self._keys.next_due, otherwise=self._keys.scan_next_due)

    def age(self) -> float:
        """Return for how many seconds the oldest ready key has waited; 0 if none is ready.

        >>> import abate
        >>> with abate.testing.VirtualClock() as clock:
        ...     queue = abate.WorkQueue()
        ...     queue.add("a"); clock.advance(3.0); queue.age()
        3.0
        """
        now = self._now()
        oldest = self._section.call(self._oldest, now, otherwise=self._keys.longest)
        return 0.0 if oldest is None else max(0.0, now - oldest)

    def _oldest(self, now: float) -> float | None:
        self._keys.promote_due(now)
        return self._keys.oldest()


def _nothing(*_: object) -> None:
    """Do nothing while this thread is inside another operation of the queue."""


def _check(key: object, priority: object) -> None:
    try:
        hash(key)
    except TypeError:
        raise TypeError(f"a key must be hashable, not {key!r}") from None
    if key is None:
        raise TypeError("a key must not be None")
    whole("priority", priority, least=0)
