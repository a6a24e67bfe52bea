"""The throttle: the formula over its window, the chances it takes, and how it opens again."""

import math
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from abate import AdaptiveThrottle, forks
from abate.admit.sliding_window import SLOTS
from abate.testing import VirtualClock
from tests.reentry import held_elsewhere


class AgainstTheFormula(RuleBasedStateMachine):
    """Attempts, answers, refunds and time in any order: the probability and every decision are those of the formula."""

    @initialize(
        k=st.sampled_from([1.0, 1.5, 2.0, 3.0]), window=st.sampled_from([1.0, 120.0]), seed=st.integers(0, 2**32)
    )
    def begin(self, k, window, seed):
        self.k, self.window, self.clock = k, window, VirtualClock()
        self.throttle = AdaptiveThrottle(k, window, clock=self.clock, rng=random.Random(seed))
        self.rng = random.Random(seed)
        self.requests, self.accepts = [], []

    @property
    def slot(self):
        return int(self.clock.now() / (self.window / SLOTS))

    def expected(self):
        requests, accepts = (
            sum(slot > self.slot - SLOTS for slot in events) for events in (self.requests, self.accepts)
        )
        return max(0.0, (requests - self.k * accepts) / (requests + 1))

    @rule(times=st.integers(1, 10), retry=st.booleans())
    def enter(self, times, retry):
        for _ in range(times):
            probability = self.expected()
            refused = probability > 0 and self.rng.random() < probability
            assert self.throttle.enter(retry) is (self.throttle if refused else None)
            self.requests.append(self.slot)

    @rule(times=st.integers(1, 5), accepted=st.booleans())
    def leave(self, times, accepted):
        for _ in range(times):
            self.throttle.leave(accepted)
            if accepted:
                self.accepts.append(self.slot)

    @rule()
    def refund(self):
        self.throttle.refund()
        if self.requests and self.requests[-1] > self.slot - SLOTS:
            self.requests.pop()

    @rule(slots=st.one_of(st.floats(0, 3), st.floats(0, 1.5 * SLOTS), st.integers(0, 2 * SLOTS)))
    def advance(self, slots):
        self.clock.advance(slots * self.window / SLOTS)

    @rule()
    def look(self):
        assert self.throttle.probability() == self.expected()


TestAgainstTheFormula = AgainstTheFormula.TestCase
TestAgainstTheFormula.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)


class Drawn:
    """Chance that always draws the same number."""

    def __init__(self, number):
        self.number = number

    def random(self):
        return self.number


def attempts(throttle, times, served):
    """Make attempts; those that get through are served or not. How many got through."""
    through = 0
    for _ in range(times):
        if throttle.enter(retry=False) is None:
            through += 1
            throttle.leave(accepted=served)
    return through


def test_a_healthy_server_sees_everything():
    """While at least one in k is accepted, nothing is held back."""
    throttle = AdaptiveThrottle(k=2.0, clock=VirtualClock())
    assert attempts(throttle, 500, served=True) == 500
    for _ in range(500):  # as many refused by the server as accepted: still one in two
        assert throttle.enter(retry=False) is None
        throttle.leave(accepted=False)
    assert throttle.probability() == 0.0


def test_what_is_refused_here_counts_as_requested():
    """Without a single answer, each attempt raises the probability, whether it got through or not."""
    throttle = AdaptiveThrottle(clock=VirtualClock(), rng=random.Random(1))
    for requested in range(100):
        assert throttle.probability() == requested / (requested + 1)
        throttle.enter(retry=True)


def test_a_server_that_is_down_sees_the_expected_share():
    """The refusals are as many as the probabilities together say, within what chance allows."""
    throttle = AdaptiveThrottle(k=2.0, clock=VirtualClock(), rng=random.Random(7))
    attempts(throttle, 400, served=True)
    expected = variance = 0.0
    refused = 0
    for _ in range(4000):
        probability = throttle.probability()
        expected += probability
        variance += probability * (1 - probability)
        refused += throttle.enter(retry=False) is throttle
    assert expected > 2000
    assert abs(refused - expected) < 4 * math.sqrt(variance)


def test_it_forgets_after_its_window_of_two_minutes():
    """What was requested counts for two minutes, and then it is as if nothing had been."""
    clock = VirtualClock()
    throttle = AdaptiveThrottle(clock=clock)
    attempts(throttle, 50, served=False)
    clock.advance(118.0)
    assert throttle.probability() == 50 / 51
    clock.advance(2.0)
    assert throttle.probability() == 0.0


