"""What a door does where an exception comes out of what it calls; tests/test_raising.py tries every point."""

import pytest

import abate
from abate.admit.weather import Ticket, Weather
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
