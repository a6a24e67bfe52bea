"""The audited program: its modules, their names, and the retries in them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from abate.audit.findings import Spot
from abate.audit.module_index import Function, Module
from abate.audit.names import Names
from abate.audit.retries import Retries
from abate.audit.source_files import SourceFile


class ResolvedCall:
    """A call, and the name of what it calls."""

    __slots__ = ("function", "name", "node")

    def __init__(self, node: ast.Call, name: str | None, function: Function) -> None:
        self.node, self.name, self.function = node, name, function


class Program:
    """The modules that are audited together."""

    def __init__(self, sources: Iterable[SourceFile]) -> None:
        self.modules: dict[str, Module] = {}
        for source in sources:
            name, is_package = module_name(source.path)
            while name in self.modules:  # scripts of the same name in two folders
                name += "+"
            self.modules[name] = Module(name, source, is_package)
        self.names = Names(self.modules)
        self.functions = [function for module in self.modules.values() for function in module.functions]
        self.calls: dict[int, ResolvedCall] = {}
        """All calls, by the id of their node."""
        for function in self.functions:
            for call in function.calls:
                self.calls[id(call)] = ResolvedCall(call, self.names.resolve(call.func, function), function)
        self.retries: list[Retries] = []
        from abate.audit.readers.all_libraries import read_all

        read_all(self)

    def spot(self, node: ast.AST, function: Function, message: str, library: str = "") -> Spot:
        """Return the place of a node."""
        line = getattr(node, "lineno", 1)
        last = getattr(node, "end_lineno", line)
        body = getattr(node, "body", None)
        if isinstance(body, list) and body:  # a comment behind any line of the head belongs to the statement
            last = max(line, body[0].lineno - 1)
        return Spot(
            function.module.source.shown, line, getattr(node, "col_offset", 0) + 1, last or line, message, library
        )


def module_name(path: Path) -> tuple[str, bool]:
    """Return the dotted name of a file by the packages around it, and whether it is a package itself."""
    parts = [] if path.stem == "__init__" else [path.stem]
    folder = path.absolute().parent
    while (folder / "__init__.py").is_file() and len(parts) < 50:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts) or path.absolute().parent.name, path.stem == "__init__"
