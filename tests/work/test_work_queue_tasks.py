"""A queue of keys for tasks of asyncio and trio: waiters are woken, in virtual time, also if others are cancelled."""

import asyncio
from itertools import count

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from abate.testing import VirtualClock
from abate.work import AsyncWorkQueue, ShutDown, work_queue

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])


class Tasks:
    """Tasks of either loop that run together; each is named by its place, and can be cancelled."""

    def __init__(self, loop):
        self.loop, self.scopes = loop, {}

    def run(self, main):
        """Run main(self) to its end, and all that it has started, in virtual time."""
        with VirtualClock() as clock:
            self.clock = clock
            if self.loop == "asyncio":
                asyncio.run(self._in_asyncio(main))
            else:
                trio.run(self._in_trio, main)

    async def _in_asyncio(self, main):
        async with asyncio.TaskGroup() as self.group:
            await main(self)

    async def _in_trio(self, main):
        async with trio.open_nursery() as self.group:
            await main(self)

    async def start(self, name, function, *args, **kwargs):
        """Start a task, and let it run until it waits."""
        if self.loop == "asyncio":
            self.scopes[name] = self.group.create_task(function(*args, **kwargs))
        else:

            async def scoped():
                with scope:
                    await function(*args, **kwargs)

            scope = self.scopes[name] = trio.CancelScope()
            self.group.start_soon(scoped)
        await self.pause()

    def cancel(self, name):
        self.scopes[name].cancel()

    async def pause(self):
        """Let every other task run until it waits; time stands still meanwhile."""
        for _ in range(10):
            await (asyncio.sleep(0) if self.loop == "asyncio" else trio.lowlevel.checkpoint())

    async def in_thread(self, function, *args):
        if self.loop == "asyncio":
            return await asyncio.to_thread(function, *args)
        return await trio.to_thread.run_sync(function, *args)


class Getters:
    """Tasks that each get a key and note when."""

    def __init__(self, tasks, keys):
        self.tasks, self.keys, self.got = tasks, keys, []

    async def start(self, name, timeout=None):
        await self.tasks.start(name, self._get, name, timeout)

    async def _get(self, name, timeout):
        try:
            key = await self.keys.get(timeout)
        except (TimeoutError, ShutDown) as error:
            key = type(error)
        self.got.append((name, key, self.tasks.clock.now()))


@LOOPS
def test_a_task_waits_for_what_is_to_come(loop):
    """Each key at its instant, and a timeout at its own."""

    async def main(tasks):
        keys = AsyncWorkQueue()
        getters = Getters(tasks, keys)
        await getters.start("impatient", 1.0)
        await getters.start("first")
        await getters.start("second")
        keys.add_after("a", 5.0)
        keys.add_after("b", 2.0)
        await tasks.clock.asleep(10.0)
        assert getters.got[0] == ("impatient", TimeoutError, 1.0)
        assert sorted((key, now) for _, key, now in getters.got[1:]) == [("a", 5.0), ("b", 2.0)]
        with pytest.raises(TimeoutError, match="no key within 0 s"):
            await keys.get(timeout=0)

    Tasks(loop).run(main)


@LOOPS
def test_of_several_that_come_due_together_each_is_delivered_then(loop):
    """To tasks that stood in line before, though some of them gave up."""

    async def main(tasks):
        keys = AsyncWorkQueue()
        getters = Getters(tasks, keys)
        for n in range(6):
            await getters.start(n, 1.0 if n < 3 else None)
        for key in "abc":
            keys.add_after(key, 5.0)
        await tasks.clock.asleep(6.0)
        assert [end for _, end, _ in getters.got[:3]] == [TimeoutError] * 3
        assert sorted((key, now) for _, key, now in getters.got[3:]) == [("a", 5.0), ("b", 5.0), ("c", 5.0)]

    Tasks(loop).run(main)


@LOOPS
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("how", ["add", "put", "add_after", "done", "shutdown"])
def test_a_task_that_waits_is_woken(loop, elsewhere, how):
    """From its own thread and from another."""

    async def main(tasks):
        keys = AsyncWorkQueue(clock=tasks.clock)
        getters = Getters(tasks, keys)
        if how == "done":
            keys.add("a")
            await keys.get()
            keys.add("a")
        await getters.start("waiting")
        call = {
            "add": lambda: keys.add("a"),
            "add_after": lambda: keys.add_after("a", 2.0),
            "done": lambda: keys.done("a"),
            "shutdown": keys.shutdown,
        }.get(how)
        if call is None:
            await keys.put("a")
        elif elsewhere:
            await tasks.in_thread(call)
        else:
            call()
        while not getters.got:
            await tasks.clock.asleep(2.0 if how == "add_after" else 0.0)
        assert getters.got[0][1] == (ShutDown if how == "shutdown" else "a")

    Tasks(loop).run(main)


@LOOPS
def test_a_task_that_is_cancelled_passes_on_what_it_was_woken_for(loop):
    """A key, or the time of one that is to come."""

    async def main(tasks):
        keys = AsyncWorkQueue()
        getters = Getters(tasks, keys)
        await getters.start("cancelled")
        await getters.start("next")
        keys.add("a")  # it has rung for the first
        tasks.cancel("cancelled")
        await tasks.pause()
        # in trio, a task that was woken gets its key before it sees the cancellation
        assert [key for _, key, _ in getters.got] == ["a"]
        await getters.start("watching")
        await getters.start("last")
        keys.add_after("b", 5.0)
        tasks.cancel("watching")
        tasks.cancel("next")
        await tasks.clock.asleep(6.0)
        assert getters.got[1:] == [("last", "b", 5.0)]

    Tasks(loop).run(main)


