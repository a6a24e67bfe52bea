"""Blocks that hold in a context: deadlines, virtual clocks, the off switch; none of them outlives its `with`."""

import asyncio
import contextvars
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import clock as clocks
from abate import scopes
from abate.call import off_switch
from abate.call.layers import flag_exhausted, watch_for_exhausted
from abate.scopes import Scope, Scopes
from abate.testing import VirtualClock, off
from tests.event_loops import in_both_loops

BLOCKS = {
    "deadline": (lambda: abate.deadline(60.0), lambda: abate.remaining() is not None),
    "clock": (VirtualClock, lambda: clocks.entered_clock() is not None),
    "off": (off, off_switch.is_off),
}
each_block = pytest.mark.parametrize(("block", "holds"), BLOCKS.values(), ids=BLOCKS)


@each_block
@in_both_loops
def test_a_task_is_bound_while_the_block_is_open_and_not_after(block, holds, run):
    """A task that was started inside the block and outlives it is outside as soon as the block ends."""
    seen = []

    async def main():
        on_trio = run is trio.run
        left, done = (trio.Event(), trio.Event()) if on_trio else (asyncio.Event(), asyncio.Event())
        started = trio.Event() if on_trio else asyncio.Event()

        async def poller():
            seen.append(holds())
            started.set()
            await left.wait()
            seen.append(holds())
            with block():
                seen.append(holds())
            seen.append(holds())
            done.set()

        async def start(begin):
            with block():
                begin(poller)
                await started.wait()
            left.set()
            await done.wait()

        if on_trio:
            async with trio.open_nursery() as nursery:
                await start(nursery.start_soon)
        else:
            tasks = []
            await start(lambda function: tasks.append(asyncio.ensure_future(function())))

    run(main)
    assert seen == [True, False, True, False]
    assert not holds()


@each_block
def test_a_copied_context_is_bound_wherever_it_runs_and_as_long(block, holds):
    """As `asyncio.to_thread` carries it; a thread pool by itself carries nothing, on any build."""
    with ThreadPoolExecutor(1) as pool:
        with block():
            carried = contextvars.copy_context()
            assert pool.submit(carried.run, holds).result()
            assert not pool.submit(holds).result()
        assert not pool.submit(carried.run, holds).result()


SHARING = {
    "clock": (VirtualClock, clocks.shared_in_thread, clocks.adopt_shared, clocks.entered_clock),
    "off": (off, off_switch.off_shared_in_thread, off_switch.adopt_shared_off, lambda: off_switch.is_off() or None),
}
each_shared_block = pytest.mark.parametrize(("block", "share", "adopt", "seen"), SHARING.values(), ids=SHARING)


@each_shared_block
def test_a_shared_block_holds_in_contexts_that_were_copied_before(block, share, adopt, seen):
    """Until it ends, and in this thread only: other threads are other programs' work."""
    before = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        with block():
            assert before.run(seen) is None
            with share():
                assert before.run(seen) is not None
                assert before.run(seen) == seen()
                assert pool.submit(before.copy().run, seen).result() is None
            assert before.run(seen) is None
        assert seen() is None


@each_shared_block
def test_a_context_can_adopt_a_shared_block_and_carry_it(block, share, adopt, seen):
    """A copy of it holds in other threads as well, until the block ends."""
    before = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        with block(), share():
            before.run(adopt)
            assert pool.submit(before.copy().run, seen).result() == seen()
        assert before.run(seen) is None
        before.run(adopt)
        assert before.run(seen) is None


@each_shared_block
def test_threads_share_blocks_of_their_own(block, share, adopt, seen):
    """Tests may run in threads side by side: each has its own clock, however they overlap."""
    outside, steps = contextvars.copy_context(), [threading.Event(), threading.Event()]
    found = []

    def other():
        with block(), share():
            steps[0].set()
            steps[1].wait(30.0)
            found.append(contextvars.Context().run(seen) == seen() is not None)

    with block(), share():
        thread = threading.Thread(target=other)
        thread.start()
        assert steps[0].wait(30.0)
        found.append(outside.run(seen) == seen() is not None)
    steps[1].set()
    thread.join(30.0)
    assert found == [True, True]
    assert outside.run(seen) is None


