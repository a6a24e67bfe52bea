"""Breaks the source on purpose, one small change at a time, and lists the changes that no test noticed.

    make mutation                                                # every change to schedule/ and admit/
    python benchmarks/mutation.py stores/fleet/shelter_rules.py        # every change to this file
    python benchmarks/mutation.py --sample 160 --seed 1          # some changes to call/, work/, stores/, observe/

A changed file is tested by its own tests (they mirror the source), and in a sample by the other tests of its folder
too. A change is made in memory, in a forked child of a process that has imported pytest already, so that hundreds of
changes take minutes: comparisons, arithmetic and logic are inverted, numbers and booleans changed, conditions forced,
statements dropped.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import copy
import functools
import importlib.machinery
import importlib.util
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent
AREAS = ("schedule", "admit")
WORKERS = int(os.environ.get("MUTATION_WORKERS", "2"))
PATIENCE, CPU = 90.0, 20
SAMPLE_PATIENCE, SAMPLE_CPU = 150.0, 100
"""Seconds, of time and of the processor. Tests that take longer count as failed: the change has made them hang."""

SAMPLED = (
    "call/*.py",
    "work/*.py",
    "stores/budget.py",
    "stores/fleet/*.py",
    "stores/*/queue.py",
    *(
        f"observe/{name}.py"
        for name in (
            "snapshot",
            "queue_depths",
            "log_writer",
            "log_episode",
            "log_sampler",
            "metric_series",
            "lasting_totals",
            "call_outcomes",
            "event_text",
        )
    ),
    *(f"observe/{name}.py" for name in ("detached", "installing", "logging", "prometheus")),
)
QUEUES = tuple(
    f"conformance/test_{name}.py" for name in ("queue", "leases", "add_counts", "validation", "waiting", "queue_model")
)
AROUND = {
    "call": ("call/test_*.py",),
    "work": ("work/test_*.py",),
    "stores": ("conformance/test_store_budget.py", "conformance/test_fleet_sync.py", "-k", "memory"),
    "stores/fleet": ("stores/fleet/test_*.py",),
    "stores/sqlite": (*QUEUES, "stores/sqlite/test_*.py", "-k", "memory or sqlite"),
    "stores/redis": (*QUEUES, "stores/redis/test_store.py", "stores/redis/test_sharing.py", "-k", "redis"),
    "stores/postgres": (*QUEUES, "stores/postgres/test_*.py", "-k", "postgres"),
    "observe": tuple(
        f"observe/test_{name}.py"
        for name in (
            "log_sampler",
            "log_sampler_storms",
            "logging",
            "prometheus*",
            "detached",
            "call_outcomes",
            "queue_adds",
            "extras",
        )
    ),
}
"""By folder: the tests that a sample's changes are put to after those of their own file."""

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


def changes(tree: ast.Module) -> Iterator[tuple[str, Callable[[], ast.Module]]]:
    """Every change to a module: what it is, and how to make the module with it."""
    silent = set()  # annotations and lists of names do nothing that a test could notice
    for node in ast.walk(tree):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            silent |= {id(inner) for inner in ast.walk(part)} if isinstance(part, ast.AST) else set()
        if isinstance(node, ast.Assign) and any("__slots__" in ast.unparse(target) for target in node.targets):
            silent |= {id(inner) for inner in ast.walk(node)}
    for place, node in enumerate(ast.walk(tree)):
        if id(node) not in silent:
            for what, change in changes_of(node):
                yield f"line {getattr(node, 'lineno', '?')}: {what}", functools.partial(changed, tree, place, change)


def changed(tree: ast.Module, place: int, change: Callable[[ast.AST], object]) -> ast.Module:
    """The module with one change."""
    whole = copy.deepcopy(tree)
    change(list(ast.walk(whole))[place])
    return ast.fix_missing_locations(whole)


def changes_of(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], object]]]:
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


