"""What a backlog does to clients that are connected when it arrives, and what many dead letters do to other clients.

* 200,000 messages arrive in PostgreSQL while a consumer is connected: the time of every call, over that of the same
  call on a connection that was made afterwards. The bar is 1.5.
* 200,000 dead letters are redriven and purged, in PostgreSQL, Valkey and SQLite, while another client adds and works.

make bench
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from abate.stores import Queue, Store, open_store
from abate.stores.budget import BudgetTerms
from abate.stores.fleet.sync_requests import BucketRequest, BudgetRequest, ShelterReport
from abate.work.source import Back, Bury, Done
from tests.clients.valkey_server import Valkey
from tests.stores.postgres.cluster import Cluster
from tests.stores.postgres.test_query_plans import SHAPES

BACKLOG = 200_000
ROUNDS = 40
BAR = 1.5
LONGEST = 0.25
"""Seconds that an add may take while dead letters are dealt with; a disk that others use takes its part."""
OFFERS = [BudgetRequest("x", BudgetTerms(), 1, 0, 0, 1), BucketRequest("x", 1.0), ShelterReport("x", "calm", 1, 0, 0.0)]
LIKE_A_CACHE = {"fsync": "on", "synchronous_commit": "off"}
"""What is measured is the plans, not the disk."""

Times = dict[str, list[float]]


class Calls:
    """A connection of its own, and how long each call on it took."""

    def __init__(self, url: str, name: str) -> None:
        self.store, self.name = open_store(url), name
        self.queue = self.store.queue("orders")
        self.times: Times = {}
        self._round = 0

    def timed(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        start = time.perf_counter()
        answer = call(*args)
        self.times.setdefault(what, []).append(time.perf_counter() - start)
        return answer

    def all(self) -> None:
        """Make every call once; an urgent message is received before all others."""
        queue, key = self.queue, f"{self.name} {self._round}"
        self._round += 1
        self.timed("add", queue.add, key)
        self.timed("add what waits", queue.add, key)
        queue.add(f"{key} later", "", after=600.0)
        self.timed("cancel", queue.cancel, f"{key} later")
        queue.add(f"{key} urgent", priority=9)
        urgent = self.timed("receive", queue.receive)
        self.timed("extend", queue.extend, urgent)
        self.timed("bury", queue.settle, [(message, Bury("permanent", "bad")) for message in urgent])
        self.timed("dead", queue.dead, 10)
        self.timed("redrive", queue.redrive, [message.key for message in urgent])
        again = queue.receive()
        queue.settle([(message, Bury("permanent", "bad")) for message in again])
        self.timed("purge", queue.purge, [message.key for message in again])
        several = self.timed("receive ten", queue.receive, 10)
        self.timed("done", queue.settle, [(message, Done()) for message in several[:1]])
        self.timed("back", queue.settle, [(message, Back(0.0)) for message in several[1:]])
        self.timed("sync", self.store.sync_members, self.name, OFFERS)
        if self._round % 5 == 0:
            self.timed("depth", queue.depth)


def arrived(cluster: Cluster, number: int, shape: str, empty: bool) -> tuple[Times, Times]:
    """The times on a connection that was there, and on one made afterwards, call by call beside each other.

    With `empty`, the table has held many before, and was vacuumed when it was empty.
    """
    schema = f"backlog_{number}"
    url = f"{cluster.url}?schema={schema}&timeout=60"
    there = Calls(url, "there")
    insert = (
        f"INSERT INTO {schema}.item (queue, key, state, due, priority, body)"
        f" SELECT {SHAPES[shape]}, repeat('x', 200) FROM generate_series(1, {{}}) AS n"
    )
    if empty:
        cluster.server.run(insert.format(BACKLOG // 4))
        cluster.server.run(f"DELETE FROM {schema}.item")
        cluster.server.run(f"VACUUM ANALYZE {schema}.item")
    for _ in range(10):
        there.all()
    there.times.clear()
    cluster.server.run(insert.format(BACKLOG))
    fresh = Calls(url, "fresh")
    for _ in range(ROUNDS):
        there.all()
        fresh.all()
    for calls in (there, fresh):
        calls.store.close()
    cluster.server.run(f"DROP SCHEMA {schema} CASCADE")
    return there.times, fresh.times


def backlogs(cluster: Cluster) -> None:
    """Print the ratios, and whether all are within the bar."""
    names: list[str] = []
    ratios: dict[str, list[float]] = {}
    slowest: dict[str, float] = {}
    for number, (shape, empty) in enumerate([(shape, empty) for empty in (False, True) for shape in SHAPES]):
        names.append(shape + (", vacuumed when empty" if empty else ""))
        there, fresh = arrived(cluster, number, shape, empty)
        for what, times in fresh.items():
            ratios.setdefault(what, []).append(min(there[what]) / min(times))
            slowest[what] = max(slowest.get(what, 0.0), min(there[what]) * 1000)
    print(f"\nPostgreSQL, {BACKLOG:,} arrive while connected ({'; '.join(names)}); the best of {ROUNDS} times each:\n")
    print(
        "| call | ms, at most | over a connection made afterwards: median | at most | with |\n|---|---:|---:|---:|---|"
    )
    for what, values in ratios.items():
        worst = max(values)
        where = names[values.index(worst)]
        print(f"| {what} | {slowest[what]:.2f} | {median(values):.2f} | {worst:.2f} | {where} |")
    worst = max(max(values) for values in ratios.values())
    print(f"\nBar: {BAR:g} times: {'kept' if worst <= BAR else 'missed'} ({worst:.2f} at most)")


def beside(url: str, call: Callable[[], int]) -> tuple[int, float, list[float]]:
    """Return the result of a call, its seconds, and the seconds that the adds of another client took meanwhile."""
    end, adds = threading.Event(), []

    def work() -> None:
        with open_store(url) as store:
            queue = store.queue("others")
            while not end.is_set():
                start = time.perf_counter()
                queue.add("key")
                adds.append(time.perf_counter() - start)
                time.sleep(0.005)

    other = threading.Thread(target=work)
    other.start()
    start = time.perf_counter()
    many = call()
    seconds = time.perf_counter() - start
    end.set()
    other.join()
    return many, seconds, adds


def letters(name: str, url: str, fill: Callable[[Store], None]) -> bool:
    """Print how long it takes to redrive and purge many dead letters, and how long other clients are delayed by it."""
    kept = True
    with open_store(url) as store:
        queue: Queue = store.queue("orders")
        for what in ("redrive", "purge"):
            fill(store)
            many, seconds, adds = beside(url, getattr(queue, what))
            longest = max(adds)
            print(
                f"| {name} | {what} | {many:,} | {seconds:.1f} | {median(adds) * 1000:.1f} |"
                f" {sorted(adds)[int(len(adds) * 0.99)] * 1000:.0f} | {longest * 1000:.0f} |"
            )
            kept = kept and many == BACKLOG and longest <= LONGEST
            if what == "redrive":
                for _ in range(0, BACKLOG, 1000):
                    queue.settle([(message, Done()) for message in queue.receive(1000)])
    return kept


def fill_sqlite(store: Any) -> None:
    rows = ((f"key {n}", "x" * 200, float(n)) for n in range(BACKLOG))
    insert = "INSERT INTO item (queue, key, body, state, due) VALUES ('orders', ?, ?, 2, ?)"
    store.file.transaction(lambda db: db.executemany(insert, rows))


def fill_by_hand(store: Any) -> None:
    queue = store.queue("orders", lease=600.0)
    for n in range(BACKLOG):
        queue.add(f"key {n}", "x" * 200)
        if n % 1000 == 999:
            queue.settle([(message, Bury("permanent", "bad")) for message in queue.receive(1000)])


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), **LIKE_A_CACHE)
        try:
            backlogs(cluster)
            head = "store | what | letters | s | others' adds, ms: median | p99 | at most"
            print(f"\n| {head} |\n|---|---|" + "---:|" * 5)

            def fill_postgres(store: Any) -> None:
                store.pool.run("TRUNCATE @.item")
                store.pool.run(
                    "INSERT INTO @.item (queue, key, body, state, due)"
                    f" SELECT 'orders', 'key ' || n, repeat('x', 200), 2, n FROM generate_series(1, {BACKLOG}) AS n"
                )

            kept = letters("PostgreSQL", f"{cluster.url}?schema=letters&timeout=60", fill_postgres)
        finally:
            cluster.stop()
    with tempfile.TemporaryDirectory() as folder:
        valkey = Valkey(folder).start()
        try:
            kept = letters("Valkey", valkey.url, fill_by_hand) and kept
        finally:
            valkey.kill()
        kept = letters("SQLite", f"sqlite:///{folder}/work.db", fill_sqlite) and kept
    print(f"\nBar: no add takes longer than {LONGEST * 1000:g} ms: {'kept' if kept else 'missed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
