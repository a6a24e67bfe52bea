"""What is PostgreSQL's own where one store serves many: connections, counts and locks."""

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
    assert 1 <= len(sessions(url)) <= pool.MAX_CONNECTIONS


def test_connections_that_nobody_needs_are_closed(store, url, monkeypatch):
    """But for the one that is in use."""
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


def test_a_deadlock_with_somebody_else_is_tried_again(store, url):
    """Another program takes the rows in another order: one of both has to begin anew, and nobody sees it."""
    schema = url.rpartition("=")[2]
    queue = store.queue("orders")
    for key in "ab":
        queue.add(key)
    messages = queue.receive(2)
    # each looks for a deadlock once, so long after it began to wait: the store's session, when there is one, and first
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
    """The parent's is not disturbed by the child's end."""
    ((mine,),) = store.pool.run("SELECT pg_backend_pid()")

    def child():
        ((theirs,),) = store.pool.run("SELECT pg_backend_pid()")
        store.close()
        return theirs != mine

    assert in_child(child) == "True"
    assert store.pool.run("SELECT pg_backend_pid()") == [(mine,)]


def test_a_signal_handler_that_raises_leaves_no_place_taken_and_no_answer_behind(store):
    """Anywhere in this package or in the driver: the next statement gets its own answer."""
    queue, point = store.queue("orders"), 0
    queue.add("a")
    while raised_at(point := point + 7, lambda: queue.add("b"), where=""):
        assert queue.depth().ready in (1, 2)
        assert not queue.add("a")
        assert store.pool._free.qsize() == pool.MAX_CONNECTIONS
        assert len(store.pool._idle) == 1
    assert point > 50
