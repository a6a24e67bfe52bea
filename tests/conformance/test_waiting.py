"""One store for many: waiting receives are woken, and threads, processes and the children of a fork share it.

On the machine's clock: what is tested is who meets whom, not when.
"""

import json
import os
import random
import sqlite3
import sys
import threading
import time

import pytest

from abate.stores import Depth, StoreError, open_store
from abate.stores.postgres import listener
from abate.work.source import Back, Done
from tests.conformance import postgres_server
from tests.conformance.conftest import SHARED, STORES
from tests.stores.processes import (
    FOR_EVER,
    GUARD,
    Thread,
    count_waiters,
    forks,
    in_child,
    keys,
    output,
    python,
    tell,
    until,
    waiting,
)

shared = pytest.mark.parametrize("url", SHARED, indirect=True)


@pytest.fixture
def clock():
    """The machine's."""
    return None


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A receive that waits in PostgreSQL does not poll within the time of a test: it has to be woken.

    So its announcement, which a poll renews, has to last.
    """
    monkeypatch.setattr(listener, "POLL_LISTENING", FOR_EVER)
    monkeypatch.setattr(listener, "ANNOUNCE_SECONDS", FOR_EVER)


# ── Waking ───────────────────────────────────────────────────────────────────────────────────────────────


def test_an_add_wakes_one_waiter(store):
    """One waiter of its queue per add, through whichever queue object."""
    orders, others = store.queue("orders"), store.queue("others")
    threads = [waiting(store, orders), waiting(store, others), waiting(store, others)]
    for key in "ab":
        store.queue("others").add(key)
    assert sorted(keys(threads[1].answer()) + keys(threads[2].answer())) == ["a", "b"]
    store.queue("orders").add("c")
    assert keys(threads[0].answer()) == ["c"]


@pytest.mark.parametrize("how", ["back", "back later", "again", "redrive", "add for later", "added meanwhile"])
def test_a_returned_message_wakes_one_waiter(store, how):
    """Whatever returns it, at once or after a delay."""
    queue = store.queue("orders")
    if how != "add for later":
        queue.add("a")
        (message,) = queue.receive()
    if how == "redrive":
        queue.bury(message, "bad")
    thread = waiting(store, queue)
    match how:
        case "back":
            queue.back(message, 0.0)
        case "back later":
            queue.back(message, 0.1)
        case "again":
            queue.done(message, again=0.0)
        case "redrive":
            queue.redrive()
        case "add for later":
            queue.add("a", after=0.2)
        case "added meanwhile":
            queue.add("a")
            queue.done(message)
    assert keys(thread.answer()) == ["a"]


def test_several_messages_at_once_wake_several_waiters(store):
    """One settlement returns three messages, at once or due together."""
    queue = store.queue("orders")
    for key in "abc":
        queue.add(key)
    taken = queue.receive(3)
    for after in (0.0, 0.3):
        threads = [waiting(store, queue) for _ in range(3)]
        queue.settle([(message, Back(after)) for message in taken])
        taken = [message for thread in threads for message in thread.answer()]
        assert sorted(keys(taken)) == ["a", "b", "c"]


def test_an_expired_lease_wakes_one_waiter(store):
    """Waiters that came before the lease began and after are both woken."""
    queue = store.queue("orders", lease=0.3)
    threads = [waiting(store, queue), waiting(store, queue)]
    queue.add("a")
    until(lambda: any(not thread.is_alive() for thread in threads))
    assert [keys(thread.answer()) for thread in threads] == [["a"], ["a"]]
    assert keys(queue.receive(wait=GUARD)) == ["a"]


def test_a_delayed_message_is_delivered_though_the_timekeeping_waiter_has_left(store):
    """Another waiter takes over the time."""
    queue = store.queue("orders")
    threads = [waiting(store, queue, 0.2), waiting(store, queue), waiting(store, queue)]
    for key in "ab":
        queue.add(key, after=0.4)
    assert threads[0].answer() == []
    assert sorted(keys(threads[1].answer()) + keys(threads[2].answer())) == ["a", "b"]


def test_closing_wakes_all_waiters(store):
    """They raise the reason, and so does a later receive."""
    queue = store.queue("orders")
    threads = [waiting(store, queue), waiting(store, queue)]
    store.close()
    for thread in threads:
        with pytest.raises(StoreError, match="is closed"):
            thread.answer()
    with pytest.raises(StoreError, match="is closed"):
        queue.add("a")
    store.close()


def test_waiters_leave_no_state_behind(store):
    """The state of a waiter is freed with it."""
    queue = store.queue("orders")
    assert queue.receive(wait=0.01) == []
    until(lambda: count_waiters(store, queue) == 0)
    assert not hasattr(store, "wakeups") or store.wakeups._wait_lists == {}


# ── Threads ──────────────────────────────────────────────────────────────────────────────────────────────


def test_threads_never_have_one_message_together_and_lose_none(store):
    """With turns as short as can be, keys that are added again while they are in hand, at several priorities, and
    settled in batches."""
    queue = store.queue("orders")
    held, wanted, seen, lock = set(), {}, {}, threading.Lock()
    end = threading.Event()

    def produce(place):
        rng = random.Random(place)
        for n in range(100):
            key = f"key {rng.randrange(20)}"
            with lock:
                wanted[f"{key} {place}"] = n
                body = json.dumps({name: n for name, n in wanted.items() if name.startswith(f"{key} ")})
                queue.add(key, body, priority=rng.randrange(3))

    def consume():
        while True:
            messages = queue.receive(3)
            if not messages and end.is_set():
                return
            with lock:
                assert not held & set(keys(messages))
                held.update(keys(messages))
                for message in messages:
                    for name, n in message.json().items():
                        seen[name] = max(n, seen.get(name, 0))
            time.sleep(0)
            with lock:
                held.difference_update(keys(messages))
            assert queue.extend(messages) == []
            assert queue.settle([(message, Done()) for message in reversed(messages)]) == []

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        consumers = [Thread(consume) for _ in range(4)]
        producers = [Thread(produce, place) for place in range(4)]
        for producer in producers:
            producer.answer()
        end.set()
        for consumer in consumers:
            consumer.answer()
    finally:
        sys.setswitchinterval(before)
    assert seen == wanted
    assert queue.depth() == Depth()


# ── Processes ────────────────────────────────────────────────────────────────────────────────────────────


@shared
def test_what_another_process_adds_wakes_all_waiting_receives(store, url):
    """The waiter that notices it wakes those of other queues."""
    orders, others = store.queue("orders"), store.queue("others")
    first = waiting(store, orders)
    threads = [waiting(store, others), waiting(store, others)]
    code = """if True:
        import abate.stores, sys
        with abate.stores.open_store(sys.argv[1]) as store:
            for key in "ab":
                store.queue("others").add(key)
            sys.stdin.readline()
            store.queue("orders").add("c")
    """
    process = python(code, url)
    assert sorted(key for thread in threads for key in keys(thread.answer())) == ["a", "b"]
    tell(process, "go on")
    assert keys(first.answer()) == ["c"]
    output(process)


@pytest.mark.parametrize("kind", SHARED)
def test_processes_that_open_a_new_store_together_all_get_it(kind, tmp_path):
    """One makes it, the others find it."""
    url = postgres_server.new_store() if kind == "postgres" else STORES[kind](tmp_path)
    code = """if True:
        import abate.stores, sys
        sys.stdin.readline()
        with abate.stores.open_store(sys.argv[1]) as store:
            store.queue("orders").add(sys.argv[2])
    """
    processes = [python(code, url, str(n)) for n in range(6)]
    for process in processes:
        tell(process, "go")
    for process in processes:
        output(process)
    with open_store(url) as store:
        assert store.queue("orders").depth().ready == 6


@shared
def test_a_budget_is_shared_by_processes(url):
    """Together they withdraw what there is, and no more."""
    code = """if True:
        import abate.stores, sys
        with abate.stores.open_store(sys.argv[1]) as store:
            budget = store.ledger("nightly", ratio=0.0, reserve=0.05, window=3600.0)
            print(sum(budget.try_withdraw() for _ in range(100)))
    """
    processes = [python(code, url) for _ in range(3)]
    assert sum(int(output(process)[0]) for process in processes) == 180


# ── Fork ─────────────────────────────────────────────────────────────────────────────────────────────────


@forks
@shared
def test_a_forked_child_shares_the_store(store):
    """Both work on, also when the child has closed it, and neither reads an answer that was meant for the other."""
    queue = store.queue("orders")
    queue.add("a")

    def child():
        (message,) = queue.receive()
        queue.add("b")
        queue.done(message)
        store.close()
        return message.key

    idle = waiting(store, store.queue("others"))
    assert in_child(child) == "a"
    assert in_child(lambda: [queue.add(f"c{n}") for n in range(50)].count(True)) == "50"
    assert len(queue.receive(100)) == 51
    store.queue("others").add("enough")
    assert keys(idle.answer()) == ["enough"]


@forks
@shared
def test_a_forked_child_goes_on_when_its_parent_has_closed_the_store(store, url):
    """The connections of each are its own, those that were open before the fork too."""
    queue = store.queue("orders")
    queue.add("a")
    closed, close = os.pipe()

    def child():
        queue.add("b")
        os.read(closed, 1)
        return [queue.add(key) for key in "cde"], queue.depth().ready

    thread = Thread(in_child, child)
    until(lambda: queue.depth().ready == 2)
    store.close()
    os.write(close, b".")
    assert thread.answer() == "([True, True, True], 5)"
    with open_store(url) as opened:
        assert keys(opened.queue("orders").receive(9)) == ["a", "b", "c", "d", "e"]


@forks
@shared
def test_a_fork_while_other_threads_work_loses_nothing(store, url):
    """Threads add and wait while the process forks; neither children nor parent lose messages or hang."""
    queue, end = store.queue("orders"), threading.Event()

    def produce(place):
        n = 0
        while not end.is_set():
            queue.add(f"{place} {n}")
            n += 1
        return n

    producers = [Thread(produce, place) for place in range(2)]
    idle = waiting(store, store.queue("others"))
    answers = [in_child(lambda n=n: queue.add(f"child {n}")) for n in range(20)]
    end.set()
    made = sum(producer.answer() for producer in producers)
    store.queue("others").add("enough")
    assert keys(idle.answer()) == ["enough"]
    assert answers == ["True"] * 20
    assert queue.depth().ready == made + 20
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
            assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        file.close()
