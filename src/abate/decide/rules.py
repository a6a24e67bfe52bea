"""Rules that judge outcomes: exception types, predicates on errors and results, and combinations of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from abate.decide.exception_groups import is_bounded
from abate.decide.network_errors import is_always_fatal, is_decided_by_type, judge_network_error
from abate.decide.outcome import ANSWERED, BLIP, FATAL, LAYER, OVERLOAD, UNREACHED, Outcome, Ruling
from abate.decide.responses import is_error_response
from abate.errors import AttemptTimeout, number
from abate.frozen import Frozen
from abate.functions import is_coroutine_function, is_coroutine_object, is_generator_function
from abate.redact import short_repr

if TYPE_CHECKING:
    from datetime import timedelta

PredicateResult: TypeAlias = "Ruling | float | timedelta | object"
"""What a predicate may return: a ruling; seconds, which mean a retry with that hint; or anything else, which means a
retry if it is true. A false value, including 0, means no retry."""

Matcher: TypeAlias = "type[BaseException] | Callable[[Exception], PredicateResult] | Rule"
"""One item of `on` or `unless`."""


MAX_CACHED_TYPES = 100
"""The most types of errors that one set of rules caches."""


class Rule(Frozen):
    """Judges an outcome. None means that the next rule decides."""

    reads_results = False
    """Whether the rule judges results of any kind."""
    reads_responses = False
    """Whether the rule judges results that look like HTTP responses; all others it leaves undecided."""

    def judge(self, outcome: Outcome) -> Ruling | None:
        """Return the ruling on this outcome, or None."""
        raise NotImplementedError

    def judge_whole_group(self, outcome: Outcome) -> Ruling | None:
        """Return the ruling on a group of errors as a whole, or None to judge its members."""
        return None


class OnType(Rule):
    """Errors of one type, classified as network errors; anything else is a blip.

    A network error that another attempt would meet again, such as a certificate that is not trusted, is fatal, unless
    `kind` names just that.
    """

    kind: type[Exception]

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        if not isinstance(error, self.kind):
            return None
        ruling = judge_network_error(error)
        if ruling is None:
            return BLIP
        return ruling if ruling.retry or not is_always_fatal(self.kind) else UNREACHED

    def judge_whole_group(self, outcome: Outcome) -> Ruling | None:
        # `on=Exception` does not decide about groups: `unless` may name their members
        return self.judge(outcome) if issubclass(self.kind, BaseExceptionGroup) else None


class OnError(Rule):
    """Errors for which the user's predicate is true."""

    predicate: Callable[[Exception], PredicateResult]

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        return None if error is None else _ruling_from(self.predicate, self.predicate(error), classify(error))

    def judge_whole_group(self, outcome: Outcome) -> Ruling | None:
        try:
            ruling = self.judge(outcome)
        except Exception:
            return None  # the predicate may expect attributes of single errors, which are judged next
        return ruling if ruling is not None and ruling.retry else None  # a false answer may refer to single errors


class OnResult(Rule):
    """Results for which the user's predicate is true."""

    predicate: Callable[[object], PredicateResult]

    reads_results = True

    def judge(self, outcome: Outcome) -> Ruling | None:
        if outcome.error is not None:
            return None
        return _ruling_from(self.predicate, self.predicate(outcome.result), ANSWERED)


class Widened(Rule):
    """Asks `by` about what `rule` calls fatal or does not decide, for the first `seconds` of a call."""

    rule: Rule
    by: Rule
    seconds: float

    @property
    def reads_results(self) -> bool:  # type: ignore[override]
        return self.rule.reads_results or self.by.reads_results

    @property
    def reads_responses(self) -> bool:  # type: ignore[override]
        return self.rule.reads_responses or self.by.reads_responses

    def judge(self, outcome: Outcome) -> Ruling | None:
        ruling = self.rule.judge(outcome)
        final = ruling is not None and (ruling.retry or ruling.reason == "layer")
        if not final and outcome.elapsed < self.seconds:
            return self.by.judge(outcome) or ruling
        return ruling

    def judge_whole_group(self, outcome: Outcome) -> Ruling | None:
        ruling = self.rule.judge_whole_group(outcome)
        if ruling is None and outcome.elapsed < self.seconds:
            return self.by.judge_whole_group(outcome)
        return ruling


