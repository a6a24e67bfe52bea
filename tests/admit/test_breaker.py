"""The circuit breaker: when it trips, for how long, how it closes, as a gate and for a consumer."""

import asyncio
import os
import random
import threading
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from abate import (
    Backoff,
    Budget,
    CircuitBreaker,
    ConcurrencyLimit,
    Outcome,
    Policy,
    Refused,
    Ruling,
    Timeouts,
    events,
    forks,
    on_error,
)
from abate.admit.breaker import LONGEST
from abate.call.hedge import Race
from abate.testing import VirtualClock
from tests.reentry import held_elsewhere


class Middle:
    """Chance without chance: each pause is as long as its setting says."""

    def random(self):
        return 0.5


def make(**given):
    """A breaker on a clock of its own, and that clock."""
    clock = VirtualClock()
    return CircuitBreaker(**given, clock=clock), clock


def trip(breaker):
    """Trip it by failed messages; for how many seconds?"""
    for _ in range(breaker.min_calls):
        pause = breaker.record(False)
    assert pause > 0
    return pause


# -- the state machine, as a gate


class AsAGate(RuleBasedStateMachine):
    """Attempts that enter and end in any order, in virtual time: admitted, closed and tripped as the rules say."""

    RATIO, MIN_CALLS, PAUSE = 0.5, 3, 10.0

    @initialize()
    def begin(self):
        self.breaker, self.clock = make(
            failure_ratio=self.RATIO, min_calls=self.MIN_CALLS, window=1e9, pause=self.PAUSE, rng=Middle()
        )
        self.state, self.pauses, self.trips = "closed", 1.0, 0
        self.until = self.trial_until = -inf
        self.good = self.failed = self.erred = 0
        self.in_flight = self.older = 0

    def now(self):
        if self.state == "open" and self.clock.now() >= self.until:
            self.state = "half-open"
        return self.clock.now()

    @rule(retry=st.booleans())
    def enter(self, retry):
        now = self.now()
        admitted = self.state == "closed" or (self.state == "half-open" and now >= self.trial_until)
        assert self.breaker.enter(retry) is (None if admitted else self.breaker)
        if admitted:
            self.in_flight += 1
            if self.state == "half-open":
                self.trial_until = now + self.PAUSE

    @precondition(lambda self: self.in_flight)
    @rule(told=st.sampled_from(["leave", "refund", "failed"]))
    def void(self, told):
        if told == "refund":
            self.breaker.refund()
        else:
            getattr(self.breaker, told)(None)
        self.now()
        self.in_flight -= 1
        self.older = min(self.older, self.in_flight)
        self.trial_until = -inf

    @precondition(lambda self: self.in_flight)
    @rule()
    def succeed(self):
        self.breaker.leave(True)
        self.now()
        self.in_flight -= 1
        self.older = max(0, self.older - 1)
        if self.state == "closed":
            self.good += 1
        elif self.state == "half-open":
            self.state, self.older, self.trial_until = "closed", 0, -inf

    @precondition(lambda self: self.in_flight)
    @rule(answered=st.booleans(), as_leave=st.booleans())
    def fail(self, answered, as_leave):
        if as_leave and not answered:
            self.breaker.leave(False)
        else:
            self.breaker.failed(answered)
        now = self.now()
        self.in_flight -= 1
        if self.state == "half-open" and not self.older:
            self.trip(now, min(LONGEST, 2 * self.pauses))
            return
        self.older = max(0, self.older - 1)
        if self.state == "closed":
            self.erred, self.failed = self.erred + answered, self.failed + (not answered)
            failures = self.failed if self.good else self.failed + self.erred
            total = self.good + failures
            if total >= self.MIN_CALLS and failures >= self.RATIO * total:
                self.trip(now, 1.0)

    def trip(self, now, pauses):
        self.state, self.pauses, self.trips = "open", pauses, self.trips + 1
        self.until, self.trial_until = now + self.PAUSE * pauses, -inf
        self.good = self.failed = self.erred = 0
        self.older = self.in_flight

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.9, 10.0, 25.0, 80.0]))
    def advance(self, seconds):
        self.clock.advance(seconds)

    @invariant()
    def agrees(self):
        if hasattr(self, "breaker"):
            now = self.now()
            assert self.breaker.trips == self.trips
            assert self.breaker.allowed() == {"closed": inf, "open": 0, "half-open": 1}[self.state]
            left = None if self.state == "closed" else max(0.0, self.until - now)
            assert self.breaker.seconds_until_half_open() == left


