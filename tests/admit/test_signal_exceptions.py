"""A dispatcher whose operations are interrupted by exceptions; tests/test_signal_handlers.py tries every point."""

from collections import deque

import pytest

import abate
from abate.admit.bucket import Reservation
from abate.admit.limiter import Limiter, Permit
from abate.call.counters import WrapperVersions
from abate.call.shelter_visit import ShelterVisit
from abate.testing import VirtualClock
from tests.reentry import inside


class Broken(Exception):
    """What a signal handler raises."""


def broken(*_):
    raise Broken


@pytest.fixture
def dispatcher():
    dispatcher = abate.Shelter(clock=VirtualClock(start=100.0)).dispatcher()
    dispatcher.limiter.limit = 1.0
    return dispatcher


def try_enter(dispatcher):
    return dispatcher.try_enter(100.0, 100.0, None, True)


def test_a_permit_or_place_that_the_call_does_not_get_is_returned(dispatcher):
    """A permit, and a place in the queue."""
    dispatcher.core.state_changes.append(("", "calm", 0, 1.0))
    dispatcher._on_calm_change, calmed = broken, dispatcher._on_calm_change
    with pytest.raises(Broken):
        try_enter(dispatcher)
    assert dispatcher.limiter.in_flight == 0
    dispatcher._on_calm_change = calmed
    held = try_enter(dispatcher)
    assert type(held) is Permit
    dispatcher._on_calm_change = broken
    with pytest.raises(Broken):
        try_enter(dispatcher)
    assert (dispatcher.limiter.in_flight, dispatcher.waiters) == (1, 0)


def test_an_attempt_without_a_permit_is_not_in_flight(dispatcher, monkeypatch):
    """It was counted before its permit was created."""

    def send(limiter, now):
        limiter.in_flight += 1
        raise Broken

    monkeypatch.setattr(Limiter, "send", send)
    with pytest.raises(Broken):
        try_enter(dispatcher)
    assert dispatcher.limiter.in_flight == 0


def test_a_pending_wakeup_is_sent_by_the_next_operation(dispatcher):
    """No waiter sleeps through its turn."""

    class Wakeup:
        loop, rung = None, 0

        def notify(self):
            self.rung += 1
            if self.rung == 1:
                raise Broken
            return True

    held, waiter = try_enter(dispatcher), try_enter(dispatcher)
    waiter.wakeup = Wakeup()
    with pytest.raises(Broken):
        dispatcher.abandoned(held, 100.0)
    dispatcher.abandoned(None, 100.0)
    assert waiter.wakeup.rung == 2
    assert type(waiter.answer) is Permit


def test_a_reentrant_waiter_asks_again(dispatcher):
    """It gets no answer within an operation of its own thread."""
    held, waiter = try_enter(dispatcher), try_enter(dispatcher)
    with inside(dispatcher._section):
        assert dispatcher.due(waiter) == 100.25
        assert not dispatcher.claim_answer(waiter)
    dispatcher.abandoned(held, 100.0)


@pytest.mark.parametrize("limit", [1.0, 0.0], ids=["permit", "waiter"])
def test_a_call_interrupted_before_it_stores_its_permit_or_waiter_returns_it(limit):
    """The exception comes as soon as the dispatcher has answered."""
    shelter = abate.Shelter(clock=VirtualClock(start=100.0))
    shelter.dispatcher().limiter.limit = limit
    visit = ShelterVisit(shelter.dispatcher(), 100.0)
    visit._unclaimed = shelter.dispatcher().try_enter(100.0, 100.0, None, True)
    visit.abandon()
    assert (shelter.dispatcher().limiter.in_flight, shelter.waiters) == (0, 0)


@pytest.mark.parametrize("way", ["answered", "failed"])
def test_a_repeated_outcome_of_a_permit_counts_once(dispatcher, way):
    """The outcome is repeated after an exception interrupted it."""

    def tell():
        if way == "answered":
            dispatcher.answered(permit, 100.0, "orders")
        else:
            dispatcher.failed(permit, 100.0, abate.Backoff(1.0), None, None, False, "orders")
        return dispatcher.limiter.in_flight, dispatcher.limiter.answers, dispatcher.limiter._failure_streak

    permit, _ = try_enter(dispatcher), dispatcher.core.send(100.0)
    assert tell() == tell()


class Emptied(deque):
    """A deque that another thread empties between the check and the pop."""

    def __bool__(self):
        return True


def test_wakeups_and_events_sent_by_another_thread_are_not_repeated(dispatcher):
    """There is nothing left to do."""
    dispatcher.core.to_wake, dispatcher.core.state_changes = Emptied(), Emptied()
    dispatcher._waking = iter(dispatcher.core.to_wake.popleft, None)
    dispatcher.abandoned(None, 100.0)
    dispatcher.answered(None, 100.0, "orders")
    assert (len(dispatcher.core.to_wake), len(dispatcher.core.state_changes)) == (0, 0)


def test_a_reservation_is_queued_once():
    """An exception right after queueing makes the operation repeat."""

    class Line(deque):
        def append(self, claim):
            super().append(claim)
            if len(self) == 1:
                raise Broken

    bucket = abate.TokenBucket(rate=1.0, clock=VirtualClock())
    level = bucket._states.main
    level.reservations = Line()
    claim = Reservation(1, 1.0)
    with pytest.raises(Broken):
        level.section.run_or_defer(bucket._queue_reservation, level, claim)
    assert list(level.reservations) == [claim]


def test_a_retry_is_refunded_once():
    """An exception right after the refund makes the operation repeat."""
    budget = abate.Budget(ratio=0.0, reserve=5.0, window=1.0, clock=lambda: 0.0)
    assert budget.try_withdraw()
    assert budget.try_withdraw()
    state = budget.states.main
    prepay, breaks = state._prepay, [Broken]

    def broken_off(drawn):
        if breaks:
            raise breaks.pop()
        prepay(drawn)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Broken):
        patched.setattr(type(state), "_prepay", lambda self, drawn: broken_off(drawn))
        budget.refund()
    assert budget.balance() == 4.0


def test_a_watcher_is_counted_once():
    """An exception right after counting makes the operation repeat."""
    watch, by = WrapperVersions(), [1]
    watch._change(by)
    watch._change(by)
    watch.stop_counting()
    assert not watch.on
