"""Decides when to retry: delays before retries, hints of servers, deadlines, learned timeouts and periodic work.

Everything here returns numbers; only `ticks` waits.
"""

from abate.schedule.backoff import Backoff, Jitter, Schedule, schedule
from abate.schedule.deadlines import carry_deadline, deadline, remaining
from abate.schedule.hints import pushback, retry_after
from abate.schedule.periodic import Tick, consistent_jitter, ticks

__all__ = [
    "Backoff",
    "Jitter",
    "Schedule",
    "Tick",
    "carry_deadline",
    "consistent_jitter",
    "deadline",
    "pushback",
    "remaining",
    "retry_after",
    "schedule",
    "ticks",
]


def __dir__() -> list[str]:
    return sorted(__all__)
