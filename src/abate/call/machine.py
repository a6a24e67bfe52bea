"""One call as a state machine without clock, sleep or I/O: it takes facts and returns what to do next.

    begin(now) ──► Send ──► attempt ──► is_good: succeeded()                      the call is over
       ▲   │                               │
       │   └► WaitForTurn ► take_turn() ►  └──► failed(outcome, now) ──► Stop(reason)   over as well: give_up()
       │                     Send                │
    resume() ◄────── wait ◄───────────────── Wait(until)

A retry that the gate or the shelter refuses stops in `resume` or `take_turn`. Checks that cost nothing come first, and
spending last: fatal, body, layer, attempts, deadline, hint, unsafe, then the budget. If a wait or an attempt is
interrupted, what it did not use is refunded. While a shelter is not calm, its wait queue replaces the backoff, and the
budget refuses no retry that the shelter limits.

Every driver (threads, tasks, the block form, the simulator) is a loop over this machine.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from abate import event_sinks, events
from abate.call.actions import OUT_OF_BUDGET, Stop, Wait
from abate.call.attempt_admission import AttemptAdmission
from abate.call.giving_up import budget_advice, inner_give_up, layer_serial, warn_about_layers
from abate.call.layers import NO_LAYER, GiveUp, flag_exhausted, mark, retry_serials
from abate.call.off_switch import is_off
from abate.call.usual_retry import usual_delay
from abate.clock import ever_used
from abate.decide.outcome import Outcome, Ruling
from abate.errors import Report, RetryExhausted
from abate.logs import INFO, WARNING, Log
from abate.redact import one_line

if TYPE_CHECKING:
    from abate.call.policy import Policy
    from abate.schedule.backoff import Schedule

NO_RESULT = object()
"""The result of an attempt that has none, such as a stream without items: no rule is asked about it."""
_new = object.__new__


class Call(AttemptAdmission):
    """One logical call of a policy.

    >>> import abate
    >>> call = Call(abate.Policy(on=ConnectionError, max_attempts=2, backoff=abate.Backoff(1.0, jitter="none")))
    >>> call.failed(Outcome(error=ConnectionError()), now=100.0)
    Wait(until=101.0)
    >>> call.failed(Outcome(error=ConnectionError()), now=101.0)
    Stop(reason='attempts')
    """

    __slots__ = ("_failures_by_kind", "_first_failure", "_inner_give_up", "_number", "same_error")

    _failures_by_kind: dict[str, int]
    """The failed attempts of each kind; set if the policy bounds them."""

    _number: int
    """The serial number among calls that have retried; set at the first retry."""

    same_error: bool
    """Whether two attempts in a row raised the same error object; set by drivers."""

    def __init__(
        self, policy: Policy, deadline: float | None = None, since: int | None = None, outer_deadline: bool = False
    ) -> None:
        self.policy = policy
        self.deadline = deadline
        self.outer_deadline = outer_deadline
        self.since = retry_serials.last if since is None else since
        self.attempts = 0
        self.allowed = inf
        self.waited = 0.0
        self._first_failure: float | None = None
        self._delay = None
        self._inner_give_up: GiveUp | None = None
        self._over = self.withdrawn = self.same_error = self.funded = self._logged = False
        self._in_flight = ()
        self._visit = None
        if policy.streams_only:
            self._check_stream()

    def _check_stream(self) -> None:
        """Refuse a policy for generators: its settings would have no effect."""
        name = one_line(self.policy.name)
        raise TypeError(
            f"{f'policy {name}' if name else 'the policy'} sets resume, idle or content, which work for generator"
            " functions only"
        )

    def is_good(self, result: object) -> bool:
        """Return whether no rule asks for a retry of this result."""
        return result is NO_RESULT or self.policy.rules.is_good(result)

    def succeeded(self) -> None:
        """End the call: the attempt's result is good."""
        attempts = self.attempts = self.attempts + 1
        policy = self.policy
        if not policy.no_gate_or_shelter:
            self._leave(True)
            if self._visit is not None:
                self._visit.answered(policy.name)
        if policy.budget.funded_by == "success":
            self._deposit()
        if attempts > 1 and (self._logged or event_sinks.installed):
            event_sinks.emit(events.Recovered(policy.name, attempts, self.waited, self._target()), self._logged)

    def _deposit(self) -> None:
        self.policy.budget.deposit()

    def failed(self, outcome: Outcome | Exception, now: float) -> Wait | Stop:
        """Decide about a retry: the attempt ended with an error (given as it is) or with a result that is not good."""
        policy = self.policy
        attempts = self.attempts = self.attempts + 1
        closed, event, delay = 0.0, None, None
        if self.deadline is None and not self._logged:
            delay = usual_delay(policy, outcome, attempts, self.since, self._delay)
        if delay is not None:
            self._delay = delay
        else:
            error = outcome.error if type(outcome) is Outcome else outcome
            ruling = policy.rulings_by_type.get(type(error)) or self._ruling(outcome, now)
            closed = 0.0 if policy.no_gate_or_shelter else self._report_failure(ruling, error, now)
            if attempts == 1:
                self._emit_first_failure(ruling, error, outcome)
            reason = self._why_not_retry(ruling, outcome, now)
            if reason is not None:
                return Stop(reason)
            delay = self._checked_delay(ruling, closed, now)
            if self.deadline is not None and now + delay >= self.deadline:
                return Stop("deadline")
            if self._logged or event_sinks.installed:
                retry = (attempts, max(delay, closed), ruling.reason, ruling.hint, error)
                event = events.Retry(policy.name, *retry, *self._sent(outcome))
            elif ruling.unconditional and policy.retries_freely and type(error) in policy.rulings_by_type:
                policy.usual_backoffs[type(error)] = self._backoff(ruling)
        if policy.budget.try_withdraw(now if policy.same_clock_as_budget else None):
            self.withdrawn = True
        elif not closed and (self._visit is None or not self._visit.bounds_retries()):
            return self.refused_by_budget()
        if attempts == 1:
            self._number = self.since = retry_serials.last = next(retry_serials.numbers)
        else:
            self.since = retry_serials.last
        self.waited += delay
        if event is not None:
            event_sinks.emit(event, self._logged)
        wait = _new(Wait)  # a third of the cost of calling the class
        wait.until = now + delay
        return wait

    def _emit_first_failure(self, ruling: Ruling, error: Exception | None, outcome: Outcome | Exception) -> None:
        # the level is looked up once per call; what a policy with a clock of its own does is not logged by default
        logged = self._logged = self.policy.clock is None and event_sinks.log_enabled(INFO)
        if logged or event_sinks.installed:
            failure = events.FirstFailure(self.policy.name, ruling.reason, error, *self._sent(outcome))
            event_sinks.emit(failure, logged)

    def refused_by_budget(self) -> Stop:
        """Return the answer to a failure whose retry the budget has refused."""
        self._emit_refused(self.policy.budget.name)
        return OUT_OF_BUDGET

    def _sent(self, outcome: Outcome | Exception) -> tuple[str | None, int | None]:
        """Return the target and the status of a client's attempt, as fields of an event."""
        return (None, None) if self.request is None else (self.request.target(), self.request.status(outcome))

    def _why_not_retry(self, ruling: Ruling, outcome: Outcome | Exception, now: float) -> str | None:
        """Return the reason to give up, or None; checks everything but budget and shelter."""
        policy, deadline, hint = self.policy, self.deadline, ruling.hint
        if not ruling.retry:
            return self._why_final(ruling)
        if retry_serials.last != self.since and self._layered(outcome):
            return "layer"
        if self.attempts >= policy.attempt_limit or (ever_used.off and is_off()):
            return "attempts"
        if policy.max_attempts_by_kind and self._kind_exhausted(ruling.reason):
            return "attempts"
        if deadline is not None and now >= deadline:
            return "deadline"
        if hint is not None and (hint > policy.max_hint or (deadline is not None and now + hint >= deadline)):
            return "hint"
        if ruling.reached and not (ruling.safe is not False if policy.idempotent is None else policy.idempotent):
            return "unsafe"
        return None

    def _why_final(self, ruling: Ruling) -> str:
        """Return the reason to give up after a ruling not to retry."""
        if ruling.reason == "body":
            # an outer layer may build the body anew, but must not repeat what is unsafe to repeat
            idempotent = self.policy.idempotent
            safe = ruling.safe is not False if idempotent is None else idempotent
            return "body" if safe or not ruling.reached else "unsafe"
        return "layer" if ruling.reason == "layer" else "fatal"

    def _kind_exhausted(self, kind: str) -> bool:
        """Count an attempt that failed by this kind; return whether its bound is reached."""
        if self.attempts == 1:
            self._failures_by_kind = {}
        counts = self._failures_by_kind
        counts[kind] = counts.get(kind, 0) + 1
        return counts[kind] >= self.policy.max_attempts_by_kind.get(kind, inf)

    def _backoff(self, ruling: Ruling) -> Schedule:
        return self.policy.overload_backoff if ruling.reason == "overload" else self.policy.backoff

    def _checked_delay(self, ruling: Ruling, closed: float, now: float) -> float:
        """Return the delay before a retry that `_why_not_retry` allows; the shelter is `closed` for some seconds."""
        policy, hint = self.policy, ruling.hint
        if closed and hint is None:
            return 0.0  # the wait queue of the shelter replaces the backoff
        if hint is not None and policy.shelter is not None:
            return self._hinted_delay
        plan = self._backoff(ruling)
        if hint is not None:
            return self._delay_after_hint(hint, plan, now)
        delay = self._delay = plan.delay(self.attempts, policy.random_source, self._delay)
        return delay

    def _ruling(self, outcome: Outcome | Exception, now: float) -> Ruling:
        """Ask the rules: the type of the error alone does not decide."""
        if self._first_failure is None:
            self._first_failure = now
        if isinstance(outcome, Exception):
            outcome = Outcome(outcome)
        outcome.elapsed = now - self._first_failure
        try:
            return self.policy.rules.decide(outcome)
        except Exception as mistake:
            # a rule of the user's own has raised: show the error that it was asked about, too
            if outcome.error is not None and mistake.__context__ is None and mistake is not outcome.error:
                mistake.__context__ = outcome.error
            raise

    def _layered(self, outcome: Outcome | Exception) -> bool:
        """Return whether a policy inside this attempt has retried already, and warn about it once."""
        found = inner_give_up(outcome, self.since)
        if found is None:
            return False
        self._inner_give_up, inner = found, found.report
        logged = self._is_logged(WARNING)
        if logged or event_sinks.installed:
            event_sinks.emit(events.LayeredRetry(self.policy.name, inner.policy), logged)
        warn_about_layers(self.policy.name, inner.policy)
        return True

    def give_up(self, stop: Stop, outcome: Outcome | Exception) -> Exception | None:
        """End the call: return the error to raise, or None to return the last result as it is."""
        self._over = True
        policy = self.policy
        error, result = (outcome, None) if isinstance(outcome, Exception) else (outcome.error, outcome.result)
        inner = None if self._inner_give_up is None else self._inner_give_up.report
        report = Report(policy.name, self.attempts, self.waited, stop.reason, inner)
        serial = layer_serial(stop.reason, self._inner_give_up, self._number if self.attempts > 1 else NO_LAYER)
        if serial != NO_LAYER:
            flag_exhausted()
        logged = self._logged if stop.reason == "fatal" else self._is_logged(WARNING)
        if logged or event_sinks.installed:
            given_up = (stop.reason, self.attempts, self.waited, error)
            event_sinks.emit(events.GaveUp(policy.name, *given_up, *self._sent(outcome)), logged)
        advice = budget_advice(policy.budget) if stop is OUT_OF_BUDGET else ""
        give_up = GiveUp(report, serial, None if error is None or self.same_error else error.__traceback__, advice)
        if error is not None:
            mark(error, give_up)
        if policy.raises == "original" or stop.reason == "fatal":
            return error
        exhausted = RetryExhausted(report, result)
        exhausted.__cause__ = error
        mark(exhausted, give_up)
        return exhausted

    def broken_off(self, error: BaseException | None = None) -> None:
        """End the call from outside (a cancellation, an exit), and refund the unused withdrawal.

        Has no effect on a call that is over.
        """
        if self._over:
            return
        self._over = True
        try:
            self._refund_unused()
        except Exception:
            if error is None or isinstance(error, Exception):
                raise
            # neither a failing gate nor a failing log handler may replace a cancellation or an exit
            Log("abate").exception("the gate of %s failed when a call was interrupted", self.policy.name)
        if error is None:
            return
        logged = self._is_logged(INFO)
        if logged or event_sinks.installed:
            given_up = ("cancelled", self.attempts, self.waited, error)
            event_sinks.emit(events.GaveUp(self.policy.name, *given_up, self._target()), logged)


