"""The token bucket: a rate, with bursts up to a size.

Waiting is by reservation: who comes takes its tokens at once, below zero if need be, and sleeps until they are
there. So waiters are served in order, and nobody has to wake them. A waiter that is broken off returns its tokens
as soon as nobody waits behind it: who does sleeps until an instant that counts on them having been taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from abate import events
from abate.admit.gate import Gate
from abate.admit.timeline import Timeline
from abate.clock import Clock
from abate.errors import number, whole
from abate.locks import Section
from abate.schedule.deadlines import shorter
from abate.values import Shared, clockless

MOST = 10**15
"""Tokens at once: beyond 2**53 a float does not count every single one."""
GRAIN = 1e-9
"""Tokens; sums of floats that should be whole may be off by this much."""


class Claim:
    """Tokens that were taken before they are there, at the instant `due`."""

    __slots__ = ("broken_off", "due", "n")

    def __init__(self, n: int, due: float, broken_off: bool = False) -> None:
        self.n = n
        self.due = due
        self.broken_off = broken_off


class Level:
    """The tokens of one bucket on one clock, and the claims to those to come, by their due."""

    __slots__ = ("__weakref__", "asked", "at", "claims", "clock", "owed", "section", "tokens")

    def __init__(self, burst: float, clock: Clock) -> None:
        self.clock = clock
        self.section = Section()
        self.tokens = burst
        self.at = clock.now()
        self.claims: deque[Claim] = deque()
        self.asked = 0
        """Tokens that the thread inside wants."""
        self.owed: list[int] = []
        """Tokens that were taken by operations which re-entered one of their own thread."""

    def settle(self) -> None:
        """Charge what is owed; within the section."""
        while self.owed:
            self.tokens -= self.owed[0]  # charged twice for a moment, and never not at all
            del self.owed[0]

    def spare(self) -> float:
        """How many tokens there are at least, whatever the thread inside takes."""
        return self.tokens - self.asked - sum(self.owed)

    def after_fork(self) -> None:
        # the threads that waited are not in the child, nor is what they owe
        self.section.after_fork()
        self.claims = deque()
        self.tokens = max(0.0, self.tokens)


class TokenBucket(Shared, Gate):
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
        self.burst = whole("burst", burst, least=1, most=MOST)
        self.name = name
        self._levels: Timeline[Level] = Timeline(self._level, clock)

    def _level(self, clock: Clock) -> Level:
        return Level(float(self.burst), clock)

    def try_acquire(self, n: int = 1) -> bool:
        """Take `n` tokens if they are there now."""
        level = self._levels.here()
        self._check(n)
        return level.section.ask(self._taken, level, n, otherwise=self._taken_within)

    def _taken(self, level: Level, n: int) -> bool:
        level.asked = n
        try:
            now = self._refill(level, n)
            if level.tokens - sum(level.owed) < n - GRAIN:
                return False
            self._take(level, n, now)
            return True
        finally:
            level.asked = 0

    def _taken_within(self, level: Level, n: int) -> bool:
        """Take `n` tokens while this thread is in the middle of another operation."""
        if level.spare() < n - GRAIN:
            return False
        level.owed.append(n)
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
        claim = self._claim(level, n, timeout)
        try:
            if (wait := claim.due - level.clock.now()) > 0:
                level.clock.sleep(wait)
        except BaseException:
            self._break_off(level, claim)
            raise
        if wait > 0:
            self._tell(wait)

    async def aacquire(self, n: int = 1, *, timeout: float | None = None) -> None:
        """Take `n` tokens, waiting for them in this task; see `acquire`."""
        level = self._levels.here()
        claim = self._claim(level, n, timeout)
        try:
            if (wait := claim.due - level.clock.now()) > 0:
                await level.clock.asleep(wait)
        except BaseException:
            self._break_off(level, claim)
            raise
        if wait > 0:
            self._tell(wait)

    def _tell(self, wait: float) -> None:
        if events.sinks:
            events.emit(events.Waited(self.name, wait))

    def _check(self, n: int) -> None:
        if not 1 <= n <= self.burst:
            raise ValueError(f"n must be from 1 to the burst of {self.burst}, not {n!r}")

    def _refill(self, level: Level, n: int) -> float:
        level.settle()
        now = level.clock.now()
        if now > level.at:
            level.tokens = min(self._ceiling(n), level.tokens + (now - level.at) * self.rate)
            level.at = now
        return now

    def _ceiling(self, n: int) -> float:
        """How many tokens are kept at most, for who wants `n`."""
        return float(self.burst)

    def _take(self, level: Level, n: int, now: float) -> None:
        while level.claims and level.claims[0].due <= now:
            level.claims.popleft()
        level.tokens -= n

    def _claim(self, level: Level, n: int, timeout: float | None) -> Claim:
        """Take `n` tokens, now or from the future; the claim says at which instant they are there."""
        patience = shorter(None if timeout is None else number("timeout", timeout, least=0))
        self._check(n)
        return level.section.ask(self._claimed, level, n, patience, otherwise=self._claimed_within)

    def _claimed(self, level: Level, n: int, patience: float | None) -> Claim:
        level.asked = n
        try:
            now = self._refill(level, n)
            claim = self._due(n, level.tokens - sum(level.owed), now, patience)
            self._take(level, n, now)
            if claim.due > now:
                level.claims.append(claim)
            return claim
        finally:
            level.asked = 0

    def _claimed_within(self, level: Level, n: int, patience: float | None) -> Claim:
        """Take `n` tokens while this thread is in the middle of another operation."""
        now = level.clock.now()
        claim = self._due(n, level.spare(), now, patience)
        level.owed.append(n)
        if claim.due > now:
            level.section.run(self._line_up, level, claim)
        return claim

    def _line_up(self, level: Level, claim: Claim) -> None:
        if claim not in level.claims:
            level.claims.append(claim)

    def _due(self, n: int, tokens: float, now: float, patience: float | None) -> Claim:
        wait = (n - tokens) / self.rate if n - tokens > GRAIN else 0.0
        if patience is not None and wait > patience:
            raise TimeoutError(f"{self.name} has no token within {patience:.3g} s: the wait is {wait:.3g} s")
        return Claim(n, now + wait)

    def _break_off(self, level: Level, claim: Claim) -> None:
        """Return the tokens of a wait that was broken off, and of those before it, once nobody waits behind them."""
        claim.broken_off = True
        level.section.run(self._unwind, level)

    def _unwind(self, level: Level) -> None:
        level.settle()
        while level.claims and level.claims[-1].broken_off:
            level.tokens = min(float(self.burst), level.tokens + level.claims[-1].n)
            del level.claims[-1]

    def enter(self, retry: bool) -> Gate | None:
        return None if self.try_acquire() else self

    def refund(self) -> None:
        level = self._levels.here()
        level.section.run(self._refunded, level)

    def _refunded(self, level: Level) -> None:
        self._refill(level, 1)
        if level.tokens < -GRAIN and level.claims:  # others wait, counting on this token having been taken
            level.claims.appendleft(Claim(1, level.claims[0].due, broken_off=True))
        else:
            level.tokens = min(float(self.burst), level.tokens + 1)

    def apart(self) -> TokenBucket:
        if type(self) is not TokenBucket:
            return self
        return TokenBucket(self.rate, self.burst, self._levels.clock, self.name)

    def refusal(self) -> str:
        return f"more than {self.rate:g} per second"

    def _made_from(self) -> dict[str, Any]:
        clockless(self, not self._levels.ambient)
        return {"rate": self.rate, "burst": self.burst, "name": self.name}

    def __repr__(self) -> str:
        return f"TokenBucket(rate={self.rate:g}, burst={self.burst})"
