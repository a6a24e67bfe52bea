"""What a module defines and does: its functions, classes, imports, assignments, calls and loops, found in one pass."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from abate.audit.source_files import SourceFile

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While

LEAVES = frozenset(
    {
        ast.Name,
        ast.Constant,
        ast.Pass,
        ast.Break,
        ast.Continue,
        ast.Global,
        ast.Nonlocal,
        ast.alias,
        ast.Load,
        ast.Store,
    }
)
NO_CHILDREN = frozenset(
    {"ctx", "id", "attr", "arg", "name", "kind", "type_comment", "op", "ops", "module", "level", "names"}
)
CHILDREN: dict[type, tuple[str, ...]] = {
    kind: tuple(field for field in kind._fields if field not in NO_CHILDREN)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}


class Function:
    """A function, or the code of a module outside of functions."""

    __slots__ = (
        "assigned",
        "calls",
        "loops",
        "module",
        "name",
        "node",
        "owner",
        "parameters",
        "parent",
        "resolved",
        "withs",
    )

    def __init__(
        self, name: str, node: FunctionNode | ast.Module, module: Module, owner: Class | None, parent: Function | None
    ) -> None:
        self.name, self.node, self.module, self.owner, self.parent = name, node, module, owner, parent
        self.calls: list[ast.Call] = []
        self.loops: list[Loop] = []
        self.withs: list[ast.With | ast.AsyncWith] = []
        self.assigned: dict[str, list[ast.AST]] = {}
        """What is assigned to each name: an expression, or the statement that assigns (``+=``, a loop, unpacking)."""
        self.parameters: dict[str, ast.arg] = {}
        self.resolved: dict[str, str | None] = {}
        """Names that were resolved already."""
        if isinstance(node, FunctionNode):
            given = node.args
            for parameter in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
                if parameter is not None:
                    self.parameters[parameter.arg] = parameter

    @property
    def full_name(self) -> str:
        """Return the dotted name, with ``()`` behind a class: ``pkg.module.Class().method``."""
        if self.parent is None:
            return self.module.name
        if self.owner is not None:
            return f"{self.owner.full_name}().{self.name}"
        inside = self.parent.full_name
        return f"{inside}.{self.name}"

    @property
    def shown(self) -> str:
        """Return the name as people say it: ``Class.method``."""
        if self.parent is None:
            return "the module"
        return f"{self.owner.name}.{self.name}" if self.owner is not None else self.name

    @property
    def decorators(self) -> list[ast.expr]:
        """Return the decorators, the outermost first."""
        return self.node.decorator_list if isinstance(self.node, FunctionNode) else []

    def default(self, name: str) -> ast.expr | None:
        """Return the default of a parameter."""
        if not isinstance(self.node, FunctionNode):
            return None
        given = self.node.args
        positional = [*given.posonlyargs, *given.args]
        first = len(positional) - len(given.defaults)
        for position, parameter in enumerate(positional):
            if parameter.arg == name:
                return given.defaults[position - first] if position >= first else None
        for parameter, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            if parameter.arg == name:
                return default
        return None


class Class:
    """A class: its methods, and what is assigned to attributes of it and of ``self``."""

    __slots__ = ("attributes", "bases", "full_name", "methods", "module", "name", "node")

    def __init__(self, full_name: str, node: ast.ClassDef, module: Module) -> None:
        self.full_name, self.name, self.node, self.module = full_name, node.name, node, module
        self.bases = node.bases
        self.methods: dict[str, Function] = {}
        self.attributes: dict[str, list[tuple[ast.AST, Function]]] = {}


class Module:
    """A module of the audited program."""

    def __init__(self, name: str, source: SourceFile, is_package: bool) -> None:
        self.name, self.source, self.is_package = name, source, is_package
        self.imports: dict[str, str] = {}
        self.functions: list[Function] = []
        self.classes: dict[str, Class] = {}
        self.definitions: dict[str, Function] = {}
        """Functions outside of classes, by their full name."""
        self.awaited: set[int] = set()
        """The ids of the calls that are awaited where they stand."""
        self.body = Function(name, source.tree, self, None, None)
        self.functions.append(self.body)
        _Indexer(self).run()


class _Indexer:
    def __init__(self, module: Module) -> None:
        self._module = module
        self._stack: list[tuple[ast.AST, Function, Class | None]] = []

    def run(self) -> None:
        body = self._module.body
        stack = self._stack
        stack.extend((statement, body, None) for statement in reversed(self._module.source.tree.body))
        handlers = HANDLERS
        while stack:
            node, function, owner = stack.pop()
            handler = handlers.get(node.__class__)
            if handler is not None and handler(self, node, function, owner):
                continue
            for field in CHILDREN[node.__class__]:
                value = getattr(node, field, None)
                if isinstance(value, list):
                    for child in reversed(value):
                        if child.__class__ not in LEAVES and isinstance(child, ast.AST):
                            stack.append((child, function, owner))
                elif value is not None and value.__class__ not in LEAVES and isinstance(value, ast.AST):
                    stack.append((value, function, owner))

    # Each handler returns whether it has taken care of the children.

    def _define(self, node: FunctionNode, function: Function, owner: Class | None) -> bool:
        made = Function(node.name, node, self._module, owner, function)
        self._module.functions.append(made)
        if owner is not None:
            owner.methods.setdefault(node.name, made)
        else:
            self._module.definitions.setdefault(made.full_name, made)
        given = node.args
        outside = (*node.decorator_list, *given.defaults, *[default for default in given.kw_defaults if default])
        self._stack.extend((child, function, owner) for child in outside if child.__class__ not in LEAVES)
        self._stack.extend((child, made, None) for child in reversed(node.body) if child.__class__ not in LEAVES)
        return True

    def _class(self, node: ast.ClassDef, function: Function, owner: Class | None) -> bool:
        if owner is not None:
            name = f"{owner.full_name}.{node.name}"
        else:
            name = f"{function.full_name}.{node.name}"
        made = self._module.classes.setdefault(name, Class(name, node, self._module))
        self._stack.extend((child, function, owner) for child in node.decorator_list if child.__class__ not in LEAVES)
        self._stack.extend((child, function, made) for child in reversed(node.body) if child.__class__ not in LEAVES)
        return True

    def _call(self, node: ast.Call, function: Function, owner: Class | None) -> bool:
        function.calls.append(node)
        return False

    def _await(self, node: ast.Await, function: Function, owner: Class | None) -> bool:
        self._module.awaited.add(id(node.value))
        return False

    def _loop(self, node: Loop, function: Function, owner: Class | None) -> bool:
        function.loops.append(node)
        if not isinstance(node, ast.While):
            self._assign_to(node.target, node, function, owner)
        return False

    def _comprehension(self, node: ast.comprehension, function: Function, owner: Class | None) -> bool:
        self._assign_to(node.target, node, function, owner)
        return False

    def _assign(self, node: ast.Assign, function: Function, owner: Class | None) -> bool:
        for target in node.targets:
            self._assign_to(target, node.value, function, owner)
        return False

    def _annotated(self, node: ast.AnnAssign, function: Function, owner: Class | None) -> bool:
        if node.value is not None:
            self._assign_to(node.target, node.value, function, owner)
        elif isinstance(node.target, ast.Name):
            self._assign_to(node.target, node, function, owner)
        return False

    def _augmented(self, node: ast.AugAssign, function: Function, owner: Class | None) -> bool:
        self._assign_to(node.target, node, function, owner)
        return False

    def _named(self, node: ast.NamedExpr, function: Function, owner: Class | None) -> bool:
        self._assign_to(node.target, node.value, function, owner)
        return False

    def _with(self, node: ast.With | ast.AsyncWith, function: Function, owner: Class | None) -> bool:
        function.withs.append(node)
        for item in node.items:
            if item.optional_vars is not None:
                self._assign_to(item.optional_vars, item.context_expr, function, owner)
        return False

    def _handler(self, node: ast.ExceptHandler, function: Function, owner: Class | None) -> bool:
        if node.name is not None:
            function.assigned.setdefault(node.name, []).append(node)
        return False

    def _import(self, node: ast.Import, function: Function, owner: Class | None) -> bool:
        for alias in node.names:
            top = alias.name if alias.asname else alias.name.partition(".")[0]
            self._module.imports[alias.asname or top] = top
        return True

    def _import_from(self, node: ast.ImportFrom, function: Function, owner: Class | None) -> bool:
        origin = self._origin(node)
        for alias in node.names:
            self._module.imports[alias.asname or alias.name] = f"{origin}.{alias.name}" if origin else alias.name
        return True

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self._module.name.split(".")
        up = node.level - self._module.is_package
        parts = parts[: len(parts) - up] if up else parts
        return ".".join([*parts, *([node.module] if node.module else [])])

    def _assign_to(self, target: ast.expr, value: ast.AST, function: Function, owner: Class | None) -> None:
        if isinstance(target, ast.Name):
            if owner is not None:
                owner.attributes.setdefault(target.id, []).append((value, function))
            else:
                function.assigned.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Attribute):
            method = enclosing_method(function)
            if method is not None and method.owner is not None and is_self(target.value, method):
                method.owner.attributes.setdefault(target.attr, []).append((value, function))
        elif isinstance(target, ast.Tuple | ast.List):
            values: list[ast.AST] = [value] * len(target.elts)
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                values = list(value.elts)
            elif isinstance(value, ast.expr):
                values = [target] * len(target.elts)  # unpacked: no expression stands for one of the values
            for part, one in zip(target.elts, values, strict=True):
                self._assign_to(part, one, function, owner)
        elif isinstance(target, ast.Starred):
            self._assign_to(target.value, target, function, owner)


HANDLERS: dict[type, Callable[[_Indexer, Any, Function, Class | None], bool]] = {
    ast.FunctionDef: _Indexer._define,
    ast.AsyncFunctionDef: _Indexer._define,
    ast.ClassDef: _Indexer._class,
    ast.Call: _Indexer._call,
    ast.Await: _Indexer._await,
    ast.For: _Indexer._loop,
    ast.AsyncFor: _Indexer._loop,
    ast.While: _Indexer._loop,
    ast.comprehension: _Indexer._comprehension,
    ast.Assign: _Indexer._assign,
    ast.AnnAssign: _Indexer._annotated,
    ast.AugAssign: _Indexer._augmented,
    ast.NamedExpr: _Indexer._named,
    ast.With: _Indexer._with,
    ast.AsyncWith: _Indexer._with,
    ast.ExceptHandler: _Indexer._handler,
    ast.Import: _Indexer._import,
    ast.ImportFrom: _Indexer._import_from,
}


def enclosing_method(function: Function) -> Function | None:
    """Return the method that a function is or lies in."""
    here: Function | None = function
    while here is not None and here.owner is None:
        here = here.parent
    return here


def is_self(node: ast.AST, method: Function) -> bool:
    """Return whether an expression is the first parameter of a method."""
    return isinstance(node, ast.Name) and next(iter(method.parameters), None) == node.id


def inside(root: ast.AST | list[ast.stmt], functions: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes of a tree, without nested functions and classes unless they are asked for."""
    stack: list[ast.AST] = list(reversed(root)) if isinstance(root, list) else [root]
    while stack:
        node = stack.pop()
        yield node
        if not functions and isinstance(node, FunctionNode | ast.ClassDef | ast.Lambda) and node is not root:
            continue
        for field in CHILDREN[node.__class__]:
            value = getattr(node, field, None)
            if isinstance(value, list):
                stack.extend(child for child in reversed(value) if isinstance(child, ast.AST))
            elif isinstance(value, ast.AST):
                stack.append(value)