def test_it_opens_again_when_the_server_is_back():
    """A share always gets through; once that is served, more gets through, and in ten windows everything."""
    clock = VirtualClock()
    throttle = AdaptiveThrottle(clock=clock, rng=random.Random(3))
    attempts(throttle, 300, served=False)
    assert throttle.probability() > 0.99
    for _ in range(1200):
        clock.advance(1.0)
        attempts(throttle, 10, served=True)
    assert throttle.probability() == 0.0
    assert attempts(throttle, 100, served=True) == 100


def test_a_refund_takes_the_request_back():
    """An attempt that was not sent after all leaves the probability as it was; a refund of nothing does nothing."""
    throttle = AdaptiveThrottle(clock=VirtualClock())
    throttle.refund()
    assert throttle.probability() == 0.0
    throttle.enter(retry=False)
    throttle.refund()
    assert throttle.probability() == 0.0


def test_a_draw_below_the_probability_is_refused_and_one_at_it_gets_through():
    """A draw lies in [0, 1), so that just the share that the formula says is refused."""
    for draw, refused in ((math.nextafter(0.5, 0.0), True), (0.5, False)):
        throttle = AdaptiveThrottle(clock=VirtualClock(), rng=Drawn(draw))
        throttle.enter(retry=False)
        assert throttle.probability() == 0.5
        assert (throttle.enter(retry=False) is throttle) is refused


def test_its_defaults_are_those_of_the_book():
    """At least one in two accepted holds nothing back; two minutes are remembered."""
    throttle = AdaptiveThrottle()
    assert (throttle.k, throttle.window) == (2.0, 120.0)


def test_chance_is_drawn_from_the_machine_unless_given():
    """Without an rng it still refuses some and lets some through."""
    throttle = AdaptiveThrottle(k=1.0, clock=VirtualClock())
    for _ in range(10):
        throttle.leave(accepted=True)
    entered = attempts(throttle, 1000, served=False)
    assert 10 <= entered < 1000


def test_virtual_time_has_a_tally_of_its_own():
    """What is refused in virtual time holds nothing back in real time."""
    throttle = AdaptiveThrottle()
    with VirtualClock():
        attempts(throttle, 50, served=False)
        assert throttle.probability() > 0.9
    assert throttle.probability() == 0.0


def test_it_says_what_it_is_and_why_it_refuses():
    """Its text and the reason of a refusal."""
    throttle = AdaptiveThrottle(k=1.5, clock=VirtualClock(), name="mine")
    for _ in range(3):
        throttle.enter(retry=False)
    assert throttle.refusal() == "the server refuses so much that 75% of attempts are not sent"
    assert repr(throttle) == "AdaptiveThrottle(k=1.5, window=120)"
    assert throttle.name == "mine"


@pytest.mark.parametrize("wrong", [{"k": 0.99}, {"k": math.nan}, {"window": 0}, {"window": -1}, {"window": math.inf}])
def test_numbers_out_of_range_are_refused_by_name(wrong):
    """A k below one would hold back from a server that accepts everything."""
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be a number at least"):
        AdaptiveThrottle(**wrong)


def test_no_count_is_lost_between_threads(together):
    """Eight threads of attempts that are all served: as many requests as accepts."""
    throttle = AdaptiveThrottle(k=1.0, clock=lambda: 5.0)

    def work(place):
        for _ in range(100):
            throttle.enter(retry=False)
            throttle.leave(accepted=True)

    together(work)
    state = throttle._states.main
    assert state.requests.total == state.accepts.total == 800


def test_a_child_is_free_of_a_lock_that_was_held(in_child):
    """A fork while the lock is taken: the child goes on counting."""
    throttle = AdaptiveThrottle(clock=VirtualClock())
    throttle.enter(retry=False)

    def child():
        throttle.enter(retry=False)
        return throttle.probability()

    with held_elsewhere(throttle._states.main.section):
        assert in_child(child) == 2 / 3
    assert throttle.probability() == 1 / 2


def test_what_a_child_does_first_mends_a_tally():
    """A new lock, and the totals counted anew."""
    throttle = AdaptiveThrottle(clock=VirtualClock())
    throttle.enter(retry=False)
    state = throttle._states.main
    with held_elsewhere(state.section):
        state.requests.total = state.accepts.total = 77
        forks._in_child()
        assert throttle.probability() == 1 / 2
