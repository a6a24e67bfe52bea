"""Reads tenacity: decorators, ``Retrying`` objects, their stop and wait strategies and conditions."""

from __future__ import annotations

import ast
import math

from abate.audit.module_index import Function
from abate.audit.names import Names, argument
from abate.audit.readers.errors import error_names
from abate.audit.readers.given import Given
from abate.audit.retries import NO_WAIT, UNKNOWN_WAIT, Jitter, Retries, Wait

RETRYING = frozenset({"retry", "Retrying", "AsyncRetrying", "TornadoRetrying"})
ANY = ("Exception",)


def read(given: Given, last: str) -> Retries | None:
    """Return the retries that a call of tenacity sets up."""
    if last not in RETRYING:
        return None
    label = "tenacity's @retry" if last == "retry" else f"tenacity's {last}"
    attempts, seconds = _stop(given, given.value("stop", 1 if last != "retry" else None))
    unpacked = any(keyword.arg is None for keyword in given.node.keywords)
    wait = given.value("wait", 2 if last != "retry" else None)
    if wait is None:
        waits = UNKNOWN_WAIT if unpacked else NO_WAIT
    else:
        waits = _wait(wait.node, wait.function, given.names)
    condition = given.value("retry")
    if condition is None:
        errors: tuple[str, ...] | None = None if unpacked else ANY
    else:
        errors = _errors(condition.node, condition.function, given.names)
    if attempts is math.inf and unpacked:
        attempts = None
    made = Retries(
        "tenacity", label, given.node, given.function, attempts=attempts, wait=waits, seconds=seconds, errors=errors
    )
    if condition is not None and isinstance(condition.node, ast.Call):
        made.polls = _last(condition.node.func, condition.function, given.names) == "retry_if_result"
    return made


def bare(label_node: ast.expr, function: Function) -> Retries:
    """Return the retries of ``@retry`` without arguments: for ever, of every exception, without a wait."""
    return Retries("tenacity", "tenacity's @retry", label_node, function, attempts=math.inf, wait=NO_WAIT, errors=ANY)


def _last(node: ast.AST, function: Function, names: Names) -> str:
    return (names.resolve(node, function) or "").removesuffix("()").rpartition(".")[2]


def _stop(given: Given, value: object) -> tuple[float | None, float | None]:
    """Return the attempts and the seconds after which it stops."""
    if value is None:
        return math.inf, None
    return _bounds(value.node, value.function, given.names)  # type: ignore[attr-defined]


def _bounds(node: ast.AST, function: Function, names: Names) -> tuple[float | None, float | None]:
    node, function = names.follow(node, function)
    match node:
        case ast.BinOp(left=left, op=operator, right=right):
            both = [_bounds(left, function, names), _bounds(right, function, names)]
            return _joined(both, isinstance(operator, ast.BitOr))
        case ast.Call(func=called, args=arguments):
            last = _last(called, function, names)
            if last == "stop_after_attempt":
                return names.number(argument(node, "max_attempt_number", 0), function), None
            if last in ("stop_after_delay", "stop_before_delay"):
                seconds = names.number(argument(node, "max_delay", 0), function)
                return math.inf, math.nan if seconds is None else seconds
            if last in ("stop_any", "stop_all"):
                return _joined([_bounds(one, function, names) for one in arguments], last == "stop_any")
    return (math.inf, None) if _last(node, function, names) in ("stop_never", "_stop_never") else (None, None)


def _joined(bounds: list[tuple[float | None, float | None]], either: bool) -> tuple[float | None, float | None]:
    attempts = [count for count, _ in bounds if count != math.inf] if either else [count for count, _ in bounds]
    seconds = [limit for _, limit in bounds if limit is not None]
    if not attempts:
        count: float | None = math.inf
    else:
        known = [one for one in attempts if one is not None]
        count = None if len(known) < len(attempts) and not (either and known) else (min if either else max)(known)
    return count, (min(seconds) if either and seconds else None)


def _wait(node: ast.AST, function: Function, names: Names) -> Wait:
    node, function = names.follow(node, function)
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sum([_wait(left, function, names), _wait(right, function, names)])
        case ast.Call():
            return _strategy(node, function, names)
        case ast.IfExp(body=body):
            return _wait(body, function, names)
    return NO_WAIT if _last(node, function, names) == "wait_none" else UNKNOWN_WAIT


