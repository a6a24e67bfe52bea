"""Whether a deadline cut an attempt short, so that its failure says nothing about the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from abate.schedule.deadlines import nearest_call_timeout

if TYPE_CHECKING:
    from abate.call.policy import Policy
    from abate.decide.outcome import Ruling

DEADLINE_TOLERANCE = 0.02
"""An attempt that times out this many seconds before its call's deadline, or later, was cut off by the deadline: a
server that knows the deadline may time out slightly earlier."""
FULL_ATTEMPT_RATIO = 0.5
"""Without `attempt_timeout`, an attempt that got this share of the policy's `timeout` had its full time."""


def ended_at_deadline(ruling: Ruling, now: float, deadline: float | None) -> bool:
    """Return whether the attempt timed out together with the deadline, as far as its ruling and the time tell."""
    if deadline is None or now < deadline - DEADLINE_TOLERANCE or ruling.answered:
        return False
    return ruling.overloaded or ruling.reason == "body"


def had_full_time(policy: Policy, allowed: float, outer_deadline: bool) -> bool:
    """Return whether the `allowed` seconds of an attempt were its full time.

    The full time is the policy's `attempt_timeout`; without one, a good part of its `timeout`, or of the timeout of a
    client's call, unless an outer deadline is nearer.
    """
    if policy.attempt_timeout is not None:
        return allowed >= policy.attempt_timeout
    full = policy.timeout
    if full is None or outer_deadline:
        full = nearest_call_timeout()
    return full is not None and allowed >= FULL_ATTEMPT_RATIO * full