TestAsAGate = AsAGate.TestCase
TestAsAGate.settings = settings(deadline=None, max_examples=200, stateful_step_count=40)


def test_a_trial_longer_than_a_pause_makes_room_for_another():
    """A trial that hangs does not keep the breaker from closing."""
    breaker, clock = make(min_calls=1, pause=10.0, rng=Middle())
    trip(breaker)
    clock.advance(10.0)
    assert [breaker.enter(False) is None for _ in range(3)] == [True, False, False]
    clock.advance(9.9)
    assert breaker.enter(False) is breaker
    clock.advance(0.1)
    assert [breaker.enter(False) is None for _ in range(2)] == [True, False]


def test_late_failures_of_before_the_trip_do_not_trip_it_again():
    """As many failures are ignored as attempts were in flight at the trip; the next one is the trial's."""
    breaker, clock = make(min_calls=2, pause=10.0, rng=Middle())
    for _ in range(5):
        assert breaker.enter(False) is None
    for _ in range(2):
        breaker.failed(False)
    clock.advance(10.0)
    assert breaker.enter(False) is None
    for _ in range(3):
        breaker.failed(False)
        assert breaker.seconds_until_half_open() == 0.0
    breaker.failed(False)
    assert breaker.seconds_until_half_open() == 20.0


def test_why_it_refuses():
    """The words of the error say for how long, or what is waited for."""
    breaker, clock = make(min_calls=1, pause=30.0, rng=Middle(), name="api")
    policy = Policy(on=OSError, gate=breaker)
    trip(breaker)
    with pytest.raises(Refused) as refused:
        policy.call(int)
    assert str(refused.value) == "api refused: most attempts failed, none are sent for another 30 s"
    clock.advance(30.0)
    assert breaker.enter(False) is None
    with pytest.raises(Refused, match=r"^api refused: most attempts failed, and a trial is in flight already\n"):
        policy.call(int)


def test_a_trip_is_told_once():
    """By the name of the breaker, with the seconds for which it is open."""
    seen = []
    breaker, clock = make(min_calls=2, pause=10.0, rng=Middle(), name="api")
    sink = events.install(seen.append)
    try:
        for _ in range(4):
            breaker.enter(False)
        for _ in range(4):
            breaker.failed(True)
        clock.advance(10.0)
        breaker.enter(False)
        breaker.failed(False)
    finally:
        events.remove(sink)
    assert seen == [events.BreakerOpened("api", 10.0), events.BreakerOpened("api", 20.0)]


def test_in_virtual_time_it_has_a_state_of_its_own():
    """A test neither sees nor disturbs what the process has counted."""
    breaker = CircuitBreaker(min_calls=1)
    with VirtualClock():
        trip(breaker)
        assert breaker.allowed() == 0
    assert breaker.allowed() == inf


def test_what_ends_without_having_entered_is_an_outcome_all_the_same():
    """In a fork's child the attempt of the thread that forked ends; nothing is counted below zero."""
    breaker, _ = make(min_calls=3)
    breaker.enter(False)
    breaker.failed(False)
    forks._in_child()
    breaker.failed(False)
    breaker.leave(None)
    assert breaker.seconds_until_half_open() is None
    (breaker & ConcurrencyLimit(1)).failed(False)
    assert breaker.allowed() == 0


