"""One store in PostgreSQL for many: threads, processes, and the children of a fork."""

import random
import subprocess
import sys
import threading
import time

import pytest

from abate.stores import Depth, open_store
from abate.stores.postgres import pool
from abate.work import QueueFull
from abate.work.source import Done
from tests.conformance.postgres_server import connection, empty_store, new_store
from tests.stores.postgres_cluster import sessions, waiting
from tests.stores.sharing import GUARD, Thread, forks, in_child, keys, until


@pytest.fixture
def url():
    return empty_store()


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        yield opened


# ── Threads ──────────────────────────────────────────────────────────────────────────────────────────────


def test_threads_never_have_one_message_together_and_lose_none(store):
    """With keys that are added again while they are in hand, at several priorities, and settled in batches."""
    queue = store.queue("orders")
    held, wanted, seen, lock = set(), {}, {}, threading.Lock()
    end = threading.Event()

    def produce(place):
        rng = random.Random(place)
        for n in range(60):
            key = f"key {rng.randrange(12)}"
            with lock:
                wanted[key, place] = n
                body = repr({p: n for (k, p), n in wanted.items() if k == key})
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
                    for place, n in eval(message.body).items():
                        seen[message.key, place] = max(n, seen.get((message.key, place), 0))
            with lock:
                held.difference_update(keys(messages))
            assert queue.extend(messages) == []
            assert queue.settle([(message, Done()) for message in reversed(messages)]) == []

    consumers = [Thread(consume) for _ in range(3)]
    producers = [Thread(produce, place) for place in range(3)]
    for producer in producers:
        producer.answer()
    end.set()
    for consumer in consumers:
        consumer.answer()
    assert seen == wanted
    assert queue.depth() == Depth()


def test_what_is_ready_is_handed_to_one_of_those_who_ask_at_once(store, url):
    """Each message once, however close they are upon each other."""
    queue, schema = store.queue("orders", lease=600.0), url.rpartition("=")[2]
    connection().execute(
        f"INSERT INTO {schema}.item (queue, key) SELECT 'orders', 'key ' || n FROM generate_series(1, 400) AS n"
    )
    barrier = threading.Barrier(4)

    def take():
        taken = []
        barrier.wait(GUARD)
        while messages := queue.receive(2):
            taken += keys(messages)
        return taken

    taken = [key for thread in [Thread(take) for _ in range(4)] for key in thread.answer()]
    taken += keys(queue.receive(400))  # one who found the rest in others' hands has left
    assert sorted(taken) == sorted(f"key {n}" for n in range(1, 401))


def test_many_threads_share_few_connections(store, url):
    """The others wait for their turn."""
    queue = store.queue("orders")
    threads = [Thread(lambda place=place: [queue.add(f"{place} {n}") for n in range(20)]) for place in range(12)]
    for thread in threads:
        assert all(thread.answer())
    assert queue.depth().ready == 240
    assert 1 <= len(sessions(url)) <= pool.MOST


def test_connections_that_nobody_needs_are_closed(store, url, monkeypatch):
    """But for the one that is in use."""
    barrier = threading.Barrier(3)

    def busy():
        barrier.wait(GUARD)
        return store.pool.run("SELECT pg_sleep(0.2)")

    for thread in [Thread(busy) for _ in range(3)]:
        thread.answer()
    assert len(store.pool._idle) == 3
    monkeypatch.setattr(pool, "IDLE", 0.1)
    time.sleep(0.2)
    store.queues()
    assert len(store.pool._idle) == 1
    until(lambda: len(sessions(url)) == 1)


# ── Processes ────────────────────────────────────────────────────────────────────────────────────────────


def test_processes_that_open_a_new_store_together_all_get_it():
    """One makes it, the others find it."""
    url = new_store()
    code = """if True:
        import abate.stores, sys
        sys.stdin.readline()
        with abate.stores.open_store(sys.argv[1]) as store:
            store.queue("orders").add(sys.argv[2])
    """
    processes = [
        subprocess.Popen([sys.executable, "-c", code, url, str(n)], stdin=subprocess.PIPE, text=True) for n in range(6)
    ]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=GUARD)
        assert process.returncode == 0
    with open_store(url) as store:
        assert store.queue("orders").depth().ready == 6


