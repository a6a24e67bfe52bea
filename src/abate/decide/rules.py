"""Rules: from exception types, predicates on errors and results, and combinations of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from abate.decide.outcome import ANSWERED, BLIP, FATAL, LAYER, OVERLOAD, UNREACHED, Outcome, Ruling
from abate.errors import AttemptTimeout, number
from abate.functions import is_coroutine, is_generator, returned_coroutine
from abate.redact import shown
from abate.values import Value

if TYPE_CHECKING:
    from datetime import timedelta

Verdict: TypeAlias = "Ruling | float | timedelta | object"
"""What a predicate may answer: a ruling of its own; seconds, which are a yes with that hint; or anything else, which is
a yes where it is true. What is false, 0 among it, is a no."""

Matcher: TypeAlias = "type[BaseException] | Callable[[Exception], Verdict] | Rule"
"""One thing that `on` or `unless` may hold."""


DEEPEST = 100
"""Groups of errors within each other; one that is nested more deeply is fatal."""
MOST_MEMBERS = 10_000
"""Errors and groups in a group; one that holds more is fatal."""
MOST_KNOWN = 100
"""How many types of errors one set of rules remembers."""


class Rule(Value):
    """Judges an outcome; subclasses say how. None means: nothing to say, ask the next one."""

    reads_results = False
    """Does the rule look at results? A policy whose rules don't spares the look."""

    def judge(self, outcome: Outcome) -> Ruling | None:
        """The ruling on this outcome, or None."""
        raise NotImplementedError

    def judge_group(self, outcome: Outcome) -> Ruling | None:
        """The ruling on a group of errors as a whole, or None to have its members judged."""
        return None


class OnType(Rule):
    """Errors of one type: a timeout is an overload, anything else a blip."""

    kind: type[Exception]

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        return nature(error) if isinstance(error, self.kind) else None

    def judge_group(self, outcome: Outcome) -> Ruling | None:
        # `on=Exception` says nothing about groups: their members may be excepted
        return self.judge(outcome) if issubclass(self.kind, BaseExceptionGroup) else None


class OnError(Rule):
    """Errors for which the user's predicate says so."""

    predicate: Callable[[Exception], Verdict]

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        return None if error is None else _ruling(self.predicate, self.predicate(error), nature(error))

    def judge_group(self, outcome: Outcome) -> Ruling | None:
        try:
            ruling = self.judge(outcome)
        except Exception:
            return None  # it may read what single errors have: these are asked about next
        return ruling if ruling is not None and ruling.retry else None  # a no may be meant for single errors


class OnResult(Rule):
    """Results for which the user's predicate says so."""

    predicate: Callable[[object], Verdict]

    reads_results = True

    def judge(self, outcome: Outcome) -> Ruling | None:
        if outcome.error is not None:
            return None
        return _ruling(self.predicate, self.predicate(outcome.result), ANSWERED)


class Widened(Rule):
    """What `rule` calls fatal or leaves alone is put to `by` as well, for the first `seconds` of a call."""

    rule: Rule
    by: Rule
    seconds: float

    @property
    def reads_results(self) -> bool:  # type: ignore[override]
        return self.rule.reads_results or self.by.reads_results

    def judge(self, outcome: Outcome) -> Ruling | None:
        ruling = self.rule.judge(outcome)
        final = ruling is not None and (ruling.retry or ruling.reason == "layer")
        if not final and outcome.elapsed < self.seconds:
            return self.by.judge(outcome) or ruling
        return ruling

    def judge_group(self, outcome: Outcome) -> Ruling | None:
        ruling = self.rule.judge_group(outcome)
        if ruling is None and outcome.elapsed < self.seconds:
            return self.by.judge_group(outcome)
        return ruling


