"""What both ways go through: how many controllers, how long the outage, how much the API can do."""

from __future__ import annotations

from typing import Literal

from abate.values import Value

Way = Literal["naive", "abate"]
"""How controllers retry."""

BAR = 0.1
"""Seconds; arrivals are counted by the tenth of one."""
WORKERS, SERVICE, PLACES = 10, 0.03, 50
"""The API serves so many requests at once, each for so many seconds; so many more may queue, and the rest get 503."""


class Scenario(Value):
    """One storm; all times are in seconds."""

    controllers: int = 500
    processes: int = 5
    """The controllers are spread over so many."""
    calm: float = 2.0
    """Before the outage."""
    outage: float = 10.0
    changes: float = 20.0
    """Per second, of all controllers together, until the outage is over: each must be written to the API once."""
    cap: float = 3.0
    """The longest wait of the naive loop. With a longer one it takes longer to recover, in as many volleys."""
    limit: float = 60.0
    """After the outage; what has not been written by then is lost."""

    @property
    def size(self) -> int:
        """Controllers in each process."""
        return self.controllers // self.processes


FULL = Scenario()
FAST = Scenario(controllers=200, processes=2, calm=1.0, outage=2.0, cap=1.0, limit=20.0)
