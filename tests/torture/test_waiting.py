"""What peers get wrong about when to come back: jitter at the cap, deadlines, hints."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.testing import Script, VirtualClock, after


@pytest.mark.parametrize("jitter", ["full", "equal", "decorrelated"])
def test_a_fleet_at_the_cap_is_still_spread(jitter):
    """A thousand clients that have all reached the cap come back at a thousand instants over half the cap or more."""
    backoff = abate.Backoff(base=0.1, cap=10.0, jitter=jitter)
    rng = random.Random(7)
    delays = [backoff.delay(50, rng, previous=10.0) for _ in range(1000)]
    assert len(set(delays)) == 1000
    assert max(delays) <= 10.0
    tenths = [sum(1 for delay in delays if low <= delay < low + 0.5) for low in (5.0, 6.0, 7.0, 8.0, 9.0, 9.5)]
    assert min(tenths) >= 20


@given(
    timeout=st.floats(0.01, 30.0),
    base=st.floats(0.01, 20.0),
    latency=st.floats(0.0, 5.0),
    seed=st.integers(0, 10_000),
)
def test_the_timeout_is_never_exceeded_by_a_sleep(timeout, base, latency, seed):
    """Whatever the backoff, a call's waits end before its timeout: only an attempt itself can run past it."""
    with VirtualClock() as clock:
        policy = abate.Policy(
            on=OSError,
            max_attempts=50,
            timeout=timeout,
            backoff=abate.Backoff(base=base, cap=40.0),
            budget=abate.Budget.unlimited(),
            rng=random.Random(seed),
        )
        began = []

        def slow():
            began.append(clock.now())
            clock.advance(latency)
            raise OSError

        with pytest.raises(OSError):
            policy.call(slow)
        assert began[-1] < timeout
        assert clock.now() <= began[-1] + latency


def test_an_hour_of_retry_after_under_a_second_of_timeout_stops_at_once():
    """A hint longer than the deadline is surfaced, not waited for and not cut short."""
    policy = abate.Policy(on=abate.on_error(lambda error: 3600.0), timeout=1.0)
    script = Script(OSError("busy"))
    with VirtualClock() as clock, pytest.raises(OSError, match="busy") as caught:
        policy.call(script)
    assert clock.waits == []
    assert abate.report(caught.value).reason == "hint"
    assert len(script.calls) == 1


@given(hint=st.floats(0.001, 300.0), seed=st.integers(0, 10_000))
def test_no_retry_comes_before_the_hint(hint, seed):
    """A hinted retry waits for all of the hint, and for its own jitter beside."""
    policy = abate.Policy(on=abate.on_error(lambda error: hint), max_attempts=2, rng=random.Random(seed))
    with VirtualClock() as clock:
        policy.call(Script(OSError(), "fine"))
    assert hint <= clock.waits[0] <= hint + 30.0


def test_hinted_clients_do_not_come_back_as_a_second_herd():
    """Three hundred clients told to wait 2 s come back spread over more than a second, at most 20 per 50 ms."""
    returns = []
    for seed in range(300):
        policy = abate.Policy(on=abate.on_error(lambda error: 2.0), max_attempts=2, rng=random.Random(seed))
        with VirtualClock() as clock:
            policy.call(Script(OSError(), "fine"))
        returns.append(clock.now())
    bins = [int(instant / 0.05) for instant in returns]
    assert min(returns) >= 2.0
    assert max(bins.count(bin) for bin in set(bins)) <= 20
    assert max(returns) - min(returns) > 1.0


def test_a_deadline_around_the_call_holds_as_the_policys_own_timeout_does():
    """abate.deadline bounds the waits of every policy inside it, and the nearest deadline wins."""
    policy = abate.Policy(on=OSError, max_attempts=10, timeout=60.0, backoff=[1.0])
    with VirtualClock() as clock, abate.deadline(2.5), pytest.raises(OSError) as caught:
        policy.call(Script(*[OSError()] * 10))
    assert clock.waits == [1.0, 1.0]
    assert abate.report(caught.value).reason == "deadline"


def test_a_slow_attempt_uses_up_the_deadline():
    """An attempt that ends after the deadline is the last one, even with attempts and budget left."""
    policy = abate.Policy(on=OSError, max_attempts=10, timeout=1.0, backoff=[0.0])
    script = Script(after(1.5, OSError()), "never asked for")
    with VirtualClock(), pytest.raises(OSError) as caught:
        policy.call(script)
    assert abate.report(caught.value).reason == "deadline"
    assert len(script.calls) == 1


def test_an_overloaded_server_is_given_more_time_than_a_blip():
    """After a timeout the backoff starts from a second, after a reset from its base."""
    plain = abate.Backoff(base=0.1, cap=5.0, jitter="none")
    with VirtualClock() as clock:
        abate.Policy(on=OSError, backoff=plain).call(Script(ConnectionResetError(), TimeoutError(), "fine"))
    assert clock.waits == [0.1, 2.0]
