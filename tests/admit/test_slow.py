"""Slow is not down: where no attempt has failed the shelter refuses nobody, however long answers take."""

import asyncio
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abate import Policy, Shelter
from abate.admit.door import FULL
from abate.admit.room import Waiter
from abate.admit.weather import START, Ticket
from abate.schedule.backoff import Backoff
from abate.testing import VirtualClock

PATIENCE, ROUNDED = 10.0, 1e-6


class Down(Exception):
    """What a dependency raises while it is down."""


def traffic(calls, timeout=600.0, warm=0, **shelter):
    """Make calls at these instants, which take so many seconds: how long each has waited, or why it has failed."""
    with VirtualClock() as clock:
        policy = Policy(on=Down, timeout=timeout, shelter=Shelter(**{"patience": PATIENCE, **shelter}))

        async def answer(seconds, sent):
            sent.append(clock.now())
            await clock.asleep(seconds)

        async def one(begins, seconds):
            sent: list = []
            await clock.asleep(begins)
            came = clock.now()
            try:
                await policy.acall(answer, seconds, sent)
            except Exception as error:
                return error
            return sent[0] - came

        async def main():
            for _ in range(warm):
                await policy.acall(answer, 0.05, [])
            return await asyncio.gather(*(one(*call) for call in calls))

        return asyncio.run(main())


@pytest.mark.parametrize(
    ("number", "gap", "seconds"), [(50, 0.05, 15.0), (60, 0.5, 12.0), (100, 0.01, 5.0), (30, 0.0, 100.0)]
)
@pytest.mark.parametrize("warm", [0, 500], ids=["cold", "warm"])
def test_healthy_calls_are_not_refused_however_long_they_take(number, gap, seconds, warm):
    """Neither by a process that knows nothing yet, nor by one that has seen quick answers only."""
    waited = traffic([(n * gap, seconds) for n in range(number)], warm=warm)
    assert all(isinstance(each, float) for each in waited)
    assert max(waited) <= PATIENCE + ROUNDED


def test_a_full_room_refuses_nobody_where_nothing_fails():
    """Who finds no place is sent."""
    waited = traffic([(0.0, 5.0)] * 40, capacity=5)
    assert waited.count(0.0) == 40 - 5
    assert max(waited) <= PATIENCE + ROUNDED


@pytest.mark.parametrize(("seconds", "warm"), [(2.0, 0), (2.0, 500)], ids=["cold", "warm"])
def test_a_call_with_little_time_is_sent_while_there_is_time_for_an_answer(seconds, warm):
    """It is not held back until its own deadline has passed."""
    waited = traffic([(0.01 * n, seconds) for n in range(40)], timeout=5.0, warm=warm)
    assert all(isinstance(each, float) for each in waited)


@settings(max_examples=25, deadline=None)
@given(
    calls=st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.001, 60.0)), min_size=1, max_size=60),
    warm=st.sampled_from([0, 100]),
    capacity=st.sampled_from([3, 1000]),
)
def test_nothing_that_is_merely_slow_is_refused(calls, warm, capacity):
    """Whatever comes when, and however long it takes: nobody is refused, or waits for longer than its patience."""
    waited = traffic(calls, warm=warm, capacity=capacity)
    assert all(isinstance(each, float) and each <= PATIENCE + ROUNDED for each in waited)


def held(clock, limit=1.0, **shelter):
    """A door with a limit that slow answers have made, its only ticket, and one who waits."""
    door = Shelter(**{"patience": PATIENCE, **shelter}).door()
    door.weather.limit, door.weather.state = limit, "storm"
    return door, door.knock(clock.now(), clock.now(), None, True), door.knock(clock.now(), clock.now(), None, True)


@pytest.mark.parametrize(("failed", "answer"), [(None, Ticket), (0.5, Ticket), (1.0, str), (3.0, str)])
def test_only_a_failure_since_it_came_refuses_a_call(failed, answer):
    """At the end of its patience: it is sent whatever the limit, or refused if any attempt has failed meanwhile."""
    with VirtualClock() as clock:
        clock.advance(0.5)
        door = Shelter(patience=5.0).door()
        door.weather._answered = True  # so that a single failure closes nothing
        if failed == 0.5:
            door.failed(None, 0.5, Backoff(1.0), None, None, False, "")
        clock.advance(0.5)
        door.weather.limit, door.weather.state = 1.0, "storm"
        door.knock(1.0, 1.0, None, True)
        waiter = door.knock(1.0, 1.0, None, True)
        if failed is not None and failed >= 1.0:
            clock.advance(failed - 1.0)
            door.failed(None, failed, Backoff(1.0), None, None, False, "")
        clock.advance(6.0 - clock.now())
        door.look(waiter, clock.now())
        assert isinstance(waiter.answer, answer)


def test_a_call_whose_answer_would_come_late_is_sent_where_nothing_has_failed():
    """Where answers take 2 s and one second is left: it may be lucky, and the server is well."""
    with VirtualClock() as clock:
        door, ticket, _ = held(clock, 1.0, patience=60.0)
        door.weather.latency = 2.0
        hurried = door.knock(0.0, 0.0, 3.0, True)
        clock.advance(2.0)
        door.void(ticket, 2.0)
        door.weather.limit = 5.0
        door.void(None, 2.0)
        door.look(hurried, 2.0)
        assert isinstance(hurried.answer, Ticket)


def test_failures_since_the_first_who_waits_came_refuse_those_who_find_it_full():
    """A failure of long ago is none."""
    with VirtualClock() as clock:
        clock.advance(100.0)
        door, _, _ = held(clock, capacity=1)
        door.weather.failed = 95.0
        assert door.knock(100.0, 100.0, None, True) == FULL
        door.weather.failed = 85.0
        assert isinstance(door.knock(100.0, 100.0, None, True), Ticket)
        door.weather.hinted = 200.0
        assert door.knock(100.0, 100.0, None, True) == FULL


@pytest.mark.parametrize(("barred", "ceiling"), [(50.0, inf), (-1.0, 1.0)], ids=["barred", "ceiling"])
def test_what_others_have_seen_fail_is_a_failure_too(barred, ceiling):
    """A fleet that says to send nothing, or no more, is not overruled by a call's patience."""
    with VirtualClock() as clock:
        door, _, waiter = held(clock)
        door.heed(False, barred, ceiling)
        clock.advance(PATIENCE)
        door.look(waiter, PATIENCE)
        assert waiter.answer == "late"


def test_silence_of_an_unknown_dependency_says_nothing():
    """Nobody knows how long its answers take: what holds calls back is the limit of the beginning, and no storm."""
    with VirtualClock() as clock:
        door = Shelter(patience=PATIENCE).door()
        for _ in range(START):
            assert isinstance(door.knock(0.0, 0.0, None, True), Ticket)
        clock.advance(5.0)
        assert isinstance(door.knock(5.0, 5.0, None, True), Waiter)
        assert door.weather.state == "calm"
