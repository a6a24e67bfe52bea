"""The circuit breaker: when it trips, how long it stays open and how it closes, as a gate and for a consumer."""

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
    event_sinks,
    events,
    forks,
    on_error,
)
from abate.admit.breaker import MAX_PAUSES
from abate.call.hedge_race import SECOND, Race
from abate.testing import VirtualClock
from tests.reentry import held_elsewhere


class Middle:
    """A random source that always draws the middle, so each pause is as long as its setting says."""

    def random(self):
        return 0.5


def make(**given):
    """Return a breaker with its own clock, and that clock."""
    clock = VirtualClock()
    return CircuitBreaker(**given, clock=clock), clock


def trip(breaker):
    """Trip the breaker with failed messages; return the seconds for which it is open."""
    for _ in range(breaker.min_calls):
        pause = breaker.record(False)
    assert pause > 0
    return pause


# -- the state machine, as a gate


class AsAGate(RuleBasedStateMachine):
    """Attempts enter and end in any order, in virtual time: the breaker admits, trips and closes as the rules say."""

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
            self.trip(now, min(MAX_PAUSES, 2 * self.pauses))
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


def test_a_trial_that_hangs_for_a_pause_allows_another_trial():
    """A trial that hangs does not prevent the breaker from closing."""
    breaker, clock = make(min_calls=1, pause=10.0, rng=Middle())
    trip(breaker)
    clock.advance(10.0)
    assert [breaker.enter(False) is None for _ in range(3)] == [True, False, False]
    clock.advance(9.9)
    assert breaker.enter(False) is breaker
    clock.advance(0.1)
    assert [breaker.enter(False) is None for _ in range(2)] == [True, False]


def test_late_failures_from_before_the_trip_do_not_trip_it_again():
    """As many failures are ignored as attempts were in flight at the trip; the next failure is the trial's."""
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


def test_a_cancelled_attempt_from_before_the_trip_is_forgotten():
    """Of two in flight at the trip one is cancelled: one late failure is ignored, and the next is the trial's."""
    breaker, clock = make(min_calls=1, pause=10.0, rng=Middle())
    for _ in range(3):
        assert breaker.enter(False) is None
    breaker.failed(False)
    breaker.leave(None)
    clock.advance(10.0)
    assert breaker.enter(False) is None
    breaker.failed(False)
    assert breaker.seconds_until_half_open() == 0.0
    breaker.failed(False)
    assert breaker.seconds_until_half_open() == 20.0


def test_a_refusal_says_why():
    """The error says how long the breaker stays open, or that a trial is in flight."""
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


def test_a_trip_emits_one_event():
    """The event has the breaker's name and the seconds for which it is open."""
    seen = []
    breaker, clock = make(min_calls=2, pause=10.0, rng=Middle(), name="api")
    sink = event_sinks.install(seen.append)
    try:
        for _ in range(4):
            breaker.enter(False)
        for _ in range(4):
            breaker.failed(True)
        clock.advance(10.0)
        breaker.enter(False)
        breaker.failed(False)
    finally:
        event_sinks.remove(sink)
    assert seen == [events.BreakerOpened("api", 10.0, gate=True), events.BreakerOpened("api", 20.0, gate=True)]


def test_a_virtual_clock_has_its_own_state():
    """A test in virtual time neither sees nor changes the state on the machine's clock."""
    breaker = CircuitBreaker(min_calls=1)
    with VirtualClock():
        trip(breaker)
        assert breaker.allowed() == 0
    assert breaker.allowed() == inf


def test_an_outcome_without_an_entry_counts():
    """After a fork, the child ends an attempt that its parent entered; the in-flight count stays at zero."""
    breaker, _ = make(min_calls=3)
    breaker.enter(False)
    breaker.failed(False)
    forks._in_child()
    breaker.failed(False)
    breaker.leave(None)
    assert breaker.seconds_until_half_open() is None
    (breaker & ConcurrencyLimit(1)).failed(False)
    assert breaker.allowed() == 0


def test_a_forked_child_counts_the_failure_of_its_trial():
    """The attempts in flight at the trip never end in the child, so no failure is ignored on their behalf."""
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
def test_a_forked_child_has_nothing_in_flight():
    """The thread of the trial does not exist in the child; the lock is free, and the breaker stays open."""
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
    """Return a policy that makes two attempts without delay, behind the breaker."""
    given = {"max_attempts": 2, "backoff": Backoff(0.0, jitter="none"), "budget": Budget.unlimited(), **given}
    rules = [Down, on_error(lambda error: isinstance(error, Answered) and Ruling.blip(answered=True))]
    return Policy(on=rules, gate=breaker, **given)


