"""Some of the controllers, in a process of their own.

It says when they are connected, and where abate's live page of this process is, if there is one. Told to begin, objects
change until the outage is over, and it says how many changes there were.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext

from abate.cli.demo.calm import calm
from abate.cli.demo.children import listen, say
from abate.cli.demo.naive import naive
from abate.cli.demo.objects import Objects
from abate.cli.demo.scenario import Scenario, Way


async def work(way: Way, scenario: Scenario, first: int, port: int, folder: str) -> None:
    """Keep objects in step until the parent is gone."""
    names = range(first, first + scenario.size)
    objects = Objects(port, names)
    begun = asyncio.Event()
    # whoever of us leaves last takes the folder along: the parent may be gone without having done so
    listen(lambda _: begun.set(), lambda: shutil.rmtree(folder, ignore_errors=True))
    await objects.connect()
    kept = naive(objects, scenario.cap) if way == "naive" else calm(objects, f"sqlite:///{folder}/fleet.db")
    with live_page() if way == "abate" and first == 0 else nullcontext() as page:
        keeping = asyncio.ensure_future(kept)
        say(page)
        await begun.wait()
        await change_some(objects, names, scenario)
        say(objects.wanted.total())
        await keeping


def live_page() -> AbstractContextManager[str | None]:
    """abate's live page of this process, if what it needs is installed."""
    try:
        from abate.observe.page import serving
    except ImportError:
        return nullcontext()
    return serving(port=0)


async def change_some(objects: Objects, names: range, scenario: Scenario) -> None:
    """Have changes until the outage is over; the same ones in every run."""
    chance = random.Random(names.start)
    loop = asyncio.get_running_loop()
    due, end = loop.time(), loop.time() + scenario.calm + scenario.outage
    while (due := due + chance.expovariate(scenario.changes / scenario.processes)) < end:
        await asyncio.sleep(due - loop.time())
        objects.change(chance.choice(names))
    await asyncio.sleep(end - loop.time())


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asyncio.run(work(given.pop("way"), Scenario(**given.pop("scenario")), **given))
