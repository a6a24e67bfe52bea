"""Who waits at a queue of keys, and who is woken: `KeyQueue` with a clock, a lock, and two lines.

Some wait for a key; others watch, for room or for the end. A wait is written as steps: they yield an instant, are sent
whether the bell rang before it, and end with the answer. So threads and tasks cannot disagree. There is no background
thread: each who waits for a key wakes when the next one is due, and whoever leaves wakes another where there is
something to do.

A signal handler, or a finalizer, may add keys and be done with them in the middle of an operation of its own thread:
that is carried out when this operation is over, before its thread goes on. It may not wait there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable
from functools import wraps
from math import inf
from time import monotonic
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

from abate import clock as clocks
from abate import forks
from abate.admit import bells
from abate.admit.bells import Bell
from abate.clock import Clock, switch
from abate.errors import AbateError, number
from abate.locks import Section, enters, may_wait
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
    abate.work.lines.ShutDown: the queue is shut down
    """


F = TypeVar("F", bound=Callable[..., Any])

_OWN_FILES = {"abate.work.keys", "abate.work.lines", "abate.work.front"}


def refused(error: BaseException) -> bool:
    """Return whether the queue itself has raised the error: it does so before it has changed anything.

    A signal handler may raise the same types in the middle of a change, as one does that adds to a full queue. Its
    frame is on the traceback then.
    """
    if not isinstance(error, (QueueFull, ShutDown, ValueError)):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _OWN_FILES:
        trace = trace.tb_next
    return trace is None


def mending(act: F) -> F:
    """Mend the keys where an exception, of a signal handler, has broken off an operation in the middle."""

    @wraps(act)
    def mended(self: Lines[Any], *args: Any) -> Any:
        try:
            return act(self, *args)
        except BaseException as error:
            if not refused(error):
                self._keys.mend()
            raise

    return mended  # type: ignore[return-value]