def test_a_block_of_ones_own_wins_over_the_shared_one():
    """Sharing fills a gap; it takes nothing away, and what was shared before is shared again afterwards."""
    before = contextvars.copy_context()

    def inside(clock):
        with VirtualClock() as own:
            clocks.adopt_shared()
            assert clocks.entered_clock() is own
        assert clocks.entered_clock() is clock

    with VirtualClock() as outer, clocks.shared_in_thread():
        with VirtualClock() as inner, clocks.shared_in_thread():
            before.run(inside, inner)
        before.run(inside, outer)


@each_block
def test_a_thread_that_is_started_inside_is_not_bound(block, holds):
    """Where Python starts threads with a copy of the context as well."""
    seen = []
    with block():
        thread = threading.Thread(target=lambda: seen.append(holds()))
        thread.start()
        thread.join()
    assert seen == [False]


class Inheriting(threading.Thread):
    """A thread that starts with a copy of the context, as on free-threaded builds."""

    def __init__(self, target, context=None):
        super().__init__()
        self._context = context
        self.target = target

    def start(self):
        if self._context is None:
            self._context = contextvars.copy_context()
        super().start()

    def run(self):
        if sys.version_info >= (3, 14):
            self.target()  # the thread runs in its context by itself
        else:
            self._context.run(self.target)


def seen_by(holds):
    """What code of a thread sees: by itself, in a copy of its context, and in an event loop of its own."""
    seen = []

    async def main():
        seen.append(holds())
        seen.append(await asyncio.to_thread(holds))
        seen.append(await asyncio.create_task(asyncio.to_thread(holds)))

    def look():
        seen.append(holds())
        seen.append(contextvars.copy_context().run(holds))
        asyncio.run(main())

    return look, seen


def run_thread(thread):
    thread.start()
    thread.join()


@each_block
def test_an_event_loop_in_a_thread_that_is_started_inside_is_not_bound(block, holds):
    """Nor are its tasks and their threads, on any build; a context that is carried there binds all of them."""
    look, seen = seen_by(holds)
    with block():
        run_thread(threading.Thread(target=look))
        assert seen == [False] * 5
        run_thread(threading.Thread(target=contextvars.copy_context().run, args=(look,)))
    assert seen == [False] * 5 + [True] * 5


@each_block
def test_where_threads_inherit_they_start_outside(block, holds, monkeypatch):
    """A context that a thread inherits has no blocks in it; one that it is given, or runs in besides, has."""
    monkeypatch.setattr(Inheriting, "start", scopes.without_scopes(Inheriting.start))
    kept = contextvars.ContextVar("kept")
    look, seen = seen_by(lambda: (kept.get(), holds()))
    kept.set("theirs")
    with block():
        run_thread(Inheriting(look))
        assert seen == [("theirs", False)] * 5
        seen.clear()
        run_thread(Inheriting(look, context=contextvars.copy_context()))
        assert seen == [("theirs", True)] * 5
        seen.clear()
        carried = contextvars.copy_context()
        run_thread(Inheriting(lambda: carried.run(look)))
        assert seen == [("theirs", True)] * 5
        assert holds()


def test_starting_a_thread_twice_is_still_an_error():
    """What Python says about threads that can't be started is what users see."""
    with abate.deadline(60.0):
        thread = threading.Thread(target=int)
        run_thread(thread)
        with pytest.raises(RuntimeError, match="once"):
            thread.start()
        unmade = object.__new__(threading.Thread)
        unmade._initialized = False
        with pytest.raises(RuntimeError, match="__init__"):
            unmade.start()


