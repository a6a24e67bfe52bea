"""The stream of events to browsers: each gets the newest state, and none can hold up another.

There is no queue of events: after sending one, each connection waits for the next refresh and takes the newest state.
A browser that does not read within `patience` seconds is dropped; an open page reconnects.
"""

from __future__ import annotations

import asyncio

from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from abate.clock import Clock
from abate.errors import AttemptTimeout
from abate.logs import Log
from abate.observe.page.state import PageState

log = Log("abate.page")


class Stream:
    """Refreshes the state every `every` seconds, from the first visitor on, and sends it to all of them."""

    def __init__(self, state: PageState, clock: Clock, every: float, most: int, patience: float) -> None:
        self._state = state
        self._clock = clock
        self._every = every
        self._most = most
        self._patience = patience
        self._refresher: asyncio.Task[None] | None = None
        self._refreshed = asyncio.Event()
        self._closed = False
        self.visitors = 0

    # -- refreshing

    def start(self) -> None:
        """Begin to refresh in this event loop, unless that has begun."""
        loop = asyncio.get_running_loop()
        if self._refresher is None or self._refresher.done() or self._refresher.get_loop() is not loop:
            self._closed, self._refreshed = False, asyncio.Event()
            self._refresher = loop.create_task(self._refresh())

    def close(self) -> None:
        """End everything: disconnect all visitors of this event loop."""
        self._closed = True
        if self._refresher is not None:
            self._refresher.cancel()
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
                await self._serve(receive, send)
        finally:
            self.visitors -= 1

    async def _begin(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _serve(self, receive: Receive, send: Send) -> None:
        leaving, feeding = (asyncio.ensure_future(each) for each in (_left(receive), self._feed(send)))
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

    async def _feed(self, send: Send) -> None:
        """Send the newest state, and then each new one, until the end."""
        if not self._state.is_ready:
            await self._refreshed.wait()
        body = self._state.history() + self._state.frame()
        while not self._closed:
            looked = self._refreshed
            cut = self._clock.within(self._patience)
            async with cut:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await looked.wait()
            body = self._state.frame()
        await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
