"""Connects a consumer to its circuit breaker: how many messages may be received, and how they ended."""

from __future__ import annotations

from math import inf

from abate import event_sinks, events
from abate.admit.breaker import CircuitBreaker
from abate.logs import Log
from abate.work.run_state import Delivery, RunState
from abate.work.verdict_rules import BreakerOutcome

log = Log("abate.work")


class BreakerTrials:
    """A circuit breaker, if there is one, and the messages that it has admitted on trial."""

    def __init__(self, state: RunState, breaker: CircuitBreaker | None) -> None:
        self._state = state
        self._breaker = breaker

    @property
    def trips(self) -> int:
        """Return how often the breaker has tripped."""
        return 0 if self._breaker is None else self._breaker.trips

    def seconds_until_half_open(self) -> float | None:
        """Return the seconds until the breaker half-opens; 0 while half-open; None if closed, or without one."""
        return None if self._breaker is None else self._breaker.seconds_until_half_open()

    def allowed(self) -> float:
        """Return how many more messages the breaker allows."""
        if self._breaker is None:
            return inf
        allowed = self._breaker.allowed()
        return allowed if allowed == inf else allowed - len(self._trials(self._breaker))

    def pause(self) -> float | None:
        """Return the seconds until the breaker allows another message; None if the loop does not wait for it."""
        seconds_until_half_open = self.seconds_until_half_open()
        if self._breaker is None or seconds_until_half_open is None:
            return None
        return seconds_until_half_open or min(self._trials(self._breaker), default=None)

    def _trials(self, breaker: CircuitBreaker) -> list[float]:
        """Return the seconds left of each trial; a trial that takes longer than a pause is left out."""
        now, trips = self._state.clock.now(), breaker.trips
        trials = [one for one in self._state.in_flight if one.trips == trips and one.began < inf]
        return [left for one in trials if (left := one.began + breaker.pause - now) > 0.0]

    def record(self, delivery: Delivery, failed: BreakerOutcome) -> float:
        """Count how a handler ended. Return the seconds for which that opens the breaker; 0 if it does not."""
        if self._breaker is None or failed is None or delivery.stuck:  # a handler that hangs has been counted
            return 0.0
        return self._breaker.record(not failed, taken=delivery.trips, answered=failed == "answered")

    def report_open(self, pause: float) -> None:
        """Report that the breaker is open for `pause` seconds; do nothing for 0."""
        if pause:
            log.warning("%s: most messages fail: none are received for %.3g s", self._state.name, pause)
            event_sinks.emit(events.BreakerOpened(self._state.name, pause))
