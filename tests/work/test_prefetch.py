"""How many messages a run receives ahead of its workers, and what becomes of them."""

import asyncio
import threading
import time

import pytest

import abate
from abate import Backoff, CircuitBreaker
from abate.stores.queue_contract import Queue
from abate.work import Back, Done, memory_source, prefetch
from abate.work.memory_source import MemorySource
from abate.work.prefetch import Prefetch
from tests.work.fake_source import FakeSource, messages

QUICK, SLOW = 0.0001, 1.0


class AheadSource(FakeSource):
    """A source that can receive ahead, and records what it was asked for."""

    receives_ahead = True

    def __init__(self, *messages, lease=None):
        super().__init__(*messages, lease=lease)
        self.requests = []

    async def receive(self, most, wait, ahead=0):
        self.requests.append((most, ahead))
        return await super().receive(most + ahead, wait)


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("limit", "lease", "seconds", "size"),
    [
        (None, 30.0, QUICK, prefetch.MAX_AHEAD),
        (None, 30.0, 0.0, prefetch.MAX_AHEAD),
        (None, None, 0.01, 8),
        (None, 30.0, SLOW, 0),
        (16, 30.0, QUICK, 16),
        (16, 30.0, SLOW, 16),
        (16, 30.0, 5.0, 8),
        (16, None, 5.0, 16),
        (16, 30.0, 60.0, 0),
        (0, 30.0, QUICK, 0),
    ],
)
def test_the_size_follows_the_time_of_the_handler(limit, lease, seconds, size):
    """Automatic: work for 20 ms; a number of the user's: what begins within a third of the lease."""
    ahead = Prefetch(4, limit, lease)
    assert ahead.size() == 0
    ahead.record(seconds)
    assert ahead.size() == size


def test_keys_in_memory_are_received_less_far_ahead():
    """Work for 2 ms, as they are at hand."""
    ahead = Prefetch(4, None, None, memory_source.AHEAD_SECONDS)
    ahead.record(0.0005)
    assert ahead.size() == 16
    ahead.record(SLOW)
    assert ahead.size() == 0


def test_one_slow_handler_stops_it_for_a_while():
    """Many quick ones bring it back."""
    ahead = Prefetch(4, None, 30.0)
    for _ in range(100):
        ahead.record(QUICK)
    ahead.record(SLOW)
    assert ahead.size() == 0
    for _ in range(100):
        ahead.record(QUICK)
    assert ahead.size() == prefetch.MAX_AHEAD


@pytest.mark.parametrize("value", [-1, 1.5, "8", True])
@pytest.mark.parametrize("decorator", [abate.consumer, abate.controller])
def test_a_wrong_number_is_refused_at_construction(value, decorator):
    """The error names the setting."""
    with pytest.raises((TypeError, ValueError), match="prefetch"):
        decorator(prefetch=value)(print)


def test_a_number_that_would_be_ignored_is_refused():
    """Only queues of stores can receive ahead; 0 suits every source."""
    with pytest.raises(ValueError, match="prefetch=8 needs a queue of a store, and 'tray' is none"):
        abate.consumer(source=FakeSource(), prefetch=8)(print)
    with pytest.raises(ValueError, match="prefetch=8 needs a queue of a store"):
        abate.consumer(prefetch=8)(print).run(FakeSource(), drain=True)
    with pytest.raises(ValueError, match="prefetch=8 needs store="):
        abate.controller(prefetch=8)(print)
    assert abate.consumer(prefetch=0)(print).run(FakeSource(), drain=True) == {}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("given", "least"), [(None, 8), (6, 6), (0, 0)])
def test_quick_handlers_receive_ahead(asynchronous, given, least):
    """All is done once, and no more run at once than there are workers."""
    seen, running, most = [], set(), [0]

    def begin(message):
        running.add(message.key)
        most[0] = max(most[0], len(running))

    def end(message):
        running.discard(message.key)
        seen.append(message.key)

    def plain(message):
        begin(message)
        end(message)

    async def task(message):
        begin(message)
        await asyncio.sleep(0)
        end(message)

    source = AheadSource(*messages(*range(500)))
    handle = abate.consumer(workers=2, prefetch=given)(task if asynchronous else plain)
    assert handle.run(source, drain=True) == {"done": 500}
    assert sorted(seen) == list(range(500))
    assert sorted(source.settled) == [(key, Done()) for key in range(500)]
    assert most[0] <= 2
    assert source.requests[0] == (2, 0)  # nothing was measured yet
    assert max(ahead for _, ahead in source.requests) >= least
    assert given is None or max(ahead for _, ahead in source.requests) <= given


