"""Serve the page from a thread with its own event loop, beside any program.

So a program that hangs, or that has no event loop, can still be observed.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.types import Message, Scope

from abate.errors import whole
from abate.http_server import Connection, HttpServer, is_loopback, listen, url
from abate.observe.page.asgi_app import app
from abate.observe.page.sign_in import MAX_BODY

GRACE = 1.0
"""Seconds for visitors to receive the last data at the end."""
JOIN_TIMEOUT = 5.0
"""Seconds to wait for the thread to end."""


@contextmanager
def serving(
    host: str = "127.0.0.1", port: int = 8321, token: str | None = None, *, local_only: bool = False
) -> Iterator[str]:
    """Serve the live page while the block runs; the context manager returns the page's URL.

    On loopback the page answers this machine only; a token protects it from other users of the machine, or behind a
    proxy. A host that others can reach needs a token, or `local_only=True` to answer this machine only. An empty host
    means all addresses; port 0 means any free port.

    >>> with serving(port=0) as address:
    ...     address.startswith("http://127.0.0.1:")
    True
    >>> with serving("0.0.0.0", port=0):
    ...     pass
    Traceback (most recent call last):
    ValueError: the page needs a token, as 0.0.0.0 can be reached from elsewhere: write serving(..., token=...), or ...
    """
    if not isinstance(host, str):
        raise TypeError(f"host must be a name or an address, not {host!r}")
    if whole("port", port, least=0) > 65535:
        raise ValueError(f"port must be from 0 to 65535, not {port}")
    if token is None and not local_only and not is_loopback(host):
        where = host or "every address"
        raise ValueError(
            f"the page needs a token, as {where} can be reached from elsewhere: write serving(..., token=...), or "
            "serving(..., local_only=True) to answer to this machine alone"
        )
    server = listen(host, port)
    try:
        site = app(token, local_only=local_only or token is None)
    except BaseException:
        server.close()
        raise
    page = _ServerThread(site, server)
    page.start()
    try:
        yield url(host, server)
    finally:
        page.stop()
        site.state.detach()


class _ServerThread(threading.Thread):
    """The server's daemon thread."""

    def __init__(self, site: Starlette, listens: socket.socket) -> None:
        super().__init__(name="abate-page", daemon=True)
        self._site = site
        self._listens = listens
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = HttpServer(self._answer, max_body=MAX_BODY)
        async with self._site.router.lifespan_context(self._site):
            await server.start(self._listens)
            await self._over.wait()
        await server.close(GRACE)

    def stop(self) -> None:
        """Disconnect all visitors, and end."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._over.set)
        self.join(JOIN_TIMEOUT)

    async def _answer(self, connection: Connection) -> None:
        """Answer a request by the page's ASGI app."""
        request = connection.request
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.version,
            "method": request.method,
            "scheme": "http",
            "path": unquote(request.path),
            "raw_path": request.path.encode(),
            "root_path": "",
            "query_string": request.query,
            "headers": list(request.headers),
            "client": connection.peer,
            "server": self._listens.getsockname()[:2],
        }

        bodies = [request.body]

        async def receive() -> Message:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await connection.wait_closed()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                await connection.begin(message["status"], message.get("headers", ()))
            elif message["type"] == "http.response.body":
                await connection.write(message.get("body", b""))

        await self._site(scope, receive, send)
