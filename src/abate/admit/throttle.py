"""Adaptive throttling on the client's side: the more a server refuses, the less is sent to it.

From the SRE book: over the last two minutes, an attempt is refused here with probability
``max(0, (requests - k * accepts) / (requests + 1))``. What is refused here counts as requested, so that the
throttle tightens while the server is down; a share of attempts always gets through, so that it opens again.

What the server took and answered counts as accepted, a 500 among it: one caller's errors must not get the calls of
others refused. What ended without a verdict (a cancellation, a caller's short deadline) is forgotten.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from abate.admit.gate import Gate
from abate.admit.timeline import Timeline
from abate.admit.window import SHORTEST, Window
from abate.clock import Clock
from abate.errors import number
from abate.locks import Section
from abate.schedule.backoff import Uniform
from abate.values import Shared, clockless


class Tally:
    """What one throttle counts on one clock."""

    __slots__ = ("__weakref__", "accepts", "clock", "probability", "requests", "section")

    def __init__(self, window: float, clock: Clock) -> None:
        now = clock.now()
        self.clock = clock
        self.section = Section()
        self.requests = Window(window, now)
        self.accepts = Window(window, now)
        self.probability = 0.0
        """The share of attempts to refuse, when it was last worked out."""

    def refused(self, k: float) -> float:
        """Work out the share of attempts to refuse now; within the section."""
        self._roll()
        requests = self.requests.total
        self.probability = max(0.0, (requests - k * self.accepts.total) / (requests + 1))
        return self.probability

    def known(self, k: float) -> float:
        """Return the share as it was, where the counts may be half changed."""
        return self.probability

    def request(self, k: float) -> float:
        """Count a request; return the share before it."""
        probability = self.refused(k)
        self.requests.add(1)
        return probability

    def request_within(self, k: float) -> float:
        """Count a request while this thread is in the middle of another operation."""
        self.section.run(self.request, k)
        return self.probability

    def accept(self) -> None:
        """Count what the server took."""
        self._roll()
        self.accepts.add(1)

    def _roll(self) -> None:
        """Forget what has left the window."""
        now = self.clock.now()
        self.requests.roll(now)
        self.accepts.roll(now)

    def after_fork(self) -> None:
        self.section.after_fork()
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
        return tally.section.ask(tally.refused, self.k, otherwise=tally.known)

    def enter(self, retry: bool) -> Gate | None:
        tally = self._tallies.here()
        probability = tally.section.ask(tally.request, self.k, otherwise=tally.request_within)
        return self if probability > 0.0 and self._rng.random() < probability else None

    def leave(self, accepted: bool | None) -> None:
        if accepted:
            tally = self._tallies.here()
            tally.section.run(tally.accept)
        elif accepted is None:
            self.refund()

    def refund(self) -> None:
        tally = self._tallies.here()
        tally.section.run(tally.requests.take_back)

    def apart(self) -> Throttle:
        if type(self) is not Throttle:
            return self
        return Throttle(self.k, self.window, self._tallies.clock, self._rng, self.name)

    def refusal(self) -> str:
        return f"the server refuses so much that {self.probability():.0%} are held back here"

    def _made_from(self) -> dict[str, Any]:
        clockless(self, not self._tallies.ambient)
        rng = None if self._rng is random else self._rng
        return {"k": self.k, "window": self.window, "rng": rng, "name": self.name}

    def __repr__(self) -> str:
        return f"Throttle(k={self.k:g}, window={self.window:g})"