def noticed(module: str, tree: ast.Module, tests: list[str], cpu: int) -> int:
    """Start a child that runs the tests on the changed module: its exit code is 0 if none fails."""
    child = os.fork()
    if child:
        return child
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    sys.meta_path.insert(
        0, Finder(f"abate.{module.removesuffix('.py').replace('/', '.')}", ROOT / "src/abate" / module, tree)
    )
    code = 1
    try:
        import pytest

        # plain assertions: pytest's own import hook would find the module on disk
        code = pytest.main(["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", *tests])
        atexit._run_exitfuncs()  # servers that tests have started
    finally:
        os._exit(int(code))


def ended(child: int) -> None:
    """Leave nothing behind of a child's session: its tests may have been broken off."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def own_tests(module: str) -> list[str]:
    """The tests that mirror a module."""
    folder, name = os.path.split(module.removesuffix(".py"))
    return sorted(str(file) for file in (ROOT / "tests" / folder).glob(f"test_{name}*.py"))


def tests_around(module: str) -> list[str]:
    """The tests that mirror a module, and then the others of its folder."""
    found, options = own_tests(module), []
    for pattern in AROUND[os.path.dirname(module)]:
        if pattern.startswith("-k") or options:
            options.append(pattern)
        else:
            found += sorted(str(file) for file in (ROOT / "tests").glob(pattern) if str(file) not in found)
    return found + options


sound: set[frozenset[str]] = set()
"""Tests that pass without any change."""


def survivors(
    module: str, chosen: list[tuple[str, Callable[[], ast.Module]]], tests: list[str], patience: float, cpu: int
) -> list[str]:
    """Of these changes to a module, those that no test noticed."""
    if frozenset(tests) not in sound:
        whole = ast.parse((ROOT / "src/abate" / module).read_text())
        # three times, as a busy machine may upset one that waits for real threads and processes
        if all(os.waitpid(noticed(module, whole, tests, cpu), 0)[1] for _ in range(3)):
            raise SystemExit(f"the tests of {module} fail without any change")
        sound.add(frozenset(tests))
    waiting, survived, running = list(chosen), [], {}
    while waiting or running:
        while waiting and len(running) < WORKERS:
            what, make = waiting.pop(0)
            running[noticed(module, make(), tests, cpu)] = (what, time.monotonic() + patience)
        time.sleep(0.02)
        for child, (what, due) in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                del running[child]
                ended(child)
                if status == 0:
                    survived.append(what)
            elif time.monotonic() > due:
                os.killpg(child, signal.SIGKILL)
    return survived


def every_change(module: str) -> list[tuple[str, Callable[[], ast.Module]]]:
    return list(changes(ast.parse((ROOT / "src/abate" / module).read_text())))


def files(*patterns: str) -> list[str]:
    """The modules that match."""
    source = ROOT / "src/abate"
    return [
        str(file.relative_to(source))
        for pattern in patterns
        for file in sorted(source.glob(pattern))
        if not file.name.startswith("_")
    ]


def main() -> int:
    import hypothesis
    import trio  # noqa: F401  imported here, so that children needn't

    parser = argparse.ArgumentParser(description="Break the source on purpose, and list what no test noticed.")
    parser.add_argument("modules", nargs="*", help="as admit/sliding_window.py")
    parser.add_argument("--sample", type=int, metavar="N", help="N changes, chosen at random from all modules")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    hypothesis.settings.register_profile("mutation", max_examples=25, derandomize=True, database=None, deadline=None)
    hypothesis.settings.load_profile("mutation")
    modules = asked.modules or (files(*SAMPLED) if asked.sample else files(*(f"{area}/*.py" for area in AREAS)))
    chosen = {module: every_change(module) for module in modules}
    if asked.sample:
        everything = [(module, change) for module in modules for change in chosen[module]]
        picked = random.Random(asked.seed).sample(everything, min(asked.sample, len(everything)))
        chosen = {module: [change for of, change in picked if of == module] for module in modules}
    print("| file | changes tried | survived |\n|---|---:|---:|", flush=True)
    for module, some in chosen.items():
        if not some:
            continue
        if asked.sample:
            survived = survivors(module, some, tests_around(module), SAMPLE_PATIENCE, SAMPLE_CPU)
        else:
            survived = survivors(module, some, own_tests(module), PATIENCE, CPU)
        print(f"| {module} | {len(some)} | {len(survived)} |", flush=True)
        for what in survived:
            print(f"survived in {module}, {what}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
