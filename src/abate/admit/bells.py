"""How a call waits for its turn: in a thread, in a task of asyncio, in a task of trio."""

from __future__ import annotations

import sys
from threading import TIMEOUT_MAX, Lock, get_ident
from typing import TYPE_CHECKING, Any, Protocol

from abate.clock import Clock, MachineClock, in_trio
from abate.errors import AttemptTimeout

if TYPE_CHECKING:
    from abate.admit.room import Waiter
    from abate.admit.shelter import Door


class Bell(Protocol):
    """What wakes a waiter."""

    def ring(self) -> None:
        """Wake who waits, from whatever thread; nothing happens where nobody does."""
        ...


def wait(door: Door, waiter: Waiter) -> None:
    """Wait in this thread until the waiter has its answer."""
    bell = waiter.bell = ThreadBell()
    while waiter.answer is None:
        bell.wait(door.clock, door.due(waiter) - door.clock.now())
        if waiter.answer is None:
            door.look(waiter, door.clock.now())


async def await_(door: Door, waiter: Waiter) -> None:
    """Wait in this task until the waiter has its answer."""
    bell = waiter.bell = TrioBell() if in_trio() else AsyncioBell()
    while waiter.answer is None:
        seconds = door.due(waiter) - door.clock.now()
        if seconds > 0:
            try:
                async with door.clock.within(seconds):
                    await bell.heard()
            except AttemptTimeout:
                pass
        if waiter.answer is None:
            door.look(waiter, door.clock.now())


class ThreadBell:
    """Wakes a thread."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def ring(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it has rung, and nobody has heard it yet

    def wait(self, clock: Clock, seconds: float) -> None:
        """Wait for the bell, this long at most."""
        if seconds <= 0:
            return
        if isinstance(clock, MachineClock):
            self._lock.acquire(timeout=min(seconds, TIMEOUT_MAX))
        else:  # on a virtual clock, waiting is what moves time
            clock.sleep(seconds)


class AsyncioBell:
    """Wakes a task of asyncio."""

    __slots__ = ("_future", "_loop", "_thread")

    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._future: Any = self._loop.create_future()

    def ring(self) -> None:
        if get_ident() == self._thread:
            self._wake()
            return
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            pass  # the loop is closed, and nobody waits in it

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def heard(self) -> None:
        """Wait for the bell."""
        try:
            await self._future
        finally:
            self._future = self._loop.create_future()


class TrioBell:
    """Wakes a task of trio."""

    __slots__ = ("_event", "_thread", "_token")

    def __init__(self) -> None:
        trio: Any = sys.modules["trio"]
        self._token = trio.lowlevel.current_trio_token()
        self._thread = get_ident()
        self._event = trio.Event()

    def ring(self) -> None:
        if get_ident() == self._thread:
            self._event.set()
            return
        try:
            self._token.run_sync_soon(self._event.set)
        except sys.modules["trio"].RunFinishedError:
            pass  # nobody waits in a run that is over

    async def heard(self) -> None:
        """Wait for the bell."""
        await self._event.wait()
        self._event = sys.modules["trio"].Event()
