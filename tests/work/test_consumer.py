"""Consumers and controllers with a store: leases, dead letters, keys that survive a restart."""

import asyncio
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import Backoff, CircuitBreaker, PermanentFailure, Recoverable, SilentSuccess
from abate.testing import VirtualClock, run_for

STEADY = Backoff(1.0, 900.0, jitter="none")


@pytest.fixture(params=["memory:", "sqlite:///work.db"])
def store(request, tmp_path, monkeypatch):
    """Open a store of each embedded kind."""
    monkeypatch.chdir(tmp_path)
    with abate.open_store(request.param) as store:
        yield store


def test_each_message_is_handled_once(store):
    """Handlers run in threads, in real time."""
    queue, seen = store.queue("orders"), []
    keys = [queue.send(str(n)) for n in range(100)]
    handle = abate.consumer(source=queue)(lambda message: seen.append((message.key, message.body)))
    assert handle.run(drain=True) == {"done": 100}
    assert sorted(seen) == sorted(zip(keys, map(str, range(100)), strict=True))
    depth = queue.depth()
    assert (depth.ready, depth.delayed, depth.leased, depth.dead) == (0, 0, 0, 0)


def test_each_handler_result_has_its_verdict(store):
    """Messages are done, done silently, sent back or buried."""
    with VirtualClock():
        queue = store.queue("orders")
        results = {
            "done": None,
            "silent": SilentSuccess(),
            "permanent": PermanentFailure("no address"),
            "back": Recoverable("later", after=50.0),
            "error": ConnectionError("gone"),
        }

        @abate.consumer(source=queue, backoff=STEADY)
        def handle(message):
            result = results[message.key]
            if result is not None:
                raise result

        for key in results:
            queue.add(key)
        assert handle.run(drain=True) == {"done": 1, "silent": 1, "buried": 1, "retry": 2}
        [dead_letter] = queue.dead()
        assert (dead_letter.key, dead_letter.kind, dead_letter.reason) == ("permanent", "permanent", "no address")
        assert "PermanentFailure" in dead_letter.trace
        depth = queue.depth()
        assert (depth.ready, depth.delayed, depth.leased, depth.dead) == (0, 2, 0, 1)


def test_a_message_that_always_fails_is_buried_after_max_receives(store):
    """Delays grow, and the reason is the last error."""
    with VirtualClock() as clock:
        queue, seen = store.queue("orders"), []

        @abate.consumer(source=queue, backoff=STEADY, max_receives=4, breaker=False)
        async def handle(message):
            seen.append((message.receives, clock.now()))
            raise ConnectionError("gone")

        queue.add("a")
        tally = run_for(handle, 60.0)
        assert [receives for receives, _ in seen] == [1, 2, 3, 4]
        gaps = [later - sooner for (_, sooner), (_, later) in pairwise(seen)]
        assert gaps == pytest.approx([1.0, 2.0, 4.0], abs=0.1)
        assert tally == {"retry": 3, "buried": 1}
        assert queue.dead()[0].reason == "ConnectionError: gone (received 4 times)"


def test_retries_of_a_policy_and_of_the_queue_do_not_multiply(store):
    """An error that a policy gave up on sends the message back once, with the queue's delay."""
    with VirtualClock():
        queue, calls = store.queue("orders"), []
        policy = abate.Policy(name="inner", on=ConnectionError, max_attempts=3, backoff=[0.0])

        @abate.consumer(source=queue, backoff=STEADY)
        def handle(message):
            def fail():
                calls.append(message.receives)
                raise ConnectionError

            policy.call(fail)

        queue.add("a")
        assert handle.run(drain=True) == {"retry": 1}
        assert calls == [1, 1, 1]
        assert queue.depth().delayed == 1


