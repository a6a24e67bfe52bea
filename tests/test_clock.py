"""Clocks: whose time rules here, what `clock=` may be, and waiting on the machine's clock in both event loops."""

import asyncio
import contextlib
import contextvars
import itertools
import subprocess
import sys
import threading
import time
import types

import pytest
import trio
import trio.testing

import abate
from abate import clock as clocks
from abate.clock import MACHINE, MachineClock, as_clock
from abate.errors import AttemptTimeout
from abate.testing import Script, VirtualClock
from tests.event_loops import in_both_loops

CANCELLED = (asyncio.CancelledError, trio.Cancelled)


# -- whose time it is


def test_the_machines_clock_rules_unless_another_was_entered():
    """Entering and leaving nest."""
    outer, inner = VirtualClock(), VirtualClock()
    assert (clocks.current(), clocks.entered_clock()) == (MACHINE, None)
    first = clocks.enter(outer)
    assert (clocks.current(), clocks.entered_clock()) == (outer, outer)
    second = clocks.enter(inner)
    assert (clocks.current(), clocks.entered_clock()) == (inner, inner)
    clocks.leave(second)
    assert (clocks.current(), clocks.entered_clock()) == (outer, outer)
    clocks.leave(first)
    assert (clocks.current(), clocks.entered_clock()) == (MACHINE, None)


def test_a_clock_is_entered_for_one_context():
    """Neither the context around nor another thread sees it; a context copied from this one does."""
    clock = VirtualClock()
    seen = []
    contextvars.copy_context().run(clocks.enter, clock)
    assert clocks.current() is MACHINE
    with clock:
        thread = threading.Thread(target=lambda: seen.append(clocks.current()))
        thread.start()
        thread.join()
        seen.append(contextvars.copy_context().run(clocks.current))
    assert seen == [MACHINE, clock]


def test_a_process_that_never_enters_one_never_looks():
    """The switch that hot paths read is turned by the first clock entered, and stays; who asked is told once."""
    code = """
from abate import clock
from abate.testing import VirtualClock
clock.before_first_virtual_clock.append(lambda: print("told"))
print(clock.ever_used.virtual, clock.ever_used.off, clock.current() is clock.MACHINE, clock.entered_clock())
for _ in range(2):
    with VirtualClock(): pass
print(clock.ever_used.virtual, clock.ever_used.off, clock.current() is clock.MACHINE, clock.entered_clock())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False False True None", "told", "True False True None"]


# -- what `clock=` may be


def test_a_clock_is_taken_as_it_is():
    """The machine's, a virtual one, or none: the context's."""
    virtual = VirtualClock()
    assert as_clock(virtual) is virtual
    assert as_clock(MACHINE) is MACHINE
    assert as_clock(None) is None


def test_a_function_tells_the_time():
    """A plain function is read as the clock; waiting and the date are the machine's."""
    reading = as_clock(iter([3.0, 4.5]).__next__)
    assert [reading.now(), reading.now()] == [3.0, 4.5]
    assert before_and_after(reading.wall, time.time)
    assert reading.sleep(0.0) is None


@pytest.mark.parametrize("nonsense", [3.0, "now", [], VirtualClock, MachineClock, float], ids=repr)
def test_what_is_no_clock_is_refused(nonsense):
    """Neither a number nor a class whose instance was meant."""
    with pytest.raises(TypeError, match=r"^clock must have now\(\) and sleep\(\), or be a function .*, not ") as caught:
        as_clock(nonsense)
    assert str(caught.value).endswith(repr(nonsense))


# -- the machine's clock


def before_and_after(read, reference):
    """Does `read` tell the same time as `reference`?"""
    before, seen, after = reference(), read(), reference()
    return before <= seen <= after


def test_the_machines_clock_is_the_machines():
    """It never goes back, knows the date, and waits in the thread."""
    assert before_and_after(MACHINE.now, time.monotonic)
    assert before_and_after(MACHINE.wall, time.time)
    began = time.monotonic()
    MACHINE.sleep(0.001)
    assert time.monotonic() >= began + 0.001


