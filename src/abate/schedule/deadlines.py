"""Deadlines: the instant by which a call must have ended. They nest, and the nearest one wins.

A deadline binds what runs inside its block, the tasks started there included, for as long as the block is open. What
outlives the block is not bound by it. An instant belongs to the clock it was taken from: in virtual time only deadlines
of that virtual time count.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

from abate import clock
from abate.clock import Clock
from abate.errors import number
from abate.functions import is_coroutine, is_generator, returned_coroutine
from abate.scopes import Scope, Scopes

F = TypeVar("F", bound=Callable[..., Any])


class _Due(Scope):
    """An instant of a clock; None sheds what stands around."""

    __slots__ = ("clock", "instant")

    def __init__(self, instant: float | None, of: Clock, owner: object = None) -> None:
        super().__init__(owner)
        self.instant = instant
        self.clock = of

    def __enter__(self) -> None:
        if not clock.switch.deadline:
            for prepare in before_first:
                prepare()
            clock.switch.deadline = True
        _scopes.enter(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _scopes.leave(self)


_scopes: Scopes[_Due] = Scopes("abate_deadline")

before_first: list[Callable[[], None]] = []
"""Called once, when the process sets its first deadline: for code that leaves out the look into the context before."""

around = _scopes.around
"""None where there is no deadline: a look that costs less than to call `shorter`."""


class deadline:
    """Give everything inside the block `seconds` to finish.

    Nothing is interrupted: policies stop waiting and retrying, and clients cut their timeouts to what remains.
    A deadline inside another can only be nearer. Tasks that are started in the block are bound until it ends;
    `carry_deadline` binds what runs in other threads, or longer.

    ``deadline(None)`` sheds the deadlines around it: for work that must be done whether its caller waits or not.

    >>> with deadline(5.0):
    ...     with deadline(60.0) as inner:
    ...         inner.remaining() <= 5.0
    ...     with deadline(None):
    ...         print(remaining())
    True
    None
    """

    __slots__ = ("_entered", "_seconds")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = None if seconds is None else number("deadline", seconds, least=0)
        self._entered: list[_Due] = []

    def __enter__(self) -> deadline:
        here = clock.current()
        scope = _Due(None if self._seconds is None else here.now() + self._seconds, here, self)
        self._entered.append(scope)
        scope.__enter__()  # last: no signal handler comes between this and the block
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # a generator or a response's body may be closed in another context than the one that entered
        scope = _scopes.entered_by(self) or self._entered[-1]
        _scopes.leave(scope)
        self._entered.remove(scope)

    def close(self) -> None:
        """End the blocks whose end an exception of a signal handler has prevented."""
        for scope in self._entered:
            scope.open = False

    def remaining(self) -> float:
        """Seconds left here, never below zero; before the block is entered, what there would be.

        Infinite for ``deadline(None)``.
        """
        if self._seconds is None:
            return math.inf
        left = remaining()
        return self._seconds if left is None else min(self._seconds, left)


def due() -> float | None:
    """The instant of the nearest deadline here, on the clock that rules here; None without one."""
    scope = _scopes.nearest()
    if scope is None:
        return None
    here, earliest = clock.current(), math.inf
    while scope is not None and scope.instant is not None:
        if scope.clock is here:
            earliest = min(earliest, scope.instant)
        scope = _scopes.beyond(scope)
    return None if earliest == math.inf else earliest


def remaining() -> float | None:
    """Seconds left until the nearest deadline here, never below zero; None without one.

    >>> remaining() is None
    True
    """
    instant = due()
    return None if instant is None else max(0.0, instant - clock.current().now())


def passed() -> bool:
    """Return whether a deadline here has passed.

    >>> with deadline(0.0):
    ...     passed()
    True
    """
    return around() is not None and remaining() == 0.0


def keeps_deadline(function: F) -> F:
    """Say that the function ends at once if the deadline has passed: with the timeout error of its library."""
    function.keeps_deadline = True  # type: ignore[attr-defined]
    return function


def does_keep(function: Callable[..., Any]) -> bool:
    """Return whether `keeps_deadline` was said of the function.

    >>> does_keep(keeps_deadline(lambda: None)), does_keep(print)
    (True, False)
    """
    # not by what is true: mocks and remote procedures have an attribute for every name
    return getattr(function, "keeps_deadline", None) is True


def shorter(seconds: float | None) -> float | None:
    """The smaller of `seconds` and what remains here; None where neither bounds anything."""
    left = remaining()
    if left is None or seconds is None:
        return seconds if left is None else left
    return min(left, seconds)


def carry_deadline(function: F) -> F:
    """The function, bound to the nearest deadline of now, in whichever thread or task it runs, and whenever.

    For work that belongs to the block and runs elsewhere: in an executor, a thread, a task that may outlive it. Where
    there is no deadline, the function is returned as it is.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor() as pool, deadline(5.0):
    ...     pool.submit(remaining).result(), pool.submit(carry_deadline(remaining)).result() <= 5.0
    (None, True)
    """
    if not callable(function) or is_generator(function):
        raise TypeError(f"carry_deadline needs a function or coroutine function, not {function!r}")
    instant, of = due(), clock.current()
    if instant is None:
        return function

    async def bound(awaitable: Awaitable[Any]) -> Any:
        with _Due(instant, of):
            return await awaitable

    if is_coroutine(function):

        @functools.wraps(function)
        async def acarried(*args: Any, **kwargs: Any) -> Any:
            return await bound(function(*args, **kwargs))

        return acarried  # type: ignore[return-value]

    @functools.wraps(function)
    def carried(*args: Any, **kwargs: Any) -> Any:
        with _Due(instant, of):
            result = function(*args, **kwargs)
        return bound(result) if returned_coroutine(result) else result

    return carried  # type: ignore[return-value]
