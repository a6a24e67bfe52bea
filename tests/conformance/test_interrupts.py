"""A receive that waits can be broken off, on every store, so that a consumer waits long and stops at once."""

import asyncio
import threading

import pytest

import abate
from abate.stores import open_store
from abate.work.source import Message
from tests.stores.processes import FOR_EVER, Thread, count_waiters, keys, until, waiting


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
    assert keys(queue.receive()) == ["a"]


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
