"""A server with a configurable capacity and planned outages: `python server.py SETTINGS`, which are JSON.

`workers` requests are in service at once, `service` seconds each; `places` more may stand in a queue, first in, first
out; the rest get 503 at once. `outages` are ``[from, to, how, share]``: that share of what arrives is answered with
503, never answered (``hang``), or cut off (``reset``). `slow` is ``[from, to, factor]``: service takes this factor as
long. `retry_after`, if not 0, is sent with every 503.

It prints its port, reads from stdin the instant at which the scenario begins, and prints at the end of stdin what
arrived: ``[when, request, attempt, outcome]``. Outcomes: ``out`` (the outage's doing), ``shed`` (no place in the
queue), ``served``, ``dead`` (served to a client that had hung up), ``inside`` (not served yet). Like most servers,
it notices that a client has hung up only when it is done.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from typing import Any

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
LONGEST_LIFE = 120.0


async def watch_lag(worst: list[float]) -> None:
    """Note how late the loop is at worst: where it is late, the machine is measured and not the clients."""
    while True:
        due = time.monotonic() + 0.01
        await asyncio.sleep(0.01)
        worst[0] = max(worst[0], time.monotonic() - due)


class Server:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.workers: int = settings["workers"]
        self.service: float = settings["service"]
        self.places: int = settings["places"]
        self.outages: list[tuple[float, float, str, float]] = settings["outages"]
        self.slow: list[tuple[float, float, float]] = settings["slow"]
        hint = settings["retry_after"]
        header = f"Retry-After: {hint}\r\n" if hint else ""
        self.refusal = f"HTTP/1.1 503 Service Unavailable\r\n{header}Content-Length: 0\r\n\r\n".encode()
        self.begin = float("inf")
        self.arrivals: list[list[Any]] = []
        self.inside = 0
        self.queue: asyncio.Queue[tuple[list[Any], asyncio.Transport]] = asyncio.Queue()

    def now(self) -> float:
        return time.monotonic() - self.begin

    def arrived(self, path: str, client: asyncio.Transport) -> None:
        _, request, attempt = path.split("/")
        row: list[Any] = [round(self.now(), 4), int(request), int(attempt), ""]
        self.arrivals.append(row)
        how = self.outage(row[0])
        if how is not None:
            row[3] = "out"
            if how == "503":
                client.write(self.refusal)
            elif how == "reset":
                client.abort()
        elif self.inside >= self.workers + self.places:
            row[3] = "shed"
            client.write(self.refusal)
        else:
            row[3] = "inside"
            self.inside += 1
            self.queue.put_nowait((row, client))

    def outage(self, at: float) -> str | None:
        for start, end, how, share in self.outages:
            if start <= at < end and random.random() < share:
                return how
        return None

    async def work(self) -> None:
        """One worker. It counts from when it should have been done, so that late timers don't lower the capacity."""
        free = 0.0
        while True:
            row, client = await self.queue.get()
            # a worker that slept had nothing to do; one that did not takes the next where it left off
            begun = max(free, row[0])
            free = begun + self.service * self.factor(begun)
            await asyncio.sleep(free - self.now())
            self.inside -= 1
            if client.is_closing():
                row[3] = "dead"
            else:
                row[3] = "served"
                client.write(OK)

    def factor(self, at: float) -> float:
        return next((factor for start, end, factor in self.slow if start <= at < end), 1.0)


class Connection(asyncio.Protocol):
    """One keep-alive connection: requests come one after another, each in one piece."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def connection_made(self, transport: Any) -> None:
        self._client: asyncio.Transport = transport

    def data_received(self, data: bytes) -> None:
        self._server.arrived(data.split(b" ", 2)[1].decode(), self._client)


async def main(settings: dict[str, Any]) -> None:
    server = Server(settings)
    loop = asyncio.get_running_loop()
    lag, over = [0.0], asyncio.Event()

    def follow_stdin() -> None:
        server.begin = float(sys.stdin.readline())
        sys.stdin.read()
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=follow_stdin, daemon=True).start()
    listener = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=2048)
    print(listener.sockets[0].getsockname()[1], flush=True)
    tasks = [loop.create_task(server.work()) for _ in range(server.workers)]
    tasks.append(loop.create_task(watch_lag(lag)))
    async with asyncio.timeout(LONGEST_LIFE):
        await over.wait()
    print(json.dumps({"arrivals": server.arrivals, "lag": lag[0]}), flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    import uvloop

    uvloop.install()
    asyncio.run(main(json.loads(sys.argv[1])))
