"""Implements the circuit breaker: when most attempts fail, it refuses all attempts for a while.

The rules:

* Closed: all attempts are admitted. When at least `min_calls` have ended in the last `window` seconds, and the share
  that failed reaches `failure_ratio`, the breaker trips.
* An error response that does not mean overload (a 500) may be caused by one tenant's requests. It is ignored if any
  attempt in the window has succeeded, and counts as a failure if none has.
* Open: all attempts are refused for `pause` seconds, plus or minus half. Attempts that end meanwhile are not counted.
* Half-open: one trial at a time is admitted. A success closes the breaker; a failure trips it again for twice as long,
  up to `MAX_PAUSES` pauses. If a trial takes longer than a pause, another one is admitted.

A consumer records for each message how often the breaker had tripped when the message was received, so messages from
before a trip are ignored. A gate cannot distinguish attempts: when half-open, any success closes it, and a failure is
attributed to an attempt from before the trip as long as any of these is in flight.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf
from typing import Any

from abate import clock as clocks
from abate import event_sinks, events
from abate.admit.gate import Gate
from abate.admit.sliding_window import MIN_WINDOW, SlidingWindow
from abate.clock import Clock
from abate.errors import number, suggests_settings, whole
from abate.frozen import Shared, refuse_own_clock
from abate.logs import WARNING
from abate.per_clock import PerClock
from abate.reentrant_locks import Section
from abate.schedule.backoff import RandomSource

MAX_PAUSES = 8.0
"""The breaker is open for at most this many times `pause`."""


class Entry:
    """One attempt: whether it was counted, and whether its `enter` was interrupted by a signal handler that raised."""

    __slots__ = ("broken_off", "counted")

    def __init__(self) -> None:
        self.counted = False
        self.broken_off = False


class Circuit:
    """The state of one breaker on one clock.

    Methods run within the section. Each makes its changes after its last call, so that an exception from a signal
    handler leaves either all changes done or none.
    """

    __slots__ = (
        "__weakref__",
        "_counts",
        "_failure_ratio",
        "_in_flight",
        "_min_calls",
        "_older",
        "_pause",
        "_pauses",
        "_rng",
        "_trial_until",
        "_window",
        "clock",
        "open_until",
        "section",
        "tripped",
        "trips",
        "unreported_seconds",
    )

    def __init__(
        self, failure_ratio: float, min_calls: int, window: float, pause: float, rng: RandomSource, clock: Clock
    ) -> None:
        self._failure_ratio = failure_ratio
        self._min_calls = min_calls
        self._window = window
        self._pause = pause
        self._rng = rng
        self.clock = clock
        self.section = Section()
        self._counts: tuple[SlidingWindow, SlidingWindow, SlidingWindow] | None = None
        """Successes, failures and error responses since the breaker last closed."""
        self._pauses = 1.0
        self._in_flight = 0
        """Attempts that entered and have not ended."""
        self._older = 0
        """How many of these entered before the last trip."""
        self._trial_until = -inf
        """While half-open, no further trial is admitted before this instant."""
        self.open_until = -inf
        self.tripped = False
        """Whether the breaker is open or half-open."""
        self.trips = 0
        self.unreported_seconds = 0.0
        """The length in seconds of a trip whose event was not emitted yet; 0 if there is none."""

    def enter(self, entry: Entry) -> bool:
        """Return whether the attempt is admitted, and count it if so."""
        now = self.clock.now()
        if now < self.open_until:
            return False
        if self.tripped:
            if now < self._trial_until:
                return False
            self._trial_until = now + self._pause
        self._in_flight += 1
        entry.counted = True
        return True

    def enter_reentrant(self, entry: Entry) -> bool:
        """Like `enter`, for a thread that is inside another operation: admit only if the breaker is closed."""
        if self.tripped:
            return False
        self.section.run_or_defer(self._count_deferred, entry)
        return True

    def _count_deferred(self, entry: Entry) -> None:
        """Count an attempt that was admitted by `enter_reentrant`."""
        if entry.broken_off:
            return
        self._in_flight += 1
        entry.counted = True
        if self.tripped:
            self._older += 1

    def break_off(self, entry: Entry) -> None:
        """Uncount an attempt whose `enter` was interrupted."""
        entry.broken_off = True
        if entry.counted:
            self.void()

    def void(self) -> None:
        """Uncount an attempt whose result says nothing about the server."""
        if self._in_flight:
            self._in_flight -= 1
        if self._older > self._in_flight:
            self._older = self._in_flight
        self._trial_until = -inf

    def end(self, ok: bool, answered: bool) -> None:
        """Count the result of an attempt that was admitted."""
        stale = self._older and not ok
        seconds = 0.0 if stale else self.outcome(ok, answered)
        if self._in_flight:
            self._in_flight -= 1
        if self._older:
            self._older -= 1
        if seconds:
            self.unreported_seconds = seconds

    def record(self, ok: bool, answered: bool, taken: int | None) -> float:
        """Count the result of a consumer's message. Return the seconds for which it opened the breaker; 0 if not."""
        if self.tripped and taken is not None and taken != self.trips:
            return 0.0
        return self.outcome(ok, answered)

    def record_reentrant(self, ok: bool, answered: bool, taken: int | None) -> float:
        """Queue a `record` for the operation that this thread is inside. Return 0."""
        self.section.run_or_defer(self._record_deferred, ok, answered, taken)
        return 0.0

    def _record_deferred(self, ok: bool, answered: bool, taken: int | None) -> None:
        seconds = self.record(ok, answered, taken)
        if seconds:
            self.unreported_seconds = seconds

    def outcome(self, ok: bool, answered: bool) -> float:
        """Count a success or a failure. Return the seconds for which it opened the breaker; 0 if it did not."""
        now = self.clock.now()
        if now < self.open_until:
            return 0.0
        if self.tripped:
            if not ok:
                return self._trip(now, min(2 * self._pauses, MAX_PAUSES))
            self.tripped, self._older, self._trial_until = False, 0, -inf
            return 0.0
        if self._counts is None:
            self._counts = (
                SlidingWindow(self._window, now),
                SlidingWindow(self._window, now),
                SlidingWindow(self._window, now),
            )
        for counted in self._counts:
            counted.roll(now)
        good, failed, erred = self._counts
        if ok:
            good.add(1)
            return 0.0
        failures = failed.total + (not answered)
        if not good.total:
            failures += erred.total + answered
        total = good.total + failures
        if total >= self._min_calls and failures >= self._failure_ratio * total:
            return self._trip(now, 1.0)
        (erred if answered else failed).add(1)
        return 0.0

    def _trip(self, now: float, pauses: float) -> float:
        seconds = self._pause * pauses * (0.5 + self._rng.random())
        # set first, so that a thread that reads without the section never sees the breaker half-open here
        self.open_until = now + seconds
        self.tripped = True
        self.trips += 1
        self._pauses = pauses
        self._counts = None
        self._older = self._in_flight
        self._trial_until = -inf
        return seconds

    def take_unreported(self) -> float:
        """Return the length in seconds of a trip whose event was not emitted yet, and reset it."""
        seconds, self.unreported_seconds = self.unreported_seconds, 0.0
        return seconds

    def after_fork(self) -> None:
        """Reset the attempts in flight in the child: their threads do not exist there."""
        self.section.after_fork()
        self._in_flight = self._older = 0
        self._trial_until = -inf
        for counted in self._counts or ():
            counted.recount()


