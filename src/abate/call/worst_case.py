"""The worst case of a policy, computed from its settings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from abate.events import FAILURE_KINDS
from abate.frozen import Frozen
from abate.schedule.backoff import MAX_DELAYS, max_total_delay

if TYPE_CHECKING:
    from abate.call.policy import Policy


class WorstCase(Frozen):
    """The worst case of a policy.

    `added_latency` is the longest wait that backoff and shelter add to one call, without hints; `amplification` is
    the most attempts per call that a busy server sees on average, plus `reserve` retries per second.
    `attempts` is None if only time bounds them.
    """

    attempts: int | None
    added_latency: float
    amplification: float
    reserve: float
    max_hint: float

    def __str__(self) -> str:
        if self.attempts is None:
            attempts = "as many attempts as there is time for"
        else:
            attempts = f"at most {self.attempts} attempt{'' if self.attempts == 1 else 's'}"
        beside = "" if math.isinf(self.reserve) else f", plus {self.reserve:g} retries per second"
        return (
            f"{attempts}; at most {self.added_latency:.3g} s of waiting"
            f" (and up to {self.max_hint:g} s per retry where a server asks for it);\n"
            f"at most {self.amplification:.3g} attempts per call on average{beside}"
        )


def worst_case(policy: Policy) -> WorstCase:
    """Return the worst case of `policy`: every attempt fails, and every delay is the longest possible."""
    limit = _attempt_limit(policy)
    waits = math.inf if limit is None else _longest_waits(policy, limit - 1)
    most = math.inf if limit is None else float(limit)
    budget = policy.budget
    share = math.inf if budget.unlimited_balance else 1.0 + budget.ratio
    if policy.shelter is not None:
        from abate.admit.limiter import STORM_FAILURE_RATIO

        waits += policy.shelter.patience * most
        # it lets retries pass that the budget could not pay, as long as every other attempt is answered
        share = max(share, 1.0 / STORM_FAILURE_RATIO)
    return WorstCase(
        attempts=limit,
        added_latency=waits if policy.timeout is None else min(waits, policy.timeout),
        amplification=min(most, share),
        reserve=budget.reserve,
        max_hint=policy.max_hint if policy.timeout is None else min(policy.max_hint, policy.timeout),
    )


def _attempt_limit(policy: Policy) -> int | None:
    """Return the most attempts of one call, whatever the kinds of its failures."""
    by_kind = policy.max_attempts_by_kind
    if len(by_kind) < len(FAILURE_KINDS):
        return policy.max_attempts
    # each kind but the one that ends the call may be one failure short of its bound
    mixed = sum(bound - 1 for bound in by_kind.values()) + 1
    return mixed if policy.max_attempts is None else min(policy.max_attempts, mixed)


def _longest_waits(policy: Policy, retries: int) -> float:
    """Return the most seconds that the retries of one call wait in total, in the worst order of their kinds."""
    plans = {"blip": policy.backoff, "overload": policy.overload_backoff}
    most = {kind: min(retries, policy.max_attempts_by_kind.get(kind, retries + 1) - 1) for kind in plans}
    if set(most.values()) == {retries} or retries > MAX_DELAYS:
        return max(max_total_delay(plan, retries) for plan in plans.values())
    blips = [policy.backoff.ceiling(retry) for retry in range(1, retries + 1)]
    wider = sorted(
        (policy.overload_backoff.ceiling(retry) - blip for retry, blip in enumerate(blips, start=1)), reverse=True
    )
    fewest = retries - most["blip"]  # these retries can only follow overloads
    gains = [gain for place, gain in enumerate(wider[: most["overload"]]) if gain > 0.0 or place < fewest]
    return math.fsum(blips) + math.fsum(gains)
