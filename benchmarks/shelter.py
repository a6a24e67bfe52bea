"""What a shelter costs: very little in calm, and little for waiting calls.

    python benchmarks/shelter.py

Calm is measured as a ratio, with the shelter over without it, in interleaved rounds. Waiters are measured under
asyncio: ten thousand calls of one policy while the dependency is down.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable

import abate

ROUNDS = 40
WAITERS = 10_000


class Down(Exception):
    """What the dependency raises while it is down."""


def answer(order: int) -> int:
    return order


async def aanswer(order: int) -> int:
    return order


def calmed(shelter: abate.Shelter, call: Callable[[int], int]) -> None:
    """Call until it is calm."""
    while not shelter.dispatcher().limiter.calm:
        call(1)


def in_calm() -> None:
    """The success path with a calm shelter, over the same without one."""
    print("| success path, with a calm shelter over without | ratio |\n|---|---:|")
    for what, timeout in (("plain", None), ("with a timeout", 60.0)):
        shelter = abate.Shelter()
        without = abate.Policy(on=OSError, timeout=timeout)
        with_it = without.replace(shelter=shelter)
        calmed(shelter, with_it(answer))
        print(f"| {what}, sync | {ratio(with_it(answer), without(answer)):.2f} |", flush=True)
        print(f"| {what}, async | {asyncio.run(aratio(with_it(aanswer), without(aanswer))):.2f} |", flush=True)


def ratio(ours: Callable[[int], int], theirs: Callable[[int], int]) -> float:
    def timed(call: Callable[[int], int]) -> float:
        began = time.perf_counter()
        for order in range(20_000):
            call(order)
        return time.perf_counter() - began

    rounds = [(timed(ours), timed(theirs)) for _ in range(ROUNDS)]
    return min(our for our, _ in rounds) / min(their for _, their in rounds)


async def aratio(ours: Callable[[int], Awaitable[int]], theirs: Callable[[int], Awaitable[int]]) -> float:
    async def timed(call: Callable[[int], Awaitable[int]]) -> float:
        began = time.perf_counter()
        for order in range(5_000):
            await call(order)
        return time.perf_counter() - began

    rounds = [(await timed(ours), await timed(theirs)) for _ in range(ROUNDS)]
    return min(our for our, _ in rounds) / min(their for _, their in rounds)


async def waiting() -> None:
    """Ten thousand waiting calls: the memory of each, how long it takes to wake one, how long the loop is blocked."""
    shelter = abate.Shelter(capacity=2 * WAITERS, patience=600.0)
    policy = abate.Policy(on=Down, max_attempts=3, timeout=600.0, shelter=shelter)
    dispatcher = shelter.dispatcher()
    dispatcher.limiter.limit = 1.0
    held = dispatcher.try_enter(dispatcher.clock.now(), dispatcher.clock.now(), None, first=True)
    woken: list[float] = []

    async def load() -> None:
        woken.append(time.perf_counter())

    async def sleep() -> None:
        await asyncio.sleep(600.0)

    for _ in range(2):  # after the first round, asyncio's own tables have their size
        sleepers, asleep = await started(sleep)
        for task in sleepers:
            task.cancel()
        await asyncio.gather(*sleepers, return_exceptions=True)
    tasks, waiters = await started(policy(load))
    assert shelter.waiters == WAITERS, shelter.waiters
    print("\n| 10,000 waiting calls (asyncio) | |\n|---|---:|")
    print(f"| bytes of a waiting call, with its task | {waiters:,.0f} |")
    print(f"| bytes of a task that only sleeps | {asleep:,.0f} |")

    wakes = []
    for _ in range(200):  # each call that is woken answers at once, and would wake the next: hold that back
        dispatcher.limiter.limit = 1.0
        before = len(woken)
        began = time.perf_counter()
        dispatcher.abandoned(held, dispatcher.clock.now())
        dispatcher.limiter.limit = 0.0
        while len(woken) == before:
            await asyncio.sleep(0)
        wakes.append(woken[-1] - began)
        await asyncio.sleep(0)
        dispatcher.limiter.limit = 1.0
        held = dispatcher.limiter.send(dispatcher.clock.now())
    print(f"| µs to wake one, median | {statistics.median(wakes) * 1e6:.1f} |")

    stalls = [0.0]

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            stalls.append(time.perf_counter() - began - 0.001)

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0.05)
    operations = []
    for operation in (
        lambda: dispatcher.failed(None, dispatcher.clock.now(), policy.backoff, None, Down(), False, ""),
        None,
    ):
        began = time.perf_counter()
        if operation is None:
            dispatcher.abandoned(held, dispatcher.clock.now())
        else:
            operation()
        operations.append(time.perf_counter() - began)
    dispatcher.limiter.limit, dispatcher.limiter.prober.next_probe = 50.0, 0.0
    dispatcher.abandoned(None, dispatcher.clock.now())
    await asyncio.wait(tasks)
    watcher.cancel()
    print(f"| ms of the longest operation on the full queue | {max(operations) * 1e3:.2f} |")
    print(f"| ms that the loop was blocked at most while all were sent | {max(stalls) * 1e3:.1f} |")


async def started(function: Callable[[], Awaitable[None]]) -> tuple[list[asyncio.Task[None]], float]:
    """As many tasks as there are waiters, and the bytes that each takes."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tasks = [asyncio.create_task(function()) for _ in range(WAITERS)]
    await asyncio.sleep(0.5)
    size = (tracemalloc.get_traced_memory()[0] - before) / WAITERS
    tracemalloc.stop()
    return tasks, size


if __name__ == "__main__":
    in_calm()
    asyncio.run(waiting())
