"""Drives calls of coroutine functions, under asyncio and trio: a loop over the machine that waits in this task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import nullcontext
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from abate import clock as clocks
from abate import event_sinks, events
from abate.call.actions import SEND, Send, Stop, Wait, WaitForTurn
from abate.call.before_retry import RetryContext, arun, by_name
from abate.call.layers import retry_serials
from abate.call.machine import Call, UsualRetries
from abate.call.usual_retry import usual_delay
from abate.clock import MACHINE, ever_used
from abate.decide.outcome import Outcome
from abate.decide.responses import is_error_response
from abate.functions import is_generator_function
from abate.schedule.deadlines import (
    cut_to_deadline,
    deadline,
    deadline_passed,
    is_cut_by_itself,
    is_deadline_aware,
    peek_deadline,
)

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
        raise TypeError(f"acall takes the function, then its arguments, as in policy.acall(load, 42), not {function!r}")
    if (
        policy.plain_in_tasks
        and (policy.shelter is None or policy.shelter.calm)
        and not (ever_used.deadline and deadline_passed())
    ):
        failure: Exception | Outcome
        since = retry_serials.last
        try:
            result = await _awaitable(function, function(*args, **kwargs))
        except Exception as error:
            failure = error
        else:
            if not (policy.reads_results and is_error_response(result)):
                policy.budget.deposit()
                if policy.shelter is not None:
                    policy.shelter.sample_every_16th()
                return result
            failure = Outcome(None, result)
        try:
            continued = drive_usual if policy.retries_usually else drive
            return await continued(policy, failure, since, function, args, kwargs)
        finally:
            del failure  # its traceback refers to this frame
    return await drive(policy, None, 0, function, args, kwargs)


def drive_coroutine(
    policy: Policy,
    function: Callable[..., Awaitable[T]],
    begun: Coroutine[Any, Any, T],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Awaitable[T]:
    """Continue the call of a plain function that returned a coroutine, which is its first attempt."""
    return _drive_started(policy, _StartedCoroutine(function, begun), args, kwargs)


async def _drive_started(
    policy: Policy, attempt: _StartedCoroutine, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    try:
        return await call(policy, attempt, args, kwargs)
    finally:
        attempt.close()


class _StartedCoroutine:
    """The attempts of such a call; a coroutine that was not admitted is closed, even if the call was never awaited."""

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


async def drive_usual(
    policy: Policy,
    failure: Exception | Outcome | None,
    since: int,
    function: Callable[..., Awaitable[T]],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> T:
    """Do what `drive` does, for a policy that `retries_usually`: make the machine at the first unusual failure only."""
    failures = number = 0
    waited, delay = 0.0, None
    same_error = paid = refused = False
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
            await clock.asleep(delay if delay > 0.0 else 0.0)
            paid = False  # the retry is sent: nothing is to be refunded
            try:
                begun = function(*args, **kwargs) if kwargs else function(*args)
                result = await (begun if type(begun) is CoroutineType else _awaitable(function, begun))
            except Exception as error:
                same_error = same_error or error is failure
                failure = error
                continue
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
        made = UsualRetries(failures, waited, delay, number, same_error)
        if refused:
            assert isinstance(failure, Exception)
            raise made.refused_by_budget(policy, failure)
        return await drive(policy, failure, since, function, args, kwargs, make=made.make)
    finally:
        del failure  # its traceback refers to this frame


_NOTHING_YET = Outcome()


async def drive(
    policy: Policy,
    failure: Exception | Outcome | None,
    since: int,
    function: Callable[..., Awaitable[T]],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    let_go: Callable[[float | None], Awaitable[object]] | None = None,
    make: Callable[..., Call] = Call,
) -> T:
    """Make a call, or continue one whose first attempt has ended with `failure`: an error, or a result to be judged.

    `since` is the serial of the last call that had retried when that attempt began. `let_go` is called before each
    wait, with the seconds until the call's deadline, to release what the failed attempt still holds, such as a
    connection. `make` makes the machine; a client passes that of its `ClientRequest`.
    """
    clock = policy.clock or (clocks.current() if ever_used.virtual else MACHINE)
    now = clock.now()
    left = policy.timeout if peek_deadline() is None else cut_to_deadline(policy.timeout)
    machine = make(policy, None if left is None else now + left, since, left is not policy.timeout)
    machine.funded = isinstance(function, _StartedCoroutine)
    last: Outcome | Exception = _NOTHING_YET if failure is None else failure
    action: Send | Wait | WaitForTurn | Stop
    # nothing happens before a retry but the wait: the usual case, written out below
    waits_only = policy.no_gate_or_shelter and let_go is None and policy.before_retry is None
    try:
        if type(failure) is Outcome and machine.is_good(failure.result):
            machine.succeeded()
            return failure.result  # type: ignore[return-value]
        if failure is None:
            action = machine.begin(now, left == 0.0 and is_deadline_aware(function))
        else:
            action = machine.failed(failure, now)
        while type(action) is not Stop:
            if type(action) is Wait and waits_only:
                delay = action.until - now
                await clock.asleep(delay if delay > 0.0 else 0.0)
                machine.withdrawn = False  # the retry is sent: nothing is to be refunded
            elif type(action) is WaitForTurn and let_go is None:  # thousands may wait here: no frame more than needed
                from abate.admit.waiting import wait_in_task  # imported with the first policy that has a shelter

                await wait_in_task(action.dispatcher, action.waiter)
                action = machine.take_turn()
                continue
            elif action is not SEND:
                action, args, kwargs = await _wait(machine, action, last, clock, now, let_go, function, args, kwargs)
                continue
            try:
                begun = (_bounded if policy.bounded else _unbounded)(machine, clock, function, *args, **kwargs)
                result = await (begun if type(begun) is CoroutineType else _awaitable(function, begun))
            except Exception as error:
                machine.same_error |= error is last
                last, now = error, clock.now()
                action = machine.failed(error, now)
            else:
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


async def _wait(
    machine: Call,
    action: Send | Wait | WaitForTurn | Stop,
    last: Outcome | Exception,
    clock: clocks.Clock,
    now: float,
    let_go: Callable[[float | None], Awaitable[object]] | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Send | Stop, tuple[Any, ...], Mapping[str, Any]]:
    """Wait as the machine says, until the next attempt is due or refused; return that, and the attempt's arguments."""
    if machine.policy.before_retry is not None and type(action) is Wait:
        action, args, kwargs = await _before_retry(machine, action, last, clock, let_go, function, args, kwargs)
        now = clock.now()
    if type(action) is Wait:
        if let_go is not None and action.until > now:
            await let_go(machine.seconds_left())
            now = clock.now()
        await clock.asleep(max(0.0, action.until - now))
        action = machine.resume()
    if type(action) is WaitForTurn:
        from abate.admit.waiting import wait_in_task  # imported with the first policy that has a shelter

        if let_go is not None:
            await let_go(machine.seconds_left())
        await wait_in_task(action.dispatcher, action.waiter)
        action = machine.take_turn()
    assert not isinstance(action, (Wait, WaitForTurn))
    return action, args, kwargs