class Rules(Rule):
    """A list of rules: `unless` first, then `on`; the first ruling counts."""

    on: tuple[Rule, ...]
    unless: tuple[Rule, ...] = ()

    def validate(self) -> None:
        self.__dict__["_rulings_by_type"] = {}
        self.__dict__["_only_responses"] = self.reads_responses and not self.reads_results

    @property
    def rulings_by_type(self) -> dict[type, Ruling]:
        """Cached rulings by type of error, if the type alone decides."""
        kept: dict[type, Ruling] = self.__dict__["_rulings_by_type"]
        return kept

    @property
    def reads_results(self) -> bool:  # type: ignore[override]
        return any(rule.reads_results for rule in self.on)

    @property
    def reads_responses(self) -> bool:  # type: ignore[override]
        return any(rule.reads_responses for rule in self.on)

    def judge(self, outcome: Outcome) -> Ruling | None:
        for rule in self.unless:
            ruling = rule.judge(outcome)
            if ruling is not None and ruling.retry:
                return None if outcome.error is None and self._is_wanted(outcome) else FATAL
        return self._judge_on(outcome)

    def _judge_on(self, outcome: Outcome) -> Ruling | None:
        for rule in self.on:
            ruling = rule.judge(outcome)
            if ruling is not None:
                return ruling
        return None

    def _is_wanted(self, outcome: Outcome) -> bool:
        """Return whether a result that `unless` matches is good in any case, because `on` would not retry it."""
        try:
            return self._judge_on(outcome) is None
        except Exception:
            return False  # a predicate may rely on `unless` to keep such results from it

    def is_good(self, result: object) -> bool:
        """Return whether no rule asks for a retry of this result."""
        if self.__dict__["_only_responses"] and not is_error_response(result):
            return True
        return self.judge(Outcome(None, result)) is None

    def decide(self, outcome: Outcome) -> Ruling:
        """Return the ruling on an outcome; an error that no rule matches is fatal.

        A group of errors is retried if a rule for groups says so; otherwise if every error in it would be retried. If
        `unless` matches any member, the group is fatal. The longest hint counts. A group of more than
        `MAX_GROUP_MEMBERS` errors, or nested more than `MAX_GROUP_DEPTH` deep, is fatal without being judged. An
        attempt that was cut off is an overload, whatever the rules say.
        """
        error = outcome.error
        if isinstance(error, AttemptTimeout):
            return OVERLOAD
        if isinstance(error, ExceptionGroup):
            if not is_bounded(error):
                return FATAL
            return self._decide_group(outcome, error, self.judge_whole_group(outcome))
        return self._decide_one(outcome)

    def _decide_one(self, outcome: Outcome) -> Ruling:
        error, ruling = outcome.error, self.judge(outcome) or FATAL
        if (
            len(self.rulings_by_type) < MAX_CACHED_TYPES
            and all(type(rule) is OnType for rule in (*self.on, *self.unless))
            and is_decided_by_type(type(error))
        ):
            self.rulings_by_type[type(error)] = ruling
        return ruling

    def _decide_group(self, outcome: Outcome, group: ExceptionGroup[Exception], whole: Ruling | None) -> Ruling:
        """Return the ruling on a group, given the ruling on it as a whole."""
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
            # `unless` was asked about its members with the outer group
            return self._decide_group(outcome, error, self._judge_whole(outcome))
        return self._decide_one(outcome)

    def judge_whole_group(self, outcome: Outcome) -> Ruling | None:
        return FATAL if self._is_excepted(outcome.error, outcome.elapsed) else self._judge_whole(outcome)

    def _judge_whole(self, outcome: Outcome) -> Ruling | None:
        """Return the ruling of `on` about a group as a whole."""
        for rule in self.on:
            ruling = rule.judge_whole_group(outcome)
            if ruling is not None:
                return ruling
        return None

    def _is_excepted(self, error: Exception | None, elapsed: float) -> bool:
        """Return whether `unless` matches an error, a group, or one of its members."""
        outcome, group = Outcome(error=error, elapsed=elapsed), isinstance(error, ExceptionGroup)
        for rule in self.unless:
            ruling = rule.judge_whole_group(outcome) if group else rule.judge(outcome)
            if ruling is not None and ruling.retry:
                return True
        return isinstance(error, ExceptionGroup) and any(self._is_excepted(one, elapsed) for one in error.exceptions)


