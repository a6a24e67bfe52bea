"""The virtual clock: per context, for threads, asyncio and trio."""

import asyncio
import gc
import threading
import time
import weakref

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import clock as clocks
from abate.testing import Script, VirtualClock
from tests.event_loops import in_both_loops, together


def test_sleeping_moves_time_and_takes_none():
    """A sleep of an hour is over at once, an hour later, and is noted."""
    clock = VirtualClock(start=100.0)
    clock.sleep(3600.0)
    assert (clock.now(), clock.wall(), clock.waits) == (3700.0, 3700.0, [3600.0])


def test_waits_are_the_delays_that_were_asked_for():
    """A policy waits until a time; the difference of two times is not exactly the delay."""
    script = Script(OSError(), OSError(), OSError(), OSError(), "fine")
    with VirtualClock() as clock:
        abate.Policy(on=OSError, max_attempts=5, backoff=[0.1, 0.5]).call(script)
    assert clock.waits == [0.1, 0.5, 0.5, 0.5]


def test_time_does_not_go_back():
    """Advancing by less than nothing is refused, and a wait for the past moves nothing."""
    clock = VirtualClock()
    with pytest.raises(ValueError, match="seconds must be a number at least 0, not -1"):
        clock.advance(-1)
    clock.sleep(-5.0)
    assert clock.now() == 0.0


@pytest.mark.parametrize("start", [float("nan"), float("inf"), "now", None, True])
def test_a_bad_start_is_refused(start):
    """The start is a number."""
    with pytest.raises((TypeError, ValueError), match="start must be a number"):
        VirtualClock(start)


def test_it_rules_inside_the_block_only():
    """Deadlines, budgets and policies follow it in the block; before and after, the machine's clock rules."""
    assert clocks.current() is clocks.MACHINE
    with VirtualClock() as outer:
        with VirtualClock() as inner:
            assert clocks.current() is inner
        assert clocks.current() is outer
    assert clocks.current() is clocks.MACHINE


def test_it_is_per_context():
    """Another thread does not see the clock of this one."""
    seen = []
    with VirtualClock():
        thread = threading.Thread(target=lambda: seen.append(clocks.current()))
        thread.start()
        thread.join()
    assert seen == [clocks.MACHINE]


@in_both_loops
def test_tasks_have_the_clock_of_their_own_context(run):
    """Two tasks that enter clocks of their own each live in their own time."""
    now = {}

    def task(name, seconds):
        async def sleeper():
            with VirtualClock() as clock:
                for _ in range(3):
                    await clocks.current().asleep(seconds)
                now[name] = clock.now()

        return sleeper

    async def main():
        await together(task("slow", 10.0), task("fast", 1.0))

    run(main)
    assert now == {"slow": 30.0, "fast": 3.0}


def test_given_to_one_it_is_that_ones_alone():
    """A policy with a virtual clock waits in it; all other code stays in real time."""
    clock = VirtualClock()
    policy = abate.Policy(on=OSError, backoff=[1000.0], clock=clock)
    policy.call(Script(OSError(), "fine"))
    assert clock.waits == [1000.0]
    assert clocks.current() is clocks.MACHINE


def test_deadlines_and_budgets_follow():
    """What is measured in seconds is measured in virtual ones."""
    budget = abate.Budget(ratio=1.0, reserve=0.0, window=10.0)
    with VirtualClock() as clock:
        budget.deposit()
        assert budget.balance() == 1.0
        with abate.deadline(5.0) as deadline:
            clock.advance(4.0)
            assert deadline.remaining() == 1.0
        clock.advance(6.0)
        assert budget.balance() == 0.0


@in_both_loops
@given(waits=st.lists(st.lists(st.integers(0, 20), max_size=5), max_size=6))
def test_many_sleepers_wake_in_the_order_of_their_instants(run, waits):
    """Whatever tasks sleep for, each wakes at its own instant, and time never goes back."""
    woken = []

    def task(delays):
        async def sleeper():
            expected = 0.0
            for delay in delays:
                await clocks.current().asleep(delay)
                expected += delay
                assert clocks.current().now() == expected
                woken.append(expected)

        return sleeper

    async def main():
        await together(*map(task, waits))

    with VirtualClock() as clock:
        run(main)
    assert woken == sorted(woken)
    assert sorted(clock.waits) == sorted(float(delay) for delays in waits for delay in delays)


@in_both_loops
def test_a_busy_task_is_not_overtaken(run):
    """Time stands still while any task can run."""
    seen = []

    async def busy():
        for _ in range(50):
            await (trio.lowlevel.checkpoint() if clocks.in_trio() else asyncio.sleep(0))
            seen.append(clocks.current().now())

    async def sleeper():
        await clocks.current().asleep(10.0)
        seen.append(clocks.current().now())

    async def main():
        await together(sleeper, busy)

    with VirtualClock():
        run(main)
    assert seen == [0.0] * 50 + [10.0]


