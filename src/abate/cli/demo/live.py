"""The demo's live page: both curves as they happen, pushed to whoever looks. The standard library is all it needs.

It can be read only, from this machine only. Each browser gets the latest picture when it has taken the one before, so
that one which never reads costs no more than a connection.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress

from abate.cli.demo.report import document
from abate.http_server import Connection, HttpServer, is_loopback, listening, url

PACE = 0.5
"""Seconds between two pictures."""
MOST = 20
"""Browsers at a time."""
PATIENCE = 5.0
"""Seconds for a browser to take the last picture, at the end."""
HOST = "127.0.0.1"
FRESH = [("Cache-Control", "no-store")]
SCRIPT = """
const source = new EventSource("/events");
source.onmessage = (event) => {
  const {picture, words, page, over} = JSON.parse(event.data);
  document.getElementById("picture").innerHTML = picture;
  document.getElementById("words").textContent = words;
  const link = document.getElementById("page");
  link.hidden = !page;
  if (page) link.querySelector("a").href = page;
  if (over) source.close();
};
source.onerror = () => { document.getElementById("words").textContent = "the demo is gone"; };
"""
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; "
    f"script-src 'sha256-{b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
)
PAGE = document(
    POLICY,
    '<p id="words" role="status">one moment</p><figure id="picture" style="margin:0"></figure>'
    '<p id="page" hidden><a>abate\'s own live page, of one of the processes</a></p>'
    f"<script>{SCRIPT}</script>",
)


class Live:
    """Serves the page; `view` says what it shows at the moment."""

    def __init__(self, view: Callable[[], dict[str, object]]) -> None:
        self._view = view
        self._over = asyncio.Event()
        self.server = HttpServer(self._answer, hosts=is_loopback, connections=MOST)

    async def start(self) -> str:
        """Begin to serve; the address."""
        listens = listening(HOST, 0)
        await self.server.start(listens)
        return url(HOST, listens)

    async def stop(self) -> None:
        """Push the last picture, and stop."""
        self._over.set()
        await self.server.close(PATIENCE)

    async def _answer(self, connection: Connection) -> None:
        asked = connection.request.method, connection.request.path
        if asked == ("GET", "/events"):
            await self._push(connection)
        elif asked == ("GET", "/"):
            await connection.send(200, "text/html; charset=utf-8", PAGE.encode(), FRESH)
        else:
            await connection.send(404, "text/plain", b"there is nothing but /\n")

    async def _push(self, connection: Connection) -> None:
        await connection.begin(200, [(b"Content-Type", b"text/event-stream"), (b"Cache-Control", b"no-store")])
        over = False
        while not over:
            over = self._over.is_set()
            await connection.write(f"data: {json.dumps({**self._view(), 'over': over})}\n\n".encode())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), PACE)
