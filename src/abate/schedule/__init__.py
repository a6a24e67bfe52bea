"""When: the delay before a retry, the hint of a server, the deadline, the beat of periodic work.

Everything here returns numbers; nothing but `ticks` waits.
"""

from abate.schedule.backoff import Backoff, Jitter, Schedule, schedule
from abate.schedule.beat import Tick, consistent_jitter, ticks
from abate.schedule.deadlines import carry_deadline, deadline, remaining
from abate.schedule.hints import pushback, retry_after

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
