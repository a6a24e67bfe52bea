"""Handlers of the error with which a library gives up, rewritten for ``abate.RetryExhausted``."""

from __future__ import annotations

import libcst as cst

from abate.migrate.edits import Edit
from abate.migrate.plan import NotMapped
from abate.migrate.sites import expression
from abate.migrate.source import Source, names_in

READINGS = {
    ".last_attempt.exception()": ".__cause__",
    ".last_attempt._exception": ".__cause__",
    ".last_attempt.attempt_number": ".report.attempts",
    ".last_attempt.failed": ".__cause__ is not None",
}
"""What is written after the error's name, and what is written there instead."""
COMMON = (".__cause__", ".__traceback__", ".__class__", ".with_traceback", ".add_note", ".__class__.__name__")
"""What every error has."""
SHOWING = (
    *("str", "repr", "type", "print", "format", "isinstance"),
    *("debug", "info", "warning", "warn", "error", "exception", "critical", "log"),
)
"""Functions that show an error, or log it."""
EXPECTING = ("raises", "assertRaises", "assertRaisesRegex")


def handler_edits(source: Source, package: str, error: str, shared: bool) -> list[Edit]:
    """Return the edits of one file's handlers of an error; if they are `shared`, they keep the old error too.

    Raises `NotMapped` if a use of the error has no equivalent.
    """
    edits: list[Edit] = []
    for node in source.references(package):
        if source.imported(node) == error:
            edits += _edits(source, node, shared)
    return edits


def _edits(source: Source, node: cst.Name | cst.Attribute, shared: bool) -> list[Edit]:
    outer = source.parents[node]
    in_tuple = isinstance(outer, cst.Element) and isinstance(source.parents[outer], cst.Tuple)
    types = source.parents[outer] if in_tuple else node
    handler = source.parents[types]
    if isinstance(handler, cst.Arg) and _expects(source, handler):
        if shared:
            raise NotMapped(f"line {source.line(node)} expects the error")
        return [(node, expression(source, "abate.RetryExhausted"))]
    if not isinstance(handler, cst.ExceptHandler):
        raise NotMapped(f"its use on line {source.line(node)} has no equivalent")
    if "abate.RetryExhausted" in source.code(types):
        return []
    uses = [] if handler.name is None else _uses(source, handler)
    if shared:
        if uses:
            raise NotMapped(f"line {source.line(node)} handles it")
        new = "abate.RetryExhausted"
        if in_tuple:
            return [(types, expression(source, source.code(types).rstrip(")").rstrip(", \n") + f", {new})"))]
        return [(node, expression(source, f"({source.code(node)}, {new})"))]
    return [(node, expression(source, "abate.RetryExhausted")), *uses]


def _expects(source: Source, argument: cst.Arg) -> bool:
    """Return whether an argument is the error that a test expects, and does not look at."""
    call = source.parents[argument]
    if not isinstance(call, cst.Call) or source.code(call.func).rpartition(".")[2] not in EXPECTING:
        return False
    item = source.parents[call]
    return not (isinstance(item, cst.WithItem) and item.asname is not None)


def _uses(source: Source, handler: cst.ExceptHandler) -> list[Edit]:
    """Return the edits for what a handler reads off the error."""
    assert handler.name is not None
    assert isinstance(handler.name.name, cst.Name)
    name, edits = handler.name.name.value, []
    for use in names_in(handler.body, name):
        edit = _reading(source, use)
        if edit is not None:
            edits.append(edit)
    return edits


def _reading(source: Source, use: cst.Name) -> Edit | None:
    node: cst.CSTNode = use
    best: Edit | None = None
    while True:
        parent = source.parents[node]
        if not (
            (isinstance(parent, cst.Attribute) and parent.value is node)
            or (isinstance(parent, cst.Call) and parent.func is node and not parent.args)
        ):
            break
        node = parent
        reading = source.code(node).removeprefix(use.value)
        if reading in READINGS:
            best = node, expression(source, f"{use.value}{READINGS[reading]}")
        elif reading == ".reraise()" and isinstance(source.parents[node], cst.Expr):
            raised = expression(source, f"{use.value}.__cause__ or {use.value}")
            best = source.parents[node], cst.Raise(exc=raised)
    if best is None and not _is_any_error(source, use, node):
        shown = source.code(node if node is not use else source.parents[use])
        raise NotMapped(f"{shown} on line {source.line(use)} has no equivalent")
    return best


def _is_any_error(source: Source, use: cst.Name, read: cst.CSTNode) -> bool:
    """Return whether an error is used as every error can be: shown, logged, raised, or the cause of another."""
    if read is not use:
        return source.code(read).removeprefix(use.value).split("(")[0] in COMMON
    parent = source.parents[use]
    if isinstance(parent, cst.Arg):
        call = source.parents[parent]
        if not isinstance(call, cst.Call) or source.code(call.func) in ("getattr", "vars", "setattr"):
            return False
        last = source.code(call.func).rpartition(".")[2]
        return last in SHOWING or isinstance(source.parents[call], (cst.Raise, cst.From))
    return isinstance(parent, (cst.Raise, cst.From, cst.FormattedStringExpression))
