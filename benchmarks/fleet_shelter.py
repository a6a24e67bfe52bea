"""Fifty processes of few calls each through an outage: shelters that don't know of each other, and one that they share.

python benchmarks/fleet_shelter.py [URL]      # by default a SQLite file

A server process with ten workers (333 requests per second, a queue of 50 and then 503) answers 503 for five seconds,
and has two thirds of its workers for two seconds more. Fifty processes send four calls per second each: 60 % of what it
can do.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from typing import Any

import abate

PROCESSES, RATE = 50, 4.0
DOWN, UP, WEAK, END = 5.0, 10.0, 12.0, 22.0
WORKERS, SERVICE, QUEUE = 10, 0.03, 50
PATIENCE = 10.0


class Unavailable(Exception):
    """The server's 503."""

    status_code = 503


class Server:
    """Counts what arrives, per tenth of a second."""

    def __init__(self) -> None:
        self.arrivals: Counter[int] = Counter()
        self.shed = 0
        self.busy = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.began = 0.0

    def _workers(self, now: float) -> int:
        return WORKERS * 2 // 3 if UP <= now < WEAK else WORKERS

    async def _place(self, loop: asyncio.AbstractEventLoop, now: float) -> bool:
        """A worker, now or in turn: is there one?"""
        if self.busy < self._workers(now):
            self.busy += 1
        elif len(self.waiting) < QUEUE:
            turn = loop.create_future()
            self.waiting.append(turn)
            await turn
        else:
            self.shed += 1
            return False
        return True

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while await reader.readline():
            now = loop.time() - self.began
            self.arrivals[int(now * 10)] += 1
            good = not DOWN <= now < UP and await self._place(loop, now)
            if good:
                await asyncio.sleep(SERVICE)
                self.busy -= 1
                free = self._workers(loop.time() - self.began) - self.busy
                for _ in range(min(free, len(self.waiting))):
                    self.busy += 1
                    self.waiting.popleft().set_result(None)
            writer.write(b"200\n" if good else b"503\n")
        writer.close()


async def client(port: int, seed: int, shelter: abate.Shelter, began: float) -> dict[str, Any]:
    """One process: calls as they come, each over a connection of its own if need be."""
    rng = random.Random(seed)
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    policy = abate.Policy(name="api", on=abate.http.transient, max_attempts=6, timeout=PATIENCE, shelter=shelter)
    rows: list[tuple[float, float, bool]] = []

    async def request() -> None:
        reader, writer = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET\n")
        line = await reader.readline()
        free.append((reader, writer))
        if line != b"200\n":
            raise Unavailable

    async def call(due: float) -> None:
        try:
            await policy.acall(request)
            rows.append((due, time.time() - began, True))
        except (Unavailable, abate.Refused, TimeoutError):
            rows.append((due, time.time() - began, False))

    tasks, due = [], rng.expovariate(RATE)
    while due < END:
        await asyncio.sleep(began + due - time.time())
        tasks.append(asyncio.create_task(call(due)))
        due += rng.expovariate(RATE)
    await asyncio.gather(*tasks)
    return {"rows": rows}


def member(port: int, seed: int, url: str, began: float) -> dict[str, Any]:
    shelter = abate.Shelter(name="api") if url == "alone" else abate.open_store(url).shelter("api")
    return asyncio.run(client(port, seed, shelter, began))


async def storm(url: str) -> None:
    server = Server()
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0, backlog=1000)
    port = listening.sockets[0].getsockname()[1]
    began = time.time() + 12.0  # fifty interpreters take a while to start
    server.began = asyncio.get_running_loop().time() + began - time.time()
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--member", str(port), str(seed), url, str(began), stdout=subprocess.PIPE
        )
        for seed in range(PROCESSES)
    ]
    answers = await asyncio.gather(*(process.communicate() for process in processes))
    rows = [row for out, _ in answers for row in json.loads(out)["rows"]]
    during = sum(count for tenth, count in server.arrivals.items() if DOWN * 10 <= tenth < UP * 10)
    after = [count for tenth, count in server.arrivals.items() if UP * 10 <= tenth < (UP + 5) * 10]
    outage = [row for row in rows if DOWN <= row[0] < UP]
    lost, lost_in_all = (sum(not good for *_, good in some) / len(some) for some in (outage, rows))
    print(
        f"{'own' if url == 'alone' else 'shared':>8}: arrivals in the outage {during:5}, peak per 100 ms after it"
        f" {max(after):4}, shed {server.shed:5}, lost of the outage's calls {lost:6.1%}, of all {lost_in_all:6.1%}"
    )
    listening.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--member"]:
        _, _, port, seed, url, began = sys.argv
        print(json.dumps(member(int(port), int(seed), url, float(began))))
    else:
        with tempfile.TemporaryDirectory() as folder:
            for url in ("alone", *(sys.argv[1:] or [f"sqlite:///{folder}/fleet.db"])):
                asyncio.run(storm(url))
