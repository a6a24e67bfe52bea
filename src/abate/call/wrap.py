"""Makes the function that stands in for a decorated one.

Where a success needs nothing but a deposit, the stand-in is compiled with the function's own signature: passing
``(order, retries=0)`` on by name is cheaper than through ``*args, **kwargs``, by more than the deposit costs. The
source below is all that such a call runs; whatever fails goes on in the driver.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import CodeType, CoroutineType, FunctionType
from typing import TYPE_CHECKING, Any

from abate.call import tasks, threads
from abate.call.giveup import give_ups
from abate.call.tally import acounted, aended, counted, ended, watch
from abate.clock import in_loop
from abate.functions import CO_VARARGS, CO_VARKEYWORDS, is_coroutine, is_generator, returned_coroutine
from abate.redact import line
from abate.schedule.deadlines import around, passed

if TYPE_CHECKING:
    from abate.call.policy import Policy

SOURCE = """\
{async_}def stand_in({parameters}):
{begun}{guard}    _a_since = _a_give_ups.last
    try:
        _a_result = {await_}_a_function({arguments})
    except _a_Exception as _a_error:
        _a_failure = _a_error
{broken}    else:
{probe}{good}{deposit}        return _a_result
    try:
        return {await_}{drive}(_a_policy, _a_failure, _a_since, _a_function, ({positional}), {{{named}}})
    finally:
        del _a_failure
"""

# taking an item of the ledger's run is the deposit; where there is none left, look at the clock
DEPOSIT = """\
        for _a_taken in _a_ledger.run:
            return _a_result
{check}        _a_look()
"""

# in calm a shelter need not be asked; now and then it wants a look at how long an answer takes
GUARD = """\
    if not _a_shelter.calm:
        return {await_}{drive}(_a_policy, None, 0, _a_function, ({positional}), {{{named}}})
"""

# once the process has set a deadline: nothing is sent after it
BOUND = """\
    if _a_around() is not None and _a_passed():
        return {await_}{drive}(_a_policy, None, 0, _a_function, ({positional}), {{{named}}})
"""

# until a plain function has returned something: it may stand for a coroutine function, as many wrappers do
PROBE = """\
        if _a_returned_coroutine(_a_result):
            return {adopt}(_a_policy, _a_function, _a_result, ({positional}), {{{named}}})
        _a_proven()
"""

# and after that: some functions return a coroutine in one call and a result in another. Looking at each result would
# cost a sixth of a call, so this stands beside the look at the clock until it has found one
CHECK = """\
        if _a_type(_a_result) is _a_Coroutine:
            _a_by_turns()
            return {adopt}(_a_policy, _a_function, _a_result, ({positional}), {{{named}}})
"""

OWN_CLOCK_DEPOSIT = """\
        _a_deposit()
