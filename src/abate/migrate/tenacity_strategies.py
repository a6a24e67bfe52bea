"""What tenacity's strategies mean: when to stop, how long to wait, what to retry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from abate.migrate import conditions, waits
from abate.migrate.conditions import Condition
from abate.migrate.edits import Edit
from abate.migrate.meaning import alternatives, changes_later
from abate.migrate.plan import FOREVER, NotMapped, Number, Plan
from abate.migrate.sites import whole_attempts
from abate.migrate.source import Source
from abate.migrate.waits import Wait

MODULES = ("tenacity.asyncio.retry", "tenacity.asyncio", "tenacity.stop", "tenacity.wait", "tenacity.retry", "tenacity")


def short_name(full: str | None) -> str:
    """Return the name that tenacity gives something, whichever of its modules it was imported from.

    >>> short_name("tenacity.wait.wait_fixed"), short_name("tenacity.retry"), short_name("os.path")
    ('wait_fixed', 'retry', '')
    """
    for module in MODULES:
        if full is not None and full.startswith(f"{module}."):
            return full.removeprefix(f"{module}.")
    return ""


@dataclass(frozen=True)
class Stop:
    """When a call stops: after a number of attempts or seconds, or never."""

    attempts: Number | None = None
    seconds: Number | None = None
    exceeded: bool = False
    """Whether the last attempt may begin after the seconds are over."""


class Strategies:
    """Reads the strategies of one file."""

    def __init__(self, source: Source, plan: Plan) -> None:
        self.source = source
        self.plan = plan
        self.edits: list[Edit] = []
        """What becomes of strategies that stand elsewhere."""
        self.endless = False
        """Whether one of the strategies that the program chooses from never stops."""

    def _call(self, node: cst.BaseExpression) -> tuple[str, cst.Call | None]:
        """Return tenacity's name of a strategy, and the call that makes it if it is one."""
        node = self.source.value(node)
        if isinstance(node, cst.Call):
            return short_name(self.source.imported(node.func)), node
        return short_name(self.source.imported(node)), None

    def _unknown(self, what: str, node: cst.BaseExpression) -> NotMapped:
        return NotMapped(f"{what}={self.source.code(node)} has no equivalent that can be read from the code")

    def _numbers(self, call: cst.Call, *names: str) -> dict[str, Number]:
        given = self.source.arguments(call, names)
        if unknown := set(given) - set(names):
            raise NotMapped(f"{self.source.code(call.func)} takes no {', '.join(sorted(unknown))}")
        return {name: self.source.number(argument.value) for name, argument in given.items()}

    # -- stop

    def stop(self, node: cst.BaseExpression) -> Stop:
        """Return when a ``stop=`` strategy stops."""
        node = self.source.value(node)
        if values := alternatives(self.source, node):
            return self._one_of(node, values)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr):
            return self._sooner(self.stop(node.left), self.stop(node.right))
        name, call = self._call(node)
        if name == "stop_never":
            return Stop()
        if call is not None and name == "stop_after_attempt":
            return Stop(attempts=self._numbers(call, "max_attempt_number").get("max_attempt_number"))
        if call is not None and name in ("stop_after_delay", "stop_before_delay"):
            return Stop(seconds=self._numbers(call, "max_delay")["max_delay"], exceeded=name == "stop_after_delay")
        if call is not None and name == "stop_any":
            found = Stop()
            for argument in call.args:
                found = self._sooner(found, self.stop(argument.value))
            return found
        raise self._unknown("stop", node)

    def _one_of(self, name: cst.BaseExpression, values: list[cst.BaseExpression]) -> Stop:
        """Return when a strategy stops that is chosen by the program: the name becomes one of a number of attempts."""
        for value in values:
            found = self.stop(value)
            if found.seconds is not None or (
                found.attempts is not None and found.attempts.code == self.source.code(name)
            ):
                raise self._unknown("stop", name)
            attempts = Number(FOREVER, None) if found.attempts is None else whole_attempts(found.attempts)
            self.endless = self.endless or found.attempts is None
            self.edits.append((value, cst.parse_expression(attempts.code)))
        return Stop(attempts=Number(self.source.code(name), None))

    def _sooner(self, first: Stop, second: Stop) -> Stop:
        attempts = _least(first.attempts, second.attempts)
        seconds = _least(first.seconds, second.seconds)
        return Stop(attempts, seconds, first.exceeded or second.exceeded)

    # -- wait

    def wait(self, node: cst.BaseExpression) -> Wait:
        """Return how long a ``wait=`` strategy waits."""
        node = self.source.value(node)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
            return waits.added(self.wait(node.left), self.wait(node.right))
        name, call = self._call(node)
        if self.source.code(node) in ("None", "0") or name == "wait_none":
            return waits.Fixed(waits.ZERO)
        reader: Callable[[cst.Call], Wait] | None = (
            getattr(self, f"_{name}", None) if name.startswith("wait_") else None
        )
        if call is None or reader is None:
            raise self._unknown("wait", node)
        return reader(call)

    def _wait_fixed(self, call: cst.Call) -> Wait:
        return waits.Fixed(self._numbers(call, "wait")["wait"])

    def _wait_random(self, call: cst.Call) -> Wait:
        given = self._numbers(call, "min", "max")
        return waits.Uniform(given.get("min", waits.ZERO), given.get("max", Number("1.0", 1.0)))

    def _wait_incrementing(self, call: cst.Call) -> Wait:
        given = self._numbers(call, "start", "increment", "max")
        return waits.Linear(given.get("start", waits.ZERO), given.get("increment", Number.of(100)), given.get("max"))

    def _wait_exponential(self, call: cst.Call, jitter: str = "none") -> Wait:
        given = self._numbers(call, "multiplier", "max", "exp_base", "min")
        return waits.Exponential(
            given.get("multiplier", Number.of(1)),
            given.get("exp_base", Number.of(2)),
            given.get("max"),
            given.get("min", waits.ZERO),
            "full" if jitter == "full" else "none",
        )

    def _wait_random_exponential(self, call: cst.Call) -> Wait:
        return self._wait_exponential(call, "full")

    _wait_full_jitter = _wait_random_exponential

    def _wait_exponential_jitter(self, call: cst.Call) -> Wait:
        given = self._numbers(call, "initial", "max", "exp_base", "jitter", "min", "multiplier")
        start = given.get("multiplier", given.get("initial", Number.of(1)))
        extra = given.get("jitter", Number.of(1))
        factor = given.get("exp_base", Number.of(2))
        jitter = "none" if extra.value == 0 else "extra"
        return waits.Exponential(
            start,
            factor,
            given.get("max"),
            given.get("min", waits.ZERO),
            "none" if jitter == "none" else "extra",
            extra,
        )

    def _wait_combine(self, call: cst.Call) -> Wait:
        parts = [self.wait(self._plain(argument)) for argument in call.args]
        total = parts[0]
        for part in parts[1:]:
            total = waits.added(total, part)
        return total

    def _wait_chain(self, call: cst.Call) -> Wait:
        items: list[str] = []
        for argument in call.args:
            if argument.star == "*":
                items.append(f"*{_unwrapped(self, argument.value)}")
            else:
                items.append(self._fixed(self._plain(argument)))
        return waits.Listed(tuple(items))

    def _fixed(self, node: cst.BaseExpression) -> str:
        found = self.wait(node)
        if not isinstance(found, waits.Fixed):
            raise NotMapped(f"a chain of waits is a list of seconds, and {self.source.code(node)} is none")
        return found.seconds.code

    def _plain(self, argument: cst.Arg) -> cst.BaseExpression:
        if argument.star or argument.keyword is not None:
            raise NotMapped(f"{self.source.code(argument)} can't be read without running the code")
        return argument.value

    # -- retry

    def retry(self, node: cst.BaseExpression) -> Condition:
        """Return what a ``retry=`` strategy retries."""
        node = self.source.value(node)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.BitOr, cst.BitAnd)):
            combine = conditions.any_of if isinstance(node.operator, cst.BitOr) else conditions.all_of
            return combine(self.retry(node.left), self.retry(node.right))
        name, call = self._call(node)
        if name == "retry_always":
            return conditions.any_of(
                Condition(("Exception",), test="True"), conditions.results_for(conditions.ANY_RESULT)
            )
        if name == "retry_never":
            return Condition()
        if call is None or not name:
            raise self._unknown("retry", node)
        if name in ("retry_any", "retry_all"):
            combine = conditions.any_of if name == "retry_any" else conditions.all_of
            parts = [self.retry(self._plain(argument)) for argument in call.args]
            found = parts[0]
            for part in parts[1:]:
                found = combine(found, part)
            return found
        return self._single(name, call, node)

    def _single(self, name: str, call: cst.Call, node: cst.BaseExpression) -> Condition:
        if name not in _FIRST_ARGUMENTS:
            raise self._unknown("retry", node)
        given = self.source.arguments(call, _FIRST_ARGUMENTS[name])
        values = {key: argument.value for key, argument in given.items()}
        late = next(filter(None, (changes_later(self.source, value) for value in values.values())), "")
        match name:
            case "retry_if_exception_type":
                return conditions.errors_of(self.source, values.get("exception_types"), self.plan)
            case "retry_if_not_exception_type":
                return conditions.errors_except(self.source, values.get("exception_types"), self.plan)
            case "retry_unless_exception_type":
                errors = conditions.errors_except(self.source, values.get("exception_types"), self.plan)
                return conditions.any_of(errors, conditions.results_for(conditions.ANY_RESULT))
            case "retry_if_exception":
                self.plan.say_interruptions()
                return conditions.errors_for(
                    conditions.predicate_of(self.source, values["predicate"], self.plan), late=late
                )
            case "retry_if_result" | "retry_if_not_result":
                if name == "retry_if_not_result":
                    return conditions.results_for(self.source.code(values["predicate"]), reversed=True, late=late)
                return conditions.results_for(
                    conditions.predicate_of(self.source, values["predicate"], self.plan), late=late
                )
            case "retry_if_exception_message":
                self.plan.say_interruptions()
                return conditions.errors_for(f"lambda error: {self._message_test(values, late)}")
            case "retry_if_not_exception_message":
                self.plan.say_interruptions()
                errors = conditions.errors_for(f"lambda error: {self._message_test(values, late)}", reversed=True)
                return conditions.any_of(errors, conditions.results_for(conditions.ANY_RESULT))
        raise self._unknown("retry", node)

    def _message_test(self, values: dict[str, cst.BaseExpression], late: str) -> str:
        if late:
            raise NotMapped(f"{late} may mean something else in a function around it: write the `on` by hand")
        if "message" in values:
            return f"str(error) == {self.source.code(values['message'])}"
        if "match" not in values:
            raise NotMapped("a condition on the message needs a message or a match")
        self.plan.modules.add("re")
        return f"re.match({self.source.code(values['match'])}, str(error)) is not None"


