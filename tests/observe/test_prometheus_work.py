"""The Prometheus sink: queues, shelters, buckets and stores."""

import asyncio
import socket
import threading

import pytest
from prometheus_client import generate_latest

import abate
from abate.events import SHELTER_STATES
from abate.observe import queue_depths
from abate.stores import Depth
from abate.testing import Script, VirtualClock


def test_a_controller_and_its_queue(watched, name):
    """The scrape has depth by state, age, work by ending, utilization and dead letters."""
    seen = []

    async def reconcile(key):
        seen.append(watched.value("worker_utilization", queue=name))
        await abate.clock.current().asleep(2.0)
        if key == "bad":
            raise abate.PermanentFailure("no such order")

    with VirtualClock() as clock:
        controller = abate.controller(name=name, workers=2)(reconcile)
        controller.add("good")
        controller.add("bad")
        controller.add("later", after=100.0)
        clock.advance(7.0)
        depth = {state: watched.value("queue_depth", queue=name, state=state) for state in ("ready", "delayed")}
        assert (depth, watched.value("queue_age_seconds", queue=name)) == ({"ready": 2, "delayed": 1}, 7.0)
        controller.discard("later")
        asyncio.run(controller.arun(drain=True))
    assert set(seen) <= {0.5, 1.0}
    assert 1.0 in seen
    assert watched.value("work_seconds_count", queue=name, ending="done") == 1
    assert watched.value("work_seconds_sum", queue=name, ending="buried") == 2.0
    assert watched.value("dead_letters_total", queue=name, reason="permanent") == 1
    assert watched.value("dead_letters_total", queue=name, reason="receives") == 0
    assert watched.value("queue_depth", queue=name, state="dead") == 1
    assert watched.value("worker_utilization", queue=name) == 0
    assert controller


def test_a_consumer_reports_the_depth_of_its_store(watched, name):
    """The depth is read from the store, and adds through its queue are counted."""
    with abate.open_store("memory:") as store:
        queue = store.queue(name)
        consumer = abate.consumer(source=queue, name=name)(lambda message: None)
        queue.send("one")
        assert queue.add("orders/42")
        assert not queue.add("orders/42")
        assert watched.value("queue_depth", queue=name, state="ready") == 2
        consumer.run(drain=True)
        assert watched.value("queue_depth", queue=name, state="ready") == 0
        assert watched.value("queue_adds_total", queue=name) == 3
        assert watched.value("queue_coalesced_total", queue=name) == 1
    assert watched.value("work_seconds_count", queue=name, ending="done") == 2


def test_a_shelter_is_in_one_state(watched, name):
    """Its state is 1 and the others are 0; limit and waiters are those of the shelter."""
    shelter = abate.Shelter(name=name)
    seen = []

    def look(answer):
        states = [state for state in SHELTER_STATES if watched.value("shelter_state", shelter=name, state=state) == 1]
        others = [watched.value("shelter_state", shelter=name, state=state) for state in SHELTER_STATES]
        assert sum(others) == 1
        assert watched.value("shelter_limit", shelter=name) == shelter.limit
        assert watched.value("shelter_waiters", shelter=name) == shelter.waiters
        assert states == [shelter.state]
        seen.append(shelter.state)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with VirtualClock():
        policy = abate.Policy(name=name, on=OSError, max_attempts=30, shelter=shelter, budget=abate.Budget.unlimited())
        for answer in (*[OSError()] * 5, "fine"):
            try:
                policy.replace(max_attempts=1).call(look, answer)
            except OSError:
                pass
    assert seen[0] == "calm"
    assert set(seen) - {"calm"}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_waits_for_tokens(watched, name, asynchronous):
    """Waits that ended with a token are in the histogram; immediate tokens and timeouts are not."""
    with VirtualClock():
        bucket = abate.TokenBucket(rate=2.0, name=name)
        for _ in range(3):
            asyncio.run(bucket.aacquire()) if asynchronous else bucket.acquire()
        with pytest.raises(TimeoutError):
            bucket.acquire(timeout=0.1)
    assert watched.value("rate_limiter_wait_seconds_count", bucket=name) == 2
    assert watched.value("rate_limiter_wait_seconds_sum", bucket=name) == pytest.approx(1.0)


def test_store_degraded(watched):
    """The metric is 1 while a store does not answer, and 0 while it does."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{closed.getsockname()[1]}/0"
        with abate.open_store(url, required=False) as gone, abate.open_store("memory:") as here:
            gone.budget("orders").try_withdraw()
            guard = threading.Event()
            while not gone.degraded:
                guard.wait(0.01)
            assert watched.value("store_degraded", store=gone.name) == 1
            assert watched.value("store_degraded", store=here.name) == 0


class Slow:
    """A source whose depth blocks until `answers` is set."""

    name, lease, durable = "slow", 30.0, True
    receive = extend = settle = print

    def __init__(self):
        self.asked, self.answers = threading.Semaphore(0), threading.Event()

    def depth(self):
        self.asked.release()
        assert self.answers.wait(30)
        return Depth(ready=7)


def test_a_blocked_depth_delays_no_call(watched, name, monkeypatch):
    """While a scrape waits for a depth, calls fail, retry and are counted."""
    monkeypatch.setattr(queue_depths, "TOTAL_TIMEOUT", 30.0)
    source = Slow()
    consumer = abate.consumer(source=source, name=name)(lambda message: None)
    scrape = threading.Thread(target=generate_latest, args=(watched.registry,))
    scrape.start()
    try:
        assert source.asked.acquire(timeout=30)
        caller = threading.Thread(
            target=abate.Policy(name=name, on=OSError, backoff=[0.0]).call, args=(Script(OSError(), "fine"),)
        )
        caller.start()
        caller.join(30)
        assert not caller.is_alive()
        assert scrape.is_alive()
    finally:
        source.answers.set()
        scrape.join(30)
    assert watched.calls(name) == {"recovered": 1}
    assert watched.value("queue_depth", queue=consumer.name, state="ready") == 7


def test_stores_that_do_not_answer_are_left_out(watched, name, monkeypatch):
    """All share one timeout; each is asked once, and not waited for again until it has answered."""
    monkeypatch.setattr(queue_depths, "TOTAL_TIMEOUT", 0.01)
    sources = [Slow() for _ in range(5)]
    consumers = [
        abate.consumer(source=source, name=f"{name}-{number}")(lambda message: None)
        for number, source in enumerate(sources)
    ]
    try:
        for _ in range(3):
            generate_latest(watched.registry)
        for source, consumer in zip(sources, consumers, strict=True):
            assert watched.value("queue_depth", queue=consumer.name, state="ready") is None
            assert watched.value("queue_depth", queue=consumer.name, state="in_hand") == 0
            assert source.asked.acquire(timeout=30)
            assert not source.asked.acquire(blocking=False)
    finally:
        for source in sources:
            source.answers.set()
    monkeypatch.setattr(queue_depths, "TOTAL_TIMEOUT", 30.0)
    for consumer in consumers:
        # the first reading may not have ended yet
        while (found := watched.value("queue_depth", queue=consumer.name, state="ready")) is None:
            pass
        assert found == 7
