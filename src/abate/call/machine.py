"""One call, as a machine without clock, sleep or I/O: it takes facts and says what to do next.

    begin() ──► Send ──► attempt ──► good: succeeded()                        the call is over
       ▲                                │
       │                                └──► failed(outcome, now) ──► Stop(reason)   over as well: give_up
       │                                         │
       └─────────── wait ◄────────────────── Wait(until)

A retry that the gate does not admit stops in `begin`.
Refusals that cost nothing come first, spending last: fatal, layer, attempts, deadline, hint, unsafe, and only then
the budget. A wait or an attempt that is broken off returns what was not used.

Every driver (threads, tasks, the block form, a simulated world) is a loop over this machine.
"""

from __future__ import annotations

import math
import warnings
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from abate import events
from abate.call.giveup import give_ups, given_up_within, mark, tell_watch
from abate.clock import switch
from abate.decide.outcome import Outcome, Ruling
from abate.errors import LayeredRetryWarning, Refused, Report, RetryExhausted
from abate.values import Fields

if TYPE_CHECKING:
    from abate.call.policy import Policy
    from abate.schedule.backoff import Schedule

HINT_SPREAD = 0.8
"""Hinted clients come back over at least this share of the hint, or they come as a second herd."""

FAR = 10_000
"""The number of a retry at which every backoff has reached its cap."""

_off: ContextVar[bool] = ContextVar("abate_off", default=False)


def switch_off() -> Token[bool]:
    """Let calls of this context make one attempt, until `switch_on`."""
    switch.off = True
    return _off.set(True)


def switch_on(token: Token[bool]) -> None:
    """Undo `switch_off`."""
    _off.reset(token)


_warned: set[tuple[str, str]] = set()
_MOST_WARNINGS = 1000


class Send(Fields):
    """Make the next attempt now."""

    __slots__ = ()


class Wait(Fields):
    """Make the next attempt at the instant `until`."""

    __slots__ = __match_args__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until


class Stop(Fields):
    """Make no further attempt."""

    __slots__ = __match_args__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


SEND = Send()


