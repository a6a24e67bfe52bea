"""The API: a process with limited capacity, and an outage when it is told to begin.

    GET /objects/7      ->  the last version of object 7 that was written
    PUT /objects/7/3    ->  write version 3, which must be the next; writing it again has no effect

It sends its port to the parent. After "begin" it is up for `calm` seconds. Then it drops every connection, as a process
that restarts does, and answers 503 to all requests for `outage` seconds. After each tenth of a second it sends how many
requests arrived in it, the most that had arrived in the last 100 ms at any instant of it, and how many versions have
been written so far. Tenths are numbered from the disconnect.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import sys
from collections import Counter, deque
from heapq import heapreplace
from math import floor, inf
from typing import Any

from abate.cli.demo.child_processes import receive_from_parent, send_to_parent
from abate.cli.demo.settings import BAR, PLACES, SERVICE, WORKERS

REQUEST = re.compile(r"(?:GET|PUT) /objects/(?P<name>[0-9]{1,9})(?:/(?P<version>[0-9]{1,9}))?")
MAX_REQUEST = 4096
"""Bytes."""
OUR_HOST = b"\r\nHost: localhost\r\n"
"""What the controllers send; a web page whose name points here (DNS rebinding) sends another host."""
BACKLOG = 2048
"""Open connections, and those that wait to be accepted: after the disconnect all come at once."""


class Api:
    """The versions of objects, the workers, and the counts of arrivals."""

    def __init__(self, calm: float, outage: float) -> None:
        self._calm = calm
        self._outage = outage
        self._loop = asyncio.get_running_loop()
        self._disconnect_at = inf
        self._free = [0.0] * WORKERS  # when each worker is free again
        self._versions: Counter[str] = Counter()
        self._arrivals: Counter[int] = Counter()
        self._peaks: Counter[int] = Counter()
        self._recent: deque[float] = deque()
        self.connections: set[ControllerConnection] = set()

    def begin(self, _: str) -> None:
        """Stay up for `calm` seconds, then begin the outage."""
        self._disconnect_at = self._loop.time() + self._calm
        self._loop.call_at(self._disconnect_at, self._drop)
        self._send_tenth(floor(-self._calm / BAR))

    def arrived(self, request: str, connection: ControllerConnection) -> None:
        """Serve a request, or refuse it."""
        now = self._loop.time()
        self._count(now)
        start = max(now, self._free[0])
        down = 0 <= now - self._disconnect_at < self._outage
        if down or start - now > PLACES * SERVICE / WORKERS:
            connection.answer("503 Service Unavailable")
            return
        # by the scheduled instant, so that late timers don't lower the capacity
        heapreplace(self._free, start + SERVICE)
        self._loop.call_at(start + SERVICE, self._serve, request, connection)

    def _serve(self, request: str, connection: ControllerConnection) -> None:
        if connection.closed:  # dropped in the meantime: nothing is written
            return
        found = REQUEST.fullmatch(request)
        if found is None:
            connection.answer("400 Bad Request")
            return
        name, version = found["name"], int(found["version"] or 0)
        if version > self._versions[name] + 1:
            connection.answer("409 Conflict")
            return
        self._versions[name] = max(version, self._versions[name])
        connection.answer("200 OK", str(self._versions[name]))

    def _count(self, now: float) -> None:
        if self._disconnect_at == inf:
            return
        tenth = self._tenth(now)
        self._arrivals[tenth] += 1
        self._recent.append(now)
        while self._recent[0] <= now - BAR:
            self._recent.popleft()
        self._peaks[tenth] = max(self._peaks[tenth], len(self._recent))

    def _drop(self) -> None:
        for connection in list(self.connections):
            connection.drop()

    def _tenth(self, now: float) -> int:
        return floor((now - self._disconnect_at) / BAR)

    def _send_tenth(self, tenth: int) -> None:
        """Send all tenths that are over, beginning with this one."""
        over = self._tenth(self._loop.time())
        for number in range(tenth, over):
            send_to_parent(
                {
                    "tenth": number,
                    "arrivals": self._arrivals.pop(number, 0),
                    "peak": self._peaks.pop(number, 0),
                    "written": self._versions.total(),
                }
            )
        following = max(tenth, over)
        self._loop.call_at(self._disconnect_at + (following + 1) * BAR, self._send_tenth, following)


class ControllerConnection(asyncio.Protocol):
    """A connection: requests without a body, one after the other."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._read = b""

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        self._api.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._api.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self._read += data
        if len(self._read) > MAX_REQUEST:
            self.drop()
        elif self._read.endswith(b"\r\n\r\n"):
            if OUR_HOST not in self._read:
                self.drop()
                return
            request = self._read.partition(b" HTTP/1.1\r\n")[0]
            self._read = b""
            self._api.arrived(request.decode("latin-1"), self)

    def answer(self, status: str, body: str = "") -> None:
        """Answer the request that was read last."""
        self._transport.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    @property
    def closed(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._transport.is_closing()

    def drop(self) -> None:
        """Close it at once."""
        self._transport.abort()


def raise_file_limit(files: int) -> None:
    """Raise the limit of open files, as far as allowed: on some systems it is 256 by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        limit = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


async def serve(calm: float, outage: float) -> None:
    """Serve until the parent has ended."""
    raise_file_limit(BACKLOG)
    api = Api(calm, outage)
    server = await asyncio.get_running_loop().create_server(
        lambda: ControllerConnection(api), "127.0.0.1", 0, backlog=BACKLOG
    )
    receive_from_parent(api.begin)
    send_to_parent(server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(**json.loads(sys.argv[1])))