def _strategy(node: ast.Call, function: Function, names: Names) -> Wait:
    last = _last(node.func, function, names)

    def number(name: str, position: int, default: float | None) -> float | None:
        given = argument(node, name, position)
        return default if given is None else names.number(given, function)

    match last:
        case "wait_fixed":
            return Wait(first=number("wait", 0, None))
        case "wait_none":
            return NO_WAIT
        case "wait_random":
            return Wait(first=number("max", 1, 1.0), jitter="some")
        case "wait_incrementing":
            return Wait(first=number("start", 0, 0.0), grows=True, factor=1.0, cap=number("max", 2, math.inf))
        case "wait_exponential":
            least, first = number("min", 3, 0.0), number("multiplier", 0, 1.0)
            # from the second retry on it grows by its base
            start = None if first is None or least is None else max(first, least)
            return Wait(
                first=start, grows=True, factor=number("exp_base", 2, 2.0) or 2.0, cap=number("max", 1, math.inf)
            )
        case "wait_random_exponential" | "wait_full_jitter":
            return Wait(first=number("multiplier", 0, 1.0), grows=True, cap=number("max", 1, math.inf), jitter="some")
        case "wait_exponential_jitter":
            jitter: Jitter = "none" if number("jitter", 3, 1.0) == 0 else "lost"
            first = number("initial", 0, number("multiplier", 0, 1.0))
            return Wait(first=first, grows=True, cap=number("max", 1, math.inf), jitter=jitter)
        case "wait_combine" if node.args:
            return _sum([_wait(one, function, names) for one in node.args])
        case "wait_chain":
            return _chain(node, function, names)
    return UNKNOWN_WAIT


def _chain(node: ast.Call, function: Function, names: Names) -> Wait:
    parts: list[ast.expr] = []
    for one in node.args:
        one = one.value if isinstance(one, ast.Starred) else one
        if isinstance(one, ast.BinOp):
            parts += [one.left, one.right]
        else:
            parts.append(one)
    strategies = [part for one in parts for part in _listed(one)]
    waits = [_wait(one, function, names) for one in strategies]
    if not waits or not all(wait.known for wait in waits):
        return UNKNOWN_WAIT
    last = waits[-1]
    return Wait(
        first=waits[0].first, grows=len(waits) > 1, cap=last.first if not last.grows else last.cap, jitter=last.jitter
    )


def _listed(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [part for item in items for part in _listed(item)]
        case ast.ListComp(elt=item) | ast.GeneratorExp(elt=item):
            return [item]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _listed(left) + _listed(right)
        case ast.BinOp(left=left, op=ast.Mult()):
            return _listed(left)
        case ast.Starred(value=value):
            return _listed(value)
    return [node]


def _sum(waits: list[Wait]) -> Wait:
    kinds = {wait.jitter for wait in waits}
    known = all(wait.known for wait in waits)
    jitter: Jitter = "none"
    if "some" in kinds:
        jitter = "some"
    elif "unknown" in kinds or not known:
        jitter = "unknown"
    elif "lost" in kinds:
        jitter = "lost"
    growing = next((wait for wait in waits if wait.grows), waits[0])
    firsts = [wait.first for wait in waits]
    first = None if None in firsts else sum(one for one in firsts if one is not None)
    return Wait(first=first, grows=growing.grows, factor=growing.factor, cap=growing.cap, jitter=jitter, known=known)


def _errors(node: ast.AST, function: Function, names: Names) -> tuple[str, ...] | None:
    """Return the errors that a condition retries; None if a predicate decides."""
    node, function = names.follow(node, function)
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            both = (_errors(left, function, names), _errors(right, function, names))
            return None if None in both else (both[0] or ()) + (both[1] or ())
        case ast.BinOp(op=ast.BitAnd()):
            return None
        case ast.Call(func=called):
            last = _last(called, function, names)
            given = argument(node, "exception_types", 0)
            if last == "retry_if_exception_type":
                return ANY if given is None else tuple(error_names(given, function, names))
            if last in ("retry_any",):
                parts = [_errors(one, function, names) for one in node.args]
                return None if None in parts else tuple(name for part in parts for name in part or ())
    return None