class Rules(Rule):
    """A list of rules: `unless` first, then `on`; the first that answers decides."""

    on: tuple[Rule, ...]
    unless: tuple[Rule, ...] = ()

    def checked(self) -> None:
        self.__dict__["_known"] = {}

    @property
    def known(self) -> dict[type, Ruling]:
        """Rulings by type of error, kept where the type alone decides."""
        kept: dict[type, Ruling] = self.__dict__["_known"]
        return kept

    @property
    def reads_results(self) -> bool:  # type: ignore[override]
        return any(rule.reads_results for rule in self.on)

    def judge(self, outcome: Outcome) -> Ruling | None:
        for rule in self.unless:
            ruling = rule.judge(outcome)
            if ruling is not None and ruling.retry:
                return FATAL
        for rule in self.on:
            ruling = rule.judge(outcome)
            if ruling is not None:
                return ruling
        return None

    def decide(self, outcome: Outcome) -> Ruling:
        """The ruling on an outcome; an error that no rule knows is fatal.

        A group of errors is retried if a rule names groups and says so, or else if every error in it would be; none
        of them may be excepted by `unless`. The longest hint counts. A group of more than `MOST_MEMBERS` errors, or
        nested more than `DEEPEST` deep, is fatal without being looked at. An attempt that was cut off is an overload,
        whatever the rules say.
        """
        error = outcome.error
        if isinstance(error, AttemptTimeout):
            return OVERLOAD
        if isinstance(error, ExceptionGroup):
            if not _is_bounded(error):
                return FATAL
            return self._decide_group(outcome, error, self.judge_group(outcome))
        return self._decide_one(outcome)

    def _decide_one(self, outcome: Outcome) -> Ruling:
        error, ruling = outcome.error, self.judge(outcome) or FATAL
        if len(self.known) < MOST_KNOWN and all(type(rule) is OnType for rule in (*self.on, *self.unless)):
            self.known[type(error)] = ruling
        return ruling

    def _decide_group(self, outcome: Outcome, group: ExceptionGroup[Exception], whole: Ruling | None) -> Ruling:
        """The ruling on a group, given what the rules say about it as a whole."""
        rulings = [self._decide_member(error, outcome.elapsed) for error in group.exceptions]
        if LAYER in rulings:
            return LAYER
        reached = any(ruling.reached for ruling in rulings)
        if not (all(ruling.retry for ruling in rulings) if whole is None else whole.retry):
            return Ruling.fatal(reached=reached)
        if whole is not None:
            rulings.append(whole)
        return Ruling(
            True,
            "overload" if any(ruling.overloaded for ruling in rulings) else "blip",
            max((ruling.hint for ruling in rulings if ruling.hint is not None), default=None),
            reached,
            False if any(ruling.safe is False for ruling in rulings) else None,
            all(ruling.answered for ruling in rulings),
        )

    def _decide_member(self, error: Exception, elapsed: float) -> Ruling:
        outcome = Outcome(error=error, elapsed=elapsed)
        if isinstance(error, AttemptTimeout):
            return OVERLOAD
        if isinstance(error, ExceptionGroup):
            # `unless` has been asked about all that it holds, when it was asked about the group around it
            return self._decide_group(outcome, error, self._judge_whole(outcome))
        return self._decide_one(outcome)

    def judge_group(self, outcome: Outcome) -> Ruling | None:
        return FATAL if self._excepted(outcome.error, outcome.elapsed) else self._judge_whole(outcome)

    def _judge_whole(self, outcome: Outcome) -> Ruling | None:
        """What `on` says about a group as a whole."""
        for rule in self.on:
            ruling = rule.judge_group(outcome)
            if ruling is not None:
                return ruling
        return None

    def _excepted(self, error: Exception | None, elapsed: float) -> bool:
        """Does `unless` speak against an error, or against a group or one of its members?"""
        outcome, group = Outcome(error=error, elapsed=elapsed), isinstance(error, ExceptionGroup)
        for rule in self.unless:
            ruling = rule.judge_group(outcome) if group else rule.judge(outcome)
            if ruling is not None and ruling.retry:
                return True
        return isinstance(error, ExceptionGroup) and any(self._excepted(one, elapsed) for one in error.exceptions)


def _is_bounded(group: ExceptionGroup[Exception]) -> bool:
    """Is a group small enough to be looked at?"""
    level: list[ExceptionGroup[Exception]] = [group]
    members = 0
    for _ in range(DEEPEST):
        inner: list[ExceptionGroup[Exception]] = []
        for found in level:
            members += len(found.exceptions)
            if members > MOST_MEMBERS:
                return False
            inner += [error for error in found.exceptions if isinstance(error, ExceptionGroup)]
        if not inner:
            return True
        level = inner
    return False


def rules(on: Matcher | Iterable[Matcher], unless: Matcher | Iterable[Matcher] = ()) -> Rules:
    """Build the rules of a policy from what its user wrote.

    >>> judge = rules(on=(OSError, lambda error: "again" in str(error)), unless=FileNotFoundError).decide
    >>> judge(Outcome(error=OSError())).retry, judge(Outcome(error=FileNotFoundError())).retry
    (True, False)
    >>> judge(Outcome(error=ValueError("try again"))).retry
    True
    """
    wanted = matchers("on", on)
    if not wanted:
        raise ValueError("on must name at least one exception type, predicate or rule, not none")
    return Rules(tuple(map(_rule, wanted)), tuple(_rule(matcher) for matcher in matchers("unless", unless)))


def matchers(name: str, given: Matcher | Iterable[Matcher]) -> tuple[Matcher, ...]:
    """The matchers in an ``on`` or ``unless`` argument, each checked."""
    several = (
        tuple(given)
        if isinstance(given, Iterable) and not isinstance(given, (str, bytes, type, BaseException))
        else (given,)
    )
    for matcher in several:
        _check(name, matcher)
    return several  # type: ignore[return-value]


