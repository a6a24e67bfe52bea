"""The array forms of the rules against the rules themselves, on the same uniforms."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate import Backoff, Budget
from abate.schedule.backoff import JITTERS, ListSchedule
from abate.schedule.hints import delay_after_hint
from abate.sim.fleet.vector_rules import VectorBackoff, VectorBudget, VectorRate, duration_sampler, stream
from abate.sim.model import SHAPES, SPREAD, Duration
from abate.sim.varying_rate import VaryingRate
from abate.testing import VirtualClock

uniforms = st.floats(0.0, 1.0, exclude_max=True)
seconds = st.floats(0.0, 100.0)


class Drawn:
    """Chance that was drawn before."""

    def __init__(self, uniform: float) -> None:
        self.uniform = uniform

    def random(self) -> float:
        return self.uniform


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    base = draw(st.floats(0.0, 10.0))
    return Backoff(
        base=base,
        cap=base + draw(seconds),
        factor=draw(st.sampled_from([1.0, 1.5, 2.0, 10.0])),
        jitter=draw(st.sampled_from(JITTERS)),  # type: ignore[arg-type]
    )


plans = backoffs() | st.lists(seconds, min_size=1, max_size=5).map(lambda delays: ListSchedule(tuple(delays)))
calls = st.lists(st.tuples(st.integers(1, 40), uniforms, st.none() | seconds), max_size=20)


@given(plan=plans, asked=calls, overload=st.booleans())
def test_delays_are_those_of_the_schedule(plan, asked, overload):
    """All jitters, the cap, what was waited before, and the wider base of an overload."""
    plan = plan.at_least(1.0) if overload else plan
    expected = [plan.delay(retry, Drawn(uniform), previous) for retry, uniform, previous in asked]
    previous = np.array([math.nan if before is None else before for _, _, before in asked])
    retries = np.array([retry for retry, _, _ in asked], np.int32)
    found = VectorBackoff(plan, 40).delay(retries, np.array([uniform for _, uniform, _ in asked]), previous)
    assert found.tolist() == expected
    assert VectorBackoff(plan, 40).ceiling(retries).tolist() == [plan.ceiling(retry) for retry, _, _ in asked]


@given(plan=plans, asked=calls, hint=st.floats(0.0, 300.0), beyond=st.none() | st.floats(-10.0, 20.0))
def test_hints_are_kept_and_spread_as_by_the_rule(plan, asked, hint, beyond):
    """Never earlier than asked, with the retry's own delay on top, as long as that fits before the deadline."""
    left = None if beyond is None else max(0.0, hint + beyond)
    own = [plan.delay(retry, Drawn(uniform), previous) for retry, uniform, previous in asked]
    retries = [retry for retry, _, _ in asked]
    expected = [delay_after_hint(hint, plan, *each, left) for each in zip(retries, own, strict=True)]
    found = VectorBackoff(plan, 40).delay_after_hint(
        hint, np.array(retries, np.intp), np.array(own), np.inf if left is None else np.full(len(own), left)
    )
    assert found.tolist() == expected


def test_the_first_delay_needs_no_previous_one():
    """Decorrelated jitter begins at its base."""
    plan = Backoff(1.0, 30.0, jitter="decorrelated")
    assert VectorBackoff(plan, 3).delay(np.array([1]), np.array([0.5])).tolist() == [plan.delay(1, Drawn(0.5))]


@given(
    ratio=st.floats(0.0, 1.0),
    reserve=st.sampled_from([0.0, 0.1, 1.0, 7.5, math.inf]),
    window=st.sampled_from([0.5, 1.0, 10.0]),
    funded_by=st.sampled_from(["success", "request"]),
    batches=st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 50), st.integers(0, 50)), max_size=30),
)
def test_a_purse_pays_for_as_many_as_the_budget_would(ratio, reserve, window, funded_by, batches):
    """Batch by batch, whatever was paid in and drawn before, and however much of it has left the window."""
    clock = VirtualClock()
    budget = Budget(ratio, reserve, window, funded_by, clock=clock)
    purse = VectorBudget(budget)
    for pause, deposits, wanted in batches:
        clock.advance(pause)
        for _ in range(deposits):
            budget.deposit()
        purse.deposit(deposits, clock.now())
        paid = sum(budget.try_withdraw() for _ in range(wanted))
        assert purse.withdraw(wanted, clock.now()) == paid


@pytest.mark.parametrize(("funded_by", "pays"), [("success", (True, False)), ("request", (False, True))])
def test_a_vector_budget_is_funded_as_its_policy_says(funded_by, pays):
    """Without deposits nothing is counted."""
    purse, idle = VectorBudget(Budget(0.1, funded_by=funded_by)), VectorBudget(Budget(0.0, funded_by=funded_by))
    assert (purse.by_success, purse.by_request) == pays
    assert (idle.by_success, idle.by_request) == (False, False)


spans = st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(0.1, 20.0), st.sampled_from([0.0, 0.5, 2.0])), max_size=3)
instants = st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 50.0)), max_size=10)


@given(usual=st.sampled_from([0.5, 1.0, 300.0]), spans=spans, asked=instants)
def test_a_flow_is_done_when_the_pace_is(usual, spans, asked):
    """By the same instants, where the rate changes and where it is 0 for a while."""
    pace = VaryingRate(usual, [(start, start + length, factor) for start, length, factor in spans])
    found = VectorRate.of(pace).after(np.array([now for now, _ in asked]), np.array([amount for _, amount in asked]))
    assert found.tolist() == [pace.after(now, amount) for now, amount in asked]


@given(usual=st.sampled_from([0.5, 1.0, 300.0]), spans=spans, asked=instants)
def test_what_is_done_by_then_tells_when_it_is_done(usual, spans, asked):
    """`done` and `when` are each other's inverse, and `done` grows as the pace says."""
    pace = VaryingRate(usual, [(start, start + length, factor) for start, length, factor in spans])
    flow, now = VectorRate.of(pace), np.array([now for now, _ in asked])
    done = flow.done(now)
    assert flow.done(flow.when(done)) == pytest.approx(done, abs=1e-6)
    assert (flow.when(done) >= now - 1e-6).all()
    later = np.array([pace.after(now, amount) for now, amount in asked])
    assert flow.done(later) - done == pytest.approx([amount for _, amount in asked], abs=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_durations_have_the_mean_and_the_spread_of_their_shape(shape):
    """Ten thousand of the arrays' beside ten thousand of the exact engine's, within four standard errors."""
    duration = Duration(0.1, shape, 0.03 if shape in SPREAD else 0.0)
    arrays, draw = duration_sampler(duration, stream(1, shape))(10_000), duration.sampler(Random(1))
    single = np.array([draw() for _ in range(10_000)])
    assert arrays.min() >= 0.0
    assert abs(arrays.mean() - single.mean()) <= 4 * math.sqrt((arrays.var() + single.var()) / 10_000)
    assert np.median(arrays) == pytest.approx(np.median(single), rel=0.05)
