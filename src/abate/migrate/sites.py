"""One place in a file where another library retries: what it is, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import libcst as cst

from abate.migrate.edits import Edit
from abate.migrate.plan import MANY_ATTEMPTS, ORDER, NotMapped, Number, Plan, call_code
from abate.migrate.source import Source

SETTINGS_OF = {
    "stop": ("max_attempts", "timeout"),
    "wait": ("backoff",),
    "retry": ("on",),
    "reraise": ("raises",),
    "before_sleep": ("before_retry",),
    "exception": ("on",),
    "predicate": ("on",),
    "wait_gen": ("backoff",),
    "max_tries": ("max_attempts",),
    "max_time": ("timeout",),
    "giveup": ("unless",),
    "on_backoff": ("before_retry",),
    "attempts": ("max_attempts",),
    "stop_max_attempt_number": ("max_attempts",),
    "stop_max_delay": ("timeout",),
    "retry_on_exception": ("on",),
    "total": ("max_attempts",),
    "status_forcelist": ("on",),
    "backoff_factor": ("backoff",),
}
"""The settings beside which a comment of another library's argument is kept."""


@dataclass
class Site:
    """A place where another library retries; `reason` says why it was left as it is."""

    peer: str
    line: int
    title: str
    plan: Plan = field(default_factory=Plan)
    edits: list[Edit] = field(default_factory=list)
    reason: str = ""
    callbacks: dict[str, list[cst.CSTNode]] = field(default_factory=dict)
    """The functions of the file that are rewritten with the site, and where they are used."""
    raises: str = ""
    """The class of the error that the site raises in the end, if it is the library's own."""

    @property
    def mapped(self) -> bool:
        """Whether the site is rewritten."""
        return not self.reason


def expression(source: Source, code: str) -> cst.BaseExpression:
    """Parse an expression in the way of the file's syntax."""
    newline = source.module.default_newline
    return cst.parse_expression(
        code.replace("\r\n", "\n").replace("\n", newline), config=source.module.config_for_parsing
    )


def policy(source: Source, place: cst.CSTNode, callee: str, plan: Plan, call: cst.Call | None, column: int) -> str:
    """Return the code of the call that makes the policy of a plan, in the place of a node; comments are kept."""
    plan.modules.add("abate")
    for module in plan.modules:
        source.check_module(place, module.split(".")[0])
    if source.runs_in_a_function(place):
        plan.advice.append("the policy is made anew at each call, and so is its budget: make it once, for all calls")
    beside, above = _comments(source, call)
    written: list[str] = []
    for name in ORDER:
        if name not in plan.settings:
            continue
        lines = beside.get(name, [])
        line = f"{name}={plan.settings[name]},"
        if len(lines) == 1 and column + len(line) + len(lines[0]) + 2 <= source.line_limit:
            line, lines = f"{line}  {lines[0]}", []
        written += [*lines, line]
    spread = call is not None and source.positions[call].end.line > source.positions[call].start.line
    arguments = [f"{name}={plan.settings[name]}" for name in ORDER if name in plan.settings]
    return call_code(
        callee,
        arguments,
        [*above, *written] if above or any(beside.values()) else [],
        indent=source.extra_indent(place),
        step=source.module.default_indent,
        column=column,
        limit=source.line_limit,
        spread=spread,
    )


def _comments(source: Source, call: cst.Call | None) -> tuple[dict[str, list[str]], list[str]]:
    """Return the comments in a call: those beside an argument, by the setting that replaces it, and all others."""
    beside: dict[str, list[str]] = {}
    above = [] if call is None else _in(call.whitespace_before_args)
    before_next: list[str] = []
    for argument in [] if call is None else call.args:
        after = argument.comma.whitespace_after if isinstance(argument.comma, cst.Comma) else None
        rest = [] if after is None else _in(after)
        first = after.first_line.comment if isinstance(after, cst.ParenthesizedWhitespace) else None
        own = [*before_next, *_in(argument.value), *_in(argument.whitespace_after_arg), *rest[: 1 if first else 0]]
        before_next = rest[1 if first else 0 :]
        name = "" if argument.keyword is None else argument.keyword.value
        if name in SETTINGS_OF and own:
            beside[SETTINGS_OF[name][0]] = own
        else:
            above += own
    above += before_next
    return beside, above


def _in(node: cst.CSTNode) -> list[str]:
    """Return the comments inside a node."""
    found: list[str] = []

    class Visitor(cst.CSTVisitor):
        def visit_Comment(self, node: cst.Comment) -> None:
            found.append(node.value)

    node.visit(Visitor())
    return found


def is_generator(function: cst.FunctionDef) -> bool:
    """Return whether a function is a generator function."""

    class Visitor(cst.CSTVisitor):
        found = False

        def visit_Yield(self, node: cst.Yield) -> None:
            self.found = True

        def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
            return node is function

        def visit_Lambda(self, node: cst.Lambda) -> bool:
            return False

    visitor = Visitor()
    function.visit(visitor)
    return visitor.found


def refuse_generator(function: cst.FunctionDef | None, peer: str) -> None:
    """Raise an error if a function is a generator function."""
    if function is not None and is_generator(function):
        raise NotMapped(
            f"{peer} treats a generator function differently: abate retries until the first item, and no further"
        )


def check_function(source: Source, decorator: cst.CSTNode, peer: str, poked: frozenset[str]) -> cst.FunctionDef | None:
    """Return the function that a decorator decorates, if it may be rewritten."""
    if isinstance(decorator, cst.Call) and decorator.args:  # retry(…)(function)
        refuse_generator(source.function(decorator.args[0].value), peer)
    if not isinstance(decorator, cst.Decorator):
        return None
    function = source.parents[decorator]
    if not isinstance(function, cst.FunctionDef):
        raise NotMapped("a class is decorated: a policy decorates functions")
    if function.decorators[-1] is decorator:
        refuse_generator(function, peer)
    if function.name.value in poked:
        raise NotMapped(f"attributes that {peer} gives to {function.name.value} are used in the code")
    return function


def whole_attempts(attempts: Number) -> Number:
    """Return a number of attempts as a policy takes it: whole, and one at least."""
    if attempts.value is not None and (attempts.value < 1 or not attempts.code.isdigit()):
        return Number(str(max(1, ceil(attempts.value))), attempts.value)
    return attempts


def set_attempts(plan: Plan, attempts: Number) -> None:
    """Set the number of attempts."""
    attempts = whole_attempts(attempts)
    plan.settings["max_attempts"] = attempts.code
    if attempts.value is not None and attempts.value > MANY_ATTEMPTS:
        plan.settings["budget"] = "abate.Budget.unlimited()"
        plan.advice.append(
            "its budget is unlimited, as one call makes more attempts than a budget allows: is it a poll?"
        )


def say_timeout(plan: Plan, seconds: Number, asynchronous: bool, exceeded: bool) -> None:
    """Say what it means that a limit in seconds is a deadline."""
    late = "no attempt begins after it" if exceeded else "no wait goes beyond it"
    plan.safer.append(f"{seconds.code} s are a deadline: {late}, and clients inside cut their timeouts to it")
    if exceeded:
        plan.changed.append("the last attempt, which began after the time was over, is not made")
    if asynchronous:
        plan.changed.append("an attempt that is still running at the deadline is cut off")
