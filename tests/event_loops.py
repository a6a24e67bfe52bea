"""Both kinds of event loop: run an async function under each of them, and several functions at once."""

import asyncio

import pytest
import trio

from abate import clock as clocks

RUNNERS = {"asyncio": lambda main: asyncio.run(main()), "trio": trio.run}
in_both_loops = pytest.mark.parametrize("run", RUNNERS.values(), ids=RUNNERS)


async def together(*functions):
    """Run async functions at the same time, in whichever loop this is."""
    if clocks.in_trio():
        async with trio.open_nursery() as nursery:
            for function in functions:
                nursery.start_soon(function)
    else:
        await asyncio.gather(*(function() for function in functions))
