"""Reads the retries of Celery's tasks and Dramatiq's actors."""

from __future__ import annotations

import ast
import math

from abate.audit.module_index import Function, inside
from abate.audit.names import Names, is_constant
from abate.audit.readers.errors import error_names
from abate.audit.readers.given import Given
from abate.audit.retries import Covered, Retries, Wait

TASKS = ("celery.shared_task", "celery.task", "celery.app.shared_task")


def is_task(name: str) -> bool:
    """Return whether a decorator makes a Celery task."""
    return name in TASKS or (
        name.endswith(".task") and ("celery" in name.lower() or name.split(".")[-2] in ("app", "celery_app"))
    )


def read_task(given: Given | None, decorator: ast.expr, function: Function, names: Names) -> Retries | None:
    """Return the retries of a Celery task, if it has any: by itself, or by calls of ``self.retry``."""
    calls = [node for node in inside(function.node) if isinstance(node, ast.Call) and _is_retry(node, function)]
    automatic = None if given is None else given.value("autoretry_for")
    if automatic is None and not calls:
        return None
    grows = given is not None and given.has("retry_backoff") and not given.is_constant("retry_backoff", False)
    delay: float | None = 180.0
    attempts: float | None = 4.0
    if given is not None:
        delay = given.number("default_retry_delay", default=180.0)
        most = given.number("max_retries", default=3.0)
        attempts = math.inf if given.is_constant("max_retries", None) else None if most is None else most + 1
    if grows:
        assert given is not None
        first = given.number("retry_backoff") or 1.0
        jitter = not given.is_constant("retry_jitter", False)
        wait = Wait(
            first=first,
            grows=True,
            cap=given.number("retry_backoff_max", default=600.0),
            jitter="some" if jitter else "none",
        )
    elif automatic is not None:
        wait = Wait(first=delay)
    else:
        # each call of self.retry may say how long to wait
        given_delay = any(keyword.arg in ("countdown", "eta", None) for call in calls for keyword in call.keywords)
        wait = Wait(known=False, jitter="unknown") if given_delay else Wait(first=delay)
    errors = None if automatic is None else tuple(error_names(automatic.node, automatic.function, names))
    made = Retries(
        "celery", f"the Celery task {function.name}", decorator, function, attempts=attempts, wait=wait, errors=errors
    )
    made.covered.append(Covered(function))
    return made


def _is_retry(call: ast.Call, function: Function) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id=owner), attr="retry"):
            return owner in (next(iter(function.parameters), None), function.name, "current_task")
    return False


def read_actor(given: Given | None, decorator: ast.expr, function: Function) -> Retries | None:
    """Return the retries of a Dramatiq actor: twenty by default."""
    attempts: float | None = 21.0
    least: float | None = 15.0
    cap: float | None = 7 * 86400.0
    if given is not None:
        most = given.number("max_retries", default=20.0)
        attempts = None if most is None else most + 1
        milliseconds = given.number("min_backoff", default=15_000.0)
        least = None if milliseconds is None else milliseconds / 1000
        milliseconds = given.number("max_backoff", default=7 * 86_400_000.0)
        cap = None if milliseconds is None else milliseconds / 1000
        if given.has("retry_when"):
            attempts = None
    wait = Wait(first=least, grows=True, cap=cap, jitter="some")
    made = Retries("dramatiq", f"the Dramatiq actor {function.name}", decorator, function, attempts=attempts, wait=wait)
    made.by_default = given is None or (not is_constant(given.node, None) and not given.has("max_retries"))
    made.covered.append(Covered(function))
    return made