class Call:
    """One logical call of a policy.

    >>> import abate
    >>> call = Call(abate.Policy(on=ConnectionError, attempts=2, backoff=abate.Backoff(1.0, jitter="none")))
    >>> call.failed(Outcome(error=ConnectionError()), now=100.0)
    Wait(until=101.0)
    >>> call.failed(Outcome(error=ConnectionError()), now=101.0)
    Stop(reason='attempts')
    """

    __slots__ = (
        "_delay",
        "_first",
        "_in_flight",
        "_inner",
        "_over",
        "attempts",
        "deadline",
        "policy",
        "since",
        "unspent",
        "waited",
    )

    def __init__(self, policy: Policy, deadline: float | None = None, since: int | None = None) -> None:
        self.policy = policy
        self.deadline = deadline
        self.since = give_ups.last if since is None else since
        self.attempts = 0
        self.waited = 0.0
        self._first: float | None = None
        self._delay: float | None = None
        self._inner: Report | None = None
        self._over = self.unspent = self._in_flight = False

    def begin(self) -> Send | Stop:
        """An attempt is about to be made, if the gate admits it; a first attempt that is refused raises `Refused`."""
        self.since = give_ups.last
        policy = self.policy
        retry = self.attempts > 0
        if policy.gate is not None:
            refused = policy.gate.enter(retry)
            if refused is not None:
                self._return_unused()
                if events.sinks:
                    events.emit(events.BudgetRefused(policy.name, refused.name, self.attempts))
                if not retry:
                    self._over = True
                    raise Refused(refused.name, refused.refusal())
                return Stop("budget")
            self._in_flight = True
        self.unspent = False
        if not retry and policy.budget.funded_by == "request":
            policy.budget.deposit()
        return SEND

    def allowance(self, now: float) -> float:
        """Seconds that the attempt beginning now may take; for policies that are bounded."""
        left = math.inf if self.deadline is None else max(0.0, self.deadline - now)
        return left if self.policy.attempt_timeout is None else min(left, self.policy.attempt_timeout)

    def good(self, result: object) -> bool:
        """Is this a result that no rule speaks against?"""
        return self.policy.rules.judge(Outcome(None, result)) is None

    def succeeded(self) -> None:
        """The attempt's result is good: the call is over."""
        self.attempts += 1
        if self._in_flight:
            self._leave(True)
        policy = self.policy
        if policy.budget.funded_by == "success":
            policy.budget.deposit()
        if self.attempts > 1 and events.sinks:
            events.emit(events.Recovered(policy.name, self.attempts, self.waited))

    def failed(self, outcome: Outcome | Exception, now: float) -> Wait | Stop:
        """The attempt ended with an error (which may be given as it is), or with a result that is not good."""
        policy = self.policy
        attempts = self.attempts = self.attempts + 1
        error = outcome.error if type(outcome) is Outcome else outcome
        ruling = policy.known.get(type(error)) or self._ruling(outcome, now)
        if self._in_flight:
            self._leave(not ruling.retry)
        listening = events.sinks
        if listening and attempts == 1:
            events.emit(events.FirstFailure(policy.name, ruling.reason, error))
        if not ruling.retry:
            return Stop("layer" if ruling.reason == "layer" else "fatal")
        if give_ups.last != self.since and self._layered(error):
            return Stop("layer")
        if attempts >= policy.max_attempts or (switch.off and _off.get()):
            return Stop("attempts")
        deadline, hint = self.deadline, ruling.hint
        if deadline is not None and now >= deadline:
            return Stop("deadline")
        if hint is not None and (hint > policy.max_hint or (deadline is not None and now + hint >= deadline)):
            return Stop("hint")
        if ruling.reached and not (ruling.safe is not False if policy.idempotent is None else policy.idempotent):
            return Stop("unsafe")
        plan = policy.overload_backoff if ruling.reason == "overload" else policy.backoff
        delay = self._delay = plan.delay(attempts, policy.chance, self._delay)
        if hint is not None:
            delay = self._hinted(hint, plan, delay)
        if deadline is not None and now + delay >= deadline:
            return Stop("deadline")
        if not policy.budget.try_withdraw(now if policy.one_clock else None):
            if listening:
                events.emit(events.BudgetRefused(policy.name, policy.budget.name, attempts))
            return Stop("budget")
        self.unspent = True
        self.since = give_ups.last
        self.waited += delay
        if listening:
            events.emit(events.Retry(policy.name, attempts, delay, ruling.reason, hint, error))
        return Wait(now + delay)

    def _ruling(self, outcome: Outcome | Exception, now: float) -> Ruling:
        """Ask the rules, where the type of the error alone does not decide."""
        if self._first is None:
            self._first = now
        if isinstance(outcome, Exception):
            outcome = Outcome(outcome)
        outcome.elapsed = now - self._first
        return self.policy.rules.decide(outcome)

    def _hinted(self, hint: float, plan: Schedule, own: float) -> float:
        """The hint, with the attempt's own delay on top, spread over enough of the hint."""
        if not plan.jittered:  # the user's own numbers are taken as they are, and a function is not asked about FAR
            return hint + own
        ceiling, spread = plan.ceiling(self.attempts), min(hint * HINT_SPREAD, plan.ceiling(FAR))
        # decorrelated delays that began with an overload may lie above the ceiling of a blip
        return hint + (min(own, ceiling) / ceiling * spread if spread > ceiling > 0 else own)

    def _layered(self, error: Exception | None) -> bool:
        """Did a policy inside this attempt give up on the error already?"""
        inner = None if error is None else given_up_within(error, self.since, self.policy)
        if inner is None:
            return False
        self._inner = inner
        if events.sinks:
            events.emit(events.LayeredRetry(self.policy.name, inner.policy))
        pair = (self.policy.name, inner.policy)
        if pair not in _warned and len(_warned) < _MOST_WARNINGS:
            _warned.add(pair)
            warnings.warn(
                f"{pair[0]} stands around {pair[1]}: only {pair[1]} retries, so that they don't multiply",
                LayeredRetryWarning,
                stacklevel=2,
            )
        return True

    def give_up(self, stop: Stop, outcome: Outcome | Exception) -> Exception | None:
        """End the call: the error to raise, or None where the last result is to be returned as it is."""
        self._over = True
        policy = self.policy
        error, result = (outcome, None) if isinstance(outcome, Exception) else (outcome.error, outcome.result)
        report = Report(policy.name, self.attempts, self.waited, stop.reason, self._inner)
        if stop.reason != "fatal":
            tell_watch()
        if events.sinks:
            events.emit(events.GaveUp(policy.name, stop.reason, self.attempts, self.waited, error))
        if error is not None:
            mark(error, report, policy)
        if policy.raises == "original" or stop.reason == "fatal":
            return error
        exhausted = RetryExhausted(report, result)
        exhausted.__cause__ = error
        mark(exhausted, report, policy)
        return exhausted

    def broken_off(self, error: BaseException | None = None) -> None:
        """The call ends from outside, by a cancellation or an exit: return what was withdrawn and not used.

        A call that is over already is left alone.
        """
        if self._over:
            return
        self._over = True
        self._return_unused()
        if events.sinks and error is not None:
            events.emit(events.GaveUp(self.policy.name, "cancelled", self.attempts, self.waited, error))

    def _return_unused(self) -> None:
        if self.unspent:
            self.unspent = False
            self.policy.budget.refund()
        if self._in_flight:
            self._leave(False)

    def _leave(self, accepted: bool) -> None:
        self._in_flight = False
        assert self.policy.gate is not None
        self.policy.gate.leave(accepted)