def test_in_a_forks_child_a_failed_trial_is_taken_for_none_of_the_parents_attempts():
    """Those that were in flight at the trip never end there."""
    breaker, clock = make(min_calls=1, pause=10.0, rng=Middle())
    for _ in range(3):
        breaker.enter(False)
    breaker.failed(False)
    forks._in_child()
    clock.advance(10.0)
    assert breaker.enter(False) is None
    breaker.failed(False)
    assert breaker.seconds_until_half_open() == 20.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_in_a_forks_child_nothing_is_in_flight():
    """The trial belongs to a thread that does not exist there; the lock is free, and the breaker as open as it was."""
    breaker, clock = make(min_calls=1, pause=10.0, rng=Middle())
    trip(breaker)
    clock.advance(10.0)
    assert breaker.enter(False) is None
    with held_elsewhere(breaker._circuits.main.section):
        child = os.fork()
        if not child:
            os._exit(0 if breaker.enter(False) is None and breaker.enter(False) is breaker else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert breaker.enter(False) is breaker


# -- through a policy


class Down(Exception):
    """The connection was refused."""


class Answered(Exception):
    """A 500."""


def policy(breaker, **given):
    """A policy that makes two attempts at once, behind the breaker."""
    given = {"max_attempts": 2, "backoff": Backoff(0.0, jitter="none"), "budget": Budget.unlimited(), **given}
    rules = [Down, on_error(lambda error: isinstance(error, Answered) and Ruling.blip(answered=True))]
    return Policy(on=rules, gate=breaker, **given)


def failure_ratio(error):
    def function():
        raise error

    return function


def attempted(policy, function, asynchronous):
    """Make a call in one of the two ways: what came of it?"""

    async def afunction():
        return function()

    try:
        return asyncio.run(policy.acall(afunction)) if asynchronous else policy.call(function)
    except (Down, Answered, Refused) as error:
        return type(error)


both = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])


@both
@pytest.mark.parametrize("error", [Down, Answered])
def test_an_outage_opens_it(error, asynchronous):
    """Whether connections are refused or each answer is a 500: after `min_calls` attempts none are sent."""
    breaker, clock = make(min_calls=10, pause=30.0, rng=Middle())
    calls = policy(breaker)
    for _ in range(5):
        assert attempted(calls, failure_ratio(error()), asynchronous) is error
    assert breaker.seconds_until_half_open() == 30.0
    assert attempted(calls, lambda: "fine", asynchronous) is Refused
    clock.advance(30.0)
    assert attempted(calls, failure_ratio(error()), asynchronous) is error  # the trial; its retry is refused
    assert breaker.seconds_until_half_open() == 60.0
    clock.advance(60.0)
    assert attempted(calls, lambda: "fine", asynchronous) == "fine"
    assert breaker.seconds_until_half_open() is None


@both
def test_500s_of_one_tenant_among_successes_do_not_open_it(asynchronous):
    """They may be that tenant's own fault: the calls of others go on."""
    breaker, _ = make(min_calls=10)
    calls = policy(breaker)
    assert attempted(calls, lambda: "fine", asynchronous) == "fine"
    for _ in range(100):
        assert attempted(calls, failure_ratio(Answered()), asynchronous) is Answered
    assert breaker.seconds_until_half_open() is None
    assert attempted(calls, lambda: "fine", asynchronous) == "fine"


@both
def test_errors_that_are_not_retried_do_not_open_it(asynchronous):
    """A 404 is an answer of a server that is well."""
    breaker, _ = make(min_calls=2)
    calls = policy(breaker)
    for _ in range(20):
        with pytest.raises(KeyError):
            attempted(calls, failure_ratio(KeyError()), asynchronous)
    assert breaker.seconds_until_half_open() is None


