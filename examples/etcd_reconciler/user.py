"""The user: wants new versions all the time, and remembers what it wanted."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from examples.etcd_reconciler.client import Conflict, Etcd, Item, NoAnswer
from examples.etcd_reconciler.state import EVERYTHING, desired

PAUSE = 0.1
"""Seconds before another try."""


class User:
    """Raises the desired versions of services."""

    def __init__(self, etcd: Etcd, services: Sequence[str], rng: random.Random) -> None:
        self._etcd = etcd
        self._rng = rng
        self.wanted = dict.fromkeys(services, 0)

    async def begin(self) -> None:
        """Want the version that there is: none."""
        await self._write(self.wanted)

    async def roll_out(self) -> None:
        """Want a new version of every service, at once."""
        await self._want_next(self.wanted)

    @asynccontextmanager
    async def busy(self, rate: float) -> AsyncIterator[None]:
        """Want new versions of random services, at a rate per second, during the block.

        What is wanted when it ends has been written.
        """
        enough = asyncio.Event()
        changing = asyncio.create_task(self._keep_changing(rate, enough))
        try:
            yield
            enough.set()
            await changing
        finally:
            changing.cancel()

    async def _keep_changing(self, rate: float, enough: asyncio.Event) -> None:
        while not enough.is_set():
            await self._want_next([self._rng.choice(list(self.wanted))])
            await asyncio.sleep(1 / rate)

    async def _want_next(self, services: Iterable[str]) -> None:
        wishes = {name: self.wanted[name] + 1 for name in services}
        self.wanted.update(wishes)
        await self._write(wishes)

    async def _write(self, wishes: Mapping[str, int]) -> None:
        keys = {desired(name): version for name, version in wishes.items()}
        while True:
            try:
                found, _ = await self._etcd.read(next(iter(keys)) if len(keys) == 1 else EVERYTHING)
                if any(key not in found or found[key].value != version for key, version in keys.items()):
                    await self._etcd.swap({key: (found.get(key, Item()), version) for key, version in keys.items()})
                return
            except (Conflict, NoAnswer):
                await asyncio.sleep(PAUSE)
