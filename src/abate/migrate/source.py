"""One parsed file: what its names mean, what its expressions say, and where they stand."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import libcst as cst
from libcst.metadata import (
    Assignment,
    ImportAssignment,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameSource,
    Scope,
    ScopeProvider,
)

from abate.migrate.meaning import assigned_value, means_the_same
from abate.migrate.plan import NotMapped, Number

TRUTHS = ("isinstance", "issubclass", "any", "all", "bool", "callable", "hasattr", "startswith", "endswith", "is_set")
"""Functions that return True or False."""
LITERALS = (cst.Integer, cst.Float)
OPERATIONS: dict[type[cst.CSTNode], Callable[[float, float], float]] = {
    cst.Add: operator.add,
    cst.Subtract: operator.sub,
    cst.Multiply: operator.mul,
    cst.Divide: operator.truediv,
}
"""The operations of numbers that are computed here."""


def names_in(node: cst.CSTNode, name: str) -> list[cst.Name]:
    """Return the uses of a name inside a node; attributes and keywords of that name are none."""
    found: list[cst.Name] = []

    class Visitor(cst.CSTVisitor):
        def visit_Name(self, node: cst.Name) -> None:
            if node.value == name:
                found.append(node)

        def visit_Attribute(self, node: cst.Attribute) -> bool:
            node.value.visit(self)
            return False

        def visit_Arg(self, node: cst.Arg) -> bool:
            node.value.visit(self)
            return False

    node.visit(Visitor())
    return found


def imported_package(assignment: ImportAssignment) -> str:
    """Return the package that a name was imported from."""
    names = assignment.get_qualified_names_for(assignment.name)
    return next((name.name.split(".")[0] for name in names), "")


class Source:
    """A parsed file.

    >>> source = Source("from tenacity import retry as again")
    >>> source.module.code
    'from tenacity import retry as again'
    """

    def __init__(self, text: str | bytes) -> None:
        self.wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self.module = self.wrapper.module

    @cached_property
    def scopes(self) -> Mapping[cst.CSTNode, Scope | None]:
        """The scope of each node."""
        return self.wrapper.resolve(ScopeProvider)

    @cached_property
    def parents(self) -> Mapping[cst.CSTNode, cst.CSTNode]:
        """The parent of each node."""
        return self.wrapper.resolve(ParentNodeProvider)

    @cached_property
    def positions(self) -> Mapping[cst.CSTNode, Any]:
        """The position of each node."""
        return self.wrapper.resolve(PositionProvider)

    @cached_property
    def line_limit(self) -> int:
        """The longest line that rewritten code may have: that of the formatter which the file seems to use."""
        longest = max(map(len, self.module.code.splitlines()), default=0)
        return next((limit for limit in (79, 88, 100) if longest <= limit), 120)

    def line(self, node: cst.CSTNode) -> int:
        """Return the line on which a node begins, from 1."""
        line: int = self.positions[node].start.line
        return line

    def column(self, node: cst.CSTNode) -> int:
        """Return the column at which a node begins, from 0."""
        column: int = self.positions[node].start.column
        return column

    def is_inside(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        """Return whether a node is another one, or a part of it."""
        current: cst.CSTNode | None = node
        while current is not None and current is not outer:
            current = self.parents.get(current)
        return current is outer

    def runs_in_a_function(self, node: cst.CSTNode) -> bool:
        """Return whether an expression is evaluated at each call of a function."""
        parent = self.parents.get(node)
        while parent is not None:
            if isinstance(parent, cst.Lambda) or (
                isinstance(parent, cst.FunctionDef) and node not in parent.decorators
            ):
                return True
            node, parent = parent, self.parents.get(parent)
        return False

    def is_true_or_false(self, node: cst.BaseExpression) -> bool:
        """Return whether a predicate is known to return a truth value, and not a number or anything else."""
        body = self.value(node)
        if isinstance(body, cst.Lambda):
            return self._is_truth(body.body)
        scope = self.scopes.get(node) if isinstance(node, cst.Name) else None
        if scope is None or not isinstance(node, cst.Name):
            return False
        functions = [one.node for one in scope[node.value] if isinstance(one, Assignment)]
        returned = [
            function.returns.annotation
            for function in functions
            if isinstance(function, cst.FunctionDef) and function.returns is not None
        ]
        return any(self.code(one) == "bool" for one in returned) or node.value in ("bool", "callable")

    def _is_truth(self, node: cst.BaseExpression) -> bool:
        if isinstance(node, (cst.Comparison, cst.Name)):
            return isinstance(node, cst.Comparison) or node.value in ("True", "False")
        if isinstance(node, cst.UnaryOperation):
            return isinstance(node.operator, cst.Not)
        if isinstance(node, cst.BooleanOperation):
            return self._is_truth(node.left) and self._is_truth(node.right)
        return isinstance(node, cst.Call) and self.code(node.func).rpartition(".")[2] in TRUTHS

    def star_import(self, package: str) -> int | None:
        """Return the line of a star import from a package."""
        for line in self.module.body:
            for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                match small:
                    case cst.ImportFrom(module=cst.BaseExpression() as module, names=cst.ImportStar(), relative=()):
                        if self.code(module).split(".")[0] == package:
                            return self.line(small)
        return None

    def extra_indent(self, node: cst.CSTNode) -> str:
        """Return by how much the line of a node is indented more than its block, as within brackets."""
        line = self.module.code.splitlines()[self.line(node) - 1]
        block, parent = "", self.parents.get(node)
        while parent is not None:
            if isinstance(parent, cst.IndentedBlock):
                block += self.module.default_indent if parent.indent is None else parent.indent
            parent = self.parents.get(parent)
        return line[len(block) : len(line) - len(line.lstrip())]

    def code(self, node: cst.CSTNode) -> str:
        """Return the code of a node as it is written."""
        return self.module.code_for_node(node.annotation if isinstance(node, cst.Annotation) else node).strip()

    def imported(self, node: cst.CSTNode) -> str | None:
        """Return the full name of what an expression refers to, if it was imported.

        >>> source = Source("from tenacity import retry as again\\nagain")
        >>> source.imported(source.module.body[1].body[0].value)
        'tenacity.retry'
        """
        if not isinstance(node, (cst.Name, cst.Attribute)):
            return None
        scope = self.scopes.get(node)
        if scope is None or self._first_name(node) not in self._imported_names:
            return None
        found = {name.name for name in scope.get_qualified_names_for(node) if name.source is QualifiedNameSource.IMPORT}
        return found.pop() if len(found) == 1 else None

    def _first_name(self, node: cst.CSTNode) -> str:
        while isinstance(node, cst.Attribute):
            node = node.value
        return node.value if isinstance(node, cst.Name) else ""

    @cached_property
    def _imported_names(self) -> frozenset[str]:
        """All names that an import binds somewhere in the file."""
        scopes = {scope for scope in self.scopes.values() if scope is not None}
        bound = {one.name for scope in scopes for one in scope.assignments if isinstance(one, ImportAssignment)}
        return frozenset(name.split(".")[0] for name in bound)

    def value(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return the expression that a name stands for, if it is assigned once in the file; or else the name itself.

        The expression is of the module's level or of the name's own scope: it means the same in both places.
        """
        seen = set()
        while isinstance(node, cst.Name) and node.value not in seen:
            seen.add(node.value)
            assigned = self._assigned(node)
            if assigned is None:
                break
            node = assigned
        return node

    def _assigned(self, name: cst.Name) -> cst.BaseExpression | None:
        scope = self.scopes.get(name)
        found = [] if scope is None else list(scope[name.value])
        if len(found) != 1 or not isinstance(found[0], Assignment) or isinstance(found[0], ImportAssignment):
            return None
        if found[0].scope is not scope and not isinstance(found[0].scope, type(self.scopes[self.module])):
            return None
        value = assigned_value(self, found[0])
        return value if value is not None and scope is not None and means_the_same(self, value, scope) else None

    def function(self, node: cst.BaseExpression) -> cst.FunctionDef | None:
        """Return the function of this file that a name stands for, if there is one only."""
        scope = self.scopes.get(node) if isinstance(node, cst.Name) else None
        found = [] if scope is None or not isinstance(node, cst.Name) else list(scope[node.value])
        if len(found) == 1 and isinstance(found[0], Assignment) and isinstance(found[0].node, cst.FunctionDef):
            return found[0].node
        return None

    def names_of(self, full: str) -> set[str]:
        """Return the names that the module gives to something that it imports."""
        scope = self.scopes[self.module]
        imports = [] if scope is None else [one for one in scope.assignments if isinstance(one, ImportAssignment)]
        return {one.name for one in imports for name in one.get_qualified_names_for(one.name) if name.name == full}

    def is_tuple(self, node: cst.BaseExpression) -> bool:
        """Return whether a name stands for a tuple or a list."""
        return isinstance(self.value(node), (cst.Tuple, cst.List))

    def is_function(self, node: cst.BaseExpression) -> bool:
        """Return whether an expression is a lambda, or the name of a function of the file."""
        if isinstance(node, cst.Lambda):
            return True
        scope = self.scopes.get(node) if isinstance(node, cst.Name) else None
        found = [] if scope is None or not isinstance(node, cst.Name) else list(scope[node.value])
        return any(isinstance(one, Assignment) and isinstance(one.node, cst.FunctionDef) for one in found)

    def number(self, node: cst.BaseExpression) -> Number:
        """Return an expression as a number of seconds or a count, with its value if that is written there.

        >>> source = Source("datetime.timedelta(minutes=1)")
        >>> source.number(source.module.body[0].body[0].value)
        Number('60.0')
        """
        if isinstance(node, LITERALS):
            return Number(node.value, float(node.evaluated_value))
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
            inner = self.number(node.expression)
            return Number(self.code(node), None if inner.value is None else -inner.value)
        if isinstance(node, cst.BinaryOperation):
            return self._calculated(node)
        if isinstance(node, cst.Call) and self._is_timedelta(node):
            return self._timedelta(node)
        if isinstance(node, (cst.SimpleString, cst.ConcatenatedString, cst.Lambda, cst.FormattedString)):
            raise NotMapped(f"a number is expected instead of {self.code(node)}")
        assigned = self.value(node)
        if isinstance(assigned, cst.Call) and self._is_timedelta(assigned):
            return Number(f"{self.code(node)}.total_seconds()", None)
        return Number(self.code(node), None)

    def _calculated(self, node: cst.BinaryOperation) -> Number:
        left, right, code = self.number(node.left), self.number(node.right), self.code(node)
        operation = OPERATIONS.get(type(node.operator))
        if operation is None or left.value is None or right.value is None:
            return Number(f"({code})", None)
        try:
            return Number(code, float(operation(left.value, right.value)))
        except ArithmeticError:
            return Number(f"({code})", None)

    def _is_timedelta(self, node: cst.Call) -> bool:
        return self.imported(node.func) == "datetime.timedelta" or self.code(node.func) == "datetime.timedelta"

    def _timedelta(self, node: cst.Call) -> Number:
        units = {"weeks": 604800, "days": 86400, "hours": 3600, "minutes": 60, "seconds": 1, "milliseconds": 0.001}
        total = 0.0
        for argument in node.args:
            unit = "" if argument.keyword is None else argument.keyword.value
            value = self.number(argument.value).value
            if unit not in units or value is None:
                return Number(f"{self.code(node)}.total_seconds()", None)
            total += units[unit] * value
        return Number.of(total)

    def arguments(self, call: cst.Call, positional: Sequence[str]) -> dict[str, cst.Arg]:
        """Return the arguments of a call by name; `positional` are the names of those by position."""
        found: dict[str, cst.Arg] = {}
        for place, argument in enumerate(call.args):
            if argument.star:
                raise NotMapped(f"{self.code(argument)} can't be read without running the code")
            if argument.keyword is not None:
                name = argument.keyword.value
            elif place < len(positional):
                name = positional[place]
            else:
                raise NotMapped(f"{self.code(call.func)} takes no {place + 1} positional arguments")
            found[name] = argument
        return found

    def references(self, package: str) -> list[cst.Name | cst.Attribute]:
        """Return the names, with their dots, that refer to something in a package, in order, without imports."""
        return [node for full, node in self._references if full == package or full.startswith(f"{package}.")]

    @cached_property
    def _references(self) -> list[tuple[str, cst.Name | cst.Attribute]]:
        found: list[tuple[str, cst.Name | cst.Attribute]] = []
        imported = self.imported

        class Visitor(cst.CSTVisitor):
            def visit_Import(self, node: cst.Import) -> bool:
                return False

            def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
                return False

            def visit_Name(self, node: cst.Name) -> None:
                self.visit_Attribute(node)

            def visit_Attribute(self, node: cst.Name | cst.Attribute) -> bool:
                full = imported(node)
                if full is not None:
                    found.append((full, node))
                return full is None

        self.module.visit(Visitor())
        return found

    def title(self, node: cst.CSTNode) -> str:
        """Return a few words of code that say which site this is."""
        parent = self.parents.get(node)
        code = " ".join(self.code(node).split())
        short = code if len(code) <= 60 else f"{code[:57]}..."
        if isinstance(parent, cst.Decorator):
            function = self.parents[parent]
            if isinstance(function, cst.FunctionDef):
                return f"@{short} on {function.name.value}"
        return short

    def check_binding(self, node: cst.CSTNode) -> None:
        """Raise an error if the name of a library's function means something else in some cases."""
        scope, first = self.scopes.get(node), self._first_name(node)
        if scope is not None and len(scope.get_qualified_names_for(first)) > 1:
            raise NotMapped(f"{first} is bound in several ways in this file")
        self.check_module(node, "abate")

    def check_module(self, place: cst.CSTNode, module: str) -> None:
        """Raise an error if the name of a module means something else where new code is to use it."""
        scope = self.scopes.get(place)
        for one in () if scope is None else scope[module]:
            names = one.get_qualified_names_for(module) if isinstance(one, ImportAssignment) else ()
            if {name.name for name in names} != {module}:
                raise NotMapped(f"the name {module} means something else in this file")

    @cached_property
    def exported(self) -> frozenset[str]:
        """The names in ``__all__``: all strings in the module's statements that use it."""
        names: set[str] = set()

        class Visitor(cst.CSTVisitor):
            def visit_SimpleString(self, node: cst.SimpleString) -> None:
                names.add(str(node.evaluated_value))

        for statement in self.module.body:
            if isinstance(statement, cst.SimpleStatementLine) and names_in(statement, "__all__"):
                statement.visit(Visitor())
        return frozenset(names)