def test_a_cancelled_trial_frees_its_place():
    """It says nothing about the server: the next call is the trial."""
    breaker, clock = make(min_calls=1, pause=10.0, rng=Middle())
    trip(breaker)
    clock.advance(10.0)

    async def cancelled():
        task = asyncio.ensure_future(policy(breaker).acall(asyncio.sleep, 60.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert breaker.enter(False) is breaker
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(cancelled())
    assert breaker.seconds_until_half_open() == 0.0
    assert policy(breaker).call(lambda: "fine") == "fine"


def test_of_many_threads_one_is_on_trial():
    """All others are refused until it has ended, and admitted then."""
    breaker, clock = make(min_calls=1, pause=10.0, rng=Middle())
    calls, answers, ends = policy(breaker), [], threading.Event()
    trip(breaker)
    clock.advance(10.0)
    refused = threading.Semaphore(0)

    def call():
        answer = attempted(calls, ends.wait, False)
        answers.append(answer)
        if answer is Refused:
            refused.release()

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(7):
        assert refused.acquire(timeout=30)
    assert breaker.seconds_until_half_open() == 0.0
    ends.set()
    for thread in threads:
        thread.join()
    assert sorted(map(str, answers)) == sorted(map(str, [True] + [Refused] * 7))
    assert breaker.seconds_until_half_open() is None


@pytest.mark.parametrize(
    ("outcome", "room"), [(Outcome(Answered()), 0), (Outcome(Down()), 0), (Outcome(None, 1), inf), (None, inf)]
)
def test_the_second_attempt_of_a_hedge_counts_too(outcome, room):
    """It has entered the gate, and its failure is told as one, a 500 as well; one that was cut off says nothing."""
    breaker, clock = make(min_calls=1)
    race = Race(policy(breaker), Timeouts(), clock)
    assert race.hedge()
    race.leave(outcome)
    assert breaker.allowed() == room


# -- for a consumer


def test_a_breaker_that_has_seen_nothing_admits_everything():
    """At first there is room for any number."""
    assert CircuitBreaker().allowed() == inf


@given(st.lists(st.booleans(), max_size=100), st.integers(1, 30), st.floats(0.05, 1.0))
def test_it_trips_at_the_ratio_and_not_before(outcomes, min_calls, failure_ratio):
    """It trips with the first failure that makes the share of failures reach the ratio, given enough outcomes."""
    breaker, _ = make(failure_ratio=failure_ratio, min_calls=min_calls)
    ended = failed = 0
    for ok in outcomes:
        ended, failed = ended + 1, failed + (not ok)
        pause = breaker.record(ok)
        due = not ok and ended >= min_calls and failed >= failure_ratio * ended
        assert (pause > 0) == due
        assert (breaker.allowed() == 0) == due
        if due:
            return


@given(st.integers(0, 2**32), st.floats(0.1, 1000))
def test_the_pause_is_jittered(seed, pause):
    """Give or take half, so that consumers don't come back together."""
    seconds = trip(CircuitBreaker(pause=pause, rng=random.Random(seed)))
    assert 0.5 * pause <= seconds <= 1.5 * pause


def test_after_the_pause_one_is_taken_on_trial():
    """Nothing before the pause is over, then one at a time."""
    breaker, clock = make(rng=Middle())
    assert trip(breaker) == 30.0
    clock.advance(29.9)
    assert breaker.allowed() == 0
    clock.advance(0.1)
    assert breaker.allowed() == 1


def test_it_tells_for_how_long_it_is_open():
    """Until it is half-open, and until a success has closed it."""
    breaker, clock = make(min_calls=1, pause=30.0, rng=Middle())
    assert breaker.seconds_until_half_open() is None
    assert breaker.record(False) == breaker.seconds_until_half_open() == 30.0
    clock.advance(15.0)
    assert breaker.seconds_until_half_open() == 15.0
    clock.advance(45.0)
    assert breaker.seconds_until_half_open() == 0.0
    breaker.record(True)
    assert breaker.seconds_until_half_open() is None


def test_a_good_trial_closes_it():
    """With the first success everything is admitted, and what happened before is forgotten."""
    breaker, clock = make(min_calls=5)
    clock.advance(trip(breaker) + 1)
    assert breaker.record(True) == 0.0
    assert breaker.allowed() == inf
    assert [breaker.record(False) > 0 for _ in range(5)] == [False] * 4 + [True]


def test_a_failed_trial_doubles_the_pause_up_to_the_longest():
    """A dependency that stays down is asked less and less often."""
    breaker, clock = make(pause=10.0, rng=Middle())
    pauses = [trip(breaker)]
    for _ in range(5):
        clock.advance(pauses[-1])
        pauses.append(breaker.record(False))
    assert pauses == [10.0, 20.0, 40.0, 80.0, 80.0, 80.0]


@given(st.lists(st.booleans(), max_size=50))
def test_what_ends_while_it_is_open_counts_neither_way(late):
    """Outcomes that come while it is open change nothing."""
    breaker, clock = make(pause=1000.0, rng=Middle())
    trip(breaker)
    assert [breaker.record(ok) for ok in late] == [0.0] * len(late)
    assert breaker.seconds_until_half_open() == 1000.0
    clock.advance(1000.0)
    assert breaker.allowed() == 1


@given(st.lists(st.booleans(), max_size=20))
def test_what_was_taken_before_it_tripped_is_no_trial(late):
    """It says how the dependency was then: only a message that was taken since closes or trips it."""
    breaker, clock = make(pause=10.0)
    taken = breaker.trips
    clock.advance(trip(breaker))
    assert [breaker.record(ok, taken=taken) for ok in late] == [0.0] * len(late)
    assert breaker.allowed() == 1
    taken, again = breaker.trips, breaker.record(False, taken=breaker.trips)
    assert again > 0
    clock.advance(again)
    assert breaker.record(True, taken=taken) == 0.0  # a trial of before
    assert breaker.allowed() == 1
    breaker.record(True, taken=breaker.trips)
    assert breaker.allowed() == inf


def test_what_was_taken_before_counts_once_it_is_closed():
    """Then it is an outcome like any other."""
    breaker, clock = make(min_calls=2, pause=10.0)
    clock.advance(trip(breaker))
    breaker.record(True)
    assert [breaker.record(False, taken=0) > 0 for _ in range(2)] == [False, True]


def test_old_failures_are_forgotten():
    """Only the last window counts."""
    breaker, clock = make(min_calls=2, window=10.0)
    breaker.record(False)
    clock.advance(20.0)
    assert breaker.record(False) == 0.0
    clock.advance(0.1)
    assert breaker.record(False) > 0.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"failure_ratio": 0}, "failure_ratio must be a number above 0 and at most 1, not 0"),
        ({"failure_ratio": 1.1}, "failure_ratio must be a number above 0 and at most 1, not 1.1"),
        ({"min_calls": 0}, "min_calls must be a whole number of at least 1, not 0"),
        ({"window": 0}, "window must be a number at least 0.001, not 0"),
        ({"pause": 0}, "pause must be a number above 0, not 0"),
    ],
)
def test_impossible_settings_are_refused(given, message):
    """A clear error at construction."""
    with pytest.raises(ValueError, match=message):
        CircuitBreaker(**given)