def test_the_heartbeat_extends_the_lease_of_a_long_handler(store):
    """A handler that runs longer than the lease is not interrupted or repeated."""
    with VirtualClock() as clock:
        queue = store.queue("orders", lease=30.0)
        handled = []

        @abate.consumer(source=queue, workers=2)
        async def handle(message):
            await clock.asleep(500.0)
            handled.append(message.key)

        queue.add("long")
        assert run_for(handle, 600.0) == {"done": 1}
        assert handled == ["long"]


def test_an_object_that_is_no_source_is_refused():
    """A source must have the methods and attributes of the contract; a consumer can't run without one."""
    with pytest.raises(TypeError, match="a source must have receive, extend and settle"):
        abate.consumer(source=object())(lambda message: None)

    class WithoutLease:
        name, durable = "half", True

        def receive(self, most, wait): ...
        def extend(self, messages): ...
        def settle(self, settlements): ...

    with pytest.raises(TypeError, match="a source must have a lease"):
        abate.consumer(source=WithoutLease())(lambda message: None)
    with pytest.raises(ValueError, match="handle has no source"):

        @abate.consumer()
        def handle(message): ...

        handle.run()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"max_receives": 0}, ValueError, "max_receives must be a whole number of at least 1, not 0"),
        ({"breaker": 3}, TypeError, "breaker must be a CircuitBreaker, or False for none, not 3"),
        ({"workers": 0}, ValueError, "workers must be a whole number of at least 1, not 0"),
        ({"source": "nonsense://x"}, ValueError, "nonsense"),
    ],
)
def test_invalid_settings_are_refused(settings, error, message):
    """Construction raises an error that names the setting and its value."""
    with pytest.raises(error, match=message):
        abate.consumer(**settings)(lambda message: None)


def test_a_store_as_source_means_the_queue_named_like_the_consumer(store):
    """A store or a URL as source means the queue with the consumer's name."""

    def send_mail(message): ...

    consumer = abate.consumer(source=store)(send_mail)
    assert consumer.source.name == "send_mail"
    assert abate.consumer(source="memory:", name="mails")(send_mail).source.name == "mails"


def test_a_breaker_limits_receives_while_a_dependency_is_down(store):
    """Few messages use up receives during the outage; all are done after it."""
    with VirtualClock() as clock:
        queue = store.queue("orders", lease=30.0)
        down = True

        @abate.consumer(
            source=queue,
            workers=2,
            max_receives=5,
            breaker=CircuitBreaker(min_calls=10, pause=30.0),
            rng=random.Random(1),
        )
        async def handle(message):
            await clock.asleep(0.1)
            if down:
                raise ConnectionError

        async def main():
            nonlocal down
            for number in range(200):
                queue.add(f"order-{number}")
            running = asyncio.create_task(handle.arun())
            await clock.asleep(600.0)
            down = False
            while queue.depth().ready + queue.depth().delayed + queue.depth().leased:
                await clock.asleep(60.0)
            handle.stop()
            return await running

        tally = asyncio.run(main())
        assert tally["done"] == 200
        assert "buried" not in tally
        assert tally["retry"] < 40


# -- the controller with a store


@pytest.mark.parametrize("given", [None, CircuitBreaker(min_calls=10)])
def test_a_reset_closes_the_breaker_unless_it_is_shared(given):
    """A dependency that was down in one test is not down in the next one."""

    @abate.consumer(max_receives=1, breaker=given)
    def handle(message):
        raise ConnectionError

    with VirtualClock(), abate.open_store("memory:") as store:
        for key in range(40):
            store.queue("handle").send(str(key))
        run_for(handle, 1.0, store)
        assert handle.breaker.seconds_until_half_open()
        handle.reset()
        assert (handle.breaker.seconds_until_half_open() is None) is (given is None)
        assert given is None or handle.breaker is given


