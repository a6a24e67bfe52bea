"""Drives calls of coroutine functions, under asyncio and trio: one loop over the machine, waiting in this task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from abate import clock as clocks
from abate.admit.bells import awaiting
from abate.call.giveup import give_ups
from abate.call.machine import SEND, Call, Hold, Send, Stop, Wait
from abate.clock import MACHINE, switch
from abate.decide.outcome import Outcome
from abate.schedule.deadlines import around, deadline, does_keep, passed, shorter

if TYPE_CHECKING:
    from abate.call.policy import Policy

T = TypeVar("T")


async def call(
    policy: Policy, function: Callable[..., Awaitable[T]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> T:
    """Call the coroutine function `function` with retries."""
    if not callable(function):
        if hasattr(function, "close"):
            function.close()  # a coroutine that will not be awaited after all
        raise TypeError(f"acall needs a function and its arguments apart, not {function!r}")
    if policy.plain and (policy.shelter is None or policy.shelter.calm) and not (switch.deadline and passed()):
        since = give_ups.last
        try:
            result = await _awaitable(function, function(*args, **kwargs))
        except Exception as error:
            failure = error
        else:
            policy.budget.deposit()
            if policy.shelter is not None:
                policy.shelter.sample_some()
            return result
        try:
            return await drive(policy, failure, since, function, args, kwargs)
        finally:
            del failure  # its traceback holds this frame: don't hold it back
    return await drive(policy, None, 0, function, args, kwargs)


def adopt(
    policy: Policy,
    function: Callable[..., Awaitable[T]],
    begun: Coroutine[Any, Any, T],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Awaitable[T]:
    """The call of a plain function that has returned a coroutine: that is its first attempt."""
    return _adopted(policy, _Adopted(function, begun), args, kwargs)


async def _adopted(policy: Policy, attempt: _Adopted, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    try:
        return await call(policy, attempt, args, kwargs)
    finally:
        attempt.close()


class _Adopted:
    """The attempts of such a call. A coroutine that was not let in is closed, also if the call was never begun."""

    __slots__ = ("_begun", "_function")

    def __init__(self, function: Callable[..., Awaitable[Any]], begun: Coroutine[Any, Any, Any]) -> None:
        self._function = function
        self._begun: Coroutine[Any, Any, Any] | None = begun

    def __call__(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        begun, self._begun = self._begun, None
        return self._function(*args, **kwargs) if begun is None else begun

    def close(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.close()

    __del__ = close


async def drive(
    policy: Policy,
    failure: Exception | None,
    since: int,
    function: Callable[..., Awaitable[T]],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    let_go: Callable[[float | None], Awaitable[object]] | None = None,
) -> T:
    """Make a call, or go on with one whose first attempt has ended in `failure`.

    `since` is the number of the last call that had retried when that attempt began. `let_go` is called before each
    wait, with the seconds until the call's deadline: what the failed attempt still holds must not be kept from others
    meanwhile.
    """
    clock = policy.clock or (clocks.current() if switch.virtual else MACHINE)
    now = clock.now()
    left = policy.timeout if around() is None else shorter(policy.timeout)
    machine = Call(policy, None if left is None else now + left, since, left is not policy.timeout)
    machine.paid = isinstance(function, _Adopted)
    last: Outcome | Exception = Outcome() if failure is None else failure
    action: Send | Wait | Hold | Stop
    awaited = failure is not None
    try:
        if failure is None:
            action = machine.begin(now, left == 0.0 and does_keep(function))
        else:
            action = machine.failed(failure, now)
        while True:
            if type(action) is Wait:
                if let_go is not None and action.until > now:
                    await let_go(machine.left())
                    now = min(clock.now(), action.until)
                await clock.asleep(action.until - now)
                if policy.ungated:  # what `begin` does then, at a third of its cost
                    machine.unspent, action = False, SEND
                else:
                    action = machine.begin()
            if action is not SEND:
                if isinstance(action, Hold):
                    if let_go is not None:
                        await let_go(machine.left())
                    await awaiting(action.door, action.waiter)
                    action = machine.turn()
                if action is not SEND:
                    break
            try:
                if policy.bounded:
                    result = await _bounded(machine, clock, function, args, kwargs)
                elif awaited:
                    result = await function(*args, **kwargs)
                else:
                    result = await _awaitable(function, function(*args, **kwargs))
            except Exception as error:
                if error is last:
                    machine.same_error = True
                last, now = error, clock.now()
                action = machine.failed(error, now)
            else:
                if not policy.reads_results or machine.good(result):
                    machine.succeeded()
                    return result
                last, now = Outcome(None, result), clock.now()
                action = machine.failed(last, now)
        assert isinstance(action, Stop)
        failure = machine.give_up(action, last)
        if failure is not None:
            raise failure
        assert isinstance(last, Outcome)
        return last.result  # type: ignore[return-value]
    except BaseException as error:
        machine.broken_off(error)
        raise
    finally:
        failure = last = None  # type: ignore[assignment]  # their tracebacks hold this frame: don't hold them back


async def _bounded(
    machine: Call,
    clock: clocks.Clock,
    function: Callable[..., Awaitable[T]],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> T:
    """Make an attempt within what time it is allowed, and cut it off when that is over."""
    allowance = machine.allowance(clock.now())
    bound = deadline(allowance)
    try:
        with bound:
            cut = clock.within(allowance)
            async with cut:
                return await _awaitable(function, function(*args, **kwargs))
    except BaseException:
        bound.close()
        raise


def _awaitable(function: Callable[..., Awaitable[T]], result: Awaitable[T]) -> Awaitable[T]:
    """What the function returned, if it can be awaited."""
    if not hasattr(result, "__await__"):
        raise TypeError(f"{function!r} is not a coroutine function: use call")
    return result
