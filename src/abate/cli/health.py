"""Answers of a service on HTTP, for whoever watches over it: is it alive, does it take work?

``GET /healthz`` and ``GET /readyz`` answer 200 or 503, with how it is as JSON, on the loopback interface alone. They
are served by the service's own event loop: if that hangs, so do they, and this is what a watcher has to see.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

PATIENCE = 5.0
"""Seconds for one request."""
MOST = 32
"""Requests at once."""
LONGEST = 8192
"""Bytes of one request's head."""


class HealthServer:
    """Serves what `health()` answers, an object with `live` and `ready` among its fields."""

    def __init__(self, health: Callable[[], Any], port: int) -> None:
        self._health = health
        self._port = port
        self._busy = 0

    async def __aenter__(self) -> int:
        """Begin to serve; the answer is the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=LONGEST)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aexit__(self, *exit: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._busy >= MOST:
            writer.close()
            return
        self._busy += 1
        try:
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self.answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # who asks like this gets no answer
        finally:
            self._busy -= 1
            writer.close()

    def answer(self, head: bytes) -> bytes:
        """The response to a request's head."""
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        health = self._health()
        known = {b"/healthz": health.live, b"/readyz": health.ready}
        if path not in known:
            status = HTTPStatus.NOT_FOUND
        elif method not in (b"GET", b"HEAD"):
            status = HTTPStatus.METHOD_NOT_ALLOWED
        else:
            status = HTTPStatus.OK if known[path] else HTTPStatus.SERVICE_UNAVAILABLE
        body = json.dumps({name: getattr(health, name) for name in health.__match_args__}).encode()
        fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        line = f"HTTP/1.1 {status.value} {status.phrase}\r\n{fields}\r\n".encode()
        return line if method == b"HEAD" else line + body
