"""How statements are left: by falling through, or by return, raise, break or continue."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from abate.audit.module_index import FunctionNode, Loop

FALL = "fall"
TryNode = ast.Try | ast.TryStar
EXITS = ("exit", "_exit", "quit")


def ways_out(statements: Sequence[ast.stmt]) -> set[str]:
    """Return how these statements may be left: fall, return, raise, break, continue."""
    found: set[str] = set()
    for statement in statements:
        ways = _ways(statement)
        found |= ways - {FALL}
        if FALL not in ways:
            return found
    return found | {FALL}


def _ways(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
            return {type(statement).__name__.lower()}
        case ast.If(body=body, orelse=other):
            return ways_out(body) | ways_out(other)
        case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
            ways = ways_out(body)
            if FALL in ways and any("reraise" in _called(item.context_expr) for item in items):
                return (ways - {FALL}) | {"raise"}  # oslo's save_and_reraise_exception()
            return ways
        case ast.Try() | ast.TryStar():
            return _ways_of_try(statement)
        case ast.For(body=body) | ast.AsyncFor(body=body):
            return (ways_out(body) - {"break", "continue"}) | {FALL}
        case ast.While(test=test, body=body):
            inner = ways_out(body)
            ends = not (isinstance(test, ast.Constant) and test.value) or "break" in inner
            return (inner - {"break", "continue", FALL}) | ({FALL} if ends else set())
        case ast.Match(cases=cases):
            return {FALL}.union(*(ways_out(case.body) for case in cases))
        case ast.Expr(value=ast.Call() as call) if _called(call) in EXITS:
            return {"raise"}
    return {FALL}


def _called(node: ast.expr) -> str:
    """Return the last part of the name that is called."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _ways_of_try(statement: ast.Try | ast.TryStar) -> set[str]:
    body = ways_out(statement.body)
    if FALL in body:
        body = (body - {FALL}) | ways_out(statement.orelse)
    ways = body.union(*(ways_out(handler.body) for handler in statement.handlers))
    last = ways_out(statement.finalbody)
    return (ways | (last - {FALL})) if FALL in last else last


def tries_in(
    statements: Sequence[ast.stmt], after: tuple[ast.stmt, ...] = ()
) -> Iterator[tuple[ast.Try | ast.TryStar, tuple[ast.stmt, ...]]]:
    """Yield each ``try`` in a loop's body, and the statements that follow it there. Inner loops are left out."""
    for position, statement in enumerate(statements):
        following = (*statements[position + 1 :], *after)
        if isinstance(statement, FunctionNode | ast.ClassDef | Loop):
            continue
        if isinstance(statement, TryNode):
            yield statement, following
        for block in blocks(statement):
            yield from tries_in(block, following)


def blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks of statements inside a statement."""
    found = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
    found += [handler.body for handler in getattr(statement, "handlers", [])]
    found += [case.body for case in getattr(statement, "cases", [])]
    return [block for block in found if block]
