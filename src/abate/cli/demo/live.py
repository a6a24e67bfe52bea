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

PACE = 0.5
"""Seconds between two pictures."""
MOST = 20
"""Browsers at a time."""
PATIENCE = 5.0
"""Seconds for a browser to say what it wants, and at the end to take the last picture."""
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
        self._browsers: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Begin to serve; the address."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=2**14)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    async def stop(self) -> None:
        """Push the last picture, and stop."""
        self._server.close()
        self._over.set()
        if self._browsers:
            await asyncio.wait(self._browsers, timeout=PATIENCE)
        for task in self._browsers:
            task.cancel()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._browsers) >= MOST:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._answer(reader, writer))
        self._browsers.add(task)
        task.add_done_callback(self._browsers.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            try:
                async with asyncio.timeout(PATIENCE):
                    request = (await reader.readuntil(b"\r\n\r\n")).split(b" HTTP/", 1)[0]
                if request == b"GET /events":
                    await self._push(writer)
                elif request == b"GET /":
                    writer.write(_head("200 OK", "text/html; charset=utf-8") + PAGE.encode())
                else:
                    writer.write(_head("404 Not Found", "text/plain") + b"there is nothing but /\n")
                await writer.drain()
            finally:
                writer.close()

    async def _push(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_head("200 OK", "text/event-stream"))
        over = False
        while not over:
            over = self._over.is_set()
            writer.write(f"data: {json.dumps({**self._view(), 'over': over})}\n\n".encode())
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), PACE)


def _head(status: str, kind: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
