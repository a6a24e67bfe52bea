"""Deadlines: they nest, the nearest wins, and each context has its own."""

import asyncio
import contextvars
import inspect
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import clock as clocks
from abate.schedule import carry_deadline, deadline, remaining
from abate.schedule.deadlines import call_timeout, cut_to_deadline, nearest_call_timeout
from abate.testing import Script, VirtualClock
from tests.event_loops import together

# quarters of seconds add up without rounding, so that what remains can be compared exactly
quarters = st.integers(0, 200).map(lambda count: count / 4)


def test_without_a_deadline_nothing_is_bounded():
    """`remaining` is None, and a timeout is unchanged."""
    assert remaining() is None
    assert cut_to_deadline(None) is None
    assert cut_to_deadline(3.0) == 3.0


def test_the_remaining_time_counts_down_to_zero():
    """It never falls below zero."""
    with VirtualClock() as clock, deadline(5.0) as inside:
        assert (remaining(), inside.remaining()) == (5.0, 5.0)
        clock.advance(2.0)
        assert (remaining(), inside.remaining()) == (3.0, 3.0)
        clock.sleep(10.0)
        assert (remaining(), inside.remaining()) == (0.0, 0.0)


def test_a_timeout_is_cut_to_the_remaining_time():
    """The smaller of both; without a timeout, the remaining time; zero after the deadline."""
    with VirtualClock() as clock, deadline(5.0):
        assert (cut_to_deadline(None), cut_to_deadline(2.0), cut_to_deadline(9.0)) == (5.0, 2.0, 5.0)
        clock.advance(4.0)
        assert (cut_to_deadline(None), cut_to_deadline(2.0), cut_to_deadline(0.5)) == (1.0, 1.0, 0.5)
        clock.advance(4.0)
        assert (cut_to_deadline(None), cut_to_deadline(2.0)) == (0.0, 0.0)


def test_the_nearest_deadline_wins():
    """An inner deadline may be nearer, never farther; the outer one applies again after it."""
    with VirtualClock() as clock, deadline(10.0):
        with deadline(60.0) as farther:
            assert (remaining(), farther.remaining()) == (10.0, 10.0)
        with deadline(2.0) as nearer:
            clock.advance(1.0)
            assert (remaining(), nearer.remaining()) == (1.0, 1.0)
        assert remaining() == 9.0
    assert remaining() is None


@given(
    st.lists(
        st.tuples(st.just("enter"), quarters) | st.tuples(st.just("advance"), quarters) | st.just(("leave", 0.0)),
        max_size=30,
    )
)
def test_nesting_is_a_stack(steps):
    """In any order of entering and leaving, the remaining time is that of the nearest open deadline."""
    open_ones, instants = [], []
    with VirtualClock() as clock, ExitStack() as left_open:
        for step, seconds in steps:
            if step == "enter":
                open_ones.append(left_open.enter_context(ExitStack()))
                open_ones[-1].enter_context(deadline(seconds))
                instants.append(clock.now() + seconds)
            elif step == "advance":
                clock.advance(seconds)
            elif open_ones:
                open_ones.pop().close()
                instants.pop()
            assert remaining() == (max(0.0, min(instants) - clock.now()) if instants else None)
    assert remaining() is None


def test_a_deadline_ends_with_its_block():
    """Also when the block raises."""
    error = KeyError("mine")
    with VirtualClock(), deadline(9.0):
        with pytest.raises(KeyError) as caught, deadline(1.0):
            raise error
        assert caught.value is error
        assert remaining() == 9.0


def test_a_deadline_can_be_reused_and_nested():
    """Each entry starts its duration anew."""
    five = deadline(5.0)
    with VirtualClock() as clock:
        for _ in range(2):
            with five:
                assert remaining() == 5.0
                clock.advance(3.0)
                with five:
                    assert remaining() == 2.0
                assert remaining() == 2.0
        assert remaining() is None


def test_remaining_before_the_block_is_what_it_would_be_inside():
    """All its seconds, or less within an outer deadline."""
    five = deadline(5.0)
    with VirtualClock():
        assert five.remaining() == 5.0
        with deadline(60.0):
            assert five.remaining() == 5.0
        with deadline(2.0):
            assert five.remaining() == 2.0


def test_zero_seconds_is_a_deadline():
    """It is over as it begins."""
    with VirtualClock(), deadline(0):
        assert remaining() == 0.0


def test_on_the_machines_clock():
    """Outside of tests the seconds are real ones."""
    with deadline(3600):
        assert 0.0 < remaining() <= 3600.0


@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        (-0.5, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (True, TypeError),
        ("2", TypeError),
    ],
)
def test_bad_seconds_are_refused(seconds, error):
    """The error names the value and what was expected."""
    with pytest.raises(error, match=f"^deadline must be a number at least 0( and finite)?, not {seconds!r}$"):
        deadline(seconds)


# -- contexts


