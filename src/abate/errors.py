"""Errors that abate raises, and checks of arguments.

The error of the call that failed is re-raised as it was. The classes here cover failures without an original
exception: nothing sent, deadline, timeout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from abate.frozen import Frozen
from abate.redact import one_line, short_repr

F = TypeVar("F", bound=Callable[..., Any])


class AbateError(Exception):
    """The base class of abate's own errors.

    >>> issubclass(Refused, AbateError), issubclass(RetryExhausted, AbateError)
    (True, True)
    """


class Refused(AbateError):
    """A gate did not admit the first attempt, so nothing was sent.

    >>> import abate
    >>> try:
    ...     with abate.ConcurrencyLimit(1, name="db") as permits, permits:
    ...         pass
    ... except abate.Refused as refused:
    ...     print(refused.gate, "-", refused)
    db - db refused: all 1 permits are held
    """

    def __init__(self, gate: str, why: str) -> None:
        super().__init__(f"{one_line(gate)} refused: {why}")
        self.gate = gate
        self.why = why

    def __reduce__(self) -> tuple[type[Refused], tuple[str, str], dict[str, Any]]:
        return type(self), (self.gate, self.why), self.__dict__


class Report(Frozen):
    """Why a call ended without success, and what it had tried.

    The reason is one of ``fatal``, ``unsafe``, ``body``, ``attempts``, ``deadline``, ``hint``, ``budget``,
    ``shelter``, ``layer`` and ``cancelled``. With ``layer``, `inner` is the report of the policy that did the retrying.

    >>> print(Report("orders", attempts=3, waited=1.25, reason="attempts"))
    orders gave up after 3 attempts and 1.25 s of waiting: attempts
    """

    policy: str
    attempts: int
    waited: float
    reason: str
    inner: Report | None = None

    def __str__(self) -> str:
        plural = "" if self.attempts == 1 else "s"
        text = f"{one_line(self.policy) or 'a policy'} gave up after {self.attempts} attempt{plural}"
        if self.waited:
            text += f" and {self.waited:.3g} s of waiting"
        text += f": {self.reason}"
        return f"{text} ({self.inner})" if self.inner else text


class RetryExhausted(AbateError):
    """Raised instead of the original error by a policy with ``raises="exhausted"``.

    The original error is its ``__cause__``; a result that was never good enough is in ``result``.

    >>> import abate
    >>> policy = abate.Policy(on=ConnectionError, max_attempts=1, raises="exhausted", name="orders")
    >>> try:
    ...     policy.call(abate.testing.Script(ConnectionError("gone")))
    ... except abate.RetryExhausted as error:
    ...     print(error.report.reason, repr(error.__cause__))
    attempts ConnectionError('gone')
    """

    def __init__(self, report: Report, result: object = None) -> None:
        super().__init__(str(report))
        self.report = report
        self.result = result

    def __reduce__(self) -> tuple[type[RetryExhausted], tuple[Report, object], dict[str, Any]]:
        return type(self), (self.report, self.result), self.__dict__


class AttemptTimeout(AbateError, TimeoutError):
    """An attempt was cut off by the policy's own ``attempt_timeout``, or by the deadline of its call.

    >>> import abate, asyncio
    >>> policy = abate.Policy(on=ConnectionError, max_attempts=1, attempt_timeout=0.001)
    >>> try:
    ...     asyncio.run(policy.acall(asyncio.sleep, 60.0))
    ... except TimeoutError as error:
    ...     error
    AttemptTimeout('the attempt took longer than 0.001 s')
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the attempt took longer than {seconds:.3g} s")
        self.seconds = seconds

    def __reduce__(self) -> tuple[type[AttemptTimeout], tuple[float], dict[str, Any]]:
        return type(self), (self.seconds,), self.__dict__


