"""Some of the controllers, in a process of their own.

When all are connected it sends the address of abate's live page of this process, or null. After "begin", objects change
until the outage is over; then it sends how many changes there were.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sys
import time
from contextlib import AbstractContextManager, nullcontext

from abate.cli.demo.child_processes import receive_from_parent, send_to_parent
from abate.cli.demo.desired_objects import Objects
from abate.cli.demo.naive import run_naive
from abate.cli.demo.settings import DemoSettings, Way
from abate.cli.demo.with_abate import run_with_abate


async def work(way: Way, settings: DemoSettings, first: int, port: int, folder: str) -> None:
    """Reconcile objects until the parent has ended."""
    names = range(first, first + settings.size)
    objects = Objects(port, names)
    begun = asyncio.Event()
    # the last process to end removes the folder: a killed parent has not
    receive_from_parent(lambda _: begun.set(), lambda: remove(folder))
    try:
        await objects.connect()
        controllers = (
            run_naive(objects, settings.cap)
            if way == "naive"
            else run_with_abate(objects, f"sqlite:///{folder}/fleet.db")
        )
        with live_page() if way == "abate" and first == 0 else nullcontext() as page:
            running = asyncio.ensure_future(controllers)
            send_to_parent(page)
            await begun.wait()
            await change_some(objects, names, settings)
            send_to_parent(objects.wanted.total())
            await running
    except BaseException:
        remove(folder)  # the API may end before stdin is seen to be closed
        raise


def remove(folder: str) -> None:
    """Remove the folder, although another process may still write to it for a moment."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.05)


def live_page() -> AbstractContextManager[str | None]:
    """Serve abate's live page of this process, if its requirements are installed."""
    try:
        from abate.observe.page import serving
    except ImportError:
        return nullcontext()
    return serving(port=0)


async def change_some(objects: Objects, names: range, settings: DemoSettings) -> None:
    """Change objects until the outage is over; the same ones in every run."""
    rng = random.Random(names.start)
    loop = asyncio.get_running_loop()
    due, end = loop.time(), loop.time() + settings.calm + settings.outage
    while (due := due + rng.expovariate(settings.changes / settings.processes)) < end:
        await asyncio.sleep(due - loop.time())
        objects.change(rng.choice(names))
    await asyncio.sleep(end - loop.time())


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asyncio.run(work(given.pop("way"), DemoSettings(**given.pop("settings")), **given))
