"""What every store does with many dead letters: a bounded number at a time, so that others do not wait for long."""

import threading

import pytest

from abate.stores import Depth, StoreError, open_store
from abate.stores.postgres import queue as postgres
from abate.stores.redis.scripts import BATCH
from abate.stores.sqlite import queue as sqlite
from abate.testing import VirtualClock
from abate.work import QueueFull
from abate.work.source import Bury
from tests.conformance.conftest import SHARED, STORES
from tests.stores.processes import GUARD, Thread

MANY = 2 * BATCH + BATCH // 2


@pytest.fixture(autouse=True)
def batches(monkeypatch):
    """Of one size on every store: that of Redis stands in its scripts."""
    monkeypatch.setattr(postgres, "MAX_BATCH", BATCH)
    monkeypatch.setattr(postgres, "LETTERS_AT_ONCE", BATCH)
    monkeypatch.setattr(sqlite, "BATCH", BATCH)
    monkeypatch.setattr(postgres.PostgresQueue, "_batch_size", BATCH)
    monkeypatch.setattr(sqlite.SqliteQueue, "_batch_size", BATCH)


def keys(several):
    return [one.key for one in several]


def bury(queue, many=MANY, clock=None):
    """Bury messages in another order than they were added; return their keys in the order of burial."""
    for n in range(many):
        queue.add(f"key {n:03}")
    messages = queue.receive(many)[::-1]
    for start in range(0, many, 50):
        assert queue.settle([(message, Bury("permanent", "bad")) for message in messages[start : start + 50]]) == []
        if clock is not None:
            clock.advance(0.1)
    return [letter.key for letter in reversed(queue.dead(many))]


def writer(store):
    """The object and the method by which a store does what is one transaction."""
    ways = (("file", "transaction"), ("server", "call"), ("pool", "run"))
    return next((getattr(store, holder), name) for holder, name in ways if hasattr(store, holder))


def count_batches(store, monkeypatch, fail=0):
    """The list grows by one with each transaction; the one of that number fails before it has done anything."""
    holder, name = writer(store)
    call, calls = getattr(holder, name), []

    def counted(*args, **options):
        if "letters" not in str(args):  # which only look
            calls.append(args)
            if len(calls) == fail:
                raise StoreError("the store is gone")
        return call(*args, **options)

    monkeypatch.setattr(holder, name, counted)
    return calls


# ── Redrive and purge ────────────────────────────────────────────────────────────────────────────────────


def test_redriven_letters_are_ready_in_the_order_in_which_they_died(queue, clock):
    """Across batches, and among those of one batch: not in that in which they were added."""
    died = bury(queue, clock=clock)
    assert died != sorted(died)
    clock.advance(1.0)
    queue.add("later")
    assert queue.redrive() == MANY
    assert queue.depth() == Depth(ready=MANY + 1, age=0.0)
    received = keys(queue.receive(MANY + 1))
    assert [key for key in received if key != "later"] == died


@pytest.mark.parametrize("which", ["all", "by key"])
@pytest.mark.parametrize("what", ["redrive", "purge"])
def test_what_was_done_stays_done_when_a_batch_fails(store, queue, monkeypatch, what, which):
    """Each batch is a transaction of its own; who calls again goes on with what is left."""
    died = bury(queue)
    named = None if which == "all" else died
    with monkeypatch.context() as patch:
        count_batches(store, patch, fail=3)
        with pytest.raises(StoreError, match="the store is gone"):
            getattr(queue, what)(named)
    assert queue.depth().dead == MANY - 2 * BATCH
    calls = count_batches(store, monkeypatch)
    assert getattr(queue, what)(named) == MANY - 2 * BATCH
    assert len(calls) <= 3
    assert queue.depth() == (Depth(ready=MANY, age=0.0) if what == "redrive" else Depth())


@pytest.mark.parametrize("kind", STORES)
def test_what_dies_while_letters_are_redriven_stays_dead(kind, tmp_path):
    """A worker buries what comes at once; every letter is redriven once, and that ends."""
    with open_store(STORES[kind](tmp_path)) as store:
        queue, end = store.queue("orders"), threading.Event()
        bury(queue, 6 * BATCH)

        def work():
            while not end.is_set():
                queue.settle([(message, Bury("permanent", "still bad")) for message in queue.receive(50, 0.01)])

        worker = Thread(work)
        try:
            assert Thread(queue.redrive).answer() == 6 * BATCH
            while queue.depth().dead < 6 * BATCH:
                assert worker.is_alive()
        finally:
            end.set()
        worker.answer()
        assert {letter.reason for letter in queue.dead(10 * BATCH)} == {"still bad"}


@pytest.mark.parametrize("kind", SHARED)
def test_letters_that_died_ahead_of_a_clock_that_was_set_back_are_redriven(kind, tmp_path):
    """They are dead, whatever the time is."""
    url = STORES[kind](tmp_path)
    with open_store(url, clock=VirtualClock(start=5000.0)) as store:
        bury(store.queue("orders"))
    with open_store(url, clock=VirtualClock(start=1000.0)) as store:
        assert store.queue("orders").redrive() == MANY


def test_redriven_letters_are_let_in_whatever_the_capacity(store):
    """They have been in before, and nowhere else could they go; what is new waits until there is room."""
    queue = store.queue("small", capacity=5)
    bury(store.queue("small"), 8)
    assert queue.redrive() == 8
    with pytest.raises(QueueFull):
        queue.add("new")
    for message in queue.receive(4):
        queue.done(message)
    assert queue.add("new") is True


def test_two_redrives_at_once_share_the_letters(store):
    """Each is counted once."""
    queue = store.queue("orders")
    bury(queue)
    barrier = threading.Barrier(2)

    def redrive():
        barrier.wait(GUARD)
        return queue.redrive()

    assert sum(thread.answer() for thread in [Thread(redrive), Thread(redrive)]) == MANY


# ── Looking ──────────────────────────────────────────────────────────────────────────────────────────────


def test_letters_are_listed_in_pages_that_no_caller_sees(queue):
    """As many as were asked for, those that died last first."""
    died = bury(queue)
    assert keys(queue.dead(10 * MANY)) == died[::-1]
    assert keys(queue.dead(BATCH + 7)) == died[::-1][: BATCH + 7]
    assert keys(queue.dead(BATCH)) == died[::-1][:BATCH]


@pytest.mark.parametrize("change", ["one more dies", "those of the page are purged"])
def test_what_changes_between_two_pages_shows_no_letter_twice_and_hides_none(store, queue, clock, monkeypatch, change):
    """What was dead all the time is listed, once."""
    died = bury(queue)
    clock.advance(1.0)
    queue.add("new")
    (message,) = queue.receive()
    pages = []
    with monkeypatch.context() as patch:

        def between(call):
            def looked(*args, **options):
                answer = call(*args, **options)
                if not pages:
                    pages.append(answer)
                    patch.undo()
                    if change == "one more dies":
                        queue.bury(message, "bad")
                    else:
                        assert queue.purge(died[::-1][:BATCH]) == BATCH
                return answer

            return looked

        for holder, name in (("file", "read"), ("server", "call"), ("pool", "run")):
            if hasattr(store, holder):
                patch.setattr(getattr(store, holder), name, between(getattr(getattr(store, holder), name)))
        listed = keys(queue.dead(10 * MANY))
    assert listed == died[::-1]
