"""Breaks schedule/ and admit/ on purpose, one small change at a time, and lists the changes that no test noticed.

    make mutation
    python benchmarks/mutation.py admit/window.py schedule/hints.py

Each file is put to its own tests (they mirror the source). A change is made in memory, in a forked child of a process
that has imported pytest already, so that hundreds of changes take minutes: comparisons, arithmetic and logic are
turned round, numbers and truths changed, conditions forced, statements dropped.
"""

from __future__ import annotations

import ast
import copy
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
AREAS = ("schedule", "admit")
WORKERS = 2
PATIENCE = 90.0
CPU = 20
"""Seconds, by the clock and of the processor; tests that take longer have noticed: the change has made them hang."""

TURNED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def changes(tree: ast.Module) -> Iterator[tuple[str, ast.Module]]:
    """Every change to a module: what it is, and the module with it."""
    silent = set()  # annotations and lists of names do nothing that a test could notice
    for node in ast.walk(tree):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            silent |= {id(inner) for inner in ast.walk(part)} if isinstance(part, ast.AST) else set()
        if isinstance(node, ast.Assign) and any("__slots__" in ast.unparse(target) for target in node.targets):
            silent |= {id(inner) for inner in ast.walk(node)}
    for place, node in enumerate(ast.walk(tree)):
        if id(node) not in silent:
            for what, change in changes_of(node):
                changed = copy.deepcopy(tree)
                change(list(ast.walk(changed))[place])
                yield f"line {getattr(node, 'lineno', '?')}: {what}", ast.fix_missing_locations(changed)


def changes_of(node: ast.AST) -> Iterator[tuple[str, object]]:
    """The changes to one node, each as a function that makes it in place."""
    text = ast.unparse(node).split("\n")[0][:90]
    if isinstance(node, ast.Compare):
        yield f"{text}, turned", lambda it: setattr(it, "ops", [TURNED[type(it.ops[0])](), *it.ops[1:]])
    elif (isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in TURNED) or isinstance(node, ast.BoolOp):
        yield f"{text}, turned", lambda it: setattr(it, "op", TURNED[type(it.op)]())
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{text}, flipped", lambda it: setattr(it, "value", not it.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield f"{text}, plus one", lambda it: setattr(it, "value", it.value + 1)
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        kind = type(node).__name__.lower()
        condition = ast.unparse(node.test)[:80]
        if not isinstance(node, ast.While):
            yield f"{kind} {condition}, always", lambda it: setattr(it, "test", ast.Constant(True))
        yield f"{kind} {condition}, never", lambda it: setattr(it, "test", ast.Constant(False))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"{text}, without not", lambda it: setattr(it, "op", ast.UAdd())
    for field in ("body", "orelse", "finalbody"):
        statements = getattr(node, field, None)
        for index, statement in enumerate(statements if isinstance(statements, list) else ()):
            if "__slots__" in ast.unparse(statement).split("=")[0]:
                continue
            if isinstance(statement, (ast.Assign, ast.AugAssign, ast.Return, ast.Raise)) or (
                isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Constant)
            ):
                dropped = ast.unparse(statement).split("\n")[0][:90]
                yield (
                    f"{dropped} (line {statement.lineno}), dropped",
                    lambda it, field=field, index=index: getattr(it, field).__setitem__(index, ast.Pass()),
                )


class Changed(importlib.machinery.SourceFileLoader):
    """Loads a module from a changed tree."""

    tree: ast.Module

    def get_code(self, fullname: str) -> object:
        return compile(self.tree, self.path, "exec")


class Finder:
    """Finds the changed module in place of the one on disk."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self.name = name
        self.loader = Changed(name, str(path))
        self.loader.tree = tree

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.loader.path, loader=self.loader)


def noticed(module: str, tree: ast.Module, tests: list[str]) -> int:
    """Start a child that runs the tests on the changed module: its exit code is 0 if none fails."""
    child = os.fork()
    if child:
        return child
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU))
    sys.meta_path.insert(
        0, Finder(f"abate.{module.removesuffix('.py').replace('/', '.')}", ROOT / "src/abate" / module, tree)
    )
    code = 1
    try:
        import pytest

        # plain assertions: pytest's own import hook would find the module on disk
        code = pytest.main(["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:abate", *tests])
    finally:
        os._exit(int(code))


def mutate(module: str) -> tuple[int, list[str]]:
    """How many changes were tried, and those that survived."""
    area, name = module.removesuffix(".py").split("/")
    tests = sorted(str(file) for file in (ROOT / "tests" / area).glob(f"test_{name}*.py"))
    whole = ast.parse((ROOT / "src/abate" / module).read_text())
    if os.waitpid(noticed(module, whole, tests), 0)[1]:
        raise SystemExit(f"the tests of {module} fail without any change")
    waiting = list(changes(whole))
    tried, survived, running = len(waiting), [], {}
    while waiting or running:
        while waiting and len(running) < WORKERS:
            what, tree = waiting.pop(0)
            running[noticed(module, tree, tests)] = (what, time.monotonic() + PATIENCE)
        time.sleep(0.02)
        for child, (what, due) in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                del running[child]
                if status == 0:
                    survived.append(what)
            elif time.monotonic() > due:
                os.killpg(child, signal.SIGKILL)
    return tried, survived


def main() -> int:
    import hypothesis
    import trio  # noqa: F401  imported here, so that children needn't

    hypothesis.settings.register_profile("mutation", max_examples=25, derandomize=True, database=None, deadline=None)
    hypothesis.settings.load_profile("mutation")
    modules = sys.argv[1:] or [
        f"{area}/{file.name}" for area in AREAS for file in sorted((ROOT / "src/abate" / area).glob("[!_]*.py"))
    ]
    print("| file | changes tried | survived |\n|---|---:|---:|", flush=True)
    for module in modules:
        tried, survived = mutate(module)
        print(f"| {module} | {tried} | {len(survived)} |", flush=True)
        for what in survived:
            print(f"survived in {module}, {what}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