_FIRST_ARGUMENTS = {
    "retry_if_exception_type": ("exception_types",),
    "retry_if_not_exception_type": ("exception_types",),
    "retry_unless_exception_type": ("exception_types",),
    "retry_if_exception": ("predicate",),
    "retry_if_result": ("predicate",),
    "retry_if_not_result": ("predicate",),
    "retry_if_exception_message": ("message", "match"),
    "retry_if_not_exception_message": ("message", "match"),
}


def _least(first: Number | None, second: Number | None) -> Number | None:
    if first is None or second is None:
        return first or second
    if first.value is not None and second.value is not None:
        return min(first, second, key=lambda number: number.value or 0.0)
    return Number(f"min({first.code}, {second.code})", None)


def _unwrapped(strategies: Strategies, node: cst.BaseExpression) -> str:
    """Return an expression that makes a list of fixed waits as one that makes a list of seconds."""
    source = strategies.source

    class Unwrap(cst.CSTTransformer):
        def __init__(self) -> None:
            self.others = 0

        def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
            if short_name(source.imported(original_node.func)) == "wait_fixed":
                seconds = source.arguments(original_node, ("wait",))["wait"].value
                return cst.parse_expression(source.number(seconds).code)
            if source.code(original_node.func) != "range":
                self.others += 1
            return updated_node

    unwrap = Unwrap()
    found = node.visit(unwrap)
    assert isinstance(found, cst.BaseExpression)
    if unwrap.others:
        raise NotMapped(f"a chain of waits is a list of seconds, and {source.code(node)} is none")
    code = source.module.code_for_node(found)
    return f"({code})" if isinstance(found, cst.BinaryOperation) else code
