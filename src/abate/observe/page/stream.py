"""The stream of events to browsers: each gets the newest state, and none can hold up another.

There is no queue of events: after sending one, each connection waits for the next refresh and takes the newest state.
A browser that does not read within `patience` seconds is dropped; an open page reconnects.

Streams end when the server shuts down, which would otherwise wait for them (see `shutdown_detection`). If that can't be
watched, as on Windows, each stream ends after `MAX_UNWATCHED` seconds and the page reconnects at once: the server then
waits no longer than that.
"""

from __future__ import annotations

import asyncio
import math

from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from abate.clock import Clock
from abate.errors import AttemptTimeout
from abate.logs import Log
from abate.observe.page.shutdown_detection import ServerSockets
from abate.observe.page.state import PageState

log = Log("abate.page")
WATCH_EVERY = 0.5
"""Seconds between two looks at the server."""
MAX_UNWATCHED = 20.0
"""Seconds that a stream lasts if the server's shutdown can't be noticed."""
RENEW = b"retry: 100\nevent: renew\ndata:\n\n"
"""Tells the page that the end of this stream is no failure; `PageState.history` sets the usual time again."""


class StateStream:
    """Refreshes the state every `every` seconds, from the first visitor on, and sends it to all of them."""

    def __init__(self, state: PageState, clock: Clock, every: float, most: int, patience: float) -> None:
        self._state = state
        self._clock = clock
        self._every = every
        self._most = most
        self._patience = patience
        self._refresher: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._watched: dict[int | str, ServerSockets] = {}
        """The server's sockets, by port or path."""
        self._refreshed = asyncio.Event()
        self._closed = False
        self.visitors = 0

    # -- refreshing

    def start(self) -> None:
        """Begin to refresh in this event loop, unless that has begun."""
        loop = asyncio.get_running_loop()
        if self._refresher is None or self._refresher.done() or self._refresher.get_loop() is not loop:
            self._closed, self._refreshed = False, asyncio.Event()
            self._watched.clear()
            self._refresher, self._watcher = loop.create_task(self._refresh()), loop.create_task(self._watch())

    def close(self) -> None:
        """End everything: disconnect all visitors of this event loop."""
        self._closed = True
        for task in (self._refresher, self._watcher):
            if task is not None:
                task.cancel()
        self._refreshed.set()

    async def _refresh(self) -> None:
        while True:
            try:
                self._state.refresh()
            except Exception:
                log.exception("the page could not be refreshed: next try in %g s", self._every)
            done, self._refreshed = self._refreshed, asyncio.Event()
            done.set()
            await self._clock.asleep(self._every)

    # -- the end of the server

    async def _watch(self) -> None:
        """End all streams when a server of this app shuts down; pages on another one reconnect."""
        while not any(sockets.any_closed() for sockets in self._watched.values()):
            await self._clock.asleep(WATCH_EVERY)
        self.close()

    def _is_watched(self, server: tuple[str, int | None] | None) -> bool:
        """Watch the server at this address, and return whether that is possible."""
        if server is None:
            return False
        path, port = server
        name = path if port is None else port
        if name not in self._watched:
            sockets = ServerSockets(server)
            if not sockets.found():
                return False
            self._watched[name] = sockets
        return True

    # -- one visitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.visitors >= self._most:
            refusal = PlainTextResponse(f"{self._most} visitors are connected already\n", 503, {"Retry-After": "10"})
            await refusal(scope, receive, send)
            return
        self.visitors += 1
        try:
            self.start()
            await self._begin(send)
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
            else:
                await self._serve(receive, send, self._is_watched(scope.get("server")))
        finally:
            self.visitors -= 1

    async def _begin(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _serve(self, receive: Receive, send: Send, watched: bool) -> None:
        until = math.inf if watched else self._clock.now() + MAX_UNWATCHED
        leaving, feeding = (asyncio.ensure_future(each) for each in (_left(receive), self._feed(send, until)))
        try:
            await asyncio.wait({leaving, feeding}, return_when="FIRST_COMPLETED")
            if feeding.done():
                feeding.result()
        except AttemptTimeout:
            log.info("a browser did not read for %g s and was dropped", self._patience)
        finally:
            for task in (leaving, feeding):
                task.cancel()
            await asyncio.gather(leaving, feeding, return_exceptions=True)

    async def _feed(self, send: Send, until: float) -> None:
        """Send the newest state, and then each new one, until the end."""
        if not self._state.is_ready:
            await self._refreshed.wait()
        body = self._state.history() + self._state.frame()
        while not self._closed and self._clock.now() < until:
            looked = self._refreshed
            cut = self._clock.within(self._patience)
            async with cut:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await looked.wait()
            body = self._state.frame()
        await send({"type": "http.response.body", "body": b"" if self._closed else RENEW})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