def failure_ratio(error):
    def function():
        raise error

    return function


def make_a_call(policy, function, asynchronous):
    """Make a call, sync or async; return its result or error."""

    async def afunction():
        return function()

    try:
        return asyncio.run(policy.acall(afunction)) if asynchronous else policy.call(function)
    except (Down, Answered, Refused) as error:
        return type(error)


both = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])


@both
@pytest.mark.parametrize("error", [Down, Answered])
def test_an_outage_opens_the_breaker(error, asynchronous):
    """After `min_calls` refused connections or 500s, no attempt is sent."""
    breaker, clock = make(min_calls=10, pause=30.0, rng=Middle())
    calls = policy(breaker)
    for _ in range(5):
        assert make_a_call(calls, failure_ratio(error()), asynchronous) is error
    assert breaker.seconds_until_half_open() == 30.0
    assert make_a_call(calls, lambda: "fine", asynchronous) is Refused
    clock.advance(30.0)
    assert make_a_call(calls, failure_ratio(error()), asynchronous) is error  # the trial; its retry is refused
    assert breaker.seconds_until_half_open() == 60.0
    clock.advance(60.0)
    assert make_a_call(calls, lambda: "fine", asynchronous) == "fine"
    assert breaker.seconds_until_half_open() is None


@both
def test_500s_of_one_tenant_among_successes_do_not_open_the_breaker(asynchronous):
    """The errors may be that tenant's own fault, so the calls of others continue."""
    breaker, _ = make(min_calls=10)
    calls = policy(breaker)
    assert make_a_call(calls, lambda: "fine", asynchronous) == "fine"
    for _ in range(100):
        assert make_a_call(calls, failure_ratio(Answered()), asynchronous) is Answered
    assert breaker.seconds_until_half_open() is None
    assert make_a_call(calls, lambda: "fine", asynchronous) == "fine"


@both
def test_fatal_errors_do_not_open_the_breaker(asynchronous):
    """A 404 comes from a healthy server."""
    breaker, _ = make(min_calls=2)
    calls = policy(breaker)
    for _ in range(20):
        with pytest.raises(KeyError):
            make_a_call(calls, failure_ratio(KeyError()), asynchronous)
    assert breaker.seconds_until_half_open() is None


def test_a_cancelled_trial_allows_another_trial():
    """A cancellation says nothing about the server: the next call is the trial."""
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


def test_one_of_many_threads_makes_the_trial():
    """All other threads are refused until the trial ends, and are admitted afterwards."""
    breaker, clock = make(min_calls=1, pause=10.0, rng=Middle())
    calls, answers, ends = policy(breaker), [], threading.Event()
    trip(breaker)
    clock.advance(10.0)
    refused = threading.Semaphore(0)

    def call():
        answer = make_a_call(calls, ends.wait, False)
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
    ("outcome", "allowed"), [(Outcome(Answered()), 0), (Outcome(Down()), 0), (Outcome(None, 1), inf), (None, inf)]
)
def test_the_second_attempt_of_a_hedge_counts(outcome, allowed):
    """It enters the gate, and its failure counts, a 500 too; a cancelled attempt counts as neither."""
    breaker, clock = make(min_calls=1)
    race = Race(policy(breaker), Timeouts(), clock)
    assert race.hedge()
    assert race.begin(SECOND)
    race.second_ended(outcome)
    assert breaker.allowed() == allowed


# -- for a consumer


def test_a_breaker_that_has_seen_nothing_admits_everything():
    """A new breaker sets no limit."""
    assert CircuitBreaker().allowed() == inf


@given(st.lists(st.booleans(), max_size=100), st.integers(1, 30), st.floats(0.05, 1.0))
def test_it_trips_at_the_ratio_and_not_before(outcomes, min_calls, failure_ratio):
    """The breaker trips when the share of failures reaches the ratio, given enough outcomes."""
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
    """The jitter is plus or minus half of the pause, so that consumers do not return together."""
    seconds = trip(CircuitBreaker(pause=pause, rng=random.Random(seed)))
    assert 0.5 * pause <= seconds <= 1.5 * pause


def test_after_the_pause_one_message_is_taken_as_a_trial():
    """The breaker admits nothing during the pause, then one message at a time."""
    breaker, clock = make(rng=Middle())
    assert trip(breaker) == 30.0
    clock.advance(29.9)
    assert breaker.allowed() == 0
    clock.advance(0.1)
    assert breaker.allowed() == 1