@LOOPS
def test_a_cancelled_put_or_drain_leaves_nothing_behind(loop):
    """It wakes no waiter, and its key is not added."""

    async def main(tasks):
        keys = AsyncWorkQueue(capacity=1)
        keys.add("a")
        await tasks.start("put", keys.put, "b")
        assert len(keys._watchers) == 1
        tasks.cancel("put")
        await tasks.pause()
        assert keys._watchers == []
        await tasks.start("drain", keys.drain)
        assert len(keys._watchers) == 1
        tasks.cancel("drain")
        await tasks.pause()
        assert keys._watchers == []
        assert await keys.get() == "a"
        assert len(keys) == 0

    Tasks(loop).run(main)


@LOOPS
def test_a_task_waits_for_room_and_for_the_end(loop):
    """As a thread does."""

    async def main(tasks):
        keys = AsyncWorkQueue(capacity=1)
        with pytest.raises(TypeError, match="a key must not be None"):
            await keys.put(None)
        await keys.put("a")
        with pytest.raises(TimeoutError, match=r"the queue was full for 3.0 s"):
            await keys.put("b", timeout=3.0)
        assert tasks.clock.now() == 3.0
        await tasks.start("put", keys.put, "b")
        assert await keys.get() == "a"
        await tasks.pause()
        assert len(keys) == 1
        with pytest.raises(TimeoutError, match=r"1 keys wait and 1 are in hand after 2.0 s"):
            await keys.drain(timeout=2.0)
        assert tasks.clock.now() == 5.0
        await tasks.start("drain", keys.drain)
        keys.done("a")
        await tasks.pause()
        assert len(keys._watchers) == 1
        keys.done(await keys.get())
        await tasks.pause()
        assert keys._watchers == []
        await keys.drain(timeout=0.0)

    Tasks(loop).run(main)


def run(loop, main):
    """Run main() in real time."""
    asyncio.run(main()) if loop == "asyncio" else trio.run(main)


@LOOPS
def test_a_clock_that_stands_still_ends_no_wait_late_in_a_task(loop):
    """As in a thread."""

    async def main():
        keys = AsyncWorkQueue(capacity=1, clock=lambda: 0.0)
        with pytest.raises(TimeoutError):
            await keys.get(timeout=0.001)
        keys.add_after("a", 0.001)
        with pytest.raises(TimeoutError):
            await keys.put("b", timeout=0.001)
        assert await keys.get(timeout=20.0) == "a"
        with pytest.raises(TimeoutError):
            await keys.drain(timeout=0.001)

    run(loop, main)


@LOOPS
@pytest.mark.parametrize("method", ["get", "put"])
def test_who_never_waits_lets_others_run(loop, method):
    """A worker that finds a key each time, or a producer that finds room."""

    async def main(tasks):
        keys, ran = AsyncWorkQueue(), []

        async def other():
            ran.append(True)

        async def greedy():
            for n in range(2 * work_queue.YIELD_EVERY):  # trio may go on with the same task once more
                if method == "get":
                    keys.add(n)
                    keys.done(await keys.get())
                else:
                    await keys.put(n)
            assert ran

        tasks.group.create_task(other()) if loop == "asyncio" else tasks.group.start_soon(other)
        await greedy()

    Tasks(loop).run(main)


@LOOPS
def test_who_is_cancelled_while_others_run_has_no_key(loop):
    """A key that is ready stays so until a worker really gets it."""

    async def main(tasks):
        keys, got = AsyncWorkQueue(), []

        async def worker():
            while True:
                got.append(await keys.get())

        for n in range(work_queue.YIELD_EVERY):
            keys.add(n)
        if loop == "asyncio":
            task = tasks.group.create_task(worker())
            await asyncio.sleep(0)
            task.cancel()
        else:
            with trio.CancelScope() as scope:
                scope.cancel()
                await worker()
        await tasks.pause()
        assert got == list(range(work_queue.YIELD_EVERY - 1))
        assert keys.take(9) == [work_queue.YIELD_EVERY - 1]

    Tasks(loop).run(main)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), st.sampled_from([None, 0.5, 1.0, 2.0])),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("add"), st.sampled_from("abcd")),
        st.tuples(st.just("add_after"), st.tuples(st.sampled_from("abcd"), st.sampled_from([0.25, 1.0, 1.0, 3.0]))),
        st.tuples(st.just("done"), st.none()),
        st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.5, 1.0])),
    ),
    max_size=25,
)


@LOOPS
@settings(deadline=None, max_examples=80)
@given(steps=STEPS)
def test_no_getter_waits_while_a_key_is_ready(loop, steps):
    """With waiters that come, give up or are cancelled, and keys that come due, every key is delivered."""

    async def main(tasks):
        keys = AsyncWorkQueue()
        getters = Getters(tasks, keys)
        names, held = count(), []
        for step, what in steps:
            if step == "get":
                await getters.start(next(names), what)
            elif step == "cancel" and what in tasks.scopes:
                tasks.cancel(what)
            elif step == "add":
                keys.add(what)
            elif step == "add_after":
                keys.add_after(*what)
            elif step == "done":
                held = [key for _, key, _ in getters.got if isinstance(key, str) and key in keys._keys.in_hand]
                if held:
                    keys.done(held[0])
            elif step == "sleep":
                await tasks.clock.asleep(what)
                await tasks.pause()
                assert not (keys._getters and len(keys))
        await tasks.clock.asleep(10.0)
        await tasks.pause()
        assert not (keys._getters and (len(keys) or keys.delayed))
        for key in list(keys._keys.in_hand):
            keys.done(key)
        await tasks.pause()
        assert not (keys._getters and len(keys))
        for name in list(tasks.scopes):
            tasks.cancel(name)

    Tasks(loop).run(main)