@pytest.mark.parametrize("capacity", [10, 300])
def test_a_full_queue_holds_no_more_however_many_add_at_once(store, capacity):
    """As many as there is room for."""
    queue = store.queue("small", capacity=capacity)

    def produce(place):
        taken = 0
        for n in range(capacity // 2):
            try:
                taken += queue.add(f"{place} {n}")
            except QueueFull:
                pass
        return taken

    assert sum(thread.answer() for thread in [Thread(produce, place) for place in range(4)]) == capacity
    assert queue.depth().ready == capacity


def test_room_is_counted_anew_only_when_it_may_be_short(store):
    """So that an add takes no longer the more there are; what came by another way counts all the same."""
    queue = store.queue("large", capacity=1000)
    for n in range(100):
        queue.add(f"key {n}")
    counted = store.pool.run("SELECT counted, counted_at FROM @.queue")
    assert int(counted[0][0]) < 5
    queue.bury(queue.receive()[0], "bad")
    queue.redrive()
    unbounded = store.queue("large")
    for n in range(900):
        unbounded.add(f"more {n}")
    with pytest.raises(QueueFull):
        queue.add("one more")


def test_a_budget_is_shared_by_processes(url):
    """Together they withdraw what there is, and no more."""
    code = """if True:
        import abate.stores, sys
        with abate.stores.open_store(sys.argv[1]) as store:
            budget = store.ledger("nightly", ratio=0.0, reserve=0.05, window=3600.0)
            print(sum(budget.try_withdraw() for _ in range(100)))
    """
    open_store(url).close()
    command = [sys.executable, "-c", code, url]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sum(int(process.communicate(timeout=GUARD)[0]) for process in processes) == 180


def test_a_deadlock_with_somebody_else_is_tried_again(store, url):
    """Another program takes the rows in another order: one of both has to begin anew, and nobody sees it."""
    schema = url.rpartition("=")[2]
    queue = store.queue("orders")
    for key in "ab":
        queue.add(key)
    messages = queue.receive(2)
    with connection().transaction():
        connection().execute(f"SELECT FROM {schema}.item WHERE key = 'b' FOR UPDATE")
        thread = Thread(queue.settle, [(message, Done()) for message in messages])
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = %s"
        until(lambda: connection().execute(blocked, (schema,)).fetchone() == (1,))
        # the one that waited first looks for a deadlock first, and is the one that is undone
        connection().execute("SET LOCAL deadlock_timeout = '30s'")
        connection().execute(f"SELECT FROM {schema}.item WHERE key = 'a' FOR UPDATE")
    assert thread.answer() == []
    assert queue.depth() == Depth()


# ── Fork ─────────────────────────────────────────────────────────────────────────────────────────────────


@forks
def test_a_forked_child_opens_its_own_connection(store):
    """Both work on, and the parent's connection is not disturbed by the child's end."""
    queue = store.queue("orders")
    queue.add("a")
    ((mine,),) = store.pool.run("SELECT pg_backend_pid()")

    def child():
        (message,) = queue.receive(wait=5.0)
        queue.add("b")
        queue.done(message)
        ((theirs,),) = store.pool.run("SELECT pg_backend_pid()")
        store.close()
        return message.key, theirs != mine

    assert in_child(child) == "('a', True)"
    assert store.pool.run("SELECT pg_backend_pid()") == [(mine,)]
    assert keys(queue.receive(10)) == ["b"]


@forks
def test_a_fork_in_the_middle_of_others_work_disturbs_nobody(store):
    """Threads add and wait while the process forks; children and parent lose nothing, and nothing hangs."""
    queue, end = store.queue("orders"), threading.Event()

    def produce(place):
        n = 0
        while not end.is_set():
            queue.add(f"{place} {n}")
            n += 1
        return n

    producers = [Thread(produce, place) for place in range(2)]
    idle = waiting(store, store.queue("others"))
    answers = [in_child(lambda n=n: queue.add(f"child {n}")) for n in range(10)]
    end.set()
    made = sum(producer.answer() for producer in producers)
    store.queue("others").add("enough")
    idle.answer()
    assert answers == ["True"] * 10
    assert queue.depth().ready == made + 10
