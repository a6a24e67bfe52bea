"""Fixtures of the schedule tests: the same code in a thread, under asyncio and under trio."""

import pytest

from tests.event_loops import RUNNERS


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
