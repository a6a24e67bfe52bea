"""How the attempts of a call are admitted by deadline, shelter and gate, which learn how each attempt ended.

    begin() ──► Send: the attempt holds places in its gates, and a permit of the shelter until its outcome is told
       │
       ├► WaitForTurn ──► take_turn()
       └► Stop, or an error for the first attempt; what was withdrawn for it is refunded

`abate.call.machine` adds the decision about retries.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from abate import event_sinks, events
from abate.admit.gate import All, Gate
from abate.call.actions import SEND, Send, Stop, Wait, WaitForTurn
from abate.call.cut_short import ended_at_deadline, had_full_time
from abate.call.layers import NO_LAYER, GiveUp, mark, retry_serials
from abate.call.off_switch import is_off
from abate.clock import current, ever_used
from abate.errors import DeadlineExceeded, Refused, Report
from abate.logs import WARNING
from abate.schedule.hints import delay_after_hint

if TYPE_CHECKING:
    from abate.admit.dispatcher import Dispatcher
    from abate.call.client_request import ClientRequest
    from abate.call.policy import Policy
    from abate.call.shelter_visit import ShelterVisit
    from abate.decide.outcome import Outcome, Ruling
    from abate.schedule.backoff import Schedule

_MANY = 1 << 30
"""Stands for "unlimited attempts" where an int is needed."""


def _says_failure(ruling: Ruling) -> bool:
    """Return whether the attempt failed as far as gate and shelter are concerned; "body" only forbids a retry."""
    return ruling.retry or ruling.reason == "body"


class AttemptAdmission:
    """The part of a call that has its attempts admitted, and tells gate and shelter how they end."""

    __slots__ = (
        "_delay",
        "_hinted_delay",
        "_in_flight",
        "_logged",
        "_over",
        "_visit",
        "allowed",
        "attempts",
        "deadline",
        "funded",
        "outer_deadline",
        "policy",
        "since",
        "waited",
        "withdrawn",
    )

    # `Call` sets them: a constructor of their own would cost each failing call a tenth of a microsecond
    policy: Policy
    deadline: float | None
    outer_deadline: bool
    """Whether the deadline is an outer one, nearer than the policy's own."""
    since: int
    """The serial number of the last call that had retried when the attempt began."""
    attempts: int
    allowed: float
    """The seconds that the attempt may take."""
    waited: float
    withdrawn: bool
    """Whether the budget has paid for an attempt that has not begun."""
    funded: bool
    """Whether the request was deposited by an attempt that was `unsent`; set by drivers."""
    _delay: float | None
    _hinted_delay: float
    """The delay after a hint, as reported to the shelter; unset without a shelter."""
    _in_flight: tuple[Gate, ...]
    """The gates that the attempt has entered and not left."""
    _visit: ShelterVisit | None
    _over: bool
    _logged: bool
    request: ClientRequest | None = None
    """What the attempts send, if the call is a client's; see `abate.call.client_request`."""

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
        """Begin the next attempt after a `Wait`."""
        if self.policy.no_gate_or_shelter:
            self.withdrawn = False
            return SEND
        return self.begin()

    def _enter_shelter(self, dispatcher: Dispatcher, now: float | None) -> WaitForTurn | Stop | None:
        """Ask the shelter; return None if the attempt may go."""
        if now is None or not self.policy.same_clock_as_shelter:
            now = dispatcher.clock.now()
        visit = self._visit or self._begin_visit(dispatcher, now)
        answer = visit.enter(now, self.seconds_left(), self.attempts == 0, self.policy.name)
        if answer is None:
            return None
        if isinstance(answer, str):
            return self._refused_by_shelter(visit, answer)
        return WaitForTurn(visit.dispatcher, answer)

    def _begin_visit(self, dispatcher: Dispatcher, now: float) -> ShelterVisit:
        from abate.call.shelter_visit import ShelterVisit  # imported with the first policy that has a shelter

        visit = self._visit = ShelterVisit(dispatcher, now)
        return visit

    if TYPE_CHECKING:

        def give_up(self, stop: Stop, outcome: Outcome | Exception) -> Exception | None:
            """End the call without success; return the error to raise, if there is one."""

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

    def still_in_time(self, wait: Wait) -> Wait | Stop:
        """Stop if `before_retry` overran the deadline, and refund the unused withdrawal."""
        if self.seconds_left() != 0.0:
            return wait
        self._refund_unused()
        return Stop("deadline")

    def _report_failure(self, ruling: Ruling, error: Exception | None, now: float) -> float:
        """Tell gate and shelter about the attempt; return the seconds for which the shelter sends nothing."""
        # None says nothing about the server, as when an inner layer gave up, or a deadline cut the attempt short
        accepted: bool | None = None
        if not (ended_at_deadline(ruling, now, self.deadline) and self._was_cut_short()):
            accepted = ruling.answered if ruling.reason == "body" else ruling.taken
        if self._in_flight:
            self._leave(accepted, _says_failure(ruling))
        shelter = self.policy.shelter
        if shelter is None or (ever_used.off and is_off()):
            return 0.0
        return self._tell_shelter(shelter.dispatcher(), ruling, error, accepted, now)

    def _was_cut_short(self) -> bool:
        """Return whether an attempt that ended at the deadline had less than its full time.

        An attempt that hangs by the shelter's measure has had its time in any case.
        """
        if had_full_time(self.policy, self.allowed, self.outer_deadline):
            return False
        return self._visit is None or not self._visit.is_hung()

    def _tell_shelter(
        self, dispatcher: Dispatcher, ruling: Ruling, error: Exception | None, accepted: bool | None, failed_at: float
    ) -> float:
        policy, now = self.policy, dispatcher.clock.now()
        visit = self._visit
        uncounted = visit is None  # sent by a wrapper in calm, where successes are not counted
        if visit is None:
            visit = self._begin_visit(dispatcher, now)
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
        return 0.0 if visit.is_within_another() else closed  # inside another attempt a call does not wait

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

    def _delay_after_hint(self, hint: float, plan: Schedule, now: float) -> float:
        """Return the delay after a hint, which ends before the deadline if the hint does."""
        own = self._delay = plan.delay(self.attempts, self.policy.random_source, self._delay)
        left = None if self.deadline is None else self.deadline - now
        return delay_after_hint(hint, plan, self.attempts, own, left)

    def _is_logged(self, level: int) -> bool:
        """Return whether the default log takes an event of this level; `_logged` is true if it takes them all."""
        return self._logged or (self.policy.clock is None and event_sinks.log_enabled(level))

    def _target(self) -> str | None:
        """Return the target of a client's call, as a field of an event."""
        return None if self.request is None else self.request.target()

    def _emit_refused(self, gate: str) -> None:
        """Emit an event for an attempt that budget or gate refused."""
        logged = self._is_logged(WARNING)
        if logged or event_sinks.installed:
            event_sinks.emit(events.BudgetRefused(self.policy.name, gate, self.attempts, self._target()), logged)
