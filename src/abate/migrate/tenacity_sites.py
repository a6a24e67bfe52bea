"""Places where tenacity retries: decorators, ``Retrying`` objects and blocks."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from abate.migrate import callbacks, waits
from abate.migrate.blocks import Blocks
from abate.migrate.conditions import Condition, any_of, errors_of
from abate.migrate.edits import Edit, edited
from abate.migrate.facts import Facts
from abate.migrate.plan import FOREVER, NotMapped, Plan
from abate.migrate.sites import Site, check_function, expression, policy, refuse_generator, say_timeout, set_attempts
from abate.migrate.source import Source
from abate.migrate.tenacity_strategies import Stop, Strategies, short_name

PEER = "tenacity"
RETRY_ERROR = "tenacity.RetryError"
TRY_AGAIN = "tenacity.TryAgain"
SETTINGS = (
    "sleep",
    "stop",
    "wait",
    "retry",
    "before",
    "after",
    "before_sleep",
    "reraise",
    "retry_error_cls",
    "retry_error_callback",
    "name",
    "enabled",
)
"""The arguments of tenacity's retry, in their order."""
USUAL_SLEEPS = ("time.sleep", "asyncio.sleep", "trio.sleep", "tenacity.nap.sleep", "tenacity.sleep")
ANY_ERROR = Condition(("Exception",), test="isinstance(error, Exception)")
"""What is retried without a ``retry=``."""
LOGS = {
    "before": ("before_log", "before_nothing"),
    "after": ("after_log", "after_nothing"),
    "before_sleep": ("before_sleep_log", "before_sleep_nothing"),
}


def find(source: Source, facts: Facts) -> Iterator[Site]:
    """Yield the places of a file where tenacity retries, with what becomes of each."""
    for node in source.references(PEER):
        name = short_name(source.imported(node))
        if name == "retry":
            site = _Reader(source, facts).decorator(node)
        elif name in ("Retrying", "AsyncRetrying"):
            site = _Reader(source, facts).controller(node, name == "AsyncRetrying")
        elif name in ("TornadoRetrying", "BaseRetrying"):
            site = Site(PEER, source.line(node), name, reason=f"{name} has no equivalent")
        else:
            continue
        if site is not None:
            yield site


