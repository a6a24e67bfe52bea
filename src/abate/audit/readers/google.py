"""Reads ``google.api_core.retry``: decorators and arguments of Google's clients."""

from __future__ import annotations

import math

from abate.audit.readers.given import Given
from abate.audit.retries import Retries, Wait

KINDS = ("Retry", "AsyncRetry", "StreamingRetry", "AsyncStreamingRetry")


def read(given: Given, last: str) -> Retries | None:
    """Return the retries that a ``Retry`` object sets up: bounded by time, with full jitter."""
    if last not in KINDS or "api_core" not in (given.call.name or ""):
        return None
    name = "timeout" if given.has("timeout") else "deadline"
    seconds = given.number(name, default=120.0)
    if given.is_constant(name, None):
        seconds = None
    return Retries(
        "google",
        f"google.api_core's {last}",
        given.node,
        given.function,
        attempts=math.inf,
        seconds=seconds if seconds is not None or given.is_constant(name, None) else math.nan,
        wait=Wait(
            first=given.number("initial", 1, default=1.0),
            grows=True,
            factor=given.number("multiplier", 3, default=2.0) or 2.0,
            cap=given.number("maximum", 2, default=60.0),
            jitter="some",
        ),
    )
