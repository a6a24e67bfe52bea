"""Drives calls of plain functions: a loop over the machine that waits in this thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from abate import clock as clocks
from abate import event_sinks, events
from abate.call import async_driver
from abate.call.actions import SEND, Send, Stop, Wait, WaitForTurn
from abate.call.before_retry import RetryContext, by_name, refuse_async, run
from abate.call.layers import retry_serials
from abate.call.machine import Call, UsualRetries
from abate.call.usual_retry import usual_delay
from abate.clock import MACHINE, ever_used
from abate.decide.outcome import Outcome
from abate.decide.responses import is_error_response
from abate.functions import is_coroutine_function, is_coroutine_object, is_generator_function
from abate.schedule.deadlines import cut_to_deadline, deadline, deadline_passed, is_deadline_aware, peek_deadline

if TYPE_CHECKING:
    from abate.call.policy import Policy

T = TypeVar("T")


def call(policy: Policy, function: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> T:
    """Call `function` with retries."""
    if not callable(function):
        raise TypeError(f"call takes the function, then its arguments, as in policy.call(load, 42), not {function!r}")
    if (
        policy.plain
        and (policy.shelter is None or policy.shelter.calm)
        and not (ever_used.deadline and deadline_passed())
    ):
        failure: Exception | Outcome
        since = retry_serials.last
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            failure = error
        else:
            if is_coroutine_object(result):
                _refuse_coroutine(policy, function, result, args, kwargs)
            if type(result) is GeneratorType:
                _refuse_generator(function, result)
            if not (policy.reads_results and is_error_response(result)):
                policy.budget.deposit()
                if policy.shelter is not None:
                    policy.shelter.sample_every_16th()
                return result
            failure = Outcome(None, result)
        try:
            continued = drive_usual if policy.retries_usually else drive
            return continued(policy, failure, since, function, args, kwargs, drive_coroutine=_refuse_coroutine)
        finally:
            del failure  # its traceback refers to this frame
    result = drive(policy, None, 0, function, args, kwargs, drive_coroutine=_refuse_coroutine)
    if type(result) is GeneratorType:
        _refuse_generator(function, result)
    return result


def drive_usual(  # noqa: C901 - written out: the hottest path of failing calls
    policy: Policy,
    failure: Exception | Outcome | None,
    since: int,
    function: Callable[..., T],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    drive_coroutine: Callable[..., Any] = async_driver.drive_coroutine,
) -> T:
    """Do what `drive` does, for a policy that `retries_usually`: make the machine at the first unusual failure only."""
    failures = number = 0
    waited, delay = 0.0, None
    same_error = paid = refused = False
    begun: Any = None
    try:
        clock = policy.clock or (clocks.current() if ever_used.virtual else MACHINE)
        while failure is not None and (failures or peek_deadline() is None):
            next_delay = usual_delay(policy, failure, failures + 1, since, delay)
            if next_delay is None:
                break
            failures += 1
            if not policy.budget.try_withdraw():
                refused = True
                break
            paid, delay = True, next_delay
            waited += delay
            if failures == 1:
                number = since = retry_serials.last = next(retry_serials.numbers)
            else:
                since = retry_serials.last
            if delay > 0.0:
                clock.sleep(delay)
            paid = False  # the retry is sent: nothing is to be refunded
            try:
                result = function(*args, **kwargs) if kwargs else function(*args)
            except Exception as error:
                same_error = same_error or error is failure
                failure = error
                continue
            if result is not None and is_coroutine_object(result):
                begun = result
                break
            if policy.reads_results and is_error_response(result):
                failure = Outcome(None, result)
                continue
            policy.budget.deposit()
            if event_sinks.installed:
                event_sinks.emit(events.Recovered(policy.name, failures + 1, waited))
            return result
    except BaseException as error:
        UsualRetries(failures, waited, delay, number, same_error).broken_off(policy, paid, error)
        raise
    else:
        if begun is not None:
            return drive_coroutine(policy, function, begun, args, kwargs)  # type: ignore[no-any-return]
        made = UsualRetries(failures, waited, delay, number, same_error)
        if refused:
            assert isinstance(failure, Exception)
            raise made.refused_by_budget(policy, failure)
        return drive(policy, failure, since, function, args, kwargs, drive_coroutine=drive_coroutine, make=made.make)
    finally:
        del failure  # its traceback refers to this frame


def drive(
    policy: Policy,
    failure: Exception | Outcome | None,
    since: int,
    function: Callable[..., T],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    drive_coroutine: Callable[..., Any] = async_driver.drive_coroutine,
    let_go: Callable[[float | None], object] | None = None,
    make: Callable[..., Call] = Call,
) -> T:
    """Make a call, or continue one whose first attempt has ended with `failure`: an error, or a result to be judged.

    `since` is the serial of the last call that had retried when that attempt began. `drive_coroutine` continues the
    call if the function returns a coroutine, which has done nothing yet. `let_go` is called before each wait, with the
    seconds until the call's deadline, to release what the failed attempt still holds, such as a connection. `make`
    makes the machine; a client passes that of its `ClientRequest`.
    """
    clock = policy.clock or (clocks.current() if ever_used.virtual else MACHINE)
    now = clock.now()
    left = policy.timeout if peek_deadline() is None else cut_to_deadline(policy.timeout)
    machine = make(policy, None if left is None else now + left, since, left is not policy.timeout)
    attempt = partial(_bounded, machine, clock, function) if policy.bounded else function
    last: Outcome | Exception = Outcome() if failure is None else failure
    action: Send | Wait | WaitForTurn | Stop
    # nothing happens before a retry but the wait: the usual case, written out below
    waits_only = policy.no_gate_or_shelter and let_go is None and policy.before_retry is None
    try:
        if type(failure) is Outcome and machine.is_good(failure.result):
            machine.succeeded()
            return failure.result  # type: ignore[return-value]
        action = _begin(machine, now, left, function) if failure is None else machine.failed(failure, now)
        while type(action) is not Stop:
            if type(action) is Wait and waits_only:
                if action.until > now:
                    clock.sleep(action.until - now)
                machine.withdrawn = False  # the retry is sent: nothing is to be refunded
            elif action is not SEND:
                action, args, kwargs = _wait(machine, action, last, clock, now, let_go, function, args, kwargs)
                continue
            try:
                result = attempt(*args, **kwargs)
            except Exception as error:
                machine.same_error |= error is last
                last, now = error, clock.now()
                action = machine.failed(error, now)
            else:
                if result is not None and is_coroutine_object(result):
                    machine.unsent()
                    return drive_coroutine(policy, function, result, args, kwargs)  # type: ignore[no-any-return]
                if not policy.reads_results or machine.is_good(result):
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
        failure = last = None  # type: ignore[assignment]  # their tracebacks refer to this frame


def _begin(machine: Call, now: float, left: float | None, function: Callable[..., Any]) -> Send | WaitForTurn | Stop:
    """Begin a call whose first attempt has not been made."""
    refuse_async(machine.policy.before_retry)
    return machine.begin(now, left == 0.0 and is_deadline_aware(function))


def _wait(
    machine: Call,
    action: Send | Wait | WaitForTurn | Stop,
    last: Outcome | Exception,
    clock: clocks.Clock,
    now: float,
    let_go: Callable[[float | None], object] | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Send | Stop, tuple[Any, ...], Mapping[str, Any]]:
    """Wait as the machine says, until the next attempt is due or refused; return that, and the attempt's arguments."""
    if machine.policy.before_retry is not None and type(action) is Wait:
        action, args, kwargs = _before_retry(machine, action, last, clock, let_go, function, args, kwargs)
        now = clock.now()
    if type(action) is Wait:
        if action.until > now:
            if let_go is not None:
                let_go(machine.seconds_left())
                now = min(clock.now(), action.until)
            clock.sleep(action.until - now)
        action = machine.resume()
    if type(action) is WaitForTurn:
        from abate.admit.waiting import wait_in_thread  # imported with the first policy that has a shelter

        if let_go is not None:
            let_go(machine.seconds_left())
        wait_in_thread(action.dispatcher, action.waiter)
        action = machine.take_turn()
    assert not isinstance(action, (Wait, WaitForTurn))
    return action, args, kwargs


