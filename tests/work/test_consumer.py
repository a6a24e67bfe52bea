"""The consumer and the controller over a store: leases, dead letters, what survives."""

import asyncio
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import Backoff, CircuitBreaker, PermanentFailure, Recoverable, SilentSuccess
from abate.testing import VirtualClock

STEADY = Backoff(1.0, 900.0, jitter="none")


@pytest.fixture(params=["memory:", "sqlite:///work.db"])
def store(request, tmp_path, monkeypatch):
    """A store of each embedded kind."""
    monkeypatch.chdir(tmp_path)
    with abate.open_store(request.param) as store:
        yield store


def live(service, seconds, source=None):
    """Run it for so many virtual seconds: the tally."""

    async def main():
        running = asyncio.create_task(service.arun(source))
        await abate.clock.current().asleep(seconds)
        service.stop()
        return await running

    return asyncio.run(main())


def test_messages_are_handled_once_each(store):
    """In threads, in real time."""
    queue, seen = store.queue("orders"), []
    keys = [queue.send(str(n)) for n in range(100)]
    handle = abate.consumer(source=queue)(lambda message: seen.append((message.key, message.body)))
    assert handle.run(drain=True) == {"done": 100}
    assert sorted(seen) == sorted(zip(keys, map(str, range(100)), strict=True))
    depth = queue.depth()
    assert (depth.ready, depth.delayed, depth.leased, depth.dead) == (0, 0, 0, 0)


def test_each_answer_has_its_end(store):
    """The vocabulary of messages: done, silent, back, buried."""
    with VirtualClock():
        queue = store.queue("orders")
        answers = {
            "done": None,
            "silent": SilentSuccess(),
            "permanent": PermanentFailure("no address"),
            "back": Recoverable("later", after=50.0),
            "error": ConnectionError("gone"),
        }

        @abate.consumer(source=queue, backoff=STEADY)
        def handle(message):
            answer = answers[message.key]
            if answer is not None:
                raise answer

        for key in answers:
            queue.add(key)
        assert handle.run(drain=True) == {"done": 1, "silent": 1, "buried": 1, "retry": 2}
        [letter] = queue.dead()
        assert (letter.key, letter.kind, letter.reason) == ("permanent", "permanent", "no address")
        assert "PermanentFailure" in letter.trace
        depth = queue.depth()
        assert (depth.ready, depth.delayed, depth.leased, depth.dead) == (0, 2, 0, 1)


def test_a_message_that_always_fails_is_buried_after_its_receives(store):
    """With growing delays, and the last error as the reason."""
    with VirtualClock() as clock:
        queue, seen = store.queue("orders"), []

        @abate.consumer(source=queue, backoff=STEADY, max_receives=4, breaker=False)
        async def handle(message):
            seen.append((message.receives, clock.now()))
            raise ConnectionError("gone")

        queue.add("a")
        tally = live(handle, 60.0)
        assert [receives for receives, _ in seen] == [1, 2, 3, 4]
        gaps = [later - sooner for (_, sooner), (_, later) in pairwise(seen)]
        assert gaps == pytest.approx([1.0, 2.0, 4.0], abs=0.1)
        assert tally == {"retry": 3, "buried": 1}
        assert queue.dead()[0].reason == "ConnectionError: gone (received 4 times)"


def test_a_policy_inside_and_the_queue_around_do_not_multiply(store):
    """An error that the policy gave up on sends the message back once, with the queue's delay."""
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


def test_a_long_handler_keeps_its_lease(store):
    """The heartbeat extends the lease, however long the handler runs."""
    with VirtualClock() as clock:
        queue = store.queue("orders", lease=30.0)
        handled = []

        @abate.consumer(source=queue, workers=2)
        async def handle(message):
            await clock.asleep(500.0)
            handled.append(message.key)

        queue.add("long")
        assert live(handle, 600.0) == {"done": 1}
        assert handled == ["long"]


def test_an_unknown_source_is_refused():
    """A source must keep the contract; a consumer without one can't run."""
    with pytest.raises(TypeError, match="a source must have receive, extend and settle"):
        abate.consumer(source=object())(lambda message: None)

    class Half:
        name, durable = "half", True

        def receive(self, most, wait): ...
        def extend(self, messages): ...
        def settle(self, settlements): ...

    with pytest.raises(TypeError, match="a source must have a lease"):
        abate.consumer(source=Half())(lambda message: None)
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
def test_impossible_settings_are_refused(settings, error, message):
    """A clear error at construction."""
    with pytest.raises(error, match=message):
        abate.consumer(**settings)(lambda message: None)


def test_a_store_gives_the_queue_of_the_consumers_name(store):
    """A store, or its URL, stands for the queue that is called like the function."""

    def send_mail(message): ...

    consumer = abate.consumer(source=store)(send_mail)
    assert consumer.source.name == "send_mail"
    assert abate.consumer(source="memory:", name="mails")(send_mail).source.name == "mails"


def test_a_breaker_saves_the_receives(store):
    """While a dependency is down, most messages keep their count of receives; afterwards all are done."""
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


# -- the controller over a store


def test_keys_of_a_controller_survive_in_a_store(tmp_path):
    """What one process added, the next one works on."""
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


def test_keys_added_before_the_store_was_known_go_there(store):
    """A store that is given to run gets what was added before."""
    seen = []
    controller = abate.controller(name="orders")(lambda key: seen.append(key))
    controller.add("a")
    assert controller.run(store, drain=True) == {"done": 1}
    assert seen == ["a"]
    assert store.queues()["orders"].ready == 0


def test_everything_that_was_added_before_goes_to_the_store(store):
    """Delays and priorities included."""
    with VirtualClock() as clock:
        controller = abate.controller(name="orders", workers=1)(lambda key: seen.append((clock.now(), key)))
        controller.add("later", after=30.0)
        controller.add("low")
        controller.add("high", priority=3)
        seen = []
        assert controller.run(store, drain=True) == {"done": 2}
        assert seen == [(0.0, "high"), (0.0, "low")]
        assert store.queues()["orders"].delayed == 1


def test_what_a_store_does_not_take_stays_where_it_was(store):
    """Nothing is lost when the move breaks off."""
    controller = abate.controller(name="orders", capacity=2)(lambda key: None)
    controller.add("a")
    controller.add(42)
    with pytest.raises(TypeError, match="a key must be"):
        controller.run(store, drain=True)
    assert controller.waiting() == 1
    assert store.queues()["orders"].ready == 1


def test_a_controller_parks_keys_in_its_store(store):
    """With the reason, until somebody adds them again; a resync is nobody."""
    with VirtualClock() as clock:
        seen = []

        @abate.controller(store=store, resync=10.0)
        async def reconcile(key):
            seen.append(key)
            if len(seen) == 1:
                raise PermanentFailure("no")

        reconcile.add("a")
        live(reconcile, 50.0)
        assert seen == ["a"]
        [parked] = reconcile.parked()
        assert (parked.key, parked.kind, parked.reason) == ("a", "permanent", "no")
        reconcile.add("a")
        assert reconcile.parked() == []
        live(reconcile, 5.0)
        assert seen[:2] == ["a", "a"]
        assert clock.now() >= 55.0


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["good", "fail", "again"]), min_size=1, max_size=6))
def test_a_key_goes_through_its_answers_over_a_store(words):
    """Failures are counted from the last success, as in memory."""
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
        live(reconcile, 80.0)
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


def test_a_controller_over_a_full_store_makes_its_sources_wait(store):
    """QueueFull for who adds, patience for who pushes."""
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
        live(reconcile, 100.0)
        assert len(seen) == 22
