"""Reads abate's own policies: settings that take their defaults away."""

from __future__ import annotations

import ast
import math

from abate.audit.readers.errors import error_names
from abate.audit.readers.given import Given
from abate.audit.retries import Retries, Wait


def read(given: Given, last: str) -> Retries | None:
    """Return the retries that a policy sets up."""
    if last not in ("retry", "Policy"):
        return None
    on = given.value("on")
    timeout = given.number("timeout", default=math.inf)
    made = Retries(
        "abate",
        "abate's @retry" if last == "retry" else "abate's Policy",
        given.node,
        given.function,
        attempts=given.number("max_attempts", default=3.0),
        seconds=None if timeout == math.inf else math.nan if timeout is None else timeout,
        wait=_wait(given),
        errors=None if on is None else tuple(error_names(on.node, on.function, given.names)),
    )
    if given.is_constant("max_attempts", None):
        made.attempts = math.inf
    made.budget = not given.is_constant("budget", None)
    return made


def _wait(given: Given) -> Wait:
    value = given.value("backoff")
    if value is None:
        return Wait(first=0.2, grows=True, cap=30.0, jitter="some", hint=True)
    node, function = value
    name = given.names.resolve(node, function) or ""
    if not isinstance(node, ast.Call) or not name.endswith("Backoff()"):
        return Wait(known=False, jitter="unknown", hint=True)
    jitter = next((keyword.value for keyword in node.keywords if keyword.arg == "jitter"), None)
    spread = not (isinstance(jitter, ast.Constant) and jitter.value == "none")
    cap = next((given.names.number(keyword.value, function) for keyword in node.keywords if keyword.arg == "cap"), 30.0)
    first = next(
        (given.names.number(keyword.value, function) for keyword in node.keywords if keyword.arg == "base"), 0.2
    )
    return Wait(first=first, grows=True, cap=cap, jitter="some" if spread else "none", hint=True)
