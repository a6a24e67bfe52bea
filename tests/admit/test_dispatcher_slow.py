"""Slow is not down: as long as no attempt has failed, the shelter refuses no call, however long answers take."""

import asyncio
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abate import Policy, Shelter
from abate.admit.limiter import INITIAL_LIMIT, Permit
from abate.admit.shelter_core import QUEUE_FULL
from abate.admit.shelter_queue import Waiter
from abate.schedule.backoff import Backoff
from abate.testing import VirtualClock

PATIENCE, ROUNDED = 10.0, 1e-6


class Down(Exception):
    """What a dependency raises while it is down."""


def traffic(calls, timeout=600.0, warm=0, **shelter):
    """Make calls at these instants with these durations; return how long each waited, or why it failed."""
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
    """Neither by a new process, nor by one that has only seen quick answers."""
    waited = traffic([(n * gap, seconds) for n in range(number)], warm=warm)
    assert all(isinstance(each, float) for each in waited)
    assert max(waited) <= PATIENCE + ROUNDED


def test_a_full_queue_refuses_no_call_while_nothing_fails():
    """A call that finds the wait queue full is sent."""
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
def test_slow_calls_are_never_refused(calls, warm, capacity):
    """At any arrival times and durations, no call is refused or waits longer than its patience."""
    waited = traffic(calls, warm=warm, capacity=capacity)
    assert all(isinstance(each, float) and each <= PATIENCE + ROUNDED for each in waited)


def held(clock, limit=1.0, **shelter):
    """Return a dispatcher whose limit slow answers have lowered, its only permit, and a waiter."""
    dispatcher = Shelter(**{"patience": PATIENCE, **shelter}).dispatcher()
    dispatcher.limiter.limit, dispatcher.limiter.state = limit, "storm"
    return (
        dispatcher,
        dispatcher.try_enter(clock.now(), clock.now(), None, True),
        dispatcher.try_enter(clock.now(), clock.now(), None, True),
    )


@pytest.mark.parametrize(("failed", "answer"), [(None, Permit), (0.5, Permit), (1.0, str), (3.0, str)])
def test_a_call_is_refused_only_if_an_attempt_failed_while_it_waited(failed, answer):
    """At the end of its patience it is sent regardless of the limit, or refused if an attempt failed meanwhile."""
    with VirtualClock() as clock:
        clock.advance(0.5)
        dispatcher = Shelter(patience=5.0).dispatcher()
        dispatcher.limiter._ever_answered = True  # so that a single failure closes nothing
        if failed == 0.5:
            dispatcher.failed(None, 0.5, Backoff(1.0), None, None, False, "")
        clock.advance(0.5)
        dispatcher.limiter.limit, dispatcher.limiter.state = 1.0, "storm"
        dispatcher.try_enter(1.0, 1.0, None, True)
        waiter = dispatcher.try_enter(1.0, 1.0, None, True)
        if failed is not None and failed >= 1.0:
            clock.advance(failed - 1.0)
            dispatcher.failed(None, failed, Backoff(1.0), None, None, False, "")
        clock.advance(6.0 - clock.now())
        dispatcher.on_timer(waiter, clock.now())
        assert isinstance(waiter.answer, answer)


def test_a_call_whose_answer_would_come_late_is_sent_while_nothing_has_failed():
    """Answers take 2 s and one second is left: it may be lucky, and the server is healthy."""
    with VirtualClock() as clock:
        dispatcher, permit, _ = held(clock, 1.0, patience=60.0)
        dispatcher.limiter.latencies.latency = 2.0
        hurried = dispatcher.try_enter(0.0, 0.0, 3.0, True)
        clock.advance(2.0)
        dispatcher.abandoned(permit, 2.0)
        dispatcher.limiter.limit = 5.0
        dispatcher.abandoned(None, 2.0)
        dispatcher.on_timer(hurried, 2.0)
        assert isinstance(hurried.answer, Permit)


def test_a_full_queue_refuses_calls_after_a_failure_since_its_oldest_waiter():
    """Older failures do not matter."""
    with VirtualClock() as clock:
        clock.advance(100.0)
        dispatcher, _, _ = held(clock, capacity=1)
        dispatcher.limiter.last_failure = 95.0
        assert dispatcher.try_enter(100.0, 100.0, None, True) == QUEUE_FULL
        dispatcher.limiter.last_failure = 85.0
        assert isinstance(dispatcher.try_enter(100.0, 100.0, None, True), Permit)
        dispatcher.limiter.prober.hint_until = 200.0
        assert dispatcher.try_enter(100.0, 100.0, None, True) == QUEUE_FULL


@pytest.mark.parametrize(("barred", "ceiling"), [(50.0, inf), (-1.0, 1.0)], ids=["barred", "ceiling"])
def test_remote_failures_count_as_failures(barred, ceiling):
    """The end of a call's patience does not override a fleet's limit."""
    with VirtualClock() as clock:
        dispatcher, _, waiter = held(clock)
        dispatcher.apply_remote(False, barred, ceiling)
        clock.advance(PATIENCE)
        dispatcher.on_timer(waiter, PATIENCE)
        assert waiter.answer == "late"


def test_silence_of_an_unknown_dependency_is_not_a_storm():
    """Its latency is unknown: the initial limit holds calls back, without a storm."""
    with VirtualClock() as clock:
        dispatcher = Shelter(patience=PATIENCE).dispatcher()
        for _ in range(INITIAL_LIMIT):
            assert isinstance(dispatcher.try_enter(0.0, 0.0, None, True), Permit)
        clock.advance(5.0)
        assert isinstance(dispatcher.try_enter(5.0, 5.0, None, True), Waiter)
        assert dispatcher.limiter.state == "calm"
