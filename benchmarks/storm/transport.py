"""What all candidates send with: plain HTTP/1.1 over kept connections, so that only the retries differ."""

from __future__ import annotations

import asyncio
from typing import Any


class Unavailable(Exception):
    """An answer of 503, with all that any of the libraries looks for on an error."""

    def __init__(self, status: int, retry_after: float | None) -> None:
        super().__init__(f"answered {status}")
        self.status = self.status_code = status
        self.retry_after = retry_after
        self.headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}


ERRORS = (Unavailable, TimeoutError, ConnectionError)


class Connection(asyncio.Protocol):
    """A kept connection; `answer` is the head of what the server says, when it does."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[str] | None = None
        self.alive = True

    def connection_made(self, transport: Any) -> None:
        self.server: asyncio.Transport = transport

    def data_received(self, data: bytes) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(data.decode())

    def connection_lost(self, error: Exception | None) -> None:
        self.alive = False
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ConnectionResetError("cut off by the server"))


class Transport:
    """The way to one server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Connection] = []
        self.sent = 0

    async def warm_up(self, connections: int) -> None:
        """Connect beforehand: connecting is not what is measured."""
        self._idle = [await self._connect() for _ in range(connections)]

    async def _connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self._port)
        return connection

    async def get(self, path: str, timeout: float) -> None:
        """Ask once; an answer other than 200 is an error, and so is none within the timeout."""
        async with asyncio.timeout(timeout):
            connection = self._kept() or await self._connect()
            answer = connection.answer = asyncio.get_running_loop().create_future()
            connection.server.write(f"GET {path} HTTP/1.1\r\nHost: storm\r\n\r\n".encode())
            self.sent += 1
            try:
                head = await answer
            except BaseException:
                connection.server.close()
                raise
        self._idle.append(connection)
        status = int(head.split(" ", 2)[1])
        if status != 200:
            _, found, after = head.partition("Retry-After: ")
            raise Unavailable(status, float(after.split("\r\n", 1)[0]) if found else None)

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
        return None