class Lines(Generic[K]):
    """The keys of one queue, and those who wait there."""

    __slots__ = ("__weakref__", "_clock", "_closed", "_keys", "_ready", "_section", "_waiting", "_watching")

    def __init__(self, keys: KeyQueue[K], clock: Clock | None) -> None:
        self._keys = keys
        self._ready = keys.ready
        self._clock = clock
        self._section = Section()
        self._closed = False
        self._waiting: deque[Bell] = deque()  # those who wait for a key
        self._watching: list[Bell] = []  # those who wait for room, or for the end
        forks.keep(self)

    def after_fork(self) -> None:
        """In the child: replace the lock, and forget who waited in threads that do not exist there."""
        self._section.after_fork()
        self._waiting.clear()
        self._watching.clear()

    def _here(self) -> Clock:
        return self._clock or clocks.current()

    def _now(self) -> float:
        if self._clock is None and not switch.virtual:
            return monotonic()
        return self._here().now()

    @enters
    def _at_once(self) -> K | None:
        """A key for a worker, where nobody else is to be woken for that."""
        key, section = None, self._section
        for taken in section.patiently() if section.busy else section.entering:
            if not taken and may_wait():
                continue
            try:
                if taken and not section.busy:
                    try:
                        section.busy = True
                        keys = self._keys
                        if not (self._watching or (keys.later and self._waiting)):
                            if keys.later:
                                keys.ripen(self._now())
                            key = keys.take()
                    except BaseException:
                        self._keys.mend()
                        raise
                    finally:
                        section.busy = False
            finally:
                if taken:
                    for _ in section.leaving:
                        break
            break
        if section.left:
            try:
                section.finish()
            except BaseException:
                if key is not None:
                    self._give_back([key])
                raise
        return key

    def _give_back(self, keys: list[K]) -> None:
        """Let other workers have keys that an exception has kept from who took them."""
        for key in keys:
            self._section.run(self._given_back, key)

    # -- steps of those who wait

    def _getting(self, bell: Bell, clock: Clock, timeout: float | None, got: list[K]) -> Steps[K]:
        """Wait for a key; it is in `got` from the moment at which it is in hand."""
        now = clock.now()
        deadline = now + patience(timeout)
        try:
            while True:
                until = self._look(bell, now, deadline, timeout, got)
                if until is None:
                    return got[0]
                rung = yield until
                now = _then(clock, until, rung)
        except BaseException:
            self._gone(bell)
            raise

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
            lambda: f"{len(self._ready)} keys wait and {len(self._keys.in_hand)} are in hand after {timeout} s",
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

    # -- who is woken

    def _ring(self, rung: list[Bell]) -> None:
        """Wake them; where one is in an event loop that is over, and hears nothing, wake another."""
        while [bell for bell in rung if not bell.ring()]:
            rung = self._section.ask(self._woken, True, otherwise=self._woken)

    def _woken(self, timed: bool = False, room: bool = False) -> list[Bell]:
        """Who is to be woken: one who waits for a key if there is one, or looks after the time; those who watch.

        Within the section; they are rung outside of it, where that can be.
        """
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

    def _look(self, bell: Bell, now: float, deadline: float, timeout: float | None, got: list[K]) -> float | None:
        """Get a key for a worker; where there is none yet it lines up: until when to wait for the bell."""
        until, rung = self._section.ask(self._looked, bell, now, deadline, got, otherwise=_can_not_wait)
        if until is None:
            self._ring(rung)
            if not got:
                raise TimeoutError(f"no key within {timeout} s")
        return until

    @mending
    def _looked(self, bell: Bell, now: float, deadline: float, got: list[K]) -> tuple[float | None, list[Bell]]:
        if bell in self._waiting:
            self._waiting.remove(bell)
        self._keys.ripen(now)
        key = self._keys.take()
        if key is not None:
            got.append(key)
        else:
            if not self._keys.in_hand:  # or one of those may come back, also after a shutdown
                self._check_open()
            if now < deadline:
                self._waiting.append(bell)
                due = self._keys.next_due()
                return deadline if due is None else min(deadline, due), []
        # several may have come due together: wake another for the next; a waiter that times out wakes another, to
        # wait for the next due key
        return None, self._woken(timed=key is None, room=True)

    def _gone(self, bell: Bell) -> None:
        """Who waited for a key was broken off: what it was woken for, or the time, is for the next."""
        self._section.run(self._left, bell)

    def _left(self, bell: Bell) -> None:
        if bell in self._waiting:
            self._waiting.remove(bell)
        self._ring(self._woken(timed=True))

    @mending
    def _given_back(self, key: K) -> None:
        if key in self._keys.in_hand:
            self._keys.add(key, self._now())  # to come back when it is done
            self._keys.done(key, self._now())
            self._ring(self._woken())

    def _admitted(self, key: K, priority: int, bell: Bell) -> bool:
        """Add a key; where there is no room, watch for it."""
        rung = self._section.ask(self._admit, key, priority, bell, otherwise=_can_not_wait)
        if rung is None:
            return False
        self._ring(rung)
        return True

    @mending
    def _admit(self, key: K, priority: int, bell: Bell) -> list[Bell] | None:
        self._check_open()
        try:
            self._keys.add(key, self._now(), priority)
        except QueueFull as error:
            if not refused(error):
                raise
            self._watch(bell)
            return None
        return self._woken()

    def _over(self, bell: Bell) -> bool:
        """Has everything been done? Where it has not, watch for it."""
        return self._section.ask(self._ended, bell, otherwise=_can_not_wait)

    def _ended(self, bell: Bell) -> bool:
        if self._idle():
            return True
        self._watch(bell)
        return False

    def _watch(self, bell: Bell) -> None:
        if bell not in self._watching:
            self._watching.append(bell)

    def _unwatch(self, bell: Bell) -> None:
        self._section.run(self._unwatched, bell)

    def _unwatched(self, bell: Bell) -> None:
        if bell in self._watching:
            self._watching.remove(bell)

    def _check_open(self) -> None:
        if self._closed:
            raise ShutDown("the queue is shut down")

    def _idle(self) -> bool:
        return not self._ready and not self._keys.in_hand


def _can_not_wait(*_: object) -> NoReturn:
    raise RuntimeError(
        "a signal handler or a finalizer can't wait for a queue that its own thread is in the middle of changing"
    )


def patience(timeout: float | None) -> float:
    """Seconds that a wait may take: for ever without a timeout."""
    return inf if timeout is None else number("timeout", timeout, least=0)


def _then(clock: Clock, until: float, rung: bool) -> float:
    """The time after a wait."""
    return bells.now(clock, None if rung or until == inf else until)
