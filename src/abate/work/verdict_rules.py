"""Turns the result of a handler into a verdict, for controllers and consumers, without I/O.

The first rule that applies:

* The handler returned None: done. `Again`: done, and once more later. An error or the class `Again` that was returned,
  or a generator that has not run, is a mistake: buried as fatal. Any other value is ignored: done.
* It raised `SilentSuccess`: done. `PermanentFailure`: buried.
* It raised an error that `on` doesn't match: buried as fatal. Without `on` every error is retried. An error that a
  policy inside has given up on is retried once more, with the queue's delay.
* The message was received `max_receives` times: buried. A message that may have killed its process is a suspect: before
  it is buried it is handled alone, so that it can't take others down with it.
* Otherwise it is retried: after its backoff with jitter (at least a second if the server is overloaded), not before a
  hint, and only if the retry budget allows it, or else after the `slow` delay.
"""

from __future__ import annotations

import random
from copy import copy
from inspect import isasyncgen, isgenerator
from typing import Literal, NamedTuple

from abate.admit.budget import Budget
from abate.call.policy_settings import OVERLOAD_BASE
from abate.decide import http
from abate.decide.outcome import BLIP, Outcome, Ruling
from abate.decide.rules import Rules, classify
from abate.events import Ending
from abate.redact import redacted, trace
from abate.schedule.backoff import RandomSource, Schedule
from abate.schedule.hints import MAX_HINT, delay_after_hint
from abate.work.handler_results import Again, PermanentFailure, Recoverable, SilentSuccess
from abate.work.source import Back, Bury, Done, Verdict

MAX_REASON_CHARS = 1_000
"""Characters of a reason that are kept."""
MAX_TRACE_CHARS = 16_000
"""Characters of a traceback that are kept, from its end."""

MAX_HINT_DELAY = 3600.0
"""Seconds; a longer hint of a server is shortened to this. A hint of the handler (`Recoverable`) is not."""

SUSPECT_AFTER = 2
"""Receives in a row without an answer that make a message a suspect. A deployment that kills processes leaves one for
every message in flight; two in a row for the same message are rare, unless it is the cause."""

BreakerOutcome = bool | Literal["answered"] | None
"""The result for a circuit breaker: whether it failed; ``answered`` for an error response that does not mean overload;
None if the result says nothing about the server."""


class Decision(NamedTuple):
    """The verdict on a message, how it ended in one word, and the result for the circuit breaker."""

    verdict: Verdict
    ending: Ending
    failed: BreakerOutcome


DONE = Decision(Done(), "done", False)
"""The decision about most messages, made once."""


class BatchFailed(Exception):
    """What the handler of a batch of several messages has raised: it says nothing about a single one of them.

    The circuit breaker counts one message of the batch, the `counted` one, as one call has failed.
    """

    def __init__(self, error: BaseException, *, counted: bool) -> None:
        super().__init__(error)
        self.error = error
        self.counted = counted


