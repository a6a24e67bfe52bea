"""A queue of keys for threads: waiting calls are woken, keys are delivered, and time is virtual where possible."""

import asyncio
import threading
import time

import pytest

from abate.testing import VirtualClock
from abate.work import AsyncWorkQueue, ShutDown, WorkQueue, work_queue

BOTH = pytest.mark.parametrize("kind", [WorkQueue, AsyncWorkQueue])


# -- in virtual time


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
    """And not before."""
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
        with pytest.raises(TimeoutError, match=r"the queue was full for 3.0 s"):
            keys.put("b", timeout=3.0)
        assert clock.now() == 3.0
        assert keys._watchers == []
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
        assert keys._watchers == []
        keys.done("a")
        keys.done(keys.get())
        keys.drain(timeout=0.0)


def test_a_clock_that_stands_still_ends_no_wait_late():
    """What was waited for has come, whatever the clock says: a key, or the end of a timeout."""
    keys = WorkQueue(capacity=1, clock=lambda: 0.0)
    with pytest.raises(TimeoutError):
        keys.get(timeout=0.001)
    keys.add_after("a", 0.001)
    with pytest.raises(TimeoutError):
        keys.put("b", timeout=0.001)
    assert keys.get(timeout=20.0) == "a"
    with pytest.raises(TimeoutError):
        keys.drain(timeout=0.001)


@BOTH
def test_shutdown_delivers_what_is_ready_and_nothing_of_later(kind):
    """A key that has come due is ready without an operation in between."""

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
def test_a_thread_that_waits_is_woken(start_waiter, wake):
    """By a key, or by one that comes earlier than what it waits for."""
    keys = WorkQueue(backoff=[0.001])
    keys.add_after("later", 3600.0)
    worker = start_waiter(keys._getters, keys.get, timeout=1800.0)
    wake(keys)
    assert worker.result() == "a"


def test_a_thread_that_waits_is_woken_by_done(start_waiter):
    """Where the key was added meanwhile."""
    keys = WorkQueue()
    keys.add("a")
    keys.get()
    worker = start_waiter(keys._getters, keys.get)
    keys.add("a")
    assert len(keys._getters) == 1
    keys.done("a")
    assert worker.result() == "a"


def test_one_add_wakes_one(start_waiter, wait_until, monkeypatch):
    """The others go on waiting, and do not wake one another."""
    rings = []
    ring = work_queue.ThreadWakeup.notify
    monkeypatch.setattr(work_queue.ThreadWakeup, "notify", lambda wakeup: (rings.append(wakeup), ring(wakeup)))
    keys = WorkQueue()
    workers = [start_waiter(keys._getters, keys.get) for _ in range(4)]
    keys.add("a")
    assert workers[0].result() == "a"
    keys.add("b")
    assert workers[1].result() == "b"
    assert len(keys._getters) == 2
    assert len(rings) == 2
    keys.done("a")
    keys.done("b")
    keys.shutdown()
    for worker in workers[2:]:
        with pytest.raises(ShutDown):
            worker.result()


def test_waiting_calls_are_woken_at_the_end(start_waiter, wait_until):
    """When the keys in hand are done; until then they could come back."""
    keys = WorkQueue()
    keys.add("a")
    keys.get()
    workers = [start_waiter(keys._getters, keys.get) for _ in range(3)]
    keys.add("a")
    keys.shutdown()
    wait_until(lambda: len(keys._getters) == 3)
    keys.done("a")
    wait_until(lambda: keys.in_hand == 1)
    wait_until(lambda: len(keys._getters) == 2)
    keys.done("a")
    ends = []
    for worker in workers:
        try:
            ends.append(worker.result())
        except ShutDown:
            ends.append(ShutDown)
    assert sorted(ends, key=str) == sorted(["a", ShutDown, ShutDown], key=str)


def test_a_drain_ends_when_all_is_done(start_waiter):
    """Not while a key waits, nor while one is in hand."""
    keys = WorkQueue()
    for key in "ab":
        keys.add(key)
    drain = start_waiter(keys._watchers, keys.drain)
    for _ in range(2):
        key = keys.get()
        assert drain.thread.is_alive()
        keys.done(key)
    drain.result()
    with pytest.raises(ShutDown):
        keys.get()


@pytest.mark.parametrize("room", ["get", "cancel"])
def test_a_put_that_waits_is_woken_by_room(start_waiter, room):
    """When a key is taken, not only when it is done; or when one of later is cancelled."""
    keys = WorkQueue(capacity=1)
    if room == "get":
        keys.add("a")
    else:
        keys.add_after("a", 3600.0)
    put = start_waiter(keys._watchers, keys.put, "b", timeout=1800.0)
    assert keys.get() == "a" if room == "get" else keys.cancel("a")
    put.result()
    assert keys.get() == "b"


def test_a_put_that_waits_hears_of_the_end(start_waiter):
    """It is not added any more."""
    keys = WorkQueue(capacity=1)
    keys.add("a")
    put = start_waiter(keys._watchers, keys.put, "b")
    keys.shutdown()
    with pytest.raises(ShutDown):
        put.result()
    assert keys._watchers == []


class Unsteady(work_queue.ThreadWakeup):
    """A wake-up whose first wait is interrupted, as by Ctrl-C."""

    def wait(self, clock, seconds):
        raise KeyboardInterrupt


def test_what_an_interrupted_thread_was_woken_for_is_for_the_next(start_waiter, monkeypatch):
    """The key that it would have had wakes another."""
    keys = WorkQueue()

    class Rung(Unsteady):
        def wait(self, clock, seconds):
            worker = start_waiter(keys._getters, keys.get)
            keys.add("a")  # rings this one
            assert len(keys._getters) == 1
            workers.append(worker)
            super().wait(clock, seconds)

    workers = []
    wakeups = iter([Rung, work_queue.ThreadWakeup])
    monkeypatch.setattr(work_queue, "ThreadWakeup", lambda: next(wakeups)())
    with pytest.raises(KeyboardInterrupt):
        keys.get()
    assert workers[0].result() == "a"


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
    while not queue._watchers:
        time.sleep(0.001)
    assert not over.is_set()
    queue.done(key)
    thread.join()
    assert over.is_set()


def test_a_batch_makes_room_and_leaves_the_rest_to_others(start_waiter):
    """A waiting `put` is woken, and so is a waiting `get` if a key is ready."""
    keys = WorkQueue(capacity=2)
    keys.add("a")
    keys.add("b")
    put = start_waiter(keys._watchers, keys.put, "c")
    assert keys.take(1) == ["a"]
    put.result()
    assert keys.take(5) == ["b", "c"]
    worker = start_waiter(keys._getters, keys.get)
    keys.add("d")
    assert worker.result() == "d"


def test_those_in_a_loop_that_is_over_are_passed_over(start_waiter):
    """A key is not kept for a task that will never run again."""
    keys = AsyncWorkQueue()
    loop = asyncio.new_event_loop()
    lost = [loop.create_task(keys.get()) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert len(keys._getters) == 3
    worker = start_waiter(keys._getters, lambda: asyncio.run(keys.get()))
    keys.add("a")
    assert worker.result() == "a"
    for task in lost:
        task._log_destroy_pending = False  # that they are left behind is the point
