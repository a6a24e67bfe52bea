"""Reads two small libraries: retrying, and retry (also as retry2 or reretry)."""

from __future__ import annotations

import ast
import math

from abate.audit.module_index import Function
from abate.audit.readers.errors import error_names
from abate.audit.readers.given import Given
from abate.audit.retries import NO_WAIT, UNKNOWN_WAIT, Retries, Wait

ANY = ("Exception",)


def bare(library: str, node: ast.expr, function: Function) -> Retries:
    """Return the retries of ``@retry`` without arguments: for ever, of every exception, without a wait."""
    return Retries(library, f"{library}'s @retry", node, function, attempts=math.inf, wait=NO_WAIT, errors=ANY)


def read_retrying(given: Given, last: str) -> Retries | None:
    """Return the retries that a call of retrying sets up. Its times are milliseconds."""
    if last not in ("retry", "Retrying"):
        return None
    attempts = given.number("stop_max_attempt_number", default=math.inf)
    seconds = given.number("stop_max_delay", default=math.inf)
    condition = given.has("retry_on_exception") or given.has("retry_on_result")
    return Retries(
        "retrying",
        "retrying's @retry" if last == "retry" else "retrying's Retrying",
        given.node,
        given.function,
        attempts=attempts,
        seconds=None if seconds == math.inf else math.nan if seconds is None else seconds / 1000,
        wait=_wait(given),
        errors=None if condition else ANY,
    )


def _wait(given: Given) -> Wait:
    def seconds(name: str, default: float) -> float | None:
        value = given.number(name, default=default)
        return None if value is None else value / 1000

    if given.has("wait_func") or given.has("wait"):
        return UNKNOWN_WAIT
    random = given.has("wait_random_min") or given.has("wait_random_max") or given.has("wait_jitter_max")
    if given.has("wait_exponential_multiplier") or given.has("wait_exponential_max"):
        return Wait(
            first=seconds("wait_exponential_multiplier", 1.0),
            grows=True,
            cap=seconds("wait_exponential_max", math.inf),
            jitter="some" if random else "none",
        )
    if given.has("wait_incrementing_start") or given.has("wait_incrementing_increment"):
        return Wait(
            first=seconds("wait_incrementing_start", 0.0), grows=True, factor=1.0, jitter="some" if random else "none"
        )
    if given.has("wait_fixed"):
        return Wait(first=seconds("wait_fixed", 1000.0), jitter="some" if random else "none")
    return Wait(first=seconds("wait_random_max", 1000.0), jitter="some") if random else NO_WAIT


def read_retry(given: Given, last: str) -> Retries | None:
    """Return the retries that a call of retry sets up."""
    if last not in ("retry", "retry_call"):
        return None
    shift = 3 if last == "retry_call" else 0
    on = given.value("exceptions", shift)
    tries = given.number("tries", shift + 1, default=-1.0)
    factor = given.number("backoff", shift + 4, default=1.0)
    delay = given.number("delay", shift + 2, default=0.0)
    jitter = given.value("jitter", shift + 5)
    cap = given.number("max_delay", shift + 3, default=math.inf)
    spread = jitter is not None and isinstance(jitter.node, ast.Tuple)
    return Retries(
        "retry",
        f"retry's {'@retry' if last == 'retry' else last}",
        given.node,
        given.function,
        attempts=math.inf if tries is not None and tries < 0 else tries,
        wait=Wait(
            first=delay,
            grows=factor is None or factor > 1,
            factor=factor or 1.0,
            cap=cap,
            jitter=("some" if cap == math.inf else "lost") if spread else "none",
        ),
        errors=ANY if on is None else tuple(error_names(on.node, on.function, given.names)),
    )
