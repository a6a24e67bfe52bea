"""Drives calls of plain functions: one loop over the machine, waiting in this thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from abate import clock as clocks
from abate.admit.bells import wait
from abate.call import tasks
from abate.call.giveup import give_ups
from abate.call.machine import SEND, Call, Hold, Send, Stop, Wait
from abate.clock import MACHINE, switch
from abate.decide.outcome import Outcome
from abate.functions import is_coroutine, returned_coroutine
from abate.schedule.deadlines import around, deadline, does_keep, passed, shorter

if TYPE_CHECKING:
    from abate.call.policy import Policy

T = TypeVar("T")


def call(policy: Policy, function: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> T:
    """Call `function` with retries."""
    if not callable(function):
        raise TypeError(f"call needs a function and its arguments apart, not {function!r}")
    if policy.plain and (policy.shelter is None or policy.shelter.calm) and not (switch.deadline and passed()):
        since = give_ups.last
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            failure = error
        else:
            if returned_coroutine(result):
                _refuse(policy, function, result, args, kwargs)
            policy.budget.deposit()
            if policy.shelter is not None:
                policy.shelter.sample_some()
            return result
        try:
            return drive(policy, failure, since, function, args, kwargs, adopt=_refuse)
        finally:
            del failure  # its traceback holds this frame: don't hold it back
    return drive(policy, None, 0, function, args, kwargs, adopt=_refuse)


def drive(
    policy: Policy,
    failure: Exception | None,
    since: int,
    function: Callable[..., T],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    adopt: Callable[..., Any] = tasks.adopt,
    let_go: Callable[[float | None], object] | None = None,
) -> T:
    """Make a call, or go on with one whose first attempt has ended in `failure`.

    `since` is the number of the last call that had retried when that attempt began. A function that returns a coroutine
    has done nothing yet: `adopt` answers for it then. `let_go` is called before each wait, with the seconds until the
    call's deadline: what the failed attempt still holds must not be kept from others meanwhile.
    """
    clock = policy.clock or (clocks.current() if switch.virtual else MACHINE)
    now = clock.now()
    left = policy.timeout if around() is None else shorter(policy.timeout)
    machine = Call(policy, None if left is None else now + left, since, left is not policy.timeout)
    last: Outcome | Exception = Outcome() if failure is None else failure
    action: Send | Wait | Hold | Stop
    try:
        if failure is None:
            action = machine.begin(now, left == 0.0 and does_keep(function))
        else:
            action = machine.failed(failure, now)
        while True:
            if type(action) is Wait:
                if action.until > now:
                    if let_go is not None:
                        let_go(machine.left())
                        now = min(clock.now(), action.until)
                    clock.sleep(action.until - now)
                if policy.ungated:  # what `begin` does then, at a third of its cost
                    machine.unspent, action = False, SEND
                else:
                    action = machine.begin()
            if action is not SEND:
                if isinstance(action, Hold):
                    if let_go is not None:
                        let_go(machine.left())
                    wait(action.door, action.waiter)
                    action = machine.turn()
                if action is not SEND:
                    break
            try:
                if policy.bounded:
                    result = _bounded(machine, clock, function, args, kwargs)
                elif kwargs:
                    result = function(*args, **kwargs)
                else:
                    result = function(*args)
            except Exception as error:
                if error is last:
                    machine.same_error = True
                last, now = error, clock.now()
                action = machine.failed(error, now)
            else:
                if result is not None and returned_coroutine(result):
                    machine.unsent()
                    return adopt(policy, function, result, args, kwargs)  # type: ignore[no-any-return]
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


def _bounded(
    machine: Call,
    clock: clocks.Clock,
    function: Callable[..., T],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> T:
    """Make an attempt within what time it is allowed: a deadline, which clients inside keep."""
    bound = deadline(machine.allowance(clock.now()))
    try:
        with bound:
            return function(*args, **kwargs)
    except BaseException:
        bound.close()
        raise


def _refuse(policy: Policy, function: Callable[..., Any], result: Any, args: object, kwargs: object) -> NoReturn:
    """Nobody would await what the function has returned."""
    result.close()
    if is_coroutine(function):
        raise TypeError(f"{function!r} is a coroutine function: use acall, or decorate it")
    raise TypeError(
        f"{function!r} returned a coroutine, which `call` does not await: write `await policy.acall(…)` with the same"
        " arguments, or decorate it"
    )
