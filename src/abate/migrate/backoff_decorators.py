"""Places where the library backoff retries: its decorators ``on_exception`` and ``on_predicate``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from abate.migrate import callbacks, conditions, waits
from abate.migrate.conditions import Condition
from abate.migrate.edits import edited
from abate.migrate.facts import Facts
from abate.migrate.plan import NotMapped, Number, Plan
from abate.migrate.sites import Site, check_function, expression, policy, say_timeout, set_attempts
from abate.migrate.source import Source
from abate.migrate.waits import Wait

PEER = "backoff"
DECORATORS = ("on_exception", "on_predicate")
ONE = Number("1.0", 1.0)
SETTINGS = (
    "max_tries",
    "max_time",
    "jitter",
    "giveup",
    "on_success",
    "on_backoff",
    "on_giveup",
    "raise_on_giveup",
    "logger",
    "backoff_log_level",
    "giveup_log_level",
)
"""The arguments that are not passed on to the function that makes the waits."""


def find(source: Source, facts: Facts) -> Iterator[Site]:
    """Yield the places of a file where backoff retries, with what becomes of each."""
    for node in source.references(PEER):
        name = (source.imported(node) or "").removeprefix("backoff._decorator.").removeprefix("backoff.")
        if name in DECORATORS:
            yield _Reader(source, facts, name).site_at(node)


class _Reader:
    def __init__(self, source: Source, facts: Facts, name: str) -> None:
        self.source = source
        self.facts = facts
        self.name = name
        self.site = Site(PEER, 0, "")
        self.plan: Plan = self.site.plan

    def site_at(self, node: cst.Name | cst.Attribute) -> Site:
        """Read one use of a decorator."""
        source, call = self.source, self.source.parents[node]
        self.site.line, self.site.title = source.line(node), source.title(call)
        try:
            source.check_binding(node)
            if not isinstance(call, cst.Call) or call.func is not node:
                raise NotMapped(f"{source.code(node)} is used as a value: what becomes of it can't be followed")
            function = check_function(source, source.parents[call], PEER, frozenset())
            self._settings(call, function is not None and function.asynchronous is not None)
            code = policy(source, call, "abate.retry", self.plan, call, source.column(call))
            self.site.edits.append((call, expression(source, code)))
        except NotMapped as error:
            self.site.reason = str(error)
        return self.site

    def _settings(self, call: cst.Call, asynchronous: bool) -> None:
        given = self.source.arguments(call, ("wait_gen", "exception" if self.name == "on_exception" else "predicate"))
        values = {name: argument.value for name, argument in given.items()}
        self._condition(values).write(self.plan)
        for name in ("on_success", "on_giveup"):
            if name in values and self.source.code(values[name]) != "None":
                raise NotMapped(f"{name}={self.source.code(values[name])} has no equivalent: write it around the call")
        if "raise_on_giveup" in values and self.source.code(values["raise_on_giveup"]) != "True":
            raise NotMapped("raise_on_giveup has no equivalent: write `except` around the call")
        if "on_backoff" in values and self.source.code(values["on_backoff"]) != "None":
            self._callback(values["on_backoff"])
        if "giveup" in values:
            self.plan.settings["unless"] = self.source.code(values["giveup"])
        if "logger" in values and self.source.code(values["logger"]) != "None":
            self.plan.changed.append("its log lines are gone: abate logs retries and give-ups itself (logger `abate`)")
        attempts = self._limit(values, "max_tries")
        seconds = self._limit(values, "max_time")
        if attempts is None and seconds is None:
            self.plan.never_ends(PEER)
        elif attempts is None:
            self.plan.settings["max_attempts"] = "None"
        elif attempts.value is not None and attempts.value < 1:
            raise NotMapped(f"max_tries={attempts.code} never ends: choose a limit")
        else:
            set_attempts(self.plan, attempts)
        if seconds is not None:
            self.plan.settings["timeout"] = seconds.code
            say_timeout(self.plan, seconds, asynchronous, exceeded=False)
            self.plan.changed.append(
                "the last wait is not cut short: if it would go beyond the deadline, the call ends"
            )
        known = attempts is not None and attempts.value is not None
        retries = int(attempts.value) - 1 if known and attempts is not None and attempts.value is not None else None
        waits.write_backoff(self._wait(values), retries, self.plan)

    def _condition(self, values: dict[str, cst.BaseExpression]) -> Condition:
        if self.name == "on_exception":
            if "exception" not in values:
                raise NotMapped("the exception is missing")
            return conditions.errors_of(self.source, values["exception"], self.plan)
        if "predicate" not in values:
            return conditions.results_for("lambda result: not result")
        return conditions.results_for(conditions.predicate_of(self.source, values["predicate"], self.plan))

    def _callback(self, node: cst.BaseExpression) -> None:
        if isinstance(node, (cst.List, cst.Tuple)) and len(node.elements) == 1:
            node = node.elements[0].value
        edits = callbacks.rewrite_callback(self.source, node, "on_backoff", callbacks.BACKOFF)
        if isinstance(node, cst.Lambda):
            self.plan.settings["before_retry"] = self.source.module.code_for_node(edited(node, edits))
        else:
            self.site.edits += edits
            self.site.callbacks |= callbacks.uses(self.source, node)
            self.plan.settings["before_retry"] = self.source.code(node)

    def _limit(self, values: dict[str, cst.BaseExpression], name: str) -> Number | None:
        """Return a limit, which may be a function that is called for each call."""
        node = values.get(name)
        if node is None or self.source.code(node) == "None":
            return None
        if isinstance(self.source.value(node), cst.Lambda) or self.source.is_function(node):
            raise NotMapped(f"{name} is a function: a policy's settings are fixed; make a policy for each value")
        return self.source.number(node)

    # -- waits

    def _wait(self, values: dict[str, cst.BaseExpression]) -> Wait:
        own = ("wait_gen", "exception", "predicate", *SETTINGS)
        extra = {name: value for name, value in values.items() if name not in own}
        generator = (self.source.imported(values["wait_gen"]) or "").rpartition(".")
        jitter = self._jitter(values)
        if generator[0].split(".")[0] == PEER:
            if generator[2] == "expo":
                return self._expo(extra, jitter)
            if generator[2] == "constant":
                return self._constant(extra, jitter)
            if generator[2] == "fibo":
                return self._fibo(extra, jitter)
            if generator[2] == "runtime":
                raise NotMapped(
                    "backoff.runtime has no equivalent: abate keeps a Retry-After by itself (abate.http.transient)"
                )
        raise NotMapped(f"the waits of {self.source.code(values['wait_gen'])} can't be read from the code")

    def _jitter(self, values: dict[str, cst.BaseExpression]) -> str:
        node = values.get("jitter")
        if node is None:
            return "full"
        if self.source.code(node) == "None":
            return "none"
        name = (self.source.imported(node) or "").removeprefix("backoff._jitter.").removeprefix("backoff.")
        if name not in ("full_jitter", "random_jitter"):
            raise NotMapped(f"jitter={self.source.code(node)} has no equivalent")
        return "full" if name == "full_jitter" else "extra"

    def _numbers(self, values: dict[str, cst.BaseExpression], *names: str) -> list[Number | None]:
        if unknown := set(values) - set(names):
            raise NotMapped(f"the argument {', '.join(sorted(unknown))} is not known")
        return [self._limit(values, name) for name in names]

    def _expo(self, values: dict[str, cst.BaseExpression], jitter: str) -> Wait:
        base, factor, cap = self._numbers(values, "base", "factor", "max_value")
        two = Number.of(2)
        if jitter == "extra":
            return waits.Exponential(factor or ONE, base or two, cap, jitter="extra", extra=ONE)
        return waits.Exponential(factor or ONE, base or two, cap, jitter="full" if jitter == "full" else "none")

    def _constant(self, values: dict[str, cst.BaseExpression], jitter: str) -> Wait:
        node = values.get("interval")
        if isinstance(node, (cst.List, cst.Tuple)) or (node is not None and self.source.is_tuple(node)):
            raise NotMapped("a list of waits ends the call after its last one: give max_tries, and a list as backoff")
        (interval,) = self._numbers(values, "interval")
        seconds = interval or ONE
        if jitter == "none":
            return waits.Fixed(seconds)
        return waits.Uniform(waits.ZERO, seconds) if jitter == "full" else waits.Uniform(seconds, seconds + ONE)

    def _fibo(self, values: dict[str, cst.BaseExpression], jitter: str) -> Wait:
        (cap,) = self._numbers(values, "max_value")
        if jitter != "none" or cap is None or cap.value is None:
            raise NotMapped("Fibonacci numbers with jitter have no equivalent: abate.Backoff(factor=1.6) grows as fast")
        numbers = [1.0, 1.0]
        while numbers[-1] < cap.value:
            numbers.append(numbers[-1] + numbers[-2])
        return waits.Listed(tuple(Number.of(min(number, cap.value)).code for number in numbers))
