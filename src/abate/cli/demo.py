"""``abate demo``: 500 controllers and an API that fails for ten seconds, in virtual time.

At second 0 the API begins to answer 503 and drops every watch, so all controllers ask again at once. The same
controllers go through it twice: with the loop that most people write, and with one abate policy between them.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import abate
from abate import clock
from abate.testing import VirtualClock

CONTROLLERS = 500
OUTAGE = 10.0
WORKERS, SERVICE, QUEUE = 10, 0.03, 50
RESYNC = 10.0

Request = Callable[[], Awaitable[None]]
Controller = Callable[[str, Request], Awaitable[None]]

ROWS = (
    ("attempts in all", "attempts"),
    ("attempts during the outage", "attempts_in_outage"),
    ("peak per 100 ms, first volley aside", "peak"),
    ("seconds until all are in step again", "recovered"),
)


class Unavailable(Exception):
    """The API's 503."""

    status_code = 503


@dataclass
class Api:
    """An API with so many workers and places to queue, down until `OUTAGE`; it counts what arrives."""

    arrivals: Counter[int] = field(default_factory=Counter[int])
    attempts_in_outage: int = 0
    free: list[float] = field(default_factory=lambda: [0.0] * WORKERS)

    async def request(self) -> None:
        """Serve one request, or refuse it."""
        now = clock.current().now()
        self.arrivals[int(now * 10)] += 1
        if now < OUTAGE:
            self.attempts_in_outage += 1
            raise Unavailable
        start = max(now, self.free[0])
        if start - now > QUEUE * SERVICE / WORKERS:
            raise Unavailable
        heapq.heapreplace(self.free, start + SERVICE)
        await clock.current().asleep(start + SERVICE - now)


@dataclass(frozen=True)
class Result:
    """What one way of retrying did."""

    attempts: int
    attempts_in_outage: int
    peak: int
    recovered: float


async def naive(name: str, request: Request) -> None:
    """The loop that most people write: exponential backoff with a cap."""
    failures = 0
    while True:
        try:
            return await request()
        except Unavailable:
            await clock.current().asleep(min(10.0, 0.1 * 2**failures))
            failures += 1


def calm() -> Controller:
    """One policy between all controllers; what it gives up on waits for the controller's own beat."""
    policy = abate.Policy(name="api", on=abate.http.transient, attempts=5, rng=random.Random(213))

    async def controller(name: str, request: Request) -> None:
        try:
            return await policy.acall(request)
        except Unavailable:
            pass
        async for _ in abate.ticks(RESYNC, key=name):
            try:
                return await policy.acall(request)
            except Unavailable:
                continue

    return controller


async def storm(controller: Controller) -> Result:
    """Send all controllers through the outage, and see what the API saw."""
    api = Api()
    await asyncio.gather(*(controller(f"controller-{n}", api.request) for n in range(CONTROLLERS)))
    return Result(
        attempts=sum(api.arrivals.values()),
        attempts_in_outage=api.attempts_in_outage,
        peak=max(count for tenth, count in api.arrivals.items() if tenth > 0),
        recovered=clock.current().now() - OUTAGE,
    )


def play(controller: Controller) -> Result:
    """Run `storm` in virtual time."""
    with VirtualClock():
        return asyncio.run(storm(controller))


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("demo", help="500 controllers through a ten-second outage, with and without abate")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the two results side by side."""
    naive_loop, abated = play(naive), play(calm())
    print(f"{CONTROLLERS} controllers, an API that answers 503 for {OUTAGE:g} s (virtual time)\n")
    print(f"{'':38}{'naive backoff':>16}{'abate':>10}{'ratio':>9}")
    for label, attribute in ROWS:
        before, after = getattr(naive_loop, attribute), getattr(abated, attribute)
        print(f"{label:38}{before:>16.4g}{after:>10.4g}{after / before:>8.0%}")
    return 0
