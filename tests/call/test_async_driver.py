"""Calls of coroutine functions under asyncio and trio: timeouts, cancellation, refused arguments."""

import asyncio
import subprocess
import sys

import pytest
import trio

import abate
from abate import AttemptTimeout, Policy, Report
from abate.events import GaveUp, Retry
from abate.testing import Script, VirtualClock, after

PLAIN = Policy(on=ConnectionError, name="orders", backoff=[0.0])
BOUNDED = PLAIN.replace(timeout=60.0)
BOTH = pytest.mark.parametrize("policy", [PLAIN, BOUNDED], ids=["plain", "bounded"])


@pytest.fixture(params=["asyncio", "trio"])
def run(request):
    """Return a function that runs a coroutine function with arguments."""
    if request.param == "trio":
        return trio.run
    return lambda main, *args: asyncio.run(main(*args))


@pytest.fixture(params=["call", "decorated"])
def acall(request):
    """Return a function that calls a coroutine function by `acall`, or decorated."""
    if request.param == "call":
        return lambda policy, function: policy.acall(function)
    return lambda policy, function: policy(function)()


# -- refused arguments


@BOTH
@pytest.mark.parametrize("thing", [42, None, "load"])
def test_a_value_that_is_not_callable_is_refused(run, policy, thing):
    """The error says that `acall` takes the function, then its arguments."""
    with pytest.raises(TypeError, match=r"acall takes the function, then its arguments, as in .*, not"):
        run(policy.acall, thing)


@BOTH
def test_a_coroutine_is_refused_and_closed(run, policy):
    """A coroutine can be awaited only once; closing it avoids a "never awaited" warning."""

    async def load():
        raise AssertionError("never awaited")

    with pytest.raises(TypeError, match=r"acall takes the function, then its arguments, as in .*, not <coroutine"):
        run(policy.acall, load())


@BOTH
@pytest.mark.parametrize("outcomes", [(42,), (ConnectionError(), 42)], ids=["at once", "after a failure"])
def test_a_plain_function_is_refused(run, policy, outcomes):
    """`acall` of a function that returns no awaitable raises a TypeError."""
    refused = r"is not a coroutine function: use call|can't be (used in 'await' expression|awaited)"
    with pytest.raises(TypeError, match=refused):
        run(policy.acall, Script(*outcomes))


@BOTH
def test_a_plain_function_that_returns_an_awaitable_is_accepted(run, policy):
    """A lambda that calls a coroutine function is retried like one."""
    script = Script(ConnectionError(), "fine")
    assert run(policy.acall, lambda: script.acall()) == "fine"
    assert len(script.calls) == 2


# -- timeouts


def test_a_slow_attempt_is_cut_off_and_retried_as_an_overload(run, acall, fixed, abate_events):
    """The policy retries its own timeout even if `on` names none, with the delay of an overload."""
    policy = PLAIN.replace(attempt_timeout=1.0, backoff=abate.Backoff(0.25), rng=fixed(0.5))
    script = Script(after(5.0, "late"), "fine")

    async def main():
        return await acall(policy, script.acall), clock.now()

    with VirtualClock() as clock:
        assert run(main) == ("fine", 1.5)
    (retry,) = abate_events.of(Retry)
    assert (retry.reason, retry.delay, type(retry.error)) == ("overload", 0.5, AttemptTimeout)


def test_a_slow_attempt_is_cut_off_on_the_machines_clock(run, acall):
    """The attempt timeout cancels an attempt that would take an hour."""

    async def slow():
        await (trio.sleep(3600) if abate.clock.in_trio() else asyncio.sleep(3600))

    async def main():
        await acall(PLAIN.replace(attempt_timeout=0.001, max_attempts=2), slow)

    with pytest.raises(AttemptTimeout, match=r"longer than 0\.001 s") as caught:
        run(main)
    assert abate.report(caught.value) == Report("orders", 2, 0.0, "attempts")


def test_an_attempt_that_ends_in_time_is_not_cut_off(run, acall):
    """The attempt timeout applies to each attempt by itself, not to their sum."""
    script = Script(after(1.0, ConnectionError()), after(1.0, ConnectionError()), after(1.0, "fine"))

    async def main():
        return await acall(PLAIN.replace(attempt_timeout=2.0), script.acall), clock.now()

    with VirtualClock() as clock:
        assert run(main) == ("fine", 3.0)


def test_an_attempt_is_cut_off_at_the_deadline_of_the_call(run, acall):
    """The report's reason is "deadline", and the clock stands at the deadline."""
    script = Script(after(1.0, ConnectionError()), after(60.0, "never"))

    async def main():
        with pytest.raises(AttemptTimeout) as caught:
            await acall(PLAIN.replace(timeout=3.0), script.acall)
        assert abate.report(caught.value) == Report("orders", 2, 0.0, "deadline")
        return clock.now()

    with VirtualClock() as clock:
        assert run(main) == 3.0


