"""What names mean where code is moved to, or runs later than it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst
from libcst.metadata import (
    Assignment,
    BaseAssignment,
    BuiltinAssignment,
    ClassScope,
    FunctionScope,
    ImportAssignment,
    Scope,
)

if TYPE_CHECKING:
    from abate.migrate.source import Source


def means_the_same(source: Source, value: cst.BaseExpression, place: Scope) -> bool:
    """Return whether the names in an expression mean the same in another scope, and are not assigned again."""
    for name in _free_names(source, value):
        own = source.scopes[name]
        assert own is not None
        found = set(own[name.value])
        if found != set(place[name.value]) or (
            len(found) > 1 and not all(isinstance(one, ImportAssignment) for one in found)
        ):
            return False
    return True


def _free_names(source: Source, expression: cst.BaseExpression) -> list[cst.Name]:
    """Return the names in an expression that it does not bind itself, as a lambda binds its parameters."""
    found: list[cst.Name] = []

    class Visitor(cst.CSTVisitor):
        def visit_Name(self, node: cst.Name) -> None:
            scope = source.scopes.get(node)
            bound = [] if scope is None else [one for one in scope[node.value] if isinstance(one, Assignment)]
            if scope is not None and not any(source.is_inside(one.node, expression) for one in bound):
                found.append(node)

        def visit_Attribute(self, node: cst.Attribute) -> bool:
            node.value.visit(self)
            return False

        def visit_Arg(self, node: cst.Arg) -> bool:
            node.value.visit(self)
            return False

    expression.visit(Visitor())
    return found


def changes_later(source: Source, expression: cst.BaseExpression) -> str:
    """Return a name in an expression that may mean something else inside a function made around it, or "".

    Such a function has parameters of its own, runs later, and does not see the names of a class body.
    """
    for name in _free_names(source, expression):
        scope = source.scopes[name]
        assert scope is not None
        found = [one for one in scope[name.value] if not isinstance(one, BuiltinAssignment)]
        several = len(found) > 1 and not all(isinstance(one, ImportAssignment) for one in found)
        hidden = any(isinstance(one.scope, ClassScope) for one in found)
        if name.value in ("error", "result") or several or hidden or any(_is_repeated(source, one) for one in found):
            return name.value
    return ""


def _is_repeated(source: Source, assignment: BaseAssignment) -> bool:
    """Return whether a name is assigned in a loop."""
    node: cst.CSTNode | None = assignment.node if isinstance(assignment, Assignment) else None
    while node is not None and not isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
        if isinstance(node, (cst.For, cst.While, cst.CompFor)):
            return True
        node = source.parents.get(node)
    return False


def assigned_value(source: Source, assignment: BaseAssignment) -> cst.BaseExpression | None:
    """Return the expression that an assignment gives to its name alone."""
    target = assignment.node if isinstance(assignment, Assignment) else None
    parent = None if target is None else source.parents.get(target)
    if isinstance(parent, cst.AnnAssign) and parent.target is target:
        return parent.value
    statement = source.parents.get(parent) if isinstance(parent, cst.AssignTarget) else None
    return statement.value if isinstance(statement, cst.Assign) and len(statement.targets) == 1 else None


def alternatives(source: Source, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return all values of a name that is assigned more than once, and is read only in this place; or nothing.

    The name is one of a function: other files can't read it.
    """
    scope = source.scopes.get(node) if isinstance(node, cst.Name) else None
    found = [] if scope is None or not isinstance(node, cst.Name) else list(scope[node.value])
    values: list[cst.BaseExpression] = []
    if not isinstance(scope, FunctionScope):
        return []
    for one in found:
        value = assigned_value(source, one)
        if value is None or one.scope is not scope or {access.node for access in one.references} != {node}:
            return []
        values.append(value)
    return values if len(values) > 1 else []
