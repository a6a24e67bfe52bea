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

import warnings
from math import inf
from typing import TYPE_CHECKING

from abate import events
from abate.admit.budget import Budget
from abate.admit.dispatcher import Dispatcher
from abate.admit.gate import All, Gate
from abate.admit.shelter_queue import Waiter
from abate.call.layers import (
    FINAL_REASONS,
    NO_LAYER,
    GiveUp,
    flag_exhausted,
    given_up_on,
    given_up_within,
    mark,
    retry_serials,
)
from abate.call.shelter_visit import ShelterVisit, holds_permit
from abate.clock import current, ever_used
from abate.decide.outcome import Outcome, Ruling
from abate.errors import DeadlineExceeded, LayeredRetryWarning, Refused, Report, RetryExhausted
from abate.frozen import ComparedByFields
from abate.logs import INFO, WARNING, Log
from abate.redact import one_line
from abate.schedule.deadlines import nearest_call_timeout
from abate.schedule.hints import delay_after_hint
from abate.scopes import Scope, Scopes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from abate.call.client_request import ClientRequest
    from abate.call.policy import Policy
    from abate.schedule.backoff import Schedule

_off: Scopes[Scope] = Scopes("abate_off")


def switch_off() -> Scope:
    """Let calls in this context make one attempt only, until `switch_on`."""
    ever_used.off = True
    return _off.enter(Scope())


def switch_on(scope: Scope) -> None:
    """Undo `switch_off`, also in copies of the context."""
    _off.leave(scope)


def off_shared_in_thread() -> AbstractContextManager[None]:
    """Switch retries off in all contexts of this thread too, for a block, if they are off here."""
    return _off.shared_in_thread()


def adopt_shared_off() -> None:
    """Take the off switch that is shared in this thread into this context."""
    _off.adopt()


def is_off() -> bool:
    """Return whether retries are switched off here. Hot paths read `ever_used.off` first."""
    return _off.nearest() is not None


DEADLINE_TOLERANCE = 0.02
"""An attempt that times out this many seconds before its call's deadline, or later, was cut off by the deadline: a
server that knows the deadline may time out slightly earlier."""
FULL_ATTEMPT_RATIO = 0.5
"""Without `attempt_timeout`, an attempt that got this share of the policy's `timeout` had its full time."""

_MANY = 1 << 30
"""Stands for "unlimited attempts" where an int is needed."""
_warned: set[tuple[str, str]] = set()
_MAX_WARNINGS = 1000


class Send(ComparedByFields):
    """Make the next attempt now."""

    __slots__ = ()


class Wait(ComparedByFields):
    """Make the next attempt at the instant `until`."""

    __slots__ = __match_args__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until


class WaitForTurn(ComparedByFields):
    """Wait until the `dispatcher` answers the `waiter`, then call `Call.take_turn`."""

    __slots__ = __match_args__ = ("dispatcher", "waiter")

    def __init__(self, dispatcher: Dispatcher, waiter: Waiter) -> None:
        self.dispatcher = dispatcher
        self.waiter = waiter


class Stop(ComparedByFields):
    """Make no further attempt."""

    __slots__ = __match_args__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _budget_advice(budget: Budget) -> str:
    """Say what to do about retries that the budget refuses."""
    funds = "requests" if budget.funded_by == "request" else "successes"
    return (
        f"the retries of all calls together are limited to {100 * budget.ratio:.3g} % of the {funds} and"
        f" {budget.reserve:g} per second: for batch jobs use Budget.unlimited() or a larger reserve"
    )


SEND = Send()
OUT_OF_BUDGET = Stop("budget")
"""The budget refused the retry; a gate refuses by a `Stop` of its own."""
NO_RESULT = object()
"""The result of an attempt that has none, such as a stream without items: no rule is asked about it."""
_new = object.__new__


def _says_failure(ruling: Ruling) -> bool:
    """Return whether the attempt failed as far as gate and shelter are concerned; "body" only forbids a retry."""
    return ruling.retry or ruling.reason == "body"


