"""Objects that retry a block or a call: where they go, and the policy's own form for it."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst
from libcst.metadata import Assignment

from abate.migrate.edits import Edit
from abate.migrate.plan import NotMapped
from abate.migrate.sites import expression
from abate.migrate.source import Source

AttemptEdit = Callable[[cst.Name], Edit]


def block_edits(source: Source, call: cst.Call, code: str, asynchronous: bool, attempt_edit: AttemptEdit) -> list[Edit]:
    """Return the edits for a call that makes an object which retries; `code` makes the policy instead."""
    used = _use(source, call, code, asynchronous, attempt_edit)
    if used is not None:
        return used
    assigned = source.parents[call]
    target = assigned.targets[0].target if isinstance(assigned, cst.Assign) and len(assigned.targets) == 1 else None
    if isinstance(target, cst.Name):
        return [(call, expression(source, code)), *_uses_of(source, target, asynchronous, attempt_edit)]
    raise NotMapped("what becomes of this object can't be followed")


def _uses_of(source: Source, target: cst.Name, asynchronous: bool, attempt_edit: AttemptEdit) -> list[Edit]:
    scope = source.scopes[target]
    assert scope is not None
    found = list(scope[target.value])
    if len(found) != 1 or not isinstance(found[0], Assignment):
        raise NotMapped(f"{target.value} is assigned more than once")
    if target.value in source.exported or not found[0].references:
        raise NotMapped(f"what becomes of {target.value} outside this file can't be followed")
    edits: list[Edit] = []
    for access in found[0].references:
        assert isinstance(access.node, cst.Name)
        used = _use(source, access.node, target.value, asynchronous, attempt_edit)
        if used is None:
            raise NotMapped(f"the use of {target.value} on line {source.line(access.node)} has no equivalent")
        edits += used
    return edits


def _use(
    source: Source, node: cst.Call | cst.Name, code: str, asynchronous: bool, attempt_edit: AttemptEdit
) -> list[Edit] | None:
    """Return the edits for one use of an object that retries; None if it is a use that is not known."""
    parent = source.parents[node]
    if isinstance(parent, cst.For) and parent.iter is node:
        return [(node, expression(source, f"{code}.attempts()")), *_attempts(source, parent, attempt_edit)]
    if isinstance(parent, cst.Call) and parent.func is node:
        return [(node, expression(source, f"{code}.{'acall' if asynchronous else 'call'}"))]
    if isinstance(parent, cst.Attribute) and parent.value is node:
        called = source.parents[parent]
        if isinstance(called, cst.Call) and called.func is parent and parent.attr.value in ("call", "wraps"):
            method = "" if parent.attr.value == "wraps" else f".{'acall' if asynchronous else 'call'}"
            return [(parent, expression(source, f"{code}{method}"))]
        if isinstance(called, cst.Decorator) and parent.attr.value == "wraps":
            return [(parent, expression(source, code))]
    return None


def _attempts(source: Source, loop: cst.For, attempt_edit: AttemptEdit) -> list[Edit]:
    """Return the edits for the uses of the loop's variable."""
    if not isinstance(loop.target, cst.Name):
        raise NotMapped(f"the attempts of this loop go to {source.code(loop.target)}")
    edits: list[Edit] = []
    scope = source.scopes[loop.target]
    assert scope is not None
    entered = 0
    for name in _names(loop.body, loop.target.value):
        parent = source.parents[name]
        if isinstance(parent, cst.WithItem):
            entered += 1
            if parent.asname is not None:
                raise NotMapped(f"`with {source.code(parent)}` has no equivalent")
            outer = source.parents[parent]
            if isinstance(outer, cst.With) and outer.asynchronous is not None:
                edits.append((outer.asynchronous, cst.RemovalSentinel.REMOVE))
        else:
            edits.append(attempt_edit(name))
    if entered != 1:
        raise NotMapped(f"the loop enters {loop.target.value} in {entered} places")
    return edits


def _names(node: cst.CSTNode, name: str) -> list[cst.Name]:
    found: list[cst.Name] = []

    class Visitor(cst.CSTVisitor):
        def visit_Name(self, node: cst.Name) -> None:
            if node.value == name:
                found.append(node)

    node.visit(Visitor())
    return found