def on_error(predicate: Callable[[Exception], Verdict]) -> Rule:
    """Retry errors for which `predicate` is true; a number it answers is the hint, in seconds, and 0 is a no.

    >>> on_error(lambda error: 2.5).judge(Outcome(error=ValueError()))
    Ruling(retry=True, reason='blip', hint=2.5, reached=True, safe=None, answered=False)
    """
    return OnError(_function("on_error", predicate))


def on_result(predicate: Callable[[object], Verdict]) -> Rule:
    """Retry results for which `predicate` is true, such as an answer that is still empty.

    >>> on_result(lambda answer: answer is None).judge(Outcome(result=None)).retry
    True
    """
    return OnResult(_function("on_result", predicate))


def widen(rule: Matcher, *, by: Matcher, seconds: float) -> Rule:
    """Let `by` add to what `rule` retries, for the first `seconds` after a call's first failure.

    For reads that are eventually consistent: a 404 just after a create is worth another look, later it is not.

    >>> from abate.decide import http
    >>> fresh = widen(http.transient, by=http.status(404), seconds=5.0)
    >>> class NotFound(Exception): status_code = 404
    >>> fresh.judge(Outcome(error=NotFound(), elapsed=1.0)).retry
    True
    >>> fresh.judge(Outcome(error=NotFound(), elapsed=5.0)).retry
    False
    """
    _check("rule", rule)
    _check("by", by)
    return Widened(_rule(rule), _rule(by), number("seconds", seconds, above=0))


def nature(error: BaseException | None) -> Ruling:
    """What the type of an error says by itself: overloaded or not, seen by the server or not."""
    if isinstance(error, TimeoutError):
        return OVERLOAD
    if isinstance(error, ConnectionRefusedError) or _is_dns(error):
        return UNREACHED
    return BLIP


def _is_dns(error: BaseException | None) -> bool:
    # socket.gaierror, without importing socket: it is an OSError that carries an EAI_ code
    return isinstance(error, OSError) and type(error).__name__ == "gaierror"


def _rule(matcher: Any) -> Rule:
    if isinstance(matcher, Rule):
        return matcher
    return OnType(matcher) if isinstance(matcher, type) else OnError(matcher)


def _check(name: str, matcher: object) -> None:
    expected = f"{name} must be exception types, predicates or rules"
    if isinstance(matcher, Rule):
        return
    if isinstance(matcher, type):
        if not issubclass(matcher, BaseException):
            raise TypeError(f"{expected}, not the class {matcher.__name__}")
        if not issubclass(matcher, Exception):
            raise TypeError(f"{expected}; {matcher.__name__} asks the program to end and is never retried")
    elif isinstance(matcher, BaseException):
        raise TypeError(f"{expected}, not the instance {matcher!r}: give its type {type(matcher).__name__}")
    elif not callable(matcher):
        raise TypeError(f"{expected}, not {shown(matcher)}")
    else:
        _answers(f"{expected}: a predicate", matcher)


def _function(name: str, predicate: Callable[..., Verdict]) -> Callable[..., Verdict]:
    if not callable(predicate) or isinstance(predicate, type):
        raise TypeError(f"{name} needs a function, not {shown(predicate)}")
    _answers(f"{name}: a predicate", predicate)
    return predicate


def _answers(name: str, predicate: Callable[..., Verdict]) -> None:
    """Refuse functions whose answer would be true whatever they find."""
    if is_coroutine(predicate) or is_generator(predicate):
        raise TypeError(f"{name} must answer at once, and cannot be a coroutine or generator function: {predicate!r}")


def _ruling(predicate: Callable[..., Verdict], verdict: Verdict, yes: Ruling) -> Ruling | None:
    """What a predicate's answer means: `yes` is the ruling for a plain True."""
    if verdict is True:
        return yes
    if isinstance(verdict, Ruling):
        return verdict
    if not verdict:
        return None
    name = getattr(predicate, "__qualname__", repr(predicate))
    if returned_coroutine(verdict):
        verdict.close()  # type: ignore[attr-defined]
        raise TypeError(f"the predicate {name} must answer at once, and not with a coroutine")
    seconds = getattr(verdict, "total_seconds", None)  # of a timedelta, whose module is not worth importing here
    if callable(seconds):
        verdict = seconds()
    if isinstance(verdict, (int, float)):
        hint = max(0.0, number(f"the answer of the predicate {name}", verdict, infinite=True))
        return Ruling(True, yes.reason, hint, yes.reached, yes.safe, yes.answered)
    return yes
