"""What controllers look after: each keeps one object of the API in step with what is wanted.

Whatever changes must be written to the API once. A controller whose connection is cut off does not know what it has
missed: it lists anew, and has to report itself, which is one more thing to write.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from abate.cli.demo.wire import Line

Ask = Callable[[int, str], Awaitable[str]]
"""Sends the request of an object's controller; the body of the answer."""


class Objects:
    """The objects of this process: what is wanted of each, and the way to the API."""

    def __init__(self, port: int, names: range) -> None:
        self.wanted: Counter[int] = Counter()
        self._news: asyncio.Queue[int] = asyncio.Queue()
        self._lines = {name: Line(port, partial(self.change, name)) for name in names}

    async def connect(self) -> None:
        """Connect all of them."""
        for line in self._lines.values():
            await line.connect()

    def change(self, name: int) -> None:
        """One more version of an object is wanted."""
        self.wanted[name] += 1
        self._news.put_nowait(name)

    async def changes(self) -> AsyncIterator[int]:
        """The objects that need a look, without end."""
        while True:
            yield await self._news.get()

    async def ask(self, name: int, request: str) -> str:
        """Send a request of an object's controller."""
        return await self._lines[name].ask(request)

    async def reconcile(self, name: int, ask: Ask) -> None:
        """See which version of an object is written, and write those that are wanted beyond it."""
        written = int(await ask(name, f"GET /objects/{name}"))
        while written < self.wanted[name]:
            await ask(name, f"PUT /objects/{name}/{written + 1}")
            written += 1