@in_both_loops
def test_a_cancelled_sleeper_leaves_time_to_the_others(run):
    """Cancelling a long sleep does not move the clock to its end."""

    async def main():
        if clocks.in_trio():
            with trio.CancelScope() as scope:
                scope.cancel()
                await clocks.current().asleep(1000.0)
        else:
            task = asyncio.ensure_future(clocks.current().asleep(1000.0))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await clocks.current().asleep(1.0)
        return clocks.current().now()

    with VirtualClock():
        assert run(main) == 1.0


@in_both_loops
def test_one_clock_serves_loop_after_loop(run):
    """A loop that ended with sleepers left does not stop the next one."""

    async def leaves_a_sleeper():
        if clocks.in_trio():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(clocks.current().asleep, 50.0)
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        else:
            task = asyncio.ensure_future(clocks.current().asleep(50.0))
            await asyncio.sleep(0)
            task.cancel()

    async def sleeps():
        await clocks.current().asleep(5.0)

    with VirtualClock() as clock:
        run(leaves_a_sleeper)
        run(sleeps)
        assert clock.now() == 5.0


def test_loops_that_run_in_turn_keep_their_sleepers():
    """A task of a loop that pauses still wakes, however much another loop of the thread sleeps meanwhile."""

    async def start():
        sleeper = asyncio.ensure_future(clocks.current().asleep(5.0))
        await asyncio.sleep(0)
        return sleeper

    async def sleeps(seconds):
        await clocks.current().asleep(seconds)

    async def end(sleeper):
        await asyncio.wait_for(sleeper, 30.0)

    with VirtualClock() as clock, asyncio.Runner() as one, asyncio.Runner() as other:
        sleeper = one.run(start())
        other.run(sleeps(1.0))
        assert clock.now() == 1.0
        one.run(end(sleeper))
        assert clock.now() == 5.0
        other.run(sleeps(2.0))
        assert clock.now() == 7.0


def test_a_clock_does_not_keep_loops_that_were_closed():
    """A clock may serve thousands of loops, as with Hypothesis: sleepers that were left keep none of them alive."""
    closed = []

    async def leaves_a_sleeper():
        asyncio.get_running_loop().sleeper = asyncio.ensure_future(clocks.current().asleep(50.0))
        await asyncio.sleep(0)

    def run_and_close():
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, context: None)  # it reports the sleeper
        loop.run_until_complete(leaves_a_sleeper())
        loop.close()
        closed.append(weakref.ref(loop))

    with VirtualClock():
        for _ in range(5):
            run_and_close()
        gc.collect()
        assert sum(loop() is not None for loop in closed) <= 1


@in_both_loops
def test_within_cuts_in_virtual_time(run):
    """A block that takes too long in virtual time is cut at the right instant; a quick one is not."""

    async def main():
        clock = clocks.current()
        with pytest.raises(abate.AttemptTimeout, match="longer than 2 s"):
            async with clock.within(2.0):
                await clock.asleep(100.0)
        assert clock.now() == 2.0
        async with clock.within(2.0):
            await clock.asleep(1.0)
        await clock.asleep(10.0)
        assert clock.now() == 13.0

    with VirtualClock():
        run(main)


@in_both_loops
def test_a_timer_without_a_waiter_moves_no_time(run):
    """The end of a block that was left in time, and of a sleep that was cancelled, does not come."""

    async def main():
        clock = clocks.current()
        async with clock.within(60.0):
            await clock.asleep(1.0)
        await (trio.to_thread.run_sync(time.sleep, 0.05) if clocks.in_trio() else asyncio.to_thread(time.sleep, 0.05))
        return clock.now()

    with VirtualClock():
        assert run(main) == 1.0


def test_a_foreign_loop_is_given_time_to_settle():
    """A loop that does not show what is ready to run still gets its sleepers woken."""

    class Foreign(asyncio.SelectorEventLoop):
        """An event loop that keeps its ready queue to itself, as uvloop does."""

        def __getattribute__(self, name):
            if name == "_ready" and not _inside_loop():
                raise AttributeError(name)
            return super().__getattribute__(name)

    async def main():
        await clocks.current().asleep(10.0)
        return clocks.current().now()

    with VirtualClock(), asyncio.Runner(loop_factory=Foreign) as runner:
        assert runner.run(main()) == 10.0


def _inside_loop() -> bool:
    """Is the attribute asked for by asyncio itself?"""
    import sys

    return sys._getframe(2).f_code.co_filename.endswith(("base_events.py", "selector_events.py"))


def test_state_kept_for_a_clock_goes_with_it():
    """A budget does not keep the clocks of past tests alive."""
    budget = abate.Budget()
    with VirtualClock() as clock:
        budget.deposit()
    ref = weakref.ref(clock)
    del clock
    gc.collect()
    assert ref() is None


def test_real_time_is_left_alone():
    """Nothing in virtual time waits for the machine."""
    with VirtualClock() as clock:
        clock.sleep(10.0**9)
    assert time.monotonic() < 10.0**9
