"""Reads stamina: its decorator, its block form and its callers."""

from __future__ import annotations

import math

from abate.audit.readers.errors import error_names
from abate.audit.readers.given import Given
from abate.audit.retries import Retries, Wait


def read(given: Given, last: str) -> Retries | None:
    """Return the retries that a call of stamina sets up."""
    if last not in ("retry", "retry_context", "RetryingCaller", "AsyncRetryingCaller"):
        return None
    caller = last.endswith("Caller")
    attempts = given.number("attempts", 0 if caller else None, default=10.0)
    seconds = given.number("timeout", 1 if caller else None, default=45.0)
    if given.is_constant("attempts", None):
        attempts = math.inf
    if given.is_constant("timeout", None):
        seconds = None
    jitter = given.number("wait_jitter", default=1.0)
    wait = Wait(
        first=given.number("wait_initial", default=0.1),
        grows=True,
        factor=given.number("wait_exp_base", default=2.0) or 2.0,
        cap=given.number("wait_max", default=5.0),
        jitter="unknown" if jitter is None else "lost" if jitter else "none",
    )
    on = given.value("on", None if caller else 0)
    errors = None if on is None else tuple(error_names(on.node, on.function, given.names))
    return Retries(
        "stamina",
        f"stamina's {'@retry' if last == 'retry' else last}",
        given.node,
        given.function,
        attempts=attempts,
        seconds=seconds,
        wait=wait,
        errors=errors,
    )