def test_a_thread_does_not_inherit_deadlines():
    """It starts without the deadlines of its parent, and its own end with it."""
    seen = []

    def elsewhere():
        seen.append(remaining())
        with deadline(1.0):
            seen.append(remaining() <= 1.0)

    with deadline(3600.0):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert seen == [None, True]
        assert remaining() > 1.0


def test_tasks_do_not_see_the_deadlines_of_other_tasks(run):
    """A task has the deadline under which it was started, and its own."""
    seen = {}

    async def strict():
        with deadline(5.0):
            await clocks.current().asleep(2.0)
            seen["strict"] = remaining()

    async def easy():
        await clocks.current().asleep(1.0)
        seen["easy"] = remaining()

    async def main():
        with VirtualClock(), deadline(60.0):
            await together(strict, easy)
            seen["after"] = remaining()

    run(main)
    assert seen == {"easy": 59.0, "strict": 3.0, "after": 58.0}


def test_one_deadline_serves_many_tasks_at_once(run):
    """Tasks which enter and leave the same one in turn each have their own time, and leave it behind."""
    shared = deadline(10.0)
    seen = []

    def task(begin):
        async def enter_and_leave():
            clock = clocks.current()
            await clock.asleep(begin)
            with shared:
                await clock.asleep(2.0)
                seen.append((begin, remaining()))
            seen.append((begin, remaining()))

        return enter_and_leave

    async def main():
        with VirtualClock():
            await together(task(0.0), task(1.0), task(5.0))

    run(main)
    assert seen == [(0.0, 8.0), (0.0, None), (1.0, 8.0), (1.0, None), (5.0, 8.0), (5.0, None)]


def test_one_deadline_serves_many_threads_at_once():
    """Threads which stand in the same one at the same time leave it in the order they came."""
    shared = deadline(3600.0)
    inside, leave, left = threading.Barrier(2, timeout=60), threading.Event(), []

    def other():
        inside.wait()
        with shared:
            inside.wait()
            leave.wait(60)
        left.append(remaining())

    thread = threading.Thread(target=other)
    thread.start()
    with shared:
        inside.wait()
        inside.wait()
    left.append(remaining())
    leave.set()
    thread.join()
    assert left == [None, None]


def test_a_generator_closed_elsewhere_takes_no_other_deadline_away():
    """Closing it in a context that never entered its deadline is no error there."""

    def bounded():
        with deadline(5.0):
            yield remaining()

    generator = bounded()
    assert contextvars.copy_context().run(next, generator) <= 5.0
    assert remaining() is None
    generator.close()
    assert remaining() is None


def test_policies_respect_deadlines():
    """A policy does not begin a wait that would pass the deadline."""
    with VirtualClock() as clock, deadline(2.5):
        policy = abate.Policy(on=OSError, max_attempts=5, backoff=[1.0])
        with pytest.raises(OSError, match="third") as caught:
            policy.call(Script(OSError("first"), OSError("second"), OSError("third")))
    assert abate.report(caught.value).reason == "deadline"
    assert clock.waits == [1.0, 1.0]


# -- what outlives the block


def test_a_closed_deadline_is_seen_through_to_the_open_one_around_it():
    """A task that outlives the inner block is still bound by the outer one."""
    seen = []

    async def main(clock):
        async def outlives():
            seen.append(remaining())
            await clock.asleep(1.0)
            seen.append(remaining())

        with deadline(60.0):
            with deadline(5.0):
                task = asyncio.create_task(outlives())
                await asyncio.sleep(0)
            await task
            seen.append(remaining())

    with VirtualClock() as clock:
        asyncio.run(main(clock))
    assert seen == [5.0, 59.0, 59.0]


def test_a_context_that_outlives_both_blocks_is_bound_by_none():
    """Each closes for itself, in whichever order."""
    with VirtualClock() as clock:
        outer, inner = deadline(60.0), deadline(5.0)
        outer.__enter__()
        inner.__enter__()
        copied = contextvars.copy_context()
        inner.__exit__(None, None, None)
        clock.advance(1.0)
        assert copied.run(remaining) == 59.0
        outer.__exit__(None, None, None)
        assert copied.run(remaining) is None


def test_work_started_in_a_call_is_not_bound_by_its_timeout():
    """A poller that a first request starts lives for ever, and its calls are retried as any others."""
    calls = []
    orders = abate.Policy(on=ConnectionError, backoff=[0.1])

    async def main(clock):
        async def poller():
            await clock.asleep(60.0)
            return await orders.acall(Script(ConnectionError(), "fine").acall)

        @abate.retry(on=ConnectionError, timeout=5.0)
        async def start():
            calls.append(asyncio.create_task(poller()))

        await start()
        return await calls[0]

    with VirtualClock() as clock:
        assert asyncio.run(main(clock)) == "fine"


# -- clocks