class _Reader:
    def __init__(self, source: Source, facts: Facts) -> None:
        self.source = source
        self.facts = facts
        self.site = Site(PEER, 0, "")
        self.plan: Plan = self.site.plan

    def decorator(self, node: cst.CSTNode) -> Site | None:
        """Read a use of ``retry``: as a decorator with or without arguments, or called elsewhere."""
        source, parent = self.source, self.source.parents[node]
        call = parent if isinstance(parent, cst.Call) and parent.func is node else None
        whole = call or node
        outside = source.parents[whole]
        self.site.line = source.line(node)
        self.site.title = source.title(whole)
        try:
            source.check_binding(node)
            if call is None and not isinstance(outside, cst.Decorator):
                raise NotMapped("retry is used as a value: what becomes of it can't be followed")
            function = check_function(source, outside, PEER, self.facts.poked)
            bare = call is not None and len(call.args) == 1 and call.args[0].keyword is None and not call.args[0].star
            if bare and call is not None:
                refuse_generator(source.function(call.args[0].value), PEER)
            asynchronous = function is not None and function.asynchronous is not None
            self._settings(None if bare else call, asynchronous)
            code = policy(source, whole, "abate.retry", self.plan, None if bare else call, source.column(whole))
            if bare and call is not None:
                code += f"({source.code(call.args[0].value)})"
            self.site.edits.append((whole, expression(source, code)))
        except NotMapped as error:
            self._leave(error, call)
        return self.site

    def controller(self, node: cst.CSTNode, asynchronous: bool) -> Site | None:
        """Read a use of ``Retrying``: as a block, or called."""
        source, call = self.source, self.source.parents[node]
        self.site.line = source.line(node)
        if not isinstance(call, cst.Call) or call.func is not node:
            return None  # a type
        self.site.title = source.title(call)
        try:
            source.check_binding(node)
            self._settings(call, asynchronous)
            code = policy(source, call, "abate.Policy", self.plan, call, source.column(call))
            judges = "abate.on_result(" in self.plan.settings["on"]
            self.site.edits += Blocks(source, self.plan, asynchronous, self._attempt_edit, judges).edits(call, code)
        except NotMapped as error:
            self._leave(error, call)
        return self.site

    def _leave(self, why: NotMapped, call: cst.CSTNode | None) -> None:
        """Leave the site as it is; it raises a `RetryError` unless it says otherwise."""
        self.site.reason = str(why)
        given = call.args if isinstance(call, cst.Call) else ()
        reraises = any(
            self.source.code(one.value) == "True" for one in given if one.keyword and one.keyword.value == "reraise"
        )
        self.site.raises = "" if reraises else RETRY_ERROR

    def _attempt_edit(self, attempt: cst.Name) -> Edit:
        """Return the edit for a use of an attempt of a block."""
        source = self.source
        outer = source.parents[attempt]
        whole = source.parents[outer]
        if source.code(whole) == f"{attempt.value}.retry_state.attempt_number":
            return whole, expression(source, f"{attempt.value}.number")
        raise NotMapped(f"{source.code(whole)} on line {source.line(attempt)} has no equivalent")

    # -- settings

    def _settings(self, call: cst.Call | None, asynchronous: bool) -> None:
        given = {} if call is None else self.source.arguments(call, SETTINGS)
        if unknown := [name for name in given if name not in SETTINGS]:
            raise NotMapped(f"tenacity has no setting {', '.join(unknown)}")
        values = {name: argument.value for name, argument in given.items()}
        self._refuse(values)
        strategies = Strategies(self.source, self.plan)
        condition = strategies.retry(values["retry"]) if "retry" in values else ANY_ERROR
        condition = self._with_try_again(condition)
        condition.write(self.plan)
        stop = strategies.stop(values["stop"]) if "stop" in values else Stop()
        wait = strategies.wait(values["wait"]) if "wait" in values else waits.Fixed(waits.ZERO)
        self._stop(stop, wait, asynchronous)
        self.site.edits += strategies.edits
        if strategies.endless:
            self.plan.never_ends(PEER, self.plan.settings["max_attempts"])
        retries = None if stop.attempts is None or stop.attempts.value is None else int(stop.attempts.value) - 1
        waits.write_backoff(wait, retries, self.plan)
        self._end(values, condition.both, bool(condition.results))
        if "name" in values:
            self.plan.settings["name"] = self.source.code(values["name"])
        self._logs(values)

    def _with_try_again(self, condition: Condition) -> Condition:
        """Return a condition that also retries ``TryAgain``, if the file uses it."""
        used = next((node for node in self.source.references(PEER) if self.source.imported(node) == TRY_AGAIN), None)
        if "Exception" in condition.on and not condition.unless:
            return condition
        if used is not None:
            self.plan.changed.append(
                "TryAgain, which is retried here, is raised in the end; it was the error before it"
            )
            return any_of(condition, errors_of(self.source, used, self.plan))
        if not condition.on and not condition.results:
            raise NotMapped("retry=retry_never retries nothing")
        if self.facts.try_again:
            self.plan.changed.append(f"{self.facts.try_again} is not retried here")
        return condition

    def _refuse(self, values: dict[str, cst.BaseExpression]) -> None:
        for name in ("enabled", "retry_error_cls"):
            if name in values:
                raise NotMapped(f"{name}= has no equivalent")
        sleep = values.get("sleep")
        if sleep is not None and self.source.imported(sleep) not in USUAL_SLEEPS:
            raise NotMapped(f"sleep={self.source.code(sleep)} has no equivalent; tests use abate.testing.VirtualClock")

    def _stop(self, stop: Stop, wait: waits.Wait, asynchronous: bool) -> None:
        plan, no_wait = self.plan, wait == waits.Fixed(waits.ZERO)
        if stop.attempts is None and stop.seconds is None:
            plan.never_ends(PEER)
            return
        if stop.attempts is not None:
            set_attempts(plan, stop.attempts)
        else:
            plan.settings["max_attempts"] = FOREVER if no_wait else "None"
        if stop.seconds is not None:
            plan.settings["timeout"] = stop.seconds.code
            say_timeout(plan, stop.seconds, asynchronous, stop.exceeded)
        if no_wait and stop.attempts is None:
            plan.safer.append("attempts without waits between them are ended by the budget, not by time alone")

    def _end(self, values: dict[str, cst.BaseExpression], both: bool, results: bool) -> None:
        """Set what the call raises or returns when the attempts have run out."""
        reraise = self.source.code(values["reraise"]) if "reraise" in values else "False"
        callback = values.get("retry_error_callback")
        if callback is not None and self.source.code(callback) != "None":
            if not self._returns_last(callback):
                code = self.source.code(callback)
                raise NotMapped(f"retry_error_callback={code} has no equivalent: write `except` around the call")
            return
        if reraise not in ("True", "False"):
            raise NotMapped(f"reraise={reraise} can't be read without running the code")
        if reraise == "True" and both:
            raise NotMapped(
                "reraise=True with results that are retried raises two kinds of errors: choose one by raises="
            )
        if reraise == "True" and not results:
            return
        self.plan.settings["raises"] = '"exhausted"'
        self.site.raises = RETRY_ERROR
        self.plan.changed.append(
            "it raises abate.RetryExhausted instead of tenacity.RetryError; __cause__ is the last error"
        )

    def _returns_last(self, callback: cst.BaseExpression) -> bool:
        """Return whether a function returns the last result, or raises the last error."""
        if not isinstance(callback, cst.Lambda) or len(callback.params.params) != 1:
            return False
        parameter = callback.params.params[0].name.value
        return self.source.code(callback.body) == f"{parameter}.outcome.result()"

    def _logs(self, values: dict[str, cst.BaseExpression]) -> None:
        for name, shipped in LOGS.items():
            node = values.get(name)
            if node is None or self.source.code(node) == "None":
                continue
            made_by = node.func if isinstance(node, cst.Call) else node
            used = (short_name(self.source.imported(made_by)) or "").rpartition(".")[2]
            if used in shipped:
                if used.endswith("_log"):
                    self.plan.changed.append(f"{used} is gone: abate logs retries and give-ups itself (logger `abate`)")
                continue
            if name != "before_sleep":
                raise NotMapped(
                    f"{name}={self.source.code(node)} has no equivalent: abate calls functions before retries only"
                )
            edits = callbacks.rewrite_callback(self.source, node, name, callbacks.TENACITY)
            self.plan.modules.add("abate")
            if isinstance(node, cst.Lambda):  # it is written as a part of the policy
                self.plan.settings["before_retry"] = self.source.module.code_for_node(edited(node, edits))
            else:
                self.site.edits += edits
                self.site.callbacks |= callbacks.uses(self.source, node)
                self.plan.settings["before_retry"] = self.source.code(node)
