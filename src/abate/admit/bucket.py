"""The token bucket: a rate, with bursts up to a size.

Waiting is by reservation: who comes takes its tokens at once, below zero if need be, and sleeps until they are
there. So waiters are served in order, and nobody has to wake them.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from abate.admit.gate import Gate
from abate.admit.timeline import Timeline
from abate.clock import Clock
from abate.errors import number, whole
from abate.schedule.deadlines import shorter

GRAIN = 1e-9
"""Tokens; sums of floats that should be whole may be off by this much."""


class Level:
    """The tokens of one bucket on one clock."""

    __slots__ = ("__weakref__", "at", "clock", "last_due", "lock", "tokens")

    def __init__(self, burst: float, clock: Clock) -> None:
        self.clock = clock
        self.lock = Lock()
        self.tokens = burst
        self.at = clock.now()
        self.last_due = self.at

    def after_fork(self) -> None:
        self.lock = Lock()


class TokenBucket(Gate):
    """Admits `rate` per second on average and up to `burst` at once.

    >>> bucket = TokenBucket(rate=1.0, burst=2)
    >>> bucket.try_acquire(), bucket.try_acquire(), bucket.try_acquire()
    (True, True, False)
    """

    __slots__ = ("_levels", "burst", "rate")

    def __init__(
        self,
        rate: float,
        burst: int = 1,
        clock: Clock | Callable[[], float] | None = None,
        name: str = "bucket",
    ) -> None:
        self.rate = number("rate", rate, above=0)
        self.burst = whole("burst", burst, least=1)
        self.name = name
        self._levels: Timeline[Level] = Timeline(self._level, clock)

    def _level(self, clock: Clock) -> Level:
        return Level(float(self.burst), clock)

    def try_acquire(self, n: int = 1) -> bool:
        """Take `n` tokens if they are there now."""
        level = self._levels.here()
        with level.lock:
            self._refill(level, n)
            if level.tokens < n - GRAIN:
                return False
            level.tokens -= n
            return True

    def acquire(self, n: int = 1, *, timeout: float | None = None) -> None:
        """Take `n` tokens, waiting for them in this thread.

        Where they would not be there within `timeout`, or before the deadline, it raises TimeoutError at once.

        >>> import abate
        >>> with abate.testing.VirtualClock() as clock:
        ...     bucket = TokenBucket(rate=2.0)
        ...     bucket.acquire(); bucket.acquire(); clock.waits
        [0.5]
        """
        level = self._levels.here()
        due = self._reserve(level, n, timeout)
        if (wait := due - level.clock.now()) > 0:
            try:
                level.clock.sleep(wait)
            except BaseException:
                self._give_back(level, n, due)
                raise

    async def aacquire(self, n: int = 1, *, timeout: float | None = None) -> None:
        """Take `n` tokens, waiting for them in this task; see `acquire`."""
        level = self._levels.here()
        due = self._reserve(level, n, timeout)
        if (wait := due - level.clock.now()) > 0:
            try:
                await level.clock.asleep(wait)
            except BaseException:
                self._give_back(level, n, due)
                raise

    def _refill(self, level: Level, n: int) -> float:
        if n > self.burst or n < 1:
            raise ValueError(f"n must be from 1 to the burst of {self.burst}, not {n!r}")
        now = level.clock.now()
        if now > level.at:
            level.tokens = min(float(self.burst), level.tokens + (now - level.at) * self.rate)
            level.at = now
        return now

    def _reserve(self, level: Level, n: int, timeout: float | None) -> float:
        """Take `n` tokens, now or from the future, and return the instant at which they are there."""
        patience = shorter(None if timeout is None else number("timeout", timeout, least=0))
        with level.lock:
            now = self._refill(level, n)
            short = n - level.tokens
            wait = short / self.rate if short > GRAIN else 0.0
            if patience is not None and wait > patience:
                raise TimeoutError(f"{self.name} has no token within {patience:.3g} s: the wait is {wait:.3g} s")
            level.tokens -= n
            due = now + wait
            level.last_due = max(level.last_due, due)
            return due

    def _give_back(self, level: Level, n: int, due: float) -> None:
        """Return the tokens of a wait that was broken off, but for those that later waiters have counted on."""
        with level.lock:
            counted_on = (level.last_due - due) * self.rate
            level.tokens = min(float(self.burst), level.tokens + max(0.0, n - counted_on))

    def enter(self, retry: bool) -> Gate | None:
        return None if self.try_acquire() else self

    def refund(self) -> None:
        level = self._levels.here()
        with level.lock:
            level.tokens = min(float(self.burst), level.tokens + 1)

    def refusal(self) -> str:
        return f"more than {self.rate:g} per second"

    def __repr__(self) -> str:
        return f"TokenBucket(rate={self.rate:g}, burst={self.burst})"
