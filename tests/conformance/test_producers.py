"""What every store does with many messages that are added at once, and from event loops."""

import asyncio
import itertools
import threading

import pytest
import trio

from abate.stores import Depth, open_store
from abate.stores.producer import MAX_MANY
from abate.work import QueueFull
from tests.conformance.conftest import SHARED, STORES


async def _async_keys():
    yield "a"


def received(queue, most=1000):
    return [(message.key, message.body) for message in queue.receive(most)]


def test_many_messages_come_out_as_they_went_in_and_in_their_order(queue):
    """Keys alone, pairs with a body, or a mapping; in the order in which they were given, and not of their keys."""
    assert queue.add_many([("z", "größe"), "a", ("m", "\0 \\ \" ' {1}")], attributes={"von": "Zoë"}) == [True] * 3
    assert queue.add_many({"y": "1", "b": "2"}) == [True, True]
    messages = queue.receive(10)
    assert [(message.key, message.body) for message in messages] == [
        ("z", "größe"),
        ("a", ""),
        ("m", "\0 \\ \" ' {1}"),
        ("y", "1"),
        ("b", "2"),
    ]
    assert [dict(message.attributes) for message in messages] == [{"von": "Zoë"}] * 3 + [{}] * 2


def test_messages_sent_at_once_get_keys_of_their_own(queue):
    """Equal bodies are two messages; the keys are returned in the order of the bodies."""
    keys = queue.send_many(["same", "same", "other"]) + queue.send_many(["same"])
    assert received(queue) == list(zip(keys, ["same", "same", "other", "same"], strict=True))
    assert len(set(keys)) == 4


def test_a_key_that_is_given_twice_waits_once(queue):
    """The first is new and the second is not; the newest body counts."""
    assert queue.add_many([("a", "1"), "b", ("a", "2")]) == [True, True, False]
    assert received(queue) == [("a", "2"), ("b", "")]
    assert (queue.add_counts.total.read(), queue.add_counts.coalesced.read()) == (3, 1)


def test_priority_delay_and_revival_apply_to_all(queue, clock):
    """As for a single message."""
    queue.add("low")
    queue.add_many(["high", "higher"], priority=5)
    queue.send_many(["late", "later"], after=60.0)
    assert [key for key, _ in received(queue)] == ["high", "higher", "low"]
    clock.advance(10.0)
    for message in queue.receive(3):
        queue.bury(message, "bad")
    assert queue.add_many(["high", "new"], revive=False) == [False, True]
    assert queue.add_many(["high", "new"]) == [True, False]
    assert queue.depth() == Depth(ready=2, delayed=2, dead=2, age=0.0)


def test_nothing_is_added_if_not_all_fit(store):
    """Keys that wait, or are leased, take no further place; nothing of a refused call is kept."""
    queue = store.queue("orders", capacity=4)
    queue.add_many(["a", "b"])
    (leased,) = queue.receive()
    with pytest.raises(QueueFull, match="'orders' is full: it holds 4 messages"):
        queue.add_many([("a", "new"), ("b", "new"), "c", "d", "e", "f"])
    assert queue.depth().waiting == 1
    assert queue.add_many([(leased.key, "new"), "b", "c", "d", "e"]) == [True, False, True, True, True]
    with pytest.raises(QueueFull):
        queue.send_many(["one more"])
    assert queue.add_many(["b", "c"]) == [False, False]  # a full queue takes what it has
    queue.done(leased)
    with pytest.raises(QueueFull):  # more wait than fit, as what was leased has come back
        queue.add_many(["c", "x"])
    assert [key for key, _ in received(queue)] == [leased.key, "b", "c", "d", "e"]


