"""What a consumer of batches receives while its workers are busy, and what it does with messages that wait."""

import asyncio
import threading
import time

import pytest

import abate
from abate.stores import open_store
from abate.work.source import Back
from tests.stores.processes import GUARD


@pytest.fixture
def store(tmp_path):
    """A durable one: a run that stops receives no more of it."""
    with open_store(f"sqlite:///{tmp_path}/work.db") as opened:
        yield opened


def bodies(messages):
    return [message.body for message in messages]


def test_what_a_stuck_batch_keeps_from_its_worker_is_left_to_others(store, monkeypatch):
    """Without a free worker nothing is received, as nothing would be handled until a restart."""
    monkeypatch.setattr("abate.work.batches.STUCK_TOLERANCE", 0.05)
    queue = store.queue("orders")
    go = threading.Event()

    @abate.consumer(source=queue, batch=10, workers=1, timeout=0.05, backoff=lambda retry: GUARD)
    def handle(messages):
        go.wait(GUARD)

    queue.send("stuck")

    async def main():
        task = asyncio.ensure_future(handle.arun())
        while not handle.health().stuck:
            await asyncio.sleep(0.01)
        queue.send_many(list("1234"))
        await asyncio.sleep(0.2)
        found = queue.receive(10)
        handle.stop()
        await task
        return found

    found = asyncio.run(main())
    go.set()
    assert bodies(found) == list("1234")


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("reason", ["no batch has ended for long", "a stop"])
def test_what_waits_behind_a_batch_goes_back(store, asynchronous, reason, monkeypatch):
    """Untouched: messages that come back wait for their turn to be handled alone, and another process may be idle."""
    monkeypatch.setattr("abate.work.loop.MAX_WAIT", 0.1 if reason.startswith("no") else GUARD)
    queue = store.queue("orders")
    go, first = threading.Event(), []

    async def waits(messages):
        first.append(messages[0].key)
        while not go.is_set():
            await asyncio.sleep(0.01)

    def blocks(messages):
        first.append(messages[0].key)
        go.wait(GUARD)

    handle = abate.consumer(source=queue, batch=4, workers=1)(waits if asynchronous else blocks)
    queue.add_many(list("abcd"))
    queue.settle([(message, Back(0.0)) for message in queue.receive(4)])

    async def main():
        task = asyncio.ensure_future(handle.arun())
        while not first:
            await asyncio.sleep(0.01)
        if reason == "a stop":
            handle.stop()
        while queue.depth().ready < 3:
            await asyncio.sleep(0.01)
        found = queue.receive(4)
        handle.stop()
        go.set()
        return found, await task

    found, tally = asyncio.run(main())
    assert first == ["a"]
    assert tally == {"done": 1, "returned": 3}
    assert [(message.key, message.receives) for message in found] == [("b", 2), ("c", 2), ("d", 2)]


def test_a_message_whose_lease_ran_out_while_it_waited_for_a_batch_is_not_begun(store):
    """As in a process that was frozen: another one may have received it."""
    queue = store.queue("orders", lease=0.3)
    handled = []

    @abate.consumer(source=queue, batch=4, workers=1)
    async def handle(messages):
        handled.append(bodies(messages))
        if len(handled) == 1:
            await asyncio.sleep(0)
            time.sleep(0.5)  # the process is frozen

    queue.send_many(list("abc"))
    queue.settle([(message, Back(0.0)) for message in queue.receive(4)])

    async def main():
        task = asyncio.ensure_future(handle.arun())
        while len(handled) < 2:
            await asyncio.sleep(0.01)
        handle.stop()
        return await task

    tally = asyncio.run(main())
    assert tally["lost"] == 3
