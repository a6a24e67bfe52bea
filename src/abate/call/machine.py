"""One call, as a machine without clock, sleep or I/O: it takes facts and says what to do next.

    begin(now) ──► Send ──► attempt ──► good: succeeded()                        the call is over
       ▲   │                               │
       │   └► Hold(waiter) ► turn() ► Send └──► failed(outcome, now) ──► Stop(reason)   over as well: give_up
       │                                         │
       └─────────── wait ◄────────────────── Wait(until)

A retry that the gate or the shelter does not admit stops in `begin` or `turn`.
Refusals that cost nothing come first, spending last: fatal, layer, attempts, deadline, hint, unsafe, and only then
the budget. A wait or an attempt that is broken off returns what was not used. Where a shelter holds calls back, its
room takes the place of the backoff, and the budget refuses nothing that the shelter bounds.

Every driver (threads, tasks, the block form, a simulated world) is a loop over this machine.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from abate import events
from abate.admit.door import Door
from abate.admit.gate import All, Gate
from abate.admit.room import Waiter
from abate.admit.weather import Ticket
from abate.call.giveup import ALONE, FOR_ALL, GiveUp, give_ups, given_up_within, mark, tell_watch
from abate.clock import current, switch
from abate.decide.outcome import Outcome, Ruling
from abate.errors import DeadlineExceeded, LayeredRetryWarning, Refused, Report, RetryExhausted
from abate.logs import Log
from abate.redact import line
from abate.schedule.hints import after_hint
from abate.scopes import Scope, Scopes
from abate.values import Fields

if TYPE_CHECKING:
    from abate.call.policy import Policy

_off: Scopes[Scope] = Scopes("abate_off")


def switch_off() -> Scope:
    """Let calls of this context make one attempt, until `switch_on`."""
    switch.off = True
    return _off.enter(Scope())


def switch_on(scope: Scope) -> None:
    """Undo `switch_off`, for all who have copied the context since."""
    _off.leave(scope)


def is_off() -> bool:
    """Are retries switched off here? Hot paths look at `switch.off` first."""
    return _off.nearest() is not None


EARLY = 0.02
"""Seconds; an attempt that times out so short before the deadline of its call, or later, was cut off by it. A server
that was told the deadline may answer with a timeout of its own a little earlier."""
ENOUGH = 0.5
"""The share of a policy's `timeout` after which an attempt has had its time."""

_warned: set[tuple[str, str]] = set()
_MOST_WARNINGS = 1000


class _Held(Scope):
    """The ticket of an attempt, which holds for what runs inside it."""

    __slots__ = ("door", "ticket")

    def __init__(self, door: Door, ticket: Ticket) -> None:
        super().__init__()
        self.door = door
        self.ticket = ticket


_held: Scopes[_Held] = Scopes("abate_held")


def _holds(door: Door) -> bool:
    """Does an attempt around this one hold a ticket of that door? A call within a call must not wait for itself."""
    held = _held.nearest()
    while held is not None:
        if held.door is door and held.ticket.out:
            return True
        held = _held.beyond(held)
    return False


class Send(Fields):
    """Make the next attempt now."""

    __slots__ = ()


class Wait(Fields):
    """Make the next attempt at the instant `until`."""

    __slots__ = __match_args__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until


class Hold(Fields):
    """Wait for a turn behind the `door`, and then ask `Call.turn`."""

    __slots__ = __match_args__ = ("door", "waiter")

    def __init__(self, door: Door, waiter: Waiter) -> None:
        self.door = door
        self.waiter = waiter


class Stop(Fields):
    """Make no further attempt."""

    __slots__ = __match_args__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