# -- errors that are one sender's


def test_error_answers_trip_nothing_while_others_end_well():
    """Three of four messages get a 500, as those of one sender may: the others are taken as ever."""
    breaker, clock = make(min_calls=20)
    for number in range(1000):
        assert breaker.record(number % 4 == 0, answered=True) == 0.0
        clock.advance(1 / 80)


def test_error_answers_trip_it_where_nothing_ends_well():
    """An outage that shows as 500s is one: when what ended well before has left the window, and not before."""
    breaker, clock = make(min_calls=20, window=60.0)
    breaker.record(True)
    while not breaker.record(False, answered=True) and clock.now() < 100:
        clock.advance(1.0)
    assert 60 <= clock.now() <= 62


def test_error_answers_are_left_out_of_the_share():
    """Neither for nor against: what the others do decides."""
    breaker, _ = make(min_calls=10)
    for _ in range(5):
        assert breaker.record(True) == 0.0
    for _ in range(50):
        assert breaker.record(False, answered=True) == 0.0
    assert [breaker.record(False) > 0.0 for _ in range(5)] == [False] * 4 + [True]


def test_an_error_answer_to_a_trial_trips_it_again():
    """It is the only message, and it has not ended well."""
    breaker, clock = make(min_calls=4)
    clock.advance(trip(breaker))
    assert breaker.record(False, answered=True) > 0.0
