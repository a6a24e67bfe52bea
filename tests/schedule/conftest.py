"""What the tests of schedules share: one body of code run in a thread, under asyncio and under trio."""

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
    """Takes so many beats off `ticks`, by ``for`` and by ``async for``, and calls `body` with each of them."""

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
    """Runs async functions at the same time, in whichever loop this is."""

    async def both(*functions):
        if clocks.in_trio():
            async with trio.open_nursery() as nursery:
                for function in functions:
                    nursery.start_soon(function)
        else:
            await asyncio.gather(*(function() for function in functions))

    return both
