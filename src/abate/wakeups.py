"""Wake-ups: any thread wakes a waiting thread, asyncio task or trio task."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Awaitable
from threading import TIMEOUT_MAX, Lock, get_ident
from typing import Any, Protocol

from abate.clock import Clock, MachineClock, in_trio


class Wakeup(Protocol):
    """Wakes a waiter.

    Waiters of one event `loop` stall together: a loop that is blocked wakes none of its tasks. The loop of a thread is
    None.
    """

    @property
    def loop(self) -> object: ...

    def notify(self) -> bool:
        """Wake the waiter, from any thread; return False if its event loop has ended."""
        ...


def now(clock: Clock, waited_until: float | None) -> float:
    """Return the time, at least `waited_until`: a function given as a clock may not advance."""
    return clock.now() if waited_until is None else max(clock.now(), waited_until)


class ThreadWakeup:
    """Wakes a thread."""

    __slots__ = ("_lock",)

    loop = None

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def notify(self) -> bool:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # notified already
        return True

    def wait(self, clock: Clock, seconds: float) -> bool:
        """Wait up to `seconds`; return whether `notify` was called."""
        if isinstance(clock, MachineClock):
            return self._lock.acquire(timeout=min(max(0.0, seconds), TIMEOUT_MAX))
        clock.sleep(max(0.0, seconds))  # on a virtual clock, waiting is what moves time
        return False


class AsyncioWakeup:
    """Wakes a task of asyncio.

    Shelters and queues refer to the event loop and to the future weakly, through this object: a loop that was dropped
    with its tasks can be collected, and what the tasks hold is returned. While the loop lives, a timer of the loop
    holds the future, and the future holds the task: asyncio itself refers to tasks weakly.
    """

    __slots__ = ("_expired", "_future", "_notified", "_notifying", "loop")

    def __init__(self) -> None:
        import asyncio

        self.loop: weakref.ref[Any] | _StrongReference = _reference(asyncio.get_running_loop())
        self._future: weakref.ref[Any] | None = None
        self._expired = self._notified = self._notifying = False

    def notify(self) -> bool:
        loop = self.loop()
        if loop is None or loop.is_closed():
            return False  # no task of it will run again
        if self._notifying:  # a blocked loop is notified once
            return True
        if _running_loop() is loop:
            self._wake()
            return True
        try:
            self._notifying = True
            loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            return False  # the loop was closed meanwhile
        except BaseException:
            self._notifying = False  # a signal handler has raised: the next call notifies the loop again
            raise
        return True

    def _wake(self) -> None:
        self._notifying = False
        self._notified = True
        future = None if self._future is None else self._future()
        if future is not None and not future.done():
            future.set_result(None)

    def expire_after(self, seconds: float, future: Any) -> Any:
        """Wake the task after this many seconds, and keep it alive until then; return the timer."""
        return future.get_loop().call_later(seconds, self._expire, future)

    def _expire(self, future: Any) -> None:
        self._expired = True
        self._wake()

    def notified(self) -> Any:
        """Return a future that is done at the next `notify`, or now if there was one since `rearm`.

        A timer of the loop has to hold it while a task awaits it: see `expire_after`.
        """
        loop = self.loop()
        assert loop is not None, "the caller runs in it"
        future = loop.create_future()
        self._future = weakref.ref(future)
        if self._notified:
            future.set_result(None)
        return future

    def rearm(self) -> bool:
        """Prepare for the next `notify`; return whether the timer had expired."""
        self._future, self._notified = None, False
        expired, self._expired = self._expired, False
        return expired


def _reference(loop: Any) -> weakref.ref[Any] | _StrongReference:
    """Return a weak reference to an event loop, or a strong one to a loop of a class that does not support them."""
    try:
        reference = weakref.ref(loop)
    except TypeError:
        return _StrongReference(loop)
    hash(reference)  # cached from here on: the hash of a dead reference can't be computed
    return reference


class _StrongReference:
    """Refers to an event loop as `weakref.ref` does, but keeps it alive."""

    __slots__ = ("_loop",)

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def __call__(self) -> Any:
        return self._loop

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StrongReference) and other._loop is self._loop

    def __hash__(self) -> int:
        return id(self._loop)


def _running_loop() -> Any:
    """Return the event loop of asyncio that runs in this thread, if any."""
    asyncio: Any = sys.modules["asyncio"]
    return asyncio._get_running_loop()


class TrioWakeup:
    """Wakes a task of trio."""

    __slots__ = ("_event", "_thread", "loop")

    def __init__(self) -> None:
        trio: Any = sys.modules["trio"]
        self.loop: Any = trio.lowlevel.current_trio_token()
        self._thread = get_ident()
        self._event = trio.Event()

    def notify(self) -> bool:
        try:
            if get_ident() == self._thread and in_trio():
                self._wake()
            else:
                self.loop.run_sync_soon(self._wake, idempotent=True)
        except sys.modules["trio"].RunFinishedError:
            return False  # the run is over
        return True

    def _wake(self) -> None:
        self._event.set()

    def notified(self) -> Awaitable[None]:
        """Wait until this is notified."""
        waiting: Awaitable[None] = self._event.wait()
        return waiting

    def rearm(self) -> bool:
        """Prepare for the next wait; the caller has its own timer."""
        if self._event.is_set():
            self._event = sys.modules["trio"].Event()
        return False
