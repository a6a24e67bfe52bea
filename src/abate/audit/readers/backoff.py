"""Reads backoff: ``on_exception`` and ``on_predicate``."""

from __future__ import annotations

import math

from abate.audit.names import is_constant
from abate.audit.readers.errors import error_names
from abate.audit.readers.given import Given
from abate.audit.retries import UNKNOWN_WAIT, Jitter, Retries, Wait


def read(given: Given, last: str) -> Retries | None:
    """Return the retries that a decorator of backoff sets up."""
    if last not in ("on_exception", "on_predicate"):
        return None
    errors = None
    if last == "on_exception" and (on := given.value("exception", 1)) is not None:
        errors = tuple(error_names(on.node, on.function, given.names))
    made = Retries(
        "backoff",
        f"backoff's @{last}",
        given.node,
        given.function,
        attempts=given.number("max_tries", default=math.inf),
        seconds=math.nan if given.value("max_time") is not None and not given.is_constant("max_time", None) else None,
        wait=_wait(given),
        errors=errors,
    )
    if made.seconds is not None:
        made.seconds = given.number("max_time", default=math.nan) or math.nan
    if given.has("giveup"):
        made.errors = None  # a predicate decides which of them
    return made


def _wait(given: Given) -> Wait:
    generator = given.value("wait_gen", 0)
    if generator is None:
        return UNKNOWN_WAIT
    name = (given.names.resolve(generator.node, generator.function) or "").rpartition(".")[2]
    jitter: Jitter = "some"
    chosen = given.value("jitter")
    if chosen is not None:
        jitter = "none" if is_constant(chosen.node, None) else "some"
    cap = given.number("max_value", default=math.inf)
    match name:
        case "expo":
            first = given.number("factor", default=1.0)
            return Wait(
                first=first, grows=True, factor=given.number("base", default=2.0) or 2.0, cap=cap, jitter=jitter
            )
        case "fibo":
            return Wait(first=1.0, grows=True, factor=1.6, cap=cap, jitter=jitter)
        case "constant":
            return Wait(first=given.number("interval", default=1.0), jitter=jitter)
        case "runtime":
            return Wait(known=False, jitter=jitter, hint=True)
    return Wait(known=False, jitter="unknown" if jitter == "none" else jitter)