"""

# while somebody watches: what the driver takes over, it counts to its end
PLAIN = {"begun": "", "broken": "", "good": "", "drive": "_a_drive", "adopt": "_a_adopt"}
COUNTED = {
    "begun": "    _a_begun()\n",
    "broken": "    except _a_BaseException:\n        _a_bad()\n        raise\n",
    "good": "        _a_good()\n",
    "drive": "_a_counted_drive",
    "adopt": "_a_counted_adopt",
}


def wrap(policy: Policy, function: Callable[..., Any]) -> Callable[..., Any]:
    """The stand-in for `function`: the same signature and kind, with retries."""
    if not callable(function):
        raise TypeError(f"a policy decorates functions, not {function!r}")
    if is_generator(function):
        raise TypeError(
            f"{_name(function)} is a generator function, and what it yielded cannot be taken back: decorate the"
            " function that consumes it, or use the block form inside it"
        )
    if not policy.name:
        policy = policy.replace(name=_name(function))
    stand_in = (_plain if policy.plain else _full)(policy, function, is_coroutine(function))
    return functools.wraps(function)(stand_in)


def _full(policy: Policy, function: Callable[..., Any], asynchronous: bool) -> Callable[..., Any]:
    """A stand-in for a policy that has more to do on success than to deposit."""

    kinds = _Kinds(policy)
    attempt = function if asynchronous else kinds.attempts(function)

    async def arun(*args: Any, **kwargs: Any) -> Any:
        if watch.on:
            return await acounted(policy.tally, tasks.drive, policy, None, 0, attempt, args, kwargs)
        return await tasks.drive(policy, None, 0, attempt, args, kwargs)

    if asynchronous:
        return arun

    def run(*args: Any, **kwargs: Any) -> Any:
        if kinds.must_await():
            return arun(*args, **kwargs)
        if watch.on:
            result = counted(policy.tally, threads.drive, policy, None, 0, function, args, kwargs, adopt=kinds.adopt)
        else:
            result = threads.drive(policy, None, 0, function, args, kwargs, adopt=kinds.adopt)
        if not returned_coroutine(result):
            kinds.plain = True
        return result

    return run


class _Kinds:
    """What a plain function has returned so far: coroutines, results, or both by turns."""

    __slots__ = ("_guarded", "_hidden", "plain")

    def __init__(self, policy: Policy) -> None:
        self._guarded = policy.shelter is not None or policy.gate is not None
        self._hidden = self.plain = False

    def adopt(self, *call: Any) -> Any:
        self._hidden = True
        return tasks.adopt(*call)

    def must_await(self) -> bool:
        """Return whether a call asks its shelter and gate when it is awaited, as its thread runs an event loop.

        A shelter may let it wait, which would hold up the loop. The function returns coroutines, as far as is known.
        """
        return self._hidden and not self.plain and self._guarded and in_loop()

    def attempts(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the attempts of such a call. One that returns a result after all tells so."""

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
        failure: Exception | None,
        since: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Drive a call of a plain stand-in, in a task if it has to wait there."""
        if failure is None and self.must_await():
            return tasks.drive(policy, None, 0, self.attempts(function), args, kwargs)
        return threads.drive(policy, failure, since, function, args, kwargs, adopt=self.adopt)


def _plain(policy: Policy, function: Callable[..., Any], asynchronous: bool) -> Callable[..., Any]:
    """A stand-in that calls, deposits and returns."""
    signature = _Signature.of(function)
    timeline = policy.budget.timeline
    deposit = "" if policy.budget.boundless else DEPOSIT if timeline.ambient else OWN_CLOCK_DEPOSIT
    kinds = _Kinds(policy)
    names: dict[str, Any] = {
        "_a_function": function,
        "_a_policy": policy,
        "_a_drive": tasks.drive if asynchronous else kinds.drive,
        "_a_give_ups": give_ups,
        "_a_ledger": timeline.main,
        "_a_look": policy.budget.look,
        "_a_deposit": policy.budget.deposit,
        "_a_Exception": Exception,
        "_a_BaseException": BaseException,
        "_a_begun": policy.tally.begun.add,
        "_a_good": policy.tally.good.add,
        "_a_bad": policy.tally.bad.add,
        "_a_counted_drive": aended(policy.tally, tasks.drive) if asynchronous else ended(policy.tally, kinds.drive),
        "_a_adopt": kinds.adopt,
        "_a_counted_adopt": aended(policy.tally, kinds.adopt),
        "_a_returned_coroutine": returned_coroutine,
        "_a_type": type,
        "_a_Coroutine": CoroutineType,
        "_a_around": around,
        "_a_passed": passed,
    }
    shelter, guard = policy.shelter, ""
    if shelter is not None:
        guard, look = GUARD, policy.budget.look

        def look_around() -> None:
            look()
            shelter.sample()

        names |= {"_a_shelter": shelter, "_a_look": look_around}

    probe, check = "" if asynchronous else PROBE, ""

    def version(counted: bool, bound: bool) -> CodeType:
        guards = BOUND + guard if bound else guard
        # a call that is counted must be known for a coroutine before it is counted as good
        first, later = (check, "") if counted and check else (probe, check)
        return _code(_compiled(signature, guards, first, deposit.replace("{check}", later), asynchronous, counted))

    def proven() -> None:
        """Look at results now and then: the function is probably what it looks like."""
        nonlocal probe, check
        kinds.plain = True
        probe, check = ("", CHECK) if deposit is DEPOSIT else (CHECK, "")
        watch.keep(stand_in)

    def by_turns() -> None:
        """Look at each result: the function has returned a result and a coroutine."""
        nonlocal probe, check
        if probe != CHECK:
            probe, check = CHECK, ""
            watch.keep(stand_in)
            warnings.warn(
                f"{line(policy.name)} returns a result in one call and a coroutine in another, which may not have been"
                " retried until now: decorate a function for each",
                RuntimeWarning,
                stacklevel=3,
            )

    names |= {"_a_proven": proven, "_a_by_turns": by_turns, "_a_version": version}
    stand_in: Any = FunctionType(version(False, False), names, "stand_in")
    watch.keep(stand_in)
    if isinstance(function, FunctionType):
        stand_in.__defaults__ = function.__defaults__
        stand_in.__kwdefaults__ = function.__kwdefaults__
    return stand_in  # type: ignore[no-any-return]


def _code(module: CodeType) -> CodeType:
    """The code of the one function that a compiled piece of source defines."""
    return next(constant for constant in module.co_consts if isinstance(constant, CodeType))


class _Signature(tuple[str, str, str, str]):
    """How to take a function's parameters, pass them on, and keep them: as pieces of source."""

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
    signature: _Signature, guard: str, probe: str, deposit: str, asynchronous: bool, counts: bool
) -> CodeType:
    parameters, arguments, positional, named = signature
    await_ = "await " if asynchronous else ""
    pieces = COUNTED if counts else PLAIN
    source = SOURCE.format(
        async_="async " if asynchronous else "",
        await_=await_,
        parameters=parameters,
        arguments=arguments,
        positional=positional,
        named=named,
        guard=guard.format(await_=await_, positional=positional, named=named, drive=pieces["drive"]),
        probe=probe.format(positional=positional, named=named, adopt=pieces["adopt"]),
        deposit=deposit.format(positional=positional, named=named, adopt=pieces["adopt"]),
        **{piece: pieces[piece] for piece in ("begun", "broken", "good", "drive")},
    )
    return compile(source, "<abate stand-in>", "exec")


def _name(function: Callable[..., Any]) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(kind, "__module__", None)  # methods of built-in types have none
    return f"{module}.{kind.__qualname__}" if module else kind.__qualname__
