"""How a piece of work has ended, and what becomes of it: the rules of controllers and consumers, without I/O.

The rules, the first that applies:

* it returned nothing: done; `Again`: done, and once more later. What was meant to be raised (an error), or to be
  called (`Again` itself), or has not run at all (a generator), is a mistake, and fatal. Any other value: done, as the
  work is; the value says nothing;
* `SilentSuccess`: done; `PermanentFailure`: buried;
* an error that `on` doesn't name: fatal, buried. Without `on` every error is worth another try. One that a policy
  inside has given up on is like any other: it comes back once, with the queue's delay;
* it was handed out as often as it may be: buried. A message that may have killed the process that had it is a
  suspect, and is worked on alone before it is buried, so that those in hand beside it don't share its fate;
* otherwise it comes back: after its backoff with jitter (from a second on where the server is overloaded), never
  before a hint, and only if the retry budget admits it, or else at the slow rate.
"""

from __future__ import annotations

import random
from inspect import isasyncgen, isgenerator
from typing import Literal, NamedTuple

from abate.admit.budget import Budget
from abate.call.policy import OVERLOAD_BASE
from abate.decide import http
from abate.decide.outcome import BLIP, Outcome, Ruling
from abate.decide.rules import Rules, nature
from abate.redact import redacted, trace
from abate.schedule.backoff import Schedule, Uniform
from abate.schedule.hints import LONGEST, after_hint
from abate.work.answers import Again, PermanentFailure, Recoverable, SilentSuccess
from abate.work.source import Back, Bury, Done, Verdict

LONGEST_REASON = 1_000
"""Characters of a reason that are kept."""
LONGEST_TRACE = 16_000
"""Characters of a traceback that are kept: its end, where the error is."""

LONGEST_HINT = 3600.0
"""Seconds; a server that asks for more is asked again after this long. What a handler says is taken as it is."""

SUSPECT = 2
"""Receives in a row without an answer that make a message a suspect. One is what a deployment that kills its processes
leaves behind for everything they had in hand; the same message twice in a row is rare, unless it is the cause."""

Ending = Literal["done", "again", "silent", "retry", "slow", "buried"]
"""How a piece of work has ended, in one word: the same in counts, events and metrics."""


Failed = bool | Literal["answered"] | None
"""Has it failed? By an error that a server answered with, and not for overload; or does it not matter to others?"""


class Judgement(NamedTuple):
    """What becomes of a piece of work, in one word as well; `failed` tells the fuse whether a dependency is down."""

    verdict: Verdict
    ending: Ending
    failed: Failed


