"""Places where stamina retries: its decorator, its blocks and its callers."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from abate.migrate import conditions, waits
from abate.migrate.blocks import Blocks
from abate.migrate.edits import Edit
from abate.migrate.facts import Facts
from abate.migrate.plan import FOREVER, NotMapped, Number, Plan
from abate.migrate.sites import Site, check_function, expression, policy, say_timeout, set_attempts
from abate.migrate.source import Source

PEER = "stamina"
LIMITS = ("attempts", "timeout", "wait_initial", "wait_max", "wait_jitter", "wait_exp_base")
DEFAULTS = dict(zip(LIMITS, map(Number.of, (10, 45, 0.1, 5, 1, 2)), strict=True)) | {"attempts": Number("10", 10.0)}
SWITCHES = ("stamina.set_active", "stamina.set_testing")


def find(source: Source, facts: Facts) -> Iterator[Site]:
    """Yield the places of a file where stamina retries, with what becomes of each."""
    for node in source.references(PEER):
        name = (source.imported(node) or "").removeprefix("stamina._core.").removeprefix("stamina.")
        if name in ("retry", "retry_context"):
            yield _Reader(source, facts).site_at(node, block=name == "retry_context")
        elif name in ("RetryingCaller", "AsyncRetryingCaller"):
            yield _Reader(source, facts).caller(node, asynchronous=name == "AsyncRetryingCaller")


class _Reader:
    def __init__(self, source: Source, facts: Facts) -> None:
        self.source = source
        self.facts = facts
        self.site = Site(PEER, 0, "")
        self.plan: Plan = self.site.plan

    def site_at(self, node: cst.Name | cst.Attribute, block: bool) -> Site:
        """Read a decorator or a block."""
        source, call = self.source, self.source.parents[node]
        self.site.line, self.site.title = source.line(node), source.title(call)
        try:
            source.check_binding(node)
            if not isinstance(call, cst.Call) or call.func is not node:
                raise NotMapped(f"{source.code(node)} is used as a value: what becomes of it can't be followed")
            outer = source.parents[call]
            function = check_function(source, outer, PEER, frozenset())
            asynchronous = (
                function.asynchronous is not None if function else getattr(outer, "asynchronous", None) is not None
            )
            given = source.arguments(call, ("on", *LIMITS) if block else ("on",))
            values = {name: argument.value for name, argument in given.items()}
            self._on(values.pop("on", None))
            self._limits(values, asynchronous)
            code = policy(
                source, call, "abate.Policy" if block else "abate.retry", self.plan, call, source.column(call)
            )
            if block:
                self.site.edits += Blocks(source, self.plan, asynchronous, self._attempt_edit).edits(call, code)
            else:
                self.site.edits.append((call, expression(source, code)))
        except NotMapped as error:
            self.site.reason = str(error)
        return self.site

    def caller(self, node: cst.Name | cst.Attribute, asynchronous: bool) -> Site:
        """Read a caller that is bound to its errors and called at once."""
        source, call = self.source, self.source.parents[node]
        self.site.line, self.site.title = source.line(node), source.title(call)
        try:
            source.check_binding(node)
            bound = source.parents[call]
            on_call = source.parents[bound]
            if not (
                isinstance(call, cst.Call)
                and isinstance(bound, cst.Attribute)
                and bound.attr.value == "on"
                and isinstance(on_call, cst.Call)
                and len(on_call.args) == 1
            ):
                raise NotMapped("only a caller that is bound at once by .on(…) is rewritten")
            given = source.arguments(call, LIMITS)
            self._on(on_call.args[0].value)
            self._limits({name: argument.value for name, argument in given.items()}, asynchronous)
            code = policy(source, on_call, "abate.Policy", self.plan, call, source.column(call))
            self.site.edits += Blocks(source, self.plan, asynchronous, self._attempt_edit).edits(on_call, code)
        except NotMapped as error:
            self.site.reason = str(error)
        return self.site

    def _attempt_edit(self, attempt: cst.Name) -> Edit:
        outer = self.source.parents[attempt]
        if isinstance(outer, cst.Attribute) and outer.value is attempt and outer.attr.value == "num":
            return outer, expression(self.source, f"{attempt.value}.number")
        raise NotMapped(f"{self.source.code(outer)} on line {self.source.line(attempt)} has no equivalent")

    def _on(self, node: cst.BaseExpression | None) -> None:
        """Take ``on`` as it is: types, or a function that says whether, or after how long, to retry."""
        if node is None:
            raise NotMapped("on= is missing")
        if isinstance(node, (cst.Tuple, cst.Name, cst.Attribute)) and not self.source.is_function(node):
            conditions.errors_of(self.source, node, self.plan).write(self.plan)
            return
        self.plan.settings["on"] = self.source.code(node)
        self.plan.say_interruptions()
        self.plan.changed.append("a wait that the function returns is a hint: jitter is added to it")

    def _limits(self, values: dict[str, cst.BaseExpression], asynchronous: bool) -> None:
        if unknown := [name for name in values if name not in LIMITS]:
            raise NotMapped(f"stamina has no setting {', '.join(unknown)}")
        found: dict[str, Number | None] = dict(DEFAULTS)
        for name, node in values.items():
            found[name] = None if self.source.code(node) == "None" else self.source.number(node)
        attempts, seconds = found["attempts"], found["timeout"]
        if attempts is None and seconds is None:
            self.plan.never_ends(PEER)
        elif attempts is None:
            self.plan.settings["max_attempts"] = "None"
        else:
            set_attempts(self.plan, attempts)
        if seconds is not None:
            self.plan.settings["timeout"] = seconds.code
            say_timeout(self.plan, seconds, asynchronous, exceeded=True)
        self._waits({name: number or waits.ZERO for name, number in found.items()})
        if self.facts.switches:
            self.plan.changed.append(
                f"{self.facts.switches} does not switch it off any more; tests use abate.testing.off()"
            )

    def _waits(self, found: dict[str, Number]) -> None:
        start, extra = found["wait_initial"], found["wait_jitter"]
        no_jitter = extra.value == 0
        wait = waits.Exponential(
            start, found["wait_exp_base"], found["wait_max"], waits.ZERO, "none" if no_jitter else "extra", extra
        )
        waits.write_backoff(wait, None, self.plan)
        if self.plan.settings["max_attempts"] == "None" and self.plan.settings["backoff"] == "[0.0]":
            self.plan.settings["max_attempts"] = FOREVER
