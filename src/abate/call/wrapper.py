"""Builds the wrapper of a decorated function.

If a success needs only a deposit, the wrapper is compiled with the function's own signature: passing ``(order,
retries=0)`` on by name is cheaper than ``*args, **kwargs``, by more than the deposit costs. A successful call runs only
the source below; a failure continues in the driver. Compiled sources are in `linecache`, and the code carries the
function's name, so that tracebacks and profiles show both.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import CodeType, CoroutineType, FunctionType
from typing import TYPE_CHECKING, Any

from abate.call import async_driver, sync_driver
from abate.call.before_retry import refuse_async
from abate.call.counters import acount_call, acounting_end, count_call, counting_end, wrapper_versions
from abate.call.layers import retry_serials
from abate.clock import in_loop
from abate.decide.outcome import Outcome
from abate.decide.responses import PLAIN_TYPES, is_error_response
from abate.functions import (
    CO_VARARGS,
    CO_VARKEYWORDS,
    is_async_generator_function,
    is_coroutine_function,
    is_coroutine_object,
    is_generator_function,
)
from abate.redact import one_line
from abate.schedule.deadlines import deadline_passed, peek_deadline

if TYPE_CHECKING:
    from abate.call.policy import Policy

SOURCE = """\
{async_}def wrapper({parameters}):
{begun}{guard}    _a_since = _a_serials.last
    try:
        _a_result = {await_}_a_function({arguments})
    except _a_Exception as _a_error:
        _a_failure = _a_error
{broken}    else:
{probe}{judged}{good}{deposit}        return _a_result
    try:
        return {await_}{drive}(_a_policy, _a_failure, _a_since, _a_function, ({positional}), {{{named}}}{more})
    finally:
        del _a_failure
"""

# taking an item of the budget's batch is the deposit; when the batch is used up, read the clock and start another
DEPOSIT = """\
        for _a_taken in _a_budget.batch:
            return _a_result
{check}        _a_rebatch()
"""

# in calm a shelter is not asked, except to sample a latency now and then
GUARD = """\
    if not _a_shelter.calm:
        return {await_}{drive}(_a_policy, None, 0, _a_function, ({positional}), {{{named}}}{more})
"""

# once any deadline was set in this process: send nothing after it
BOUND = """\
    if _a_peek_deadline() is not None and _a_deadline_passed():
        return {await_}{drive}(_a_policy, None, 0, _a_function, ({positional}), {{{named}}}{more})
"""

# until a plain function has returned once: it may wrap a coroutine function, as many decorators do
PROBE = """\
        if _a_returned_coroutine(_a_result):
            return {drive_coroutine}(_a_policy, _a_function, _a_result, ({positional}), {{{named}}})
        _a_returned_plain()
"""

# after that: some functions return a coroutine in one call and a result in another. Checking each result would cost a
# sixth of a call, so only the call that reads the clock checks, until one was found
CHECK = """\
        if _a_type(_a_result) is _a_Coroutine:
            _a_returned_both()
            return {drive_coroutine}(_a_policy, _a_function, _a_result, ({positional}), {{{named}}})
"""

# of a policy with rules for HTTP responses: most results are of a type that is none
JUDGED = """\
        if _a_type(_a_result) not in _a_plain_types and _a_is_error_response(_a_result):
            _a_result = _a_Outcome(None, _a_result)
            return {await_}{drive}(_a_policy, _a_result, _a_since, _a_function, ({positional}), {{{named}}}{more})
"""

OWN_CLOCK_DEPOSIT = """\
        _a_deposit()
"""

# while a sink counts calls: the driver counts the end of the calls that it continues
PLAIN = {"begun": "", "broken": "", "good": "", "drive": "_a_drive", "drive_coroutine": "_a_drive_coroutine"}
COUNTED = {
    "begun": "    _a_begun()\n",
    "broken": "    except _a_BaseException:\n        _a_bad()\n        raise\n",
    "good": "        _a_good()\n",
    "drive": "_a_counted_drive",
    "drive_coroutine": "_a_counted_drive_coroutine",
}


def wrap(policy: Policy, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of `function` with retries, and the same signature and kind."""
    if not callable(function):
        raise TypeError(f"a policy decorates functions, not {function!r}")
    if not policy.name:
        policy = policy.replace(name=_name(function))
    generator, asynchronous = is_generator_function(function), is_async_generator_function(function)
    asynchronous = asynchronous or is_coroutine_function(function)
    if policy.streams_only and not generator:
        raise TypeError(f"resume, idle and content work for generator functions only, and {_name(function)} is none")
    if not asynchronous:
        refuse_async(policy.before_retry)
    if generator:
        from abate.call.stream import wrap_async_generator, wrap_generator

        made = wrap_async_generator(policy, function) if asynchronous else wrap_generator(policy, function)
        return functools.wraps(function)(made)
    plain = policy.plain_in_tasks if asynchronous else policy.plain
    wrapper = (_fast_wrapper if plain else _driving_wrapper)(policy, function, asynchronous)
    return functools.wraps(function)(wrapper)


