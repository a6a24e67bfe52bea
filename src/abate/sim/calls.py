"""Drives the production state machine (`abate.call.machine`) with callbacks on the simulator's agenda.

It does what the sync and async drivers do. As in production, a call whose first attempt succeeds builds no `Call`: it
only makes a deposit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

from abate.call.actions import SEND, Send, Stop, Wait, WaitForTurn
from abate.call.layers import report, retry_serials
from abate.call.machine import Call
from abate.call.policy import Policy
from abate.errors import AttemptTimeout, DeadlineExceeded, Refused
from abate.sim.agenda import Agenda
from abate.sim.server import Reply, Request, RowServer, Server

if TYPE_CHECKING:
    from abate.admit.dispatcher import Dispatcher
    from abate.admit.shelter_queue import Waiter

OnCallEnd = Callable[["SimulatedCall", "str | None"], object]
"""Called when a call ends, with None for success or the reason of the give-up."""


def deposit_only(policy: Policy) -> bool:
    """Return whether a call whose first attempt succeeds only makes a deposit.

    >>> import abate
    >>> deposit_only(abate.Policy(on=OSError)), deposit_only(abate.Policy(on=OSError, timeout=1.0))
    (True, False)
    """
    return policy.plain and policy.shelter is None


class SimulatedCall(Request):
    """One call. Without an attempt timeout it is also its own request, as it has one request at a time."""

    __slots__ = ("began", "client", "context", "end", "failure", "machine")

    def __init__(self, reply: Reply, client: int, began: float, end: OnCallEnd) -> None:
        self.reply = reply
        self.deadline = None
        self.client = client
        self.began = began
        self.end = end
        self.machine: Call | None = None
        self.context: Context | None = None
        self.failure: Exception | None = None
        """The error of the last attempt."""

    @property
    def owner(self) -> SimulatedCall:  # a slot would be a reference cycle
        return self


class CallDriver:
    """Makes calls to one service with one policy."""

    __slots__ = ("_attempted", "_bounded", "_cheap", "_late", "_policy", "_submit", "agenda")

    def __init__(
        self,
        policy: Policy,
        server: Server | RowServer,
        agenda: Agenda,
        attempted: Callable[[int, float], object] | None = None,
    ) -> None:
        self.agenda = agenda
        self._policy = policy
        self._submit = server.submit
        self._bounded = policy.bounded
        self._cheap = deposit_only(policy)
        self._late = AttemptTimeout(policy.attempt_timeout or policy.timeout or 0.0)
        self._attempted = attempted

    def call(self, over: OnCallEnd, deadline: float | None = None, client: int = 0) -> None:
        """Make a call, bounded by `deadline` and by the policy's timeout."""
        policy, now = self._policy, self.agenda.time
        if policy.timeout is not None:
            own = now + policy.timeout
            deadline = own if deadline is None or own < deadline else deadline
        call = SimulatedCall(self._answered, client, now, over)
        if self._cheap and deadline is None:
            self.send(call)
            return
        machine = call.machine = Call(policy, deadline, retry_serials.last)
        if policy.shelter is not None:
            # the shelter finds the ticket of an attempt by context, so each call has its own context, like a task
            call.context = Context()
        self._step(call, machine.begin, now)

    def _step(
        self, call: SimulatedCall, question: Callable[..., Send | Wait | WaitForTurn | Stop], *facts: Any
    ) -> None:
        """Ask the state machine for the next action, and apply it."""
        try:
            action = question(*facts) if call.context is None else call.context.run(question, *facts)
        except (Refused, DeadlineExceeded) as refused:
            given = report(refused)  # present if the shelter or the deadline refused; None for a gate
            call.failure = refused
            call.end(call, "budget" if given is None else given.reason)
            return
        self._apply(call, action)

    def _apply(self, call: SimulatedCall, action: Send | Wait | WaitForTurn | Stop) -> None:
        if type(action) is Wait:
            agenda = self.agenda
            now = agenda.time
            wait = action.until - now
            if wait > 0.0:
                agenda.at(now + wait, self._again, call)
            else:
                agenda.soon(self._again, call)
        elif action is SEND:
            self.send(call)
        elif isinstance(action, WaitForTurn):
            ShelterWait(self, call, action.dispatcher, action.waiter)
        else:
            assert isinstance(action, Stop)
            call.end(call, action.reason)

    def send(self, call: SimulatedCall) -> None:
        """Send an attempt."""
        now = self.agenda.time
        if self._attempted is not None:
            self._attempted(call.client, now)
        machine = call.machine
        if machine is None or (machine.deadline is None and not self._bounded):
            call.over = False
            self._submit(call)
            return
        due = now + machine.allowance(now)
        request = Request(self._answered, call, due)
        self.agenda.at(due, self._expired, request)
        self._submit(request)

    def _answered(self, request: Request, failure: Exception | None) -> None:
        if request.over:
            return
        request.over = True
        call: SimulatedCall = request.owner
        machine = call.machine
        if failure is not None:
            if machine is None:
                machine = call.machine = Call(self._policy, None, retry_serials.last)
            call.failure = failure
            if call.context is None:
                self._apply(call, machine.failed(failure, self.agenda.time))
            else:
                self._step(call, machine.failed, failure, self.agenda.time)
            return
        if machine is None:
            self._policy.budget.deposit()
        elif call.context is None:
            machine.succeeded()
        else:
            call.context.run(machine.succeeded)
        call.end(call, None)

    def _expired(self, request: Request) -> None:
        if not request.over:
            request.over = True
            call: SimulatedCall = request.owner
            assert call.machine is not None
            call.failure = self._late
            self._step(call, call.machine.failed, self._late, self.agenda.time)

    def _again(self, call: SimulatedCall) -> None:
        machine = call.machine
        assert machine is not None
        if self._policy.no_gate_or_shelter:
            machine.resume()
            self.send(call)
        else:
            self._step(call, machine.begin)

    def turn(self, call: SimulatedCall) -> None:
        """Continue after a wait in the shelter."""
        assert call.machine is not None
        self._step(call, call.machine.take_turn)


