"""What the queues for threads and for tasks share: everything that does not wait."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable
from itertools import count
from time import monotonic
from typing import TypeVar

from abate import clock as clocks
from abate.admit.bells import Bell
from abate.clock import Clock, switch
from abate.counts import taken
from abate.errors import number, whole
from abate.locks import enters, may_wait
from abate.schedule.backoff import Backoff, Schedule, Uniform, schedule
from abate.work.keys import KeyQueue
from abate.work.lines import Lines, mending, refused

K = TypeVar("K", bound=Hashable)


class Front(Lines[K]):
    """What both queues share. It may be called from any thread."""

    __slots__ = ("_calls", "_repeats", "_rng", "_standing")

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
        per_key = Backoff() if backoff is None else schedule(backoff)
        super().__init__(KeyQueue(capacity, per_key, rate, burst), clocks.given(clock))
        self._rng: Uniform = random if rng is None else rng
        self._calls = count(1)  # that tasks awaited
        self._standing = self._ready  # keys whose further add changes nothing; none once the queue is shut down
        self._repeats = count()  # takes an item for each add of those, without the lock

    # -- in

    @enters
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
                for _ in self._repeats:
                    return  # without the lock: whoever takes the key from now on sees what it was added for
        except TypeError:
            raise TypeError(f"a key must be hashable, not {key!r}") from None
        if key is None or priority.__class__ is not int or priority < 0:
            _check(key, priority)
        rung: list[Bell] | None = None
        section = self._section
        for entered in section.patiently() if section.busy else section.entering:
            if not entered and may_wait():
                continue
            try:
                if self._closed:
                    self._check_open()
                if not entered or section.busy:
                    self._keys.check_room()
                    section.left.append((self._add_promised, (key, 0.0, priority)))
                else:
                    try:
                        section.busy = True
                        now = self._now() if switch.virtual or self._clock is not None else monotonic()
                        self._keys.add(key, now, priority)
                        if self._waiting:
                            rung = self._woken()
                    except BaseException as error:
                        if not refused(error):
                            self._keys.mend()
                        raise
                    finally:
                        section.busy = False
            finally:
                if entered:
                    for _ in section.leaving:
                        break
            break
        if section.left:
            section.finish()
        if rung:
            self._ring(rung)

    @mending
    def _add_promised(self, key: K, seconds: float, priority: int) -> None:
        """Add a key for which there was room when this thread was in the middle of something else."""
        self._keys.add_after(key, seconds, self._now(), priority, promised=True)
        self._ring(self._woken(timed=True))

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
        self._ring(self._section.ask(self._planned, key, seconds, priority, otherwise=self._plan_within))

    @mending
    def _planned(self, key: K, seconds: float, priority: int) -> list[Bell]:
        self._check_open()
        self._keys.add_after(key, seconds, self._now(), priority)
        return self._woken(timed=True)

    def _plan_within(self, key: K, seconds: float, priority: int) -> list[Bell]:
        self._check_open()
        self._keys.check_room()
        self._section.run(self._add_promised, key, seconds, priority)
        return []

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
        delay, rung = self._section.ask(self._put_off, key, priority, least, otherwise=self._put_off_within)
        self._ring(rung)
        return delay

    @mending
    def _put_off(self, key: K, priority: int, least: float) -> tuple[float, list[Bell]]:
        self._check_open()
        now = self._now()
        delay = max(least, self._keys.next_delay(key, now, self._rng))
        self._keys.add_after(key, delay, now, priority)
        return delay, self._woken(timed=True)

    def _put_off_within(self, key: K, priority: int, least: float) -> tuple[float, list[Bell]]:
        """Add a key that has failed, for which there is room now; of several at once the rate counts the first."""
        self._check_open()
        self._keys.check_room()
        delay = max(least, self._keys.own_delay(self._keys.requeues(key) + 1, self._rng))
        self._section.run(self._put_off_promised, key, priority, delay)
        return delay, []

    @mending
    def _put_off_promised(self, key: K, priority: int, delay: float) -> None:
        self._keys.next_delay(key, self._now(), self._rng)  # counts the failure
        self._add_promised(key, delay, priority)

    def cancel(self, key: K) -> bool:
        """Take back what was to be added later: was there anything?

        >>> import abate
        >>> queue = abate.WorkQueue()
        >>> queue.add_after("a", 60.0)
        >>> queue.cancel("a"), queue.cancel("a")
        (True, False)
        """
        return self._section.ask(self._cancelled, key, otherwise=self._cancel_within)

    @mending
    def _cancelled(self, key: K) -> bool:
        cancelled = self._keys.cancel(key)
        self._ring(self._woken(room=cancelled))
        return cancelled

    def _cancel_within(self, key: K) -> bool:
        self._section.run(self._cancelled, key)
        return key in self._keys.later

    def forget(self, key: K) -> None:
        """A key is fine again: its next failure is its first."""
        self._section.run(self._keys.forget, key)

    def requeues(self, key: K) -> int:
        """How often a key has failed since it was last forgotten."""
        return self._keys.requeues(key)

    @enters
    def done(self, key: K) -> None:
        """A worker has finished with a key that it got.

        >>> import abate
        >>> queue = abate.WorkQueue()
        >>> queue.done("a")
        Traceback (most recent call last):
        ValueError: 'a' is not in hand: done is called once for each key that get returned
        """
        rung: list[Bell] | None = None
        section = self._section
        for entered in section.patiently() if section.busy else section.entering:
            if not entered and may_wait():
                continue
            try:
                if not entered or section.busy:
                    section.left.append((self._done_late, (key,)))
                else:
                    try:
                        section.busy = True
                        now = self._now() if switch.virtual or self._clock is not None else monotonic()
                        self._keys.done(key, now)
                        if self._waiting or self._watching:
                            rung = self._woken(room=True)
                    except BaseException as error:
                        if not refused(error):
                            self._keys.mend()
                        raise
                    finally:
                        section.busy = False
            finally:
                if entered:
                    for _ in section.leaving:
                        break
            break
        if section.left:
            section.finish()
        if rung:
            self._ring(rung)

    @mending
    def _done_late(self, key: K) -> None:
        if key in self._keys.in_hand:  # an error would be raised by who has nothing to do with it
            self._keys.done(key, self._now())
            self._ring(self._woken(room=True))

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
        got: list[K] = []
        try:
            self._section.ask(self._taken, most, got, otherwise=_nothing)
        except BaseException:
            self._give_back(got)
            raise
        return got

    @mending
    def _taken(self, most: int, got: list[K]) -> None:
        self._keys.ripen(self._now())
        while len(got) < most:
            key = self._keys.take()
            if key is None:
                break
            got.append(key)  # at once: no handler may come before
        self._ring(self._woken(room=bool(got)))

    def plans(self) -> list[tuple[K, float, int]]:
        """What is to come later: each key, in how many seconds, with what priority.

        >>> import abate
        >>> with abate.testing.VirtualClock():
        ...     queue = abate.WorkQueue()
        ...     queue.add_after("a", 5.0, priority=1)
        ...     queue.plans()
        [('a', 5.0, 1)]
        """
        return self._section.ask(self._plans, otherwise=self._plans)

    def _plans(self) -> list[tuple[K, float, int]]:
        now = self._now()
        return [(key, max(0.0, at - now), priority) for at, _, key, priority in self._keys.later.values()]

    def shutdown(self) -> None:
        """Take no more keys: what is ready is still delivered, what was to come later is not."""
        self._closed = True
        self._standing = {}
        self._section.run(self._shut)

    @mending
    def _shut(self) -> None:
        self._keys.ripen(self._now())  # what has come due is ready, though nobody has looked
        self._keys.cancel_all()
        rung = [*self._waiting, *self._watching]
        self._waiting.clear()
        self._watching.clear()
        self._ring(rung)

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
        return self._keys.adds + taken(self._repeats)

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
        return self._keys.coalesced + taken(self._repeats)

    def next_due(self) -> float | None:
        """The instant at which the next delayed key is ready; None where there is none."""
        return self._section.ask(self._keys.next_due, otherwise=self._keys.soonest)

    def age(self) -> float:
        """Seconds for which the oldest key has been ready; 0 where none is.

        >>> import abate
        >>> with abate.testing.VirtualClock() as clock:
        ...     queue = abate.WorkQueue()
        ...     queue.add("a"); clock.advance(3.0); queue.age()
        3.0
        """
        now = self._now()
        oldest = self._section.ask(self._oldest, now, otherwise=self._keys.longest)
        return 0.0 if oldest is None else max(0.0, now - oldest)

    def _oldest(self, now: float) -> float | None:
        self._keys.ripen(now)
        return self._keys.oldest()


def _nothing(*_: object) -> None:
    """Take nothing in the middle of another operation of this thread."""


def _check(key: object, priority: object) -> None:
    try:
        hash(key)
    except TypeError:
        raise TypeError(f"a key must be hashable, not {key!r}") from None
    if key is None:
        raise TypeError("a key must not be None")
    whole("priority", priority, least=0)