def test_a_deadline_binds_in_the_time_of_its_own_clock():
    """Instants of two clocks are not compared: in virtual time a deadline of the machine's is none, and back."""
    with deadline(3600.0), VirtualClock(start=1e9) as clock:
        assert (remaining(), cut_to_deadline(None), cut_to_deadline(5.0)) == (None, None, 5.0)
        policy = abate.Policy(on=OSError, backoff=[7200.0])
        assert policy.call(Script(OSError(), "fine")) == "fine"
        with deadline(10.0):
            assert remaining() == 10.0
            with VirtualClock(), deadline(2.0):
                assert remaining() == 2.0
            clock.advance(4.0)
            assert remaining() == 6.0
    with VirtualClock() as clock, deadline(1.0):
        clock.advance(2.0)
        machine = contextvars.copy_context()
    assert machine.run(remaining) is None


# -- shedding


def test_deadline_none_sheds_outer_deadlines():
    """`deadline(None)` removes those around it, not those inside."""
    with VirtualClock(), deadline(5.0):
        with deadline(None) as shed:
            assert (remaining(), shed.remaining(), cut_to_deadline(9.0)) == (None, math.inf, 9.0)
            with deadline(60.0) as inner:
                assert (remaining(), inner.remaining()) == (60.0, 60.0)
                with deadline(9.0):
                    assert remaining() == 9.0
        assert remaining() == 5.0


@given(st.lists(st.none() | quarters, max_size=8), quarters)
def test_the_nearest_of_those_inside_the_innermost_shed_counts(nested, later):
    """However deadlines and sheds are nested."""
    with VirtualClock() as clock, ExitStack() as stack:
        for seconds in nested:
            stack.enter_context(deadline(seconds))
        inside = nested[len(nested) - nested[::-1].index(None) :] if None in nested else nested
        clock.advance(later)
        assert remaining() == (max(0.0, min(inside) - later) if inside else None)


# -- carrying


def test_a_carried_deadline_binds_in_other_threads_and_after_the_block():
    """The function has the instant, whichever thread runs it, and when."""
    with ThreadPoolExecutor(1) as pool:
        with deadline(3600.0):
            carried = carry_deadline(remaining)
            assert pool.submit(carried).result() <= 3600.0
        assert pool.submit(carried).result() <= 3600.0
        assert pool.submit(remaining).result() is None
    assert carried() <= 3600.0
    assert remaining() is None


def test_a_carried_deadline_binds_a_task_for_its_life(run):
    """A coroutine function stays one; the nearest deadline of where it runs and of where it was carried from wins."""

    async def look():
        return remaining()

    async def main():
        with VirtualClock() as clock:
            with deadline(10.0):
                carried = carry_deadline(look)
            assert inspect.iscoroutinefunction(carried)
            clock.advance(4.0)
            found = [await carried()]
            with deadline(2.0):
                found.append(await carried())
            found.append(remaining())
            return found

    assert run(main) == [6.0, 2.0, None]


def test_a_wrapper_of_a_coroutine_function_carries_it_as_well():
    """What is bound is what is awaited."""

    async def look():
        return remaining()

    with VirtualClock():
        with deadline(10.0):
            carried = carry_deadline(lambda: look())
        assert asyncio.run(carried()) == 10.0


def test_where_there_is_no_deadline_nothing_is_carried():
    """The function is returned as it is; so it is where a shed is the nearest."""
    assert carry_deadline(remaining) is remaining
    with deadline(5.0), deadline(None):
        assert carry_deadline(remaining) is remaining


def test_a_carried_function_keeps_its_name_and_arguments():
    """It passes on what it is given, and what is raised."""

    def divide(a, /, *, by):
        return a / by

    with deadline(5.0):
        carried = carry_deadline(divide)
    assert (carried.__name__, carried(6, by=3)) == ("divide", 2.0)
    with pytest.raises(ZeroDivisionError):
        carried(1, by=0)


@pytest.mark.parametrize("given", [None, 5, (number for number in [1]), lambda: (yield)])
def test_what_cannot_carry_a_deadline_is_refused(given):
    """Generator functions among it: their body runs later."""
    with pytest.raises(TypeError, match="carry_deadline needs a function or coroutine function, not "):
        carry_deadline(given)


def test_a_block_whose_end_was_prevented_can_be_closed():
    """As a call does where a signal handler raises before the end of its own has begun."""
    bound = deadline(5.0)
    bound.__enter__()
    assert remaining() is not None
    bound.close()
    assert remaining() is None


# -- timeouts of a client's call


def test_the_timeout_of_a_call_is_known_inside_it():
    """A nearer deadline, inside or around it, replaces it; work that is carried elsewhere keeps it."""
    assert nearest_call_timeout() is None
    with call_timeout(5.0):
        assert nearest_call_timeout() == 5.0
        carried = carry_deadline(nearest_call_timeout)
        with deadline(1.0):
            assert nearest_call_timeout() is None
    assert carried() == 5.0
    with deadline(1.0), call_timeout(5.0):
        assert nearest_call_timeout() is None