class ShelterWait:
    """A call that waits in a shelter: its wake-up, and the timer after which it checks by itself."""

    __slots__ = ("_alarm", "_call", "_caller", "_dispatcher", "_rung", "_waiter", "loop")

    def __init__(self, caller: CallDriver, call: SimulatedCall, dispatcher: Dispatcher, waiter: Waiter) -> None:
        self._caller = caller
        self.loop = caller.agenda  # shared by all calls, like the event loop of tasks
        self._call = call
        self._dispatcher = dispatcher
        self._waiter = waiter
        self._alarm = 0
        self._rung = False
        waiter.wakeup = self
        self._wait()

    def _wait(self) -> None:
        if self._waiter.answer is not None and self._dispatcher.claim_answer(self._waiter):
            self._caller.turn(self._call)
            return
        agenda, due = self._caller.agenda, self._dispatcher.due(self._waiter)
        self._alarm += 1
        self._rung = False
        agenda.at(agenda.time + max(0.0, due - agenda.time), self._expired, (self._alarm, due))

    def _expired(self, alarm: tuple[int, float]) -> None:
        if alarm[0] == self._alarm and not self._rung:
            self._look(max(self._caller.agenda.time, alarm[1]))

    def notify(self) -> bool:
        """Wake the call after the current event."""
        if not self._rung:
            self._rung = True
            self._caller.agenda.soon(self._woken, None)
        return True

    def _woken(self, _: None) -> None:
        self._look(self._caller.agenda.time)

    def _look(self, now: float) -> None:
        if self._waiter.answer is None:
            self._dispatcher.on_timer(self._waiter, now)
        self._wait()
