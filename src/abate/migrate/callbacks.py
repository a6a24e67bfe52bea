"""Functions that other libraries call before a retry, rewritten for the ``RetryContext`` that abate passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import Assignment, ImportAssignment

from abate.migrate.edits import Edit
from abate.migrate.plan import NotMapped
from abate.migrate.source import Source, names_in

Edits = list[Edit]


@dataclass(frozen=True)
class Vocabulary:
    """How a library's callbacks read what happened, and how a `RetryContext` says the same.

    The keys of `readings` are what is written after the parameter; the values what is written after it instead.
    """

    readings: Mapping[str, str]
    truths: frozenset[str] = frozenset()
    """What is written after the parameter and always true before a retry: its test becomes one of the parameter."""


TENACITY = Vocabulary(
    {
        ".attempt_number": ".attempt",
        ".outcome.exception()": ".error",
        ".outcome.result()": ".result",
        ".outcome.failed": ".error is not None",
        ".next_action.sleep": ".delay",
        ".upcoming_sleep": ".delay",
        ".args": ".args",
        ".kwargs": ".kwargs",
    },
    frozenset({".outcome", ".next_action"}),
)
BACKOFF = Vocabulary(
    {
        "['tries']": ".attempt",
        "['wait']": ".delay",
        "['exception']": ".error",
        "['value']": ".result",
        "['args']": ".args",
        "['kwargs']": ".kwargs",
    }
)


def rewrite_callback(source: Source, node: cst.BaseExpression, setting: str, vocabulary: Vocabulary) -> Edits:
    """Return the edits after which a function can be a ``before_retry``."""
    if isinstance(node, cst.Lambda):
        return _edits(source, node, setting, vocabulary)
    if not isinstance(node, cst.Name):
        raise NotMapped(f"{setting}={source.code(node)} is not a function of this file")
    scope = source.scopes[node]
    assert scope is not None
    found = list(scope[node.value])
    function = found[0].node if len(found) == 1 and isinstance(found[0], Assignment) else None
    if isinstance(found[0] if found else None, ImportAssignment) or not isinstance(function, cst.FunctionDef):
        raise NotMapped(f"{setting}={node.value} is not a function of this file")
    for access in found[0].references:
        argument = source.parents[access.node]
        if not (isinstance(argument, cst.Arg) and argument.keyword is not None and argument.keyword.value == setting):
            raise NotMapped(f"{setting}={node.value} is also used on line {source.line(access.node)}")
    if function.decorators:
        raise NotMapped(f"{setting}={node.value} is a decorated function")
    return _edits(source, function, setting, vocabulary)


def uses(source: Source, node: cst.BaseExpression) -> dict[str, list[cst.CSTNode]]:
    """Return where a function of the file is used, by its name."""
    scope = source.scopes[node]
    if scope is None or not isinstance(node, cst.Name):
        return {}
    return {node.value: [access.node for one in scope[node.value] for access in one.references]}


def _edits(source: Source, function: cst.FunctionDef | cst.Lambda, setting: str, vocabulary: Vocabulary) -> Edits:
    parameters = function.params
    single = [*parameters.posonly_params, *parameters.params]
    others = parameters.kwonly_params or isinstance(parameters.star_arg, cst.Param) or parameters.star_kwarg
    if len(single) != 1 or others:
        raise NotMapped(f"{setting} is not a function of one argument")
    parameter = single[0]
    edits: Edits = []
    if parameter.annotation is not None:
        edits.append((parameter.annotation.annotation, cst.parse_expression("abate.RetryContext")))
    for name in names_in(function.body, parameter.name.value):
        edits.append(_edit(source, name, setting, vocabulary))
    return edits


def _edit(source: Source, name: cst.Name, setting: str, vocabulary: Vocabulary) -> tuple[cst.CSTNode, cst.CSTNode]:
    """Return the edit for one use of the parameter: the longest reading that is known."""
    node: cst.CSTNode = name
    best: tuple[cst.CSTNode, str] | None = None
    while True:
        parent = source.parents[node]
        if isinstance(parent, cst.Call) and parent.args:
            break
        if not (
            (isinstance(parent, cst.Attribute) and parent.value is node)
            or (isinstance(parent, cst.Call) and parent.func is node)
            or (isinstance(parent, cst.Subscript) and parent.value is node)
        ):
            break
        node = parent
        reading = source.code(node).removeprefix(name.value).replace('"', "'")
        if reading in vocabulary.readings:
            best = node, f"{name.value}{vocabulary.readings[reading]}"
        elif reading in vocabulary.truths and _is_tested(source, node):
            best = node, name.value
    if best is None:
        shown = source.code(node) if node is not name else source.code(source.parents[node])
        raise NotMapped(f"{setting} uses {shown} on line {source.line(name)}, which has no equivalent")
    replaced, code = best
    if " " in code and not isinstance(source.parents[replaced], (cst.If, cst.IfExp, cst.Arg, cst.Assign)):
        code = f"({code})"
    return replaced, cst.parse_expression(code)


def _is_tested(source: Source, node: cst.CSTNode) -> bool:
    """Return whether only the truth of an expression is used."""
    parent = source.parents[node]
    if isinstance(parent, cst.BooleanOperation):
        return isinstance(parent.operator, cst.And) and parent.left is node
    return isinstance(parent, (cst.If, cst.IfExp)) and parent.test is node