class Blocked:
    """A consumer with one worker whose quick handlers make it receive ahead, until its handler blocks."""

    def __init__(self, asynchronous, **settings):
        self.go, self.handled, self.source = threading.Event(), [], AheadSource(lease=30.0)
        self.source.put(*messages(*range(100), "block", *(f"waiting {n}" for n in range(20))))
        settings = {"workers": 1, "breaker": False, **settings}
        self.consumer = abate.consumer(**settings)(self.task if asynchronous else self.plain)

    def plain(self, message):
        self.handled.append(message.key)
        if message.key == "block":
            self.go.wait(60.0)

    async def task(self, message):
        self.handled.append(message.key)
        while message.key == "block" and not self.go.is_set():
            await asyncio.sleep(0.001)

    def waiting(self):
        """Return how many messages wait for the worker."""
        running = self.consumer._running
        return running[1].worker_pool.waiting if running else 0

    async def run(self, body, **options):
        running = asyncio.create_task(self.consumer.arun(self.source, **options))
        try:
            await until(lambda: self.waiting() and "block" in self.handled)
            await body()
        finally:
            self.go.set()
            self.consumer.stop()
            tally = await running
        return tally


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_stop_returns_what_waits_for_a_worker(asynchronous):
    """At once and untouched, though a handler still runs; that one is finished."""
    blocked = Blocked(asynchronous)

    async def body():
        blocked.consumer.stop()
        await until(lambda: any(verdict == Back(0.0, touched=False) for _, verdict in blocked.source.settled))
        assert not blocked.waiting()

    tally = asyncio.run(blocked.run(body))
    verdicts = blocked.source.verdicts
    assert verdicts["block"] == Done()
    assert blocked.handled[-1] == "block"
    returned = [key for key, verdict in verdicts.items() if verdict == Back(0.0, touched=False)]
    assert returned
    assert tally == {"done": 101, "returned": len(returned)}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_waits_for_long_is_returned(asynchronous, monkeypatch):
    """Another process may be idle. Then nothing is received ahead until handlers are quick again."""
    monkeypatch.setattr("abate.work.loop.MAX_WAIT", 0.05)
    blocked = Blocked(asynchronous, prefetch=4)

    async def body():
        await until(lambda: any(verdict == Back(0.0, touched=False) for _, verdict in blocked.source.settled))

    asyncio.run(blocked.run(body))
    assert blocked.source.verdicts["block"] == Done()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_breaker_returns_what_waits_when_it_opens(asynchronous):
    """Until it half-opens; the trial is received alone."""
    blocked = Blocked(asynchronous)

    def plain(message):
        blocked.plain(message)
        if message.key == "block":
            raise ConnectionError
        if "waiting" in str(message.key):
            time.sleep(0.02)

    async def task(message):
        await blocked.task(message)
        if message.key == "block":
            raise ConnectionError
        if "waiting" in str(message.key):
            await asyncio.sleep(0.02)

    breaker = CircuitBreaker(min_calls=2, failure_ratio=0.001, pause=1000.0)
    blocked.consumer = abate.consumer(workers=1, breaker=breaker)(task if asynchronous else plain)

    async def body():
        blocked.go.set()
        await until(
            lambda: any(isinstance(verdict, Back) and not verdict.touched for _, verdict in blocked.source.settled)
        )
        assert not blocked.waiting()

    asyncio.run(blocked.run(body))
    untouched = [verdict for _, verdict in blocked.source.settled if isinstance(verdict, Back) and not verdict.touched]
    assert untouched
    assert all(verdict.after > 400.0 for verdict in untouched)


def test_what_lost_its_lease_while_it_waited_is_not_begun():
    """Another process may have it."""
    blocked = Blocked(False, prefetch=4)
    blocked.source.lease = 0.06
    lost = blocked.source.lost = {f"waiting {n}" for n in range(4)}

    async def body():
        await until(lambda: blocked.consumer.health().tally.get("lost") == 4)
        blocked.go.set()
        await until(lambda: "waiting 19" in blocked.handled)

    assert asyncio.run(blocked.run(body)) == {"done": 117, "lost": 4}
    assert not lost & set(blocked.handled)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_timeout_does_not_count_the_time_of_waiting(asynchronous):
    """A message that waits for a worker is not stuck, and has its whole timeout when it begins."""
    left = []

    def plain(message):
        time.sleep(0.03)
        left.append(abate.remaining())

    async def task(message):
        await asyncio.sleep(0.03)
        left.append(abate.remaining())

    source = AheadSource(*messages(*range(30)), lease=30.0)
    handle = abate.consumer(workers=1, prefetch=30, timeout=0.6)(task if asynchronous else plain)
    assert handle.run(source, drain=True) == {"done": 30}
    assert max(ahead for _, ahead in source.requests) >= 20  # 0.6 s of work
    assert min(left) > 0.0


