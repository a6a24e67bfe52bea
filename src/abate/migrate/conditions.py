"""What is retried, as other libraries describe it, and the ``on`` and ``unless`` that retry the same."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from abate.migrate.meaning import changes_later
from abate.migrate.plan import NotMapped, Plan
from abate.migrate.source import Source

INTERRUPTIONS = (
    "BaseException",
    "KeyboardInterrupt",
    "SystemExit",
    "GeneratorExit",
    "CancelledError",
    "asyncio.CancelledError",
    "asyncio.exceptions.CancelledError",
)
"""Exceptions that no policy retries."""
ANY_RESULT = "lambda result: True"


@dataclass(frozen=True)
class Condition:
    """What is retried: errors that `on` matches and `unless` does not, and results.

    `test` says the same about errors as an expression of ``error``, and `result_test` about results of ``result``.
    """

    on: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    test: str = ""
    results: tuple[str, ...] = ()
    result_test: str = ""
    late: str = ""
    """A name in the tests that may mean something else in a function made around them, or ""."""

    @property
    def both(self) -> bool:
        """Whether errors and results are retried."""
        return bool(self.on and self.results)

    def write(self, plan: Plan) -> None:
        """Put ``on`` and ``unless`` into a plan."""
        matchers = (*self.on, *(f"abate.on_result({result})" for result in self.results))
        if len(matchers) > 1 and any(one.startswith("?") for one in self.on):
            _check_late(self)
        plan.settings["on"] = _several(matchers)
        if self.unless:
            plan.settings["unless"] = _several(self.unless)


def _several(matchers: tuple[str, ...]) -> str:
    """Return matchers as one argument. One that begins with ``*`` is a tuple, and with ``?`` perhaps one.

    >>> _several(("*ERRORS",)), _several(("?errors",)), _several(("*ERRORS", "?errors"))
    ('ERRORS', 'errors', '(*ERRORS, lambda error: isinstance(error, errors))')
    """
    if len(matchers) == 1:
        return matchers[0].lstrip("*?")
    written = (f"lambda error: isinstance(error, {one[1:]})" if one[0] == "?" else one for one in matchers)
    return f"({', '.join(written)})"


def _check_late(*conditions: Condition) -> None:
    """Raise an error if a function made around these conditions could mean something else."""
    for condition in conditions:
        if condition.late:
            raise NotMapped(f"{condition.late} may mean something else in a function around it: write the `on` by hand")


def called(function: str, argument: str) -> str:
    """Return the code of a call of a function that may be a lambda.

    >>> called("is_busy", "error"), called("lambda e: e.busy", "error")
    ('is_busy(error)', '(lambda e: e.busy)(error)')
    """
    return (
        f"{function}({argument})"
        if function.replace(".", "").replace("_", "").isalnum()
        else f"({function})({argument})"
    )


def errors_of(source: Source, types: cst.BaseExpression | None, plan: Plan) -> Condition:
    """Return the condition for errors of one type, or of one of a tuple of types."""
    if types is None:
        return Condition(("Exception",), test="isinstance(error, Exception)")
    members = _type_codes(source, types)
    if any(member in INTERRUPTIONS for member in members):
        if members != ["BaseException"]:
            raise NotMapped(f"{', '.join(members)}: abate retries subclasses of Exception only")
        plan.say_interruptions()
        members = ["Exception"]
    return Condition(tuple(members), test=f"isinstance(error, {_as_types(members)})", late=changes_later(source, types))


def errors_except(source: Source, types: cst.BaseExpression | None, plan: Plan) -> Condition:
    """Return the condition for errors of all types but these."""
    members = ["Exception"] if types is None else _type_codes(source, types)
    members = [member for member in members if member not in INTERRUPTIONS or member == "BaseException"]
    plan.say_interruptions()
    if not members:
        return Condition(("Exception",), test="True")
    late = "" if types is None else changes_later(source, types)
    return Condition(("Exception",), tuple(members), f"not isinstance(error, {_as_types(members)})", late=late)


def _as_types(members: list[str]) -> str:
    plain = [member.lstrip("*?") for member in members]
    return plain[0] if len(plain) == 1 else f"({', '.join(plain)})"


def _type_codes(source: Source, types: cst.BaseExpression) -> list[str]:
    """Return the code of each type, after ``*`` if it is a tuple of types, and after ``?`` if it may be one."""
    if isinstance(types, (cst.Tuple, cst.List)):
        codes = []
        for element in types.elements:
            starred = isinstance(element, cst.StarredElement)
            codes += [f"*{source.code(element.value)}"] if starred else _type_codes(source, element.value)
        return codes
    if isinstance(types, cst.BinaryOperation) and isinstance(types.operator, cst.BitOr):
        return [*_type_codes(source, types.left), *_type_codes(source, types.right)]
    code = source.code(types)
    if source.is_tuple(types):
        return [f"*{code}"]
    return [code if isinstance(types, (cst.Name, cst.Attribute)) and _looks_like_a_class(code) else f"?{code}"]


def _looks_like_a_class(code: str) -> bool:
    """Return whether a name is written as classes are, or as those of sockets and the like.

    >>> [_looks_like_a_class(code) for code in ("OSError", "socket.timeout", "httpx.ReadError", "RETRYABLE", "errors")]
    [True, True, True, False, False]
    """
    last = code.rpartition(".")[2].lstrip("_")
    of_module = "." in code and last in ("timeout", "error", "gaierror", "herror")
    return of_module or (last[:1].isupper() and not last.isupper())


def any_of(first: Condition, second: Condition) -> Condition:
    """Return the condition that retries what either of two retries."""
    results = (*first.results, *second.results)
    result_test = " or ".join(filter(None, (first.result_test, second.result_test)))
    late = first.late or second.late
    if not (first.on and second.on) or not (first.unless or second.unless):
        test = " or ".join(filter(None, (first.test, second.test)))
        on = tuple(dict.fromkeys((*first.on, *second.on)))
        return Condition(on, first.unless or second.unless, test, results, result_test, late)
    _check_late(first, second)
    test = f"{first.test} or {second.test}"
    return Condition((f"lambda error: {test}",), (), test, results, result_test)


def all_of(first: Condition, second: Condition) -> Condition:
    """Return the condition that retries what both of two retry."""
    errors = _all_errors(first, second) if first.on and second.on else Condition()
    if not (first.results and second.results):
        if not errors.on:
            raise NotMapped("errors and results that must both match are never retried")
        return errors
    _check_late(first, second)
    test = f"({first.result_test}) and ({second.result_test})"
    return Condition(errors.on, errors.unless, errors.test, (f"lambda result: {test}",), test)


def _all_errors(first: Condition, second: Condition) -> Condition:
    test = f"{_grouped(first.test)} and {_grouped(second.test)}"
    if first.unless and not second.unless:
        first, second = second, first
    if second.unless and second.on == ("Exception",):
        return Condition(first.on, (*first.unless, *second.unless), test, late=first.late or second.late)
    _check_late(first, second)
    return Condition((f"lambda error: {test}",), (), test)


def _grouped(test: str) -> str:
    return f"({test})" if " or " in test else test


def predicate_of(source: Source, node: cst.BaseExpression, plan: Plan) -> str:
    """Return the code of a predicate, and say so if it may return a number."""
    code = source.code(node)
    if not source.is_true_or_false(node):
        plan.changed.append(
            f"a number that {code} returns is read as the seconds to wait: it must return True or False"
        )
    return code


def errors_for(predicate: str, *, reversed: bool = False, late: str = "") -> Condition:
    """Return the condition for errors for which a function is true; `late` is a name in it that can change."""
    if reversed:
        return Condition(("Exception",), (predicate,), f"not {called(predicate, 'error')}", late=late)
    return Condition((predicate,), test=called(predicate, "error"), late=late)


def results_for(predicate: str, *, reversed: bool = False, late: str = "") -> Condition:
    """Return the condition for results for which a function is true; `late` is a name in it that can change."""
    test = called(predicate, "result")
    if reversed:
        _check_late(Condition(late=late))
        return Condition(results=(f"lambda result: not {test}",), result_test=f"not {test}")
    return Condition(results=(predicate,), result_test=test, late=late)
