"""Objects that retry a block or a call: where they go, and the policy's own form for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import Assignment

from abate.migrate.edits import Edit
from abate.migrate.plan import NotMapped, Plan
from abate.migrate.sites import expression, refuse_generator
from abate.migrate.source import Source, names_in


@dataclass(frozen=True)
class Blocks:
    """Rewrites the uses of an object that retries.

    `attempt_edit` is the edit for a use of an attempt, and `judges` says whether results are retried.
    """

    source: Source
    plan: Plan
    asynchronous: bool
    attempt_edit: Callable[[cst.Name], Edit]
    judges: bool = False

    def edits(self, call: cst.Call, code: str) -> list[Edit]:
        """Return the edits for a call that makes such an object; `code` makes the policy instead."""
        used = self._use(call, code)
        if used is not None:
            return used
        assigned = self.source.parents[call]
        target = assigned.targets[0].target if isinstance(assigned, cst.Assign) and len(assigned.targets) == 1 else None
        if isinstance(target, cst.Name):
            return [(call, expression(self.source, code)), *self._uses_of(target)]
        raise NotMapped("what becomes of this object can't be followed")

    def _uses_of(self, target: cst.Name) -> list[Edit]:
        source, name = self.source, target.value
        scope = source.scopes[target]
        assert scope is not None
        found = list(scope[name])
        if len(found) != 1 or not isinstance(found[0], Assignment):
            raise NotMapped(f"{name} is assigned more than once")
        if name in source.exported or not found[0].references:
            raise NotMapped(f"what becomes of {name} outside this file can't be followed")
        edits: list[Edit] = []
        for access in found[0].references:
            assert isinstance(access.node, cst.Name)
            used = self._use(access.node, name)
            if used is None:
                raise NotMapped(f"the use of {name} on line {source.line(access.node)} has no equivalent")
            edits += used
        return edits

    def _use(self, node: cst.Call | cst.Name, code: str) -> list[Edit] | None:
        """Return the edits for one use of an object that retries; None if it is a use that is not known."""
        source, parent = self.source, self.source.parents[node]
        self._check_called(parent)
        method = "acall" if self.asynchronous else "call"
        if isinstance(parent, cst.For) and parent.iter is node:
            return [(node, expression(source, f"{code}.attempts()")), *self._attempts(parent)]
        if isinstance(parent, cst.Call) and parent.func is node:
            return [(node, expression(source, f"{code}.{method}"))]
        if isinstance(parent, cst.Attribute) and parent.value is node:
            outer = source.parents[parent]
            if isinstance(outer, cst.Call) and outer.func is parent and parent.attr.value == "call":
                return [(parent, expression(source, f"{code}.{method}"))]
            called = isinstance(outer, cst.Call) and outer.func is parent
            if parent.attr.value == "wraps" and (called or isinstance(outer, cst.Decorator)):
                return [(parent, expression(source, code))]
        return None

    def _check_called(self, use: cst.CSTNode) -> None:
        """Raise an error if a function is called that the old object treats differently."""
        source, outer = self.source, self.source.parents.get(use)
        function: cst.FunctionDef | None = None
        if isinstance(use, cst.Attribute) and isinstance(outer, cst.Decorator):
            decorated = source.parents[outer]
            function = decorated if isinstance(decorated, cst.FunctionDef) else None
        for call in (use, outer):
            if isinstance(call, cst.Call) and call.args and not isinstance(call.args[0].value, cst.Call):
                function = function or source.function(call.args[0].value)
        refuse_generator(function, "an object that retries")
        if function is not None and function.asynchronous is not None and not self.asynchronous:
            raise NotMapped(f"{function.name.value} is a coroutine function, which is never retried by this object")

    def _uses_after(self, loop: cst.For, name: str) -> list[cst.Name]:
        """Return where the last attempt of a loop is used after it."""
        source = self.source
        scope = source.scopes[loop.target]
        assert scope is not None
        nodes = {access.node for one in scope[name] for access in one.references}
        outside = [node for node in nodes if isinstance(node, cst.Name) and not source.is_inside(node, loop)]
        if outside and len(list(scope[name])) != 1:
            raise NotMapped(f"{name} is the attempt of several loops, and is used on line {source.line(outside[0])}")
        return outside

    def _attempts(self, loop: cst.For) -> list[Edit]:
        """Return the edits for the uses of the loop's variable."""
        source = self.source
        if not isinstance(loop.target, cst.Name) or not isinstance(loop.body, cst.IndentedBlock):
            raise NotMapped(f"the attempts of this loop go to {source.code(loop.target)}")
        name = loop.target.value
        entered = [statement for statement in loop.body.body if self._enters(statement, name)]
        if len(entered) != 1 or sum(isinstance(source.parents[use], cst.WithItem) for use in names_in(loop, name)) != 1:
            raise NotMapped(f"the loop does not enter {name} in one `with` of its own")
        (block,) = entered
        assert isinstance(block, cst.With)
        after = list(loop.body.body[loop.body.body.index(block) + 1 :])
        edits: list[Edit] = []
        if block.asynchronous is not None:
            edits.append((block.asynchronous, cst.RemovalSentinel.REMOVE))
        if after and (result := self._result(after[0], name)) is not None:
            edits += self._assigned(block, after.pop(0), name, result)
        elif self.judges:
            raise NotMapped(f"the results of a block are retried, but {name} is not told its result")
        if after:
            self.plan.changed.append("what follows the `with` in the loop is not run after the last attempt has failed")
        gone = [old for old, _ in edits]
        for use in names_in(loop.body, name):
            if not isinstance(source.parents[use], cst.WithItem) and not any(
                source.is_inside(use, old) for old in gone
            ):
                edits.append(self.attempt_edit(use))
        edits += [self.attempt_edit(use) for use in self._uses_after(loop, name)]
        return edits

    def _enters(self, statement: cst.BaseStatement, name: str) -> bool:
        """Return whether a statement is ``with`` an attempt."""
        if not isinstance(statement, cst.With):
            return False
        items = [item for item in statement.items if self.source.code(item.item) == name]
        if items and (items[0].asname is not None or (statement.asynchronous is not None and len(statement.items) > 1)):
            raise NotMapped(f"this `with` of {name} has no equivalent")
        return bool(items)

    def _result(self, statement: cst.BaseStatement, name: str) -> str | None:
        """Return what a statement after the ``with`` sets as the result of the attempt."""
        lines = self.source.code(statement).split(":", 1)
        state = f"{name}.retry_state"
        if lines[0] != f"if not {state}.outcome.failed" or len(lines) != 2:
            return None
        call = lines[1].strip()
        start = f"{state}.set_result("
        return call[len(start) : -1] if call.startswith(start) and call.endswith(")") and "\n" not in call else None

    def _assigned(self, block: cst.With, told: cst.BaseStatement, name: str, result: str) -> list[Edit]:
        """Return the edits that set the result within the ``with`` instead of after it."""
        if not isinstance(block.body, cst.IndentedBlock):
            raise NotMapped(f"this `with` of {name} has no equivalent")
        last = block.body.body[-1]
        if names_in(last, name):
            raise NotMapped(f"the last line of the `with` uses {name}")
        assigned = cst.parse_statement(f"{name}.result = {result}")
        return [(last, cst.FlattenSentinel([last, assigned])), (told, cst.RemovalSentinel.REMOVE)]
