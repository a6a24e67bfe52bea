"""Clocks: the machine's, or the virtual clock that the context has entered.

Time is per context. `current()` returns its clock; everything that waits or reads the time uses it, so that a virtual
clock moves deadlines, budgets and waits together.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, cast

from abate.errors import AttemptTimeout
from abate.redact import short_repr
from abate.scopes import Scope, Scopes


class TimeoutScope(Protocol):
    """The block of `Clock.within`."""

    def lift(self) -> bool:
        """Remove the time limit; return False if the block was cut short already."""
        ...

    def expired(self) -> bool:
        """Return whether the block was cut short."""
        ...


class Clock(Protocol):
    """Tells the time and can wait."""

    def now(self) -> float:
        """Return seconds since some fixed instant; never goes back."""
        ...

    def wall(self) -> float:
        """Return seconds since 1970, as far as this clock knows."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait in this thread."""

    def asleep(self, seconds: float) -> Awaitable[None]:
        """Wait in this task, under asyncio or trio; let other tasks run even if there is nothing to wait for."""
        ...

    def within(self, seconds: float) -> AbstractAsyncContextManager[TimeoutScope]:
        """Cut the block short with `AttemptTimeout` if it takes longer than this.

        Neither entering nor leaving it waits. Keep it in a variable: it holds the task, and Python 3.11
        crashes if the stack of a coroutine that is being closed holds the last reference to the coroutine's own task.
        """
        ...


class ContextClock(Clock, Protocol):
    """A clock that a context can enter. It holds the state that others keep for it."""

    states: MutableMapping[Any, Any]


MAX_SLEEP = 1e9
"""Seconds, thirty years: about ten times as much is more than the platform's sleep takes."""


class MachineClock:
    """The clock of the machine."""

    __slots__ = ()

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, MAX_SLEEP))

    def asleep(self, seconds: float) -> Awaitable[None]:
        # the caller has imported its event loop; the core imports none
        loop: Any = sys.modules["trio" if "trio" in sys.modules and in_trio() else "asyncio"]
        pause: Awaitable[None] = loop.sleep(seconds if seconds > 0.0 else 0.0)
        return pause

    def within(self, seconds: float) -> AbstractAsyncContextManager[TimeoutScope]:
        return MachineTimeout(seconds)


class MachineTimeout:
    """Cuts a block of async code short, under asyncio or trio, on the machine's clock."""

    __slots__ = ("_scope", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> TimeoutScope:
        if in_trio():
            self._scope: Any = TrioScope(sys.modules["trio"].CancelScope(deadline=_trio_due(self._seconds)))
        else:
            import asyncio

            self._scope = asyncio.timeout(self._seconds)
        await self._scope.__aenter__()
        return self

    def lift(self) -> bool:
        return lift_scope(self._scope)

    def expired(self) -> bool:
        return bool(self._scope.expired())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await leave_scope(self._scope, self._seconds, kind, error, trace)


async def leave_scope(
    scope: Any,
    seconds: float,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Leave a scope of `asyncio.timeout` or trio; raise `AttemptTimeout` if the scope ended the block."""
    try:
        await scope.__aexit__(kind, error, trace)
    except TimeoutError:  # the scope's own: one raised in the block is not raised again here
        raise AttemptTimeout(seconds) from None


def lift_scope(scope: Any) -> bool:
    """Remove the limit of a scope of `asyncio.timeout` or trio; return False if its block was cut short already."""
    if scope.expired():
        return False
    scope.reschedule(None)
    return True


class TrioScope:
    """trio's cancel scope with the interface of `asyncio.timeout`."""

    __slots__ = ("scope",)

    def __init__(self, scope: Any) -> None:
        self.scope = scope

    async def __aenter__(self) -> None:
        self.scope.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.scope.__exit__(kind, error, trace)
        if self.scope.cancelled_caught:
            raise TimeoutError

    def expired(self) -> bool:
        return bool(self.scope.cancel_called)

    def reschedule(self, when: float | None) -> None:
        self.scope.deadline = math.inf if when is None else when


def _trio_due(seconds: float) -> float:
    return float(sys.modules["trio"].current_time()) + seconds


class _FunctionClock(MachineClock):
    """A plain function that returns the time, for tests and benchmarks; waits on the machine's clock."""

    __slots__ = ("now",)

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now


class EverUsed:
    """Flags that hot paths read before they look into the context: whether any context of this process has ever entered
    a virtual clock (`virtual`), switched retries off (`off`) or set a deadline (`deadline`).

    They are never reset: other contexts may be in such a block.
    """

    __slots__ = ("deadline", "off", "virtual")

    def __init__(self) -> None:
        self.deadline = False
        self.virtual = False
        self.off = False


MACHINE = MachineClock()
ever_used = EverUsed()
before_first_virtual_clock: list[Callable[[], None]] = []
"""Called once, when the first virtual clock is entered: for fast paths that don't read the flag."""


class ClockScope(Scope):
    """A virtual clock that a context has entered."""

    __slots__ = ("clock",)

    def __init__(self, clock: ContextClock) -> None:
        super().__init__(clock)
        self.clock = clock


_scopes: Scopes[ClockScope] = Scopes("abate_clock")


def current() -> Clock:
    """Return the clock of this context."""
    return (entered_clock() or MACHINE) if ever_used.virtual else MACHINE


def entered_clock() -> ContextClock | None:
    """Return the clock that this context has entered; None for the machine's."""
    scope = _scopes.nearest() if ever_used.virtual else None
    return None if scope is None else scope.clock


def enter(clock: ContextClock) -> ClockScope:
    """Make `clock` the clock of this context, and of the tasks started in it, until `leave`."""
    if not ever_used.virtual:
        ever_used.virtual = True
        for prepare in before_first_virtual_clock:
            prepare()
    return _scopes.enter(ClockScope(clock))


def leave(scope: ClockScope) -> None:
    """Undo `enter`, also in copies of the context."""
    _scopes.leave(scope)


def entered_by(clock: ContextClock) -> ClockScope | None:
    """Return the innermost open scope of `clock`."""
    return _scopes.entered_by(clock)


def shared_in_thread() -> AbstractContextManager[None]:
    """Share the clock of this context with all contexts of this thread that have entered none, for a block."""
    return _scopes.shared_in_thread()


def adopt_shared() -> None:
    """Enter the clock that is shared in this thread, if this context has entered none."""
    _scopes.adopt()


def as_clock(clock: Clock | Callable[[], float] | None) -> Clock | None:
    """Return the clock that a ``clock=`` argument means: a clock, a function that returns the time, or None."""
    if clock is None or (hasattr(clock, "now") and hasattr(clock, "sleep") and not isinstance(clock, type)):
        return cast("Clock | None", clock)
    if callable(clock) and not isinstance(clock, type):
        return cast("Clock", _FunctionClock(clock))
    raise TypeError(
        f"clock must have now() and sleep(), or be a function that returns the time, not {short_repr(clock)}"
    )


def in_trio() -> bool:
    """Return whether this code runs under trio (and not under asyncio)."""
    trio = sys.modules.get("trio")
    try:
        return trio is not None and trio.lowlevel.in_trio_run()
    except AttributeError:  # another thread is importing trio just now: it runs nothing yet
        return False


def in_loop() -> bool:
    """Return whether this code runs in an event loop, trio's or asyncio's."""
    if in_trio():
        return True
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio is not None and asyncio._get_running_loop() is not None
    except AttributeError:  # another thread is importing asyncio just now
        return False
