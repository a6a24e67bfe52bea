"""What controllers reconcile: each keeps one object of the API at the version that is wanted.

Each change must be written to the API once. A controller whose connection is dropped does not know what it has missed:
it reads the object again and writes one additional version, with its own state.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from abate.cli.demo.api_client import ApiConnection

Ask = Callable[[int, str], Awaitable[str]]
"""Sends a request for an object; returns the body of the answer."""


class Objects:
    """The objects of this process: the wanted version of each, and its connection to the API."""

    def __init__(self, port: int, names: range) -> None:
        self.wanted: Counter[int] = Counter()
        self._changed: asyncio.Queue[int] = asyncio.Queue()
        self._connections = {name: ApiConnection(port, partial(self.change, name)) for name in names}

    async def connect(self) -> None:
        """Connect all of them."""
        for connection in self._connections.values():
            await connection.connect()

    def change(self, name: int) -> None:
        """Want one more version of an object."""
        self.wanted[name] += 1
        self._changed.put_nowait(name)

    async def changes(self) -> AsyncIterator[int]:
        """Yield the objects that have changed, forever."""
        while True:
            yield await self._changed.get()

    async def ask(self, name: int, request: str) -> str:
        """Send a request on the connection of an object."""
        return await self._connections[name].ask(request)

    async def reconcile(self, name: int, ask: Ask) -> None:
        """Read which version of an object is written, and write the wanted versions beyond it."""
        written = int(await ask(name, f"GET /objects/{name}"))
        while written < self.wanted[name]:
            await ask(name, f"PUT /objects/{name}/{written + 1}")
            written += 1
