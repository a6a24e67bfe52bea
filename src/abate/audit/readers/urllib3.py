"""Reads urllib3's ``Retry``, also as it comes with requests and aiohttp-retry's options."""

from __future__ import annotations

import ast

from abate.audit.module_index import inside
from abate.audit.names import is_constant
from abate.audit.readers.given import Given
from abate.audit.retries import UNKNOWN_WAIT, Retries, Wait

SAFE = ("DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE")
ALL_METHODS = ("ANY",)


def read(given: Given, last: str) -> Retries | None:
    """Return the retries that a ``Retry`` sets up."""
    if last != "Retry":
        return None
    total = given.number("total", 0, default=10.0)
    if given.is_constant("total", None, 0):
        parts = [given.number(name, default=0.0) for name in ("connect", "read", "status", "other")]
        total = None if None in parts else max(part for part in parts if part is not None)
    if given.is_constant("total", False, 0):
        total = 0.0
    factor = given.number("backoff_factor", default=0.0)
    jitter = given.number("backoff_jitter", default=0.0)
    made = Retries(
        "urllib3",
        "urllib3's Retry",
        given.node,
        given.function,
        attempts=None if total is None else total + 1,
        # the first retry follows at once, and the second after twice the factor
        wait=Wait(
            first=factor,
            grows=factor != 0,
            cap=given.number("backoff_max", default=120.0),
            jitter="unknown" if jitter is None else "lost" if jitter else "none",
            hint=not given.is_constant("respect_retry_after_header", False),
        ),
    )
    if not factor and _sets_later("backoff_factor", given):
        made.wait = UNKNOWN_WAIT
    made.codes = given.numbers("status_forcelist")
    made.methods = _methods(given)
    return made


def _sets_later(attribute: str, given: Given) -> bool:
    """Return whether the function that makes a ``Retry`` assigns one of its attributes."""
    return any(
        isinstance(target, ast.Attribute) and target.attr == attribute
        for node in inside(given.function.node)
        if isinstance(node, ast.Assign)
        for target in node.targets
    )


def _methods(given: Given) -> tuple[str, ...] | None:
    name = "allowed_methods" if given.has("allowed_methods") else "method_whitelist"
    value = given.value(name)
    if value is None:
        return None if any(keyword.arg is None for keyword in given.node.keywords) else SAFE
    if is_constant(value.node, None) or is_constant(value.node, False):
        return ALL_METHODS
    listed = given.texts(name)
    if listed is None and isinstance(value.node, ast.BinOp):
        found = [
            part.value
            for part in ast.walk(value.node)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        listed = tuple(found) or None
    return None if listed is None else tuple(method.upper() for method in listed)


def read_options(given: Given, last: str) -> Retries | None:
    """Return the retries that the options of aiohttp-retry set up."""
    if last not in ("ExponentialRetry", "RandomRetry", "ListRetry", "FibonacciRetry", "JitterRetry"):
        return None
    random = last in ("RandomRetry", "JitterRetry")
    made = Retries(
        "aiohttp_retry",
        f"aiohttp-retry's {last}",
        given.node,
        given.function,
        attempts=given.number("attempts", 0, default=3.0),
        wait=Wait(
            first=given.number("start_timeout", 1, default=0.1),
            grows=last != "RandomRetry",
            factor=given.number("factor", 3, default=2.0) or 2.0,
            cap=given.number("max_timeout", 2, default=30.0),
            jitter="some" if random else "none",
        ),
    )
    made.codes = given.numbers("statuses")
    return made
