"""What calls and names in a loop say: that it sleeps, that it counts attempts, that it only logs."""

from __future__ import annotations

import ast
import re

from abate.audit.module_index import Function, inside
from abate.audit.names import Names

RETRY_WORD = re.compile(
    r"(?i)(?:^|_|\b)(?:re_?tr(?:y|ies|ied|ying)|max_?retr|attempts?|tries|backoffs?|try_?(?:num|count|no))|retry|attempt(?!ed)"
)
SLEEPS = frozenset(
    {
        "time.sleep",
        "asyncio.sleep",
        "trio.sleep",
        "anyio.sleep",
        "gevent.sleep",
        "eventlet.sleep",
        "curio.sleep",
        "sleep",
    }
)


def arguments(call: ast.Call) -> list[ast.expr]:
    """Return the expressions that a call passes."""
    return [*call.args, *[keyword.value for keyword in call.keywords]]


def is_sleep(call: ast.Call, names: Names, function: Function) -> bool:
    """Return whether a call waits, by its name."""
    last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    lower = last.lower()
    if "sleep" in lower or "backoff" in lower.replace("_", ""):
        return True
    given = arguments(call)
    if lower in ("wait", "pause", "delay") and len(given) == 1:
        return lower != "wait" or names.number(given[0], function) is not None or _says_delay(given[0])
    return False


def _says_delay(node: ast.AST) -> bool:
    text = [part.id if isinstance(part, ast.Name) else getattr(part, "attr", "") for part in inside(node)]
    return any(word in name.lower() for name in text for word in ("delay", "backoff", "interval", "wait", "sleep"))


def logs(call: ast.Call) -> bool:
    """Return whether a call only shows or counts."""
    last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return last in ("debug", "info", "warning", "error", "exception", "print", "log", "warn", "format", "str", "range")
