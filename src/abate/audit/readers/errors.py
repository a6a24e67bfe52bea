"""The names of the errors in an ``except`` clause or an argument."""

from __future__ import annotations

import ast

from abate.audit.module_index import Function
from abate.audit.names import Names

MAX_ERRORS = 50


def error_names(node: ast.AST, function: Function, names: Names, depth: int = 0) -> list[str]:
    """Return the names of the errors in an expression: one class, or a tuple of them."""
    if depth > 8:
        return ["?"]
    value = names.follow(node, function)
    match value.node:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            found = [name for item in items for name in error_names(item, value.function, names, depth + 1)]
            return found[:MAX_ERRORS]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [name for side in (left, right) for name in error_names(side, value.function, names, depth + 1)]
        case ast.Starred(value=inner):
            return error_names(inner, value.function, names, depth + 1)
        case ast.Call(func=ast.Name(id="tuple" | "frozenset" | "list"), args=[inner]):
            return error_names(inner, value.function, names, depth + 1)
    return [names.resolve(value.node, value.function) or "?"]


def caught(handler: ast.ExceptHandler, function: Function, names: Names) -> list[str]:
    """Return the names of the errors that a handler catches; ``BaseException`` if it names none."""
    return ["BaseException"] if handler.type is None else error_names(handler.type, function, names)
