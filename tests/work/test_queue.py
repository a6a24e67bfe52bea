"""Queues of keys for threads and for tasks: who waits is woken, what is added is delivered, and time is virtual."""

import asyncio
import doctest
import random
import threading
import time
from itertools import count

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate.testing import VirtualClock
from abate.work import AsyncWorkQueue, QueueFull, ShutDown, WorkQueue, queue

BOTH = pytest.mark.parametrize("kind", [WorkQueue, AsyncWorkQueue])
LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
STEADY = abate.Backoff(1.0, 60.0, jitter="none")


# -- what does not wait


@BOTH
@pytest.mark.parametrize("method", ["add", "add_after", "add_rate_limited"])
def test_what_is_no_key_or_no_priority_is_refused(kind, method):
    """With an error that names it; nothing has been added, and no failure counted."""
    keys = kind()

    def call(key, priority=0):
        rest = (1.0,) if method == "add_after" else ()
        getattr(keys, method)(key, *rest, priority=priority)

    with pytest.raises(TypeError, match=r"a key must be hashable, not \['a'\]"):
        call(["a"])
    with pytest.raises(TypeError, match="a key must not be None"):
        call(None)
    with pytest.raises(ValueError, match="priority must be a whole number of at least 0, not -1"):
        call("a", -1)
    for wrong in (1.5, "1", True):
        with pytest.raises(TypeError, match="priority must be a whole number"):
            call("a", wrong)
    assert (len(keys), keys.delayed, keys.requeues("a")) == (0, 0, 0)


@BOTH
@pytest.mark.parametrize("seconds", ["1", None, float("nan"), float("inf")])
def test_seconds_are_a_number(kind, seconds):
    """Neither a string, nor NaN or infinity."""
    with pytest.raises((TypeError, ValueError), match="seconds must be a number"):
        kind().add_after("a", seconds)


@BOTH
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 0}, "capacity must be a whole number of at least 1, not 0"),
        ({"capacity": 1.5}, "capacity must be a whole number of at least 1, not 1.5"),
        ({"rate": 0}, "rate must be a number above 0, not 0"),
        ({"rate": "fast"}, "rate must be a number above 0, not 'fast'"),
        ({"burst": 0}, "burst must be a whole number of at least 1, not 0"),
        ({"clock": 5}, "clock must have now"),
    ],
)
def test_a_queue_says_what_it_cannot_be(kind, arguments, message):
    """Each argument by its name."""
    with pytest.raises((TypeError, ValueError), match=message):
        kind(**arguments)


@BOTH
def test_done_is_for_what_is_in_hand(kind):
    """Neither for what nobody has, nor twice."""
    keys = kind()
    keys.add("a")
    with pytest.raises(ValueError, match="'a' is not in hand"):
        keys.done("a")
    assert len(keys) == 1


@BOTH
def test_a_full_queue_refuses_another_key(kind):
    """Those of later are counted too; one that waits already is not another."""
    keys = kind(capacity=2)
    keys.add("a")
    keys.add_after("b", 60.0)
    for refused in (lambda: keys.add("c"), lambda: keys.add_after("c", 1.0), lambda: keys.add_rate_limited("c")):
        with pytest.raises(QueueFull, match="the queue holds 2 keys, and no more"):
            refused()
    keys.add("a")
    keys.add("b")
    assert (len(keys), keys.delayed) == (2, 0)


@BOTH
def test_after_shutdown_nothing_is_taken(kind):
    """Neither now nor later."""
    keys = kind()
    keys.shutdown()
    for refused in (lambda: keys.add("a"), lambda: keys.add_after("a", 1.0), lambda: keys.add_rate_limited("a")):
        with pytest.raises(ShutDown, match="the queue is shut down"):
            refused()


@BOTH
def test_a_key_that_fails_backs_off_by_itself(kind):
    """Until it is forgotten; the rate is for all together."""
    with VirtualClock() as clock:
        keys = kind(backoff=STEADY, rate=0.25, burst=3)
        assert [keys.add_rate_limited(key) for key in "aabb"] == [1.0, 2.0, 1.0, 4.0]
        assert (keys.requeues("a"), keys.delayed, keys.next_due()) == (2, 2, 1.0)
        keys.forget("a")
        assert keys.requeues("a") == 0
        clock.advance(100.0)
        assert keys.add_rate_limited("c") == 1.0
        assert keys.age() == 99.0
        assert kind(backoff=[5.0], rng=random.Random(1)).add_rate_limited("a") == 5.0