@in_both_loops
@pytest.mark.parametrize("seconds", [0.0, -5.0, 0.001])
def test_waiting_lets_others_run(run, seconds):
    """Also where there is nothing to wait for, which would otherwise starve the other tasks."""
    order = []

    async def other():
        order.append("other")

    async def main():
        if clocks.in_trio():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other)
                await MACHINE.asleep(seconds)
                # trio runs the tasks of a pass in any order: the next pass comes after all of this one
                await MACHINE.asleep(seconds)
                order.append("waiter")
        else:
            task = asyncio.create_task(other())
            await MACHINE.asleep(seconds)
            order.append("waiter")
            await task

    run(main)
    assert order == ["other", "waiter"]


def test_a_wait_takes_its_seconds_and_no_others():
    """Told by trio's own clock for tests: nothing for what is over, the seconds for what is to come."""

    async def main():
        instants = [trio.current_time()]
        for seconds in (0.0, -5.0, 0.25, 3600.0):
            await MACHINE.asleep(seconds)
            instants.append(trio.current_time())
        return [later - earlier for earlier, later in itertools.pairwise(instants)]

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == [0.0, 0.0, 0.25, 3600.0]


def test_which_loop_runs_is_known():
    """In trio and only there: not in asyncio, not in a plain thread."""

    async def inside():
        return clocks.in_trio()

    assert (clocks.in_trio(), asyncio.run(inside()), trio.run(inside)) == (False, False, True)


@pytest.mark.parametrize("half", [{}, {"lowlevel": types.ModuleType("trio.lowlevel")}], ids=["empty", "no function"])
def test_a_trio_that_another_thread_is_importing_runs_nothing_yet(monkeypatch, half):
    """A module is in `sys.modules` before it has its attributes."""
    module = types.ModuleType("trio")
    vars(module).update(half)
    monkeypatch.setitem(sys.modules, "trio", module)

    async def inside():
        await MACHINE.asleep(0.0)
        async with MACHINE.within(60.0):
            return clocks.in_trio(), clocks.in_loop()

    assert (clocks.in_trio(), clocks.in_loop()) == (False, False)
    assert asyncio.run(inside()) == (False, True)
    flaky = abate.testing.Script(OSError(), "fine")
    assert asyncio.run(abate.Policy(on=OSError, backoff=[0.0]).acall(flaky.acall)) == "fine"


def test_an_asyncio_that_another_thread_is_importing_runs_nothing_yet(monkeypatch):
    """The same for asyncio, which plain programs import late."""
    monkeypatch.setitem(sys.modules, "asyncio", types.ModuleType("asyncio"))
    assert not clocks.in_loop()
    assert abate.Policy(on=OSError, backoff=[0.0]).call(abate.testing.Script(OSError(), "fine")) == "fine"