async def _before_retry(
    machine: Call,
    wait: Wait,
    last: Outcome | Exception,
    clock: clocks.Clock,
    let_go: Callable[[float | None], Awaitable[object]] | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Wait | Stop, tuple[Any, ...], Mapping[str, Any]]:
    """Call the policy's `before_retry`; return whether to wait or to stop, and the arguments of the next attempt."""
    assert machine.policy.before_retry is not None
    if let_go is not None:
        await let_go(machine.seconds_left())
    delay = max(0.0, wait.until - clock.now())
    context = RetryContext(last, machine.attempts, delay, args, kwargs, machine.request)
    await arun(machine.policy.before_retry, context, machine.seconds_left(), clock)
    return machine.still_in_time(wait), *by_name(function, context.args, context.kwargs)


async def _bounded(
    machine: Call, clock: clocks.Clock, function: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any
) -> T:
    """Make an attempt within its allowance, and cut it off when that is over, unless it does so by itself."""
    allowance = machine.allowance(clock.now())
    bound = deadline(allowance)
    cut = nullcontext() if clock is MACHINE and is_cut_by_itself(function) else clock.within(allowance)
    try:
        with bound:
            async with cut:
                return await _awaitable(function, function(*args, **kwargs))
    except BaseException:
        bound.close()
        raise


def _unbounded(
    machine: Call, clock: clocks.Clock, function: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any
) -> Awaitable[T]:
    """Make an attempt that has no bound."""
    return function(*args, **kwargs)


def _awaitable(function: Callable[..., Awaitable[T]], result: Awaitable[T]) -> Awaitable[T]:
    """Return what the function returned, if it is awaitable."""
    if not hasattr(result, "__await__"):
        if is_generator_function(function):
            raise TypeError(f"{function!r} is a generator function: decorate it, as in policy(function)(...)")
        raise TypeError(f"{function!r} is not a coroutine function: use call")
    return result
