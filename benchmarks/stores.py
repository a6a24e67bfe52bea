"""What a queue in a SQLite file does in a second, and what is left of it when its workers are killed.

make bench
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from abate.stores import Queue, open_store
from abate.work.source import Done
from tests.faults.killed_workers import process_while_killing

MESSAGES = {"memory": 5_000, "NORMAL": 5_000, "FULL": 500}
"""Fewer where every transaction waits for the disk."""
ROUNDS = 3
BODY = "x" * 200
PROCESSES = 4
KILLED = 10_000
LEASE = 1.0
WAYS = {"memory": "memory:", "NORMAL": "sqlite:///{}/work.db", "FULL": "sqlite:///{}/work.db?synchronous=full"}

DRAIN = """if True:
    import sys, time
    from abate.stores import open_store
    from abate.work.source import Done

    queue = open_store(sys.argv[1]).queue("work")
    print("ready", flush=True)
    sys.stdin.readline()
    count = 0
    while messages := queue.receive(int(sys.argv[2])):
        queue.settle([(message, Done()) for message in messages])
        count += len(messages)
    print(count)
"""


def fill(queue: Queue, messages: int) -> float:
    """Adds per second, one at a time."""
    start = time.perf_counter()
    for n in range(messages):
        queue.add(f"orders/{n}", BODY)
    return messages / (time.perf_counter() - start)


def drain(queue: Queue, batch: int) -> float:
    """Return the messages per second that are received and done in batches."""
    start = time.perf_counter()
    count = 0
    while messages := queue.receive(batch):
        queue.settle([(message, Done()) for message in messages])
        count += len(messages)
    return count / (time.perf_counter() - start)


def drain_together(url: str, batch: int) -> float:
    """The same by several processes, from when all of them are ready until the last one finds nothing."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", DRAIN, url, str(batch)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(PROCESSES)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    start = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    count = sum(int(worker.communicate()[0]) for worker in workers)
    seconds = time.perf_counter() - start
    return count / seconds


def measured(way: str) -> dict[str, float]:
    """One round of one way: figures per second."""
    with tempfile.TemporaryDirectory() as folder:
        url = WAYS[way].format(folder)
        with open_store(url) as store:
            queue, messages = store.queue("work"), MESSAGES[way]
            figures = {"adds": fill(queue, messages), "done, one at a time": drain(queue, 1)}
            fill(queue, messages)
            figures["done, ten at a time"] = drain(queue, 10)
            if way != "memory":
                fill(queue, messages)
                figures[f"done, {PROCESSES} processes"] = drain_together(url, 1)
                fill(queue, messages)
                figures[f"done, {PROCESSES} processes, ten at a time"] = drain_together(url, 10)
        return figures


def bare(way: str) -> float:
    """What the disk allows: transactions per second that change one row of a table, twice."""
    import sqlite3

    with tempfile.TemporaryDirectory() as folder:
        db = sqlite3.connect(f"{folder}/bare.db", isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {way}")
        db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, state INTEGER, body TEXT)")
        db.executemany("INSERT INTO item VALUES (?, 0, ?)", [(n, BODY) for n in range(MESSAGES[way])])
        start = time.perf_counter()
        for n in range(MESSAGES[way]):
            db.execute("UPDATE item SET state = 1 WHERE id = ?", (n,))
            db.execute("DELETE FROM item WHERE id = ?", (n,))
        seconds = time.perf_counter() - start
        db.close()
    return MESSAGES[way] / seconds


def killed() -> list[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        outcome, kills, seconds = process_while_killing(folder, KILLED, LEASE, pause=0.005, guard=300.0)
    return [
        ("messages", f"{KILLED:,}"),
        ("never handled", str(KILLED - len(outcome.handlings))),
        ("in two hands at once", str(len(outcome.too_early))),
        ("handled again after they were done", str(len(outcome.after_done))),
        ("handled again after a lease ran out", str(outcome.again)),
        ("workers killed", str(kills)),
        ("seconds", f"{seconds:.0f}"),
    ]


def best(measure: Callable[[str], dict[str, float]]) -> dict[str, dict[str, float]]:
    """The best of the rounds, each of which goes through every way."""
    found: dict[str, dict[str, float]] = {way: {} for way in WAYS}
    for _ in range(ROUNDS):
        for way in WAYS:
            for what, value in measure(way).items():
                found[way][what] = max(value, found[way].get(what, 0.0))
    return found


def main() -> int:
    found = best(measured)
    print("\n| per second |", " | ".join(WAYS), "|\n|---|" + "---:|" * len(WAYS))
    for what in found["NORMAL"]:
        print(f"| {what} |", " | ".join(f"{found[way][what]:,.0f}" if what in found[way] else "" for way in WAYS), "|")
    print(
        "| a bare UPDATE and DELETE | |",
        " | ".join(f"{max(bare(way) for _ in range(2)):,.0f}" for way in ("NORMAL", "FULL")),
        "|",
    )
    kept = found["NORMAL"]["done, one at a time"] >= 2000
    print(f"\nBar: 2,000 done per second, one at a time, with NORMAL: {'kept' if kept else 'missed'}")
    print(f"\n| kill -9, {PROCESSES} processes, leases of {LEASE:g} s | |\n|---|---:|")
    for what, value in killed():
        print(f"| {what} | {value} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