def test_a_failed_message_that_waited_is_retried():
    """Its first receive counts when it fails."""
    store = abate.open_store("memory:")
    queue, receives = store.queue("orders"), []
    for number in range(100):
        queue.send(str(number))

    @abate.consumer(source=queue, backoff=Backoff(0.001, 0.001), max_receives=3, breaker=False)
    def handle(message):
        receives.append(message.receives)
        raise ConnectionError

    assert handle.run(drain=True) == {"retry": 200, "buried": 100}
    assert sorted(receives) == [1] * 100 + [2] * 100 + [3] * 100
    assert {letter.receives for letter in queue.dead()} == {3}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_a_frozen_process_held_is_not_begun(asynchronous):
    """Its lease has run out while it waited for a worker, and nobody has noticed yet."""
    blocked = Blocked(asynchronous, prefetch=4)
    frozen = {f"waiting {n}" for n in range(4)}

    async def body():
        for delivery in blocked.consumer._running[1].in_flight:
            delivery.leased -= 30.0
        blocked.go.set()
        await until(lambda: "waiting 19" in blocked.handled)

    assert asyncio.run(blocked.run(body)) == {"done": 117, "returned": 4}
    assert not frozen & set(blocked.handled)


def test_controllers_with_a_store_receive_ahead(monkeypatch):
    """As consumers do."""
    requested, seen = [], []

    def receive(queue, most, wait, ahead=0):
        requested.append(ahead)
        return Queue.receive(queue, most, wait, ahead)

    with abate.open_store("memory:") as store:
        reconcile = abate.controller(store=store, name="reconcile")(seen.append)
        monkeypatch.setattr(type(store.queue("reconcile")), "receive", receive)
        for number in range(300):
            reconcile.add(str(number))
        assert reconcile.run(drain=True) == {"done": 300}
    assert len(seen) == len(set(seen)) == 300
    assert max(requested) > 0


@pytest.mark.parametrize(("given", "most"), [(None, prefetch.MAX_AHEAD), (0, 0)])
def test_controllers_in_memory_take_keys_ahead(given, most, monkeypatch):
    """Each is handled once; with `prefetch=0` none is taken before a worker is free."""
    requested, seen, receive = [], [], MemorySource.receive

    async def record(source, free, wait, ahead=0):
        requested.append(ahead)
        return await receive(source, free, wait, ahead)

    monkeypatch.setattr(MemorySource, "receive", record)
    reconcile = abate.controller(prefetch=given)(seen.append)
    for number in range(500):
        reconcile.add(number)
    assert reconcile.run(drain=True) == {"done": 500}
    assert sorted(seen) == list(range(500))
    assert (max(requested) > 0) == (most > 0)
    assert max(requested) <= most


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_higher_priority_does_not_wait_behind_keys_taken_ahead_for_long(asynchronous, monkeypatch):
    """These go back if no handler ends, and are handled after it."""
    monkeypatch.setattr("abate.work.loop.MAX_WAIT", 0.05)
    go, handled = threading.Event(), []

    def plain(key):
        handled.append(key)
        if key == "block":
            go.wait(60.0)

    async def task(key):
        handled.append(key)
        while key == "block" and not go.is_set():
            await asyncio.sleep(0.001)

    reconcile = abate.controller(workers=1)(task if asynchronous else plain)
    keys = [*range(100), "block", *(f"waiting {n}" for n in range(20))]

    async def main():
        for key in keys:
            reconcile.add(key)
        running = asyncio.create_task(reconcile.arun())
        try:
            await until(lambda: "block" in handled and reconcile.health().in_hand == 1)
            reconcile.add("urgent", priority=1)
            go.set()
            await until(lambda: len(handled) == len(keys) + 1)
        finally:
            go.set()
            reconcile.stop()
            await running

    asyncio.run(main())
    assert handled[:102] == [*range(100), "block", "urgent"]
    assert sorted(map(str, handled)) == sorted(map(str, [*keys, "urgent"]))
