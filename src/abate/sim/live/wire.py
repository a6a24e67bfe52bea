"""HTTP/1.1 over real sockets, as little of it as live runs need: heads without bodies, and connections that are kept.

A client that gives up on an answer closes its connection, as real ones do, and that is how the service learns of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, cast

HOST = "127.0.0.1"
LONGEST = 8192
"""Bytes of a head, which is a request or an answer; whoever sends a longer one is cut off."""
END = b"\r\n\r\n"


class Head(NamedTuple):
    """A request or an answer: its first line, in words, and its headers by their names in small letters."""

    words: tuple[str, ...]
    headers: Mapping[str, str]


def written(first: str, headers: Mapping[str, str]) -> bytes:
    """A head as it is sent.

    >>> written("GET /api HTTP/1.1", {"Host": "127.0.0.1"})
    b'GET /api HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n'
    """
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1") + END


def read(head: bytes) -> Head:
    """A head as it came, without the empty line behind it.

    >>> read(b"HTTP/1.1 503 Service Unavailable\\r\\nRetry-After: 2").words[1]
    '503'
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Head(tuple(first.split(" ")), headers)


class Wire(asyncio.Protocol):
    """One end of a connection, on which heads come and go; each is told to `came`, and the end to `lost`."""

    def __init__(self) -> None:
        self._buffer = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while END in self._buffer:
            head, self._buffer = self._buffer.split(END, 1)
            self.came(read(head))
        if len(self._buffer) > LONGEST:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.lost()

    def send(self, first: str, headers: Mapping[str, str]) -> None:
        """Send a head, unless the connection is gone."""
        if self.transport is not None:
            self.transport.write(written(first, headers))

    def close(self) -> None:
        """Hang up."""
        if self.transport is not None:
            self.transport.close()

    def came(self, head: Head) -> None:
        """A head came."""
        raise NotImplementedError

    def lost(self) -> None:
        """The connection is gone."""


class Asking(Wire):
    """The client's end: one question at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: asyncio.Future[Head] | None = None

    async def ask(self, first: str, headers: Mapping[str, str]) -> Head:
        """Send a request and wait for its answer; who does not wait to the end hangs up."""
        answer: asyncio.Future[Head] = asyncio.get_running_loop().create_future()
        self._answer = answer
        if self.transport is None:
            raise ConnectionResetError("the service has closed the connection")
        self.send(first, headers)
        try:
            return await answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None

    def came(self, head: Head) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(head)
        else:
            self.close()  # an answer that nobody asked for

    def lost(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the service has closed the connection"))


class Pool:
    """Connections to one port; those that are free are used again, the last one first."""

    __slots__ = ("_all", "_free", "_port")

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[Asking] = []
        self._all: set[Asking] = set()

    async def warm(self, count: int) -> None:
        """Have so many connections open, so that a herd does not begin with handshakes."""
        for _ in range(count - len(self._free)):
            self._free.append(await self._connect())

    async def ask(self, first: str, headers: Mapping[str, str]) -> Head:
        """Send a request on a connection of its own, and wait for the answer."""
        wire = self._taken() or await self._connect()
        try:
            head = await wire.ask(first, headers)
        except BaseException:
            self._all.discard(wire)
            raise
        self._free.append(wire)
        return head

    def _taken(self) -> Asking | None:
        while self._free:
            wire = self._free.pop()
            if wire.transport is not None:
                return wire
            self._all.discard(wire)
        return None

    async def _connect(self) -> Asking:
        _, wire = await asyncio.get_running_loop().create_connection(Asking, HOST, self._port)
        self._all.add(wire)
        return wire

    def close(self) -> None:
        """Hang up on all of them."""
        for wire in self._all:
            wire.close()
        self._all.clear()
        self._free.clear()


class Answering(Wire):
    """The service's end: requests go to `serve`, one at a time, as each client waits for its answer."""

    def __init__(self, serve: Callable[[Answering, Head], object], gone: Callable[[Answering], object]) -> None:
        super().__init__()
        self._serve = serve
        self._gone = gone

    def came(self, head: Head) -> None:
        self._serve(self, head)

    def answer(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the answer."""
        self.send(f"HTTP/1.1 {status} {_phrase(status)}", {**headers, "Content-Length": "0"})

    def lost(self) -> None:
        self._gone(self)


PHRASES = {status.value: status.phrase for status in HTTPStatus}


def _phrase(status: int) -> str:
    return PHRASES.get(status, "Unknown")
