"""Tasks that wait in a shelter or at a queue: who keeps them alive, and who doesn't."""

import asyncio
import gc
import threading

import pytest

import abate
from abate.testing import VirtualClock
from abate.wakeups import AsyncioWakeup


class Down(Exception):
    """The dependency is down."""


def closed_shelter(**settings):
    """Return a policy, and the permit that keeps all other calls of its shelter waiting."""
    policy = abate.Policy(on=Down, max_attempts=50, shelter=abate.Shelter(patience=60.0), **settings)
    dispatcher = policy.shelter.dispatcher()
    dispatcher.limiter.limit, dispatcher.limiter.state = 1.0, "storm"
    return policy, dispatcher, dispatcher.try_enter(dispatcher.clock.now(), dispatcher.clock.now(), None, True)


async def in_shelter(done, seconds):
    """Start calls that wait in a shelter, keep no reference to their tasks, and let them go."""
    policy, dispatcher, permit = closed_shelter()

    async def fine():
        done.append(1)

    async def caller():
        await policy.acall(fine)

    for _ in range(10):
        asyncio.get_running_loop().create_task(caller())
    await asyncio.sleep(seconds)
    gc.collect()
    dispatcher.answered(permit, dispatcher.clock.now(), "")
    while policy.shelter.waiters:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)


async def at_queue(done, seconds):
    """Start workers that wait for a key, keep no reference to their tasks, and add keys."""
    queue = abate.AsyncWorkQueue()

    async def worker(timeout):
        key = await queue.get(timeout)
        done.append(key)
        queue.done(key)

    for number in range(10):
        asyncio.get_running_loop().create_task(worker(60.0 if number % 2 else None))
    await asyncio.sleep(seconds)
    gc.collect()
    for key in range(10):
        queue.add(key)
    await asyncio.sleep(0.05)


async def for_room(done, seconds):
    """Start producers that wait for room, keep no reference to their tasks, and make room."""
    queue = abate.AsyncWorkQueue(capacity=1)
    queue.add("first")

    async def producer(key):
        await queue.put(key)
        done.append(key)

    for number in range(9):
        asyncio.get_running_loop().create_task(producer(number))
    await asyncio.sleep(seconds)
    gc.collect()
    for _ in range(10):
        key = await queue.get()
        queue.done(key)
        await asyncio.sleep(0)
    done.append("first")


@pytest.mark.parametrize("waiting", [in_shelter, at_queue, for_room])
def test_a_task_without_a_reference_is_not_collected_while_it_waits(waiting):
    """asyncio refers to tasks weakly: what they wait for has to keep them alive."""
    done = []
    asyncio.run(waiting(done, 0.02))
    assert len(done) == 10


def test_it_is_not_collected_in_virtual_time_either():
    """The virtual clock keeps what waits for it."""
    done = []
    with VirtualClock():
        asyncio.run(in_shelter(done, 0.02))
    assert len(done) == 10


class SlottedLoop:
    """An event loop of a class that does not support weak references."""

    __slots__ = ("_inner",)

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)


def test_an_event_loop_without_weak_references_works(monkeypatch):
    """Its tasks wait and are woken like any other; it is only held more strongly."""

    async def main():
        slotted = SlottedLoop(asyncio.get_running_loop())
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: slotted)
        first, second = AsyncioWakeup(), AsyncioWakeup()
        assert first.loop == second.loop
        assert len({first.loop, second.loop}) == 1
        assert first.loop != object()
        future = first.notified()
        timer = first.expire_after(60.0, future)
        threading.Thread(target=first.notify).start()
        await future
        timer.cancel()
        assert not first.rearm()

    asyncio.run(main())


def test_a_loop_that_moved_to_another_thread_is_woken():
    """A wake-up goes to the loop, whichever thread runs it now."""
    queue, got = abate.AsyncWorkQueue(), []
    loop = asyncio.new_event_loop()

    async def worker():
        got.append(await queue.get(30.0))

    task = loop.create_task(worker())
    loop.run_until_complete(asyncio.sleep(0.01))  # it waits now, in this thread
    thread = threading.Thread(target=loop.run_until_complete, args=(task,))
    thread.start()
    while not loop.is_running():
        pass
    queue.add("key")
    thread.join(10.0)
    assert got == ["key"]
    loop.close()


def test_a_wake_up_that_was_broken_off_can_be_repeated(monkeypatch):
    """A signal handler raises while a worker is being woken: the worker gets its key all the same."""
    queue, got = abate.AsyncWorkQueue(), []
    loop = asyncio.new_event_loop()
    task = loop.create_task(queue.get(30.0))
    loop.run_until_complete(asyncio.sleep(0.01))
    real, raised = loop.call_soon_threadsafe, []

    def broken_off(*args):
        if not raised:
            raised.append(True)
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", broken_off)
    with pytest.raises(KeyboardInterrupt):
        queue.add("key")
    got.append(loop.run_until_complete(task))
    assert got == ["key"]
    loop.close()
