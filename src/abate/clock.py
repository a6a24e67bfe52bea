"""Where time comes from: the machine's clock, or the virtual clock that the context has entered.

Time is per context. `current()` answers with the clock that rules here; whatever waits or reads the time asks
it, so that a virtual clock moves deadlines, budgets and waits together.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol, cast

from abate.errors import AttemptTimeout
from abate.redact import shown
from abate.scopes import Scope, Scopes


class Cut(Protocol):
    """What a block that is to be cut short is entered as (`Clock.within`)."""

    def lift(self) -> bool:
        """Let the block take as long as it likes from now on; False if it has been cut short already."""
        ...

    def expired(self) -> bool:
        """Has the block been cut short?"""
        ...


class Clock(Protocol):
    """Something that tells the time and can wait."""

    def now(self) -> float:
        """Seconds since some fixed instant; never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, as far as this clock knows."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait in this thread."""

    def asleep(self, seconds: float) -> Awaitable[None]:
        """Wait in this task, under asyncio or trio; let others run even when there is nothing to wait for."""
        ...

    def within(self, seconds: float) -> AbstractAsyncContextManager[Cut]:
        """Cut the block short with `AttemptTimeout` when it takes longer than this.

        Neither entering nor leaving it waits for anything. Keep it in a variable: it holds the task, and Python 3.11
        crashes if the stack of a coroutine that is being closed holds the last reference to the coroutine's own task.
        """
        ...


class ContextClock(Clock, Protocol):
    """A clock that a context can enter. It carries what others keep for it, so that this ends with it."""

    states: MutableMapping[Any, Any]


class MachineClock:
    """The clock of the machine."""

    __slots__ = ()

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def asleep(self, seconds: float) -> Awaitable[None]:
        # whoever runs this has imported its event loop; the core imports none
        loop: Any = sys.modules["trio" if "trio" in sys.modules and in_trio() else "asyncio"]
        pause: Awaitable[None] = loop.sleep(seconds if seconds > 0.0 else 0.0)
        return pause

    def within(self, seconds: float) -> AbstractAsyncContextManager[Cut]:
        return Within(seconds)


class Within:
    """Cuts a block of async code short, under asyncio or trio, on the machine's clock."""

    __slots__ = ("_scope", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> Cut:
        if in_trio():
            self._scope: Any = TrioScope(sys.modules["trio"].CancelScope(deadline=_trio_due(self._seconds)))
        else:
            import asyncio

            self._scope = asyncio.timeout(self._seconds)
        await self._scope.__aenter__()
        return self

    def lift(self) -> bool:
        return lifted(self._scope)

    def expired(self) -> bool:
        return bool(self._scope.expired())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await cut(self._scope, self._seconds, kind, error, trace)


async def cut(
    scope: Any,
    seconds: float,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Leave a scope of `asyncio.timeout` or trio; where it was what ended the block, say so by `AttemptTimeout`."""
    try:
        await scope.__aexit__(kind, error, trace)
    except TimeoutError:  # the scope's own: one that was raised in the block is not raised again by leaving it
        raise AttemptTimeout(seconds) from None


def lifted(scope: Any) -> bool:
    """Take the bound off a scope of `asyncio.timeout` or trio; False if its block has been cut short already."""
    if scope.expired():
        return False
    scope.reschedule(None)
    return True


class TrioScope:
    """trio's cancel scope, with the manners of `asyncio.timeout`."""

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


class _Reading(MachineClock):
    """A plain function that tells the time, for tests and benchmarks; it waits on the machine's clock."""

    __slots__ = ("now",)

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now


class Switch:
    """What hot paths read before they look into the context: has any context of this process ever entered a
    virtual clock (`virtual`), switched retries off (`off`) or set a deadline (`deadline`)?

    None of them is turned back: other contexts may be in such a block.
    """

    __slots__ = ("deadline", "off", "virtual")

    def __init__(self) -> None:
        self.deadline = False
        self.virtual = False
        self.off = False


MACHINE = MachineClock()
switch = Switch()
before_virtual: list[Callable[[], None]] = []
"""Called once, when the first virtual clock is entered: for those who spare themselves the look at the switch."""


class Entered(Scope):
    """A virtual clock that a context has entered."""

    __slots__ = ("clock",)

    def __init__(self, clock: ContextClock) -> None:
        super().__init__(clock)
        self.clock = clock


_scopes: Scopes[Entered] = Scopes("abate_clock")


def current() -> Clock:
    """The clock of this context."""
    return (entered() or MACHINE) if switch.virtual else MACHINE


def entered() -> ContextClock | None:
    """The clock that this context has entered; None where the machine's rules."""
    scope = _scopes.nearest() if switch.virtual else None
    return None if scope is None else scope.clock


def enter(clock: ContextClock) -> Entered:
    """Make `clock` the clock of this context, and of the tasks started in it, until `leave`."""
    if not switch.virtual:
        switch.virtual = True
        for prepare in before_virtual:
            prepare()
    return _scopes.enter(Entered(clock))


def leave(scope: Entered) -> None:
    """Undo `enter`, for all who have copied the context since."""
    _scopes.leave(scope)


def entered_by(clock: ContextClock) -> Entered | None:
    """The innermost block here in which `clock` rules."""
    return _scopes.entered_by(clock)


def given(clock: Clock | Callable[[], float] | None) -> Clock | None:
    """What a ``clock=`` argument means: a clock, a function that tells the time, or the context's clock."""
    if clock is None or (hasattr(clock, "now") and hasattr(clock, "sleep") and not isinstance(clock, type)):
        return cast("Clock | None", clock)
    if callable(clock) and not isinstance(clock, type):
        return cast("Clock", _Reading(clock))
    raise TypeError(f"clock must have now() and sleep(), or be a function that tells the time, not {shown(clock)}")


def in_trio() -> bool:
    """Is this code running under trio (and not under asyncio)?"""
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_run()


def in_loop() -> bool:
    """Is this code running in an event loop, trio's or asyncio's?"""
    asyncio = sys.modules.get("asyncio")
    return in_trio() or (asyncio is not None and asyncio._get_running_loop() is not None)
