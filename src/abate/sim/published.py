"""Schedules as others have published them, for scenarios that reproduce their figures; production has better ones."""

from __future__ import annotations

from abate.errors import number
from abate.schedule.backoff import Uniform
from abate.values import Value

AWS_DECORRELATED = "aws-decorrelated"
"""What a scenario calls the jitter of `AwsDecorrelated`."""


class AwsDecorrelated(Value):
    """Decorrelated jitter as AWS published it: drawn from [base, 3 * previous] first, and capped afterwards.

    Whatever is drawn above the cap becomes the cap itself, so clients that have waited long come back together. A
    `Backoff` caps first, and draws below that.

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

    def checked(self) -> None:
        number("base", self.base, above=0)
        if number("cap", self.cap, above=0) < self.base:
            raise ValueError(f"cap must be at least the base of {self.base!r}, not {self.cap!r}")

    def delay(self, retry: int, rng: Uniform, previous: float | None = None) -> float:
        """Seconds to wait before this retry."""
        last = self.base if previous is None else previous
        return min(self.cap, self.base + (3.0 * last - self.base) * rng.random())

    def ceiling(self, retry: int) -> float:
        """The most that `delay` may answer for this retry."""
        ceiling = self.base
        for _ in range(retry):
            ceiling *= 3.0
            if ceiling >= self.cap:
                return self.cap
        return ceiling

    def at_least(self, base: float) -> AwsDecorrelated:
        """The same, starting no lower than `base` (as far as the cap allows)."""
        wider = min(base, self.cap)
        return self if self.base >= wider else AwsDecorrelated(wider, self.cap)
