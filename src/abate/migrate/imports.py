"""Imports after a migration: what the new code needs is imported, and what is not used any more is not."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst
from libcst.metadata import ImportAssignment, Scope

from abate.migrate.edits import Edit, edited
from abate.migrate.source import Source, imported_package

Line = cst.SimpleStatementLine | cst.SimpleStatementSuite
STRINGS = (cst.SimpleString, cst.ConcatenatedString)
SmallImport = cst.Import | cst.ImportFrom


def with_imports(
    before: Source, after: Source, packages: Collection[str], needed: Collection[str], kept: Collection[str]
) -> str:
    """Return the code of a migrated file with its imports put right.

    * `packages` are those that were migrated from: their names that the file used before, and uses no more, are
      removed, except those that are `kept` for other files.
    * `needed` are the modules to import, where the first import of such a package was.
    """
    used_before = _used(before, packages)
    unused = {name for name, count in _used(after, packages).items() if count == 0 and used_before.get(name)}
    unused -= {*kept, *after.exported}
    edits: list[Edit] = []
    provided: set[Scope] = set()
    lines = _lines(after, packages)
    at_top = any(_is_conditional(after, line) for line in lines) and not _is_only_of_a_function(after, lines)
    for line in [line for line in lines if isinstance(line, cst.SimpleStatementLine)]:
        scope = after.scopes[line]
        assert scope is not None
        wanted = [] if at_top or scope in provided else [name for name in sorted(needed) if not _is_bound(scope, name)]
        body = [part for small in line.body for part in _without(small, packages, unused)]
        if not wanted and body == list(line.body):
            continue
        provided.add(scope)
        edits.append((line, _line(line, body, wanted)))
    module = edited(after.module, edits)
    assert isinstance(module, cst.Module)
    if at_top:
        scope = after.scopes[after.module]
        assert scope is not None
        wanted = [name for name in sorted(needed) if not _is_bound(scope, name)]
        module = _with_first(module, [cst.SimpleStatementLine([_import(name)]) for name in wanted])
    return module.code


def _is_conditional(source: Source, line: Line) -> bool:
    """Return whether an import is not made by all code of its scope: within an ``if``, for one, or in a function."""
    return not (isinstance(line, cst.SimpleStatementLine) and isinstance(source.parents[line], cst.Module))


def _is_only_of_a_function(source: Source, lines: list[Line]) -> bool:
    """Return whether one function imports, for itself, and nothing else does."""
    function = source.parents.get(source.parents[lines[0]])
    alone = len(lines) == 1 and isinstance(lines[0], cst.SimpleStatementLine)
    return alone and isinstance(function, cst.FunctionDef) and "global " not in source.code(function)


def _with_first(module: cst.Module, imports: list[cst.SimpleStatementLine]) -> cst.Module:
    """Return a module with imports at its top, after its docstring and what it takes from the future."""
    place = 0
    for number, line in enumerate(module.body):
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
        future = isinstance(small, cst.ImportFrom) and getattr(small.module, "value", "") == "__future__"
        docstring = number == 0 and isinstance(small, cst.Expr) and isinstance(small.value, STRINGS)
        if not (future or docstring):
            break
        place = number + 1
    return module.with_changes(body=[*module.body[:place], *imports, *module.body[place:]])


def _line(line: cst.SimpleStatementLine, body: list[cst.BaseSmallStatement], wanted: list[str]) -> cst.CSTNode:
    new = [cst.SimpleStatementLine([_import(name)]) for name in wanted]
    if new:
        new[0] = new[0].with_changes(leading_lines=line.leading_lines)
    if body:
        last = body[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
        leading = [] if new else line.leading_lines
        new.append(line.with_changes(body=[*body[:-1], last], leading_lines=leading))
    if not new:
        return cst.RemovalSentinel.REMOVE  # type: ignore[return-value]
    return new[0] if len(new) == 1 else cst.FlattenSentinel(new)  # type: ignore[return-value]


def _import(name: str) -> cst.Import:
    statement = cst.parse_statement(f"import {name}")
    assert isinstance(statement, cst.SimpleStatementLine)
    small = statement.body[0]
    assert isinstance(small, cst.Import)
    return small


def _lines(source: Source, packages: Collection[str]) -> list[Line]:
    """Return the lines of a file that import from these packages."""
    found: list[Line] = []

    class Visitor(cst.CSTVisitor):
        def visit_SimpleStatementSuite(self, node: cst.SimpleStatementSuite) -> bool:
            return self.visit_SimpleStatementLine(node)

        def visit_SimpleStatementLine(self, node: Line) -> bool:
            if any(isinstance(small, SmallImport) and _packages(small) & set(packages) for small in node.body):
                found.append(node)
            return False

    source.module.visit(Visitor())
    return found


def _packages(statement: SmallImport) -> set[str]:
    """Return the top-level packages that a statement imports from."""
    if isinstance(statement, cst.ImportFrom):
        if statement.relative or statement.module is None:
            return set()
        return {_dotted(statement.module).split(".")[0]}
    return {_dotted(alias.name).split(".")[0] for alias in statement.names}


def _dotted(node: cst.BaseExpression) -> str:
    return f"{_dotted(node.value)}.{node.attr.value}" if isinstance(node, cst.Attribute) else getattr(node, "value", "")


def _bound_name(alias: cst.ImportAlias) -> str:
    if alias.asname is not None:
        return _dotted(alias.asname.name)
    return _dotted(alias.name).split(".")[0]


def _without(
    small: cst.BaseSmallStatement, packages: Collection[str], unused: Collection[str]
) -> list[cst.BaseSmallStatement]:
    """Return a statement without the names that are not used any more; nothing if it imports nothing else."""
    if not isinstance(small, SmallImport) or isinstance(small.names, cst.ImportStar):
        return [small]
    if isinstance(small, cst.ImportFrom) and not _packages(small) & set(packages):
        return [small]
    left = [alias for alias in small.names if not (_bound_name(alias) in unused and _is_of(small, alias, packages))]
    if len(left) == len(small.names):
        return [small]
    if not left:
        return []
    last = left[-1]
    if isinstance(small, cst.ImportFrom) and small.lpar is not None and isinstance(small.names[-1].comma, cst.Comma):
        left[-1] = last.with_changes(comma=small.names[-1].comma)
    else:
        left[-1] = last.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return [small.with_changes(names=left)]


def _is_of(small: SmallImport, alias: cst.ImportAlias, packages: Collection[str]) -> bool:
    return isinstance(small, cst.ImportFrom) or _dotted(alias.name).split(".")[0] in packages


def _used(source: Source, packages: Collection[str]) -> dict[str, int]:
    """Return how often each name is used that was imported from these packages."""
    counts: dict[str, int] = {}
    for scope in {scope for scope in source.scopes.values() if scope is not None}:
        for assignment in scope.assignments:
            if isinstance(assignment, ImportAssignment) and imported_package(assignment) in packages:
                counts[assignment.name] = counts.get(assignment.name, 0) + len(assignment.references)
    # `import a.b` binds and is counted as "a.b"
    short: dict[str, int] = {}
    for name, count in counts.items():
        short[name.split(".")[0]] = short.get(name.split(".")[0], 0) + count
    return short


def _is_bound(scope: Scope, name: str) -> bool:
    return any(isinstance(one, ImportAssignment) for one in scope[name])
