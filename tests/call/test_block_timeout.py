"""Async blocks are cut off when their time is over, as `acall` is: under asyncio and trio, on both clocks."""

import asyncio
import gc
import subprocess
import sys
import weakref

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import AttemptTimeout, Policy
from abate import clock as clocks
from abate.testing import VirtualClock
from tests.event_loops import RUNNERS, in_both_loops


def policy(**settings):
    return Policy(**{"on": ConnectionError, "name": "orders", "backoff": [0.0], **settings})


async def by_call(given, body):
    return await given.acall(body)


async def by_block(given, body):
    async for attempt in given.attempts():
        with attempt:
            result = await body()
    return result


FORMS = {"acall": by_call, "block": by_block}


def made(run, form, given, durations):
    """Make a call whose attempts take so long in virtual time: its answer or report, and the instants they began."""
    began, left = [], list(durations)

    async def main():
        with VirtualClock() as clock:

            async def body():
                began.append(clock.now())
                await clock.asleep(left.pop(0))
                return "fine"

            try:
                return await FORMS[form](given, body), began, clock.now()
            except AttemptTimeout as error:
                return abate.report(error), began, clock.now()

    return run(main)


@in_both_loops
@pytest.mark.parametrize("form", FORMS)
def test_an_attempt_is_cut_off_and_retried(run, form):
    """The first takes too long, the second answers."""
    assert made(run, form, policy(attempt_timeout=1.0), [5.0, 0.5]) == ("fine", [0.0, 1.0], 1.5)


@in_both_loops
@pytest.mark.parametrize("form", FORMS)
def test_a_call_is_cut_off_at_its_timeout(run, form):
    """However much time its attempt would have."""
    report, began, now = made(run, form, policy(timeout=2.0, attempt_timeout=1.5), [5.0, 5.0, 5.0])
    assert (report.reason, report.attempts, began, now) == ("deadline", 2, [0.0, 1.5], 2.0)


# quarters of seconds add up without rounding
quarters = st.integers(1, 20).map(lambda count: count / 4)


@settings(max_examples=50)
@given(
    st.none() | quarters,
    st.none() | quarters,
    st.lists(quarters, min_size=4, max_size=4),
    st.sampled_from(sorted(RUNNERS)),
)
def test_a_block_does_what_a_call_does(timeout, attempt_timeout, durations, loop):
    """The same answer or report, the same attempts at the same instants."""
    given_ = policy(timeout=timeout, attempt_timeout=attempt_timeout, max_attempts=4, budget=abate.Budget.unlimited())
    call, block = (made(RUNNERS[loop], form, given_, durations) for form in FORMS)
    assert call == block


def test_the_machines_clock_cuts_as_well():
    """Without a virtual clock."""
    report = None

    async def main():
        async for attempt in policy(attempt_timeout=0.01, max_attempts=2).attempts():
            with attempt:
                await asyncio.sleep(3600.0)

    with pytest.raises(AttemptTimeout) as caught:
        asyncio.run(main())
    report = abate.report(caught.value)
    assert (report.reason, report.attempts) == ("attempts", 2)


def test_a_cut_leaves_the_task_uncancelled():
    """What comes after the block is not cancelled by what was cut off inside it."""

    async def main():
        task = asyncio.current_task()
        with VirtualClock() as clock:
            async for attempt in policy(attempt_timeout=1.0).attempts():
                with attempt:
                    if attempt.number < 3:
                        await clock.asleep(5.0)
                assert task.cancelling() == 0
            await asyncio.sleep(0)
            async with asyncio.timeout(3600.0):
                await asyncio.sleep(0)

    asyncio.run(main())


@pytest.mark.parametrize("order", ["cut first", "cancelled first"])
def test_a_cancellation_from_outside_at_the_same_time_passes(order):
    """The task was cancelled and is cancelled; the block does not take it for its own."""

    async def main():
        reached = []

        async def body():
            async for attempt in policy(attempt_timeout=1.0).attempts():
                with attempt:
                    reached.append(attempt.number)
                    await clocks.current().asleep(5.0)

        with VirtualClock() as clock:
            task = asyncio.create_task(body())
            await asyncio.sleep(0)

            def cancel():
                task.cancel()

            clock.at(1.0 if order == "cut first" else 0.999, cancel)
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (reached, task.cancelled()) == ([1], True)

    asyncio.run(main())


