"""Calls of a simulated world, by the production machine: what the drivers for threads and tasks do, as callbacks.

A call that succeeds at once never builds a `Call`; it makes its deposit, and that is all, as in production.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

from abate.call.giveup import give_ups, report
from abate.call.machine import SEND, Call, Hold, Send, Stop, Wait
from abate.call.policy import Policy
from abate.errors import AttemptTimeout, DeadlineExceeded, Refused
from abate.sim.agenda import Agenda
from abate.sim.server import Reply, Request, Serves

if TYPE_CHECKING:
    from abate.admit.door import Door
    from abate.admit.room import Waiter

Over = Callable[["Journey", "str | None"], object]
"""Told how a call has ended: None for success, or the reason of giving up."""


def plain(policy: Policy) -> bool:
    """Does a call that succeeds at once need nothing but its deposit?

    >>> import abate
    >>> plain(abate.Policy(on=OSError)), plain(abate.Policy(on=OSError, timeout=1.0))
    (True, False)
    """
    return policy.plain and policy.shelter is None


class Journey(Request):
    """One call under way. As long as nothing cuts its attempts short, it is its own request: there is one at a time."""

    __slots__ = ("began", "client", "context", "end", "failure", "machine")

    def __init__(self, reply: Reply, client: int, began: float, end: Over) -> None:
        self.reply = reply
        self.deadline = None
        self.client = client
        self.began = began
        self.end = end
        self.machine: Call | None = None
        self.context: Context | None = None
        self.failure: Exception | None = None
        """What became of the last attempt."""

    @property
    def owner(self) -> Journey:  # a slot would keep it alive by itself
        return self


class Caller:
    """Makes calls of one service by one policy."""

    __slots__ = ("_attempted", "_bounded", "_cheap", "_late", "_policy", "_submit", "agenda")

    def __init__(
        self,
        policy: Policy,
        server: Serves,
        agenda: Agenda,
        attempted: Callable[[int, float], object] | None = None,
    ) -> None:
        self.agenda = agenda
        self._policy = policy
        self._submit = server.submit
        self._bounded = policy.bounded
        self._cheap = plain(policy)
        self._late = AttemptTimeout(policy.attempt_timeout or policy.timeout or 0.0)
        self._attempted = attempted

    def call(self, over: Over, deadline: float | None = None, client: int = 0) -> None:
        """Make a call, which ends by `deadline` and by the policy's own timeout."""
        policy, now = self._policy, self.agenda.time
        if policy.timeout is not None:
            own = now + policy.timeout
            deadline = own if deadline is None or own < deadline else deadline
        journey = Journey(self._answered, client, now, over)
        if self._cheap and deadline is None:
            self.send(journey)
            return
        machine = journey.machine = Call(policy, deadline, give_ups.last)
        if policy.shelter is not None:
            # which attempt holds a ticket is known by its context: each call has its own, as it has in a task
            journey.context = Context()
        self._ask(journey, machine.begin, now)

    def _ask(self, journey: Journey, question: Callable[..., Send | Wait | Hold | Stop], *facts: Any) -> None:
        """Ask the machine what to do next, and do it."""
        try:
            action = question(*facts) if journey.context is None else journey.context.run(question, *facts)
        except (Refused, DeadlineExceeded) as refused:
            given = report(refused)  # the shelter and the deadline leave one, a gate does not
            journey.failure = refused
            journey.end(journey, "budget" if given is None else given.reason)
            return
        self._do(journey, action)

    def _do(self, journey: Journey, action: Send | Wait | Hold | Stop) -> None:
        if type(action) is Wait:
            agenda = self.agenda
            now = agenda.time
            wait = action.until - now
            if wait > 0.0:
                agenda.at(now + wait, self._again, journey)
            else:
                agenda.soon(self._again, journey)
        elif action is SEND:
            self.send(journey)
        elif isinstance(action, Hold):
            Waiting(self, journey, action.door, action.waiter)
        else:
            assert isinstance(action, Stop)
            journey.end(journey, action.reason)

    def send(self, journey: Journey) -> None:
        """Send an attempt."""
        now = self.agenda.time
        if self._attempted is not None:
            self._attempted(journey.client, now)
        machine = journey.machine
        if machine is None or (machine.deadline is None and not self._bounded):
            journey.over = False
            self._submit(journey)
            return
        due = now + machine.allowance(now)
        request = Request(self._answered, journey, due)
        self.agenda.at(due, self._expired, request)
        self._submit(request)

    def _answered(self, request: Request, failure: Exception | None) -> None:
        if request.over:
            return
        request.over = True
        journey: Journey = request.owner
        machine = journey.machine
        if failure is not None:
            if machine is None:
                machine = journey.machine = Call(self._policy, None, give_ups.last)
            journey.failure = failure
            if journey.context is None:
                self._do(journey, machine.failed(failure, self.agenda.time))
            else:
                self._ask(journey, machine.failed, failure, self.agenda.time)
            return
        if machine is None:
            self._policy.budget.deposit()
        elif journey.context is None:
            machine.succeeded()
        else:
            journey.context.run(machine.succeeded)
        journey.end(journey, None)

    def _expired(self, request: Request) -> None:
        if not request.over:
            request.over = True
            journey: Journey = request.owner
            assert journey.machine is not None
            journey.failure = self._late
            self._ask(journey, journey.machine.failed, self._late, self.agenda.time)

    def _again(self, journey: Journey) -> None:
        machine = journey.machine
        assert machine is not None
        if self._policy.ungated:  # what `begin` does then
            machine.unspent = False
            self.send(journey)
        else:
            self._ask(journey, machine.begin)

    def turn(self, journey: Journey) -> None:
        """A wait in the shelter is over."""
        assert journey.machine is not None
        self._ask(journey, journey.machine.turn)


class Waiting:
    """A call that waits in a shelter: its bell, and the alarm that lets it look for itself."""

    __slots__ = ("_alarm", "_caller", "_door", "_journey", "_rung", "_waiter", "place")

    def __init__(self, caller: Caller, journey: Journey, door: Door, waiter: Waiter) -> None:
        self._caller = caller
        self.place = caller.agenda  # all wait in one place, as the tasks of one event loop do
        self._journey = journey
        self._door = door
        self._waiter = waiter
        self._alarm = 0
        self._rung = False
        waiter.bell = self
        self._wait()

    def _wait(self) -> None:
        if self._waiter.answer is not None and self._door.picked_up(self._waiter):
            self._caller.turn(self._journey)
            return
        agenda, due = self._caller.agenda, self._door.due(self._waiter)
        self._alarm += 1
        self._rung = False
        agenda.at(agenda.time + max(0.0, due - agenda.time), self._expired, (self._alarm, due))

    def _expired(self, alarm: tuple[int, float]) -> None:
        if alarm[0] == self._alarm and not self._rung:
            self._look(max(self._caller.agenda.time, alarm[1]))

    def ring(self) -> bool:
        """Wake it, as soon as what happens now is over."""
        if not self._rung:
            self._rung = True
            self._caller.agenda.soon(self._woken, None)
        return True

    def _woken(self, _: None) -> None:
        self._look(self._caller.agenda.time)

    def _look(self, now: float) -> None:
        if self._waiter.answer is None:
            self._door.look(self._waiter, now)
        self._wait()