def test_the_remaining_pause_can_be_read():
    """It counts down until the breaker is half-open, and is zero after a success has closed it."""
    breaker, clock = make(min_calls=1, pause=30.0, rng=Middle())
    assert breaker.seconds_until_half_open() is None
    assert breaker.record(False) == breaker.seconds_until_half_open() == 30.0
    clock.advance(15.0)
    assert breaker.seconds_until_half_open() == 15.0
    clock.advance(45.0)
    assert breaker.seconds_until_half_open() == 0.0
    breaker.record(True)
    assert breaker.seconds_until_half_open() is None


def test_a_successful_trial_closes_the_breaker():
    """The first success admits everything and clears the counts."""
    breaker, clock = make(min_calls=5)
    clock.advance(trip(breaker) + 1)
    assert breaker.record(True) == 0.0
    assert breaker.allowed() == inf
    assert [breaker.record(False) > 0 for _ in range(5)] == [False] * 4 + [True]


def test_a_failed_trial_doubles_the_pause_up_to_the_maximum():
    """A dependency that stays down is probed less and less often."""
    breaker, clock = make(pause=10.0, rng=Middle())
    pauses = [trip(breaker)]
    for _ in range(5):
        clock.advance(pauses[-1])
        pauses.append(breaker.record(False))
    assert pauses == [10.0, 20.0, 40.0, 80.0, 80.0, 80.0]


@given(st.lists(st.booleans(), max_size=50))
def test_outcomes_while_open_are_ignored(late):
    """Outcomes that arrive while the breaker is open change nothing."""
    breaker, clock = make(pause=1000.0, rng=Middle())
    trip(breaker)
    assert [breaker.record(ok) for ok in late] == [0.0] * len(late)
    assert breaker.seconds_until_half_open() == 1000.0
    clock.advance(1000.0)
    assert breaker.allowed() == 1


@given(st.lists(st.booleans(), max_size=20))
def test_a_message_taken_before_the_trip_is_not_a_trial(late):
    """Only a message that was taken after the trip closes or trips the breaker."""
    breaker, clock = make(pause=10.0)
    taken = breaker.trips
    clock.advance(trip(breaker))
    assert [breaker.record(ok, taken=taken) for ok in late] == [0.0] * len(late)
    assert breaker.allowed() == 1
    taken, again = breaker.trips, breaker.record(False, taken=breaker.trips)
    assert again > 0
    clock.advance(again)
    assert breaker.record(True, taken=taken) == 0.0  # an earlier trial
    assert breaker.allowed() == 1
    breaker.record(True, taken=breaker.trips)
    assert breaker.allowed() == inf


def test_a_message_taken_before_the_trip_counts_after_the_breaker_has_closed():
    """Its outcome counts like any other."""
    breaker, clock = make(min_calls=2, pause=10.0)
    clock.advance(trip(breaker))
    breaker.record(True)
    assert [breaker.record(False, taken=0) > 0 for _ in range(2)] == [False, True]


def test_failures_expire_with_the_window():
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
def test_bad_settings_are_refused(given, message):
    """The constructor raises an error that names the setting."""
    with pytest.raises(ValueError, match=message):
        CircuitBreaker(**given)


# -- error responses of one sender


def test_error_responses_do_not_trip_the_breaker_while_others_succeed():
    """Three of four messages get a 500, as those of one sender may: the others are still taken."""
    breaker, clock = make(min_calls=20)
    for number in range(1000):
        assert breaker.record(number % 4 == 0, answered=True) == 0.0
        clock.advance(1 / 80)


def test_error_responses_trip_the_breaker_when_nothing_succeeds():
    """An outage that shows as 500s trips the breaker once the earlier successes have left the window."""
    breaker, clock = make(min_calls=20, window=60.0)
    breaker.record(True)
    while not breaker.record(False, answered=True) and clock.now() < 100:
        clock.advance(1.0)
    assert 60 <= clock.now() <= 62


def test_error_responses_are_left_out_of_the_failure_ratio():
    """They count neither as failures nor as successes while other messages succeed."""
    breaker, _ = make(min_calls=10)
    for _ in range(5):
        assert breaker.record(True) == 0.0
    for _ in range(50):
        assert breaker.record(False, answered=True) == 0.0
    assert [breaker.record(False) > 0.0 for _ in range(5)] == [False] * 4 + [True]


def test_an_error_response_to_a_trial_trips_the_breaker_again():
    """The trial is the only message, and it did not succeed."""
    breaker, clock = make(min_calls=4)
    clock.advance(trip(breaker))
    assert breaker.record(False, answered=True) > 0.0
