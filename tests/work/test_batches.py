"""A handler of batches gets what has come together; each message gets its own result, and a poison one goes alone."""

import asyncio
import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate.stores import open_store
from abate.testing import VirtualClock, run_for
from tests.stores.processes import until


@pytest.fixture
def clock():
    with VirtualClock(start=1000.0) as entered:
        yield entered


@pytest.fixture
def queue(clock):
    with open_store("memory:") as store:
        yield store.queue("orders", lease=30.0)


def bodies(messages):
    return [message.body for message in messages]


def consumer(queue, handle, **options):
    """A consumer that notes its batches; with a backoff of ten seconds."""
    batches = []

    def noting(messages):
        batches.append(bodies(messages))
        return handle(messages)

    options = {"batch": 4, "workers": 1, "backoff": lambda retry: 10.0, "breaker": False, **options}
    return abate.consumer(source=queue, **options)(noting), batches


def drained(service, clock):
    """Run until nothing is left, also of what comes back."""
    tally = Counter()
    while service.depth().waiting:
        tally += service.run(drain=True)
        clock.advance(10.0)
    return tally


def test_what_comes_together_is_handled_together(queue):
    """Up to the given number; each message counts as done."""
    handle, batches = consumer(queue, lambda messages: None)
    queue.send_many(list("123456789"))
    assert handle.run(drain=True) == {"done": 9}
    assert batches == [list("1234"), list("5678"), ["9"]]


def test_a_coroutine_can_handle_batches(queue):
    """The same."""
    batches = []

    @abate.consumer(source=queue, batch=2, workers=2)
    async def handle(messages):
        batches.append(bodies(messages))
        await asyncio.sleep(0)

    queue.send_many(list("123"))
    assert handle.run(drain=True) == {"done": 3}
    assert batches == [["1", "2"], ["3"]]


def test_single_messages_fail_by_the_dict_that_is_returned(queue, clock):
    """Each with its own error, as if it was handled alone; those that are not named are done."""

    def handle(messages):
        errors = {
            "bad": abate.PermanentFailure("no address"),
            "busy": ConnectionError(),
            "later": abate.Again(5.0),
            "nothing": abate.SilentSuccess(),
        }
        return {message: errors[message.body] for message in messages if message.body in errors and clock.now() < 1001}

    handle, batches = consumer(queue, handle, batch=10)
    queue.send_many(["good", "bad", "busy", "later", "nothing", "fine"])
    assert handle.run(drain=True) == {"done": 2, "buried": 1, "retry": 1, "again": 1, "silent": 1}
    assert [(letter.body, letter.kind, letter.reason) for letter in queue.dead()] == [
        ("bad", "permanent", "no address")
    ]
    clock.advance(10.0)
    assert handle.run(drain=True) == {"done": 2}
    assert batches[1:] == [["later"], ["busy"]]


@pytest.mark.parametrize("error", [ValueError("bad row"), abate.PermanentFailure("bad row"), SystemExit(1)])
def test_one_poison_message_goes_to_the_dead_letters_alone(queue, clock, error):
    """Its neighbours come back with it, once, and are done."""

    def handle(messages):
        if "poison" in bodies(messages):
            raise error

    handle, batches = consumer(queue, handle, max_receives=3)
    queue.send_many(["1", "poison", "2", "3", "4"])
    tally = drained(handle, clock)
    assert (tally["done"], tally["buried"]) == (4, 1)
    assert batches[0] == ["1", "poison", "2", "3"]
    assert all(len(batch) == 1 for batch in batches[1:])
    (letter,) = queue.dead()
    assert letter.body == "poison"
    assert letter.receives == (2 if isinstance(error, abate.PermanentFailure) else 3)


def test_one_poison_message_does_not_trip_the_breaker(queue, clock):
    """A batch that fails is one failed call, however many messages it has; its neighbours are done a backoff later."""

    def handle(messages):
        if "poison" in bodies(messages):
            raise ValueError

    breaker = abate.CircuitBreaker()
    handle, _ = consumer(queue, handle, batch=100, max_receives=3, breaker=breaker)
    queue.send_many([str(number) for number in range(99)] + ["poison"])
    queue.send_many([str(number) for number in range(100)])
    assert handle.run(drain=True) == {"retry": 100, "done": 100}
    clock.advance(10.0)
    assert handle.run(drain=True) == {"done": 99, "retry": 1}
    assert breaker.trips == 0


