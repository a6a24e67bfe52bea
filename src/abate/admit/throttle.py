"""Adaptive throttling on the client's side: the more a server refuses, the less the client sends.

From the SRE book: over the last two minutes, an attempt is refused here with probability
``max(0, (requests - k * accepts) / (requests + 1))``. Attempts that are refused here count as requests, so that the
throttle tightens while the server is down; a share of attempts always gets through, so that it opens again.

Every answer of the server counts as accepted, including a 500: one caller's errors must not get other calls refused.
Attempts without an outcome (a cancellation, a caller's short deadline) are not counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from abate.admit.gate import Gate
from abate.admit.sliding_window import MIN_WINDOW, SlidingWindow
from abate.clock import Clock
from abate.errors import number, suggests_settings
from abate.frozen import Shared, refuse_own_clock
from abate.per_clock import PerClock
from abate.reentrant_locks import Section
from abate.schedule.backoff import RandomSource


class ThrottleState:
    """What one throttle counts on one clock."""

    __slots__ = ("__weakref__", "accepts", "clock", "probability", "requests", "section")

    def __init__(self, window: float, clock: Clock) -> None:
        now = clock.now()
        self.clock = clock
        self.section = Section()
        self.requests = SlidingWindow(window, now)
        self.accepts = SlidingWindow(window, now)
        self.probability = 0.0
        """The share of attempts to refuse, as computed last."""

    def refused(self, k: float) -> float:
        """Compute the share of attempts to refuse now; called under the lock."""
        self._roll()
        requests = self.requests.total
        self.probability = max(0.0, (requests - k * self.accepts.total) / (requests + 1))
        return self.probability

    def last_probability(self, k: float) -> float:
        """Return the share that was computed last, because the counts may be half changed."""
        return self.probability

    def request(self, k: float) -> float:
        """Count a request; return the share before it."""
        probability = self.refused(k)
        self.requests.add(1)
        return probability

    def request_reentrant(self, k: float) -> float:
        """Count a request in a re-entrant call."""
        self.section.run_or_defer(self.request, k)
        return self.probability

    def accept(self) -> None:
        """Count an attempt that the server took."""
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


class AdaptiveThrottle(Shared, Gate):
    """Refuses attempts in proportion to what the server refuses.

    >>> throttle = AdaptiveThrottle(k=2.0)
    >>> throttle.probability()
    0.0
    """

    __slots__ = ("_rng", "_states", "k", "window")

    @suggests_settings
    def __init__(
        self,
        k: float = 2.0,
        window: float = 120.0,
        *,
        clock: Clock | Callable[[], float] | None = None,
        rng: RandomSource | None = None,
        name: str = "throttle",
    ) -> None:
        self.k = number("k", k, least=1)
        self.window = number("window", window, least=MIN_WINDOW)
        self.name = name
        self._rng = rng or random
        self._states: PerClock[ThrottleState] = PerClock(self._make_state, clock)

    def _make_state(self, clock: Clock) -> ThrottleState:
        return ThrottleState(self.window, clock)

    def probability(self) -> float:
        """Return the share of attempts that would be refused now."""
        state = self._states.here()
        return state.section.call(state.refused, self.k, otherwise=state.last_probability)

    def enter(self, retry: bool) -> Gate | None:
        state = self._states.here()
        probability = state.section.call(state.request, self.k, otherwise=state.request_reentrant)
        return self if probability > 0.0 and self._rng.random() < probability else None

    def leave(self, accepted: bool | None) -> None:
        if accepted:
            state = self._states.here()
            state.section.run_or_defer(state.accept)
        elif accepted is None:
            self.refund()

    def refund(self) -> None:
        state = self._states.here()
        state.section.run_or_defer(state.requests.take_back)

    def apart(self) -> AdaptiveThrottle:
        if type(self) is not AdaptiveThrottle:
            return self
        return AdaptiveThrottle(self.k, self.window, clock=self._states.clock, rng=self._rng, name=self.name)

    def refusal(self) -> str:
        return f"{self.probability():.0%} of attempts are not sent, because the server refuses too many"

    def _pickled_settings(self) -> dict[str, Any]:
        refuse_own_clock(self, not self._states.follows_context)
        rng = None if self._rng is random else self._rng
        return {"k": self.k, "window": self.window, "rng": rng, "name": self.name}

    def __repr__(self) -> str:
        return f"AdaptiveThrottle(k={self.k:g}, window={self.window:g})"
