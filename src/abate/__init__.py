"""abate: retries that let the storm abate instead of feeding it.

Three decisions hide in every retry: is the failure worth another attempt (`abate.decide`), when (`abate.schedule`),
and may it be sent at all (`abate.admit`). A `Policy` holds all three for one dependency.
"""

import importlib
from typing import TYPE_CHECKING, Any

from abate import events
from abate.admit import Budget, Gate, Permits, Throttle, TokenBucket
from abate.call import Policy, load_policies, report
from abate.decide import Outcome, Ruling, http, on_error, on_result, widen
from abate.errors import AbateError, AttemptTimeout, LayeredRetryWarning, Refused, Report, RetryExhausted
from abate.schedule import Backoff, consistent_jitter, deadline, remaining, ticks

if TYPE_CHECKING:
    from abate import observe, testing

__version__ = "0.1.0"

retry = Policy
"""`Policy` by its everyday name: ``@abate.retry(on=ConnectionError)``."""

__all__ = [
    "AbateError",
    "AttemptTimeout",
    "Backoff",
    "Budget",
    "Gate",
    "LayeredRetryWarning",
    "Outcome",
    "Permits",
    "Policy",
    "Refused",
    "Report",
    "RetryExhausted",
    "Ruling",
    "Throttle",
    "TokenBucket",
    "consistent_jitter",
    "deadline",
    "events",
    "http",
    "load_policies",
    "observe",
    "on_error",
    "on_result",
    "remaining",
    "report",
    "retry",
    "testing",
    "ticks",
    "widen",
]

_ON_DEMAND = ("observe", "testing")


def __getattr__(name: str) -> Any:
    """Import the parts that calls don't need when somebody asks for them."""
    if name in _ON_DEMAND:
        return importlib.import_module(f"abate.{name}")
    raise AttributeError(f"module 'abate' has no attribute {name!r}")