def test_the_first_block_lets_threads_start_outside(monkeypatch):
    """Until then there is nothing to inherit, and Python's own start is left alone."""
    started = []
    monkeypatch.setattr(threading.Thread, "start", started.append)
    monkeypatch.setattr(scopes._threads, "inherit", True)
    blocks, thread = Scopes("test"), Inheriting(int)
    threading.Thread.start(thread)
    assert thread._context is None
    outer = blocks.enter(Scope())
    once = threading.Thread.start
    threading.Thread.start(thread)
    assert thread._context[blocks._here] is None
    assert blocks.nearest() is outer
    blocks.enter(Scope())
    assert threading.Thread.start is once
    assert started == [thread, thread]


@each_block
def test_a_block_that_is_left_in_another_context_is_over_where_it_was_entered(block, holds):
    """A generator may be closed by another task, a fixture by another context: nothing is raised, nothing stays."""

    def generator():
        with block():
            yield

    here = contextvars.copy_context()
    begun = generator()
    here.run(next, begun)
    assert here.run(holds)
    with block():
        begun.close()
        assert holds()
    assert not here.run(holds)
    assert not holds()


def test_a_watch_that_ends_in_another_context_raises_nothing():
    """As that of a response whose body is closed by another thread, which has a watch of its own."""
    watch = watch_for_exhausted()
    contextvars.copy_context().run(watch.__enter__)
    with watch_for_exhausted() as own:
        watch.__exit__(None, None, None)
        flag_exhausted()
    assert own.exhausted


@each_block
def test_blocks_of_a_generator_and_of_its_caller_may_cross(block, holds):
    """What the caller has entered meanwhile stays when the generator ends."""

    def generator():
        with block():
            yield

    begun = generator()
    next(begun)
    with block():
        begun.close()
        assert holds()
    assert not holds()


def test_one_clock_in_many_tasks_is_left_by_each():
    """Tasks that enter and leave the same clock in turn don't leave each other's block."""
    clock = VirtualClock()
    seen = []

    async def main():
        both, left = asyncio.Event(), asyncio.Event()

        async def first():
            with clock:
                await both.wait()
            seen.append(clocks.entered_clock())
            left.set()

        async def second():
            await asyncio.sleep(0)
            with clock:
                both.set()
                await left.wait()
                seen.append(clocks.entered_clock())
            seen.append(clocks.entered_clock())

        await asyncio.gather(first(), second())

    asyncio.run(main())
    assert seen == [None, clock, None]


def test_tasks_that_start_each_other_gather_nothing():
    """Each is started in the block of the one before, which is over soon: closed blocks are let go."""
    blocks, context = Scopes("test"), contextvars.Context()

    def step():
        scope = blocks.enter(Scope())
        inside = contextvars.copy_context()
        blocks.leave(scope)
        assert scope.outer is None
        return inside

    for _ in range(3):
        context = context.run(step)


@given(st.lists(st.sampled_from(["enter", "leave", "leave any", "copy", "switch"]), max_size=40), st.randoms())
def test_the_nearest_open_block_holds(steps, rng):
    """However blocks are entered, left in any order and context, and contexts copied: as in a model of lists."""
    blocks = Scopes("test")
    contexts, stacks, here = [contextvars.Context()], [[]], 0
    for step in steps:
        context, stack = contexts[here], stacks[here]
        if step == "enter":
            scope = Scope()
            context.run(blocks.enter, scope)
            stack.append(scope)
        elif step == "leave" and stack:
            context.run(blocks.leave, stack[-1])
        elif step == "leave any" and (everywhere := [scope for one in stacks for scope in one]):
            context.run(blocks.leave, rng.choice(everywhere))
        elif step == "copy":
            contexts.append(context.copy())
            stacks.append(list(stack))
        elif step == "switch":
            here = rng.randrange(len(contexts))
        for one, around in zip(contexts, stacks, strict=True):
            around[:] = [scope for scope in around if scope.open]
            assert one.run(blocks.nearest) is (around[-1] if around else None)
