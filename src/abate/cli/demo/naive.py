"""The naive way: one loop per controller, with capped exponential backoff and no jitter."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from abate.cli.demo.desired_objects import Objects

BASE = 0.1


async def run_naive(objects: Objects, cap: float) -> None:
    """Reconcile objects that change, until cancelled."""
    changed: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
    async with asyncio.TaskGroup() as loops:
        async for name in objects.changes():
            if name not in changed:
                loops.create_task(loop(objects, name, changed[name], cap))
            changed[name].set()


async def loop(objects: Objects, name: int, changed: asyncio.Event, cap: float) -> None:
    """Reconcile one object."""
    while True:
        await changed.wait()
        changed.clear()
        failures = 0
        while True:
            try:
                await objects.reconcile(name, objects.ask)
                break
            except Exception:
                await asyncio.sleep(min(cap, BASE * 2**failures))
                failures += 1