def test_the_age_is_that_of_the_oldest_key():
    """Also of one that came due while nobody looked."""
    with VirtualClock() as clock:
        keys = WorkQueue()
        assert keys.age() == 0.0
        keys.add_after("a", 2.0)
        clock.advance(1.0)
        keys.add("b")
        assert (keys.get(), keys.age()) == ("b", 0.0)
        clock.advance(4.0)
        assert (keys.age(), len(keys), keys.delayed, keys.in_hand) == (3.0, 1, 0, 1)


# -- threads, in virtual time


def test_a_thread_waits_for_what_is_to_come():
    """Each key at its instant; of two delays the earlier one counts, and an add does not wait."""
    with VirtualClock() as clock:
        keys = WorkQueue()
        for key, seconds in (("a", 5.0), ("b", 2.0), ("a", 3.0), ("c", 9.0), ("d", 1.0)):
            keys.add_after(key, seconds)
        keys.add("c")
        assert keys.cancel("d")
        assert not keys.cancel("d")
        got = [(keys.get(), clock.now()) for _ in range(3)]
        assert got == [("c", 0.0), ("b", 2.0), ("a", 3.0)]
        assert keys.next_due() is None


def test_a_thread_waits_no_longer_than_it_said():
    """Then it is a TimeoutError, and the key is still to come."""
    with VirtualClock() as clock:
        keys = WorkQueue()
        keys.add_after("a", 5.0)
        with pytest.raises(TimeoutError, match=r"no key within 3 s"):
            keys.get(timeout=3)
        assert clock.now() == 3.0
        assert (keys.get(timeout=3), clock.now()) == ("a", 5.0)
        for wrong in (-1, float("nan"), "1"):
            with pytest.raises((TypeError, ValueError), match="timeout must be a number"):
                keys.get(timeout=wrong)


def test_a_key_that_comes_due_while_in_hand_comes_back_after_it():
    """And to nobody before."""
    with VirtualClock() as clock:
        keys = WorkQueue()
        keys.add("a")
        assert keys.get() == "a"
        keys.add_after("a", 1.0)
        with pytest.raises(TimeoutError):
            keys.get(timeout=2.0)
        keys.done("a")
        assert (keys.get(timeout=0.0), clock.now()) == ("a", 2.0)


def test_a_put_waits_no_longer_than_it_said():
    """And leaves nothing behind."""
    with VirtualClock() as clock:
        keys = WorkQueue(capacity=1)
        keys.put("a", timeout=1.0)
        keys.put("a")
        with pytest.raises(TimeoutError, match=r"the queue has had no room for 3.0 s"):
            keys.put("b", timeout=3.0)
        assert clock.now() == 3.0
        assert keys._watching == []
        with pytest.raises(TypeError, match="a key must not be None"):
            keys.put(None)
        keys.shutdown()
        with pytest.raises(ShutDown):
            keys.put("b")


def test_a_drain_waits_no_longer_than_it_said():
    """It says what is left."""
    with VirtualClock() as clock:
        keys = WorkQueue()
        keys.add("a")
        keys.add("b")
        keys.get()
        with pytest.raises(TimeoutError, match=r"1 keys wait and 1 are in hand after 3.0 s"):
            keys.drain(timeout=3.0)
        assert clock.now() == 3.0
        assert keys._watching == []
        keys.done("a")
        keys.done(keys.get())
        keys.drain(timeout=0.0)


@BOTH
def test_shutdown_delivers_what_is_ready_and_nothing_of_later(kind):
    """What has come due is ready, though nobody has looked."""

    async def rest():
        got = []
        with pytest.raises(ShutDown):
            while True:
                got.append(await keys.get() if kind is AsyncWorkQueue else keys.get())
                keys.done(got[-1])
        return got

    with VirtualClock() as clock:
        keys = kind()
        keys.add("a")
        keys.add_after("due", 1.0)
        keys.add_after("later", 2.0)
        clock.advance(1.5)
        keys.shutdown()
        clock.advance(10.0)
        assert keys.delayed == 0
        assert asyncio.run(rest()) == ["a", "due"]


# -- threads that wait for one another


@pytest.mark.parametrize(
    "wake",
    [
        lambda keys: keys.add("a"),
        lambda keys: keys.add("a", priority=3),
        lambda keys: keys.put("a"),
        lambda keys: keys.add_after("a", 0.0),
        lambda keys: keys.add_after("a", 0.001),
        lambda keys: keys.add_rate_limited("a"),
    ],
)
def test_a_thread_that_waits_is_woken(in_line, wake):
    """By a key, or by one that comes earlier than what it waits for."""
    keys = WorkQueue(backoff=[0.001])
    keys.add_after("later", 3600.0)
    worker = in_line(keys._waiting, keys.get, timeout=1800.0)
    wake(keys)
    assert worker.answer() == "a"


