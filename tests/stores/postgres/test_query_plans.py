"""The cost of a call in PostgreSQL depends neither on the size of the backlog nor on the planner's statistics.

Cost is counted in pages read, because seconds mean little on a busy machine.
"""

import contextlib
import time

import pytest

from abate.stores import open_store
from abate.stores.budget import BudgetTerms
from abate.stores.fleet.sync_requests import BucketRequest, BudgetRequest, ShelterReport
from abate.stores.postgres import queue
from abate.testing import VirtualClock
from abate.work.key_queue import QueueFull
from abate.work.source import Back, Bury, Done
from tests.conformance.postgres_server import connection, server

KIND = "postgres"
BACKLOG = 20_000
FEW = 150
"""Pages; the table has more, and so have the rows of one queue."""

NOW = "extract(epoch FROM clock_timestamp())"
SHAPES = {
    "ready": f"'orders', 'old ' || n, 0, {NOW}, 0",
    "of several priorities": f"'orders', 'old ' || n, 0, {NOW}, n % 5",
    "delayed": f"'orders', 'old ' || n, 0, {NOW} + 3600 + n, 0",
    "leased": f"'orders', 'old ' || n, 1, {NOW} + 3600 + n, 0",
    "dead": "'orders', 'old ' || n, 2, 1e9 + n, 0",
    "of many queues": f"'orders' || n % 5000, 'old ' || n, 0, {NOW}, 0",
}
"""The columns of the rows of each backlog, by name."""


@pytest.fixture
def schema(url):
    return url.rpartition("=")[2]


def arrive(schema, shape, many=BACKLOG):
    connection().execute(
        f"INSERT INTO {schema}.item (queue, key, state, due, priority)"
        f" SELECT {SHAPES[shape]} FROM generate_series(1, {many}) AS n"
    )


def never_analyzed(schema):
    """Give the table the statistics of a new store."""
    connection().execute(f"TRUNCATE {schema}.item")


