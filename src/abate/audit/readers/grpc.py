"""Reads gRPC service configs in channel options: JSON with a ``retryPolicy``."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from typing import Any

from abate.audit.readers.given import Given
from abate.audit.retries import Retries, Wait

MOST = 5
"""gRPC makes at most this many attempts, whatever a policy says."""


def read(given: Given, last: str) -> Retries | None:
    """Return the retries that ``json.dumps`` of a service config sets up."""
    if last != "dumps" or not given.node.args:
        return None
    value = given.names.follow(given.node.args[0], given.function)
    policies = list(_policies(value.node))
    if not policies:
        return None
    made = _retries(given, policies[0])
    return made


def read_text(text: str) -> dict[str, Any] | None:
    """Return the first retry policy in the JSON of a service config."""
    try:
        config = json.loads(text)
        methods = config.get("methodConfig", [])
        return next((method["retryPolicy"] for method in methods if "retryPolicy" in method), None)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None


def _policies(node: ast.AST) -> Iterator[dict[str, Any]]:
    for part in ast.walk(node):
        if isinstance(part, ast.Dict):
            for key, value in zip(part.keys, part.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "retryPolicy" and isinstance(value, ast.Dict):
                    yield {
                        str(name.value): _plain(given)
                        for name, given in zip(value.keys, value.values, strict=True)
                        if isinstance(name, ast.Constant)
                    }


def _plain(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        return None


def _retries(given: Given, policy: dict[str, Any]) -> Retries:
    attempts = policy.get("maxAttempts")
    made = Retries(
        "grpc",
        "gRPC's service config",
        given.node,
        given.function,
        attempts=float(min(attempts, MOST)) if isinstance(attempts, int) else None,
        wait=Wait(
            first=_seconds(policy.get("initialBackoff")),
            grows=True,
            factor=policy["backoffMultiplier"] if isinstance(policy.get("backoffMultiplier"), int | float) else 2.0,
            cap=_seconds(policy.get("maxBackoff")),
            jitter="some",
            hint=True,
        ),
    )
    codes = policy.get("retryableStatusCodes")
    made.errors = tuple(f"grpc.StatusCode.{code}" for code in codes) if isinstance(codes, list | tuple) else None
    return made


def _seconds(text: object) -> float | None:
    try:
        return float(str(text).removesuffix("s"))
    except ValueError:
        return None
