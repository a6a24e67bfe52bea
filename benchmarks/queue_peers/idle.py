"""What a consumer costs while it waits, and how soon an idle one handles a message: abate beside peers, in one run.

    python benchmarks/queue_peers/idle.py [seconds] [messages]

Every consumer is a process of its own with its defaults, and all wait at the same time. The CPU of each is that of its
threads over the given seconds; then each in turn, in random order, gets messages at random intervals. The latency is
from before the call that sends to the handler's first line. The peers, which have to be installed: huey (Valkey,
SQLite), and pgqueuer with asyncpg.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

WARM_UP = 5
"""Messages of each consumer that are not counted."""
STARTED = 20.0
"""Seconds until the first measurement."""
TIMEOUT = 5.0
"""Seconds after which a message counts as late."""

ABATE = """
import sys, time, abate
queue = abate.open_store(sys.argv[1]).queue("idle")
@abate.consumer(source=queue)
def handle(message):
    now = time.monotonic()
    with open(sys.argv[2], "a") as log: log.write(f"{message.body} {now}\\n")
handle.run()
"""
HUEY = """
import sys, time, huey
tasks = huey.SqliteHuey(filename=sys.argv[1]) if sys.argv[1].startswith("/") else huey.RedisHuey(url=sys.argv[1])
@tasks.task(name="idle")
def idle(number):
    now = time.monotonic()
    with open(sys.argv[2], "a") as log: log.write(f"{number} {now}\\n")
if __name__ == "__main__": tasks.create_consumer(workers=1, periodic=False).run()
"""
PGQUEUER = """
import asyncio, sys, time, asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
async def main():
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(sys.argv[1])))
    @queuer.entrypoint("idle")
    async def handle(job):
        now = time.monotonic()
        with open(sys.argv[2], "a") as log: log.write(f"{job.payload.decode()} {now}\\n")
    await queuer.run()
asyncio.run(main())
"""


class Consumer:
    """A process that writes down when it has received which message."""

    def __init__(self, name: str, program: str, url: str, folder: Path, send: Callable[[str], object]) -> None:
        self.name, self.send = name, send
        self._log = folder / f"{name.replace(' ', '-')}.log"
        self._log.touch()
        command = [sys.executable, "-c", program, url, str(self._log)]
        self._errors = folder / f"{name.replace(' ', '-')}.err"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=errors, stderr=errors)
        self.latencies: list[float] = []
        self.late = 0

    def cpu(self) -> float:
        """Return the seconds that its threads have run."""
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} has ended: {self._errors.read_text()[-1000:]}")
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int(task.joinpath("schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def measure(self, number: int) -> None:
        """Send a message, and note when it was received."""
        began = time.monotonic()
        self.send(str(number))
        while time.monotonic() < began + TIMEOUT:
            time.sleep(0.001)
            for line in self._log.read_text().splitlines()[-3:]:
                found, _, at = line.partition(" ")
                if found == str(number):
                    self.latencies.append(float(at) - began)
                    return
        self.late += 1


def consumers(folder: Path, valkey: str, postgres: str) -> list[Consumer]:
    import huey

    import abate

    urls = {"Valkey": f"{valkey}/1", "PostgreSQL": postgres, "SQLite": f"sqlite:///{folder}/abate.db"}
    found = [
        Consumer(f"abate {store}", ABATE, url, folder, abate.open_store(url).queue("idle").send)
        for store, url in urls.items()
    ]

    def task_of(tasks: huey.Huey) -> Callable[[str], object]:
        @tasks.task(name="idle")  # type: ignore[untyped-decorator]
        def idle(number: str) -> None: ...

        send: Callable[[str], object] = idle
        return send

    file = str(folder / "huey.db")
    found.append(Consumer("huey Valkey", HUEY, valkey, folder, task_of(huey.RedisHuey(url=valkey))))
    found.append(Consumer("huey SQLite", HUEY, file, folder, task_of(huey.SqliteHuey(filename=file))))
    found.append(pgqueuer(folder, postgres))
    return found


def pgqueuer(folder: Path, url: str) -> Consumer:
    import asyncio

    import asyncpg
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    loop = asyncio.new_event_loop()
    queries = Queries(AsyncpgDriver(loop.run_until_complete(asyncpg.connect(url))))
    loop.run_until_complete(queries.install())
    return Consumer(
        "pgqueuer",
        PGQUEUER,
        url,
        folder,
        lambda number: loop.run_until_complete(queries.enqueue("idle", number.encode())),
    )


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    messages = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    from tests.clients.databases.servers import start_postgres
    from tests.clients.valkey_server import Valkey

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("valkey", "postgres"):
            (folder / part).mkdir()
        valkey, postgres = Valkey(str(folder / "valkey")).start(), start_postgres(folder / "postgres")
        several: list[Consumer] = []
        try:
            several = consumers(folder, valkey.url, f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres")
            time.sleep(3.0)
            for number in range(WARM_UP):
                for one in several:
                    one.measure(number)
            for one in several:
                one.latencies.clear()
            time.sleep(STARTED)
            before = [one.cpu() for one in several]
            time.sleep(seconds)
            shares = [100 * (one.cpu() - earlier) / seconds for one, earlier in zip(several, before, strict=True)]
            for number in range(WARM_UP, WARM_UP + messages):
                for one in random.sample(several, len(several)):
                    time.sleep(0.02 + 0.06 * random.random())
                    one.measure(number)
            for one, share in zip(several, shares, strict=True):
                p50, p90 = statistics.median(one.latencies), statistics.quantiles(one.latencies, n=10)[-1]
                print(
                    f"{one.name:18} idle {share:6.3f} % of a core, latency p50 {1e3 * p50:6.2f} ms,"
                    f" p90 {1e3 * p90:6.2f} ms, late {one.late}"
                )
        finally:
            for one in several:
                one.process.kill()
                one.process.wait()
            valkey.kill()
            postgres.stop(signal.SIGINT)


if __name__ == "__main__":
    main()
