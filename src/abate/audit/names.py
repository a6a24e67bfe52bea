"""What names and expressions in the audited code stand for, by its imports and simple assignments.

A resolved name is dotted. ``()`` follows what is called, so ``pkg.Client().get`` is the method of an instance, whether
it is written ``Client().get``, ``client.get`` or ``self.client.get``.
"""

from __future__ import annotations

import ast
import math
from typing import NamedTuple

from abate.audit.module_index import Class, Function, Module, enclosing_method, is_self

MAX_STEPS = 12
"""Assignments that are followed from one name to the next."""
MAX_DIGITS = 18
"""The largest power of ten that numbers in the audited code are computed to."""
CONVERSIONS = frozenset({"int", "float", "round", "abs"})
ENVIRONMENT = frozenset({"os.getenv", "os.environ.get", "environ.get"})


class Value(NamedTuple):
    """An expression, and the function that it stands in."""

    node: ast.AST
    function: Function


class Names:
    """Resolves names in all modules of a program."""

    def __init__(self, modules: dict[str, Module]) -> None:
        self._modules = modules
        self.classes: dict[str, Class] = {}
        self.functions: dict[str, Function] = {}
        for module in modules.values():
            self.classes.update(module.classes)
            self.functions.update(module.definitions)
        self._exported: dict[str, str] = {}

    # ── Names ────────────────────────────────────────────────────────────────────────────────────────────────

    def resolve(self, node: ast.AST, function: Function, steps: int = 0) -> str | None:
        """Return the dotted name of an expression, or None if it can't be told."""
        if steps > MAX_STEPS:
            return None
        match node:
            case ast.Name(id=name):
                return self._resolve_name(name, function, steps)
            case ast.Attribute(value=value, attr=attribute):
                # chains may be thousands of attributes long: this is a loop, not a recursion
                chain = [attribute]
                while isinstance(value, ast.Attribute) and len(chain) <= 2 * MAX_STEPS:
                    chain.append(value.attr)
                    value = value.value
                return self._resolve_chain(value, chain, function, steps)
            case ast.Call(func=called):
                return self._resolve_call(called, function, steps)
            case ast.Await(value=value):
                return self.resolve(value, function, steps + 1)
            case ast.NamedExpr(value=value):
                return self.resolve(value, function, steps + 1)
            case ast.BoolOp(values=values):
                return self._first([Value(value, function) for value in values], steps)
            case ast.IfExp(body=body, orelse=other):
                return self._first([Value(body, function), Value(other, function)], steps)
        return None

    def _first(self, values: list[Value], steps: int) -> str | None:
        """Return the name of the first value that is an instance, or else of the first that has a name."""
        found = [name for node, function in values[:4] if (name := self.resolve(node, function, steps + 2))]
        return next((name for name in found if name.endswith("()")), found[0] if found else None)

    def _resolve_chain(self, base: ast.AST, chain: list[str], function: Function, steps: int) -> str | None:
        start = self.resolve(base, function, steps + 1)
        if start is None:
            return None
        for attribute in reversed(chain):
            start = self._attribute(start, attribute, steps)
        return self.exported(start)

    def _attribute(self, owner: str, attribute: str, steps: int) -> str:
        """Return what an attribute of an instance is known to hold, or else its own name."""
        if owner.endswith("()") and (kind := self.classes.get(owner[:-2])) is not None:
            for held in self.attribute_values(kind, attribute):
                name = self.resolve(*held, steps + 2)
                if name is not None:
                    return name
        return f"{owner}.{attribute}"

    def _resolve_call(self, called: ast.AST, function: Function, steps: int) -> str | None:
        name = self.resolve(called, function, steps + 1)
        if name is None:
            return None
        made = self.functions.get(name) or self.method(name)
        if made is not None and isinstance(made.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._returned(made, steps) or f"{name}()"
        return f"{name}()"

    def _returned(self, function: Function, steps: int) -> str | None:
        """Return what a function of the program returns, by its annotation or its only ``return``."""
        assert isinstance(function.node, ast.FunctionDef | ast.AsyncFunctionDef)
        if steps > MAX_STEPS:
            return None
        last = function.node.body[-1]
        if isinstance(last, ast.Return) and last.value is not None:
            name = self.resolve(last.value, function, steps + 3)
            if name is not None and name.endswith("()"):
                return name
        if function.node.returns is not None:
            return self._annotated(function.node.returns, function.module.body, steps)
        return None

    def _resolve_name(self, name: str, function: Function, steps: int) -> str | None:
        if name in function.resolved:
            return function.resolved[name]
        function.resolved[name] = None  # ends a name that is assigned from itself
        found = self._look_up(name, function, steps)
        function.resolved[name] = found
        return found

    def _look_up(self, name: str, function: Function, steps: int) -> str | None:
        here: Function | None = function
        while here is not None and here.parent is not None:
            if name in here.assigned:
                return self._first([Value(value, here) for value in here.assigned[name]], steps)
            if name in here.parameters:
                return self._parameter(name, here, steps)
            if (local := f"{here.full_name}.{name}") in self.functions or local in self.classes:
                return local
            here = here.parent
        module = function.module
        if (own := f"{module.name}.{name}") in self.functions or own in self.classes:
            return own
        if name in module.imports:
            return self.exported(module.imports[name])
        if name in module.body.assigned:
            known = self._first([Value(value, module.body) for value in module.body.assigned[name]], steps)
            return known or own
        return name

    def _parameter(self, name: str, function: Function, steps: int) -> str | None:
        if function.owner is not None and is_self(ast.Name(name), function):
            return f"{function.owner.full_name}()"
        annotation = function.parameters[name].annotation
        return None if annotation is None else self._annotated(annotation, function.module.body, steps)

    def _annotated(self, annotation: ast.AST, function: Function, steps: int) -> str | None:
        """Return the instance that an annotation promises: of the first class that it names."""
        match annotation:
            case ast.Constant(value=str(text)) if len(text) < 200:
                try:
                    return self._annotated(ast.parse(text, mode="eval").body, function, steps + 1)
                except (SyntaxError, ValueError, RecursionError, MemoryError):
                    return None
            case ast.BinOp(left=left, op=ast.BitOr()):
                return self._annotated(left, function, steps + 1) if steps <= MAX_STEPS else None
            case ast.Subscript(value=ast.Name(id="Optional") | ast.Attribute(attr="Optional"), slice=inner):
                return self._annotated(inner, function, steps + 1) if steps <= MAX_STEPS else None
            case ast.Name() | ast.Attribute():
                name = self.resolve(annotation, function, steps + 1)
                return None if name is None else f"{name}()"
        return None

    def exported(self, name: str) -> str:
        """Return where a name is defined that a module of the program only imports."""
        if name in self._exported:
            return self._exported[name]
        here = name
        for _ in range(MAX_STEPS):
            owner, _, last = here.rpartition(".")
            module = self._modules.get(owner)
            if module is None or here in self.functions or here in self.classes or last not in module.imports:
                break
            if module.imports[last] == here:
                break
            here = module.imports[last]
        self._exported[name] = here
        return here

    # ── Classes ──────────────────────────────────────────────────────────────────────────────────────────────

    def lineage(self, kind: Class) -> list[Class]:
        """Return a class and its bases, as far as they belong to the program."""
        found = [kind]
        for one in found:
            for base in one.bases[:8]:
                name = self.resolve(base, one.module.body)
                parent = None if name is None else self.classes.get(name)
                if parent is not None and parent not in found and len(found) < MAX_STEPS:
                    found.append(parent)
        return found

    def foreign_bases(self, kind: Class) -> list[str]:
        """Return the names of base classes that don't belong to the program."""
        names = [self.resolve(base, one.module.body) for one in self.lineage(kind) for base in one.bases[:8]]
        return [name for name in names if name is not None and name not in self.classes]

    def attribute_values(self, kind: Class, attribute: str) -> list[Value]:
        """Return what is assigned to an attribute in a class or, if nothing is, in its bases."""
        for one in self.lineage(kind):
            if attribute in one.attributes:
                return [Value(*held) for held in one.attributes[attribute]]
        return []

    def method(self, name: str) -> Function | None:
        """Return the method of the program that ``pkg.Class().method`` or ``pkg.Class.method`` names."""
        owner, _, last = name.rpartition(".")
        kind = self.classes.get(owner.removesuffix("()"))
        if kind is None:
            return None
        return next((one.methods[last] for one in self.lineage(kind) if last in one.methods), None)

    def called(self, name: str | None) -> Function | None:
        """Return the function of the program that runs if a name is called."""
        if name is None:
            return None
        if (kind := self.classes.get(name)) is not None:
            return self.method(f"{kind.full_name}.__init__")
        return self.functions.get(name) or self.method(name)

    # ── Values ───────────────────────────────────────────────────────────────────────────────────────────────

    def follow(self, node: ast.AST, function: Function) -> Value:
        """Follow simple assignments from a name to the expression that it stands for."""
        value = Value(node, function)
        for _ in range(MAX_STEPS):
            found = self.values(*value)
            if len(found) != 1 or found[0].node is value.node:
                break
            value = found[0]
        return value

    def values(self, node: ast.AST, function: Function) -> list[Value]:
        """Return what is assigned to a name or an attribute of ``self``; a parameter has its default, if it has one."""
        if isinstance(node, ast.Name):
            return self._values_of_name(node.id, function)
        if isinstance(node, ast.Attribute):
            method = enclosing_method(function)
            if method is not None and method.owner is not None and is_self(node.value, method):
                return self.attribute_values(method.owner, node.attr)
            owner = self.resolve(node.value, function)
            if owner is None:
                return []
            if owner in self._modules:
                body = self._modules[owner].body
                return [Value(value, body) for value in body.assigned.get(node.attr, [])]
            kind = self.classes.get(owner.removesuffix("()"))
            return [] if kind is None else self.attribute_values(kind, node.attr)
        return []

    def _values_of_name(self, name: str, function: Function) -> list[Value]:
        here: Function | None = function
        while here is not None:
            if name in here.assigned:
                return [Value(value, here) for value in here.assigned[name]]
            if name in here.parameters:
                default = here.default(name)
                return [] if default is None else [Value(default, here.module.body)]
            here = here.parent
        owner, _, last = self.exported(function.module.imports.get(name, "")).rpartition(".")
        module = self._modules.get(owner)
        return [] if module is None else [Value(value, module.body) for value in module.body.assigned.get(last, [])]

    def number(self, node: ast.AST | None, function: Function, steps: int = 0) -> float | None:
        """Return the number that an expression amounts to, or None if it is not known before the program runs.

        A parameter counts as its default, and an environment variable as what the code falls back to.
        """
        if node is None or steps > MAX_STEPS:
            return None
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() | float() as value):
                return float(value) if abs(value) < 10**MAX_DIGITS else math.inf
            case ast.Constant(value=str(text)) if steps:
                return _read_number(text)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                number = self.number(operand, function, steps + 1)
                return None if number is None else -number
            case ast.BinOp(left=left, op=operator, right=right):
                return _computed(
                    self.number(left, function, steps + 1), operator, self.number(right, function, steps + 1)
                )
            case ast.BoolOp(op=ast.Or(), values=values):
                return self.number(values[-1], function, steps + 1)
            case ast.Call():
                return self._number_of_call(node, function, steps)
            case ast.Name() | ast.Attribute():
                found = self.values(node, function)
                return self.number(*found[0], steps + 1) if len(found) == 1 else None
        return None

    def _number_of_call(self, node: ast.Call, function: Function, steps: int) -> float | None:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in CONVERSIONS:
                return self.number(first, function, steps + 1)
            case ast.Call(func=called, args=[_, default]) if self.resolve(called, function) in ENVIRONMENT:
                return self.number(default, function, steps + 1)
            case ast.Call(func=ast.Attribute(value=value, attr="total_seconds")):
                return self.number(value, function, steps + 1)
        if (self.resolve(node.func, function) or "").endswith("timedelta"):
            return self._duration(node.keywords, function, steps)
        return None

    def _duration(self, keywords: list[ast.keyword], function: Function, steps: int) -> float | None:
        units = {"milliseconds": 0.001, "seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}
        total = 0.0
        for keyword in keywords:
            value = self.number(keyword.value, function, steps + 1)
            if value is None or keyword.arg not in units:
                return None
            total += value * units[keyword.arg]
        return total


def _read_number(text: str) -> float | None:
    try:
        return float(text[:40])
    except ValueError:
        return None


def _computed(left: float | None, operator: ast.operator, right: float | None) -> float | None:
    if left is None or right is None:
        return None
    try:
        match operator:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return left / right
            case ast.FloorDiv():
                return left // right
            case ast.Pow():
                return float(left**right)
    except (ArithmeticError, TypeError):
        return None
    return None


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Return the argument of a call with this name, or at this position."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if (
        position is not None
        and position < len(call.args)
        and not any(isinstance(given, ast.Starred) for given in call.args[: position + 1])
    ):
        return call.args[position]
    return None


def has_unpacked(call: ast.Call) -> bool:
    """Return whether a call passes ``*args`` or ``**kwargs``, which may hold any argument."""
    return any(keyword.arg is None for keyword in call.keywords) or any(
        isinstance(given, ast.Starred) for given in call.args
    )


def is_constant(node: ast.AST | None, value: object) -> bool:
    """Return whether an expression is this constant: None, True or False."""
    return isinstance(node, ast.Constant) and node.value is value
