"""How many transactions conflict on PostgreSQL, by the delay between attempts.

Two workloads, sixteen workers each. In `one row` all begin at once, read one row, and write it (repeatable read): the
first one commits, and that is the moment at which all others fail together. In `deadlocks` each moves money between
two of eight accounts, and locks them in any order. The share is that of attempts that ended in a conflict.

python benchmarks/conflicts.py
"""

from __future__ import annotations

import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import psycopg

from abate import Backoff, Budget
from abate.clients.databases import retry_on_db_conflict

sys.path.append(str(Path(__file__).parent.parent))  # the server is the tests' own
from tests.clients.databases.servers import Server, start_postgres

WORKERS, ACCOUNTS, BALANCE = 16, 8, 1_000
VOLLEYS, EACH, ROUNDS = 3, 30, 3
THINKING = 0.002

Worker = Callable[[psycopg.Connection], None]

BACKOFFS = {
    "at once": [0.0],
    "50 ms": [0.05],
    "exponential, no jitter": Backoff(base=0.05, cap=2.0, jitter="none"),
    "exponential, equal jitter": Backoff(base=0.05, cap=2.0, jitter="equal"),
    "exponential, full jitter (abate)": Backoff(base=0.05, cap=2.0),
}


def one_row(retry: retry_on_db_conflict, begun: count[int], chance: random.Random) -> Worker:
    """Volleys of one transaction per worker, all begun at once."""
    barrier = threading.Barrier(WORKERS)

    @retry
    def add(connection: psycopg.Connection) -> None:
        next(begun)
        with connection.transaction():
            row = connection.execute("SELECT balance FROM accounts WHERE id = 1").fetchone()
            assert row is not None
            time.sleep(THINKING)
            connection.execute("UPDATE accounts SET balance = %s WHERE id = 1", (row[0] + 1,))

    def worker(connection: psycopg.Connection) -> None:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for _ in range(VOLLEYS):
            barrier.wait()
            add(connection)

    return worker


def deadlocks(retry: retry_on_db_conflict, begun: count[int], chance: random.Random) -> Worker:
    """Transfers, one after another, that lock two accounts in any order."""

    @retry
    def transfer(connection: psycopg.Connection, source: int, target: int) -> None:
        next(begun)
        with connection.transaction():
            connection.execute("UPDATE accounts SET balance = balance - 1 WHERE id = %s", (source,))
            time.sleep(THINKING)
            connection.execute("UPDATE accounts SET balance = balance + 1 WHERE id = %s", (target,))

    def worker(connection: psycopg.Connection) -> None:
        for _ in range(EACH):
            source, target = chance.sample(range(1, ACCOUNTS + 1), 2)
            transfer(connection, source, target)

    return worker


WORKLOADS = {"one row": (one_row, VOLLEYS), "deadlocks": (deadlocks, EACH)}


def run(server: Server, workload: str, backoff: object, seed: int) -> tuple[float, float]:
    """The share of attempts that ended in a conflict, and the seconds that all took."""
    server.accounts(ACCOUNTS, BALANCE)
    make, each = WORKLOADS[workload]
    begun = count()
    retry = retry_on_db_conflict(max_attempts=10_000, backoff=backoff, budget=Budget.unlimited())  # type: ignore[arg-type]
    worker = make(retry, begun, random.Random(seed))
    connections = [server.connect() for _ in range(WORKERS)]
    threads = [threading.Thread(target=worker, args=(connection,)) for connection in connections]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - start
    for connection in connections:
        connection.close()
    attempts, committed = next(begun), WORKERS * each
    expected = ACCOUNTS * BALANCE + (committed if workload == "one row" else 0)
    assert server.run("SELECT sum(balance) FROM accounts")[0][0] == expected
    return (attempts - committed) / attempts, took


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        server = start_postgres(Path(directory))
        try:
            for workload in WORKLOADS:
                seen: dict[str, list[tuple[float, float]]] = {name: [] for name in BACKOFFS}
                for round_ in range(ROUNDS):
                    for name in random.sample(list(BACKOFFS), len(BACKOFFS)):
                        seen[name].append(run(server, workload, BACKOFFS[name], round_))
                print(f"\n{workload}: {WORKERS} workers, PostgreSQL, medians of {ROUNDS} rounds\n")
                print("| between attempts | conflicts | attempts per commit | seconds |\n|---|---:|---:|---:|")
                for name, results in seen.items():
                    share = statistics.median(share for share, _ in results)
                    took = statistics.median(took for _, took in results)
                    print(f"| {name} | {share:.0%} | {1 / (1 - share):.2f} | {took:.2f} |")
        finally:
            server.stop(signal.SIGINT)


if __name__ == "__main__":
    main()