def test_an_outage_trips_the_breaker(queue, clock):
    """The failed batches count, and so does each of their messages, once it fails alone."""

    def handle(messages):
        raise ConnectionError

    breaker = abate.CircuitBreaker()
    handle, batches = consumer(queue, handle, batch=100, breaker=breaker)
    queue.send_many([str(number) for number in range(1000)])
    run_for(handle, 9.0)
    assert (breaker.trips, len(batches)) == (0, 10)
    run_for(handle, 9.0)
    assert breaker.trips >= 1
    assert len(batches) < 200


def test_errors_that_are_not_retried_bury_no_neighbours(queue, clock):
    """`on` says that a ValueError is fatal: only the message that raises it alone is buried."""

    def handle(messages):
        if "poison" in bodies(messages):
            raise ValueError

    handle, _ = consumer(queue, handle, on=ConnectionError)
    queue.send_many(["1", "poison", "2"])
    assert drained(handle, clock) == {"retry": 3, "done": 2, "buried": 1}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (["1"], "not ['1']"),
        (True, "not True"),
        ({"1": ValueError()}, "'1' is not a message of this batch"),
        ({abate.work.Message("x"): ValueError()}, "is not a message of this batch"),
        ("all", "not 'failed' for"),
        ("class", "not <class 'ValueError'> for"),
    ],
)
def test_a_mistake_in_what_is_returned_counts_as_a_failure(queue, clock, value, said):
    """Nothing is done by mistake: the messages end among the dead letters, with what was expected."""

    def handle(messages):
        if isinstance(value, str):
            return dict.fromkeys(messages, "failed" if value == "all" else ValueError)
        return value

    handle, _ = consumer(queue, handle, max_receives=2)
    queue.send_many(["1", "2"])
    assert drained(handle, clock) == {"retry": 2, "buried": 2}
    for letter in queue.dead():
        assert letter.reason.startswith(
            "TypeError: a handler of batches must return None, abate.Again(after), or a dict"
        )
        assert said in letter.reason


def test_a_failed_batch_tells_sinks_of_the_error_that_was_raised(queue, clock):
    """And not of a wrapper."""

    def handle(messages):
        raise ConnectionError("no answer")

    handle, _ = consumer(queue, handle, max_receives=2)
    queue.send_many(["1", "2"])
    with abate.testing.Recorder() as seen:
        drained(handle, clock)
    assert [(event.ending, type(event.error)) for event in seen.of(abate.events.Worked)] == [
        ("retry", ConnectionError),
        ("retry", ConnectionError),
        ("buried", ConnectionError),
        ("buried", ConnectionError),
    ]


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from(["good", "bad", "flaky", "poison"]), max_size=12),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_every_message_is_done_or_buried_by_its_own_fault(kinds, size, workers):
    """Whatever comes together: bad ones are reported, poison ones raise, flaky ones fail once."""
    with VirtualClock(start=1000.0) as clock, open_store("memory:") as store:
        queue = store.queue("orders")
        seen = Counter()

        def handle(messages):
            for message in messages:
                seen[message.key] += 1
                if message.body == "poison" or (message.body == "flaky" and seen[message.key] == 1):
                    raise ValueError(message.body)
            return {message: abate.PermanentFailure("bad") for message in messages if message.body == "bad"}

        handle, batches = consumer(queue, handle, batch=size, workers=workers, max_receives=4)
        queue.send_many(kinds)
        tally = drained(handle, clock)
        assert Counter(letter.body for letter in queue.dead()) == Counter(
            kind for kind in kinds if kind in ("bad", "poison")
        )
        assert tally["done"] == len([kind for kind in kinds if kind in ("good", "flaky")])
        assert all(len(batch) <= size for batch in batches)


# ── On the machine's clock: threads ──────────────────────────────────────────────────────────────────────


