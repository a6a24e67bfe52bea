"""One way through one outage, and what was measured.

    the user changes some services ─► rolls out a new version of all ─► etcd is frozen ─► it runs again ─► all in step

etcd is frozen when the reconcilers begin to ask for the new version. Requests are counted where the reconcilers send
them. The user's own, and those of observers, are not.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import abate
from abate.errors import number, whole
from examples.etcd_reconciler.client import Etcd, NoAnswer, session
from examples.etcd_reconciler.server import serving
from examples.etcd_reconciler.state import Books, Services, audit, behind, changed, names
from examples.etcd_reconciler.user import User

Way = Callable[[Etcd, Services, abate.Backoff], Awaitable[None]]
"""How the services that change are reconciled, until it is cancelled."""

BACKOFF = abate.Backoff(base=0.2, cap=5.0)
MOST_SERVICES = 2_000
"""Each naive loop has a connection, and the user writes all services in one transaction."""
CHANGES = 20.0
"""Services per second of which the user wants a new version, all the time."""
BAR = 0.1
"""Seconds; requests are counted by the tenth of one."""
LOOK = 0.1
"""Seconds between two looks at whether all are in step."""
LIMIT = 60.0
"""Seconds; a service that is not in step by then counts as never."""


@dataclass(frozen=True)
class Storm:
    """What all ways go through."""

    services: int = 500
    stop: float = 10.0
    """Seconds for which etcd is frozen."""
    calm: float = 3.0
    """Seconds before that; as many after it are measured at least."""
    timeout: float = 1.0
    """Seconds that a request waits for its answer."""
    backoff: abate.Backoff = BACKOFF
    """The naive loops leave its jitter out."""
    seed: int = 0

    def __post_init__(self) -> None:
        if whole("services", self.services, least=1) > MOST_SERVICES:
            raise ValueError(f"services must be at most {MOST_SERVICES}, not {self.services}")
        number("stop", self.stop, above=0)
        number("calm", self.calm, least=0)
        number("timeout", self.timeout, above=0)


@dataclass(frozen=True)
class Passage:
    """How one way got through."""

    sent: list[float]
    """When each request was sent, in seconds from when etcd was frozen."""
    resumed: float
    """When etcd ran again."""
    caught_up: float | None
    """Seconds from then until all services were at what was wanted at that instant; None for never."""
    conflicts: int
    unanswered: int
    books: Books

    @property
    def during(self) -> int:
        """Requests while etcd was frozen."""
        return sum(0 <= at < self.resumed for at in self.sent)

    @property
    def peak(self) -> int:
        """The most requests within a tenth of a second after etcd ran again."""
        bars = Counter(int((at - self.resumed) / BAR) for at in self.sent if at >= self.resumed)
        return max(bars.values(), default=0)


async def pass_through(way: Way, storm: Storm) -> Passage:
    """Take one way through the storm, with an etcd of its own."""
    bound = storm.stop + 2 * storm.calm + 3 * LIMIT
    async with asyncio.timeout(bound), serving() as server, session(server.url) as connections:
        onlooker = Etcd(connections, timeout=LIMIT)
        user = User(Etcd(connections, storm.timeout), names(storm.services), random.Random(storm.seed))
        etcd = Etcd(connections, storm.timeout)
        await user.begin()
        reconcilers = asyncio.ensure_future(way(etcd, partial(changed, onlooker), storm.backoff))

        def check() -> None:
            server.check()
            if reconcilers.done():
                raise RuntimeError("the reconcilers have ended") from reconcilers.exception()

        try:
            async with user.busy(CHANGES):
                await asyncio.sleep(storm.calm)
            await roll_out(user, etcd)
            frozen_at = now()
            async with user.busy(CHANGES):
                with server.frozen():
                    await asyncio.sleep(storm.stop)
                running_at = now()
                in_time = await in_step(onlooker, dict(user.wanted), check)
                caught_up = now() - running_at if in_time else None
                await asyncio.sleep(max(0.0, running_at + storm.calm - now()))
            await in_step(onlooker, user.wanted, check)
        finally:
            await ended(reconcilers)
        books = await audit(onlooker, user.wanted)
    traffic = etcd.traffic
    sent = [at - frozen_at for at in traffic.sent]
    return Passage(sent, running_at - frozen_at, caught_up, traffic.conflicts, traffic.unanswered, books)


async def roll_out(user: User, etcd: Etcd) -> None:
    """Have a new version of everything wanted, and wait until the reconcilers begin to ask for it."""
    before = len(etcd.traffic.sent)
    await user.roll_out()
    while len(etcd.traffic.sent) == before:
        await asyncio.sleep(0)


async def in_step(etcd: Etcd, wanted: Mapping[str, int], check: Callable[[], None]) -> bool:
    """Wait until all services are at the version that is wanted, or beyond: did they get there?"""
    end = now() + LIMIT
    while now() < end:
        check()
        with suppress(NoAnswer):
            if not await behind(etcd, wanted):
                return True
        await asyncio.sleep(LOOK)
    return False


async def ended(task: asyncio.Future[None]) -> None:
    """Cancel a task, and wait until it is over."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def now() -> float:
    return asyncio.get_running_loop().time()
