"""abate: retries that let the storm abate instead of feeding it.

Three decisions hide in every retry: is the failure worth another attempt (`abate.decide`), when (`abate.schedule`),
and may it be sent at all (`abate.admit`). A `Policy` holds all three for one dependency.
"""

import sys

if (
    sys.argv[:1] == ["-m"]
    and sys.orig_argv[[*sys.orig_argv, "-m"].index("-m") + 1 :][:1] == ["abate"]
    and not sys.flags.safe_path
):
    # `python -m abate` has the current directory first on its path: what lies there must not be imported instead of the
    # standard library, of an installed package, or of this one
    del sys.path[0]

import importlib
from typing import TYPE_CHECKING, Any

from abate import events
from abate.admit import Budget, Gate
from abate.call import Policy, RetryContext, report
from abate.decide import Outcome, Ruling, on_error, on_result, widen
from abate.errors import (
    AbateError,
    AttemptTimeout,
    DeadlineExceeded,
    IdleTimeout,
    LayeredRetryWarning,
    Refused,
    Report,
    RetryExhausted,
)
from abate.schedule import Backoff, carry_deadline, consistent_jitter, deadline, remaining, ticks

if TYPE_CHECKING:
    from abate import clients, observe, sim, stores, testing, work
    from abate.admit import AdaptiveThrottle, CircuitBreaker, ConcurrencyLimit, Shelter, TokenBucket
    from abate.call import load_policies
    from abate.call.hedge import Hedge
    from abate.clients.databases import retry_on_db_conflict
    from abate.decide import http
    from abate.schedule.timeouts import Timeouts
    from abate.stores import StoreError, open_store
    from abate.work import (
        Again,
        AsyncWorkQueue,
        LeaseLost,
        PermanentFailure,
        QueueFull,
        Recoverable,
        ShutDown,
        SilentSuccess,
        WorkQueue,
    )
    from abate.work.consumer import consumer
    from abate.work.controller_decorator import controller

__version__ = "0.2.0"

retry = Policy
"""`Policy` by its everyday name: ``@abate.retry(on=ConnectionError)``."""

__all__ = [
    "AbateError",
    "AdaptiveThrottle",
    "Again",
    "AsyncWorkQueue",
    "AttemptTimeout",
    "Backoff",
    "Budget",
    "CircuitBreaker",
    "ConcurrencyLimit",
    "DeadlineExceeded",
    "Gate",
    "Hedge",
    "IdleTimeout",
    "LayeredRetryWarning",
    "LeaseLost",
    "Outcome",
    "PermanentFailure",
    "Policy",
    "QueueFull",
    "Recoverable",
    "Refused",
    "Report",
    "RetryContext",
    "RetryExhausted",
    "Ruling",
    "Shelter",
    "ShutDown",
    "SilentSuccess",
    "StoreError",
    "Timeouts",
    "TokenBucket",
    "WorkQueue",
    "carry_deadline",
    "clients",
    "consistent_jitter",
    "consumer",
    "controller",
    "deadline",
    "events",
    "http",
    "load_policies",
    "observe",
    "on_error",
    "on_result",
    "open_store",
    "remaining",
    "report",
    "retry",
    "retry_on_db_conflict",
    "sim",
    "stores",
    "testing",
    "ticks",
    "widen",
    "work",
]

_PARTS = ("clients", "observe", "sim", "stores", "testing", "work")
_ELSEWHERE = {
    "AdaptiveThrottle": "abate.admit.throttle",
    "Again": "abate.work",
    "AsyncWorkQueue": "abate.work",
    "CircuitBreaker": "abate.admit.breaker",
    "ConcurrencyLimit": "abate.admit.concurrency",
    "Hedge": "abate.call.hedge",
    "LeaseLost": "abate.work",
    "PermanentFailure": "abate.work",
    "QueueFull": "abate.work",
    "Recoverable": "abate.work",
    "Shelter": "abate.admit.shelter",
    "ShutDown": "abate.work",
    "SilentSuccess": "abate.work",
    "StoreError": "abate.stores",
    "Timeouts": "abate.schedule.timeouts",
    "TokenBucket": "abate.admit.bucket",
    "WorkQueue": "abate.work",
    "consumer": "abate.work.consumer",
    "controller": "abate.work.controller_decorator",
    "http": "abate.decide",
    "load_policies": "abate.call.policy_files",
    "open_store": "abate.stores",
    "retry_on_db_conflict": "abate.clients.databases",
}


if not TYPE_CHECKING:  # a type checker that sees `__getattr__` takes every name for Any

    def __getattr__(name: str) -> Any:
        """Import what calls don't need on first use."""
        if name in _PARTS:
            return importlib.import_module(f"abate.{name}")
        if name in _ELSEWHERE:
            return getattr(importlib.import_module(_ELSEWHERE[name]), name)
        raise AttributeError(f"module 'abate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