def test_a_thread_that_waits_is_woken_by_done(in_line):
    """Where the key was added meanwhile."""
    keys = WorkQueue()
    keys.add("a")
    keys.get()
    worker = in_line(keys._waiting, keys.get)
    keys.add("a")
    assert len(keys._waiting) == 1
    keys.done("a")
    assert worker.answer() == "a"


def test_one_add_wakes_one(in_line, settled, monkeypatch):
    """The others go on waiting, and do not wake one another."""
    rings = []
    ring = queue.ThreadBell.ring
    monkeypatch.setattr(queue.ThreadBell, "ring", lambda bell: (rings.append(bell), ring(bell)))
    keys = WorkQueue()
    workers = [in_line(keys._waiting, keys.get) for _ in range(4)]
    keys.add("a")
    assert workers[0].answer() == "a"
    keys.add("b")
    assert workers[1].answer() == "b"
    assert len(keys._waiting) == 2
    assert len(rings) == 2
    keys.done("a")
    keys.done("b")
    keys.shutdown()
    for worker in workers[2:]:
        with pytest.raises(ShutDown):
            worker.answer()


def test_those_who_wait_hear_of_the_end(in_line, settled):
    """When what is in hand is done; until then it could come back."""
    keys = WorkQueue()
    keys.add("a")
    keys.get()
    workers = [in_line(keys._waiting, keys.get) for _ in range(3)]
    keys.add("a")
    keys.shutdown()
    settled(lambda: len(keys._waiting) == 3)
    keys.done("a")
    settled(lambda: keys.in_hand == 1)
    settled(lambda: len(keys._waiting) == 2)
    keys.done("a")
    ends = []
    for worker in workers:
        try:
            ends.append(worker.answer())
        except ShutDown:
            ends.append(ShutDown)
    assert sorted(ends, key=str) == sorted(["a", ShutDown, ShutDown], key=str)


def test_a_drain_ends_when_all_is_done(in_line):
    """Not while a key waits, nor while one is in hand."""
    keys = WorkQueue()
    for key in "ab":
        keys.add(key)
    drain = in_line(keys._watching, keys.drain)
    for _ in range(2):
        key = keys.get()
        assert drain.thread.is_alive()
        keys.done(key)
    drain.answer()
    with pytest.raises(ShutDown):
        keys.get()


@pytest.mark.parametrize("room", ["get", "cancel"])
def test_a_put_that_waits_is_woken_by_room(in_line, room):
    """When a key is taken, not only when it is done; or when one of later is cancelled."""
    keys = WorkQueue(capacity=1)
    if room == "get":
        keys.add("a")
    else:
        keys.add_after("a", 3600.0)
    put = in_line(keys._watching, keys.put, "b", timeout=1800.0)
    assert keys.get() == "a" if room == "get" else keys.cancel("a")
    put.answer()
    assert keys.get() == "b"


def test_a_put_that_waits_hears_of_the_end(in_line):
    """It is not added any more."""
    keys = WorkQueue(capacity=1)
    keys.add("a")
    put = in_line(keys._watching, keys.put, "b")
    keys.shutdown()
    with pytest.raises(ShutDown):
        put.answer()
    assert keys._watching == []


class Unsteady(queue.ThreadBell):
    """A bell whose first hearing is broken off, as by Ctrl-C."""

    def wait(self, clock, seconds):
        raise KeyboardInterrupt


def test_what_an_interrupted_thread_was_woken_for_is_for_the_next(in_line, monkeypatch):
    """The key that it would have had wakes another."""
    keys = WorkQueue()

    class Rung(Unsteady):
        def wait(self, clock, seconds):
            worker = in_line(keys._waiting, keys.get)
            keys.add("a")  # rings this one
            assert len(keys._waiting) == 1
            workers.append(worker)
            super().wait(clock, seconds)

    workers = []
    bells = iter([Rung, queue.ThreadBell])
    monkeypatch.setattr(queue, "ThreadBell", lambda: next(bells)())
    with pytest.raises(KeyboardInterrupt):
        keys.get()
    assert workers[0].answer() == "a"


