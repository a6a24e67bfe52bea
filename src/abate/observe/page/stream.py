"""The stream of events to browsers: each gets the newest, and none can hold up another.

There is no queue of events: whoever has sent one waits for the next look, and then takes the newest, whatever it has
missed. One that does not take what it is sent within its patience is dropped; a page that still wants it comes again.
"""

from __future__ import annotations

import asyncio

from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from abate.clock import Clock
from abate.errors import AttemptTimeout
from abate.logs import Log
from abate.observe.page.board import Board

log = Log("abate.page")


class Stream:
    """Looks at the board once in `every` seconds, from the first visitor on, and tells all of them."""

    def __init__(self, board: Board, clock: Clock, every: float, most: int, patience: float) -> None:
        self._board = board
        self._clock = clock
        self._every = every
        self._most = most
        self._patience = patience
        self._looking: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()
        self._asking: set[asyncio.Task[None]] = set()
        self._closed = False
        self.visitors = 0

    # -- looking

    def start(self) -> None:
        """Begin to look, in this event loop, unless that has begun."""
        loop = asyncio.get_running_loop()
        if self._looking is None or self._looking.done() or self._looking.get_loop() is not loop:
            self._closed, self._looked = False, asyncio.Event()
            self._looking = loop.create_task(self._look())

    def close(self) -> None:
        """End everything: in this event loop, all visitors are let go."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
        self._looked.set()
        self._board.depths.close()

    async def _look(self) -> None:
        while True:
            try:
                self._board.look()
                for service in self._board.depths.due(self._board.services().values(), self._clock.now()):
                    task = asyncio.ensure_future(self._board.depths.ask(service))
                    self._asking.add(task)
                    task.add_done_callback(self._asking.discard)
            except Exception:
                log.exception("the page could not look, and looks again in %g s", self._every)
            told, self._looked = self._looked, asyncio.Event()
            told.set()
            await self._clock.asleep(self._every)

    # -- one visitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.visitors >= self._most:
            refusal = PlainTextResponse(f"{self._most} are looking already\n", 503, {"Retry-After": "10"})
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
        """Send the newest, and then the next that is new, until the end."""
        if not self._board.looked:
            await self._looked.wait()
        body = self._board.hello() + self._board.frame()
        while not self._closed:
            looked = self._looked
            cut = self._clock.within(self._patience)
            async with cut:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await looked.wait()
            body = self._board.frame()
        await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
