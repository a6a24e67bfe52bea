"""What a door does where an exception comes out of what it calls; tests/test_raising.py tries every point."""

from collections import deque

import pytest

import abate
from abate.admit.bucket import Claim
from abate.admit.weather import Ticket, Weather
from abate.call.tally import Watch
from abate.testing import VirtualClock
from tests.reentry import inside


class Broken(Exception):
    """What a signal handler raises."""


def broken(*_):
    raise Broken


@pytest.fixture
def door():
    door = abate.Shelter(clock=VirtualClock(start=100.0)).door()
    door.weather.limit = 1.0
    return door


def knock(door):
    return door.knock(100.0, 100.0, None, True)


def test_what_a_call_was_given_is_taken_back_where_it_does_not_get_it(door):
    """A ticket, and a place in the room."""
    door._news.append(("", "calm", 0, 1.0))
    door._calmed, calmed = broken, door._calmed
    with pytest.raises(Broken):
        knock(door)
    assert door.weather.in_flight == 0
    door._calmed = calmed
    held = knock(door)
    assert type(held) is Ticket
    door._calmed = broken
    with pytest.raises(Broken):
        knock(door)
    assert (door.weather.in_flight, door.waiters) == (1, 0)


def test_an_attempt_without_a_ticket_is_not_in_flight(door, monkeypatch):
    """It was counted before its ticket was there."""

    def send(weather, now):
        weather.in_flight += 1
        raise Broken

    monkeypatch.setattr(Weather, "send", send)
    with pytest.raises(Broken):
        knock(door)
    assert door.weather.in_flight == 0


def test_a_bell_that_was_not_rung_is_rung_by_the_next_operation(door):
    """Nobody sleeps through its turn."""

    class Bell:
        place, rung = None, 0

        def ring(self):
            self.rung += 1
            if self.rung == 1:
                raise Broken
            return True

    held, waiter = knock(door), knock(door)
    waiter.bell = Bell()
    with pytest.raises(Broken):
        door.void(held, 100.0)
    door.void(None, 100.0)
    assert waiter.bell.rung == 2
    assert type(waiter.answer) is Ticket


def test_who_waits_within_an_operation_of_its_own_thread_looks_again(door):
    """It gets no answer there."""
    held, waiter = knock(door), knock(door)
    with inside(door._section):
        assert door.due(waiter) == 100.25
        assert not door.picked_up(waiter)
    door.void(held, 100.0)


@pytest.mark.parametrize("limit", [1.0, 0.0], ids=["ticket", "waiter"])
def test_a_call_that_is_broken_off_before_it_holds_what_it_was_given_gives_it_back(door, limit, monkeypatch):
    """An exception as soon as the door has answered."""
    from abate.call import machine

    shelter = abate.Shelter(clock=VirtualClock(start=100.0))
    call = machine.Call(abate.Policy(on=OSError, shelter=shelter))
    shelter.door().weather.limit = limit
    call._arrive(shelter.door(), 100.0)
    call._given = shelter.door().knock(100.0, 100.0, None, True)
    call.broken_off(Broken())
    assert (shelter.door().weather.in_flight, shelter.waiters) == (0, 0)


@pytest.mark.parametrize("way", ["answered", "failed"])
def test_what_is_told_of_a_ticket_again_counts_once(door, way):
    """It is told again where an exception has broken it off."""

    def tell():
        if way == "answered":
            door.answered(ticket, 100.0, "orders")
        else:
            door.failed(ticket, 100.0, abate.Backoff(1.0), None, None, False, "orders")
        return door.weather.in_flight, door.weather.answers, door.weather._row

    ticket, _ = knock(door), door._send(100.0)
    assert tell() == tell()


class Emptied(deque):
    """What another thread empties between a look and a grip."""

    def __bool__(self):
        return True


def test_what_another_thread_has_woken_or_told_is_left_to_it(door):
    """There is nothing more to do then."""
    door._rung, door._news = Emptied(), Emptied()
    door._waking = iter(door._rung.popleft, None)
    door.void(None, 100.0)
    door.answered(None, 100.0, "orders")
    assert (len(door._rung), len(door._news)) == (0, 0)


def test_a_wait_for_tokens_is_in_line_once():
    """Where an exception comes right after it has lined up, it is told to once more."""

    class Line(deque):
        def append(self, claim):
            super().append(claim)
            if len(self) == 1:
                raise Broken

    bucket = abate.TokenBucket(rate=1.0, clock=VirtualClock())
    level = bucket._levels.main
    level.claims = Line()
    claim = Claim(1, 1.0)
    with pytest.raises(Broken):
        level.section.run(bucket._line_up, level, claim)
    assert list(level.claims) == [claim]


def test_a_retry_is_given_back_once():
    """Where an exception comes right after it was, it is told to once more."""
    budget = abate.Budget(ratio=0.0, reserve=5.0, window=1.0, clock=lambda: 0.0)
    assert budget.try_withdraw()
    assert budget.try_withdraw()
    ledger = budget.timeline.main
    prepay, breaks = ledger._prepay, [Broken]

    def broken_off(drawn):
        if breaks:
            raise breaks.pop()
        prepay(drawn)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Broken):
        patched.setattr(type(ledger), "_prepay", lambda self, drawn: broken_off(drawn))
        budget.refund()
    assert budget.balance() == 4.0


def test_a_watcher_is_counted_once():
    """Where an exception comes right after it was, it is told to once more."""
    watch, by = Watch(), [1]
    watch._change(by)
    watch._change(by)
    watch.go()
    assert not watch.on