class Call:
    """One logical call of a policy.

    >>> import abate
    >>> call = Call(abate.Policy(on=ConnectionError, max_attempts=2, backoff=abate.Backoff(1.0, jitter="none")))
    >>> call.failed(Outcome(error=ConnectionError()), now=100.0)
    Wait(until=101.0)
    >>> call.failed(Outcome(error=ConnectionError()), now=101.0)
    Stop(reason='attempts')
    """

    __slots__ = (
        "_delay",
        "_failures_by_kind",
        "_first_failure",
        "_hinted_delay",
        "_in_flight",
        "_inner_give_up",
        "_logged",
        "_number",
        "_over",
        "_visit",
        "allowed",
        "attempts",
        "deadline",
        "funded",
        "outer_deadline",
        "policy",
        "same_error",
        "since",
        "waited",
        "withdrawn",
    )

    _failures_by_kind: dict[str, int]
    """The failed attempts of each kind; set if the policy bounds them."""

    _hinted_delay: float
    """The delay after a hint, as reported to the shelter; unset without a shelter."""

    _number: int
    """The serial number among calls that have retried; set at the first retry."""

    funded: bool
    """Whether the request was deposited by an attempt that was `unsent`; set by drivers."""
    same_error: bool
    """Whether two attempts in a row raised the same error object; set by drivers."""

    request: ClientRequest | None = None
    """What the attempts send, if the call is a client's; see `abate.call.client_request`."""

    def __init__(
        self, policy: Policy, deadline: float | None = None, since: int | None = None, outer_deadline: bool = False
    ) -> None:
        self.policy = policy
        self.deadline = deadline
        self.outer_deadline = outer_deadline
        """Whether the deadline is an outer one, nearer than the policy's own."""
        self.since = retry_serials.last if since is None else since
        self.attempts = 0
        self.allowed = inf
        self.waited = 0.0
        self._first_failure: float | None = None
        self._delay: float | None = None
        self._inner_give_up: GiveUp | None = None
        self._over = self.withdrawn = self.same_error = self.funded = self._logged = False
        self._in_flight: tuple[Gate, ...] = ()
        """The gates that the attempt has entered and not left."""
        self._visit: ShelterVisit | None = None
        if policy.streams_only:
            self._check_stream()

    def _check_stream(self) -> None:
        """Refuse a policy for generators: its settings would have no effect."""
        name = one_line(self.policy.name)
        raise TypeError(
            f"{f'policy {name}' if name else 'the policy'} sets resume, idle or content, which work for generator"
            " functions only"
        )

    def begin(self, now: float | None = None, deadline_aware: bool = False) -> Send | WaitForTurn | Stop:
        """Begin an attempt, if shelter and gate admit it; a first attempt that they refuse raises `Refused`.

        Pass `now` if you have just read the clock. A first attempt after the deadline raises `DeadlineExceeded`, unless
        it is `deadline_aware`.
        """
        if self.deadline is not None and not self.attempts and not deadline_aware:
            self._check_deadline(now)
        if self.policy.shelter is not None and not (ever_used.off and is_off()):
            action = self._enter_shelter(self.policy.shelter.dispatcher(), now)
            if action is not None:
                return action
        return self._send()

    def _check_deadline(self, now: float | None = None) -> None:
        """Raise `DeadlineExceeded` if the deadline has passed."""
        assert self.deadline is not None
        if self.seconds_left() == 0.0 if now is None else now >= self.deadline:
            self._refund_unused()
            error = DeadlineExceeded(self.policy.name)
            self.give_up(Stop("deadline"), error)
            raise error

    def resume(self) -> Send | WaitForTurn | Stop:
        """Begin the next attempt after a `Wait`; drivers ask only if there is a gate or a shelter."""
        return self.begin()

    def _enter_shelter(self, dispatcher: Dispatcher, now: float | None) -> WaitForTurn | Stop | None:
        """Ask the shelter; return None if the attempt may go."""
        if now is None or not self.policy.same_clock_as_shelter:
            now = dispatcher.clock.now()
        visit = self._visit
        if visit is None:
            visit = self._visit = ShelterVisit(dispatcher, now)
        answer = visit.enter(now, self.seconds_left(), self.attempts == 0, self.policy.name)
        if isinstance(answer, Waiter):
            return WaitForTurn(visit.dispatcher, answer)
        return None if answer is None else self._refused_by_shelter(visit, answer)

    def seconds_left(self) -> float | None:
        """Return the seconds until the deadline."""
        if self.deadline is None:
            return None
        clock = self.policy.clock or current()
        return max(0.0, self.deadline - clock.now())

    def take_turn(self) -> Send | Stop:
        """Go on after a `WaitForTurn`: the waiter has its answer."""
        visit = self._visit
        assert visit is not None
        refused, waited = visit.take_turn()
        self.waited += waited
        return self._send() if refused is None else self._refused_by_shelter(visit, refused)

    def _refused_by_shelter(self, visit: ShelterVisit, why: str) -> Stop:
        self._refund_unused()
        if self.attempts:
            return Stop("shelter")
        refused = visit.dispatcher.refusal(why)
        self.give_up(Stop("shelter"), refused)
        raise refused from visit.dispatcher.last_error

    def _send(self) -> Send | Stop:
        self.since = retry_serials.last
        policy = self.policy
        retry = self.attempts > 0
        if policy.gate is not None:
            gates = policy.gate.gates if isinstance(policy.gate, All) else (policy.gate,)
            refused = policy.gate.enter(retry)
            if refused is not None:
                self._refund_unused()
                self._emit_refused(refused.name)
                if not retry:
                    self._over = True
                    error = Refused(refused.name, refused.refusal())
                    mark(error, GiveUp(Report(policy.name, 0, self.waited, "budget"), NO_LAYER))
                    raise error
                return Stop("budget")
            self._in_flight = gates
        self.withdrawn = False
        if not retry and not self.funded and policy.budget.funded_by == "request":
            policy.budget.deposit()
        return SEND

    def allowance(self, now: float) -> float:
        """Return the seconds that an attempt that begins now may take, for policies that are `bounded`."""
        left = inf if self.deadline is None else max(0.0, self.deadline - now)
        self.allowed = left if self.policy.attempt_timeout is None else min(left, self.policy.attempt_timeout)
        return self.allowed

    def is_good(self, result: object) -> bool:
        """Return whether no rule asks for a retry of this result."""
        return result is NO_RESULT or self.policy.rules.is_good(result)

    def succeeded(self) -> None:
        """End the call: the attempt's result is good."""
        self.attempts += 1
        if self._in_flight:
            self._leave(True)
        policy = self.policy
        if self._visit is not None:
            self._visit.answered(policy.name)
        if policy.budget.funded_by == "success":
            self._deposit()
        if self.attempts > 1 and (self._logged or events.sinks):
            events.emit(events.Recovered(policy.name, self.attempts, self.waited, self._target()), self._logged)

    def _deposit(self) -> None:
        self.policy.budget.deposit()

    def failed(self, outcome: Outcome | Exception, now: float) -> Wait | Stop:
        """Decide about a retry: the attempt ended with an error (given as it is) or with a result that is not good."""
        policy = self.policy
        attempts = self.attempts = self.attempts + 1
        error = outcome.error if type(outcome) is Outcome else outcome
        ruling = policy.rulings_by_type.get(type(error)) or self._ruling(outcome, now)
        closed = 0.0 if policy.no_gate_or_shelter else self._report_failure(ruling, error, now)
        if attempts == 1:
            # the level is looked up once per call; what a policy with a clock of its own does is not logged by default
            logged = self._logged = policy.clock is None and events.log_enabled(INFO)
            listening = logged or events.sinks
            if listening:
                events.emit(events.FirstFailure(policy.name, ruling.reason, error, *self._sent(outcome)), logged)
        else:
            listening = self._logged or events.sinks
        usual = (  # nothing in `_why_not_retry` applies; checked here to save a call
            ruling.retry
            and attempts < policy.attempt_limit
            and retry_serials.last == self.since
            and self.deadline is None
            and ruling.hint is None
            and ruling.safe is not False
            and policy.retries_freely
            and not ever_used.off
        )
        reason = None if usual else self._why_not_retry(ruling, outcome, now)
        if reason is not None:
            return Stop(reason)
        if closed or ruling.hint is not None:
            delay = self._hint_or_shelter_delay(ruling, now)
        else:
            plan = policy.overload_backoff if ruling.reason == "overload" else policy.backoff
            delay = self._delay = plan.delay(attempts, policy.random_source, self._delay)
        if self.deadline is not None and now + delay >= self.deadline:
            return Stop("deadline")
        if policy.budget.try_withdraw(now if policy.same_clock_as_budget else None):
            self.withdrawn = True
        elif not closed and (self._visit is None or not self._visit.bounds_retries()):
            self._emit_refused(policy.budget.name)
            return OUT_OF_BUDGET
        if attempts == 1:
            self._number = self.since = retry_serials.last = retry_serials.next()
        else:
            self.since = retry_serials.last
        self.waited += delay
        if listening:
            retry = (attempts, max(delay, closed), ruling.reason, ruling.hint, error)
            events.emit(events.Retry(policy.name, *retry, *self._sent(outcome)), self._logged)
        wait = _new(Wait)  # a third of the cost of calling the class
        wait.until = now + delay
        return wait

    def _is_logged(self, level: int) -> bool:
        """Return whether the default log takes an event of this level; `_logged` is true if it takes them all."""
        return self._logged or (self.policy.clock is None and events.log_enabled(level))

    def _target(self) -> str | None:
        """Return the target of a client's call, as a field of an event."""
        return None if self.request is None else self.request.target()

    def _sent(self, outcome: Outcome | Exception) -> tuple[str | None, int | None]:
        """Return the target and the status of a client's attempt, as fields of an event."""
        return (None, None) if self.request is None else (self.request.target(), self.request.status(outcome))

    def _emit_refused(self, gate: str) -> None:
        """Emit an event for an attempt that budget or gate refused."""
        logged = self._is_logged(WARNING)
        if logged or events.sinks:
            events.emit(events.BudgetRefused(self.policy.name, gate, self.attempts, self._target()), logged)

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

    def _hint_or_shelter_delay(self, ruling: Ruling, now: float) -> float:
        """Return the delay after a hint; or 0 without a hint, as the shelter pauses."""
        policy, hint = self.policy, ruling.hint
        if hint is None:
            return 0.0  # the shelter pauses: its wait queue replaces the backoff
        if policy.shelter is not None:
            return self._hinted_delay
        plan = policy.overload_backoff if ruling.reason == "overload" else policy.backoff
        return self._delay_after_hint(hint, plan, now)

    def _delay_after_hint(self, hint: float, plan: Schedule, now: float) -> float:
        """Return the delay after a hint, which ends before the deadline if the hint does."""
        own = self._delay = plan.delay(self.attempts, self.policy.random_source, self._delay)
        left = None if self.deadline is None else self.deadline - now
        return delay_after_hint(hint, plan, self.attempts, own, left)

    def _report_failure(self, ruling: Ruling, error: Exception | None, now: float) -> float:
        """Tell gate and shelter about the attempt; return the seconds for which the shelter sends nothing."""
        # None says nothing about the server, as when an inner layer gave up, or a deadline cut the attempt short
        accepted: bool | None = None
        if not self._was_cut_short(ruling, now):
            accepted = ruling.answered if ruling.reason == "body" else ruling.taken
        if self._in_flight:
            self._leave(accepted, _says_failure(ruling))
        shelter = self.policy.shelter
        if shelter is None or (ever_used.off and is_off()):
            return 0.0
        return self._tell_shelter(shelter.dispatcher(), ruling, error, accepted, now)

    def _was_cut_short(self, ruling: Ruling, now: float) -> bool:
        """Return whether a deadline cut the attempt off before it had its full time.

        The full time is the policy's `attempt_timeout`; without one, a good part of its `timeout`, or of the timeout of
        a client's call, unless an outer deadline is nearer. An attempt that hangs by the shelter's measure has had its
        time in any case.
        """
        deadline, policy = self.deadline, self.policy
        if deadline is None or now < deadline - DEADLINE_TOLERANCE or ruling.answered:
            return False
        if not ruling.overloaded and ruling.reason != "body":
            return False
        if policy.attempt_timeout is not None:
            short = self.allowed < policy.attempt_timeout
        elif policy.timeout is not None and not self.outer_deadline:
            short = self.allowed < FULL_ATTEMPT_RATIO * policy.timeout
        else:
            full = nearest_call_timeout()
            short = full is None or self.allowed < FULL_ATTEMPT_RATIO * full
        return short and not (self._visit is not None and self._visit.is_hung())

    def _tell_shelter(
        self, dispatcher: Dispatcher, ruling: Ruling, error: Exception | None, accepted: bool | None, failed_at: float
    ) -> float:
        policy, now = self.policy, dispatcher.clock.now()
        visit = self._visit
        uncounted = visit is None  # sent by a wrapper in calm, where successes are not counted
        if visit is None:
            visit = self._visit = ShelterVisit(dispatcher, now)
        says_failure = _says_failure(ruling)
        plan = policy.overload_backoff if ruling.reason == "overload" else policy.backoff
        hint_until = None
        if says_failure and ruling.hint is not None and ruling.hint <= policy.max_hint:
            # for the retry as well, also after an attempt that tells the shelter nothing
            self._hinted_delay = self._delay_after_hint(ruling.hint, plan, failed_at)
            hint_until = now + self._hinted_delay
        if accepted is None:
            dispatcher.abandoned(visit.permit, now, suspicious=uncounted and says_failure)
            visit.drop_permit()
            return 0.0
        if not says_failure:
            visit.answered(policy.name)
            return 0.0
        retry = max(1, min(self.attempts, int(min(policy.attempt_limit, _MANY)) - 1))
        closed = dispatcher.failed(visit.permit, now, plan, hint_until, error, uncounted, policy.name, retry, accepted)
        visit.drop_permit()
        return 0.0 if holds_permit(dispatcher) else closed  # inside another attempt a call does not wait

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
        if isinstance(outcome, Exception):
            found = given_up_within(outcome, self.since)
        elif outcome.error is None:
            found = given_up_on(outcome.result)
        else:
            found = given_up_within(outcome.error, self.since)
        if found is None:
            return False
        self._inner_give_up, inner = found, found.report
        logged = self._is_logged(WARNING)
        if logged or events.sinks:
            events.emit(events.LayeredRetry(self.policy.name, inner.policy), logged)
        pair = (self.policy.name, inner.policy)
        if pair not in _warned and len(_warned) < _MAX_WARNINGS:
            _warned.add(pair)
            outer, within = (one_line(name) or "a policy" for name in pair)
            warnings.warn(
                f"{outer} wraps {within}: only {within} retries, so that retries don't multiply",
                LayeredRetryWarning,
                stacklevel=2,
            )
        return True

    def give_up(self, stop: Stop, outcome: Outcome | Exception) -> Exception | None:
        """End the call: return the error to raise, or None to return the last result as it is."""
        self._over = True
        policy = self.policy
        error, result = (outcome, None) if isinstance(outcome, Exception) else (outcome.error, outcome.result)
        inner = None if self._inner_give_up is None else self._inner_give_up.report
        report = Report(policy.name, self.attempts, self.waited, stop.reason, inner)
        serial = self._layer_serial(stop.reason)
        if serial != NO_LAYER:
            flag_exhausted()
        logged = self._logged if stop.reason == "fatal" else self._is_logged(WARNING)
        if logged or events.sinks:
            given_up = (stop.reason, self.attempts, self.waited, error)
            events.emit(events.GaveUp(policy.name, *given_up, *self._sent(outcome)), logged)
        advice = _budget_advice(policy.budget) if stop is OUT_OF_BUDGET else ""
        give_up = GiveUp(report, serial, None if error is None or self.same_error else error.__traceback__, advice)
        if error is not None:
            mark(error, give_up)
        if policy.raises == "original" or stop.reason == "fatal":
            return error
        exhausted = RetryExhausted(report, result)
        exhausted.__cause__ = error
        mark(exhausted, give_up)
        return exhausted

    def _layer_serial(self, reason: str) -> int:
        """Return the serial by which outer layers know that this work must not be repeated."""
        if reason == "fatal":
            return NO_LAYER  # not retried here: an outer layer may
        if self._inner_give_up is not None:
            return self._inner_give_up.serial
        if self.attempts > 1:
            return self._number
        if reason != "layer" and reason not in FINAL_REASONS:
            return NO_LAYER
        retry_serials.last = retry_serials.next()
        return retry_serials.last

    def still_in_time(self, wait: Wait) -> Wait | Stop:
        """Stop if `before_retry` overran the deadline, and refund the unused withdrawal."""
        if self.seconds_left() != 0.0:
            return wait
        self._refund_unused()
        return Stop("deadline")

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
        if logged or events.sinks:
            given_up = ("cancelled", self.attempts, self.waited, error)
            target = None if self.request is None else self.request.target()
            events.emit(events.GaveUp(self.policy.name, *given_up, target), logged)

    def unsent(self) -> None:
        """The attempt was not sent after all: another driver makes the call."""
        self._over = True
        entered, self._in_flight = self._in_flight, ()
        try:
            self._refund_unused()
        finally:
            All(entered).undo(self.attempts > 0)

    def _refund_unused(self) -> None:
        if self.withdrawn:
            self.withdrawn = False
            self.policy.budget.refund()
        try:
            if self._in_flight:
                All(self._in_flight).leave(None)
                self._in_flight = ()
        finally:
            if self._visit is not None:
                self.waited += self._visit.abandon()

    def _leave(self, accepted: bool | None, failed: bool = False) -> None:
        while self._in_flight:
            if failed:
                self._in_flight[-1].failed(accepted)
            else:
                self._in_flight[-1].leave(accepted)
            self._in_flight = self._in_flight[:-1]  # no call in between: each gate is left exactly once
