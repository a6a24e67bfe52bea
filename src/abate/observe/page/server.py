"""The page beside any program: served from a thread of its own, with an event loop of its own.

A program that hangs, or has no event loop at all, can be looked at all the same.
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
from abate.http_server import Connection, HttpServer, is_loopback, listening, url
from abate.observe.page.sign_in import LONGEST_BODY
from abate.observe.page.site import app

GRACE = 1.0
"""Seconds for visitors to take the last word, at the end."""
LAST_WORDS = 5.0
"""Seconds to wait for the thread to end."""


@contextmanager
def serving(
    host: str = "127.0.0.1", port: int = 8321, token: str | None = None, *, local_only: bool = False
) -> Iterator[str]:
    """Serve the live page while the block runs; it is told the page's address.

    On loopback it answers to this machine alone, and a token is for who shares the machine, or for a proxy in front. A
    host that others can reach needs a token, or `local_only=True` to answer to this machine alone there, too. An empty
    host is all addresses; port 0 is any that is free.

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
    server = listening(host, port)
    try:
        site = app(token, local_only=local_only or token is None)
    except BaseException:
        server.close()
        raise
    page = _Page(site, server)
    page.start()
    try:
        yield url(host, server)
    finally:
        page.stop()
        site.state.detach()


class _Page(threading.Thread):
    """The thread; it does not keep the program from ending."""

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
        server = HttpServer(self._answer, bodies=LONGEST_BODY)
        async with self._site.router.lifespan_context(self._site):
            await server.start(self._listens)
            await self._over.wait()
        await server.close(GRACE)

    def stop(self) -> None:
        """Let all visitors go, and end."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._over.set)
        self.join(LAST_WORDS)

    async def _answer(self, connection: Connection) -> None:
        """Answer a request by the page's app, which speaks ASGI."""
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
            await connection.left()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                await connection.begin(message["status"], message.get("headers", ()))
            elif message["type"] == "http.response.body":
                await connection.write(message.get("body", b""))

        await self._site(scope, receive, send)
