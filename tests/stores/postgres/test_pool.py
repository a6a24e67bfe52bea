"""Many threads and processes on one store in PostgreSQL: connections, counts and locks."""

import threading
import time

import pytest

from abate.stores import Depth
from abate.stores.postgres import pool
from abate.work import QueueFull
from abate.work.source import Done
from tests.conformance.postgres_server import connection
from tests.reentry import raised_at
from tests.stores.postgres.cluster import sessions
from tests.stores.processes import GUARD, Thread, forks, in_child, keys, until

KIND = "postgres"


def test_concurrent_receives_return_each_message_once(store, url):
    """Four threads receive 400 messages without a duplicate."""
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
    taken += keys(queue.receive(400))  # a thread ends early when other threads have locked the rest
    assert sorted(taken) == sorted(f"key {n}" for n in range(1, 401))


def test_many_threads_share_few_connections(store, url):
    """Threads without a connection wait for one."""
    queue = store.queue("orders")
    threads = [Thread(lambda t=t: [queue.add(f"{t} {n}") for n in range(20)]) for t in range(12)]
    for thread in threads:
        assert all(thread.answer())
    assert queue.depth().ready == 240
    assert 1 <= len(sessions(url)) <= pool.MAX_CONNECTIONS


def test_idle_connections_are_closed(store, url, monkeypatch):
    """Only the connection in use is left."""
    barrier = threading.Barrier(3)

    def busy():
        barrier.wait(GUARD)
        return store.pool.run("SELECT pg_sleep(0.2)")

    for thread in [Thread(busy) for _ in range(3)]:
        thread.answer()
    assert len(store.pool._idle) == 3
    monkeypatch.setattr(pool, "MAX_IDLE", 0.1)
    time.sleep(0.2)
    store.queues()
    assert len(store.pool._idle) == 1
    until(lambda: len(sessions(url)) == 1)


@pytest.mark.parametrize("capacity", [10, 300])
def test_concurrent_adds_do_not_exceed_the_capacity(store, capacity):
    """Exactly as many adds succeed as the capacity allows."""
    queue = store.queue("small", capacity=capacity)

    def produce(producer):
        taken = 0
        for n in range(capacity // 2):
            try:
                taken += queue.add(f"{producer} {n}")
            except QueueFull:
                pass
        return taken

    assert sum(thread.answer() for thread in [Thread(produce, producer) for producer in range(4)]) == capacity
    assert queue.depth().ready == capacity


def test_messages_are_counted_only_when_the_queue_may_be_full(store):
    """Messages that arrive by redrive or by an unbounded queue object count, too."""
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


def test_a_deadlock_with_another_program_is_retried(store, url):
    """The other program locks the rows in another order; the caller sees no error."""
    schema = url.rpartition("=")[2]
    queue = store.queue("orders")
    for key in "ab":
        queue.add(key)
    messages = queue.receive(2)
    # A session checks for a deadlock once, after deadlock_timeout: here the store's session does it first.
    store.pool.run("SET deadlock_timeout = '2s'")
    with connection().transaction():
        connection().execute("SET LOCAL deadlock_timeout = '30s'")
        connection().execute(f"SELECT FROM {schema}.item WHERE key = 'b' FOR UPDATE")
        thread = Thread(queue.settle, [(message, Done()) for message in messages])
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = %s"
        until(lambda: connection().execute(blocked, (schema,)).fetchone() == (1,))
        connection().execute(f"SELECT FROM {schema}.item WHERE key = 'a' FOR UPDATE")
    assert thread.answer() == []
    assert queue.depth() == Depth()


@forks
def test_a_forked_child_opens_its_own_connection(store):
    """The end of the child does not disturb the parent's connection."""
    ((parent_pid,),) = store.pool.run("SELECT pg_backend_pid()")

    def child():
        ((child_pid,),) = store.pool.run("SELECT pg_backend_pid()")
        store.close()
        return child_pid != parent_pid

    assert in_child(child) == "True"
    assert store.pool.run("SELECT pg_backend_pid()") == [(parent_pid,)]


def test_a_signal_handler_that_raises_leaks_no_connection_and_no_reply(store):
    """Wherever it raises in this package or the driver, the next statement gets its own reply."""
    queue, point = store.queue("orders"), 0
    queue.add("a")
    while raised_at(point := point + 7, lambda: queue.add("b"), where=""):
        assert queue.depth().ready in (1, 2)
        assert not queue.add("a")
        assert store.pool._free.qsize() == pool.MAX_CONNECTIONS
        assert len(store.pool._idle) == 1
    assert point > 50
