"""A receive that waits can be broken off, on every store, so that a consumer waits long and stops at once."""

import asyncio
import queue as queues
import threading
import time

import pytest

import abate
from abate.stores import open_store
from abate.work.source import Back, Message
from tests.stores.processes import FOR_EVER, GUARD, Thread, count_waiters, keys, until, waiting


@pytest.fixture
def clock():
    """The machine's."""
    return None


def test_an_interrupt_ends_the_receives_that_wait(store):
    """They return without a message; those of other queues wait on, and later receives wait as before."""
    queue, others = store.queue("orders"), store.queue("mails")
    threads = [waiting(store, queue) for _ in range(3)]
    other = Thread(others.receive, 1, FOR_EVER)
    queue.interrupt()
    assert [thread.answer() for thread in threads] == [[]] * 3
    queue.interrupt()  # nobody waits
    thread = waiting(store, queue)
    queue.add("a")
    assert keys(thread.answer()) == ["a"]
    assert other.is_alive()
    others.add("b")
    assert keys(other.answer()) == ["b"]


def test_no_message_is_lost_between_an_add_and_an_interrupt(store):
    """It is returned, or it still waits."""
    queue = store.queue("orders")
    found = []
    for number in range(20):
        thread = waiting(store, queue)
        adding = Thread(queue.add, str(number))
        queue.interrupt()
        adding.answer()
        found += thread.answer()
        found += queue.receive(20)
    assert sorted(map(int, keys(found))) == list(range(20))


@pytest.mark.parametrize("ending", ["stopped", "cancelled"])
def test_a_consumer_that_waits_for_a_message_stops_at_once(store, ending):
    """However long its queue is patient; no thread waits on and takes messages."""
    queue = store.queue("orders")
    queue.patience = FOR_EVER

    @abate.consumer(source=queue)
    def handle(message): ...

    async def main():
        running = asyncio.ensure_future(handle.arun())
        while not count_waiters(store, queue):
            await asyncio.sleep(0.01)
        if ending == "stopped":
            handle.stop()
        else:
            running.cancel()
        await asyncio.wait({running})

    asyncio.run(main())
    until(lambda: not count_waiters(store, queue))
    queue.add("a")
    assert keys(queue.receive(wait=GUARD / 2)) == ["a"]  # less than a lease


def test_a_cancelled_run_keeps_no_message(store):
    """Whenever it is cancelled: what its thread has received meanwhile goes back, as if never received."""
    for number in range(6):
        queue = store.queue(f"orders {number}")

        @abate.consumer()
        def handle(message):
            raise AssertionError("it is not to be handled")

        async def main(queue=queue, number=number):
            running = asyncio.ensure_future(handle.arun(queue))
            for _ in range(number):
                await asyncio.sleep(0.001)
            running.cancel()
            await asyncio.to_thread(queue.add, "a")
            await asyncio.wait({running})

        asyncio.run(main())
        assert [(message.key, message.receives) for message in queue.receive(wait=GUARD / 2)] == [("a", 1)]


class Slow:
    """A source whose receive takes a while, and can't be interrupted."""

    name, lease, durable = "slow", None, True

    def __init__(self):
        self.begun, self.go_on, self.settled = threading.Event(), threading.Event(), queues.SimpleQueue()

    def receive(self, max_messages, wait):
        self.begun.set()
        self.go_on.wait(FOR_EVER)
        return [Message("late")]

    def extend(self, messages):
        return ()

    def settle(self, settlements):
        self.settled.put(settlements)
        return ()


@pytest.mark.parametrize("arrives", ["with the cancellation", "after the run"])
def test_what_a_cancelled_receive_brings_goes_back(arrives):
    """Also if it arrives in the event loop together with the cancellation, and if the run has ended long ago."""
    source = Slow()

    @abate.consumer(source=source, breaker=False)
    def handle(message): ...

    async def main():
        running = asyncio.ensure_future(handle.arun())
        while not source.begun.is_set():
            await asyncio.sleep(0.001)
        if arrives == "with the cancellation":
            source.go_on.set()
            time.sleep(0.05)  # blocks the event loop while the thread ends
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(main())
    source.go_on.set()
    ((message, verdict),) = source.settled.get(timeout=GUARD)
    assert (message.key, verdict) == ("late", Back(0.0, touched=False))
    assert source.settled.empty()


class Deaf:
    """A source whose thread begins to wait after the first interrupt."""

    name, lease, durable, patience = "deaf", None, True, FOR_EVER

    def __init__(self):
        self.interrupts = 0
        self.begun, self.ended = threading.Event(), threading.Event()

    def receive(self, max_messages, wait):
        self.begun.set()
        self.ended.wait(FOR_EVER)
        return [Message("late")]

    def interrupt(self):
        self.interrupts += 1
        if self.interrupts == 1:
            raise ConnectionError("no answer")
        if self.interrupts == 3:
            self.ended.set()

    def extend(self, messages):
        return ()

    def settle(self, settlements):
        self.settled = settlements
        return ()


def test_an_interrupt_is_repeated_until_the_receive_ends():
    """The first may come before the thread waits, or may fail; a message that it has received goes back."""
    source = Deaf()

    @abate.consumer(source=source)
    def handle(message): ...

    async def main():
        running = asyncio.ensure_future(handle.arun())
        while not source.begun.is_set():
            await asyncio.sleep(0.01)
        handle.stop()
        return await running

    assert asyncio.run(main()) == {"returned": 1}
    assert source.interrupts == 3
    assert [message.key for message, _ in source.settled] == ["late"]


def test_other_consumers_of_a_process_wait_on(url):
    """An interrupt reaches all receives of a queue in a process: each consumer but the one that stops asks again."""
    with open_store(url) as store:
        queue = store.queue("orders")
        handled = []

        @abate.consumer(source=queue, name="stays")
        def stays(message):
            handled.append(message.key)
            stays.stop()

        @abate.consumer(source=queue, name="stops")
        def stops(message): ...

        async def main():
            first, second = asyncio.ensure_future(stays.arun()), asyncio.ensure_future(stops.arun())
            while count_waiters(store, queue) < 2:
                await asyncio.sleep(0.01)
            stops.stop()
            await second
            await queue.aadd("a")
            await first

        asyncio.run(main())
        assert handled == ["a"]
