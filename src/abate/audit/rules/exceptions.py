"""What is caught around a retry: everything, or even cancellation."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from abate.audit.findings import Spot, rule
from abate.audit.module_index import inside
from abate.audit.program import Program
from abate.audit.readers.errors import caught, decides
from abate.audit.retries import EVERYTHING, Retries

CANCELLATION = frozenset(
    {
        "BaseException", "KeyboardInterrupt", "SystemExit", "GeneratorExit", "asyncio.CancelledError", "trio.Cancelled",
        "asyncio.exceptions.CancelledError", "concurrent.futures.CancelledError", "builtins.BaseException",
    }
)  # fmt: skip
WHAT_TO_CATCH = (
    "@abate.retry(on=(ConnectionError, TimeoutError, abate.http.transient)): "
    "`on` is mandatory, so nothing is retried by accident"
)


@rule(
    "broad-except",
    "warning",
    "every error is retried",
    outage=(
        "What can never succeed is repeated as well (bugs, bad input, 401, quota), and adds to the load of what could."
    ),
    abate=WHAT_TO_CATCH,
    fixes={
        "": "catch the errors that another attempt may cure: connection errors, timeouts, 429, 502, 503, 504",
        "tenacity": (
            "pass retry=retry_if_exception_type((ConnectionError, TimeoutError, …)): the default is any Exception"
        ),
        "backoff": "name the errors in @on_exception, or pass giveup=…",
        "retrying": "pass retry_on_exception=…: the default is any exception",
        "retry": "pass exceptions=(…): the default is Exception",
        "stamina": "name the errors in on=…",
        "celery": "name the errors in autoretry_for=(…)",
        "abate": "name the errors in on=…",
    },
)
def broad_except(program: Program) -> Iterator[Spot]:
    """Find retries of Exception, of BaseException, and behind a bare ``except``."""
    for retries in program.retries:
        if not retries.retries:
            continue
        if retries.library == "loop":
            for handler in retries.swallows:
                names = caught(handler, retries.function, program.names)
                if EVERYTHING.isdisjoint(names) or decides(handler):
                    continue
                what = "any error" if handler.type is None else next(name for name in names if name in EVERYTHING)
                yield program.spot(handler, retries.function, f"{retries.label} retries {what}, bugs included", "loop")
        elif retries.errors is not None and not EVERYTHING.isdisjoint(retries.errors):
            yield program.spot(
                retries.node, retries.function, f"{retries.label} retries any Exception, bugs included", retries.library
            )


@rule(
    "cancellation-caught",
    "error",
    "a retry catches cancellation",
    outage=(
        "Shutdowns and timeouts can't end the call: it keeps retrying after its caller has gone, until it is killed."
    ),
    abate="@abate.retry never catches BaseException: cancellation, KeyboardInterrupt and SystemExit pass at once",
    fixes={
        "": "catch Exception at most, and raise cancellation again: except asyncio.CancelledError: raise",
        "tenacity": "retry_if_exception_type must not name BaseException or CancelledError",
    },
)
def cancellation_caught(program: Program) -> Iterator[Spot]:
    """Find handlers and conditions that retry after cancellation or an interrupt."""
    for retries in program.retries:
        for handler in retries.swallows:
            names = CANCELLATION.intersection(caught(handler, retries.function, program.names))
            if names and not decides(handler) and not _passed_on_before(retries, handler, program):
                what = "a bare except catches" if handler.type is None else f"{min(names)} is caught:"
                yield program.spot(
                    handler,
                    retries.function,
                    f"{what} cancellation and interrupts, and {retries.label} goes on",
                    "loop",
                )
        if not retries.swallows and retries.errors is not None and not CANCELLATION.isdisjoint(retries.errors):
            yield program.spot(
                retries.node, retries.function, f"{retries.label} retries cancellation and interrupts", retries.library
            )


def _passed_on_before(retries: Retries, handler: ast.ExceptHandler, program: Program) -> bool:
    """Return whether a handler before this one takes cancellation or an interrupt out."""
    for node in inside(retries.node):
        if isinstance(node, ast.Try | ast.TryStar) and handler in node.handlers:
            before = node.handlers[: node.handlers.index(handler)]
            return any(not CANCELLATION.isdisjoint(caught(one, retries.function, program.names)) for one in before)
    return False
