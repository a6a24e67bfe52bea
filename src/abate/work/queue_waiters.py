"""Keeps the waiters of a key queue and decides which to wake: `KeyQueue` plus a clock, a lock and two waiter lists.

Getters wait for a key. Watchers wait for capacity or for the queue to drain. A wait is a generator: it yields the
instant until which to wait, is sent whether the wake-up came before then, and returns the result. Threads and tasks run
the same generators. There is no background thread: every getter wakes when the next delayed key is due, and a waiter
that leaves wakes another one if there is something to do.

A signal handler or a finalizer may call `add` and `done` while its own thread is inside an operation. The call is
deferred to the end of that operation, before the thread continues. Waiting is refused there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable
from functools import wraps
from math import inf
from time import monotonic
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

from abate import clock as clocks
from abate import forks, wakeups
from abate.clock import Clock, ever_used
from abate.errors import AbateError, number
from abate.reentrant_locks import Section, may_wait, takes_lock
from abate.wakeups import Wakeup
from abate.work.key_queue import KeyQueue, QueueFull

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

Steps: TypeAlias = Generator[float, bool, T]
"""A wait: yields the instant until which to wait for the wake-up, is sent whether it came, returns the result."""


class ShutDown(AbateError):
    """The queue was shut down, and everything that was ready has been delivered.

    >>> import abate
    >>> queue = abate.WorkQueue()
    >>> queue.shutdown()
    >>> queue.get()
    Traceback (most recent call last):
    abate.work.queue_waiters.ShutDown: the queue is shut down
    """


F = TypeVar("F", bound=Callable[..., Any])

_OWN_MODULES = {"abate.work.key_queue", "abate.work.queue_waiters", "abate.work.work_queue_base"}


def is_own_refusal(error: BaseException) -> bool:
    """Return whether the queue itself raised the error, which it does before it changes anything.

    A signal handler may raise the same types in the middle of a change, for example by adding to a full queue. The
    traceback then contains the frame of the handler.
    """
    if not isinstance(error, (QueueFull, ShutDown, ValueError)):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _OWN_MODULES:
        trace = trace.tb_next
    return trace is None


def repairs_on_error(act: F) -> F:
    """Repair the keys if an exception, such as that of a signal handler, interrupts the operation."""

    @wraps(act)
    def repairing(self: QueueWaiters[Any], *args: Any) -> Any:
        try:
            return act(self, *args)
        except BaseException as error:
            if not is_own_refusal(error):
                self._keys.repair(self._now())
            raise

    return repairing  # type: ignore[return-value]


class QueueWaiters(Generic[K]):
    """The keys of one queue, and the threads and tasks that wait for them."""

    __slots__ = ("__weakref__", "_clock", "_closed", "_getters", "_keys", "_ready", "_section", "_watchers")

    def __init__(self, keys: KeyQueue[K], clock: Clock | None) -> None:
        self._keys = keys
        self._ready = keys.ready
        self._clock = clock
        self._section = Section()
        self._closed = False
        self._getters: deque[Wakeup] = deque()  # wait for a key
        self._watchers: list[Wakeup] = []  # wait for capacity, or for the queue to drain
        forks.register(self)

    def after_fork(self) -> None:
        """Replace the lock in the child, and drop waiters and keys in hand: their threads do not exist there."""
        self._section.after_fork()
        self._getters.clear()
        self._watchers.clear()
        self._section.run_or_defer(self._forget_in_hand)

    def _forget_in_hand(self) -> None:
        self._keys.forget_in_hand(self._now())

    def _current_clock(self) -> Clock:
        return self._clock or clocks.current()

    def _now(self) -> float:
        if self._clock is None and not ever_used.virtual:
            return monotonic()
        return self._current_clock().now()

    @takes_lock
    def _take_now(self) -> K | None:
        """Take a ready key if this requires no wake-ups; otherwise return None. Fast path of `get`."""
        key, section = None, self._section
        # `key = section.call(take, otherwise=lambda: None)`, written out for speed
        for taken in section.entering_with_timeout() if section.busy else section.entering:
            if not taken and may_wait():
                continue
            try:
                if taken and not section.busy:
                    try:
                        section.busy = True
                        keys = self._keys
                        if not (self._watchers or (keys.later and self._getters)):
                            if keys.later:
                                keys.promote_due(self._now())
                            key = keys.take()
                    except BaseException:
                        self._keys.repair(self._now())
                        raise
                    finally:
                        section.busy = False
            finally:
                if taken:
                    for _ in section.leaving:
                        break
            break
        if section.deferred:
            try:
                section.run_deferred()
            except BaseException:
                if key is not None:
                    self._return_keys([key])
                raise
        return key

    def _return_keys(self, keys: list[K]) -> None:
        """Return keys whose caller was interrupted by an exception, so that other workers get them."""
        for key in keys:
            self._section.run_or_defer(self._return_key, key)

    # -- waits

    def _get_steps(self, wakeup: Wakeup, clock: Clock, timeout: float | None, got: list[K]) -> Steps[K]:
        """Wait for a key. Append it to `got` in the same step that takes it."""
        now = clock.now()
        deadline = now + wait_seconds(timeout)
        try:
            while True:
                until = self._get_or_wait(wakeup, now, deadline, timeout, got)
                if until is None:
                    return got[0]
                woken = yield until
                now = _time_after(clock, until, woken)
        except BaseException:
            self._abandon_get(wakeup)
            raise

    def _put_steps(self, key: K, priority: int, wakeup: Wakeup, clock: Clock, timeout: float | None) -> Steps[None]:
        """Wait for capacity, and add a key."""
        return self._watch_steps(
            lambda: self._put_or_watch(key, priority, wakeup),
            lambda: f"the queue was full for {timeout} s",
            wakeup,
            clock,
            timeout,
        )

    def _drain_steps(self, wakeup: Wakeup, clock: Clock, timeout: float | None) -> Steps[None]:
        """Wait until all keys are done."""
        return self._watch_steps(
            lambda: self._drained_or_watch(wakeup),
            lambda: f"{len(self._ready)} keys wait and {len(self._keys.in_hand)} are in hand after {timeout} s",
            wakeup,
            clock,
            timeout,
        )

    def _watch_steps(
        self, met: Callable[[], bool], late: Callable[[], str], wakeup: Wakeup, clock: Clock, timeout: float | None
    ) -> Steps[None]:
        """Wait until `met()` is true. It is evaluated again whenever a key was taken or is done."""
        now = clock.now()
        deadline = now + wait_seconds(timeout)
        try:
            while not met():
                if now >= deadline:
                    raise TimeoutError(late())
                woken = yield deadline
                now = _time_after(clock, deadline, woken)
        finally:
            self._unwatch(wakeup)

    # -- wake-ups

    def _notify(self, woken: list[Wakeup]) -> None:
        """Notify these waiters. If the event loop of one is closed, notify another waiter instead."""
        while woken:
            try:
                deaf = [wakeup for wakeup in woken if not wakeup.notify()]
            except BaseException:
                for wakeup in woken:  # a signal handler has raised; a second wake-up does no harm
                    wakeup.notify()
                raise
            woken = self._section.call(self._to_wake, True, otherwise=self._to_wake) if deaf else []

    def _to_wake(self, timed: bool = False, room: bool = False) -> list[Wakeup]:
        """Return the waiters to notify, and remove them from the lists.

        These are one getter if a key is ready (or, if `timed`, to wait for the next delayed key), and with `room` all
        watchers. Call this inside the section, and notify outside of it where possible.
        """
        woken: list[Wakeup] = []
        if self._getters:
            if self._closed and self._idle():
                woken += self._getters  # no more keys will come
                self._getters.clear()
            elif self._ready or (timed and self._keys.later):
                woken.append(self._getters.popleft())
        if room and self._watchers:
            woken += self._watchers
            self._watchers.clear()
        return woken

    def _get_or_wait(
        self, wakeup: Wakeup, now: float, deadline: float, timeout: float | None, got: list[K]
    ) -> float | None:
        """Get a key into `got` and return None, or register the wake-up and return until when to wait for it."""
        until, woken = self._section.call(self._try_get, wakeup, now, deadline, got, otherwise=_refuse_wait)
        if until is None:
            self._notify(woken)
            if not got:
                raise TimeoutError(f"no key within {timeout} s")
        return until

    @repairs_on_error
    def _try_get(self, wakeup: Wakeup, now: float, deadline: float, got: list[K]) -> tuple[float | None, list[Wakeup]]:
        if wakeup in self._getters:
            self._getters.remove(wakeup)
        self._keys.promote_due(now)
        key = self._keys.take()
        if key is not None:
            got.append(key)
        else:
            if now < deadline:
                self._getters.append(wakeup)
            if self._idle():  # last, as `done` takes no lock; a key in hand may come back, even after a shutdown
                self._check_open()
            if now < deadline:
                due = self._keys.next_due()
                return deadline if due is None else min(deadline, due), []
        # Several keys may be due at once, so wake another getter for the next one. A getter that times out wakes
        # another one, which then waits for the next delayed key.
        return None, self._to_wake(timed=key is None, room=True)

    def _abandon_get(self, wakeup: Wakeup) -> None:
        """Remove an interrupted getter, and pass its wake-up, or the wait for the next delayed key, to another one."""
        self._section.run_or_defer(self._remove_getter, wakeup)

    def _remove_getter(self, wakeup: Wakeup) -> None:
        if wakeup in self._getters:
            self._getters.remove(wakeup)
        self._notify(self._to_wake(timed=True))

    @repairs_on_error
    def _return_key(self, key: K) -> None:
        if key in self._keys.in_hand:
            self._keys.add(key, self._now())  # so that `done` makes it ready again
            self._keys.done(key, self._now())
            self._notify(self._to_wake())

    def _put_or_watch(self, key: K, priority: int, wakeup: Wakeup) -> bool:
        """Add a key and return True; if the queue is full, register the watcher and return False."""
        woken = self._section.call(self._try_put, key, priority, wakeup, otherwise=_refuse_wait)
        if woken is None:
            return False
        self._notify(woken)
        return True

    @repairs_on_error
    def _try_put(self, key: K, priority: int, wakeup: Wakeup) -> list[Wakeup] | None:
        self._check_open()
        try:
            self._keys.add(key, self._now(), priority)
        except QueueFull as error:
            if not is_own_refusal(error):
                raise
            self._add_watcher(wakeup)
            return None
        return self._to_wake()

    def _drained_or_watch(self, wakeup: Wakeup) -> bool:
        """Return whether all keys are done; if not, register the watcher."""
        return self._section.call(self._is_drained, wakeup, otherwise=_refuse_wait)

    def _is_drained(self, wakeup: Wakeup) -> bool:
        self._add_watcher(wakeup)
        return self._idle()  # last, as `done` takes no lock

    def _add_watcher(self, wakeup: Wakeup) -> None:
        if wakeup not in self._watchers:
            self._watchers.append(wakeup)

    def _unwatch(self, wakeup: Wakeup) -> None:
        self._section.run_or_defer(self._remove_watcher, wakeup)

    def _remove_watcher(self, wakeup: Wakeup) -> None:
        if wakeup in self._watchers:
            self._watchers.remove(wakeup)

    def _check_open(self) -> None:
        if self._closed:
            raise ShutDown("the queue is shut down")

    def _idle(self) -> bool:
        keys = self._keys
        return not (self._ready or keys.re_added or keys.in_hand)


def _refuse_wait(*_: object) -> NoReturn:
    raise RuntimeError(
        "a signal handler or a finalizer can't wait for a queue that its own thread is in the middle of changing"
    )


def wait_seconds(timeout: float | None) -> float:
    """Return the seconds that a wait may take: infinity without a timeout."""
    return inf if timeout is None else number("timeout", timeout, least=0)


def _time_after(clock: Clock, until: float, woken: bool) -> float:
    """Return the time after a wait."""
    return wakeups.now(clock, None if woken or until == inf else until)