class VerdictRules:
    """Turns the result of a handler into a decision.

    >>> from abate import Backoff
    >>> rules = VerdictRules(backoff=Backoff(1.0, jitter="none"))
    >>> rules.returned(None).verdict, rules.returned(Again(5.0)).verdict
    (Done(again=None), Done(again=5.0))
    >>> rules.raised(ConnectionError(), receives=2).verdict
    Back(after=2.0, touched=True)
    >>> rules.raised(PermanentFailure("no address"), receives=1).verdict.reason
    'no address'
    """

    __slots__ = ("_budget", "_max_receives", "_overload_backoff", "_rng", "_rules", "_slow", "_warned", "backoff")

    def __init__(
        self,
        backoff: Schedule,
        rules: Rules | None = None,
        budget: Budget | None = None,
        slow: float = 60.0,
        max_receives: int | None = None,
        rng: RandomSource | None = None,
    ) -> None:
        self.backoff = backoff
        self._overload_backoff = backoff.at_least(OVERLOAD_BASE)
        self._rules = rules
        self._budget = budget
        self._slow = slow
        self._max_receives = max_receives
        self._rng: RandomSource = rng or random
        self._warned = False

    def with_budget(self, budget: Budget) -> VerdictRules:
        """Return the same rules with another retry budget."""
        rules = copy(self)
        rules._budget = budget
        return rules

    def over_receive_limit(self, receives: int, unanswered: int | None = 0) -> Decision | None:
        """Bury a message that was received too often without being settled: it has killed its processes.

        `unanswered` is how many of the last receives ended without an answer; None if the source does not know. If only
        the last receive went unanswered, another message may be the cause: this one gets one more receive, alone. SQS
        also counts receives that were not handled, so its limit is doubled. This is not called for a queue with a
        redrive policy of its own (see `message_handler.MessageHandler`).
        """
        if self._max_receives is None:
            return None
        more = self._max_receives if unanswered is None else int(unanswered == 1)
        if receives <= self._max_receives + more:
            return None
        reason = f"received {receives} times and never settled: at most {self._max_receives} are allowed"
        return Decision(Bury("receives", reason), "buried", None)

    def suspect(self, receives: int, unanswered: int | None = 0) -> bool:
        """Return whether a message must be handled alone, as it may kill the process."""
        if self.over_receive_limit(receives, unanswered) is not None:
            return False
        if unanswered is None:
            return self.received_too_often(receives)
        last = self._max_receives is not None and receives >= self._max_receives
        return unanswered >= SUSPECT_AFTER or (last and unanswered > 0)

    def received_too_often(self, receives: int) -> bool:
        """Return whether a message was received more often than is possible if every receive was answered."""
        return self._max_receives is not None and receives > self._max_receives

    def returned(self, result: object) -> Decision:
        """Decide about a handler that returned."""
        mistake = None if result is None else _mistake(result)
        if mistake is not None:
            return _bury("fatal", TypeError(mistake))
        if self._budget is not None:
            self._budget.deposit()
        if isinstance(result, Again):
            return Decision(Done(again=result.after), "again", False)
        return DONE

    def first_ignored_value(self, result: object) -> bool:
        """Return whether this is the first return value that is ignored, which is logged once."""
        if self._warned or result is None or isinstance(result, Again) or _mistake(result) is not None:
            return False
        self._warned = True
        return True

    def raised(self, error: Exception, receives: int) -> Decision:
        """Decide about a handler that raised; `receives` counts the receives of its message."""
        if isinstance(error, SilentSuccess):
            if self._budget is not None:
                self._budget.deposit()
            return Decision(Done(), "silent", False)
        if isinstance(error, PermanentFailure):
            return _bury("permanent", error)
        ruling = self._ruling(error)
        if not ruling.retry:
            return _bury("fatal", error)
        return self.failed(error, receives, ruling)

    def failed(self, error: BaseException, receives: int, ruling: Ruling) -> Decision:
        """Retry a message, or bury it if it was received too often."""
        failed: BreakerOutcome = "answered" if ruling.taken else True
        if self._max_receives is not None and receives >= self._max_receives:
            return _bury("receives", error, f" (received {receives} times)", failed)
        plan = self._overload_backoff if ruling.overloaded else self.backoff
        delay = plan.delay(receives, self._rng)
        if ruling.hint is not None:
            longest = MAX_HINT if isinstance(error, Recoverable) else MAX_HINT_DELAY
            delay = delay_after_hint(min(ruling.hint, longest), plan, receives, delay)
        if self._budget is None or self._budget.try_withdraw():
            return Decision(Back(delay), "retry", failed)
        # plus or minus half, so that keys that were refused together don't come back together
        return Decision(Back(max(delay, self._slow * (0.5 + self._rng.random()))), "slow", failed)

    def decide_raised(self, error: BaseException, receives: int) -> Decision:
        """Decide about a handler that raised or crashed. A crash is a failure like any other.

        If the rules themselves fail (a predicate, a schedule), the message is buried.
        """
        if isinstance(error, BatchFailed):
            decision = self.decide_raised(error.error, receives)
            if decision.ending == "buried":  # the next time the message is handled alone, and the error is its own
                return self.failed(error.error, receives, BLIP)._replace(failed=None)
            return decision if error.counted else decision._replace(failed=None)
        try:
            if isinstance(error, Exception):
                return self.raised(error, receives)
            return self.failed(error, receives, BLIP)
        except BaseException as broken:  # even SystemExit: without a decision the message would stay in flight
            return _bury("fatal", broken, " (in the rules for errors of handlers)")

    def _ruling(self, error: Exception) -> Ruling:
        if isinstance(error, Recoverable):
            return Ruling.blip(hint=error.after)
        outcome = Outcome(error)
        if self._rules is None:
            ruling = http.transient.judge(outcome)
            return ruling if ruling is not None and ruling.retry else classify(error)
        ruling = self._rules.decide(outcome)
        return Ruling.blip() if ruling.reason == "layer" else ruling


def _mistake(result: object) -> str | None:
    """Return what is wrong with a return value; None if nothing is."""
    kind = result if isinstance(result, type) else type(result)
    if issubclass(kind, BaseException):
        return f"a handler must raise {kind.__name__}, not return it"
    if result is Again:
        return "a handler must return abate.Again(after), not the class"
    if isinstance(result, (Done, Back, Bury)):
        return f"a handler must return None or abate.Again(after), not a source's verdict {kind.__name__}"
    if isgenerator(result) or isasyncgen(result):
        return "a handler must not be a generator: nothing of it has run"
    return None


def _bury(kind: str, error: BaseException, more: str = "", failed: BreakerOutcome = None) -> Decision:
    name = "" if isinstance(error, PermanentFailure) and _message_of(error) else f"{type(error).__name__}: "
    reason = f"{name}{redacted(_message_of(error))}"[:MAX_REASON_CHARS] + more
    return Decision(Bury(kind, reason, trace(error)[-MAX_TRACE_CHARS:]), "buried", failed)


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(the error has no readable text)"
