"""The token bucket: a rate, with bursts up to a size.

A caller that waits takes its tokens at once, below zero if necessary, and sleeps until they exist. So waiters are
served in order, and need no wake-up. The tokens of an interrupted waiter are returned only when no later waiter is
left, because the wake-up times of later waiters assume that these tokens are gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from abate import event_sinks, events
from abate.admit.gate import Gate
from abate.clock import Clock
from abate.errors import number, suggests_settings, whole
from abate.frozen import Shared, refuse_own_clock
from abate.per_clock import PerClock
from abate.reentrant_locks import Section
from abate.schedule.deadlines import cut_to_deadline

MAX_BURST = 10**15
"""The largest burst: beyond 2**53 a float cannot count single tokens."""
TOLERANCE = 1e-9
"""Rounding error of sums of tokens."""


class Reservation:
    """Tokens taken in advance, which exist from the instant `due`."""

    __slots__ = ("broken_off", "due", "n")

    def __init__(self, n: int, due: float, broken_off: bool = False) -> None:
        self.n = n
        self.due = due
        self.broken_off = broken_off


class BucketState:
    """The tokens of one bucket on one clock, and the reservations of future tokens, sorted by `due`."""

    __slots__ = ("__weakref__", "asked", "at", "clock", "owed", "reservations", "section", "tokens")

    def __init__(self, burst: float, clock: Clock) -> None:
        self.clock = clock
        self.section = Section()
        self.tokens = burst
        self.at = clock.now()
        self.reservations: deque[Reservation] = deque()
        self.asked = 0
        """Tokens that the operation under the lock is about to take."""
        self.owed: list[int] = []
        """Tokens taken by re-entrant operations, not charged yet."""

    def charge_owed(self) -> None:
        """Charge what is owed; called under the lock."""
        while self.owed:
            self.tokens -= self.owed[0]  # before it is deleted: an exception in between charges twice instead of never
            del self.owed[0]

    def spare(self) -> float:
        """Return the tokens that remain after the operation under the lock has taken what it wants."""
        return self.tokens - self.asked - sum(self.owed)

    def after_fork(self) -> None:
        # the waiting threads don't exist in the child
        self.section.after_fork()
        self.reservations = deque()
        self.tokens = max(0.0, self.tokens)


class TokenBucket(Shared, Gate):
    """Admits `rate` per second on average and up to `burst` at once.

    >>> bucket = TokenBucket(rate=1.0, burst=2)
    >>> bucket.try_acquire(), bucket.try_acquire(), bucket.try_acquire()
    (True, True, False)
    """

    __slots__ = ("_states", "burst", "rate")

    @suggests_settings
    def __init__(
        self,
        rate: float,
        burst: int = 1,
        *,
        clock: Clock | Callable[[], float] | None = None,
        name: str = "bucket",
    ) -> None:
        self.rate = number("rate", rate, above=0)
        self.burst = whole("burst", burst, least=1, most=MAX_BURST)
        self.name = name
        self._states: PerClock[BucketState] = PerClock(self._make_state, clock)

    def _make_state(self, clock: Clock) -> BucketState:
        return BucketState(float(self.burst), clock)

    def try_acquire(self, n: int = 1) -> bool:
        """Take `n` tokens if they are available now. Return whether it did."""
        level = self._states.here()
        self._check(n)
        return level.section.call(self._try_take, level, n, otherwise=self._take_reentrant)

    def _try_take(self, level: BucketState, n: int) -> bool:
        level.asked = n
        try:
            now = self._refill(level, n)
            if level.tokens - sum(level.owed) < n - TOLERANCE:
                return False
            self._take(level, n, now)
            return True
        finally:
            level.asked = 0

    def _take_reentrant(self, level: BucketState, n: int) -> bool:
        """Take `n` tokens in a re-entrant call."""
        if level.spare() < n - TOLERANCE:
            return False
        level.owed.append(n)
        return True

    def acquire(self, n: int = 1, *, timeout: float | None = None) -> None:
        """Take `n` tokens, waiting for them in this thread.

        Raise TimeoutError at once if they will not be available within `timeout` or before the deadline.

        >>> import abate
        >>> with abate.testing.VirtualClock() as clock:
        ...     bucket = TokenBucket(rate=2.0)
        ...     bucket.acquire(); bucket.acquire(); clock.waits
        [0.5]
        """
        level = self._states.here()
        claim = self._reserve(level, n, timeout)
        try:
            if (wait := claim.due - level.clock.now()) > 0:
                level.clock.sleep(wait)
        except BaseException:
            self._abandon(level, claim)
            raise
        if wait > 0:
            self._tell(wait)

    async def aacquire(self, n: int = 1, *, timeout: float | None = None) -> None:
        """Take `n` tokens, waiting for them in this task; see `acquire`."""
        level = self._states.here()
        claim = self._reserve(level, n, timeout)
        try:
            if (wait := claim.due - level.clock.now()) > 0:
                await level.clock.asleep(wait)
        except BaseException:
            self._abandon(level, claim)
            raise
        if wait > 0:
            self._tell(wait)

    def _tell(self, wait: float) -> None:
        if event_sinks.installed:
            event_sinks.emit(events.Waited(self.name, wait))

    def _check(self, n: int) -> None:
        if not 1 <= n <= self.burst:
            raise ValueError(f"n must be from 1 to the burst of {self.burst}, not {n!r}")

    def _refill(self, level: BucketState, n: int) -> float:
        level.charge_owed()
        now = level.clock.now()
        if now > level.at:
            level.tokens = min(self._ceiling(n), level.tokens + (now - level.at) * self.rate)
            level.at = now
        return now

    def _ceiling(self, n: int) -> float:
        """Return the maximum number of tokens in the bucket, for a caller that wants `n`."""
        return float(self.burst)

    def _take(self, level: BucketState, n: int, now: float) -> None:
        while level.reservations and level.reservations[0].due <= now:
            level.reservations.popleft()
        level.tokens -= n

    def _reserve(self, level: BucketState, n: int, timeout: float | None) -> Reservation:
        """Take `n` tokens, now or in advance; return when they exist."""
        patience = cut_to_deadline(None if timeout is None else number("timeout", timeout, least=0))
        self._check(n)
        return level.section.call(self._reserve_locked, level, n, patience, otherwise=self._reserve_reentrant)

    def _reserve_locked(self, level: BucketState, n: int, patience: float | None) -> Reservation:
        level.asked = n
        try:
            now = self._refill(level, n)
            claim = self._due(n, level.tokens - sum(level.owed), now, patience)
            self._take(level, n, now)
            if claim.due > now:
                level.reservations.append(claim)
            return claim
        finally:
            level.asked = 0

    def _reserve_reentrant(self, level: BucketState, n: int, patience: float | None) -> Reservation:
        """Take `n` tokens in a re-entrant call."""
        now = level.clock.now()
        claim = self._due(n, level.spare(), now, patience)
        level.owed.append(n)
        if claim.due > now:
            level.section.run_or_defer(self._queue_reservation, level, claim)
        return claim

    def _queue_reservation(self, level: BucketState, claim: Reservation) -> None:
        if claim not in level.reservations:
            level.reservations.append(claim)

    def _due(self, n: int, tokens: float, now: float, patience: float | None) -> Reservation:
        wait = (n - tokens) / self.rate if n - tokens > TOLERANCE else 0.0
        if patience is not None and wait > patience:
            raise TimeoutError(f"{self.name} has no token within {patience:.3g} s: the wait is {wait:.3g} s")
        return Reservation(n, now + wait)

    def _abandon(self, level: BucketState, claim: Reservation) -> None:
        """Refund the tokens of an interrupted wait, and of interrupted waits before it, if no wait follows them."""
        claim.broken_off = True
        level.section.run_or_defer(self._refund_abandoned, level)

    def _refund_abandoned(self, level: BucketState) -> None:
        level.charge_owed()
        while level.reservations and level.reservations[-1].broken_off:
            level.tokens = min(float(self.burst), level.tokens + level.reservations[-1].n)
            del level.reservations[-1]

    def enter(self, retry: bool) -> Gate | None:
        return None if self.try_acquire() else self

    def refund(self) -> None:
        level = self._states.here()
        level.section.run_or_defer(self._add_refund, level)

    def _add_refund(self, level: BucketState) -> None:
        self._refill(level, 1)
        if level.tokens < -TOLERANCE and level.reservations:  # other waiters count on this token being taken
            level.reservations.appendleft(Reservation(1, level.reservations[0].due, broken_off=True))
        else:
            level.tokens = min(float(self.burst), level.tokens + 1)

    def apart(self) -> TokenBucket:
        if type(self) is not TokenBucket:
            return self
        return TokenBucket(self.rate, self.burst, clock=self._states.clock, name=self.name)

    def refusal(self) -> str:
        return f"more than {self.rate:g} per second"

    def _pickled_settings(self) -> dict[str, Any]:
        refuse_own_clock(self, not self._states.follows_context)
        return {"rate": self.rate, "burst": self.burst, "name": self.name}

    def __repr__(self) -> str:
        return f"TokenBucket(rate={self.rate:g}, burst={self.burst})"
