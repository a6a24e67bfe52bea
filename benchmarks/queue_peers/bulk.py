"""Bulk enqueue: `send_many` beside the bulk calls of the peers, on the same servers, in one run.

    python benchmarks/queue_peers/bulk.py [rounds]

The peers, which have to be installed: rq (Valkey); pgmq, and pgqueuer with asyncpg (PostgreSQL); huey, litequeue and
persist-queue (SQLite), which have no bulk call, so their single calls are timed. Every round times each of them once,
in random order; the medians are printed.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import redis

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import abate
from tests.clients.databases.servers import start_postgres
from tests.clients.valkey_server import Valkey

MESSAGES, AT_ONCE, SINGLE = 10_000, 500, 1_000

Send = Callable[[list[str]], object]


def noop(number: str) -> None:
    """The task of rq and huey."""


def batched(send: Send) -> Callable[[], float]:
    """Return a function that sends in batches, and returns the messages per second."""

    def rate() -> float:
        bodies = [str(number) for number in range(MESSAGES)]
        began = time.perf_counter()
        for start in range(0, MESSAGES, AT_ONCE):
            send(bodies[start : start + AT_ONCE])
        return MESSAGES / (time.perf_counter() - began)

    return rate


def one_by_one(send: Callable[[str], object]) -> Callable[[], float]:
    """Return a function that sends single messages, and returns the messages per second."""

    def rate() -> float:
        began = time.perf_counter()
        for number in range(SINGLE):
            send(str(number))
        return SINGLE / (time.perf_counter() - began)

    return rate


def on_valkey(server: Valkey) -> dict[str, Callable[[], float]]:
    import rq

    connection = redis.Redis.from_url(server.url)
    tasks = rq.Queue(connection=connection)

    def rq_bulk(bodies: list[str]) -> None:
        tasks.enqueue_many([rq.Queue.prepare_data(noop, (body,), result_ttl=0) for body in bodies])

    queue = abate.open_store(f"{server.url}/1").queue("bulk")
    return {"abate send_many": batched(queue.send_many), "rq enqueue_many": batched(rq_bulk)}


def on_postgres(port: int) -> dict[str, Callable[[], float]]:
    import asyncpg
    import pgmq
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    queue = abate.open_store(url).queue("bulk")
    rates = {"abate send_many": batched(queue.send_many)}
    loop = asyncio.new_event_loop()
    driver = AsyncpgDriver(loop.run_until_complete(asyncpg.connect(url)))
    queries = Queries(driver)
    loop.run_until_complete(queries.install())

    def pgqueuer_bulk(bodies: list[str]) -> None:
        bytes_of = [body.encode() for body in bodies]
        loop.run_until_complete(queries.enqueue(["noop"] * len(bodies), bytes_of, [0] * len(bodies)))

    rates["pgqueuer enqueue"] = batched(pgqueuer_bulk)
    with psycopg.connect(url, autocommit=True) as connection:  # the extension is SQL, which comes with the client
        connection.execute(Path(pgmq.__file__).with_name("sql").joinpath("pgmq.sql").read_text())
        connection.execute("SELECT pgmq.create('bench')")
    messages = pgmq.PGMQueue(
        host="127.0.0.1", port=str(port), database="postgres", username="postgres", password="x", init_extension=False
    )
    rates["pgmq send_batch"] = batched(lambda bodies: messages.send_batch("bench", [{"i": body} for body in bodies]))
    return rates


def on_sqlite(folder: Path) -> dict[str, Callable[[], float]]:
    import huey
    import litequeue
    import persistqueue

    queue = abate.open_store(f"sqlite:///{folder}/abate.db").queue("bulk")
    tasks = huey.SqliteHuey(filename=str(folder / "huey.db"))
    enqueue = tasks.task()(noop)
    lite = litequeue.LiteQueue(str(folder / "lite.db"))
    persist = persistqueue.SQLiteAckQueue(str(folder / "persist"), auto_commit=True)
    return {
        "abate send_many": batched(queue.send_many),
        "litequeue put": one_by_one(lite.put),
        "huey enqueue": one_by_one(enqueue),
        "persist-queue put": one_by_one(persist.put),
    }


def compare(store: str, rates: dict[str, Callable[[], float]], rounds: int) -> None:
    """Print the medians of all, and what the first is of the best other."""
    found: dict[str, list[float]] = {name: [] for name in rates}
    for _ in range(rounds):
        for name in random.sample(list(rates), len(rates)):
            found[name].append(rates[name]())
    medians = {name: statistics.median(several) for name, several in found.items()}
    for name, median in medians.items():
        print(f"{store:10} {name:20} {median:10,.0f} messages/s")
    ours, *others = medians.values()
    print(f"{store:10} {'ratio':20} {ours / max(others):10.2f} of the best other", flush=True)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "valkey").mkdir()
        valkey = Valkey(str(folder / "valkey")).start()
        try:
            compare("Valkey", on_valkey(valkey), rounds)
        finally:
            valkey.kill()
        (folder / "postgres").mkdir()
        postgres = start_postgres(folder / "postgres")
        try:
            compare("PostgreSQL", on_postgres(postgres.port), rounds)
        finally:
            postgres.stop(signal.SIGINT)
        compare("SQLite", on_sqlite(folder), rounds)


if __name__ == "__main__":
    main()
