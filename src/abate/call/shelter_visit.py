"""One call at its shelter: the permit of its attempt, or its place in the wait queue.

A signal handler may raise out of any call. So what the dispatcher returns is stored before anything else is called, and
is forgotten only after it was given back; giving back twice has no effect.
"""

from __future__ import annotations

from math import inf

from abate.admit.dispatcher import Dispatcher
from abate.admit.limiter import Permit
from abate.admit.shelter_queue import Waiter
from abate.scopes import Scope, Scopes


class _PermitScope(Scope):
    """The permit of an attempt, which covers the calls made inside the attempt."""

    __slots__ = ("dispatcher", "permit")

    def __init__(self, dispatcher: Dispatcher, permit: Permit) -> None:
        super().__init__()
        self.dispatcher = dispatcher
        self.permit = permit


_permit_scopes: Scopes[_PermitScope] = Scopes("abate_held")


def holds_permit(dispatcher: Dispatcher) -> bool:
    """Return whether an attempt around this call holds a permit: a call within a call must not wait for itself."""
    scope = _permit_scopes.nearest()
    while scope is not None:
        if scope.dispatcher is dispatcher and scope.permit.out:
            return True
        scope = _permit_scopes.open_parent(scope)
    return False


class ShelterVisit:
    """What a call holds at the dispatcher of its shelter."""

    __slots__ = ("_began", "_scope", "_unclaimed", "_waiter", "_waiting_since", "dispatcher")

    _waiting_since: float

    def __init__(self, dispatcher: Dispatcher, now: float) -> None:
        self.dispatcher = dispatcher
        self._began = now
        self._unclaimed: Permit | Waiter | str | None = None
        self._waiter: Waiter | None = None
        self._scope: _PermitScope | None = None

    @property
    def permit(self) -> Permit | None:
        """The permit of the attempt, until the dispatcher knows its outcome."""
        return None if self._scope is None else self._scope.permit

    def enter(self, now: float, left: float | None, first: bool, policy_name: str) -> Waiter | str | None:
        """Ask for a permit: return None if the attempt may go, a waiter, or why it is refused."""
        if self.dispatcher.admits_freely(now) or holds_permit(self.dispatcher):
            return None
        answer = self._unclaimed = self.dispatcher.try_enter(now, self._began, left, first, policy_name)
        if isinstance(answer, Waiter):
            self._waiter, self._unclaimed, self._waiting_since = answer, None, now
            return answer
        return self._enter_permit(answer)

    def take_turn(self) -> tuple[str | None, float]:
        """Take the waiter's answer: return why the attempt is refused, if it is, and the seconds waited."""
        waiter, now = self._waiter, self.dispatcher.clock.now()
        assert waiter is not None
        answer = waiter.answer
        assert answer is not None
        self._unclaimed, self._waiter = answer, None
        return self._enter_permit(answer), now - self._waiting_since

    def _enter_permit(self, answer: Permit | str) -> str | None:
        if isinstance(answer, str):
            return answer
        scope = _PermitScope(self.dispatcher, answer)
        self._scope, self._unclaimed = scope, None
        _permit_scopes.enter(scope)
        return None

    def answered(self, policy_name: str) -> None:
        """The server has answered."""
        permit = self.permit
        if permit is not None or not self.dispatcher.calm:
            self.dispatcher.answered(permit, self.dispatcher.clock.now(), policy_name)
        self.drop_permit()

    def bounds_retries(self) -> bool:
        """Return whether the dispatcher limits what is sent, so that the budget need not."""
        return self.dispatcher.limit < inf and not holds_permit(self.dispatcher)

    def is_within_another(self) -> bool:
        """Return whether an attempt around this call holds a permit."""
        return holds_permit(self.dispatcher)

    def is_hung(self) -> bool:
        """Return whether the attempt has been without an answer for too long."""
        return self._scope is not None and self.dispatcher.is_hung(self._scope.permit, self.dispatcher.clock.now())

    def drop_permit(self) -> None:
        """The dispatcher knows the outcome: forget the permit."""
        if self._scope is not None:
            _permit_scopes.leave(self._scope)
            self._scope = None

    def abandon(self) -> float:
        """Leave the queue, or give back the permit; return the seconds waited."""
        dispatcher, waited = self.dispatcher, 0.0
        now = dispatcher.clock.now()
        if self._waiter is not None:
            dispatcher.leave(self._waiter, now)
            self._waiter = None
            waited = now - self._waiting_since
        if isinstance(self._unclaimed, Permit):
            dispatcher.abandoned(self._unclaimed, now)
        elif isinstance(self._unclaimed, Waiter):
            dispatcher.leave(self._unclaimed, now)
        self._unclaimed = None
        dispatcher.abandoned(self.permit, now)
        self.drop_permit()
        return waited