class UsualRetries:
    """What a call has done so far without a machine; see `abate.call.usual_retry`."""

    __slots__ = ("_attempts", "_delay", "_number", "_same_error", "_waited")

    def __init__(self, attempts: int, waited: float, delay: float | None, number: int, same_error: bool) -> None:
        self._attempts = attempts
        self._waited = waited
        self._delay = delay
        self._number = number
        self._same_error = same_error

    def make(
        self, policy: Policy, deadline: float | None = None, since: int | None = None, outer_deadline: bool = False
    ) -> Call:
        """Make the machine that goes on with the call."""
        call = Call(policy, deadline, since, outer_deadline)
        call.attempts, call.waited, call._delay = self._attempts, self._waited, self._delay
        call._number, call.same_error = self._number, self._same_error
        return call

    def refused_by_budget(self, policy: Policy, failure: Exception) -> Exception:
        """End the call after a failure whose retry the budget has refused; return the error to raise."""
        call = self.make(policy)
        return call.give_up(call.refused_by_budget(), failure) or failure

    def broken_off(self, policy: Policy, withdrawn: bool, error: BaseException) -> None:
        """End the call from outside; refund what was `withdrawn` for a retry that was not sent."""
        call = self.make(policy)
        call.withdrawn = withdrawn
        call.broken_off(error)