class IdleTimeout(AttemptTimeout):
    """An async generator was cut off: no item came for longer than the policy's ``idle``.

    >>> import abate, asyncio
    >>> @abate.retry(on=ConnectionError, max_attempts=1, idle=0.001)
    ... async def ticks():
    ...     await asyncio.sleep(60.0)
    ...     yield 1
    >>> try:
    ...     asyncio.run(anext(ticks()))
    ... except abate.IdleTimeout as error:
    ...     error
    IdleTimeout('no item came for 0.001 s')
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.args = (f"no item came for {seconds:.3g} s",)


class DeadlineExceeded(AttemptTimeout):
    """The deadline had passed before the first attempt, so nothing was sent.

    >>> import abate
    >>> try:
    ...     with abate.deadline(0.0):
    ...         abate.Policy(on=ConnectionError, name="orders").call(print, "sent")
    ... except abate.DeadlineExceeded as error:
    ...     print(error, "-", abate.report(error).reason)
    orders sent nothing: the deadline had passed - deadline
    """

    def __init__(self, policy: str = "") -> None:
        super().__init__(0.0)
        self.args = (f"{one_line(policy) or 'a policy'} sent nothing: the deadline had passed",)
        self.policy = policy

    def __reduce__(self) -> tuple[type[DeadlineExceeded], tuple[str], dict[str, Any]]:  # type: ignore[override]
        return type(self), (self.policy,), self.__dict__


class LayeredRetryWarning(UserWarning):
    """Two nested policies handle one call; only the inner one retries."""


def number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    infinite: bool = False,
) -> float:
    """Return `value` as a float, or raise an error that names it and what was expected.

    >>> number("window", 10, above=0)
    10.0
    >>> number("window", 0, above=0)
    Traceback (most recent call last):
    ValueError: window must be a number above 0, not 0
    """
    bounds = " and ".join(
        f"{word} {bound:g}"
        for word, bound in (("above", above), ("at least", least), ("at most", most))
        if bound is not None
    )
    expected = f"{name} must be a number {bounds}".rstrip()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{expected}, not {short_repr(value)}")
    try:
        result = float(value)
    except OverflowError:
        raise ValueError(f"{expected}, not an integer too large for a float") from None
    if (
        math.isnan(result)
        or (math.isinf(result) and not infinite)
        or (above is not None and result <= above)
        or (least is not None and result < least)
        or (most is not None and result > most)
    ):
        if result == math.inf and most is None:  # it is within the bounds that are named
            expected += " and finite" if bounds else " that is finite"
        raise ValueError(f"{expected}, not {short_repr(value)}")
    return result


LARGEST = 2**63 - 1
"""The largest count: that of databases. Python does not even write integers of more than 4300 digits."""


def whole(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """Return `value` as an int, or raise an error that names it and what was expected.

    >>> whole("burst", 0, least=1)
    Traceback (most recent call last):
    ValueError: burst must be a whole number of at least 1, not 0
    >>> whole("burst", 10**30, least=1)
    Traceback (most recent call last):
    ValueError: burst must be a whole number of at least 1 and at most 2**63 - 1, not an integer of 100 bits
    """
    expected = f"{name} must be a whole number of at least {least}"
    if most is not None:
        expected += f" and at most {most}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{expected}, not {short_repr(value)}")
    if not least <= value <= (LARGEST if most is None else most):
        if abs(value) <= LARGEST:
            raise ValueError(f"{expected}, not {value}")
        if most is None and value > 0:
            expected += " and at most 2**63 - 1"
        raise ValueError(f"{expected}, not an integer of {value.bit_length()} bits")
    return value


def choice(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """Return `value` if it is one of `allowed`, or raise an error that lists them."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {short_repr(value)}")
    return value