def _before_retry(
    machine: Call,
    wait: Wait,
    last: Outcome | Exception,
    clock: clocks.Clock,
    let_go: Callable[[float | None], object] | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Wait | Stop, tuple[Any, ...], Mapping[str, Any]]:
    """Call the policy's `before_retry`; return whether to wait or to stop, and the arguments of the next attempt."""
    assert machine.policy.before_retry is not None
    if let_go is not None:
        let_go(machine.seconds_left())
    delay = max(0.0, wait.until - clock.now())
    context = RetryContext(last, machine.attempts, delay, args, kwargs, machine.request)
    run(machine.policy.before_retry, context, machine.seconds_left())
    return machine.still_in_time(wait), *by_name(function, context.args, context.kwargs)


def _bounded(machine: Call, clock: clocks.Clock, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Make an attempt within its allowance: a deadline, which clients inside keep."""
    bound = deadline(machine.allowance(clock.now()))
    try:
        with bound:
            return function(*args, **kwargs)
    except BaseException:
        bound.close()
        raise


def _refuse_generator(function: Callable[..., Any], result: object) -> None:
    """Raise TypeError for a generator function: `call` would retry nothing. A plain function may return a generator."""
    if is_generator_function(function):
        raise TypeError(f"{function!r} is a generator function: decorate it, as in policy(function)(...)")


def _refuse_coroutine(
    policy: Policy, function: Callable[..., Any], result: Any, args: object, kwargs: object
) -> NoReturn:
    """Raise TypeError: `call` does not await coroutines."""
    result.close()
    if is_coroutine_function(function):
        raise TypeError(f"{function!r} is a coroutine function: use acall, or decorate it")
    raise TypeError(
        f"{function!r} returned a coroutine, which `call` does not await: write `await policy.acall(…)` with the same"
        " arguments, or decorate it"
    )