def test_messages_that_come_while_all_workers_are_busy_make_the_next_batch():
    """At most `workers` batches run at once; what comes meanwhile is left to other processes."""
    with open_store("memory:") as store:
        queue = store.queue("orders")
        go, batches, running = threading.Event(), [], []

        @abate.consumer(source=queue, batch=10, workers=1)
        def handle(messages):
            running.append(len(running))
            batches.append(bodies(messages))
            if len(batches) == 1:
                for body in "234":
                    queue.send(body)
                go.wait(10.0)

        queue.send("1")

        async def main():
            task = asyncio.ensure_future(handle.arun())
            while queue.depth().ready < 3:
                await asyncio.sleep(0.01)
            assert handle.health().in_hand == 1
            go.set()
            while handle.health().tally.get("done", 0) < 4:
                await asyncio.sleep(0.01)
            handle.stop()
            return await task

        assert asyncio.run(main()) == {"done": 4}
        assert batches == [["1"], ["2", "3", "4"]]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_batch_that_exceeds_its_timeout_comes_back(asynchronous, monkeypatch):
    """A coroutine is cancelled; a thread keeps its worker until it ends."""
    monkeypatch.setattr("abate.work.batches.STUCK_TOLERANCE", 0.05)
    with open_store("memory:") as store:
        queue = store.queue("orders")
        go, health = threading.Event(), []

        async def cancelled(messages):
            if messages[0].receives == 1:
                await asyncio.sleep(60.0)

        def hangs(messages):
            if messages[0].receives == 1:
                go.wait(60.0)

        function = cancelled if asynchronous else hangs
        handle = abate.consumer(source=queue, batch=5, workers=1, timeout=0.05, backoff=lambda retry: 0.0)(function)
        queue.send_many(list("12"))

        async def main():
            running = asyncio.ensure_future(handle.arun())
            if not asynchronous:
                while not (health and health[-1].stuck):
                    health.append(handle.health())
                    await asyncio.sleep(0.01)
                assert not health[-1].ready
                go.set()
            while handle.health().tally.get("done", 0) < 2:
                await asyncio.sleep(0.01)
            assert handle.health().ready
            handle.stop()
            return await running

        assert asyncio.run(main()) == {"retry": 2, "done": 2}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_what_is_unfinished_after_the_grace_is_not_lost(asynchronous, monkeypatch):
    """A cancelled coroutine's messages go back untouched; a thread's are left to their leases."""
    monkeypatch.setattr("abate.work.loop.FINAL_SETTLE_TIMEOUT", 0.1)
    with open_store("memory:") as store:
        queue = store.queue("orders", lease=1.0)
        go, begun = threading.Event(), threading.Event()

        async def hangs_in_task(messages):
            begun.set()
            await asyncio.sleep(60.0)

        def hangs(messages):
            begun.set()
            go.wait(60.0)

        function = hangs_in_task if asynchronous else hangs
        handle = abate.consumer(source=queue, batch=2, workers=1, grace=0.05)(function)
        queue.send("1")

        async def main():
            running = asyncio.ensure_future(handle.arun())
            while not begun.is_set():
                await asyncio.sleep(0.01)
            await queue.asend_many(["2", "3"])
            handle.stop()
            return await running

        tally = asyncio.run(main())
        go.set()
        assert tally == ({"returned": 1} if asynchronous else {})
        receives = {}
        while len(receives) < 3:  # those of the thread when their lease has run out
            for message in queue.receive(3, wait=2.0):
                receives.setdefault(message.body, message.receives)
        assert receives == {"1": 1 if asynchronous else 2, "2": 1, "3": 1}


def test_no_thread_of_a_run_is_left():
    """A drain in a loop does not collect threads."""
    before = set(threading.enumerate())
    with open_store("memory:") as store:
        orders = store.queue("orders")
        handle = abate.consumer(source=orders, batch=2)(lambda messages: None)
        for _ in range(3):
            orders.send_many(list("123"))
            handle.run(drain=True)
        until(lambda: set(threading.enumerate()) <= before)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "batch must be a whole number of at least 1, not 0"),
        ({"batch": "all"}, "batch must be a whole number"),
        ({"batch": 10, "max_receives": 1}, "batch= needs a max_receives of at least 2"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, said):
    """When the consumer is made."""
    with pytest.raises((TypeError, ValueError), match=said.replace("(", "\\(")):
        abate.consumer(**options)
