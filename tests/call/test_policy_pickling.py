"""Copies and pickles: within a process a policy and its gates are shared, in another one they are made anew."""

import copy
import pickle
import random
import subprocess
import sys

import pytest

import abate
from abate import AdaptiveThrottle, Budget, CircuitBreaker, ConcurrencyLimit, Policy, Shelter, Timeouts, TokenBucket
from abate.frozen import Shared
from abate.testing import VirtualClock

THINGS = {
    "policy": lambda: Policy(on=ConnectionError, name="orders", max_attempts=7, timeout=3.0, backoff=[0.1, 0.2]),
    "budget": lambda: Budget(ratio=0.3, reserve=2.0, window=5.0, funded_by="request", name="own"),
    "unlimited": Budget.unlimited,
    "bucket": lambda: TokenBucket(rate=3.0, burst=4, name="own"),
    "permits": lambda: ConcurrencyLimit(4, name="own"),
    "throttle": lambda: AdaptiveThrottle(k=1.5, window=30.0, name="own"),
    "breaker": lambda: CircuitBreaker(0.3, 7, window=9.0, pause=3.0, name="own"),
    "shelter": lambda: Shelter(capacity=7, patience=3.0, name="own"),
    "timeouts": lambda: Timeouts(false_rate=0.01, floor=0.1, ceiling=9.0, name="own", half_life=60.0),
}
every_thing = pytest.mark.parametrize("make", THINGS.values(), ids=THINGS)


def pickled(thing, protocol=pickle.HIGHEST_PROTOCOL):
    return pickle.loads(pickle.dumps(thing, protocol))


@every_thing
@pytest.mark.parametrize("protocol", range(pickle.DEFAULT_PROTOCOL, pickle.HIGHEST_PROTOCOL + 1))
def test_settings_are_pickled(make, protocol):
    """What is made from the pickle has the same settings, and counts for itself."""
    thing = make()
    other = pickled(thing, protocol)
    assert other is not thing
    assert repr(other) == repr(thing)
    assert other.name == thing.name


@every_thing
def test_a_copy_is_the_thing_itself(make):
    """A copy would be a second budget, and a second bucket: twice as much as was allowed."""
    thing = make()
    assert copy.copy(thing) is copy.deepcopy([thing])[0] is thing


def test_what_policies_share_they_share_in_the_pickle():
    """One budget for two is one budget for two there, with nothing counted yet."""
    budget = Budget(ratio=0.0, reserve=0.1, window=10.0)
    gate = ConcurrencyLimit(2) & TokenBucket(rate=5.0)
    first = Policy(on=OSError, budget=budget, gate=gate, shelter=Shelter())
    assert budget.try_withdraw()
    one, other = pickled((first, first.replace(name="other")))
    assert one.budget is other.budget is not budget
    assert one.shelter is other.shelter is not first.shelter
    assert one.gate.gates[0] is other.gate.gates[0]
    assert one.budget.try_withdraw()
    assert not other.budget.try_withdraw()


def test_a_pickled_policy_works_elsewhere():
    """In a process that was not forked."""
    policy = Policy(on=ConnectionError, name="orders", backoff=[0.0], gate=ConcurrencyLimit(1), rng=random.Random(3))
    code = (
        "import abate, pickle, sys; policy = pickle.load(sys.stdin.buffer);"
        "print(policy.name, policy.call(abate.testing.Script(ConnectionError(), 'fine')))"
    )
    parcel = pickle.dumps(policy)
    done = subprocess.run([sys.executable, "-c", code], input=parcel, capture_output=True, check=True)
    assert done.stdout.split() == [b"orders", b"fine"]


@pytest.mark.parametrize(
    "make",
    [
        lambda clock: Policy(on=OSError, clock=clock),
        lambda clock: Budget(clock=clock),
        lambda clock: TokenBucket(rate=1.0, clock=clock),
        lambda clock: AdaptiveThrottle(clock=clock),
        lambda clock: CircuitBreaker(clock=clock),
        lambda clock: Shelter(clock=clock),
        lambda clock: Timeouts(clock=clock),
    ],
)
def test_what_has_a_clock_of_its_own_is_not_pickled(make):
    """With words that say why."""
    with pytest.raises(TypeError, match="cannot be pickled: it has a clock of its own"):
        pickle.dumps(make(VirtualClock()))


@pytest.mark.parametrize("kind", ["budget", "bucket", "shelter"])
def test_what_belongs_to_a_store_is_not_pickled(kind):
    """Each process opens the store for itself; a policy with such a budget says so too."""
    with abate.open_store("memory:") as store:
        thing = getattr(store, kind)("orders", **({"rate": 5.0} if kind == "bucket" else {}))
        for one in (thing, Policy(on=OSError, **{"gate" if kind == "bucket" else kind: thing})):
            with pytest.raises(TypeError, match="belongs to a store, which is opened in each process"):
                pickle.dumps(one)
        assert copy.deepcopy(thing) is thing


def test_a_kind_that_does_not_say_how_it_is_made_is_not_pickled():
    """It is named, and so is the reason."""

    class Own(Shared):
        def __repr__(self):
            return "Own()"

    with pytest.raises(TypeError, match=r"Own\(\) cannot be pickled"):
        pickle.dumps(Own())
