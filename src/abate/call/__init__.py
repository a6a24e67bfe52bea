"""One call: the policy, the machine that runs it, and its drivers for threads, tasks and blocks.

Guarantees for every call:

* at most `max_attempts` attempts, including the first, and none after the deadline;
* no sleep past the deadline, and no retry before the server's hint;
* at most one deposit, and a withdrawal that is not used is refunded;
* the original error is raised, with a report; a cancellation is raised at once;
* an error that an inner policy gave up on is not retried again;
* calls share only budget, gate and shelter.
"""

from typing import TYPE_CHECKING, Any

from abate.call.actions import Send, Stop, Wait
from abate.call.before_retry import RetryContext
from abate.call.block import Attempt, Attempts
from abate.call.layers import report
from abate.call.machine import Call
from abate.call.policy import Policy
from abate.call.worst_case import WorstCase

if TYPE_CHECKING:
    from abate.call.policy_files import load_policies

__all__ = [
    "Attempt",
    "Attempts",
    "Call",
    "Policy",
    "RetryContext",
    "Send",
    "Stop",
    "Wait",
    "WorstCase",
    "load_policies",
    "report",
]


if not TYPE_CHECKING:  # a type checker that sees `__getattr__` takes every name for Any

    def __getattr__(name: str) -> Any:
        """Import what reads TOML files on first use."""
        if name == "load_policies":
            from abate.call.policy_files import load_policies

            return load_policies
        raise AttributeError(f"module 'abate.call' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