# -- tasks


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
        # trio lets who was woken have its key before the cancellation is seen
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
    """Nobody is woken for it, and its key is not added."""

    async def main(tasks):
        keys = AsyncWorkQueue(capacity=1)
        keys.add("a")
        await tasks.start("put", keys.put, "b")
        assert len(keys._watching) == 1
        tasks.cancel("put")
        await tasks.pause()
        assert keys._watching == []
        await tasks.start("drain", keys.drain)
        assert len(keys._watching) == 1
        tasks.cancel("drain")
        await tasks.pause()
        assert keys._watching == []
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
        with pytest.raises(TimeoutError, match=r"the queue has had no room for 3.0 s"):
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
        assert len(keys._watching) == 1
        keys.done(await keys.get())
        await tasks.pause()
        assert keys._watching == []
        await keys.drain(timeout=0.0)

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
def test_nobody_waits_while_a_key_is_ready(loop, steps):
    """Whoever came, gave up or was cancelled, and whatever came due: then every key has been delivered."""

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
                assert not (keys._waiting and len(keys))
        await tasks.clock.asleep(10.0)
        await tasks.pause()
        assert not (keys._waiting and (len(keys) or keys.delayed))
        for key in list(keys._keys.in_hand):
            keys.done(key)
        await tasks.pause()
        assert not (keys._waiting and len(keys))
        for name in list(tasks.scopes):
            tasks.cancel(name)

    Tasks(loop).run(main)


# -- many threads

PRODUCERS, CONSUMERS, HOT = 8, 8, 12


@pytest.mark.parametrize("capacity", [None, 4])
def test_no_key_is_lost_and_none_is_in_two_hands(short_turns, capacity):
    """After each add a handling begins that sees it, of hot keys that eight threads add and eight handle."""
    keys = WorkQueue(capacity, backoff=[0.0001])
    wanted = [[0] * PRODUCERS for _ in range(HOT)]  # of each key, what each producer has asked for
    seen = [[0] * PRODUCERS for _ in range(HOT)]
    hands = [threading.Lock() for _ in range(HOT)]
    handled = []

    def produce(place):
        rng = random.Random(place)
        for n in range(1, 301):
            key = rng.randrange(HOT)
            wanted[key][place] = n
            match rng.randrange(8):
                case 0:
                    keys.put(key, priority=rng.randrange(3))
                case 1 if capacity is None:
                    keys.add_after(key, 0.0001)
                case _:
                    keys.put(key) if capacity else keys.add(key)

    def consume():
        mine = 0
        while True:
            try:
                key = keys.get()
            except ShutDown:
                handled.append(mine)
                return
            assert hands[key].acquire(blocking=False), "in two hands"
            seen[key] = list(wanted[key])
            mine += 1
            hands[key].release()
            keys.done(key)

    consumers = [short_turns(consume) for _ in range(CONSUMERS)]
    producers = [short_turns(produce, place) for place in range(PRODUCERS)]
    for producer in producers:
        producer.answer()
    while keys.delayed:
        threading.Event().wait(0.0001)
    keys.drain()
    for consumer in consumers:
        consumer.answer()
    assert seen == wanted
    assert len(handled) == CONSUMERS
    assert (len(keys), keys.in_hand, keys.delayed) == (0, 0, 0)
    assert not keys._waiting
    assert not keys._watching


def test_no_key_starves_among_hot_ones(short_turns):
    """A cold key of the lowest priority is handled while eight threads keep hot ones of a higher coming."""
    keys = WorkQueue()
    cold, over = threading.Event(), threading.Event()

    def produce(place):
        while not over.is_set():
            for n in range(4):
                keys.add((place, n), priority=1 + n)

    def consume():
        while True:
            try:
                key = keys.get()
            except ShutDown:
                return
            if key == "cold":
                cold.set()
            keys.done(key)

    threads = [short_turns(consume) for _ in range(CONSUMERS)]
    threads += [short_turns(produce, place) for place in range(PRODUCERS)]
    keys.add("cold")
    assert cold.wait(30.0), "it starves"
    over.set()
    for thread in threads[CONSUMERS:]:
        thread.answer()
    keys.shutdown()
    for thread in threads[:CONSUMERS]:
        thread.answer()


def test_the_examples_are_true():
    """Those in the documentation."""
    assert doctest.testmod(queue).failed == 0


def test_a_shutdown_may_wait_for_what_is_in_hand():
    """With `drain`, it returns when the last key is done."""
    queue = WorkQueue()
    queue.add("a")
    key = queue.get()
    over = threading.Event()

    def close():
        queue.shutdown(drain=True)
        over.set()

    thread = threading.Thread(target=close)
    thread.start()
    while not queue._watching:
        time.sleep(0.001)
    assert not over.is_set()
    queue.done(key)
    thread.join()
    assert over.is_set()
