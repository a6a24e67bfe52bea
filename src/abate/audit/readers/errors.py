"""The names of the errors in an ``except`` clause or an argument."""

from __future__ import annotations

import ast

from abate.audit.module_index import Function, inside
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


SHOWS = frozenset(
    {"debug", "info", "warning", "warn", "error", "exception", "critical", "verbose", "trace", "msg",
     "print", "echo", "secho", "write", "append", "capture_exception", "record_exception",
     "str", "repr", "type", "format", "format_exc", "getattr"}
)  # fmt: skip
"""Functions that show or keep an error and decide nothing."""


def hands_on(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler gives its error to a function that may decide about it, and raise."""
    return handler.name is not None and any(
        isinstance(node, ast.Call)
        and not _only_shows(node.func)
        and any(
            isinstance(given, ast.Name) and given.id == handler.name
            for given in (*node.args, *[keyword.value for keyword in node.keywords])
        )
        for node in inside(handler.body)
    )


def _only_shows(called: ast.expr) -> bool:
    last = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return last in SHOWS or last.startswith(("log", "_log")) or last.endswith(("Error", "Exception"))


def decides(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler looks at the error to decide whether to go on, or gives it to a function that may."""
    for node in inside(handler.body):
        match node:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if "reraise" in name:
                return True  # oslo's save_and_reraise_exception() raises unless it is told not to
            case _ if handler.name is None:
                continue
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) | ast.Match(subject=test):
                if _mentions(test, handler.name):
                    return True
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _mentions(value, handler.name):
                if any(isinstance(one, ast.If) and _mentions(one.test, name) for one in inside(handler.body)):
                    return True
    return hands_on(handler)


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in inside(node))
