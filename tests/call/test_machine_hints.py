"""Hints: never back earlier than asked, spread out when coming back, and no waiting for what is too long."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate import Backoff, Budget, Policy, Ruling, Shelter
from abate.call import Call, Stop, Wait
from abate.events import Retry
from abate.schedule.hints import ROOM, SPREAD
from abate.testing import VirtualClock

ERROR = ConnectionError("busy")


def answer(hint, backoff, *, deadline=None, **settings):
    """What a call answers at 100.0 to a failure with this hint."""
    policy = Policy(on=lambda error: Ruling.blip(hint=hint), backoff=backoff, **settings)
    return Call(policy, deadline).failed(ERROR, 100.0)


@pytest.mark.parametrize(
    ("hint", "backoff", "until"),
    [
        (10.0, Backoff(1.0, 30.0), 110.0 + 3.35),  # half of 0.67 of the hint
        (10.0, Backoff(1.0, 5.0), 110.0 + 2.5),  # half of the cap, which is less than that
        (10.0, Backoff(20.0, 30.0), 110.0 + 10.0),  # half of the own ceiling, which is more than that
        (10.0, Backoff(1.0, 30.0, jitter="equal"), 110.0 + 5.025),  # between half and all of the spread
        (0.5, Backoff(1.0, 30.0), 100.5 + 0.5),
        (0.0, Backoff(1.0, 30.0), 100.5),
        (10.0, Backoff(0.0, 30.0), 110.0),  # no jitter of its own, none on top
    ],
)
def test_the_own_jitter_comes_on_top_of_the_hint(fixed, hint, backoff, until):
    """Hinted clients come back over two thirds of the hint (up to the cap), or they come as a second herd."""
    assert answer(hint, backoff, rng=fixed(0.5)).until == pytest.approx(until)


@pytest.mark.parametrize("backoff", [Backoff(1.0, jitter="none"), [1.0], lambda retry: 1.0])
def test_delays_without_chance_are_not_scaled(fixed, backoff):
    """Without jitter there is nothing to spread: the own delay comes on top as it is."""
    assert answer(10.0, backoff, rng=fixed(0.5)) == Wait(111.0)


def test_a_function_of_delays_is_asked_for_this_retry_only():
    """A backoff that would overflow for some far retry is no trouble to a hinted one."""
    asked = []

    def doubling(retry):
        asked.append(retry)
        return 0.5 * 2**retry

    assert answer(10.0, doubling) == Wait(111.0)
    assert asked == [1]


def test_an_overloads_spread_starts_from_the_overloads_backoff(fixed):
    """The wider base after an overload holds for hinted failures too."""
    policy = Policy(on=lambda error: Ruling.overload(hint=0.1), backoff=Backoff(0.1), rng=fixed(0.5))
    assert Call(policy).failed(ERROR, 100.0).until == pytest.approx(100.1 + 0.5)


def test_decorrelated_delays_from_an_overload_do_not_widen_the_spread_of_a_blip(fixed):
    """A blip with a hint after an overload stays within its spread, however long the delay before was."""
    rulings = [Ruling.overload(), Ruling.blip(hint=100.0)]
    policy = Policy(on=lambda error: rulings.pop(0), backoff=Backoff(0.2, 30.0, jitter="decorrelated"), rng=fixed(1.0))
    call = Call(policy)
    assert call.failed(ERROR, 0.0) == Wait(3.0)
    assert call.failed(ERROR, 3.0).until == pytest.approx(3.0 + 100.0 + 30.0)


@pytest.mark.parametrize(
    ("hint", "max_hint", "stops"),
    [(300.0, 300.0, False), (300.1, 300.0, True), (math.inf, 1e9, True), (0.1, 0.0, True), (0.0, 0.0, False)],
)
def test_a_hint_longer_than_max_hint_stops_the_call(hint, max_hint, stops):
    """A server that asks for too long is not waited for, and never asked again early."""
    assert (answer(hint, [0.0], max_hint=max_hint) == Stop("hint")) is stops


@pytest.mark.parametrize(("hint", "stops"), [(4.9, False), (5.0, True), (5.1, True), (math.inf, True)])
def test_a_hint_that_reaches_the_deadline_stops_the_call(hint, stops):
    """A hint that ends at the deadline or after it leaves no time for the attempt."""
    assert (answer(hint, [0.0], deadline=105.0) == Stop("hint")) is stops


@pytest.mark.parametrize(
    ("hint", "backoff", "deadline", "drawn", "until"),
    [
        (20.0, Backoff(1.0), 130.0, 0.5, 120.0 + 0.5 * 8.0),  # 0.8 of the ten seconds behind the hint, and not of 13.4
        (20.0, Backoff(1.0), 130.0, 0.0, 120.0),
        (20.0, Backoff(1.0, jitter="equal"), 130.0, 0.0, 124.0),
        (20.0, Backoff(1.0), 200.0, 0.5, 126.7),  # the whole spread fits
        (4.0, [3.0], 105.0, 0.5, 104.8),  # a delay without jitter is cut
        (4.0, [0.5], 105.0, 0.5, 104.5),
        (4.0, Backoff(5.0), 105.0, 0.99, 104.0 + 0.99 * 0.8),  # so is an own delay that is longer than the spread
    ],
)
def test_a_hint_before_the_deadline_is_kept_if_its_spread_does_not_fit(fixed, hint, backoff, deadline, drawn, until):
    """The retry is spread over what is left behind the hint, and a fifth of that is for the attempt."""
    assert answer(hint, backoff, deadline=deadline, rng=fixed(drawn)).until == pytest.approx(until)


def test_no_call_with_a_hint_before_its_deadline_gives_up():
    """Three hundred calls are asked to come back after 20 of 30 seconds: all make a second attempt, spread out."""
    policy = Policy(on=lambda error: Ruling.overload(hint=20.0), timeout=30.0, budget=Budget.unlimited())
    with VirtualClock() as clock:
        actions = [Call(policy, clock.now() + 30.0).failed(ERROR, clock.now()) for _ in range(300)]
    waits = [action.until for action in actions if isinstance(action, Wait)]
    assert len(waits) == 300
    assert 20.0 <= min(waits) < 21.0
    assert 27.0 < max(waits) <= 28.0


def test_a_shelter_is_told_the_delay_within_the_deadline(fixed):
    """It closes until the hinted retry, not until after the call's deadline."""
    with VirtualClock():
        shelter = Shelter(name="shop")
        policy = Policy(on=lambda error: Ruling.overload(hint=2.0), timeout=3.0, shelter=shelter, rng=fixed(0.5))
        call = Call(policy, 3.0)
        call.begin()
        assert call.failed(ERROR, 0.0) == Wait(2.4)
        assert shelter.dispatcher().limiter.paused_until() == pytest.approx(2.4)


