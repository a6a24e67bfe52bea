"""Decides whether an attempt may be sent: gates admit or refuse attempts, and never wait.

`Budget` bounds retries by successes, `TokenBucket` bounds the rate, `ConcurrencyLimit` bounds what is in flight,
`AdaptiveThrottle` refuses more the more the server refuses, `CircuitBreaker` refuses everything for a while when most
attempts fail. ``a & b`` admits what both admit. `Shelter` is not a gate: calls wait there.
"""

import importlib
from typing import TYPE_CHECKING, Any

from abate.admit.budget import Budget
from abate.admit.gate import All, Gate

if TYPE_CHECKING:
    from abate.admit.breaker import CircuitBreaker
    from abate.admit.bucket import TokenBucket
    from abate.admit.concurrency import ConcurrencyLimit
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

_ELSEWHERE = {
    "AdaptiveThrottle": "throttle",
    "CircuitBreaker": "breaker",
    "ConcurrencyLimit": "concurrency",
    "Shelter": "shelter",
    "TokenBucket": "bucket",
}


if not TYPE_CHECKING:  # a type checker that sees `__getattr__` takes every name for Any

    def __getattr__(name: str) -> Any:
        """Import what few policies need on first use."""
        if name in _ELSEWHERE:
            return getattr(importlib.import_module(f"abate.admit.{_ELSEWHERE[name]}"), name)
        raise AttributeError(f"module 'abate.admit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