class Judge:
    """Turns what a handler answered into a verdict.

    >>> from abate import Backoff
    >>> judge = Judge(backoff=Backoff(1.0, jitter="none"))
    >>> judge.returned(None).verdict, judge.returned(Again(5.0)).verdict
    (Done(again=None), Done(again=5.0))
    >>> judge.raised(ConnectionError(), receives=2).verdict
    Back(after=2.0, touched=True)
    >>> judge.raised(PermanentFailure("no address"), receives=1).verdict.reason
    'no address'
    """

    __slots__ = ("_budget", "_chance", "_most", "_overload_backoff", "_rules", "_slow", "_told", "backoff")

    def __init__(
        self,
        backoff: Schedule,
        rules: Rules | None = None,
        budget: Budget | None = None,
        slow: float = 60.0,
        most: int | None = None,
        rng: Uniform | None = None,
    ) -> None:
        self.backoff = backoff
        self._overload_backoff = backoff.at_least(OVERLOAD_BASE)
        self._rules = rules
        self._budget = budget
        self._slow = slow
        self._most = most
        self._chance: Uniform = rng or random
        self._told = False

    def hopeless(self, receives: int, unanswered: int | None = 0) -> Judgement | None:
        """A message that was handed out too often without ever being settled has killed its workers.

        `unanswered` is how many of the last receives ended without an answer; None where the source can't tell. If
        only the last receive went unanswered, another message may be to blame: it gets one more receive, alone. SQS
        also counts receives that were never worked on, so the limit is doubled there; where the queue has a limit of
        its own this is not asked (see `Worker`).
        """
        if self._most is None:
            return None
        more = self._most if unanswered is None else int(unanswered == 1)
        if receives <= self._most + more:
            return None
        reason = f"handed out {receives} times, and settled by nobody: at most {self._most} are allowed"
        return Judgement(Bury("receives", reason), "buried", None)

    def suspect(self, receives: int, unanswered: int | None = 0) -> bool:
        """Must nothing else be in hand while a message is worked on, as it may kill the process?"""
        if self.hopeless(receives, unanswered) is not None:
            return False
        if unanswered is None:
            return self.doubtful(receives)
        last = self._most is not None and receives >= self._most
        return unanswered >= SUSPECT or (last and unanswered > 0)

    def doubtful(self, receives: int) -> bool:
        """Was it handed out more often than it would have been with an answer each time?"""
        return self._most is not None and receives > self._most

    def returned(self, result: object) -> Judgement:
        """The handler has returned."""
        mistake = _mistake(result)
        if mistake is not None:
            return _buried("fatal", TypeError(mistake))
        if self._budget is not None:
            self._budget.deposit()
        if isinstance(result, Again):
            return Judgement(Done(again=result.after), "again", False)
        return Judgement(Done(), "done", False)

    def surprised(self, result: object) -> bool:
        """Is this the first return value that is ignored? It is logged once."""
        if self._told or result is None or isinstance(result, Again) or _mistake(result) is not None:
            return False
        self._told = True
        return True

    def raised(self, error: Exception, receives: int) -> Judgement:
        """The handler has raised, when its message had been handed out so often."""
        if isinstance(error, SilentSuccess):
            if self._budget is not None:
                self._budget.deposit()
            return Judgement(Done(), "silent", False)
        if isinstance(error, PermanentFailure):
            return _buried("permanent", error)
        ruling = self._ruling(error)
        if not ruling.retry:
            return _buried("fatal", error)
        return self.failed(error, receives, ruling)

    def failed(self, error: BaseException, receives: int, ruling: Ruling) -> Judgement:
        """Worth another try, if there is one left."""
        failed: Failed = "answered" if ruling.taken else True
        if self._most is not None and receives >= self._most:
            return _buried("receives", error, f" (handed out {receives} times)", failed)
        plan = self._overload_backoff if ruling.overloaded else self.backoff
        delay = plan.delay(receives, self._chance)
        if ruling.hint is not None:
            longest = LONGEST if isinstance(error, Recoverable) else LONGEST_HINT
            delay = after_hint(min(ruling.hint, longest), plan, receives, delay)
        if self._budget is None or self._budget.try_withdraw():
            return Judgement(Back(delay), "retry", failed)
        # half of it up or down, so that those who were refused together don't come back together
        return Judgement(Back(max(delay, self._slow * (0.5 + self._chance.random()))), "slow", failed)

    def judged(self, error: BaseException, receives: int) -> Judgement:
        """The handler has raised, or ended by something that is no answer, which is a failure like another.

        There is always a judgement: where the rules themselves fail (a predicate, a schedule), the message is buried.
        """
        try:
            if isinstance(error, Exception):
                return self.raised(error, receives)
            return self.failed(error, receives, BLIP)
        except BaseException as broken:  # an exit too: without a judgement its message would stay in hand
            return _buried("fatal", broken, " (in the rules that judge what handlers raise)")

    def _ruling(self, error: Exception) -> Ruling:
        if isinstance(error, Recoverable):
            return Ruling.blip(hint=error.after)
        outcome = Outcome(error)
        if self._rules is None:
            ruling = http.transient.judge(outcome)
            return ruling if ruling is not None and ruling.retry else nature(error)
        ruling = self._rules.decide(outcome)
        return Ruling.blip() if ruling.reason == "layer" else ruling


def _mistake(result: object) -> str | None:
    """What is wrong with what a handler returned; None for nothing."""
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


def _buried(kind: str, error: BaseException, more: str = "", failed: Failed = None) -> Judgement:
    name = "" if isinstance(error, PermanentFailure) and _words(error) else f"{type(error).__name__}: "
    reason = f"{name}{redacted(_words(error))}"[:LONGEST_REASON] + more
    return Judgement(Bury(kind, reason, trace(error)[-LONGEST_TRACE:]), "buried", failed)


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(it can't be told)"
