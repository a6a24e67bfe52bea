"""The worst case of a policy, computed from its settings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from abate.admit.limiter import STORM_FAILURE_RATIO
from abate.frozen import Frozen
from abate.schedule.backoff import max_total_delay

if TYPE_CHECKING:
    from abate.call.policy import Policy


class WorstCase(Frozen):
    """The worst case of a policy.

    `added_latency` is the longest wait that backoff and shelter add to one call, without hints; `amplification` is
    the most attempts per call that a busy server sees on average, to which come `reserve` retries per second.
    """

    attempts: int
    added_latency: float
    amplification: float
    reserve: float
    max_hint: float

    def __str__(self) -> str:
        plural = "" if self.attempts == 1 else "s"
        beside = "" if math.isinf(self.reserve) else f", and {self.reserve:g} retries per second beside"
        return (
            f"at most {self.attempts} attempt{plural}; at most {self.added_latency:.3g} s of waiting"
            f" (and up to {self.max_hint:g} s per retry where a server asks for it);\n"
            f"at most {self.amplification:.3g} attempts per call on average{beside}"
        )


def worst_case(policy: Policy) -> WorstCase:
    """Return the worst case of `policy`: every attempt fails, and every delay is the longest possible."""
    retries = policy.max_attempts - 1
    waits = max(max_total_delay(policy.backoff, retries), max_total_delay(policy.overload_backoff, retries))
    budget = policy.budget
    share = math.inf if budget.unlimited_balance else 1.0 + budget.ratio
    if policy.shelter is not None:
        waits += policy.shelter.patience * policy.max_attempts
        # it lets retries pass that the budget could not pay, as long as every other attempt is answered
        share = max(share, 1.0 / STORM_FAILURE_RATIO)
    return WorstCase(
        attempts=policy.max_attempts,
        added_latency=waits if policy.timeout is None else min(waits, policy.timeout),
        amplification=min(float(policy.max_attempts), share),
        reserve=budget.reserve,
        max_hint=policy.max_hint if policy.timeout is None else min(policy.max_hint, policy.timeout),
    )