def build_rules(on: Matcher | Iterable[Matcher], unless: Matcher | Iterable[Matcher] = ()) -> Rules:
    """Build the rules of a policy from what its user wrote.

    >>> judge = build_rules(on=(OSError, lambda error: "again" in str(error)), unless=FileNotFoundError).decide
    >>> judge(Outcome(error=OSError())).retry, judge(Outcome(error=FileNotFoundError())).retry
    (True, False)
    >>> judge(Outcome(error=ValueError("try again"))).retry
    True
    """
    wanted = check_matchers("on", on)
    if not wanted:
        raise ValueError("on must name at least one exception type, predicate or rule, not none")
    return Rules(tuple(map(_rule, wanted)), tuple(_rule(matcher) for matcher in check_matchers("unless", unless)))


def check_matchers(name: str, given: Matcher | Iterable[Matcher]) -> tuple[Matcher, ...]:
    """Return the checked matchers of an ``on`` or ``unless`` argument."""
    several = (
        tuple(given)
        if isinstance(given, Iterable) and not isinstance(given, (str, bytes, type, BaseException))
        else (given,)
    )
    for matcher in several:
        _check_matcher(name, matcher)
    return several  # type: ignore[return-value]


def on_error(predicate: Callable[[Exception], PredicateResult]) -> Rule:
    """Retry errors for which `predicate` is true; a number means a hint in seconds, and 0 means no.

    >>> on_error(lambda error: 2.5).judge(Outcome(error=ValueError()))
    Ruling(retry=True, reason='blip', hint=2.5, reached=True, safe=None, answered=False)
    """
    return OnError(_check_predicate("on_error", predicate))


def on_result(predicate: Callable[[object], PredicateResult]) -> Rule:
    """Retry results for which `predicate` is true, such as a response that is still empty.

    >>> on_result(lambda answer: answer is None).judge(Outcome(result=None)).retry
    True
    """
    return OnResult(_check_predicate("on_result", predicate))


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
    _check_matcher("rule", rule)
    _check_matcher("by", by)
    return Widened(_rule(rule), _rule(by), number("seconds", seconds, above=0))


def classify(error: BaseException) -> Ruling:
    """Return the ruling to retry an error: whether it means overload, and whether it reached the server."""
    ruling = judge_network_error(error)
    if ruling is None:
        return BLIP
    return ruling if ruling.retry else UNREACHED


def _rule(matcher: Any) -> Rule:
    if isinstance(matcher, Rule):
        return matcher
    return OnType(matcher) if isinstance(matcher, type) else OnError(matcher)


def _check_matcher(name: str, matcher: object) -> None:
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
        is_status = type(matcher) is int and 400 <= matcher <= 599
        advice = f": for a status write abate.http.status({matcher})" if is_status else ""
        raise TypeError(f"{expected}, not {short_repr(matcher)}{advice}")
    else:
        _refuse_async(f"{expected}: a predicate", matcher)


def _check_predicate(name: str, predicate: Callable[..., PredicateResult]) -> Callable[..., PredicateResult]:
    if not callable(predicate) or isinstance(predicate, type):
        raise TypeError(f"{name} needs a function, not {short_repr(predicate)}")
    _refuse_async(f"{name}: a predicate", predicate)
    return predicate


def _refuse_async(name: str, predicate: Callable[..., Any]) -> None:
    """Raise TypeError for functions whose return value, a coroutine or generator, is always true."""
    if is_coroutine_function(predicate) or is_generator_function(predicate):
        raise TypeError(
            f"{name} must return its answer, and cannot be a coroutine or generator function: {predicate!r}"
        )


def _ruling_from(predicate: Callable[..., PredicateResult], verdict: PredicateResult, yes: Ruling) -> Ruling | None:
    """Return the ruling that a predicate's return value means; `yes` is the ruling for True."""
    if verdict is True:
        return yes
    if isinstance(verdict, Ruling):
        return verdict
    if not verdict:
        return None
    name = getattr(predicate, "__qualname__", repr(predicate))
    if is_coroutine_object(verdict):
        verdict.close()  # type: ignore[attr-defined]
        raise TypeError(f"the predicate {name} must return its answer, not a coroutine")
    seconds = getattr(verdict, "total_seconds", None)  # a timedelta, without importing datetime
    if callable(seconds):
        verdict = seconds()
    if isinstance(verdict, (int, float)):
        hint = max(0.0, number(f"the answer of the predicate {name}", verdict, infinite=True))
        return Ruling(True, yes.reason, hint, yes.reached, yes.safe, yes.answered)
    return yes