def test_keys_in_a_store_survive_their_process(tmp_path):
    """The next process handles the keys that an earlier one added."""
    url = f"sqlite:///{tmp_path}/work.db"

    def reconcile(key):
        seen.append(key)

    for _ in range(2):
        first = abate.controller(store=url)(reconcile)
        first.add("a")
    seen = []
    second = abate.controller(store=url)(reconcile)
    assert second.waiting() == 1
    assert second.run(drain=True) == {"done": 1}
    assert seen == ["a"]


def test_keys_added_before_run_move_to_its_store(store):
    """Keys are in memory until run is given a store."""
    seen = []
    controller = abate.controller(name="orders")(lambda key: seen.append(key))
    controller.add("a")
    assert controller.run(store, drain=True) == {"done": 1}
    assert seen == ["a"]
    assert store.queues()["orders"].ready == 0


def test_delays_and_priorities_move_to_the_store(store):
    """Keys keep their delay and priority when they move to the store."""
    with VirtualClock() as clock:
        controller = abate.controller(name="orders", workers=1)(lambda key: seen.append((clock.now(), key)))
        controller.add("later", after=30.0)
        controller.add("low")
        controller.add("high", priority=3)
        seen = []
        assert controller.run(store, drain=True) == {"done": 2}
        assert seen == [(0.0, "high"), (0.0, "low")]
        assert store.queues()["orders"].delayed == 1


def test_a_key_that_the_store_refuses_stays_in_memory(store):
    """No key is lost if the move to the store fails part-way."""
    controller = abate.controller(name="orders", capacity=2)(lambda key: None)
    controller.add("a")
    controller.add(42)
    with pytest.raises(TypeError, match="a key must be"):
        controller.run(store, drain=True)
    assert controller.waiting() == 1
    assert store.queues()["orders"].ready == 1


def test_a_resync_does_not_unpark_keys_in_a_store(store):
    """A parked key keeps its reason until it is added again."""
    with VirtualClock() as clock:
        seen = []

        @abate.controller(store=store, resync=10.0)
        async def reconcile(key):
            seen.append(key)
            if len(seen) == 1:
                raise PermanentFailure("no")

        reconcile.add("a")
        run_for(reconcile, 50.0)
        assert seen == ["a"]
        [parked] = reconcile.parked()
        assert (parked.key, parked.kind, parked.reason) == ("a", "permanent", "no")
        reconcile.add("a")
        assert reconcile.parked() == []
        run_for(reconcile, 5.0)
        assert seen[:2] == ["a", "a"]
        assert clock.now() >= 55.0


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["good", "fail", "again"]), min_size=1, max_size=6))
def test_failures_of_a_key_in_a_store_count_from_its_last_success(words):
    """Each delay follows from the failures since the last success, as in memory."""
    with VirtualClock(), abate.open_store("memory:") as store:
        answers, receives = list(words), []

        @abate.controller(store=store, backoff=STEADY)
        async def reconcile(key):
            word = answers.pop(0) if answers else "good"
            if word == "fail":
                raise ConnectionError
            return abate.Again(1.0) if word == "again" else None

        inner = reconcile._handle
        reconcile._handle = lambda message: (receives.append(message.receives), inner(message))[1]
        reconcile.add("a")
        run_for(reconcile, 80.0)
        expected, count = [], 0
        for word in words:
            count += 1
            expected.append(count)
            if word == "good":
                break
            if word == "again":
                count = 0
        else:
            expected.append(count + 1)
        assert receives == expected


def test_a_full_store_makes_sources_wait(store):
    """Add raises QueueFull; a source waits for capacity."""
    with VirtualClock() as clock:
        seen = []

        @abate.controller(store=store, capacity=2, workers=1)
        async def reconcile(key):
            await clock.asleep(1.0)
            seen.append(key)

        @reconcile.source
        async def watch():
            for number in range(20):
                yield str(number)
            await asyncio.Event().wait()

        reconcile.add("x")
        reconcile.add("y")
        with pytest.raises(abate.QueueFull):
            reconcile.add("z")
        run_for(reconcile, 100.0)
        assert len(seen) == 22
