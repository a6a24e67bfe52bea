"""One run: a server (or two) of its own, one candidate, one scenario.

`python play.py SCENARIO CANDIDATE SEED` prints JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measure import KINDS, Request, curve
from scenarios import SCENARIOS, Scenario, Server
from server import watch_lag
from transport import Transport

from clients import CANDIDATES, Settings, quiet

SERVER = Path(__file__).with_name("server.py")
LONGEST_TAIL = 40.0
"""Seconds that requests may take after the last one was due."""


class Running:
    """A server in its process."""

    def __init__(self, server: Server) -> None:
        command = [sys.executable, str(SERVER), json.dumps(server.settings())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.transport = Transport(int(self._process.stdout.readline()))

    def begin(self, at: float) -> None:
        assert self._process.stdin is not None
        print(at, file=self._process.stdin, flush=True)

    def end(self) -> dict[str, Any]:
        """Its log; the process ends with it."""
        answer: dict[str, Any] = json.loads(self._process.communicate(timeout=10)[0])
        return answer


def requests_of(scenario: Scenario, chance: random.Random) -> list[Request]:
    if scenario.herd:
        return [Request(number, 0.0) for number in range(scenario.herd)]
    found, at = [], chance.expovariate(scenario.rate)
    while at < scenario.seconds:
        found.append(Request(len(found), at))
        at += chance.expovariate(scenario.rate)
    return found


async def play(scenario: Scenario, name: str, seed: int) -> dict[str, Any]:
    rate = scenario.rate / scenario.policies if scenario.rate else scenario.herd / scenario.policies / 10
    settings = Settings(**{**vars(scenario.settings), "rate": rate})
    servers = [Running(server) for server in (scenario.server, scenario.other) if server is not None]
    for server in servers:
        await server.transport.warm_up(max(60, scenario.herd))

    def decorated(transport: Transport) -> Any:
        async def fetch(request: Request) -> None:  # a plain coroutine function, as users write them
            request.attempts += 1
            await transport.get(f"/{request.number}/{request.attempts}", scenario.timeout)

        for _ in range(scenario.layers):
            fetch = CANDIDATES[name](settings)(fetch)
        return fetch

    calls = [[decorated(server.transport) for _ in range(scenario.policies)] for server in servers]
    room: Any = asyncio.Semaphore(scenario.places) if scenario.places else contextlib.nullcontext()

    async def issue(request: Request) -> None:
        of_server = calls[request.number % len(servers)]
        try:
            async with room:
                await of_server[request.number // len(servers) % scenario.policies](request)
        except Exception as error:
            request.error = type(error).__name__
        request.done = time.monotonic() - begin

    requests = requests_of(scenario, random.Random(seed))
    lag = [0.0]
    watch = asyncio.create_task(watch_lag(lag))
    begin = time.monotonic() + 0.3
    for server in servers:
        server.begin(begin)
    tasks = []
    for request in requests:  # they don't wait for each other, however long answers take
        await asyncio.sleep(max(0.0, begin + request.due - time.monotonic()))
        tasks.append(asyncio.create_task(issue(request)))
        if scenario.layers > 1:
            await tasks[-1]
    _, unfinished = await asyncio.wait(tasks, timeout=LONGEST_TAIL)
    await asyncio.sleep(0.1 if scenario.herd else 1.5)  # the server finishes what is inside
    watch.cancel()
    logs = [server.end() for server in servers]
    arrivals = sorted(row for log in logs for row in log["arrivals"])
    sent = sum(server.transport.sent for server in servers)
    answer: dict[str, Any] = {
        "figures": KINDS[scenario.kind](scenario, requests, arrivals),
        "valid": not unfinished and sent == len(arrivals),
        "lag": round(max(lag[0], *(log["lag"] for log in logs)), 4),
        "cpu": round(time.process_time(), 2),
    }
    if scenario.rate:
        answer["arrived"] = curve([row[0] for row in arrivals], scenario.seconds)
        answer["succeeded"] = curve([request.done for request in requests if request.ok], scenario.seconds)
    return answer


if __name__ == "__main__":
    import uvloop

    quiet()
    uvloop.install()
    print(json.dumps(asyncio.run(play(SCENARIOS[sys.argv[1]], sys.argv[2], int(sys.argv[3])))))
