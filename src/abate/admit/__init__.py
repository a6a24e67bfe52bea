"""Decides whether an attempt may be sent: gates admit or refuse attempts, and never wait.

`Budget` bounds retries by successes, `TokenBucket` bounds the rate, `ConcurrencyLimit` bounds what is in flight,
`AdaptiveThrottle` refuses more the more the server refuses, `CircuitBreaker` refuses everything for a while when most
attempts fail. ``a & b`` admits what both admit. `Shelter` is not a gate: calls wait there.
"""

from abate.admit.breaker import CircuitBreaker
from abate.admit.bucket import TokenBucket
from abate.admit.budget import Budget
from abate.admit.concurrency import ConcurrencyLimit
from abate.admit.gate import All, Gate
from abate.admit.shelter import Shelter
from abate.admit.throttle import AdaptiveThrottle

__all__ = [
    "AdaptiveThrottle",
    "All",
    "Budget",
    "CircuitBreaker",
    "ConcurrencyLimit",
    "Gate",
    "Shelter",
    "TokenBucket",
]


def __dir__() -> list[str]:
    return sorted(__all__)
