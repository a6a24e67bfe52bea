"""Places where the library retrying retries: its decorator, with times in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from abate.migrate import conditions, waits
from abate.migrate.conditions import Condition
from abate.migrate.facts import Facts
from abate.migrate.plan import FOREVER, NotMapped, Number, Plan
from abate.migrate.sites import Site, check_function, expression, policy, say_timeout, set_attempts
from abate.migrate.source import Source
from abate.migrate.waits import Wait

PEER = "retrying"
RETRY_ERROR = "retrying.RetryError"
NOT_MAPPED = {
    "stop": "it names a method",
    "wait": "it names a method",
    "stop_func": "a function that ends a call has no equivalent",
    "wait_func": "it gets the time since the first attempt: give a function of the retry's number as backoff",
    "before_attempts": "abate calls functions before retries only",
    "after_attempts": "abate calls functions before retries only",
}
SETTINGS = (
    "stop",
    "wait",
    "stop_max_attempt_number",
    "stop_max_delay",
    "wait_fixed",
    "wait_random_min",
    "wait_random_max",
    "wait_incrementing_start",
    "wait_incrementing_increment",
    "wait_incrementing_max",
    "wait_exponential_multiplier",
    "wait_exponential_max",
    "retry_on_exception",
    "retry_on_result",
    "wrap_exception",
    "stop_func",
    "wait_func",
    "wait_jitter_max",
    "before_attempts",
    "after_attempts",
    "logger",
)
"""The arguments of retrying's retry, in their order."""


def find(source: Source, facts: Facts) -> Iterator[Site]:
    """Yield the places of a file where retrying retries, with what becomes of each."""
    for node in source.references(PEER):
        full = source.imported(node)
        if full == "retrying.retry":
            yield _Reader(source).site_at(node)
        elif full == "retrying.Retrying":
            yield Site(
                PEER, source.line(node), "Retrying", reason="objects of Retrying are not rewritten: use a policy's call"
            )


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.site = Site(PEER, 0, "")
        self.plan: Plan = self.site.plan

    def site_at(self, node: cst.Name | cst.Attribute) -> Site:
        """Read one use of the decorator."""
        source, parent = self.source, self.source.parents[node]
        call = parent if isinstance(parent, cst.Call) and parent.func is node else None
        whole = call or node
        self.site.line, self.site.title = source.line(node), source.title(whole)
        try:
            source.check_binding(node)
            outer = source.parents[whole]
            if call is None and not isinstance(outer, cst.Decorator):
                raise NotMapped("retry is used as a value: what becomes of it can't be followed")
            function = check_function(source, outer, PEER, frozenset())
            if function is not None and function.asynchronous is not None:
                raise NotMapped("retrying never retries a coroutine function, which abate would: check what is meant")
            self._settings({} if call is None else source.arguments(call, SETTINGS))
            code = policy(source, whole, "abate.retry", self.plan, call, source.column(whole))
            self.site.edits.append((whole, expression(source, code)))
        except NotMapped as error:
            self.site.reason = str(error)
        return self.site

    def _settings(self, given: dict[str, cst.Arg]) -> None:
        values = {
            name: argument.value for name, argument in given.items() if self.source.code(argument.value) != "None"
        }
        for name in values:
            if name in NOT_MAPPED:
                raise NotMapped(f"{name}: {NOT_MAPPED[name]}")
            if name not in SETTINGS:
                raise NotMapped(f"retrying has no setting {name}")
        condition = self._condition(values)
        condition.write(self.plan)
        self._raises(values, condition)
        times = {name: self.source.number(values[name]) for name in values if name.startswith(("stop_max_", "wait_"))}
        attempts = times.pop("stop_max_attempt_number", None)
        seconds = {name: number / 1000 for name, number in times.items()}
        wait = self._wait(seconds)
        limit = seconds.get("stop_max_delay")
        if attempts is None and limit is None:
            self.plan.never_ends(PEER)
        elif attempts is None:
            self.plan.settings["max_attempts"] = FOREVER if wait == waits.Fixed(waits.ZERO) else "None"
        else:
            set_attempts(self.plan, attempts)
        if limit is not None:
            self.plan.settings["timeout"] = limit.code
            say_timeout(self.plan, limit, False, exceeded=True)
        known = attempts is not None and attempts.value is not None
        retries = int(attempts.value) - 1 if known and attempts is not None and attempts.value is not None else None
        waits.write_backoff(wait, retries, self.plan)

    def _condition(self, values: dict[str, cst.BaseExpression]) -> Condition:
        on = values.get("retry_on_exception")
        if on is None:
            errors = Condition(("Exception",), test="True")
        elif isinstance(on, cst.Tuple) or self.source.is_tuple(on):
            errors = conditions.errors_of(self.source, on, self.plan)
        else:
            errors = conditions.errors_for(conditions.predicate_of(self.source, on, self.plan))
        if "retry_on_result" not in values:
            return errors
        return conditions.any_of(errors, conditions.results_for(self.source.code(values["retry_on_result"])))

    def _raises(self, values: dict[str, cst.BaseExpression], condition: Condition) -> None:
        wrap = self.source.code(values["wrap_exception"]) if "wrap_exception" in values else "False"
        if wrap not in ("True", "False"):
            raise NotMapped(f"wrap_exception={wrap} can't be read without running the code")
        if wrap == "True":
            raise NotMapped('wrap_exception=True wraps errors that are not retried as well: use raises="exhausted"')
        if condition.results:
            raise NotMapped("errors are raised as they are and results as a RetryError: choose one by raises=")

    def _wait(self, seconds: dict[str, Number]) -> Wait:
        found: list[Wait] = []
        if "wait_fixed" in seconds:
            found.append(waits.Fixed(seconds["wait_fixed"]))
        if "wait_random_min" in seconds or "wait_random_max" in seconds:
            low, high = seconds.get("wait_random_min", waits.ZERO), seconds.get("wait_random_max", Number.of(1))
            found.append(waits.Uniform(low, high))
        if "wait_incrementing_start" in seconds or "wait_incrementing_increment" in seconds:
            start = seconds.get("wait_incrementing_start", waits.ZERO)
            step = seconds.get("wait_incrementing_increment", Number.of(0.1))
            found.append(waits.Linear(start, step, seconds.get("wait_incrementing_max")))
        if "wait_exponential_multiplier" in seconds or "wait_exponential_max" in seconds:
            start = seconds.get("wait_exponential_multiplier", Number.of(0.001))
            doubled = Number(f"2 * {start.code}", None) if start.value is None else Number.of(2 * start.value)
            found.append(waits.Exponential(doubled, Number.of(2), seconds.get("wait_exponential_max")))
        if len(found) > 1:
            raise NotMapped("the longest of several waits has no equivalent: give a function of the retry's number")
        wait = found[0] if found else waits.Fixed(waits.ZERO)
        extra = seconds.get("wait_jitter_max")
        return wait if extra is None else waits.added(wait, waits.Uniform(waits.ZERO, extra))
