"""The loop that most people write: one per controller, with capped exponential backoff, and no jitter."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from abate.cli.demo.objects import Objects

BASE = 0.1


async def naive(objects: Objects, cap: float) -> None:
    """Look after what changes, until cancelled."""
    news: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
    async with asyncio.TaskGroup() as loops:
        async for name in objects.changes():
            if name not in news:
                loops.create_task(loop(objects, name, news[name], cap))
            news[name].set()


async def loop(objects: Objects, name: int, news: asyncio.Event, cap: float) -> None:
    """Look after one object."""
    while True:
        await news.wait()
        news.clear()
        failures = 0
        while True:
            try:
                await objects.reconcile(name, objects.ask)
                break
            except Exception:
                await asyncio.sleep(min(cap, BASE * 2**failures))
                failures += 1
