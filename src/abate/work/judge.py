"""How a piece of work has ended, and what becomes of it: the rules of controllers and consumers, without I/O.

The rules, the first that applies:

* it returned nothing: done; `Again`: done, and once more later; anything else is a mistake, and fatal;
* `SilentSuccess`: done; `PermanentFailure`: buried;
* an error that `on` doesn't name: fatal, buried. Without `on` every error is worth another try. One that a policy
  inside has given up on is like any other: it comes back once, with the queue's delay;
* it was handed out as often as it may be: buried;
* otherwise it comes back: after its backoff with jitter (from a second on where the server is overloaded), never
  before a hint, and only if the retry budget admits it, or else at the slow rate.
"""

from __future__ import annotations

import random
from traceback import format_exception
from typing import Literal, NamedTuple

from abate.admit.budget import Budget
from abate.call.policy import OVERLOAD_BASE
from abate.decide import http
from abate.decide.outcome import BLIP, Outcome, Ruling
from abate.decide.rules import Rules, nature
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

Ending = Literal["done", "again", "silent", "retry", "slow", "buried"]
"""How a piece of work has ended, in one word: the same in counts, events and metrics."""


class Judgement(NamedTuple):
    """What becomes of a piece of work, in one word as well; `failed` tells the fuse whether a dependency is down."""

    verdict: Verdict
    ending: Ending
    failed: bool | None


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

    __slots__ = ("_budget", "_chance", "_most", "_overload_backoff", "_rules", "_slow", "backoff")

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

    def hopeless(self, receives: int) -> Judgement | None:
        """A message that was handed out too often without ever being settled has killed its workers."""
        if self._most is None or receives <= self._most:
            return None
        reason = f"handed out {receives} times, and settled by nobody: at most {self._most} are allowed"
        return Judgement(Bury("receives", reason), "buried", None)

    def returned(self, result: object) -> Judgement:
        """The handler has returned."""
        if result is not None and not isinstance(result, Again):
            return _buried("fatal", TypeError(f"a handler must return None or abate.Again(after), not {result!r}"))
        if self._budget is not None:
            self._budget.deposit()
        if result is None:
            return Judgement(Done(), "done", False)
        return Judgement(Done(again=result.after), "again", False)

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
        if self._most is not None and receives >= self._most:
            return _buried("receives", error, f" (handed out {receives} times)", failed=True)
        plan = self._overload_backoff if ruling.overloaded else self.backoff
        delay = plan.delay(receives, self._chance)
        if ruling.hint is not None:
            longest = LONGEST if isinstance(error, Recoverable) else LONGEST_HINT
            delay = after_hint(min(ruling.hint, longest), plan, receives, delay)
        if self._budget is None or self._budget.try_withdraw():
            return Judgement(Back(delay), "retry", True)
        # half of it up or down, so that those who were refused together don't come back together
        return Judgement(Back(max(delay, self._slow * (0.5 + self._chance.random()))), "slow", True)

    def judged(self, error: BaseException, receives: int) -> Judgement:
        """The handler has raised, or ended by something that is no answer, which is a failure like another.

        There is always a judgement: where the rules themselves fail (a predicate, a schedule), the message is buried.
        """
        try:
            if isinstance(error, Exception):
                return self.raised(error, receives)
            return self.failed(error, receives, BLIP)
        except Exception as broken:
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


def _buried(kind: str, error: BaseException, more: str = "", failed: bool | None = None) -> Judgement:
    name = "" if isinstance(error, PermanentFailure) and _words(error) else f"{type(error).__name__}: "
    reason = f"{name}{_words(error)}"[:LONGEST_REASON] + more
    return Judgement(Bury(kind, reason, "".join(format_exception(error))[-LONGEST_TRACE:]), "buried", failed)


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(it can't be told)"
