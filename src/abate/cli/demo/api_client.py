"""HTTP to the API: one connection per controller, kept open, one request at a time.

`abate.http_server` closes a connection after each response; here open connections are the point, as the API drops them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

TIMEOUT = 10.0
"""Seconds; the API answers within 0.2, but the machine may be busy."""


class Unavailable(Exception):
    """The API refused a request."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the API answers {status}")
        self.status_code = status


class ApiConnection(asyncio.Protocol):
    """A connection to the API, opened when it is needed; `dropped` is called when the API closes it."""

    def __init__(self, port: int, dropped: Callable[[], object]) -> None:
        self._port = port
        self._dropped = dropped
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, str]] | None = None
        self._read = b""

    async def connect(self) -> asyncio.Transport:
        """Connect, unless it is connected."""
        if self._transport is None or self._transport.is_closing():
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)
        return self._transport

    async def ask(self, request: str) -> str:
        """Send a request such as ``GET /objects/7``, and return the body of the answer."""
        try:
            async with asyncio.timeout(TIMEOUT):
                transport = await self.connect()
                self._answer, self._read = asyncio.get_running_loop().create_future(), b""
                transport.write(f"{request} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
                status, body = await self._answer
        except BaseException:
            self._abort()
            raise
        if status >= 400:
            raise Unavailable(status)
        return body

    def _abort(self) -> None:
        """Close a connection on which a late answer may still arrive."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # -- as a protocol

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        if not found or self._answer is None:
            return
        if len(body) == int(head.rpartition(b"Content-Length: ")[2]):
            self._answer.set_result((int(head.split(b" ", 2)[1]), body.decode()))
            self._answer = None

    def connection_lost(self, exc: Exception | None) -> None:
        mine = self._transport is None
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the API has closed the connection"))
        if not mine:
            self._dropped()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