def empty_when_vacuumed(schema):
    """Give the table the statistics of an empty one, after it had many rows."""
    arrive(schema, "ready", BACKLOG // 2)
    connection().execute(f"ANALYZE {schema}.item")
    connection().execute(f"DELETE FROM {schema}.item")
    connection().execute(f"VACUUM ANALYZE {schema}.item")


def pages(store, schema):
    """Return how many pages of the tables and their indexes have been read so far."""
    store.pool.run("SELECT pg_stat_force_next_flush()")
    connection().execute("SELECT pg_stat_force_next_flush()")
    ((many,),) = connection().execute(
        "SELECT sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit, 0) + coalesce(idx_blks_read, 0))"
        " FROM pg_statio_user_tables WHERE schemaname = %s",
        (schema,),
    )
    return int(many)


class Calls:
    """Make every call once, and record how many pages each has read."""

    def __init__(self, store, schema):
        self.store, self.schema, self.queue = store, schema, store.queue("orders")
        self.round = 0
        self.cost = {}

    def counted(self, name, call, *args):
        before = pages(self.store, self.schema)
        answer = call(*args)
        self.cost[name] = pages(self.store, self.schema) - before
        return answer

    def all(self):
        orders, key = self.queue, f"new {self.round}"
        self.round += 1
        self.counted("add", orders.add, key)
        self.counted("add again", orders.add, key)
        self.counted("add many", orders.add_many, [key, f"other {self.round}"])
        orders.add("later", after=60.0)
        self.counted("cancel", orders.cancel, "later")
        orders.add("urgent", priority=9)
        (message,) = self.counted("receive", orders.receive)
        assert self.counted("extend", orders.extend, [message]) == []
        self.counted("bury", orders.settle, [(message, Bury("permanent", "bad", ""))])
        assert self.counted("dead", orders.dead, 5)
        assert self.counted("redrive", orders.redrive, [message.key]) == 1
        (message,) = orders.receive()
        orders.settle([(message, Bury("permanent", "bad", ""))])
        assert self.counted("purge", orders.purge, [message.key]) == 1
        several = self.counted("receive several", orders.receive, 5)
        self.counted("back", orders.settle, [(message, Back(0.0)) for message in several[1:]])
        self.counted("done", orders.settle, [(message, Done()) for message in several[:1]])
        requests = [
            BudgetRequest("x", BudgetTerms(), 1, 0, 0, 1),
            BucketRequest("x", 1.0),
            ShelterReport("x", "calm", 1, 0, 0.0),
        ]
        self.counted("sync", self.store.sync_members, "me", requests)
        self.counted("exchange", self.store.exchange, "x", BudgetTerms())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("statistics", [never_analyzed, empty_when_vacuumed])
def test_a_backlog_that_arrives_while_connected_makes_no_call_slower(store, schema, shape, statistics):
    """The session's cached plans are those for a small table."""
    statistics(schema)
    calls = Calls(store, schema)
    for _ in range(7):  # after five executions PostgreSQL may keep a generic plan
        calls.all()
    arrive(schema, shape)
    calls.all()
    assert {name: many for name, many in calls.cost.items() if many > FEW} == {}


@pytest.mark.parametrize("missing", [0, 5])
def test_adds_to_a_nearly_full_queue_do_not_count_it_each_time(url, schema, missing):
    """The count of a large queue is cached for a short time; the capacity is never exceeded."""
    clock = VirtualClock(start=time.time() + 60.0)
    with open_store(url, clock=clock) as store:
        never_analyzed(schema)
        calls = Calls(store, schema)
        queue = calls.queue = store.queue("orders", capacity=BACKLOG)
        calls.counted("first", queue.add, "first")
        arrive(schema, "ready", BACKLOG - missing - 1)

        def add(key):
            with contextlib.suppress(QueueFull):
                return queue.add(key)

        calls.counted("counting add", add, "next")
        taken = [calls.counted(f"add {n}", add, f"more {n}") for n in range(8)]
        assert calls.cost.pop("counting add") > FEW
        assert {name: many for name, many in calls.cost.items() if many > FEW} == {}
        assert queue.depth().ready == BACKLOG
        assert taken == [True] * max(0, missing - 1) + [None] * (9 - max(1, missing))
        with pytest.raises(QueueFull):
            queue.add("another")
        queue.done(queue.receive()[0])
        clock.advance(0.05)
        assert queue.add("another") is True
        with pytest.raises(QueueFull):
            queue.add("and another")


def test_a_cached_count_is_valid_for_one_capacity(url, schema):
    """A queue object with another capacity counts again."""
    with open_store(url, clock=VirtualClock(start=time.time() + 60.0)) as store:
        never_analyzed(schema)
        small, large = (store.queue("orders", capacity=many) for many in (BACKLOG // 2 + 1, BACKLOG - 5))
        small.add("first")
        arrive(schema, "ready", BACKLOG - 1)
        for queue in (small, large, small):
            with pytest.raises(QueueFull):
                queue.add("more")


def test_a_purge_scans_dead_letters_once(store, schema, monkeypatch):
    """Each batch starts where the previous one ended: deleted rows are not scanned again, even while a transaction of
    another program keeps them from being vacuumed."""
    never_analyzed(schema)
    monkeypatch.setattr(queue.PostgresQueue, "_batch_size", 100)
    arrive(schema, "dead", 2000)
    query = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = %s AND indexrelname = 'item_dead'"
    ((before,),) = connection().execute(query, (schema,))
    with server().connect() as other, other.transaction():
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute(f"SELECT count(*) FROM {schema}.item")
        assert store.queue("orders").purge() == 2000
        pages(store, schema)  # flushes the statistics
        ((after,),) = connection().execute(query, (schema,))
    assert after - before < 3 * 2000


def test_a_fleet_that_grows_while_connected_makes_no_sync_slower(store, schema):
    """Slots and members of other names are not scanned."""
    never_analyzed(schema)
    calls = Calls(store, schema)
    for _ in range(7):
        calls.all()
    connection().execute(
        f"INSERT INTO {schema}.member SELECT 'bucket:' || n, 'other', {NOW} FROM generate_series(1, {BACKLOG}) AS n"
    )
    connection().execute(
        f"INSERT INTO {schema}.slot SELECT 'budget ' || n, 1e9, {NOW} + 60 FROM generate_series(1, {BACKLOG}) AS n"
    )
    calls.all()
    assert {name: many for name, many in calls.cost.items() if many > FEW} == {}
