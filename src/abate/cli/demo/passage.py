"""One way through the outage, and what was measured.

    all are connected ─► calm ─► the sneeze ─► the outage ─► the API is up again ─► all that was wanted is written

What counts is what the API saw; what was wanted is told by the controllers.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from abate.cli.demo.children import Child, hear_all
from abate.cli.demo.scenario import BAR, Scenario, Way

AFTER = 0.5
"""Seconds that are looked at after everything has been written."""


class Passage:
    """How far one way has come, and what the API has seen of it. Tenths of seconds are numbered from the sneeze."""

    def __init__(self, way: Way, scenario: Scenario) -> None:
        self.way = way
        self.scenario = scenario
        self.page: str | None = None
        """Where abate's live page of one of the processes is."""
        self.arrivals: dict[int, int] = {}
        self.peaks: dict[int, int] = {}
        self.written = 0
        self.wanted: int | None = None
        self.recovered: float | None = None
        """Seconds from the end of the outage until all was written that had been wanted by then."""

    @property
    def now(self) -> float:
        """Seconds from the sneeze."""
        return (max(self.arrivals, default=-round(self.scenario.calm / BAR) - 1) + 1) * BAR

    @property
    def attempts(self) -> int:
        """Requests from the sneeze on."""
        return sum(_from(self.arrivals, 0.0))

    @property
    def during(self) -> int:
        """Requests during the outage."""
        return self.attempts - sum(_from(self.arrivals, self.scenario.outage))

    @property
    def peak(self) -> int:
        """The most requests within any 100 ms after the outage."""
        return max(_from(self.peaks, self.scenario.outage), default=0)

    @property
    def lately(self) -> int:
        """Requests in the last second."""
        return sum(_from(self.arrivals, self.now - 1.0))

    @property
    def lost(self) -> int:
        """Changes that were wanted and not written."""
        return max(0, (self.wanted or 0) - self.written)

    def note(self, tenth: int, arrivals: int, peak: int, written: int) -> None:
        """Note what the API saw in a tenth of a second."""
        self.arrivals[tenth] = arrivals
        self.peaks[tenth] = peak
        self.written = written
        if self.recovered is None and self.wanted is not None and written >= self.wanted:
            self.recovered = max(0.0, self.now - self.scenario.outage)

    @property
    def over(self) -> bool:
        """Is there nothing more to see?"""
        since = self.now - self.scenario.outage
        return since >= self.scenario.limit or (self.recovered is not None and since >= self.recovered + AFTER)


def _from(counts: dict[int, int], second: float) -> list[int]:
    """The counts of all tenths from a second on."""
    first = round(second / BAR)
    return [count for tenth, count in counts.items() if tenth >= first]


async def go(passage: Passage) -> None:
    """Send controllers through the outage, and note what happens, until it is over."""
    async with fleet(passage) as (api, members):
        for child in (*members, api):
            child.tell("begin")
        asking = asyncio.ensure_future(hear_all(members))
        try:
            while not passage.over:
                passage.note(**await api.hear())
                if passage.wanted is None and asking.done():
                    passage.wanted = sum(asking.result())
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking


@asynccontextmanager
async def fleet(passage: Passage) -> AsyncIterator[tuple[Child, list[Child]]]:
    """The API and the processes of the controllers, connected; they end with the block."""
    scenario = passage.scenario
    children: list[Child] = []
    with tempfile.TemporaryDirectory(prefix="abate-demo-", ignore_cleanup_errors=True) as folder:
        try:
            api = await Child.start("abate.cli.demo.api", {"calm": scenario.calm, "outage": scenario.outage})
            children.append(api)
            port = await api.hear()
            for first in range(0, scenario.controllers, scenario.size):
                settings = {
                    "way": passage.way,
                    "scenario": {name: getattr(scenario, name) for name in scenario.__match_args__},
                    "first": first,
                    "port": port,
                    "folder": folder,
                }
                children.append(await Child.start("abate.cli.demo.member", settings))
            members = children[1:]
            passage.page, *_ = await hear_all(members)
            yield api, members
        finally:
            await asyncio.gather(*(child.end() for child in children))