class CircuitBreaker(Shared, Gate):
    """Refuses attempts while a dependency is down, or stops a consumer from taking messages.

    >>> import abate
    >>> breaker = CircuitBreaker(failure_ratio=0.5, min_calls=4, pause=30.0, name="api")
    >>> policy = abate.Policy(on=ConnectionError, max_attempts=4, backoff=[0.0], gate=breaker)
    >>> policy.call(abate.testing.Script(*[ConnectionError("down")] * 4))
    Traceback (most recent call last):
    ConnectionError: down
    >>> policy.call(print)
    Traceback (most recent call last):
    abate.errors.Refused: api refused: most attempts failed, none are sent for another 25.2 s
    """

    __slots__ = ("_circuits", "_rng", "failure_ratio", "min_calls", "pause", "window")

    @suggests_settings
    def __init__(
        self,
        failure_ratio: float = 0.5,
        min_calls: int = 20,
        window: float = 60.0,
        pause: float = 30.0,
        *,
        clock: Clock | Callable[[], float] | None = None,
        rng: RandomSource | None = None,
        name: str = "breaker",
    ) -> None:
        self.failure_ratio = number("failure_ratio", failure_ratio, above=0, most=1)
        self.min_calls = whole("min_calls", min_calls, least=1)
        self.window = number("window", window, least=MIN_WINDOW)
        self.pause = number("pause", pause, above=0)
        self.name = name
        self._rng: RandomSource = rng or random
        self._circuits: PerClock[Circuit] = PerClock(self._circuit, clock)

    def _circuit(self, clock: Clock) -> Circuit:
        return Circuit(self.failure_ratio, self.min_calls, self.window, self.pause, self._rng, clock)

    @property
    def trips(self) -> int:
        """Return how often the breaker has tripped. Pass the value at the time a message was taken to `record`."""
        return self._circuits.here().trips

    def allowed(self) -> float:
        """Return how many messages may be in flight: 0 while open, 1 while half-open, infinity while closed."""
        circuit = self._circuits.here()
        if circuit.clock.now() < circuit.open_until:
            return 0
        return 1 if circuit.tripped else inf

    def seconds_until_half_open(self) -> float | None:
        """Return the seconds until the breaker half-opens; 0 while it is half-open; None while it is closed.

        >>> breaker = CircuitBreaker(min_calls=1, pause=30.0)
        >>> breaker.seconds_until_half_open(), breaker.record(False) >= breaker.seconds_until_half_open() > 14.0
        (None, True)
        """
        circuit = self._circuits.here()
        seconds = circuit.open_until - circuit.clock.now()
        if seconds > 0.0:
            return seconds
        return 0.0 if circuit.tripped else None

    def record(self, ok: bool, *, taken: int | None = None, answered: bool = False) -> float:
        """Count the result of a message. Return the seconds for which it opened the breaker; 0 if it did not.

        `taken` is the value of `trips` when the message was taken; None means after the last trip. `answered` says that
        the server answered with an error that does not mean overload, which the message itself may have caused.
        """
        circuit = self._circuits.here()
        seconds = circuit.section.call(circuit.record, ok, answered, taken, otherwise=circuit.record_reentrant)
        if circuit.unreported_seconds:
            self._report_trip(circuit)
        return seconds

    def enter(self, retry: bool) -> Gate | None:
        circuit, entry = self._circuits.here(), Entry()
        try:
            admitted = circuit.section.call(circuit.enter, entry, otherwise=circuit.enter_reentrant)
            if circuit.unreported_seconds:
                self._report_trip(circuit)
        except BaseException:
            circuit.section.run_or_defer(circuit.break_off, entry)
            raise
        return None if admitted else self

    def leave(self, accepted: bool | None) -> None:
        self._ended(accepted, False)

    def failed(self, accepted: bool | None) -> None:
        self._ended(None if accepted is None else False, accepted is True)

    def _ended(self, ok: bool | None, answered: bool) -> None:
        circuit = self._circuits.here()
        if ok is None:
            circuit.section.run_or_defer(circuit.void)
        else:
            circuit.section.run_or_defer(circuit.end, ok, answered)
        if circuit.unreported_seconds:
            self._report_trip(circuit)

    def _report_trip(self, circuit: Circuit) -> None:
        seconds = circuit.section.call(circuit.take_unreported, otherwise=float)
        if seconds:
            logged = circuit.clock is clocks.current() and event_sinks.log_enabled(WARNING)
            event_sinks.emit(events.BreakerOpened(self.name, seconds, True), logged)

    def refund(self) -> None:
        self._ended(None, False)

    def apart(self) -> CircuitBreaker:
        if type(self) is not CircuitBreaker:
            return self
        return CircuitBreaker(
            self.failure_ratio,
            self.min_calls,
            self.window,
            self.pause,
            clock=self._circuits.clock,
            rng=self._rng,
            name=self.name,
        )

    def refusal(self) -> str:
        seconds = self.seconds_until_half_open()
        if seconds:
            return f"most attempts failed, none are sent for another {seconds:.3g} s"
        return "most attempts failed, and a trial is in flight already"

    def _pickled_settings(self) -> dict[str, Any]:
        refuse_own_clock(self, not self._circuits.follows_context)
        return {
            "failure_ratio": self.failure_ratio,
            "min_calls": self.min_calls,
            "window": self.window,
            "pause": self.pause,
            "rng": None if self._rng is random else self._rng,
            "name": self.name,
        }

    def __repr__(self) -> str:
        settings = f"{self.failure_ratio:g}, {self.min_calls}, window={self.window:g}, pause={self.pause:g}"
        return f"CircuitBreaker({settings})"
