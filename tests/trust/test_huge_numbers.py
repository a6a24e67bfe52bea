"""Huge numbers in settings: each is taken and works, or is refused with an error that names the setting."""

import asyncio
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.testing import VirtualClock

huge = (
    st.floats(1e15, sys.float_info.max)
    | st.sampled_from([1e300, 1e308, sys.float_info.max, sys.float_info.min, 5e-324])
    | st.integers(10**15, 10**400)
)


def ask(gate):
    """One attempt that ends well, and one that does not."""
    for accepted in (True, False):
        if gate.enter(False) is None:
            gate.leave(accepted)


def spend(budget):
    budget.deposit()
    budget.try_withdraw()
    budget.refund()
    budget.balance()
    budget.share()


def take(bucket):
    bucket.try_acquire()
    bucket.try_acquire()


def draw(backoff):
    for retry in (1, 2, 10, 10_000):
        assert 0 <= backoff.delay(retry, random.Random(1)) <= backoff.ceiling(retry)


def make(policy):
    calls = iter([OSError(), 1])

    def send():
        got = next(calls)
        if isinstance(got, Exception):
            raise got
        return got

    assert policy.call(send) == 1


def learn(timeouts):
    timeouts.observe(1.0)
    timeouts.request()
    timeouts.connect()
    timeouts.timed_out(1.0)


def policy(**settings):
    return abate.Policy(name="huge", on=OSError, **{"backoff": [0.0], **settings})


def sheltered(**settings):
    return policy(shelter=abate.Shelter(**settings))


SETTINGS = {
    "Budget ratio": ("ratio", lambda value: spend(abate.Budget(ratio=value))),
    "Budget reserve": ("reserve", lambda value: spend(abate.Budget(reserve=value))),
    "Budget window": ("window", lambda value: spend(abate.Budget(window=value))),
    "Budget reserve and window": ("reserve", lambda value: spend(abate.Budget(reserve=value, window=1e15))),
    "TokenBucket rate": ("rate", lambda value: take(abate.TokenBucket(rate=value))),
    "TokenBucket burst": ("burst", lambda value: take(abate.TokenBucket(rate=1.0, burst=int(value) or 1))),
    "ConcurrencyLimit limit": ("limit", lambda value: ask(abate.ConcurrencyLimit(int(value) or 1))),
    "AdaptiveThrottle k": ("k", lambda value: ask(abate.AdaptiveThrottle(k=value))),
    "AdaptiveThrottle window": ("window", lambda value: ask(abate.AdaptiveThrottle(window=value))),
    "Backoff base": ("base", lambda value: draw(abate.Backoff(base=value, cap=sys.float_info.max))),
    "Backoff cap": ("cap", lambda value: draw(abate.Backoff(base=0.0, cap=value))),
    "Backoff factor": ("factor", lambda value: draw(abate.Backoff(factor=value))),
    "Backoff jitter": (
        "base",
        lambda value: draw(abate.Backoff(base=value, cap=sys.float_info.max, jitter="decorrelated")),
    ),
    "a list of delays": ("backoff", lambda value: make(policy(backoff=[0.0, value]))),
    "Policy attempts": ("attempts", lambda value: make(policy(max_attempts=int(value) + 2))),
    "Policy timeout": ("timeout", lambda value: make(policy(timeout=max(value, 1.0)))),
    "Policy attempt_timeout": ("attempt_timeout", lambda value: make(policy(attempt_timeout=max(value, 1.0)))),
    "Policy max_hint": ("max_hint", lambda value: make(policy(max_hint=value))),
    "Shelter capacity": ("capacity", lambda value: make(sheltered(capacity=int(value) or 1))),
    "Shelter patience": ("patience", lambda value: make(sheltered(patience=max(value, 1.0)))),
    "Timeouts ceiling": ("ceiling", lambda value: learn(abate.Timeouts(ceiling=max(value, 1.0)))),
    "Timeouts floor": ("floor", lambda value: learn(abate.Timeouts(ceiling=sys.float_info.max, floor=value))),
    "Timeouts half_life": ("half_life", lambda value: learn(abate.Timeouts(half_life=value))),
    "CircuitBreaker pause": ("pause", lambda value: abate.CircuitBreaker(pause=value)),
    "CircuitBreaker window": ("window", lambda value: abate.CircuitBreaker(window=value)),
}


@pytest.mark.parametrize(("name", "use"), SETTINGS.values(), ids=SETTINGS)
@given(value=huge)
def test_a_setting_of_any_size_works_or_is_refused_by_name(name, use, value):
    """No OverflowError, and no other error from inside: it names the setting and what was expected."""
    with VirtualClock(1e9):
        try:
            use(value)
        except ValueError as error:
            assert name in str(error)
            assert " must be " in str(error)


@pytest.mark.parametrize("seconds", [1e15, 1e300, sys.float_info.max])
def test_a_deadline_of_any_length_bounds_nothing(seconds):
    """Calls inside are made, in threads and in tasks."""

    async def answer():
        await asyncio.sleep(0)
        return 1

    with abate.deadline(seconds):
        assert policy().call(lambda: 1) == 1
        assert asyncio.run(policy(timeout=seconds).acall(answer)) == 1


def test_a_file_with_a_huge_number_names_file_table_key_and_value(tmp_path):
    """What is refused in a file is refused with its place."""
    file = tmp_path / "app.toml"
    file.write_text('[orders]\non = "OSError"\nbudget = { reserve = 1e308 }')
    with pytest.raises(ValueError, match=r"app\.toml: \[orders\] budget: reserve must be .*1e\+308"):
        abate.load_policies(file)
