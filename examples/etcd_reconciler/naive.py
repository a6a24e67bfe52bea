"""The loop that most people write: one per service, with capped exponential backoff and no jitter."""

import asyncio
from collections import defaultdict

import abate
from examples.etcd_reconciler.client import Conflict, Etcd, NoAnswer
from examples.etcd_reconciler.state import Services, reconcile


async def naive(etcd: Etcd, services: Services, backoff: abate.Backoff) -> None:
    """Reconcile what changes, until cancelled."""
    news: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
    async with asyncio.TaskGroup() as loops:
        async for name in services():
            if name not in news:
                loops.create_task(loop(etcd, name, news[name], backoff))
            news[name].set()


async def loop(etcd: Etcd, name: str, news: asyncio.Event, backoff: abate.Backoff) -> None:
    """Look after one service."""
    while True:
        await news.wait()
        news.clear()
        failures = 0
        while True:
            try:
                await reconcile(etcd, name)
                break
            except (Conflict, NoAnswer):
                await asyncio.sleep(min(backoff.cap, backoff.base * 2**failures))
                failures += 1