@pytest.mark.parametrize("hint", [0.0, 0.005])
def test_a_hint_of_an_attempt_that_the_deadline_cut_short_is_kept(fixed, hint):
    """Such an attempt tells the shelter nothing, but the call may still have time for a retry."""
    with VirtualClock():
        rule = lambda error: Ruling.overload(hint=hint)  # noqa: E731
        settings = {"timeout": 100.0, "attempt_timeout": 5.0, "backoff": Backoff(8.0), "rng": fixed(0.5)}
        call = Call(Policy(on=rule, shelter=Shelter(), **settings), 100.0)
        call.begin()
        call.allowance(98.0)
        assert call.failed(ERROR, 99.99).until == pytest.approx(99.99 + hint + 0.5 * 0.8 * (0.01 - hint))


def test_the_event_of_a_hinted_retry_tells_both_delay_and_hint(abate_events):
    """A sink can distinguish the wait that the server asked for from the policy's own."""
    answer(10.0, [1.0], name="orders")
    assert abate_events.of(Retry) == [Retry("orders", 1, 11.0, "blip", 10.0, ERROR)]


@given(
    hint=st.floats(0.0, 300.0),
    base=st.floats(0.0, 10.0),
    above=st.floats(0.0, 50.0),
    jitter=st.sampled_from(["full", "equal", "decorrelated", "none"]),
    drawn=st.floats(0.0, 1.0, exclude_max=True),
)
def test_a_hinted_return_lies_between_the_hint_and_its_spread(fixed, hint, base, above, jitter, drawn):
    """Whatever chance draws: not before the hint, and not later than its spread or the own ceiling."""
    backoff = Backoff(base, base + above, jitter=jitter)
    waited = answer(hint, backoff, rng=fixed(drawn)).until - 100.0
    widest = max(backoff.ceiling(1), min(SPREAD * hint, base + above))
    assert hint - 1e-9 <= waited <= hint + widest + 1e-9


@given(
    hint=st.floats(0.0, 300.0),
    left=st.floats(0.001, 400.0),
    base=st.floats(0.0, 10.0),
    above=st.floats(0.0, 50.0),
    jitter=st.sampled_from(["full", "equal", "decorrelated", "none"]),
    drawn=st.floats(0.0, 1.0, exclude_max=True),
)
def test_a_hint_that_fits_gives_a_retry_that_fits(fixed, hint, left, base, above, jitter, drawn):
    """Whatever chance draws: never before the hint, and never in the last part of the time, which the attempt needs."""
    backoff = Backoff(base, base + above, jitter=jitter)
    action = answer(hint, backoff, deadline=100.0 + left, rng=fixed(drawn))
    if hint >= left - 1e-6:
        assert isinstance(action, Stop) or action.until >= 100.0 + hint - 1e-9
        return
    without_deadline = answer(hint, backoff, rng=fixed(drawn)).until
    assert 100.0 + hint - 1e-9 <= action.until <= without_deadline + 1e-9
    assert action.until <= 100.0 + hint + (left - hint) * (1.0 - ROOM) + 1e-9