def test_trio_is_not_needed():
    """abate does not import trio by itself: waiting and time limits work under asyncio alone."""
    code = """
import asyncio, sys
from abate.clock import MACHINE
async def main():
    await MACHINE.asleep(0.0)
    try:
        async with MACHINE.within(0.0):
            await MACHINE.asleep(60.0)
    except TimeoutError as error:
        print(type(error).__name__, "trio" in sys.modules)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["AttemptTimeout", "False"]


# -- cutting short


@in_both_loops
def test_a_block_that_takes_too_long_is_cut(run):
    """It ends with AttemptTimeout, which says how long it might have taken, and stands alone in the traceback."""

    async def main():
        async with MACHINE.within(0.001):
            await MACHINE.asleep(3600.0)

    with pytest.raises(AttemptTimeout) as caught:
        run(main)
    assert caught.value.seconds == 0.001
    assert caught.value.__suppress_context__


@in_both_loops
@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_a_block_that_ends_in_time_is_left_alone(run, seconds):
    """Its result passes; with no time at all it still ends if it never waits."""

    async def main():
        async with MACHINE.within(seconds):
            return "fine"

    assert run(main) == "fine"


@in_both_loops
@pytest.mark.parametrize("error", [TimeoutError("mine"), KeyError("mine"), AttemptTimeout(9.0)], ids=repr)
def test_an_error_of_the_block_passes_unchanged(run, error):
    """A timeout raised inside is not taken for the cut."""

    async def main():
        async with MACHINE.within(3600.0):
            raise error

    with pytest.raises(type(error)) as caught:
        run(main)
    assert caught.value is error


@in_both_loops
@pytest.mark.parametrize("error", [TimeoutError("mine"), KeyError("mine")], ids=repr)
def test_an_error_raised_while_being_cut_passes_unchanged(run, error):
    """A block that answers the cut with an error of its own is heard."""

    async def main():
        async with MACHINE.within(0.0):
            try:
                await MACHINE.asleep(3600.0)
            except CANCELLED:
                raise error from None

    with pytest.raises(type(error)) as caught:
        run(main)
    assert caught.value is error


@in_both_loops
def test_the_cut_that_came_first_counts(run):
    """One block inside another: whichever ran out says so."""

    async def nested(outer, inner):
        async with MACHINE.within(outer), MACHINE.within(inner):
            await MACHINE.asleep(3600.0)

    for outer, inner in [(0.0, 3600.0), (3600.0, 0.0)]:
        with pytest.raises(AttemptTimeout) as caught:
            run(lambda outer=outer, inner=inner: nested(outer, inner))
        assert caught.value.seconds == 0.0


@in_both_loops
def test_a_cancellation_from_outside_passes(run):
    """A cancellation from outside is not taken for the time limit: the task ends as cancelled."""
    seen = []

    async def inside():
        try:
            async with MACHINE.within(3600.0):
                await MACHINE.asleep(3600.0)
        except BaseException as error:
            seen.append(error)
            raise

    async def main():
        if clocks.in_trio():
            with trio.CancelScope() as scope:
                scope.cancel()
                await inside()
            return scope.cancelled_caught
        task = asyncio.create_task(inside())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert run(main) is True
    assert isinstance(seen[0], CANCELLED)


@in_both_loops
def test_the_task_goes_on_after_a_cut(run):
    """Nothing of the cut is left in the task: it can wait again."""

    async def main():
        with pytest.raises(AttemptTimeout):
            async with MACHINE.within(0.0):
                await MACHINE.asleep(3600.0)
        await MACHINE.asleep(0.0)
        return "on"

    assert run(main) == "on"


def test_errors_beside_a_cut_are_kept():
    """Under trio the cut of one task must not swallow what another task of the block raised."""

    async def fail():
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("mine")

    async def main():
        async with MACHINE.within(0.0), trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(trio.sleep_forever)

    with pytest.raises(ExceptionGroup) as caught:
        trio.run(main)
    assert [str(error) for error in caught.value.exceptions] == ["'mine'"]


@in_both_loops
@pytest.mark.parametrize("virtual", [False, True], ids=["machine", "virtual"])
def test_a_bound_can_be_lifted_until_it_has_cut(run, virtual):
    """A block whose bound was lifted in time takes as long as it likes; afterwards it is too late for that."""
    clock = VirtualClock() if virtual else MACHINE

    async def main():
        async with clock.within(0.01) as cut:
            assert cut.lift()
            await clock.asleep(0.05)
        assert not cut.expired()
        async with clock.within(0.01) as cut:
            with pytest.raises(CANCELLED) as cancelled:
                await clock.asleep(60.0)
            assert not cut.lift()
            assert cut.expired()
            if isinstance(cancelled.value, trio.Cancelled):
                await clock.asleep(0.0)

    with pytest.raises(AttemptTimeout) if run is trio.run else contextlib.nullcontext():
        run(main)


@pytest.mark.parametrize(
    "wait",
    [
        lambda: MACHINE.sleep(1e308),
        lambda: abate.Policy(on=OSError, timeout=None, backoff=[1e308]).call(Script(OSError())),
        lambda: [bucket.acquire() for bucket in [abate.TokenBucket(1e-300)] * 2],
    ],
)
def test_a_thread_waits_however_long(wait):
    """Also for longer than the platform's sleep takes at once."""
    ended = threading.Event()

    def waits():
        with contextlib.suppress(Exception):
            wait()
        ended.set()

    threading.Thread(target=waits, daemon=True).start()
    assert not ended.wait(0.2)
