"""Reads all retries of a program, and finds the code that each of them runs again."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from abate.audit.module_index import Function, FunctionNode, inside
from abate.audit.readers import abate, backoff, google, grpc, retrying, stamina, task_queues, tenacity, urllib3
from abate.audit.readers.given import Given
from abate.audit.readers.loops import LoopReader
from abate.audit.retries import Covered, Retries

if TYPE_CHECKING:
    from abate.audit.program import Program

Reader = Callable[[Given, str], Retries | None]

READERS: dict[str, Reader] = {
    "abate": abate.read,
    "aiohttp_retry": urllib3.read_options,
    "backoff": backoff.read,
    "google": google.read,
    "json": grpc.read,
    "requests": urllib3.read,
    "reretry": retrying.read_retry,
    "retry": retrying.read_retry,
    "retrying": retrying.read_retrying,
    "stamina": stamina.read,
    "tenacity": tenacity.read,
    "urllib3": urllib3.read,
}
"""By the first part of the name of what is called."""
BARE: dict[str, Callable[[ast.expr, Function], Retries]] = {
    "tenacity": tenacity.bare,
    "retrying": lambda node, function: retrying.bare("retrying", node, function),
    "retry": lambda node, function: retrying.bare("retry", node, function),
}
"""Decorators that need no arguments."""


def read_all(program: Program) -> None:
    """Find the retries of a program."""
    made: dict[int, Retries] = {}
    for resolved in program.calls.values():
        if resolved.name is None:
            continue
        first, _, rest = resolved.name.partition(".")
        reader = READERS.get(first)
        if reader is not None and "()" not in rest:
            found = reader(Given(resolved, program.names), rest.rpartition(".")[2] or first)
            if found is not None:
                made[id(resolved.node)] = found
    _Coverage(program, made).find()
    program.retries += made.values()
    loops = LoopReader(program.names)
    for function in program.functions:
        program.retries += loops.read(function)
    program.retries.sort(key=lambda one: (one.function.module.source.shown, getattr(one.node, "lineno", 0)))


class _Coverage:
    """Finds what is decorated with, looped over or passed to the objects that retry."""

    def __init__(self, program: Program, made: dict[int, Retries]) -> None:
        self._program, self._names, self._made = program, program.names, made

    def find(self) -> None:
        for function in self._program.functions:
            for decorator in function.decorators:
                self._decorated(decorator, function)
            for loop in function.loops:
                if not isinstance(loop, ast.While) and (retries := self._made_by(loop.iter, function)) is not None:
                    retries.covered.append(Covered(function, loop.body))
            for block in function.withs:
                for item in block.items:
                    if (retries := self._made_by(item.context_expr, function)) is not None:
                        retries.covered.append(Covered(function, block.body))
        for resolved in list(self._program.calls.values()):
            self._called(resolved.node, resolved.function)

    def _decorated(self, decorator: ast.expr, function: Function) -> None:
        assert function.parent is not None
        outside = function.parent
        retries = self._made_by(decorator, outside)
        if retries is not None:
            retries.covered.append(Covered(function))
            return
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = self._names.resolve(called, outside) or ""
        resolved = self._program.calls.get(id(decorator))
        given = None if resolved is None else Given(resolved, self._names)
        task: Retries | None = None
        if task_queues.is_task(name):
            task = task_queues.read_task(given, decorator, function, self._names)
        elif name in ("dramatiq.actor", "dramatiq.actor.actor"):
            task = task_queues.read_actor(given, decorator, function)
        elif given is None and name.rpartition(".")[2] == "retry" and (bare := BARE.get(name.partition(".")[0])):
            task = bare(decorator, outside)
            task.covered.append(Covered(function))
        if task is not None:
            self._made[id(decorator)] = task

    def _called(self, call: ast.Call, function: Function) -> None:
        """``retrying(f, …)``, ``retry(…)(f)``, ``retrying.call(f)``, ``caller.on(E)(f)``."""
        if not call.args or id(call) in self._made:
            return
        target = call.func
        if isinstance(target, ast.Attribute):
            if target.attr not in ("call", "wraps", "acall", "__call__"):
                return
            target = target.value
        elif not isinstance(target, ast.Name | ast.Call):
            return
        retries = self._made_by(target, function)
        if retries is None:
            return
        given = call.args[0]
        if isinstance(given, ast.Lambda):
            retries.covered.append(Covered(function, [ast.Expr(given.body)]))
            return
        covered = self._names.called(self._names.resolve(given, function))
        if covered is not None:
            retries.covered.append(Covered(covered))

    def _made_by(self, node: ast.expr, function: Function, depth: int = 0) -> Retries | None:
        """Return the retries that an expression stands for: a call, a name for it, or a function's result."""
        if depth > 4:
            return None
        value = self._names.follow(node, function)
        if not isinstance(value.node, ast.Call):
            return None
        if (found := self._made.get(id(value.node))) is not None:
            return found
        called = value.node.func
        if isinstance(called, ast.Attribute) and called.attr in (
            "attempts",
            "copy",
            "on",
            "wraps",
            "new",
            "with_timeout",
            "with_deadline",
        ):
            return self._made_by(called.value, value.function, depth + 1)
        made = self._names.called(self._names.resolve(called, value.function))
        if made is None or not isinstance(made.node, FunctionNode):
            return None
        for statement in inside(made.node):
            if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Call | ast.Name):
                found = self._made_by(statement.value, made, depth + 1)
                if found is not None:
                    return found
        return None