_ATTEMPTS = ("max_attempts", "max_receives", "max_requeues")
SYNONYMS = {
    **dict.fromkeys(("attempts", "retries", "max_retries", "tries", "max_tries", "stop"), _ATTEMPTS),
    "max_attempts": _ATTEMPTS[1:],
    **dict.fromkeys(("exceptions", "exception", "retry_on", "retry", "errors"), ("on",)),
    **dict.fromkeys(("wait", "delay", "jitter", "interval", "max_delay", "wait_max", "max_wait"), ("backoff",)),
    **dict.fromkeys(("max_time", "total_timeout", "deadline", "max_elapsed"), ("timeout",)),
    **dict.fromkeys(("giveup", "ignore", "retry_unless"), ("unless",)),
    **dict.fromkeys(("before_sleep", "on_retry", "on_backoff"), ("before_retry",)),
    **dict.fromkeys(("predicate", "retry_if"), ("on",)),
    **dict.fromkeys(("limit", "throttle", "bucket", "circuit_breaker"), ("gate", "breaker")),
    "breaker": ("gate",),
    "fuse": ("breaker",),
    **dict.fromkeys(("threshold", "failure_threshold", "failure_rate"), ("failure_ratio",)),
    **dict.fromkeys(("fail_max", "least", "minimum_throughput"), ("min_calls",)),
    **dict.fromkeys(("reset_timeout", "recovery_timeout", "break_duration"), ("pause",)),
}
"""Settings by the words that other libraries use for them."""
OF_POLICIES = frozenset(
    {"on", "unless", "max_attempts", "timeout", "attempt_timeout", "backoff", "budget", "gate", "shelter", "idempotent"}
)
"""Settings of policies that are looked for in clients, which take a policy."""
FALLBACKS = frozenset({"retry_error_callback", "fallback", "default", "on_giveup", "recover"})
"""Words of other libraries for what is done when the attempts have run out."""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Say that `what` has no such name, and which one was probably meant; without a likely one, list all.

    >>> unknown("Policy has no setting", "max_attemps", ["max_attempts", "timeout"])
    "Policy has no setting 'max_attemps': did you mean 'max_attempts'?"
    >>> unknown("Policy has no setting", "zeal", ["max_attempts", "timeout"])
    "Policy has no setting 'zeal'; known are max_attempts, timeout"
    """
    from difflib import get_close_matches

    if name in FALLBACKS and "raises" in known:
        return f"{what} {name!r}: the last error is raised; catch it around the call, and return something else there"
    names = list(known)
    if "policy" in names and name in OF_POLICIES:
        return f"{what} {name!r}, it is one of the policy: write policy=abate.Policy({name}=...)"
    # a word of another library first: 'retries' is spelt more like 'raises' than like what it means
    likely = [meant for meant in SYNONYMS.get(name, ()) if meant in names] or get_close_matches(name, names, 1)
    if likely:
        return f"{what} {name!r}: did you mean {likely[0]!r}?"
    return f"{what} {name!r}; known are {', '.join(names)}"


def bare(name: str, use: str) -> TypeError:
    """Return the error for a decorator without parentheses, or for settings that are given by position.

    >>> bare("abate.controller", "@abate.controller()")
    TypeError('abate.controller takes its settings by keyword: write @abate.controller()')
    """
    return TypeError(f"{name} takes its settings by keyword: write {use}")


def by_keyword(name: str, use: str) -> Callable[[F], F]:
    """Make a function that takes all settings by keyword explain a bare decorator and a misspelt setting.

    >>> @by_keyword("abate.controller", "@abate.controller()")
    ... def controller(*, workers=4): ...
    >>> controller(print)
    Traceback (most recent call last):
    TypeError: abate.controller takes its settings by keyword: write @abate.controller()
    >>> controller(worker=4)
    Traceback (most recent call last):
    TypeError: abate.controller has no setting 'worker': did you mean 'workers'?
    """

    def decorate(function: F) -> F:
        code = function.__code__
        own = code.co_argcount  # `self`, of a method
        known = code.co_varnames[own : own + code.co_kwonlyargcount]
        needed = set(known) - set(function.__kwdefaults__ or ())

        @wraps(function)
        def explained(*args: Any, **settings: Any) -> Any:
            if len(args) > own:
                raise bare(name, use)
            for setting in settings:
                if setting not in known:
                    raise TypeError(unknown(f"{name} has no setting", setting, known))
            if not needed <= settings.keys():
                raise TypeError(f"{name} needs {', '.join(sorted(needed - settings.keys()))}: write {use}")
            return function(*args, **settings)

        return explained  # type: ignore[return-value]

    return decorate


def suggests_settings(function: F) -> F:
    """Make a constructor or function say which setting was probably meant by one that it does not have.

    >>> class Limit:
    ...     @suggests_settings
    ...     def __init__(self, most, window=1.0): ...
    >>> Limit(3, windw=2.0)
    Traceback (most recent call last):
    TypeError: Limit has no setting 'windw': did you mean 'window'?
    """

    @wraps(function)
    def explained(*args: Any, **settings: Any) -> Any:
        try:
            return function(*args, **settings)
        except TypeError:
            if function.__name__ == "__init__":
                kind = type(args[0])
                inits = [vars(base).get("__init__") for base in kind.__mro__]
                name, known = kind.__name__, [name for init in inits for name in _settings(init)[1:]]
            else:
                name, known = f"{function.__module__.rpartition('.')[2]}.{function.__name__}", _settings(function)
            for setting in settings:
                if setting not in known:
                    raise TypeError(unknown(f"{name} has no setting", setting, known)) from None
            raise

    return explained  # type: ignore[return-value]


def _settings(function: Any) -> list[str]:
    """Return the names of the parameters of a function; none for anything that is not written in Python."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return [] if code is None else list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
