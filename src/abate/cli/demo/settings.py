"""The sizes and durations of the demo, the same for both runs."""

from __future__ import annotations

from typing import Literal

from abate.frozen import Frozen

Way = Literal["naive", "abate"]
"""How controllers retry."""

BAR = 0.1
"""Seconds per bar of the picture: the API counts arrivals per tenth of a second."""
WORKERS, SERVICE, PLACES = 10, 0.03, 50
"""The API serves `WORKERS` requests at once, in `SERVICE` seconds each; `PLACES` more may queue, and others get 503."""


class DemoSettings(Frozen):
    """One outage; all times are in seconds."""

    controllers: int = 500
    processes: int = 5
    """Over which the controllers are spread."""
    calm: float = 2.0
    """Before the outage."""
    outage: float = 10.0
    changes: float = 20.0
    """Per second, of all controllers together, until the outage is over. Each must be written to the API once."""
    cap: float = 3.0
    """The longest wait of the naive loop. A longer one makes recovery slower, with the same number of volleys."""
    limit: float = 60.0
    """After the outage; what is not written by then counts as lost."""

    @property
    def size(self) -> int:
        """Controllers in each process."""
        return self.controllers // self.processes


FULL = DemoSettings()
FAST = DemoSettings(controllers=200, processes=2, calm=1.0, outage=2.0, cap=1.0, limit=20.0)
