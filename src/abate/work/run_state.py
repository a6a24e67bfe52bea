"""Holds the state that the parts of one run of a consumer or controller share."""

from __future__ import annotations

import asyncio
from collections import Counter

from abate import clock as clocks
from abate.clock import Clock
from abate.errors import AttemptTimeout
from abate.work.in_flight import InFlight
from abate.work.source import Source


class RunState:
    """The messages in flight, the tally, and the signals between the tasks of one run."""

    def __init__(self, name: str, source: Source) -> None:
        self.name = name
        self.source = source
        self.clock: Clock = clocks.current()
        self.in_flight = InFlight()
        self.tally: Counter[str] = Counter()
        self.draining = False
        """Whether the run ends when no messages are left."""
        self.stopping = asyncio.Event()
        self.changed = asyncio.Event()
        """Set when any state changes that a task of the run may wait for."""

    @property
    def ending(self) -> bool:
        """Return whether the run ends once the queue is empty, or sooner."""
        return self.draining or self.stopping.is_set()

    @property
    def takes_no_more(self) -> bool:
        """Return whether no more messages are received: after a stop, a durable source keeps its waiting messages."""
        return self.stopping.is_set() and self.source.durable

    async def wait_for_change(self, seconds: float | None) -> None:
        """Wait until the state changes, for at most `seconds`; None for no limit."""
        self.changed.clear()
        if seconds is None:
            await self.changed.wait()
            return
        try:
            cut = self.clock.within(seconds)
            async with cut:
                await self.changed.wait()
        except AttemptTimeout:
            pass