def _driving_wrapper(policy: Policy, function: Callable[..., Any], asynchronous: bool) -> Callable[..., Any]:
    """Return a wrapper for a policy that needs the driver for a success too."""
    kinds = _ReturnKinds(policy)
    attempt = function if asynchronous else kinds.attempts(function)

    async def arun(*args: Any, **kwargs: Any) -> Any:
        if wrapper_versions.on:
            return await acount_call(policy.counter, async_driver.drive, policy, None, 0, attempt, args, kwargs)
        return await async_driver.drive(policy, None, 0, attempt, args, kwargs)

    if asynchronous:
        return arun

    def run(*args: Any, **kwargs: Any) -> Any:
        if kinds.must_await():
            return arun(*args, **kwargs)
        if wrapper_versions.on:
            result = count_call(
                policy.counter,
                sync_driver.drive,
                policy,
                None,
                0,
                function,
                args,
                kwargs,
                drive_coroutine=kinds.drive_coroutine,
            )
        else:
            result = sync_driver.drive(policy, None, 0, function, args, kwargs, drive_coroutine=kinds.drive_coroutine)
        if not is_coroutine_object(result):
            kinds.plain = True
        return result

    return run


class _ReturnKinds:
    """What a plain function has returned so far: coroutines, results, or both."""

    __slots__ = ("_guarded", "_hidden", "plain")

    def __init__(self, policy: Policy) -> None:
        self._guarded = policy.shelter is not None or policy.gate is not None
        self._hidden = self.plain = False

    def drive_coroutine(self, *call: Any) -> Any:
        self._hidden = True
        return async_driver.drive_coroutine(*call)

    def must_await(self) -> bool:
        """Return whether a call has to ask its shelter and gate in a task.

        Its thread runs an event loop, which a wait would block, and the function returns coroutines as far as is known.
        """
        return self._hidden and not self.plain and self._guarded and in_loop()

    def attempts(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a coroutine function for the attempts of such a call; it accepts plain results too."""

        async def attempt(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if hasattr(result, "__await__"):
                return await result
            self.plain = True
            return result

        return attempt

    def drive(
        self,
        policy: Policy,
        failure: Exception | Outcome | None,
        since: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Drive a call of a plain function, in a task if it must wait there."""
        if failure is None and self.must_await():
            return async_driver.drive(policy, None, 0, self.attempts(function), args, kwargs)
        return sync_driver.drive(policy, failure, since, function, args, kwargs, drive_coroutine=self.drive_coroutine)


def _fast_wrapper(policy: Policy, function: Callable[..., Any], asynchronous: bool) -> Callable[..., Any]:
    """Return a compiled wrapper that calls, deposits and returns."""
    signature = _Signature.of(function)
    states = policy.budget.states
    deposit = "" if policy.budget.unlimited_balance else DEPOSIT if states.follows_context else OWN_CLOCK_DEPOSIT
    kinds = _ReturnKinds(policy)
    # the driver itself if no call has to wait for its turn: that saves the failing path a call
    guarded = policy.shelter is not None or policy.gate is not None
    drive: Callable[..., Any]
    if asynchronous:
        drive = async_driver.drive_usual if policy.retries_usually else async_driver.drive
    elif guarded:
        drive = kinds.drive
    else:
        drive = sync_driver.drive_usual if policy.retries_usually else sync_driver.drive
    more = "" if asynchronous or guarded else ", drive_coroutine=_a_drive_coroutine"
    names: dict[str, Any] = {
        "_a_function": function,
        "_a_policy": policy,
        "_a_drive": drive,
        "_a_serials": retry_serials,
        "_a_budget": states.main,
        "_a_rebatch": policy.budget.deposit_and_start_batch,
        "_a_deposit": policy.budget.deposit,
        "_a_Exception": Exception,
        "_a_BaseException": BaseException,
        "_a_begun": policy.counter.begun.add,
        "_a_good": policy.counter.good.add,
        "_a_bad": policy.counter.bad.add,
        "_a_counted_drive": (acounting_end if asynchronous else counting_end)(policy.counter, drive),
        "_a_drive_coroutine": kinds.drive_coroutine,
        "_a_counted_drive_coroutine": acounting_end(policy.counter, kinds.drive_coroutine),
        "_a_returned_coroutine": is_coroutine_object,
        "_a_type": type,
        "_a_plain_types": PLAIN_TYPES,
        "_a_is_error_response": is_error_response,
        "_a_Outcome": Outcome,
        "_a_Coroutine": CoroutineType,
        "_a_peek_deadline": peek_deadline,
        "_a_deadline_passed": deadline_passed,
    }
    shelter, guard = policy.shelter, ""
    if shelter is not None:
        guard, rebatch = GUARD, policy.budget.deposit_and_start_batch

        def rebatch_and_sample() -> None:
            rebatch()
            shelter.sample()

        names |= {"_a_shelter": shelter, "_a_rebatch": rebatch_and_sample}

    probe, check, judged = "" if asynchronous else PROBE, "", JUDGED if policy.reads_results else ""
    short_name = str(getattr(function, "__name__", "wrapper"))
    long_name = str(getattr(function, "__qualname__", short_name))

    def version(counted: bool, bound: bool) -> CodeType:
        guards = BOUND + guard if bound else guard
        # a counted call must be known not to return a coroutine before it counts as good
        first, later = (check, "") if counted and check else (probe, check)
        deposits = deposit.replace("{check}", later)
        code = _compiled(signature, more, guards, first, judged, deposits, asynchronous, counted)
        return code.replace(co_name=short_name, co_qualname=long_name)

    def returned_plain() -> None:
        """Check results now and then: the function is probably not asynchronous."""
        nonlocal probe, check
        kinds.plain = True
        probe, check = ("", CHECK) if deposit is DEPOSIT else (CHECK, "")
        wrapper_versions.keep(wrapper)

    def returned_both() -> None:
        """Check each result: the function has returned a result and a coroutine."""
        nonlocal probe, check
        if probe != CHECK:
            probe, check = CHECK, ""
            wrapper_versions.keep(wrapper)
            warnings.warn(
                f"{one_line(policy.name)} returns a result in one call and a coroutine in another, which may not have"
                " been retried until now: decorate a function for each",
                RuntimeWarning,
                stacklevel=3,
            )

    names |= {"_a_returned_plain": returned_plain, "_a_returned_both": returned_both, "_a_version": version}
    wrapper: Any = FunctionType(version(False, False), names, "wrapper")
    wrapper_versions.keep(wrapper)
    if isinstance(function, FunctionType):
        wrapper.__defaults__ = function.__defaults__
        wrapper.__kwdefaults__ = function.__kwdefaults__
    return wrapper  # type: ignore[no-any-return]


class _Signature(tuple[str, str, str, str]):
    """Pieces of source that declare a function's parameters, pass them on, and store them for the driver."""

    __slots__ = ()

    @classmethod
    def of(cls, function: Callable[..., Any]) -> _Signature:
        if not isinstance(function, FunctionType):
            return cls(("*args, **kwargs", "*args, **kwargs", "*args,", "**kwargs"))
        code = function.__code__
        names = code.co_varnames
        if any(name.startswith("_a_") for name in names):
            return cls(("*args, **kwargs", "*args, **kwargs", "*args,", "**kwargs"))
        positional = names[: code.co_argcount]
        keywords = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        rest = list(names[code.co_argcount + code.co_kwonlyargcount :])
        star = [f"*{rest.pop(0)}"] if code.co_flags & CO_VARARGS else []
        double = [f"**{rest.pop(0)}"] if code.co_flags & CO_VARKEYWORDS else []
        taken = list(positional)
        if code.co_posonlyargcount:
            taken.insert(code.co_posonlyargcount, "/")
        if keywords and not star:
            taken.append("*")
        return cls(
            (
                ", ".join([*taken, *star, *keywords, *double]),
                ", ".join([*positional, *star, *(f"{name}={name}" for name in keywords), *double]),
                "".join(f"{name}, " for name in [*positional, *star]),
                ", ".join([*(f"{name!r}: {name}" for name in keywords), *double]),
            )
        )


@functools.lru_cache(maxsize=1024)
def _compiled(
    signature: _Signature,
    more: str,
    guard: str,
    probe: str,
    judged: str,
    deposit: str,
    asynchronous: bool,
    counts: bool,
) -> CodeType:
    parameters, arguments, positional, named = signature
    pieces = COUNTED if counts else PLAIN
    names = {
        **pieces,
        "await_": "await " if asynchronous else "",
        "positional": positional,
        "named": named,
        "more": more,
    }
    source = SOURCE.format(
        async_="async " if asynchronous else "",
        parameters=parameters,
        arguments=arguments,
        guard=guard.format(**names),
        probe=probe.format(**names),
        judged=judged.format(**names),
        deposit=deposit.format(**names),
        **names,
    )
    return _function_code(source)


def _function_code(source: str) -> CodeType:
    """Compile the source of one function, and register it for tracebacks."""
    import linecache  # when the first function is decorated, not when abate is imported
    from zlib import crc32

    # named after its content: functions of one signature share their entry
    filename = f"<abate wrapper {crc32(source.encode()):08x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    module = compile(source, filename, "exec")
    return next(constant for constant in module.co_consts if isinstance(constant, CodeType))


def _name(function: Callable[..., Any]) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(kind, "__module__", None)  # methods of built-in types have none
    return f"{module}.{kind.__qualname__}" if module else kind.__qualname__
