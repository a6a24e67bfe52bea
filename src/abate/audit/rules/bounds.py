"""Bounds: delays without a cap, attempts without an end."""

from __future__ import annotations

import math
from collections.abc import Iterator

from abate.audit.findings import Spot, rule
from abate.audit.program import Program
from abate.audit.rules.jitter import describe, seconds

LONG = 60.0
"""Seconds: a delay that grows beyond this needs a cap."""


@rule(
    "no-cap",
    "warning",
    "the delay grows without a cap",
    outage=(
        "The service is back, and callers still sleep for minutes or hours: the outage is over long before its effect."
    ),
    abate="Backoff(base=…, cap=30) has a cap always, and jitter at the cap",
    fixes={
        "": "cap the delay before jitter: min(cap, base * 2**n)",
        "tenacity": "pass max=… to the wait",
        "backoff": "pass max_value=…",
        "retrying": "pass wait_exponential_max=…",
        "retry": "pass max_delay=…",
    },
)
def no_cap(program: Program) -> Iterator[Spot]:
    """Find delays that grow beyond a minute without a cap."""
    for retries in program.retries:
        wait = retries.wait
        if not (wait.known and wait.grows and wait.cap == math.inf and retries.retries):
            continue
        if retries.seconds is not None and not retries.seconds > 10 * LONG:
            continue
        attempts = retries.attempts
        longest = None if attempts is None else wait.longest(min(attempts - 1, 64))
        if longest is not None and longest <= LONG:
            continue
        if longest is None and attempts is not None and attempts <= 6:
            continue
        after = f"; the last wait takes {seconds(longest)}" if longest is not None and attempts != math.inf else ""
        yield program.spot(
            retries.node,
            retries.function,
            f"{retries.label} waits {describe(retries)} without a cap{after}",
            retries.library,
        )


@rule(
    "unbounded-attempts",
    "warning",
    "attempts never end",
    outage=(
        "Every call that arrives during the outage stays and keeps retrying: load grows with its length, callers hang."
    ),
    abate=(
        "@abate.retry(on=…, max_attempts=3, timeout=…) gives up; a controller or queue "
        "retries for ever, one key at a time"
    ),
    fixes={
        "": "stop after some attempts or at a deadline, and raise the last error",
        "tenacity": "pass stop=stop_after_attempt(…) | stop_after_delay(…): without it there is no end",
        "backoff": "pass max_tries=… or max_time=…: without them there is no end",
        "retrying": "pass stop_max_attempt_number=… or stop_max_delay=…",
        "retry": "pass tries=…: the default is -1, for ever",
        "stamina": "leave attempts or timeout at its default",
        "google": "pass timeout=…: None means for ever",
        "celery": "leave max_retries at its default (3) or pass a number",
    },
)
def unbounded_attempts(program: Program) -> Iterator[Spot]:
    """Find retries without a bound in number or time."""
    for retries in program.retries:
        if retries.unbounded:
            yield program.spot(
                retries.node,
                retries.function,
                f"{retries.label} retries for ever: nothing ends it but a success",
                retries.library,
            )