def test_a_call_without_messages_does_nothing(queue):
    """Neither is it an error."""
    assert (queue.add_many([]), queue.add_many({}), queue.send_many(iter(()))) == ([], [], [])
    assert queue.depth() == Depth()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda queue: queue.add_many("orders"), "messages must be a list of keys, or of pairs"),
        (lambda queue: queue.send_many("hello"), "bodies must be a list of strings, not 'hello'"),
        (
            lambda queue: queue.add_many(["a", ("b", "1", "2")]),
            "a message must be a key, or a pair of a key and a body",
        ),
        (lambda queue: queue.add_many(["a", 42]), "a message must be a key, or a pair of a key and a body, not 42"),
        (lambda queue: queue.add_many(["a", ""]), "a key must be a non-empty string"),
        (lambda queue: queue.add_many([("a", {"to": 1})]), "a body must be a string of at most 262144 bytes"),
        (lambda queue: queue.send_many(["a", None]), "a body must be a string of at most 262144 bytes, not None"),
        (lambda queue: queue.add_many(["a"], priority=-1), "priority must be a whole number"),
        (lambda queue: queue.send_many(["a"], after=-1), "after must be a number at least 0"),
        (lambda queue: queue.send_many(["a"], attributes={"n": 1}), "the attribute 'n' must be a string"),
        (lambda queue: queue.add_many(itertools.repeat("a")), "at most 10000 messages, not 10001 or more: split them"),
        (lambda queue: queue.add_many(_async_keys()), "key and a body, not <async_generator"),
        (lambda queue: queue.send_many(5), "bodies must be a list of strings, not 5"),
        (lambda queue: queue.send_many(["a"] * 10_001), "at most 10000 messages, not 10001: split them"),
        (lambda queue: queue.send_many(["x" * 262_144] * 257), "at most 67108864 bytes, not 67379232: split"),
    ],
)
def test_what_can_not_be_added_at_once_is_refused_by_name(queue, call, said):
    """And nothing of it is kept."""
    with pytest.raises((TypeError, ValueError)) as raised:
        call(queue)
    assert said in str(raised.value)
    assert queue.depth() == Depth()


def test_the_largest_number_is_added_at_once(queue):
    """Also if half of them are there already."""
    keys = [f"k{number}" for number in range(MAX_MANY)]
    queue.add_many(keys[::2], priority=1)
    assert queue.add_many(keys, priority=1) == [False, True] * (MAX_MANY // 2)
    assert queue.depth().ready == MAX_MANY


@pytest.mark.parametrize("kind", SHARED)
def test_calls_with_the_same_keys_at_the_same_time_add_each_once(kind, tmp_path):
    """In whatever order each call has them; each key is new for one call. None fails, also with a capacity."""
    url = STORES[kind](tmp_path)
    keys = [f"k{number}" for number in range(60)]
    new = []

    def add(keys, capacity):
        with open_store(url) as store:
            queue = store.queue("orders", capacity=capacity)
            for start in range(0, 60, 20):
                new.extend(queue.add_many(keys[start : start + 20]))

    threads = [
        threading.Thread(target=add, args=(order, capacity)) for order in (keys, keys[::-1]) for capacity in (None, 60)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(new), sum(new)) == (240, 60)
    with open_store(url) as store:
        assert store.queue("orders").depth().ready == 60


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("run", [lambda main: asyncio.run(main()), trio.run], ids=["asyncio", "trio"])
def test_an_event_loop_can_add(kind, run, tmp_path):
    """With the same arguments, results and errors as a thread."""

    async def main():
        with open_store(STORES[kind](tmp_path)) as store:
            queue = store.queue("orders", capacity=5)
            assert await queue.aadd("a", "1", priority=1, after=0.0, attributes={"n": "1"})
            assert not await queue.aadd("a", "2", revive=False)
            assert await queue.aadd_many(["a", "b"], priority=0, after=0.0) == [False, True]
            keys = [await queue.asend("3", priority=0), *await queue.asend_many(["4", "5"], attributes={"n": "1"})]
            assert received(queue) == [("a", ""), ("b", ""), *zip(keys, "345", strict=True)]
            await queue.asend_many(["x"] * 5)
            with pytest.raises(QueueFull):
                await queue.asend("x")

    run(main)


@pytest.mark.parametrize("kind", SHARED)
def test_an_event_loop_runs_on_while_a_store_adds(kind, tmp_path):
    """The call is made in another thread."""
    threads = []

    async def main():
        with open_store(STORES[kind](tmp_path)) as store:
            queue = store.queue("orders")
            add_many = queue._add_many

            def recorded(*args):
                threads.append(threading.get_ident())
                return add_many(*args)

            queue._add_many = recorded
            await queue.aadd("a")
            await queue.asend_many(["1"])

    asyncio.run(main())
    assert len(threads) == 2
    assert threading.get_ident() not in threads
