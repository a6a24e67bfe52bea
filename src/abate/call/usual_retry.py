"""The usual retry: after an error whose type alone decides, with nothing to check but the budget.

Most retries are of this kind: the policy has no gate, no shelter and no deadline, treats all failures that are worth a
retry alike, and nothing listens to events. The drivers make such retries without the machine of `abate.call.machine`,
whose construction would cost as much as a failed attempt. At the first failure of another kind they make the machine,
which goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from abate import event_sinks
from abate.call.layers import retry_serials
from abate.clock import ever_used
from abate.logs import INFO

if TYPE_CHECKING:
    from abate.call.policy import Policy
    from abate.decide.outcome import Outcome


def usual_delay(
    policy: Policy, failure: Outcome | Exception, attempts: int, since: int, previous: float | None
) -> float | None:
    """Return the delay before a usual retry; None if the machine must decide.

    `attempts` counts the failed one, and `since` is the serial of the last call that had retried when it began. The
    caller has checked that there is no deadline; the retry still needs a withdrawal from the budget.
    """
    backoff = policy.usual_backoffs.get(type(failure))
    if (
        backoff is None
        or attempts >= policy.attempt_limit
        or retry_serials.last != since
        or event_sinks.installed
        or ever_used.off
        # the level is looked up once per call; what a policy with a clock of its own does is not logged by default
        or (attempts == 1 and policy.clock is None and event_sinks.log_enabled(INFO))
    ):
        return None
    return backoff.delay(attempts, policy.random_source, previous)
