"""The worst case of a policy, against what its calls really do at worst."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abate import Backoff, Budget, Outcome, Policy, Shelter
from abate.call import Call, WorstCase
from abate.testing import Script, VirtualClock
from tests.call.strategies import backoffs

plans = backoffs() | st.lists(st.floats(0.0, 10.0), min_size=1, max_size=5) | st.just(lambda retry: 0.5 * retry)


def waited(policy, error):
    """The seconds that a call waits which always fails with this error."""
    call = Call(policy)
    for _ in range(policy.max_attempts):
        call.failed(Outcome(error=error), 0.0)
    return call.waited


@given(backoff=plans, max_attempts=st.integers(1, 8))
@settings(deadline=None)
def test_the_added_latency_is_the_longest_wait_there_is(fixed, backoff, max_attempts):
    """With chance at its worst, a call that always fails waits as long as it says, and never longer."""
    worst = Policy(on=OSError, backoff=backoff, max_attempts=max_attempts, budget=Budget.unlimited(), rng=fixed(1.0))
    waits = [waited(worst, error) for error in (ConnectionError(), TimeoutError())]
    assert max(waits) == pytest.approx(worst.describe().added_latency)


@given(backoff=plans, kinds=st.lists(st.sampled_from([ConnectionError, TimeoutError])), drawn=st.floats(0.0, 1.0))
@settings(deadline=None)
def test_no_mixture_of_failures_waits_longer(fixed, backoff, kinds, drawn):
    """Blips and overloads in any order stay within the added latency."""
    policy = Policy(
        on=OSError, backoff=backoff, max_attempts=len(kinds) + 1, budget=Budget.unlimited(), rng=fixed(drawn)
    )
    call = Call(policy)
    for kind in kinds:
        call.failed(kind(), 0.0)
    assert call.waited <= policy.describe().added_latency * (1 + 1e-9)


@given(timeout=st.floats(0.1, 100.0), delays=st.lists(st.floats(0.0, 20.0), min_size=1, max_size=5))
def test_a_timeout_bounds_latency_and_hints(timeout, delays):
    """Nothing waits longer than the call may take."""
    policy = Policy(on=OSError, backoff=delays, max_attempts=6, timeout=timeout)
    with VirtualClock() as clock, pytest.raises(OSError):
        policy.call(Script(*[OSError()] * 6))
    worst = policy.describe()
    assert clock.now() <= worst.added_latency * (1 + 1e-9)
    assert worst.added_latency <= timeout
    assert worst.max_hint == min(300.0, timeout)


@given(
    calls=st.lists(st.booleans(), max_size=60),
    ratio=st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0, 3.0]),
    reserve=st.sampled_from([0.0, 0.1, 1.0]),
    funded_by=st.sampled_from(["success", "request"]),
    max_attempts=st.integers(1, 5),
)
@settings(deadline=None)
def test_the_amplification_is_the_most_that_a_server_sees(calls, ratio, reserve, funded_by, max_attempts):
    """Whatever succeeds and fails in one window, the attempts stay within amplification and reserve."""
    budget = Budget(ratio, reserve, window=10.0, funded_by=funded_by)
    policy = Policy(on=OSError, backoff=[0.0], max_attempts=max_attempts, budget=budget)
    made = 0
    with VirtualClock():
        for good in calls:
            script = Script("fine") if good else Script(*[OSError()] * max_attempts)
            try:
                policy.call(script)
            except OSError:
                pass
            made += len(script.calls)
    worst = policy.describe()
    assert made <= worst.amplification * len(calls) + worst.reserve * 10.0 + 1e-9


def test_the_amplification_is_reached():
    """A server that fails every call of a budget funded by requests sees exactly that much."""
    policy = Policy(on=OSError, backoff=[0.0], budget=Budget(0.2, 1.0, window=10.0, funded_by="request"))
    made = 0
    with VirtualClock():
        for _ in range(1000):
            script = Script(*[OSError()] * 3)
            with pytest.raises(OSError):
                policy.call(script)
            made += len(script.calls)
    worst = policy.describe()
    assert made == worst.amplification * 1000 + worst.reserve * 10.0 == 1210


@pytest.mark.parametrize(
    ("attempts", "budget", "amplification"),
    [
        (3, Budget(0.2), 1.2),
        (3, Budget(5.0), 3.0),
        (1, Budget(0.2), 1.0),
        (4, Budget.unlimited(), 4.0),
        (4, Budget.empty(), 1.0),
    ],
)
def test_attempts_bound_the_amplification_too(attempts, budget, amplification):
    """No call makes more attempts than the policy allows, whatever the budget holds."""
    assert Policy(on=OSError, max_attempts=attempts, budget=budget).describe().amplification == amplification


def test_the_numbers_of_a_plain_policy():
    """All of them at once."""
    policy = Policy(on=OSError, max_attempts=4, backoff=Backoff(0.1, 1.5), budget=Budget(0.1, 5.0), max_hint=60.0)
    assert policy.describe() == WorstCase(
        attempts=4, added_latency=1.0 + 1.5 + 1.5, amplification=1.1, reserve=5.0, max_hint=60.0
    )


def test_the_worst_case_can_be_read():
    """It is told in a sentence; one attempt is not "attempts", and no reserve is told of an unlimited budget."""
    assert str(Policy(on=OSError, max_attempts=1, backoff=[1.25]).describe()) == (
        "at most 1 attempt; at most 0 s of waiting (and up to 300 s per retry where a server asks for it);\n"
        "at most 1 attempts per call on average, plus 10 retries per second"
    )
    unlimited = Policy(on=OSError, backoff=[1.25], budget=Budget.unlimited()).describe()
    assert str(unlimited) == (
        "at most 3 attempts; at most 2.5 s of waiting (and up to 300 s per retry where a server asks for it);\n"
        "at most 3 attempts per call on average"
    )
    assert unlimited.reserve == math.inf


def test_a_shelter_adds_its_patience_and_bounds_the_rest():
    """Each attempt may wait for its turn; retries that a budget would refuse pass while every other one is answered."""
    plain = Policy(on=OSError, max_attempts=3, backoff=[1.0])
    sheltered = plain.replace(shelter=Shelter(patience=7.0))
    assert sheltered.describe().added_latency == plain.describe().added_latency + 3 * 7.0
    assert sheltered.describe().amplification == 2.0
    assert sheltered.replace(timeout=5.0).describe().added_latency == 5.0
    assert sheltered.replace(budget=Budget(ratio=3.0)).describe().amplification == 3.0
