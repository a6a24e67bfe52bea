"""Decorrelated jitter as AWS published it, for scenarios that reproduce AWS's figures."""

from __future__ import annotations

from abate.errors import number
from abate.frozen import Frozen
from abate.schedule.backoff import RandomSource

AWS_DECORRELATED = "aws-decorrelated"
"""The name of this jitter in scenarios."""


class AwsDecorrelated(Frozen):
    """Decorrelated jitter as AWS published it: drawn from [base, 3 * previous] first, and capped afterwards.

    Delays above the cap become the cap itself, so that clients which have waited long return together. `Backoff` caps
    first, and draws below the cap.

    >>> import random
    >>> delays = AwsDecorrelated(base=0.005, cap=2.0)
    >>> delays.delay(9, random.Random(1), previous=100.0)
    2.0
    >>> 0.005 <= delays.delay(1, random.Random(1)) <= 0.015
    True
    """

    base: float = 0.2
    cap: float = 30.0
    jittered = True

    def validate(self) -> None:
        number("base", self.base, above=0)
        if number("cap", self.cap, above=0) < self.base:
            raise ValueError(f"cap must be at least the base of {self.base!r}, not {self.cap!r}")

    def delay(self, retry: int, rng: RandomSource, previous: float | None = None) -> float:
        """Return the seconds to wait before this retry."""
        last = self.base if previous is None else previous
        return min(self.cap, self.base + (3.0 * last - self.base) * rng.random())

    def ceiling(self, retry: int) -> float:
        """Return the longest possible delay of this retry."""
        ceiling = self.base
        for _ in range(retry):
            ceiling *= 3.0
            if ceiling >= self.cap:
                return self.cap
        return ceiling

    def at_least(self, base: float) -> AwsDecorrelated:
        """Return the same schedule with at least this base, as far as the cap allows."""
        wider = min(base, self.cap)
        return self if self.base >= wider else AwsDecorrelated(wider, self.cap)
