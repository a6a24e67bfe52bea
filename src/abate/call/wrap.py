"""Makes the function that stands in for a decorated one.

Where a success needs nothing but a deposit, the stand-in is compiled with the function's own signature: passing
``(order, retries=0)`` on by name is cheaper than through ``*args, **kwargs``, by more than the deposit costs. The
source below is all that such a call runs; whatever fails goes on in the driver.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from abate.call import tasks, threads
from abate.call.giveup import give_ups
from abate.call.tally import acounted, aended, counted, ended, watch

if TYPE_CHECKING:
    from abate.call.policy import Policy

# as in `inspect`, which takes longer to import than all of abate
CO_VARARGS, CO_VARKEYWORDS, CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR = 0x4, 0x8, 0x20, 0x80, 0x200

SOURCE = """\
{async_}def stand_in({parameters}):
{begun}{guard}    _a_since = _a_give_ups.last
    try:
        _a_result = {await_}_a_function({arguments})
    except _a_Exception as _a_error:
        _a_failure = _a_error
{broken}    else:
{good}{deposit}        return _a_result
    try:
        return {await_}{drive}(_a_policy, _a_failure, _a_since, _a_function, ({positional}), {{{named}}})
    finally:
        del _a_failure
"""

# taking an item of the ledger's run is the deposit; where there is none left, look at the clock
DEPOSIT = """\
        for _a_taken in _a_ledger.run:
            return _a_result
        _a_look()
"""

# in calm a shelter need not be asked; now and then it wants a look at how long an answer takes
GUARD = """\
    if not _a_shelter.calm:
        return {await_}{drive}(_a_policy, None, 0, _a_function, ({positional}), {{{named}}})
"""

OWN_CLOCK_DEPOSIT = """\
        _a_deposit()
"""

# while somebody watches: what the driver takes over, it counts to its end
PLAIN = {"begun": "", "broken": "", "good": "", "drive": "_a_drive"}
COUNTED = {
    "begun": "    _a_begun()\n",
    "broken": "    except _a_BaseException:\n        _a_bad()\n        raise\n",
    "good": "        _a_good()\n",
    "drive": "_a_counted_drive",
}


def wrap(policy: Policy, function: Callable[..., Any]) -> Callable[..., Any]:
    """The stand-in for `function`: the same signature and kind, with retries."""
    if not callable(function):
        raise TypeError(f"a policy decorates functions, not {function!r}")
    flags = _flags(function)
    if flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        raise TypeError(
            f"{_name(function)} is a generator function, and what it yielded cannot be taken back: decorate the"
            " function that consumes it, or use the block form inside it"
        )
    if not policy.name:
        policy = policy.replace(name=_name(function))
    asynchronous = bool(flags & CO_COROUTINE) or _marked_coroutine(function)
    stand_in = (_plain if policy.plain else _full)(policy, function, asynchronous)
    return functools.wraps(function)(stand_in)


def _full(policy: Policy, function: Callable[..., Any], asynchronous: bool) -> Callable[..., Any]:
    """A stand-in for a policy that has more to do on success than to deposit."""
    if asynchronous:

        async def arun(*args: Any, **kwargs: Any) -> Any:
            if watch.on:
                return await acounted(policy.tally, tasks.drive, policy, None, 0, function, args, kwargs)
            return await tasks.drive(policy, None, 0, function, args, kwargs)

        return arun

    def run(*args: Any, **kwargs: Any) -> Any:
        if watch.on:
            return counted(policy.tally, threads.drive, policy, None, 0, function, args, kwargs)
        return threads.drive(policy, None, 0, function, args, kwargs)

    return run


def _plain(policy: Policy, function: Callable[..., Any], asynchronous: bool) -> Callable[..., Any]:
    """A stand-in that calls, deposits and returns."""
    signature = _Signature.of(function)
    timeline = policy.budget.timeline
    deposit = "" if policy.budget.boundless else DEPOSIT if timeline.ambient else OWN_CLOCK_DEPOSIT
    names = {
        "_a_function": function,
        "_a_policy": policy,
        "_a_drive": tasks.drive if asynchronous else threads.drive,
        "_a_give_ups": give_ups,
        "_a_ledger": timeline.main,
        "_a_look": policy.budget.look,
        "_a_deposit": policy.budget.deposit,
        "_a_Exception": Exception,
        "_a_BaseException": BaseException,
        "_a_begun": policy.tally.begun.add,
        "_a_good": policy.tally.good.add,
        "_a_bad": policy.tally.bad.add,
        "_a_counted_drive": aended(policy.tally, tasks.drive) if asynchronous else ended(policy.tally, threads.drive),
    }
    shelter, guard = policy.shelter, ""
    if shelter is not None:
        guard, look = GUARD, policy.budget.look

        def look_around() -> None:
            look()
            shelter.sample()

        names |= {"_a_shelter": shelter, "_a_look": look_around}
    versions: list[Any] = []
    for counts in (False, True):
        exec(_compiled(signature, guard, deposit, asynchronous, counts), names)
        versions.append(names["stand_in"])
    stand_in = versions[0]
    names["_a_versions"] = tuple(version.__code__ for version in versions)
    watch.keep(stand_in)
    if isinstance(function, FunctionType):
        stand_in.__defaults__ = function.__defaults__
        stand_in.__kwdefaults__ = function.__kwdefaults__
    return stand_in  # type: ignore[no-any-return]


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
def _compiled(signature: _Signature, guard: str, deposit: str, asynchronous: bool, counts: bool) -> CodeType:
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
        deposit=deposit,
        **pieces,
    )
    return compile(source, "<abate stand-in>", "exec")


def _flags(function: Any) -> int:
    """The code flags of what runs when `function` is called; none for what is not written in Python."""
    while isinstance(function, functools.partial):
        function = function.func
    for called in (function, type(function).__call__):
        code = getattr(called, "__code__", None)
        if code is not None:
            return int(code.co_flags)
    return 0


def _marked_coroutine(function: Callable[..., Any]) -> bool:
    """Was a plain function marked as a coroutine function? Whoever did so has imported `inspect`."""
    inspect = sys.modules.get("inspect")
    return inspect is not None and inspect.iscoroutinefunction(function)


def _name(function: Callable[..., Any]) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(kind, "__module__", None)  # methods of built-in types have none
    return f"{module}.{kind.__qualname__}" if module else kind.__qualname__
