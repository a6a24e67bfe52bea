"""The rules of a policy, as an HTTP client asks them: about the errors and responses of its library.

* `on` and `unless` mean what they mean everywhere. Rules for HTTP (`abate.http.transient`, `abate.http.status`) read
  the status, headers and body of a response; `abate.on_result` gets the library's response itself.
* Timeouts of the library count as the builtin ``TimeoutError``, its connection errors as ``ConnectionError``, and both
  as ``OSError``. The library's table says how an error is retried: overload or blip, seen by the server or not.
* What can never succeed is fatal by any rule: a certificate that can't be verified, an unsupported scheme, an invalid
  URL.
* A response of 400 and above that no rule retries is fatal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from abate.clients.stopwatch import ErrorRule
from abate.decide.http import OnTransient
from abate.decide.outcome import FATAL, FATAL_UNREACHED, LAYER, Outcome, Ruling
from abate.decide.responses import FoundResponse
from abate.decide.rules import OnType, Rule, Rules, Widened, classify
from abate.errors import Report

ResponseReader = Callable[[Any], tuple[int, Mapping[str, str]]]
KeyFunction = Callable[[Any], Any]


class Library(NamedTuple):
    """What differs between HTTP libraries."""

    name: str
    judge_error: ErrorRule
    """Return the ruling on an error of the library: FATAL for what can never succeed, None for errors of others."""
    read_response: ResponseReader
    """Return the status and the headers of a response."""
    host_of: KeyFunction
    """Return the host and port that a request goes to."""
    body_of: Callable[[Any], bytes | None]
    """Return the body of a response if it has been read."""
    target_of: Callable[[Any], tuple[str, str]]
    """Return the method and the URL of a request, for events."""
    mark: Callable[[Any, Report, bool], None]
    """Put a report on a response that is given up on; the last argument says whether to forbid retries above."""


class ResponseView:
    """A response as rules for HTTP read it; everything else is that of the library's response."""

    def __init__(self, response: Any, library: Library) -> None:
        self._response = response
        self.status_code, self.headers = library.read_response(response)
        self._content = library.body_of(response)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)


class ClientRules(Rule):
    """The rules of a policy for the requests of one client; `replayable` says whether a request can be sent twice."""

    rules: Rules
    library: Library
    replayable: bool = True

    reads_results = True

    def judge(self, outcome: Outcome) -> Ruling | None:
        ruling = self._judge_response(outcome) if outcome.error is None else self._judge_error(outcome, outcome.error)
        return self._unless_body(ruling)

    def _judge_error(self, outcome: Outcome, error: Exception) -> Ruling | None:
        if _cannot_be_sent(error):
            return FATAL_UNREACHED
        known = self.library.judge_error(error)
        return known if known is not None and not known.retry else self.rules.judge(outcome)

    def _judge_response(self, outcome: Outcome) -> Ruling | None:
        view = ResponseView(outcome.result, self.library)
        if view.status_code >= 400:
            found = FoundResponse.of_result(view)
            if found is not None and found.given_up:
                return LAYER
        ruling = self.rules.judge(outcome)
        return FATAL if ruling is None and view.status_code >= 400 else ruling

    def may_retry(self, response: Any) -> bool:
        """Return whether a rule for HTTP may retry a response whose body has not been read."""
        if not self.replayable:
            return False
        outcome = Outcome(None, response)
        # predicates on results are not asked: they may count, or read the body
        for rule in self.rules.unless:
            if rule.reads_responses and not rule.reads_results and _retries(rule, outcome):
                return False
        return any(rule.reads_responses and (rule.reads_results or _retries(rule, outcome)) for rule in self.rules.on)

    def judge_whole_group(self, outcome: Outcome) -> Ruling | None:
        group = outcome.error
        if isinstance(group, ExceptionGroup) and group.subgroup(_cannot_be_sent) is not None:
            return FATAL_UNREACHED
        return self._unless_body(self.rules.judge_whole_group(outcome))

    def _unless_body(self, ruling: Ruling | None) -> Ruling | None:
        """Return the ruling, or one against a retry if the body of the request can't be sent again."""
        if self.replayable or ruling is None or not ruling.retry:
            return ruling
        return Ruling(False, "body", None, ruling.reached, None, bool(ruling.taken))


class OnClientType(Rule):
    """Errors of one type, or errors of the library that stand for a builtin type."""

    kind: type[Exception]
    judge_error: ErrorRule

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        if error is None:
            return None
        known = self.judge_error(error)
        if isinstance(error, self.kind):
            return known or classify(error)
        if known is None or known.answered:
            return None
        return known if issubclass(TimeoutError if known.overloaded else ConnectionError, self.kind) else None

    def judge_whole_group(self, outcome: Outcome) -> Ruling | None:
        return OnType(self.kind).judge_whole_group(outcome)


class OnClientHttp(Rule):
    """A rule for HTTP about the library's responses; network errors are judged by the library's own table first."""

    rule: Rule
    library: Library

    reads_responses = True

    def judge(self, outcome: Outcome) -> Ruling | None:
        if outcome.error is None:
            return self.rule.judge(Outcome(None, ResponseView(outcome.result, self.library), outcome.elapsed))
        known = self.library.judge_error(outcome.error) if isinstance(self.rule, OnTransient) else None
        return known or self.rule.judge(outcome)

    def judge_whole_group(self, outcome: Outcome) -> Ruling | None:
        return self.rule.judge_whole_group(outcome)


def client_rules(rules: Rules, library: Library, replayable: bool) -> ClientRules:
    """Return the rules of a policy as a client asks them."""
    fitted = Rules(
        tuple(_fitted(rule, library) for rule in rules.on), tuple(_fitted(rule, library) for rule in rules.unless)
    )
    return ClientRules(fitted, library, replayable)


def _cannot_be_sent(error: BaseException) -> bool:
    """Return whether a host, a port or a header could not be encoded, which libraries leave to Python's own errors."""
    return isinstance(error, UnicodeError | OverflowError) and not isinstance(error, UnicodeDecodeError)


def _retries(rule: Rule, outcome: Outcome) -> bool:
    ruling = rule.judge(outcome)
    return ruling is not None and ruling.retry


def _fitted(rule: Rule, library: Library) -> Rule:
    if isinstance(rule, OnType):
        return OnClientType(rule.kind, library.judge_error)
    if isinstance(rule, Widened):
        return Widened(_fitted(rule.rule, library), _fitted(rule.by, library), rule.seconds)
    return OnClientHttp(rule, library) if rule.reads_responses else rule
