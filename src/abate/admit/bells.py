"""How a call, or a worker, waits for its turn: in a thread, in a task of asyncio, in a task of trio."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from threading import TIMEOUT_MAX, Lock, get_ident
from typing import TYPE_CHECKING, Any, Protocol

from abate.clock import Clock, MachineClock, in_trio
from abate.errors import AttemptTimeout

if TYPE_CHECKING:
    from abate.admit.door import Door
    from abate.admit.room import Waiter


LOOK = 1.0
"""Seconds after which a thread that waits looks for itself, whether or not a bell has rung."""


class Bell(Protocol):
    """What wakes a waiter.

    Those of one `place` wake and sleep together: an event loop that stands still wakes none of its tasks. Threads,
    whose place is None, each wake for themselves.
    """

    @property
    def place(self) -> object: ...

    def ring(self) -> bool:
        """Wake who waits, from whatever thread; False where nobody ever will, as its loop is over."""
        ...


def wait(door: Door, waiter: Waiter) -> None:
    """Wait in this thread until the waiter has its answer."""
    bell = waiter.bell = ThreadBell()
    while waiter.answer is None or not door.picked_up(waiter):
        # on a clock of the user's, which no bell interrupts, a thread has to look for itself now and then
        due = min(door.due(waiter), door.clock.now() + LOOK)
        rung = bell.wait(door.clock, due - door.clock.now())
        if waiter.answer is None:
            door.look(waiter, now(door.clock, None if rung else due))


def now(clock: Clock, waited_until: float | None) -> float:
    """The time, which is no earlier than what was waited for: a function that tells the time may stand still."""
    return clock.now() if waited_until is None else max(clock.now(), waited_until)


def awaiting(door: Door, waiter: Waiter) -> Awaitable[None]:
    """Wait in this task until the waiter has its answer."""
    if in_trio() or not isinstance(door.clock, MachineClock):
        return _within(door, waiter)
    return _in_asyncio(door, waiter)


async def _in_asyncio(door: Door, waiter: Waiter) -> None:
    # thousands may wait: a timer and a future each, and no frame more than needed
    bell = waiter.bell = AsyncioBell()
    while waiter.answer is None or not door.picked_up(waiter):
        due = door.due(waiter)
        alarm = bell.place.call_later(max(0.0, due - door.clock.now()), bell.expire)
        try:
            await bell.future
        finally:
            alarm.cancel()
        expired = bell.rearm()
        if waiter.answer is None:
            door.look(waiter, now(door.clock, due if expired else None))


async def _within(door: Door, waiter: Waiter) -> None:
    bell = waiter.bell = TrioBell() if in_trio() else AsyncioBell()
    while waiter.answer is None or not door.picked_up(waiter):
        due, expired = door.due(waiter), False
        try:
            cut = door.clock.within(max(0.0, due - door.clock.now()))
            async with cut:
                await bell.rung()
        except AttemptTimeout:
            expired = True
        bell.rearm()
        if waiter.answer is None:
            door.look(waiter, now(door.clock, due if expired else None))


class ThreadBell:
    """Wakes a thread."""

    __slots__ = ("_lock",)

    place = None

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def ring(self) -> bool:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it has rung, and nobody has heard it yet
        return True

    def wait(self, clock: Clock, seconds: float) -> bool:
        """Wait for the bell, this long at most: has it rung?"""
        if isinstance(clock, MachineClock):
            return self._lock.acquire(timeout=min(max(0.0, seconds), TIMEOUT_MAX))
        clock.sleep(max(0.0, seconds))  # on a virtual clock, waiting is what moves time
        return False


class AsyncioBell:
    """Wakes a task of asyncio."""

    __slots__ = ("_expired", "_ringing", "_thread", "future", "place")

    def __init__(self) -> None:
        import asyncio

        self.place = asyncio.get_running_loop()
        self._thread = get_ident()
        self.future: Any = self.place.create_future()
        self._expired = self._ringing = False

    def ring(self) -> bool:
        if self._ringing:  # nor is a loop that stands still told again and again
            return not self.place.is_closed()
        try:
            if get_ident() == self._thread:
                self._wake()
            else:
                self._ringing = True
                self.place.call_soon_threadsafe(self._wake)
        except RuntimeError:
            return False  # the loop is closed, and nobody waits in it
        return True

    def _wake(self) -> None:
        self._ringing = False
        if not self.future.done():
            self.future.set_result(None)

    def expire(self) -> None:
        """The time is over."""
        self._expired = True
        self._wake()

    def rung(self) -> Awaitable[None]:
        """Wait for the bell."""
        rung: Awaitable[None] = self.future
        return rung

    def rearm(self) -> bool:
        """Get ready to ring again: had the time been over?"""
        self.future = self.place.create_future()
        expired, self._expired = self._expired, False
        return expired


class TrioBell:
    """Wakes a task of trio."""

    __slots__ = ("_event", "_thread", "place")

    def __init__(self) -> None:
        trio: Any = sys.modules["trio"]
        self.place: Any = trio.lowlevel.current_trio_token()
        self._thread = get_ident()
        self._event = trio.Event()

    def ring(self) -> bool:
        try:
            if get_ident() == self._thread and in_trio():
                self._wake()
            else:
                self.place.run_sync_soon(self._wake, idempotent=True)
        except sys.modules["trio"].RunFinishedError:
            return False  # nobody waits in a run that is over
        return True

    def _wake(self) -> None:
        self._event.set()

    def rung(self) -> Awaitable[None]:
        """Wait for the bell."""
        rung: Awaitable[None] = self._event.wait()
        return rung

    def rearm(self) -> bool:
        """Get ready to ring again; the time is looked after elsewhere."""
        if self._event.is_set():
            self._event = sys.modules["trio"].Event()
        return False
