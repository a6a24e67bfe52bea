"""What a queue in PostgreSQL does in a second, and whether what has gone through it slows it down.

make bench
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from abate.stores import open_store
from benchmarks.stores import BODY, drain, drain_together, fill
from tests.stores.postgres.cluster import Cluster

MESSAGES = 4_000
THROUGH, TENTHS = 200_000, 10
PROCESSES = 4
BACKLOG = 2_000
BAR = 2_000
SAFE = {"fsync": "on", "synchronous_commit": "on"}
QUICK = {"fsync": "on", "synchronous_commit": "off"}

CHURN = """if True:
    import sys
    from abate.stores import open_store
    from abate.work.source import Done

    queue = open_store(sys.argv[1]).queue("work")
    place, many, body = sys.argv[2], int(sys.argv[3]), "x" * 200
    print("ready", flush=True)
    for turn, _ in enumerate(sys.stdin):
        for n in range(0, many, 10):
            for m in range(n, n + 10):
                queue.add(f"{place}/{turn}/{m}", body)
            queue.settle([(message, Done()) for message in queue.receive(10)])
        print("done", flush=True)
"""


def measured(url: str) -> dict[str, float]:
    """Figures per second."""
    figures = {}
    with open_store(url) as store:
        queue = store.queue("work")
        figures["a bare SELECT 1"] = bare(store)
        figures["adds"] = fill(queue, MESSAGES)
        figures["done, one at a time"] = drain(queue, 1)
        fill(queue, MESSAGES)
        figures["done, ten at a time"] = drain(queue, 10)
        fill(queue, MESSAGES)
        figures[f"done, {PROCESSES} processes"] = drain_together(url, 1)
        fill(queue, MESSAGES)
        figures[f"done, {PROCESSES} processes, ten at a time"] = drain_together(url, 10)
        for n in range(MESSAGES):
            queue.add(f"orders/{n}", BODY, priority=n % 3)
        figures[f"done, {PROCESSES} processes, ten at a time, three priorities"] = drain_together(url, 10)
    return figures


def bare(store: Any) -> float:
    """What one round trip costs."""
    start = time.perf_counter()
    for _ in range(MESSAGES):
        store.pool.run("SELECT 1", safe=True)
    return MESSAGES / (time.perf_counter() - start)


def churned(cluster: Cluster, url: str) -> tuple[list[float], list[float], str]:
    """For each tenth of what goes through: keys per second, pages looked at per key; and what is left behind.

    The pages tell what the seconds don't on a busy machine: whether there is more and more to step over.
    """
    with open_store(url) as store:
        fill(store.queue("work"), BACKLOG)
    command = [sys.executable, "-c", CHURN, url]
    workers = [
        subprocess.Popen(
            [*command, str(place), str(THROUGH // TENTHS // PROCESSES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for place in range(PROCESSES)
    ]
    rates, pages = [], []
    together(workers, "")
    seen = looked_at(cluster)
    for _ in range(TENTHS):
        start = time.perf_counter()
        together(workers, "go\n")
        rates.append(THROUGH / TENTHS / (time.perf_counter() - start))
        time.sleep(1.5)  # until the server has added up its counts
        before, seen = seen, looked_at(cluster)
        pages.append((seen - before) / (THROUGH / TENTHS))
    for worker in workers:
        worker.communicate()
    ((live, dead, size, vacuums),) = cluster.server.run(
        "SELECT n_live_tup, n_dead_tup, pg_total_relation_size(relid) / 1048576, autovacuum_count"
        " FROM pg_stat_user_tables WHERE relname = 'item' AND schemaname = 'churn'"
    )
    return rates, pages, f"{live:,} rows, {dead:,} dead, {size} MB with indexes, {vacuums} vacuums"


def together(workers: list[Any], word: str) -> None:
    """Tell all the same, and wait until each has answered."""
    for worker in workers:
        worker.stdin.write(word)
        worker.stdin.flush()
    for worker in workers:
        worker.stdout.readline()


def looked_at(cluster: Cluster) -> int:
    """Pages of the table and its indexes that were looked at."""
    ((pages,),) = cluster.server.run(
        "SELECT heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read"
        " FROM pg_statio_user_tables WHERE relname = 'item' AND schemaname = 'churn'"
    )
    return int(pages)


def main() -> int:
    found: dict[str, dict[str, float]] = {}
    for name, settings in (("synchronous_commit on", SAFE), ("off", QUICK)):
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster(Path(folder), **settings)
            try:
                found[name] = measured(cluster.url)
                if settings is SAFE:
                    rates, pages, left = churned(cluster, cluster.url + "?schema=churn")
            finally:
                cluster.stop()
    print("\n| per second |", " | ".join(found), "|\n|---|" + "---:|" * len(found))
    for what in found["off"]:
        print(f"| {what} |", " | ".join(f"{found[way][what]:,.0f}" for way in found), "|")
    steady = max(pages[5:]) <= 1.5 * max(pages[:2])
    print()
    for how in ("", ", ten at a time"):
        kept = found["synchronous_commit on"][f"done, {PROCESSES} processes{how}"] >= BAR
        print(f"Bar: {BAR:,} done keys per second, {PROCESSES} processes{how}: {'kept' if kept else 'missed'}")
    print(f"\n{THROUGH:,} keys added and done by {PROCESSES} processes, {BACKLOG:,} waiting all the time; per second:")
    print("\n| tenth |", " | ".join(str(n + 1) for n in range(len(rates))), "|\n|---|" + "---:|" * len(rates))
    print("| keys per second |", " | ".join(f"{rate:,.0f}" for rate in rates), "|")
    print("| pages per key |", " | ".join(f"{each:,.1f}" for each in pages), "|")
    print(f"\nLeft behind: {left}. No more to step over at the end: {'kept' if steady else 'missed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
