"""Adaptive throttling on the client's side: the more a server refuses, the less is sent to it.

From the SRE book: over the last two minutes, an attempt is refused here with probability
``max(0, (requests - k * accepts) / (requests + 1))``. What is refused here counts as requested, so that the
throttle tightens while the server is down; a share of attempts always gets through, so that it opens again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from threading import Lock
from typing import Any

from abate.admit.gate import Gate
from abate.admit.timeline import Timeline
from abate.admit.window import SHORTEST, Window
from abate.clock import Clock
from abate.errors import number
from abate.schedule.backoff import Uniform
from abate.values import Shared, clockless


class Tally:
    """What one throttle counts on one clock."""

    __slots__ = ("__weakref__", "accepts", "clock", "lock", "requests")

    def __init__(self, window: float, clock: Clock) -> None:
        now = clock.now()
        self.clock = clock
        self.lock = Lock()
        self.requests = Window(window, now)
        self.accepts = Window(window, now)

    def roll(self) -> None:
        """Forget what has left the window; needs the lock."""
        now = self.clock.now()
        self.requests.roll(now)
        self.accepts.roll(now)

    def after_fork(self) -> None:
        self.lock = Lock()
        self.requests.recount()
        self.accepts.recount()


class Throttle(Shared, Gate):
    """Refuses attempts in proportion to what the server refuses.

    >>> throttle = Throttle(k=2.0)
    >>> throttle.probability()
    0.0
    """

    __slots__ = ("_rng", "_tallies", "k", "window")

    def __init__(
        self,
        k: float = 2.0,
        window: float = 120.0,
        clock: Clock | Callable[[], float] | None = None,
        rng: Uniform | None = None,
        name: str = "throttle",
    ) -> None:
        self.k = number("k", k, least=1)
        self.window = number("window", window, least=SHORTEST)
        self.name = name
        self._rng = rng or random
        self._tallies: Timeline[Tally] = Timeline(self._tally, clock)

    def _tally(self, clock: Clock) -> Tally:
        return Tally(self.window, clock)

    def probability(self) -> float:
        """The share of attempts that would be refused now."""
        tally = self._tallies.here()
        with tally.lock:
            tally.roll()
            return self._probability(tally)

    def _probability(self, tally: Tally) -> float:
        requests = tally.requests.total
        return max(0.0, (requests - self.k * tally.accepts.total) / (requests + 1))

    def enter(self, retry: bool) -> Gate | None:
        tally = self._tallies.here()
        with tally.lock:
            tally.roll()
            probability = self._probability(tally)
            tally.requests.add(1)
        return self if probability > 0.0 and self._rng.random() < probability else None

    def leave(self, accepted: bool) -> None:
        if accepted:
            tally = self._tallies.here()
            with tally.lock:
                tally.roll()
                tally.accepts.add(1)

    def refund(self) -> None:
        tally = self._tallies.here()
        with tally.lock:
            tally.requests.take_back()

    def refusal(self) -> str:
        return f"the server refuses so much that {self.probability():.0%} are held back here"

    def _made_from(self) -> dict[str, Any]:
        clockless(self, not self._tallies.ambient)
        rng = None if self._rng is random else self._rng
        return {"k": self.k, "window": self.window, "rng": rng, "name": self.name}

    def __repr__(self) -> str:
        return f"Throttle(k={self.k:g}, window={self.window:g})"