SEND = Send()
_new = object.__new__


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
        "_began",
        "_delay",
        "_door",
        "_first",
        "_given",
        "_hinted_delay",
        "_in_flight",
        "_inner",
        "_number",
        "_over",
        "_ticket",
        "_waiter",
        "allowed",
        "attempts",
        "deadline",
        "lent",
        "paid",
        "policy",
        "same_error",
        "since",
        "unspent",
        "waited",
    )

    # of a shelter: set when the call first comes to its door
    _began: float
    _given: Ticket | Waiter | str | None
    _ticket: _Held | None
    _waiter: Waiter | None
    _hinted_delay: float

    _number: int
    """The number of the call among those that have retried; set when it first does."""

    paid: bool
    """Whether the request has been paid into the budget by an attempt that was `unsent`; drivers say so."""
    same_error: bool
    """Whether two attempts in a row have raised one error object; drivers say so."""

    def __init__(
        self, policy: Policy, deadline: float | None = None, since: int | None = None, lent: bool = False
    ) -> None:
        self.policy = policy
        self.deadline = deadline
        self.lent = lent
        """Is the deadline that of a caller around, and nearer than the policy's own?"""
        self.since = give_ups.last if since is None else since
        self.attempts = 0
        self.allowed = math.inf
        self.waited = 0.0
        self._first: float | None = None
        self._delay: float | None = None
        self._inner: GiveUp | None = None
        self._over = self.unspent = self.same_error = self.paid = False
        self._in_flight: tuple[Gate, ...] = ()
        """The gates that the attempt has entered and not left."""
        self._door: Door | None = None

    def begin(self, now: float | None = None, keeps: bool = False) -> Send | Hold | Stop:
        """An attempt is about to be made, if shelter and gate admit it; a first one that is refused raises `Refused`.

        Pass `now` if you have just read the clock. A first attempt after the deadline raises `DeadlineExceeded`, unless
        it `keeps` deadlines by itself.
        """
        if self.deadline is not None and not self.attempts and not keeps:
            self._check_deadline(now)
        if self.policy.shelter is not None and not (switch.off and is_off()):
            action = self._knock(self.policy.shelter.door(), now)
            if action is not None:
                return action
        return self._send()

    def _check_deadline(self, now: float | None = None) -> None:
        """Raise `DeadlineExceeded` if the deadline has passed."""
        assert self.deadline is not None
        if self.left() == 0.0 if now is None else now >= self.deadline:
            self._return_unused()
            error = DeadlineExceeded(self.policy.name)
            self.give_up(Stop("deadline"), error)
            raise error

    def _knock(self, door: Door, now: float | None) -> Hold | Stop | None:
        """Ask the shelter; None where the attempt may go ahead."""
        if now is None or not self.policy.one_shelter_clock:
            now = door.clock.now()
        if self._door is None:
            self._arrive(door, now)
        weather = door.weather
        if (weather.calm and now < weather.look) or _holds(door):
            return None
        # kept before anything is called: a signal handler may raise at the end of each call
        answer = self._given = door.knock(now, self._began, self.left(), self.attempts == 0, self.policy.name)
        if isinstance(answer, Waiter):
            self._waiter, self._given = answer, None
            self.waited -= now
            return Hold(door, answer)
        if isinstance(answer, str):
            return self._turned_away(door, answer)
        self._hold(door, answer)
        return None

    def _arrive(self, door: Door, now: float) -> None:
        """Come to the door for the first time."""
        self._door, self._began = door, now
        self._given = None
        self._ticket = None
        self._waiter = None

    def left(self) -> float | None:
        """Seconds until the deadline."""
        if self.deadline is None:
            return None
        clock = self.policy.clock or current()
        return max(0.0, self.deadline - clock.now())

    def _hold(self, door: Door, ticket: Ticket) -> None:
        held = _Held(door, ticket)
        self._ticket, self._given = held, None
        _held.enter(held)

    def turn(self) -> Send | Stop:
        """The waiter has its answer."""
        waiter, door = self._waiter, self._door
        assert waiter is not None
        assert door is not None
        now, answer = door.clock.now(), waiter.answer
        assert answer is not None
        self._given, self._waiter = answer, None
        self.waited += now
        if isinstance(answer, str):
            return self._turned_away(door, answer)
        self._hold(door, answer)
        return self._send()

    def _turned_away(self, door: Door, why: str) -> Stop:
        """The shelter has no place for this attempt."""
        self._return_unused()
        if self.attempts:
            return Stop("shelter")
        refused = door.refusal(why)
        self.give_up(Stop("shelter"), refused)
        raise refused from door.last_error

    def _send(self) -> Send | Stop:
        self.since = give_ups.last
        policy = self.policy
        retry = self.attempts > 0
        if policy.gate is not None:
            gates = policy.gate.gates if isinstance(policy.gate, All) else (policy.gate,)
            refused = policy.gate.enter(retry)
            if refused is not None:
                self._return_unused()
                if events.sinks:
                    events.emit(events.BudgetRefused(policy.name, refused.name, self.attempts))
                if not retry:
                    self._over = True
                    raise Refused(refused.name, refused.refusal())
                return Stop("budget")
            self._in_flight = gates
        self.unspent = False
        if not retry and not self.paid and policy.budget.funded_by == "request":
            policy.budget.deposit()
        return SEND

    def allowance(self, now: float) -> float:
        """Seconds that the attempt beginning now may take; for policies that are bounded."""
        left = math.inf if self.deadline is None else max(0.0, self.deadline - now)
        self.allowed = left if self.policy.attempt_timeout is None else min(left, self.policy.attempt_timeout)
        return self.allowed

    def good(self, result: object) -> bool:
        """Is this a result that no rule speaks against?"""
        return self.policy.rules.judge(Outcome(None, result)) is None

    def succeeded(self) -> None:
        """The attempt's result is good: the call is over."""
        self.attempts += 1
        if self._in_flight:
            self._leave(True)
        policy = self.policy
        door = self._door
        if door is not None and (self._ticket is not None or not door.weather.calm):
            door.answered(self._held_ticket(), door.clock.now(), policy.name)
            self._let_go()
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
        accepted = None if policy.ungated else self._accepted(ruling, now)
        if self._in_flight:
            self._leave(accepted)
        closed = 0.0
        sheltered = policy.shelter is not None and not (switch.off and is_off())
        if sheltered:
            assert policy.shelter is not None
            closed = self._tell(policy.shelter.door(), ruling, error, accepted)
        listening = events.sinks
        if listening and attempts == 1:
            events.emit(events.FirstFailure(policy.name, ruling.reason, error))
        if not ruling.retry:
            return Stop("layer" if ruling.reason == "layer" else "fatal")
        if give_ups.last != self.since and self._layered(error):
            return Stop("layer")
        if attempts >= policy.max_attempts or (switch.off and is_off()):
            return Stop("attempts")
        deadline, hint = self.deadline, ruling.hint
        if deadline is not None and now >= deadline:
            return Stop("deadline")
        if hint is not None and (not self._minds(hint) or (deadline is not None and now + hint >= deadline)):
            return Stop("hint")
        if ruling.reached and not (ruling.safe is not False if policy.idempotent is None else policy.idempotent):
            return Stop("unsafe")
        if sheltered and hint is not None:
            delay = self._hinted_delay  # as the shelter was told, if it is for everybody
        elif closed:
            delay = 0.0  # the room takes the place of the backoff
        else:
            plan = policy.overload_backoff if ruling.reason == "overload" else policy.backoff
            delay = self._delay = plan.delay(attempts, policy.chance, self._delay)
            if hint is not None:
                delay = after_hint(hint, plan, attempts, delay)
        if deadline is not None and now + delay >= deadline:
            return Stop("deadline")
        if policy.budget.try_withdraw(now if policy.one_clock else None):
            self.unspent = True
        elif not closed and not self._vouched():
            if listening:
                events.emit(events.BudgetRefused(policy.name, policy.budget.name, attempts))
            return Stop("budget")
        if attempts == 1:
            self._number = self.since = give_ups.last = give_ups.next()
        else:
            self.since = give_ups.last
        self.waited += delay
        if listening:
            events.emit(events.Retry(policy.name, attempts, max(delay, closed), ruling.reason, hint, error))
        wait = _new(Wait)  # a third of the cost of calling the class
        wait.until = now + delay
        return wait

    def _accepted(self, ruling: Ruling, now: float) -> bool | None:
        """Has the server taken the attempt? None where how it ended is no verdict on the server."""
        return None if ruling.reason == "layer" or self._cut_short(ruling, now) else ruling.taken

    def _cut_short(self, ruling: Ruling, now: float) -> bool:
        """Did a deadline cut the attempt off before it had its time?

        Its time is the policy's own `attempt_timeout`; or else a good part of its `timeout`, unless a deadline around
        is nearer; or what is known to be too long for an answer of the server, whoever cut it off.
        """
        deadline, policy = self.deadline, self.policy
        if deadline is None or now < deadline - EARLY or ruling.answered or not ruling.overloaded:
            return False
        if policy.attempt_timeout is not None:
            short = self.allowed < policy.attempt_timeout
        elif policy.timeout is not None and not self.lent:
            short = self.allowed < ENOUGH * policy.timeout
        else:
            short = True
        held = None if self._door is None else self._ticket
        if held is None:
            return short
        there = held.door.clock.now()
        return short and not held.door.weather.hung(there - held.ticket.sent, there)

    def _tell(self, door: Door, ruling: Ruling, error: Exception | None, accepted: bool | None) -> float:
        """Tell the shelter of an outcome; the answer is for how many seconds it sends nothing."""
        policy, now = self.policy, door.clock.now()
        # what a stand-in has sent in calm, where nobody counts those that succeed
        hearsay = self._door is None
        if hearsay:
            self._arrive(door, now)
        ticket = self._held_ticket()
        if accepted is None:
            door.void(ticket, now, doubt=hearsay and ruling.retry)
            self._let_go()
            return 0.0
        if not ruling.retry:
            if ticket is not None or not door.weather.calm:
                door.answered(ticket, now, policy.name)
            self._let_go()
            return 0.0
        plan = policy.overload_backoff if ruling.reason == "overload" else policy.backoff
        until = None
        if ruling.hint is not None and self._minds(ruling.hint):
            own = self._delay = plan.delay(self.attempts, policy.chance, self._delay)
            self._hinted_delay = after_hint(ruling.hint, plan, self.attempts, own)
            until = now + self._hinted_delay
        retry = max(1, min(self.attempts, policy.max_attempts - 1))
        closed = door.failed(ticket, now, plan, until, error, hearsay, policy.name, retry, accepted)
        self._let_go()
        return 0.0 if _holds(door) else closed  # within another attempt nobody waits in the room

    def _minds(self, hint: float) -> bool:
        """Is a hint short enough to be waited for?"""
        return hint <= self.policy.max_hint

    def _vouched(self) -> bool:
        """Does a shelter bound what is sent, so that a retry need not be refused for want of a budget?"""
        door = self._door
        return door is not None and not door.weather.calm and not _holds(door)

    def _held_ticket(self) -> Ticket | None:
        """The ticket of the attempt; it is held until the door has heard how the attempt has ended."""
        return None if self._ticket is None else self._ticket.ticket

    def _let_go(self) -> None:
        """The door has heard it."""
        if self._ticket is not None:
            _held.leave(self._ticket)
            self._ticket = None

    def _ruling(self, outcome: Outcome | Exception, now: float) -> Ruling:
        """Ask the rules, where the type of the error alone does not decide."""
        if self._first is None:
            self._first = now
        if isinstance(outcome, Exception):
            outcome = Outcome(outcome)
        outcome.elapsed = now - self._first
        return self.policy.rules.decide(outcome)

    def _layered(self, error: Exception | None) -> bool:
        """Has a policy inside this attempt retried already?"""
        found = None if error is None else given_up_within(error, self.since)
        if found is None:
            return False
        self._inner, inner = found, found.report
        if events.sinks:
            events.emit(events.LayeredRetry(self.policy.name, inner.policy))
        pair = (self.policy.name, inner.policy)
        if pair not in _warned and len(_warned) < _MOST_WARNINGS:
            _warned.add(pair)
            outer, within = map(line, pair)
            warnings.warn(
                f"{outer} stands around {within}: only {within} retries, so that they don't multiply",
                LayeredRetryWarning,
                stacklevel=2,
            )
        return True

    def give_up(self, stop: Stop, outcome: Outcome | Exception) -> Exception | None:
        """End the call: the error to raise, or None where the last result is to be returned as it is."""
        self._over = True
        policy = self.policy
        error, result = (outcome, None) if isinstance(outcome, Exception) else (outcome.error, outcome.result)
        inner = None if self._inner is None else self._inner.report
        report = Report(policy.name, self.attempts, self.waited, stop.reason, inner)
        serial = self._serial(stop.reason)
        if serial != ALONE:
            tell_watch()
        if events.sinks:
            events.emit(events.GaveUp(policy.name, stop.reason, self.attempts, self.waited, error))
        give_up = GiveUp(report, serial, None if error is None or self.same_error else error.__traceback__)
        if error is not None:
            mark(error, give_up)
        if policy.raises == "original" or stop.reason == "fatal":
            return error
        exhausted = RetryExhausted(report, result)
        exhausted.__cause__ = error
        mark(exhausted, give_up)
        return exhausted

    def _serial(self, reason: str) -> int:
        """By which number the layers around know that this work must not be repeated."""
        if reason == "fatal":
            return ALONE  # nobody has tried to repeat what is fatal here: a layer around may
        if self._inner is not None:
            return self._inner.serial
        if self.attempts > 1:
            return self._number
        if reason != "layer" and reason not in FOR_ALL:
            return ALONE
        give_ups.last = give_ups.next()
        return give_ups.last

    def broken_off(self, error: BaseException | None = None) -> None:
        """The call ends from outside, by a cancellation or an exit: return what was withdrawn and not used.

        A call that is over already is left alone.
        """
        if self._over:
            return
        self._over = True
        try:
            self._return_unused()
        except Exception:
            if error is None or isinstance(error, Exception):
                raise
            # neither a gate that fails nor a logging handler that raises may stop a cancellation or an exit
            Log("abate").exception("the gate of %s failed when a call was broken off", self.policy.name)
        if events.sinks and error is not None:
            events.emit(events.GaveUp(self.policy.name, "cancelled", self.attempts, self.waited, error))

    def unsent(self) -> None:
        """The attempt was not sent after all: the call is made in another way."""
        self._over = True
        entered, self._in_flight = self._in_flight, ()
        try:
            self._return_unused()
        finally:
            All(entered).undo(self.attempts > 0)

    def _return_unused(self) -> None:
        if self.unspent:
            self.unspent = False
            self.policy.budget.refund()
        try:
            if self._in_flight:
                All(self._in_flight).leave(None)
                self._in_flight = ()
        finally:
            door = self._door
            if door is not None:
                now = door.clock.now()
                if self._waiter is not None:
                    door.leave(self._waiter, now)
                    self._waiter = None
                    self.waited += now
                if isinstance(self._given, Ticket):
                    door.void(self._given, now)
                elif isinstance(self._given, Waiter):
                    door.leave(self._given, now)
                self._given = None
                door.void(self._held_ticket(), now)
                self._let_go()

    def _leave(self, accepted: bool | None) -> None:
        while self._in_flight:
            self._in_flight[-1].leave(accepted)
            self._in_flight = self._in_flight[:-1]  # without a call between, so that none is left twice, or never
