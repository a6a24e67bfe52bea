"""One run of the demo, and what was measured in it.

    all are connected ─► calm ─► disconnect, outage ─► the API is up again ─► all wanted versions are written

Arrivals are counted by the API; the wanted versions are counted by the controllers.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from abate.cli.demo.child_processes import Child, receive_all
from abate.cli.demo.settings import BAR, DemoSettings, Way

AFTER = 0.5
"""Seconds that are measured after everything has been written."""


class DemoRun:
    """What the API has seen of a run so far. Tenths of seconds are numbered from the disconnect."""

    def __init__(self, way: Way, settings: DemoSettings) -> None:
        self.way = way
        self.settings = settings
        self.page: str | None = None
        """The address of abate's live page of one of the processes."""
        self.arrivals: dict[int, int] = {}
        self.peaks: dict[int, int] = {}
        self.written = 0
        self.wanted: int | None = None
        self.recovered: float | None = None
        """Seconds from the end of the outage until all changes requested before that instant are written."""

    @property
    def now(self) -> float:
        """Seconds since the disconnect."""
        return (max(self.arrivals, default=-round(self.settings.calm / BAR) - 1) + 1) * BAR

    @property
    def attempts(self) -> int:
        """Requests since the disconnect."""
        return sum(_from(self.arrivals, 0.0))

    @property
    def during(self) -> int:
        """Requests during the outage."""
        return self.attempts - sum(_from(self.arrivals, self.settings.outage))

    @property
    def peak(self) -> int:
        """The most requests within any 100 ms after the outage."""
        return max(_from(self.peaks, self.settings.outage), default=0)

    @property
    def last_second(self) -> int:
        """Requests in the last second."""
        return sum(_from(self.arrivals, self.now - 1.0))

    @property
    def lost(self) -> int:
        """Changes that were wanted and not written."""
        return max(0, (self.wanted or 0) - self.written)

    def record(self, tenth: int, arrivals: int, peak: int, written: int) -> None:
        """Record what the API saw in a tenth of a second."""
        self.arrivals[tenth] = arrivals
        self.peaks[tenth] = peak
        self.written = written
        if self.recovered is None and self.wanted is not None and written >= self.wanted:
            self.recovered = max(0.0, self.now - self.settings.outage)

    @property
    def over(self) -> bool:
        """Whether the run can end."""
        since = self.now - self.settings.outage
        return since >= self.settings.limit or (self.recovered is not None and since >= self.recovered + AFTER)


def _from(counts: dict[int, int], second: float) -> list[int]:
    """Return the counts of all tenths from a second on."""
    first = round(second / BAR)
    return [count for tenth, count in counts.items() if tenth >= first]


async def run_once(run: DemoRun) -> None:
    """Run API and controllers, and record what happens, until the run is over."""
    async with processes(run) as (api, controllers):
        for child in (*controllers, api):
            child.send("begin")
        wanted = asyncio.ensure_future(receive_all(controllers))
        try:
            while not run.over:
                run.record(**await api.receive())
                if run.wanted is None and wanted.done():
                    run.wanted = sum(wanted.result())
        finally:
            wanted.cancel()
            with suppress(asyncio.CancelledError):
                await wanted


@asynccontextmanager
async def processes(run: DemoRun) -> AsyncIterator[tuple[Child, list[Child]]]:
    """Start the API and the processes of the controllers; they end with the block."""
    settings = run.settings
    children: list[Child] = []
    with tempfile.TemporaryDirectory(prefix="abate-demo-", ignore_cleanup_errors=True) as folder:
        try:
            api = await Child.start("abate.cli.demo.api_process", {"calm": settings.calm, "outage": settings.outage})
            children.append(api)
            port = await api.receive()
            for first in range(0, settings.controllers, settings.size):
                work = {
                    "way": run.way,
                    "settings": {name: getattr(settings, name) for name in settings.__match_args__},
                    "first": first,
                    "port": port,
                    "folder": folder,
                }
                children.append(await Child.start("abate.cli.demo.controller_process", work))
            controllers = children[1:]
            run.page, *_ = await receive_all(controllers)
            yield api, controllers
        finally:
            await asyncio.gather(*(child.end() for child in children))
