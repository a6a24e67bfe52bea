"""The function that a policy calls before each retry: what it sees, and what it may change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from abate.clock import Clock
from abate.decide.outcome import Outcome
from abate.functions import is_coroutine_function, is_coroutine_object, is_generator_function
from abate.redact import short_repr
from abate.schedule.deadlines import deadline

if TYPE_CHECKING:
    from abate.call.client_request import ClientRequest


class RetryContext:
    """What `before_retry` gets: the failed attempt, and the arguments of the next one, which it may change.

    * `error` is the error of the attempt; None if it returned a `result` that a rule does not accept.
    * `attempt` is the number of the attempt that failed, from 1; `delay` the seconds until the next one.
    * `args` and `kwargs` are the arguments of the next attempt, and of those after it. Assign to ``args``, change
      ``kwargs``. A block has none.
    * `request` and `response` are those of an HTTP client: its library's request, whose headers may be changed for
      the next attempts, and the response that the attempt ended with. Elsewhere `request` is None, and so is
      `response`, unless the error has one.

    >>> import abate
    >>> def refresh(retry):
    ...     retry.kwargs["token"] = f"token {retry.attempt + 1}"
    >>> @abate.retry(on=PermissionError, backoff=[0.0], before_retry=refresh)
    ... def load(order, token="token 1"):
    ...     if token == "token 1":
    ...         raise PermissionError
    ...     return order, token
    >>> load(42)
    (42, 'token 2')
    """

    __slots__ = ("_args", "_kwargs", "attempt", "delay", "error", "request", "response", "result")

    def __init__(
        self,
        outcome: Outcome | Exception,
        attempt: int,
        delay: float,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        sent: ClientRequest | None = None,
    ) -> None:
        """Take the arguments of the next attempt; without `kwargs` it is the attempt of a block."""
        self.error, self.result = (outcome, None) if isinstance(outcome, Exception) else (outcome.error, outcome.result)
        self.attempt = attempt
        self.delay = delay
        self.request: Any = None if sent is None else sent.request
        self.response: Any = response_of(outcome, sent is not None)
        self._args = args
        self._kwargs = None if kwargs is None else dict(kwargs)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments of the next attempt."""
        self._check_arguments()
        return self._args

    @args.setter
    def args(self, args: tuple[Any, ...]) -> None:
        self._check_arguments()
        if not isinstance(args, tuple):
            raise TypeError(f"args must be a tuple of arguments, not {short_repr(args)}")
        self._args = args

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments of the next attempt."""
        return self._check_arguments()

    def _check_arguments(self) -> dict[str, Any]:
        if self._kwargs is None:
            raise AttributeError("a block has no arguments: its code reads its variables again in each attempt")
        return self._kwargs

    def __repr__(self) -> str:
        failure = repr(self.error) if self.error is not None else f"result={self.result!r}"
        return f"RetryContext({failure}, attempt={self.attempt}, delay={self.delay:.3g})"


def response_of(outcome: Outcome | Exception, of_client: bool = True) -> Any:
    """Return the response of a failed attempt: that of its error, or the result of a client.

    >>> error = OSError(); error.response = "503"
    >>> response_of(error), response_of(Outcome(None, "429")), response_of(OSError())
    ('503', '429', None)
    """
    error = outcome if isinstance(outcome, Exception) else outcome.error
    if error is None:
        return outcome.result if of_client else None  # type: ignore[union-attr]
    try:
        return getattr(error, "response", None)
    except Exception:  # a property that raises, as some of httpx's do
        return None


BeforeRetry: TypeAlias = "Callable[[RetryContext], Awaitable[None] | None]"


def check_before_retry(function: object) -> object:
    """Return the checked ``before_retry`` of a policy."""
    if function is not None and (not callable(function) or isinstance(function, type)):
        raise TypeError(f"before_retry must be a function of a RetryContext, not {short_repr(function)}")
    if is_generator_function(function):
        raise TypeError(f"before_retry must be a function of a RetryContext, not the generator function {function!r}")
    return function


def is_async(function: BeforeRetry | None) -> bool:
    """Return whether ``before_retry`` is for async calls only.

    >>> async def refresh(retry): ...
    >>> is_async(refresh), is_async(print), is_async(None)
    (True, False, False)
    """
    return function is not None and is_coroutine_function(function)


def by_name(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments in which those by name replace those of the same name that were given by position.

    >>> by_name(lambda order, token=None: None, (42, "old"), {"token": "new"})
    ((42, 'new'), {})
    """
    code = getattr(function, "__code__", None)
    names = () if code is None else code.co_varnames[code.co_posonlyargcount : code.co_argcount]
    positional, named = list(args), dict(kwargs)
    for place, name in enumerate(names, start=0 if code is None else code.co_posonlyargcount):
        if name in named and place < len(positional):
            positional[place] = named.pop(name)
    return tuple(positional), named


def _bound(left: float | None) -> closing[deadline] | nullcontext[nullcontext[None]]:
    """Return the deadline to call ``before_retry`` under, which ends even if a signal handler raises."""
    return nullcontext(nullcontext()) if left is None else closing(deadline(left))


def run(function: BeforeRetry, context: RetryContext, left: float | None) -> None:
    """Call ``before_retry`` in this thread, under the deadline of its call, `left` seconds from now."""
    try:
        with _bound(left) as bound, bound:
            waiting = function(context)
        if is_coroutine_object(waiting):
            waiting.close()  # type: ignore[union-attr]
            raise TypeError(f"before_retry={function!r} returned a coroutine, which only async calls can await")
    except Exception as mistake:
        _show_cause(mistake, context)
        raise


async def arun(function: BeforeRetry, context: RetryContext, left: float | None, clock: Clock) -> None:
    """Do the same in this task, and await a coroutine; it is cut off at the deadline."""
    try:
        with _bound(left) as bound, bound:
            waiting = function(context)
            if waiting is None:
                return
            cut = nullcontext() if left is None else clock.within(left)
            async with cut:
                await waiting
    except Exception as mistake:
        _show_cause(mistake, context)
        raise


def refuse_async(function: BeforeRetry | None) -> None:
    """Raise TypeError for a coroutine function: a call in a thread does not await."""
    if is_async(function):
        raise TypeError(f"before_retry={function!r} is a coroutine function, which only async calls can await")


def _show_cause(mistake: Exception, context: RetryContext) -> None:
    """Show the error that the attempt failed with, too."""
    if context.error is not None and mistake.__context__ is None and mistake is not context.error:
        mistake.__context__ = context.error
