"""Deadlines: the instant by which a call must have ended. They nest, and the nearest one wins.

A deadline applies to all code inside its block, including the tasks started there, until the block ends. Tasks that
outlive the block are no longer bound by it. An instant belongs to the clock it was taken from: on a virtual clock only
deadlines of that clock count.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable
from contextlib import closing
from types import TracebackType
from typing import Any, TypeVar

from abate import clock
from abate.clock import Clock
from abate.errors import number
from abate.functions import is_coroutine_function, is_coroutine_object, is_generator_function
from abate.scopes import Scope, Scopes

F = TypeVar("F", bound=Callable[..., Any])


class _DeadlineScope(Scope):
    """An instant of a clock; None removes the outer deadlines."""

    __slots__ = ("clock", "instant", "timeout")

    def __init__(self, instant: float | None, of: Clock, owner: object = None, timeout: float | None = None) -> None:
        super().__init__(owner)
        self.instant = instant
        self.clock = of
        self.timeout = timeout
        """The timeout of a client's call that this deadline follows from, in seconds."""

    def __enter__(self) -> None:
        if not clock.ever_used.deadline:
            for prepare in before_first_deadline:
                prepare()
            clock.ever_used.deadline = True
        _scopes.enter(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _scopes.leave(self)

    def close(self) -> None:
        """Close the block, if it was left open because a signal handler raised."""
        self.open = False


_scopes: Scopes[_DeadlineScope] = Scopes("abate_deadline")

before_first_deadline: list[Callable[[], None]] = []
"""Called once, when the process sets its first deadline: until then, fast paths don't read the context."""

peek_deadline = _scopes.peek
"""Return None if there is no deadline: cheaper than `cut_to_deadline`."""


class deadline:
    """Give everything inside the block `seconds` to finish.

    Nothing is interrupted: policies stop waiting and retrying, and clients cut their timeouts to what remains.
    A deadline inside another can only be nearer. Tasks that are started in the block are bound until it ends;
    `carry_deadline` binds what runs in other threads, or longer.

    ``deadline(None)`` ignores the deadlines around it: for work that must be done even if its caller no longer waits.

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
        self._entered: list[_DeadlineScope] = []

    def __enter__(self) -> deadline:
        here = clock.current()
        scope = _DeadlineScope(None if self._seconds is None else here.now() + self._seconds, here, self)
        self._entered.append(scope)
        scope.__enter__()  # last: no signal handler runs between this and the block
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # a generator or a response's body may be closed in another context
        scope = _scopes.entered_by(self) or self._entered[-1]
        _scopes.leave(scope)
        self._entered.remove(scope)

    def close(self) -> None:
        """Close the blocks that were left open because a signal handler raised: ``with closing(bound), bound:``."""
        for scope in self._entered:
            scope.open = False

    def remaining(self) -> float:
        """Return the seconds left in this block, at least zero; before it is entered, the seconds that it would have.

        Infinite for ``deadline(None)``.
        """
        if self._seconds is None:
            return math.inf
        left = remaining()
        return self._seconds if left is None else min(self._seconds, left)


def nearest_deadline() -> float | None:
    """Return the instant of the nearest deadline in this context, on the current clock; None without one."""
    scope = _scopes.nearest()
    if scope is None:
        return None
    here, earliest = clock.current(), math.inf
    while scope is not None and scope.instant is not None:
        if scope.clock is here:
            earliest = min(earliest, scope.instant)
        scope = _scopes.open_parent(scope)
    return None if earliest == math.inf else earliest


def call_timeout(seconds: float) -> _DeadlineScope:
    """Return a deadline that is the timeout of one call of a client: an attempt that reaches it had its full time.

    >>> with deadline(60.0), call_timeout(5.0):
    ...     nearest_call_timeout()
    5.0
    """
    here = clock.current()
    return _DeadlineScope(here.now() + seconds, here, timeout=seconds)


def nearest_call_timeout() -> float | None:
    """Return the timeout of the client's call in this context; None if there is none, or another deadline is nearer."""
    scope = _scopes.nearest()
    if scope is None or scope.timeout is None or scope.instant != nearest_deadline():
        return None
    return scope.timeout


def remaining() -> float | None:
    """Return the seconds left until the nearest deadline in this context, at least zero; None without one.

    >>> remaining() is None
    True
    """
    instant = nearest_deadline()
    return None if instant is None else max(0.0, instant - clock.current().now())


def deadline_passed() -> bool:
    """Return whether a deadline of this context has passed.

    >>> with deadline(0.0):
    ...     deadline_passed()
    True
    """
    return peek_deadline() is not None and remaining() == 0.0


def deadline_aware(function: F) -> F:
    """Declare that the function raises its library's timeout error at once if the deadline has passed."""
    function.deadline_aware = True  # type: ignore[attr-defined]
    return function


def is_deadline_aware(function: Callable[..., Any]) -> bool:
    """Return whether the function was declared `deadline_aware`.

    >>> is_deadline_aware(deadline_aware(lambda: None)), is_deadline_aware(print)
    (True, False)
    """
    # `is True`: mocks and remote procedures have an attribute for every name
    return getattr(function, "deadline_aware", None) is True


def cut_by_itself(function: F) -> F:
    """Declare that the coroutine function raises `AttemptTimeout` at the deadline by itself, on the machine's clock."""
    function.cut_by_itself = True  # type: ignore[attr-defined]
    return function


def is_cut_by_itself(function: Callable[..., Any]) -> bool:
    """Return whether the function was declared `cut_by_itself`.

    >>> is_cut_by_itself(cut_by_itself(lambda: None)), is_cut_by_itself(print)
    (True, False)
    """
    return getattr(function, "cut_by_itself", None) is True


def cut_to_deadline(seconds: float | None) -> float | None:
    """Return the smaller of `seconds` and `remaining()`; None if both are None."""
    left = remaining()
    if left is None or seconds is None:
        return seconds if left is None else left
    return min(left, seconds)


def carry_deadline(function: F) -> F:
    """Return the function bound to the current deadline, in whatever thread or task it runs later.

    For work that belongs to the block and runs elsewhere: in an executor, a thread, a task that may outlive it. Without
    a deadline, the function itself is returned.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor() as pool, deadline(5.0):
    ...     pool.submit(remaining).result(), pool.submit(carry_deadline(remaining)).result() <= 5.0
    (None, True)
    """
    if not callable(function) or is_generator_function(function):
        raise TypeError(f"carry_deadline needs a function or coroutine function, not {function!r}")
    instant, of, timeout = nearest_deadline(), clock.current(), nearest_call_timeout()
    if instant is None:
        return function

    async def bound(awaitable: Awaitable[Any]) -> Any:
        with closing(_DeadlineScope(instant, of, timeout=timeout)) as scope, scope:
            return await awaitable

    if is_coroutine_function(function):

        @functools.wraps(function)
        async def acarried(*args: Any, **kwargs: Any) -> Any:
            return await bound(function(*args, **kwargs))

        return acarried  # type: ignore[return-value]

    @functools.wraps(function)
    def carried(*args: Any, **kwargs: Any) -> Any:
        with closing(_DeadlineScope(instant, of, timeout=timeout)) as scope, scope:
            result = function(*args, **kwargs)
        return bound(result) if is_coroutine_object(result) else result

    return carried  # type: ignore[return-value]
