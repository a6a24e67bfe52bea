"""Virtual time, which moves only when code waits.

In a thread, a sleep moves the clock and returns. In async code the sleepers line up by the instant they sleep
until, and the clock jumps to the earliest one when nothing else can run, so that many tasks see one order of time.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from itertools import count
from math import ulp
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from abate import clock as clocks
from abate.clock import ClockScope, TrioScope, leave_scope, lift_scope
from abate.errors import number
from abate.reentrant_locks import Section

SETTLE = 8
"""Passes of a foreign event loop after which no other task counts as runnable."""


class Timer:
    """A sleeper to be woken at an instant; `wake` is None once that is done."""

    __slots__ = ("due", "order", "wake")

    def __init__(self, due: float, order: int, wake: Callable[[], object]) -> None:
        self.due = due
        self.order = order
        self.wake: Callable[[], object] | None = wake

    def __lt__(self, other: Timer) -> bool:
        return (self.due, self.order) < (other.due, other.order)


class LoopTimers:
    """The timers of one event loop, and whether the task that jumps to them is scheduled."""

    __slots__ = ("jumping", "timers")

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.jumping = False


class VirtualClock:
    """A clock for tests: sleeping moves it at once.

    Entered with ``with``, it is the clock of the context, sync and async: policies, budgets, buckets, deadlines and
    ticks follow it, in the tasks started there as well, until the block ends. Given as ``clock=`` to one of them, it
    is that one's alone. `waits` holds the seconds of every sleep, without the rounding errors of differences of times.

    >>> import abate
    >>> with VirtualClock() as clock:
    ...     abate.Policy(on=OSError, backoff=[1.0, 2.0]).call(abate.testing.Script(OSError(), OSError(), "fine"))
    'fine'
    >>> clock.waits, clock.now()
    ([1.0, 2.0], 3.0)
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = number("start", start)
        self._section = Section()
        self._loops: MutableMapping[Any, LoopTimers] = WeakKeyDictionary()
        """The event loops whose tasks wait on this clock: one thread may run several in turn."""
        self._order = count()
        self._entered: list[ClockScope] = []
        self.states: MutableMapping[Any, Any] = WeakKeyDictionary()
        self.waits: list[float] = []

    def now(self) -> float:
        """Return the virtual time, in seconds."""
        return self._now

    def wall(self) -> float:
        """Return the same: virtual time begins in 1970."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Advance the time by hand.

        >>> clock = VirtualClock(start=100.0)
        >>> clock.advance(5.0)
        >>> clock.now()
        105.0
        """
        self._section.run_or_defer(self._move, number("seconds", seconds, least=0))

    def _move(self, seconds: float) -> None:
        self._now += seconds

    def sleep(self, seconds: float) -> None:
        """Advance the time by a wait."""
        self.waits.append(self._without_noise(seconds))
        self.advance(max(0.0, seconds))

    def _without_noise(self, seconds: float) -> float:
        """Return the delay that was meant: a wait is the difference of two times, which rounds in the last digits."""
        meant = round(seconds, 10)
        return meant if abs(meant - seconds) <= 4 * ulp(self._now + abs(seconds)) else seconds

    async def asleep(self, seconds: float) -> None:
        """Wait in a task until its time has come."""
        self.waits.append(self._without_noise(seconds))
        due = self._now + max(0.0, seconds)
        if clocks.in_trio():
            await self._asleep_in_trio(due)
        else:
            await self._asleep_in_asyncio(due)

    def within(self, seconds: float) -> AbstractAsyncContextManager[clocks.TimeoutScope]:
        """Cut the block short if it takes longer than this in virtual time."""
        return _VirtualWithin(self, seconds)

    def __enter__(self) -> VirtualClock:
        self._entered.append(clocks.enter(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope = clocks.entered_by(self) or self._entered[-1]  # a fixture may be left in another context
        self._entered.remove(scope)
        clocks.leave(scope)

    # -- sleepers

    async def _asleep_in_asyncio(self, due: float) -> None:
        import asyncio

        future = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        timer = self.at(due, wake)
        try:
            await future
        finally:
            timer.wake = None

    async def _asleep_in_trio(self, due: float) -> None:
        event = sys.modules["trio"].Event()
        timer = self.at(due, event.set)
        try:
            await event.wait()
        finally:
            timer.wake = None

    def at(self, due: float, wake: Callable[[], object]) -> Timer:
        """Call `wake` in the running event loop when the time reaches `due`."""
        loop = _running_loop()
        waiting = self._loops.get(loop)
        if waiting is None:
            waiting = self._add_loop(loop)
        timer = Timer(due, next(self._order), wake)
        heapq.heappush(waiting.timers, timer)
        if not waiting.jumping:
            waiting.jumping = True
            if clocks.in_trio():
                sys.modules["trio"].lowlevel.spawn_system_task(self._jump_in_trio, waiting)
            else:
                loop.call_soon(self._jump_in_asyncio, loop, waiting, SETTLE)
        return timer

    def _add_loop(self, loop: Any) -> LoopTimers:
        for ended in [known for known in self._loops if getattr(known, "is_closed", bool)()]:
            del self._loops[ended]  # sleepers that were left there would keep it alive
        waiting = self._loops[loop] = LoopTimers()
        return waiting

    def _jump_in_asyncio(self, loop: Any, waiting: LoopTimers, passes: int) -> None:
        """Jump to the earliest timer when nothing else is ready to run; repeat until none is left."""
        if _others_ready(loop, passes):
            loop.call_soon(self._jump_in_asyncio, loop, waiting, passes - 1)
            return
        self._jump(waiting.timers)
        if waiting.timers:
            loop.call_soon(self._jump_in_asyncio, loop, waiting, SETTLE)
        else:
            waiting.jumping = False

    async def _jump_in_trio(self, waiting: LoopTimers) -> None:
        from trio.testing import wait_all_tasks_blocked

        while waiting.timers:
            await wait_all_tasks_blocked()
            self._jump(waiting.timers)
        waiting.jumping = False

    def _jump(self, timers: list[Timer]) -> None:
        timer = heapq.heappop(timers)
        if timer.wake is not None:  # a cancelled timer does not move the time
            self._now = max(self._now, timer.due)
            timer.wake()


def _running_loop() -> Any:
    if clocks.in_trio():
        return sys.modules["trio"].lowlevel.current_trio_token()
    import asyncio

    return asyncio.get_running_loop()


def _others_ready(loop: Any, passes: int) -> bool:
    """Return whether anything but virtual clocks can run: asyncio shows what is ready, other loops get some passes."""
    ready = getattr(loop, "_ready", None)
    if ready is None:
        return passes > 0
    jump = VirtualClock._jump_in_asyncio
    return any(getattr(handle._callback, "__func__", None) is not jump for handle in ready)


class _VirtualWithin:
    """Cuts a block of async code short on a virtual clock."""

    def __init__(self, clock: VirtualClock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    async def __aenter__(self) -> clocks.TimeoutScope:
        due = self._clock.now() + self._seconds
        if clocks.in_trio():
            scope = sys.modules["trio"].CancelScope()
            self._scope: Any = TrioScope(scope)
            expire: Callable[[], object] = scope.cancel
        else:
            import asyncio

            self._scope = asyncio.timeout(None)
            expire = lambda: self._scope.reschedule(asyncio.get_running_loop().time())  # noqa: E731
        await self._scope.__aenter__()
        self._timer = self._clock.at(due, expire)
        return self

    def lift(self) -> bool:
        self._timer.wake = None
        return lift_scope(self._scope)

    def expired(self) -> bool:
        return bool(self._scope.expired())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.wake = None
        await leave_scope(self._scope, self._seconds, kind, error, trace)
