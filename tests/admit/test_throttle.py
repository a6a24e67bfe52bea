"""The adaptive throttle: its formula over the window, its random decisions, and its recovery."""

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
    """Attempts, answers, refunds and time in any order: probability and decisions follow the formula."""

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
    """A random source that always draws the same number."""

    def __init__(self, number):
        self.number = number

    def random(self):
        return self.number


def attempts(throttle, times, served):
    """Make attempts, which the server accepts or not; return how many the throttle admitted."""
    through = 0
    for _ in range(times):
        if throttle.enter(retry=False) is None:
            through += 1
            throttle.leave(accepted=served)
    return through


def test_a_healthy_server_gets_every_attempt():
    """While at least one in k is accepted, the throttle refuses nothing."""
    throttle = AdaptiveThrottle(k=2.0, clock=VirtualClock())
    assert attempts(throttle, 500, served=True) == 500
    for _ in range(500):  # as many refused by the server as accepted: still one in two
        assert throttle.enter(retry=False) is None
        throttle.leave(accepted=False)
    assert throttle.probability() == 0.0


def test_locally_refused_attempts_count_as_requests():
    """Without any answer, each attempt raises the probability, whether it was admitted or not."""
    throttle = AdaptiveThrottle(clock=VirtualClock(), rng=random.Random(1))
    for requested in range(100):
        assert throttle.probability() == requested / (requested + 1)
        throttle.enter(retry=True)


def test_a_server_that_is_down_gets_the_expected_share():
    """The number of refusals matches the sum of the probabilities, within statistical error."""
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


def test_requests_expire_after_two_minutes():
    """After the window the throttle is as new."""
    clock = VirtualClock()
    throttle = AdaptiveThrottle(clock=clock)
    attempts(throttle, 50, served=False)
    clock.advance(118.0)
    assert throttle.probability() == 50 / 51
    clock.advance(2.0)
    assert throttle.probability() == 0.0


def test_the_throttle_recovers_with_the_server():
    """A share is always admitted; once it is accepted, more is admitted, and after ten windows everything."""
    clock = VirtualClock()
    throttle = AdaptiveThrottle(clock=clock, rng=random.Random(3))
    attempts(throttle, 300, served=False)
    assert throttle.probability() > 0.99
    for _ in range(1200):
        clock.advance(1.0)
        attempts(throttle, 10, served=True)
    assert throttle.probability() == 0.0
    assert attempts(throttle, 100, served=True) == 100


def test_a_refund_removes_the_request():
    """The probability is as before the attempt; a refund without a request does nothing."""
    throttle = AdaptiveThrottle(clock=VirtualClock())
    throttle.refund()
    assert throttle.probability() == 0.0
    throttle.enter(retry=False)
    throttle.refund()
    assert throttle.probability() == 0.0


def test_a_draw_below_the_probability_is_refused_and_one_at_it_admitted():
    """Draws lie in [0, 1), so exactly the share of the formula is refused."""
    for draw, refused in ((math.nextafter(0.5, 0.0), True), (0.5, False)):
        throttle = AdaptiveThrottle(clock=VirtualClock(), rng=Drawn(draw))
        throttle.enter(retry=False)
        assert throttle.probability() == 0.5
        assert (throttle.enter(retry=False) is throttle) is refused


def test_the_defaults_are_those_of_the_sre_book():
    """One in two accepted refuses nothing; the window is two minutes."""
    throttle = AdaptiveThrottle()
    assert (throttle.k, throttle.window) == (2.0, 120.0)


def test_without_an_rng_decisions_are_random():
    """Some attempts are refused and some admitted."""
    throttle = AdaptiveThrottle(k=1.0, clock=VirtualClock())
    for _ in range(10):
        throttle.leave(accepted=True)
    entered = attempts(throttle, 1000, served=False)
    assert 10 <= entered < 1000


def test_a_virtual_clock_has_its_own_counts():
    """Refusals in virtual time have no effect in real time."""
    throttle = AdaptiveThrottle()
    with VirtualClock():
        attempts(throttle, 50, served=False)
        assert throttle.probability() > 0.9
    assert throttle.probability() == 0.0


def test_repr_and_refusal_reason():
    """The repr shows the settings; the refusal gives a reason."""
    throttle = AdaptiveThrottle(k=1.5, clock=VirtualClock(), name="mine")
    for _ in range(3):
        throttle.enter(retry=False)
    assert throttle.refusal() == "75% of attempts are not sent, because the server refuses too many"
    assert repr(throttle) == "AdaptiveThrottle(k=1.5, window=120)"
    assert throttle.name == "mine"


@pytest.mark.parametrize("wrong", [{"k": 0.99}, {"k": math.nan}, {"window": 0}, {"window": -1}, {"window": math.inf}])
def test_numbers_out_of_range_are_refused_by_name(wrong):
    """A k below one would refuse attempts to a server that accepts everything."""
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be a number at least"):
        AdaptiveThrottle(**wrong)


def test_no_count_is_lost_between_threads(together):
    """Eight threads whose attempts are all accepted: as many requests as accepts."""
    throttle = AdaptiveThrottle(k=1.0, clock=lambda: 5.0)

    def work(place):
        for _ in range(100):
            throttle.enter(retry=False)
            throttle.leave(accepted=True)

    together(work)
    state = throttle._states.main
    assert state.requests.total == state.accepts.total == 800


def test_a_fork_while_the_lock_is_held_leaves_the_child_usable(in_child):
    """The child continues to count."""
    throttle = AdaptiveThrottle(clock=VirtualClock())
    throttle.enter(retry=False)

    def child():
        throttle.enter(retry=False)
        return throttle.probability()

    with held_elsewhere(throttle._states.main.section):
        assert in_child(child) == 2 / 3
    assert throttle.probability() == 1 / 2


def test_the_fork_hook_repairs_the_counts():
    """The child gets a new lock and recounted totals."""
    throttle = AdaptiveThrottle(clock=VirtualClock())
    throttle.enter(retry=False)
    state = throttle._states.main
    with held_elsewhere(state.section):
        state.requests.total = state.accepts.total = 77
        forks._in_child()
        assert throttle.probability() == 1 / 2