def test_an_outer_cancel_scope_of_trio_passes():
    """It is not the block's own: no attempt follows."""
    reached = []

    async def main():
        with VirtualClock() as clock, trio.CancelScope() as scope:
            clock.at(1.0, scope.cancel)
            async for attempt in policy(attempt_timeout=2.0).attempts():
                with attempt:
                    reached.append(attempt.number)
                    await clock.asleep(5.0)
        return scope.cancelled_caught

    assert trio.run(main)
    assert reached == [1]


def test_of_a_group_in_trio_the_rest_passes():
    """Where the cut ends one task, and another asks the program to end, that is what comes out."""

    async def main():
        with VirtualClock() as clock:

            async def ends():
                try:
                    await clock.asleep(5.0)
                finally:
                    raise KeyboardInterrupt

            async for attempt in policy(attempt_timeout=1.0).attempts():
                with attempt:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(ends)
                        nursery.start_soon(clock.asleep, 5.0)

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main)
    assert [type(error) for error in caught.value.exceptions] == [KeyboardInterrupt]


@in_both_loops
def test_an_error_that_the_body_makes_of_its_cut_is_that_error(run):
    """As in a call: what comes out of the body decides."""

    async def main():
        with VirtualClock() as clock:
            numbers = []
            async for attempt in policy(attempt_timeout=1.0, on=OSError).attempts():
                with attempt:
                    numbers.append(attempt.number)
                    try:
                        await clock.asleep(5.0 if attempt.number == 1 else 0.0)
                    except BaseException as error:
                        raise OSError("closed") from error
            return numbers

    assert run(main) == [1, 2]


@in_both_loops
def test_a_body_in_time_is_not_cut_off_later(run):
    """Its timer ends with it."""

    async def main():
        with VirtualClock() as clock:
            async for attempt in policy(attempt_timeout=1.0).attempts():
                with attempt:
                    await clock.asleep(0.5)
            await clock.asleep(10.0)
            return clock.now()

    assert run(main) == 10.5


def test_a_plain_loop_is_not_cut_off():
    """In a thread nothing can be: clients inside see the deadline."""
    with VirtualClock() as clock:
        for attempt in policy(attempt_timeout=1.0).attempts():
            with attempt:
                assert abate.remaining() == 1.0
                clock.sleep(5.0)
        assert clock.now() == 5.0


def test_the_errors_of_cut_attempts_are_freed_at_once():
    """Neither the block nor its attempts hold on to them."""
    seen = []

    async def main():
        with VirtualClock() as clock:
            try:
                async for attempt in policy(attempt_timeout=1.0, max_attempts=2).attempts():
                    with attempt:
                        await clock.asleep(5.0)
            except AttemptTimeout as error:
                seen.append(weakref.ref(error))

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main())
        assert [reference() for reference in seen] == [None]
    finally:
        gc.enable()


def test_outside_of_an_event_loop_a_bounded_async_block_says_so():
    """There is nothing to cut off; the deadline does not stay behind."""
    attempts = policy(attempt_timeout=1.0).attempts()
    coroutine = attempts.__anext__()
    with pytest.raises(StopIteration) as made_:
        coroutine.send(None)
    with pytest.raises(RuntimeError), made_.value.value:
        pytest.fail("entered")
    assert abate.remaining() is None


def test_blocks_are_cut_off_by_an_optimized_interpreter_too():
    """Under ``python -O`` no assert is run."""
    program = (
        "import abate, asyncio\n"
        "async def main():\n"
        "    async for attempt in abate.Policy(on=OSError, attempt_timeout=0.01).attempts():\n"
        "        with attempt: await asyncio.sleep(60)\n"
        "try: asyncio.run(main())\n"
        "except TimeoutError: print('cut off')\n"
    )
    ran = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, timeout=50)
    assert ran.stdout == "cut off\n", ran.stderr
