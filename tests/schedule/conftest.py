"""Fixtures of the schedule tests: the same code in a thread, under asyncio and under trio."""

import asyncio

import pytest
import trio

from abate import clock as clocks

RUNNERS = {"asyncio": lambda main: asyncio.run(main()), "trio": trio.run}


@pytest.fixture(params=RUNNERS)
def run(request):
    """Runs an async function without arguments, under asyncio and under trio."""
    return RUNNERS[request.param]


@pytest.fixture(params=["thread", *RUNNERS])
def beats(request):
    """Take `count` ticks, by ``for`` and by ``async for``, and call `body` with each of them."""

    def take(ticks, count, body=lambda tick: None):
        seen = []

        def enough(tick):
            seen.append(tick)
            body(tick)
            return len(seen) == count

        async def main():
            async for tick in ticks:
                if enough(tick):
                    break

        if request.param == "thread":
            for tick in ticks:
                if enough(tick):
                    break
        else:
            RUNNERS[request.param](main)
        return seen

    return take


@pytest.fixture
def together():
    """Run async functions concurrently, in the current event loop."""

    async def both(*functions):
        if clocks.in_trio():
            async with trio.open_nursery() as nursery:
                for function in functions:
                    nursery.start_soon(function)
        else:
            await asyncio.gather(*(function() for function in functions))

    return both
