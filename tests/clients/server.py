"""A real HTTP server on loopback that does as it is told, and remembers what it was asked.

Each request takes the next behaviour of the script; when that has run out, the server answers 200. A behaviour is a
function of the connection; the ones below are what real servers do on bad days.
"""

from __future__ import annotations

import glob
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Request:
    """What the server was asked: header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int


Behaviour = Callable[[socket.socket], bool]
"""Answers on the connection; False closes it."""


def respond(status: int, *headers: tuple[str, str], body: bytes = b"") -> Behaviour:
    """Answer with a status, headers and a body, and keep the connection."""

    def behave(connection: socket.socket) -> bool:
        lines = [f"HTTP/1.1 {status} Told So", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return True

    return behave


def say(*pieces: bytes) -> Behaviour:
    """Send these bytes, whatever they are, and close."""

    def behave(connection: socket.socket) -> bool:
        for piece in pieces:
            connection.sendall(piece)
        return False

    return behave


def close(connection: socket.socket) -> bool:
    """Close without a word."""
    return False


def reset(connection: socket.socket) -> bool:
    """Reset the connection without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def reset_in_body(connection: socket.socket) -> bool:
    """Promise a hundred bytes, send ten, reset."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789")
    return reset(connection)


def close_in_body(connection: socket.socket) -> bool:
    """Promise a hundred bytes, send ten, close."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789")
    return False


def open_sockets() -> int:
    """How many sockets this process has open; 0 if the system does not tell."""
    found = 0
    for path in glob.glob("/proc/self/fd/*"):
        with suppress(FileNotFoundError):  # the one that the directory is read by
            found += os.readlink(path).startswith("socket:")
    return found


@dataclass
class Server:
    """The server: `with Server(respond(503), reset) as server:` and then `server.url`."""

    script: deque[Behaviour]
    requests: list[Request] = field(default_factory=list)

    def __init__(self, *behaviours: Behaviour) -> None:
        self.script = deque(behaviours)
        self.requests = []
        self.connections = 0
        self._over = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def pick(self, request: Request) -> Behaviour:
        """How to answer a request; a test may have its own way."""
        return self.script.popleft() if self.script else respond(200, body=b"ok")

    def hang(self, connection: socket.socket) -> bool:
        """Never answer."""
        self._over.wait(60)
        return False

    def drip(self, connection: socket.socket) -> bool:
        """Answer one byte a second."""
        for byte in OK:
            if self._over.wait(1.0):
                break
            connection.sendall(bytes([byte]))
        return False

    def __enter__(self) -> Server:
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        # a thread that still waits on a closed descriptor may take the connections of whatever has its number next
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for connection in list(self._open):
            connection.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection, self.connections), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        stream = connection.makefile("rb")
        try:
            while not self._over.is_set() and (request := self._read(stream, number)) is not None:
                self.requests.append(request)
                if not self.pick(request)(connection):
                    break
        except OSError:
            pass  # the client went away, or the test is over
        finally:
            stream.close()
            connection.close()
            self._open.discard(connection)

    def _read(self, stream: object, number: int) -> Request | None:
        line = stream.readline()
        if not line.strip():
            return None
        method, path, _ = line.decode("latin-1").split(" ", 2)
        headers = {}
        while (line := stream.readline().decode("latin-1").strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = b""
            while size := int(stream.readline().split(b";")[0], 16):
                body += stream.read(size)
                stream.readline()
            stream.readline()
        else:
            body = stream.read(int(headers.get("content-length", 0)))
        return Request(method, path, headers, body, number)
