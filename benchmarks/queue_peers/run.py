"""Messages per second that abate's consumers handle, beside other queues that deliver at least once, in one run.

The handlers do nothing. Every candidate drains its own full queue, with one process and with four, in turns; a row is
the median of the rounds. Huey, rq and arq are left out: they lose what a killed process held. "By hand" is no library:
the statements of pgmq in a loop, with nothing around them.

    python benchmarks/queue_peers/run.py [ROUNDS [MESSAGES]]
"""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import redis

from tests.clients.databases.servers import start_postgres
from tests.clients.valkey_server import Valkey

HERE = Path(__file__).parent
ROUNDS, MESSAGES = 3, 10_000
START_LIMIT, STALL_LIMIT = 30.0, 10.0
"""Seconds in which all processes must have a first message; seconds without progress after which a drain is over."""
BAR = 1.2


class Candidate(NamedTuple):
    name: str
    module: str
    store: str
    command: tuple[str, ...] = ("{module}.py",)
    """What each process runs; with `{processes}` in it, one command starts all."""
    most: int = 4
    """How many processes can share the queue."""
    peer: bool = True
    """Whether it is a library that abate is compared with."""


CANDIDATES = (
    Candidate("abate", "use_abate", "Valkey", ("{module}.py", "plain"), peer=False),
    Candidate("abate async", "use_abate", "Valkey", ("{module}.py", "async"), peer=False),
    Candidate("dramatiq", "use_dramatiq", "Valkey", ("-m", "dramatiq", "{module}", "--processes", "{processes}")),
    Candidate("taskiq", "use_taskiq", "Valkey", ("-m", "taskiq", "worker", "{module}:broker", "-w", "{processes}")),
    Candidate("abate", "use_abate", "PostgreSQL", ("{module}.py", "plain"), peer=False),
    Candidate("abate async", "use_abate", "PostgreSQL", ("{module}.py", "async"), peer=False),
    Candidate("pgqueuer", "use_pgqueuer", "PostgreSQL"),
    Candidate("by hand", "use_skip_locked", "PostgreSQL", peer=False),
    Candidate("abate", "use_abate", "SQLite", ("{module}.py", "plain"), peer=False),
    Candidate("abate async", "use_abate", "SQLite", ("{module}.py", "async"), peer=False),
    Candidate("litequeue", "use_litequeue", "SQLite"),
    Candidate("persist-queue", "use_persistqueue", "SQLite", most=1),
)


class Servers:
    """A Valkey and a PostgreSQL; each run gets a database or file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "valkey").mkdir()
        (folder / "postgres").mkdir()
        self.valkey = Valkey(str(folder / "valkey")).start()
        self.postgres = start_postgres(folder / "postgres")
        self.runs = 0

    def new_url(self, candidate: Candidate) -> str:
        self.runs += 1
        if candidate.store == "Valkey":
            with redis.Redis.from_url(self.valkey.url) as client:
                client.flushall()
            return f"{self.valkey.url}/0"
        if candidate.store == "PostgreSQL":
            name = f"run_{self.runs}"
            with self.postgres.connect() as connection:
                connection.execute(f"CREATE DATABASE {name}")
            return f"postgresql://postgres@127.0.0.1:{self.postgres.port}/{name}"
        path = self.folder / f"run_{self.runs}" / "queue.db"
        path.parent.mkdir()
        return f"sqlite:///{path}" if candidate.module == "use_abate" else str(path)

    def stop(self) -> None:
        self.valkey.kill()
        self.postgres.stop(signal.SIGINT)


def per_second(candidate: Candidate, servers: Servers, processes: int, count: int) -> float:
    """Fill a queue, drain it, and return the messages per second from the common start to the last message."""
    url, log = servers.new_url(candidate), servers.folder / f"log_{servers.runs}"
    env = {**os.environ, "QUEUE_PEERS_URL": url, "QUEUE_PEERS_LOG": str(log)}
    fill = f"import sys; from {candidate.module} import fill; fill({count})"
    subprocess.run([sys.executable, "-c", fill], env=env, cwd=HERE, check=True)
    command = [part.format(module=candidate.module, processes=processes) for part in candidate.command]
    starts = 1 if "{processes}" in candidate.command else processes
    output = (servers.folder / "output").open("w")
    workers = [
        subprocess.Popen(
            [sys.executable, *command], env=env, cwd=HERE, stdout=output, stderr=output, start_new_session=True
        )
        for _ in range(starts)
    ]
    try:
        wait_until_started(log, processes, candidate)
        log.with_suffix(".gate").touch()
        start = time.monotonic()
        wait_until_drained(log, count)
        done = handled(log)
        if len(done) < count:
            errors = (servers.folder / "output").read_text().strip().rpartition("\n")[2]
            print(f"{candidate.name} left {count - len(done)} messages: {errors}", file=sys.stderr)
        return len(done) / (max(done.values()) - start)
    finally:
        for worker in workers:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def records(log: Path) -> list[tuple[int, int, float]]:
    record = struct.Struct("<iid")
    written = log.read_bytes() if log.exists() else b""
    return list(record.iter_unpack(written[: len(written) // record.size * record.size]))


def pids(log: Path) -> set[int]:
    """Return the processes that have a first message."""
    return {pid for number, pid, _ in records(log) if number < 0}


def handled(log: Path) -> dict[int, float]:
    """Return when each message was last handled."""
    return {number: instant for number, _, instant in records(log) if number >= 0}


def wait_until_started(log: Path, processes: int, candidate: Candidate) -> None:
    end = time.monotonic() + START_LIMIT
    while len(pids(log)) < processes:
        if time.monotonic() > end:
            raise TimeoutError(f"{candidate.name} on {candidate.store} did not start {processes} processes")
        time.sleep(0.05)


def wait_until_drained(log: Path, count: int) -> None:
    """Wait until all messages are handled, or none was for a while."""
    size, since = 0, time.monotonic()
    while len(handled(log)) < count:
        if (now := log.stat().st_size) != size:
            size, since = now, time.monotonic()
        if time.monotonic() > since + STALL_LIMIT:
            return
        time.sleep(0.05)


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    count = int(sys.argv[2]) if len(sys.argv) > 2 else MESSAGES
    rates: dict[tuple[Candidate, int], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="abate-queue-peers-") as folder:
        servers = Servers(Path(folder))
        try:
            for _ in range(rounds):
                turns = [(one, processes) for one in CANDIDATES for processes in (1, 4) if processes <= one.most]
                for one, processes in random.sample(turns, len(turns)):
                    rate = per_second(one, servers, processes, count)
                    rates.setdefault((one, processes), []).append(rate)
                    print(f"{one.store}, {one.name}, {processes}: {rate:,.0f}", file=sys.stderr, flush=True)
        finally:
            servers.stop()
    print(f"\n{count:,} messages, medians of {rounds} rounds\n")
    print("| store | processes | candidate | messages/s | over the best peer |\n|---|---:|---|---:|---:|")
    for store in ("Valkey", "PostgreSQL", "SQLite"):
        for processes in (1, 4):
            row = {one: median(found) for (one, n), found in rates.items() if (one.store, n) == (store, processes)}
            best = max(rate for one, rate in row.items() if one.peer)
            for one, rate in row.items():
                ratio = "" if one.peer else f"{rate / best:.2f}"
                verdict = (" kept" if rate >= BAR * best else " missed") if one.name == "abate" else ""
                print(f"| {store} | {processes} | {one.name} | {rate:,.0f} | {ratio}{verdict} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
