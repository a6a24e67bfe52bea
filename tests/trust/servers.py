"""Real servers on loopback, for what callers may do to them: uvicorn, hypercorn, threads for WSGI; requests by hand."""

from __future__ import annotations

import asyncio
import socket
import threading
import wsgiref.simple_server
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn

import hypercorn.asyncio
import hypercorn.config
import uvicorn

LIMIT = 30.0
"""Seconds; nothing here takes as long, it only keeps a broken test from hanging."""


@contextmanager
def uvicorn_serving(app: object, listening: socket.socket, **settings: object) -> Iterator[None]:
    """Serve on a socket by uvicorn, with its defaults: it takes X-Forwarded-For from 127.0.0.1."""
    config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1, **settings)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(LIMIT)


@contextmanager
def hypercorn_serving(app: object, listening: socket.socket) -> Iterator[None]:
    """Serve on a socket by hypercorn."""
    config = hypercorn.config.Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.graceful_timeout = 1
    config.errorlog = None
    over: list[object] = []

    async def main() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        over.append(lambda: loop.call_soon_threadsafe(stop.set))
        await hypercorn.asyncio.serve(app, config, shutdown_trigger=stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over[0]()
        thread.join(LIMIT)


class _Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def address_string(self) -> str:
        return str(self.client_address[0]) if self.client_address else ""

    def get_environ(self) -> dict[str, object]:
        if not self.client_address:  # a unix socket: the peer has no name, as gunicorn has it
            self.client_address = ("", 0)
        return super().get_environ()


class _Threads(ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True


@contextmanager
def wsgi_serving(app: object, listening: socket.socket) -> Iterator[None]:
    """Serve on a socket by threads, one for each request."""
    with _Threads(("127.0.0.1", 0), _Quiet, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = listening
        server.server_name, server.server_port = "localhost", 80
        server.setup_environ()
        server.set_app(app)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join(LIMIT)


def listen(path: object = None) -> socket.socket:
    """A socket that listens on a free port of loopback, or at a path."""
    if path is None:
        listening = socket.create_server(("127.0.0.1", 0))
    else:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen()
    return listening


class Answer:
    """A status, the headers as they came, and the body."""

    def __init__(self, received: bytes) -> None:
        head, _, self.body = received.partition(b"\r\n\r\n")
        self.head = head.decode("latin-1").lower()
        self.status = int(head.split()[1]) if head else 0


def ask(address: object, *headers: tuple[str, str | bytes], path: str = "/", method: str = "GET") -> Answer:
    """Send a request as it is, whatever its headers are, and read until the server closes."""
    with socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX) as client:
        client.settimeout(LIMIT)
        client.connect(address)
        lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: shop", b"Connection: close"]
        lines += [name.encode() + b": " + _bytes(value) for name, value in headers]
        client.sendall(b"\r\n".join([*lines, b"", b""]))
        received = b""
        try:
            while part := client.recv(65536):
                received += part
        except ConnectionError:
            pass  # a server that has not read the whole request may reset the connection
        return Answer(received)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