def test_attempts_are_cut_off_by_the_policys_own_clock(run, acall):
    """An attempt that sleeps on the policy's virtual clock is cancelled by that clock."""
    own = VirtualClock()

    async def slow():
        await own.asleep(60.0)

    async def main():
        with pytest.raises(AttemptTimeout):
            await acall(PLAIN.replace(attempt_timeout=2.0, max_attempts=1, clock=own), slow)
        return own.now()

    assert run(main) == 2.0


def test_a_timeout_error_of_the_function_is_judged_by_the_rules(run, acall):
    """A `TimeoutError` that the function raises is not taken for the policy's timeout."""
    script = Script(TimeoutError("its own"))

    async def main():
        await acall(PLAIN.replace(attempt_timeout=2.0), script.acall)

    with VirtualClock(), pytest.raises(TimeoutError, match="its own") as caught:
        run(main)
    assert abate.report(caught.value).reason == "fatal"


def test_a_timeout_inside_a_group_does_not_change_later_rulings(run):
    """A fatal group that contains an `AttemptTimeout` does not make later timeouts fatal."""
    policy = PLAIN.replace(attempt_timeout=1.0)

    async def main():
        with pytest.raises(ExceptionGroup):
            await policy.acall(Script(ExceptionGroup("two", [AttemptTimeout(1.0), KeyError()])).acall)
        return await policy.acall(Script(after(5.0, "late"), "fine").acall)

    with VirtualClock():
        assert run(main) == "fine"


# -- cancellation


@BOTH
@pytest.mark.parametrize("waiting", [True, False], ids=["waiting", "attempting"])
def test_a_cancelled_task_ends_at_once(acall, counting_budget, abate_events, policy, waiting):
    """Cancellation during a wait refunds the withdrawal; during an attempt it does not."""
    budget = counting_budget()
    policy = policy.replace(backoff=[5.0 if waiting else 0.0], budget=budget)
    script = Script(ConnectionError(), after(5.0, "never"))

    async def main():
        task = asyncio.create_task(_awaited(acall(policy, script.acall)))
        await abate.clock.current().asleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with VirtualClock():
        asyncio.run(main())
    assert (budget.granted, budget.refunded) == (1, int(waiting))
    assert [event.reason for event in abate_events.of(GaveUp)] == ["cancelled"]
    assert len(script.calls) == (1 if waiting else 2)


async def _awaited(awaitable):
    return await awaitable


@BOTH
@pytest.mark.parametrize("waiting", [True, False], ids=["waiting", "attempting"])
def test_a_cancelled_scope_ends_at_once(acall, counting_budget, abate_events, policy, waiting):
    """A cancelled trio scope ends the call and refunds as a cancelled asyncio task does."""
    budget = counting_budget()
    policy = policy.replace(backoff=[5.0 if waiting else 0.0], budget=budget)
    script = Script(ConnectionError(), after(5.0, "never"))

    async def main():
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(acall, policy, script.acall)
                await abate.clock.current().asleep(1.0)
                scope.cancel()
        assert scope.cancelled_caught

    with VirtualClock():
        trio.run(main)
    assert (budget.granted, budget.refunded) == (1, int(waiting))
    assert [event.reason for event in abate_events.of(GaveUp)] == ["cancelled"]


def test_calls_of_many_tasks_share_nothing_but_the_budget(counting_budget):
    """A hundred concurrent tasks keep their own arguments, and every retry is withdrawn."""
    budget = counting_budget(ratio=0.0, reserve=100.0)
    policy = PLAIN.replace(budget=budget, backoff=[1.0, 2.0])

    async def load(order):
        script = Script(ConnectionError(), ConnectionError(), order)
        return await policy.acall(script.acall, order), len(script.calls)

    async def main():
        return await asyncio.gather(*map(load, range(100)))

    with VirtualClock() as clock:
        assert asyncio.run(main()) == [(order, 3) for order in range(100)]
        assert clock.now() == 3.0
        assert budget.balance() == 1000 - 200


CLOSED_BEFORE_ITS_TASK = """
import asyncio, gc
import abate

policy = abate.Policy(on=OSError, max_attempts=2, timeout=5.0)

async def hangs():
    await asyncio.get_running_loop().create_future()

async def calls():
    await policy.acall(hangs)

def innermost():
    loop = asyncio.new_event_loop()
    task = loop.create_task(calls())
    task._log_destroy_pending = False
    loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    loop._ready.clear()
    loop.close()
    coroutine = task.get_coro()
    while coroutine.cr_await.__class__ is coroutine.__class__ and coroutine.cr_code.co_name != "_bounded":
        coroutine = coroutine.cr_await
    return coroutine

gc.disable()
for _ in range(20):
    innermost().close()
    gc.collect()
print("ended")
"""


def test_collecting_an_attempt_before_its_task_does_not_crash():
    """Only the attempt's timeout may hold the task; Python 3.11 crashes if it is freed too early."""
    done = subprocess.run([sys.executable, "-c", CLOSED_BEFORE_ITS_TASK], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
