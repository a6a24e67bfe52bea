"""Keys: one policy for many hosts or tenants, each with a budget, gate and shelter of its own, and bounded."""

import asyncio
import gc
import os
import pickle
import sys
import threading
from contextlib import suppress
from weakref import ref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import AdaptiveThrottle, Budget, CircuitBreaker, ConcurrencyLimit, Policy, Shelter, TokenBucket, registry
from abate.call.keyed import IDLE_SECONDS, MAX_COPIES, MAX_KEYS, SPARE_DIVISOR, KeyState, _forget
from abate.testing import Script, VirtualClock
from tests.reentry import at_every_bytecode


def make(**settings):
    given = {"on": ConnectionError, "name": "hooks", "backoff": [0.0]}
    return Policy(**{**given, **settings})


def kept(policy):
    """The keys that are kept."""
    return {path[0] for path in policy._keys._entries}


# -- apart


def test_a_key_has_what_the_policy_has_begun_anew():
    """Budget, gate and shelter, with the same settings; everything else is the same."""
    gate = AdaptiveThrottle(k=3.0) & CircuitBreaker(0.3, 7, 9.0, 3.0) & ConcurrencyLimit(4) & TokenBucket(5.0, burst=6)
    policy = make(
        gate=gate, budget=Budget(0.5, 2.0, 7.0, "request"), shelter=Shelter(30, 4.0, name="api"), max_attempts=7
    )
    one, other = policy.keyed("one"), policy.keyed("other")
    assert one is policy.keyed("one") is not other
    for name in ("budget", "gate", "shelter"):
        mine, others, theirs = (getattr(each, name) for each in (one, other, policy))
        assert len({id(mine), id(others), id(theirs)}) == 3
        if name != "gate":
            assert repr(mine) == repr(theirs)
    assert [repr(part) for part in one.gate.gates] == [repr(part) for part in policy.gate.gates]
    assert (one.max_attempts, one.name, one.rules, one.counter) == (7, "hooks", policy.rules, policy.counter)


def test_what_has_a_clock_keeps_it(fixed):
    """The state of a key follows the same time."""
    with VirtualClock() as own:
        pass
    policy = make(
        clock=own,
        gate=AdaptiveThrottle(clock=own) & TokenBucket(1.0, clock=own) & CircuitBreaker(clock=own),
        shelter=Shelter(clock=own, rng=fixed(0.5)),
    )
    key = policy.keyed("a")
    assert key.clock is own
    throttle, bucket, breaker = key.gate.gates
    for states in (key.budget.states, key.shelter._dispatchers, throttle._states, bucket._states, breaker._circuits):
        assert states.clock is own
    assert key.shelter.rng is policy.shelter.rng


def test_what_is_not_abates_own_is_one_for_all_keys():
    """A gate of the user's own, or a subclass of abate's: abate can't know how to make another one."""

    class Own(abate.Gate):
        name = "own"

        def enter(self, retry):
            return None

    class Counting(Budget): ...

    class Bound(ConcurrencyLimit): ...

    class Slow(TokenBucket): ...

    class Dice(AdaptiveThrottle): ...

    class Wary(CircuitBreaker): ...

    for gate in (Own(), Bound(1), Slow(1.0), Dice(), Wary()):
        assert make(gate=gate).keyed("a").gate is gate
    budget = Counting()
    assert make(budget=budget).keyed("a").budget is budget


def test_what_a_store_shares_stays_shared_but_for_the_shelter():
    """A budget and a bucket bound what a fleet does together; a key's shelter is this process's own."""
    with abate.open_store("memory:") as store:
        policy = make(
            budget=store.budget("b"), gate=store.bucket("c", rate=5.0), shelter=store.shelter("d", capacity=7)
        )
        key = policy.keyed("a")
        assert (key.budget, key.gate) == (policy.budget, policy.gate)
        assert type(key.shelter) is Shelter
        assert (key.shelter.capacity, key.shelter.name) == (7, "d")


def test_the_trouble_of_one_key_is_not_that_of_another():
    """A key whose calls all fail has an empty budget and a closed shelter; the other one has neither."""
    with VirtualClock():
        policy = make(shelter=Shelter(), budget=Budget(reserve=0.5, window=10.0), max_attempts=2)
        for _ in range(20):
            with pytest.raises((ConnectionError, abate.Refused)), abate.deadline(0.5):
                policy.keyed("down").call(Script(*[ConnectionError()] * 2))
        assert policy.keyed("down").shelter.state == "probing"
        assert policy.keyed("up").call(Script(ConnectionError(), "fine")) == "fine"
        assert (policy.shelter.state, policy.keyed("up").shelter.waiters) == ("calm", 0)


def test_a_keyed_policy_is_used_like_any_other(way):
    """As a decorator, for calls and for blocks, in threads and under both event loops."""
    key = make().keyed("a")
    way(key, Script(ConnectionError(), "fine"))
    assert key.budget.balance() < make().budget.balance()


def test_policies_made_from_one_another_share_their_keys():
    """As long as they share what a key has for itself."""
    read = make(shelter=Shelter())
    write = read.replace(max_attempts=1)
    assert read.keyed("a").shelter is write.keyed("a").shelter
    assert read.keyed("a") is not write.keyed("a")
    assert (read.keyed("a").max_attempts, write.keyed("a").max_attempts) == (3, 1)
    assert read.also(KeyError).keyed("a").budget is read.keyed("a").budget
    assert read.keyed("a").replace(max_attempts=9).shelter is read.keyed("a").shelter
    for other in ({"shelter": Shelter()}, {"budget": Budget()}, {"gate": ConcurrencyLimit(1)}, {"keys": 3}):
        assert read.replace(**other).keyed("a").budget is not read.keyed("a").budget


def test_keys_of_keys():
    """A tenant's hosts: apart from the tenant, and found by the same path."""
    policy = make()
    host = policy.keyed("tenant").keyed("host")
    assert host is policy.keyed("tenant").keyed("host")
    budgets = {id(each.budget) for each in (host, policy.keyed("tenant"), policy.keyed("host"), policy)}
    assert len(budgets) == 4


def test_a_keyed_policy_is_pickled_by_its_settings():
    """As any other; elsewhere it begins anew."""
    key = make(shelter=Shelter(name="api")).keyed("a")
    other = pickle.loads(pickle.dumps(key))
    assert (other.name, other.shelter.name, other.keys) == ("hooks", "api", MAX_KEYS)


def test_keys_are_not_listed_with_the_policies():
    """What is shown of policies does not grow with the keys, and their calls are counted under one name."""
    policy = make(keys=5000)
    before = len(registry.policies.alive())
    keys = [policy.keyed(number) for number in range(2000)]
    assert len(registry.policies.alive()) <= before
    assert {id(key.counter) for key in keys} == {id(policy.counter)}


@pytest.mark.parametrize("keys", [0, -1, True, 2.0, "many"])
def test_a_bad_number_of_keys_is_refused(keys):
    """At construction, by name."""
    with pytest.raises((TypeError, ValueError), match="keys must be a whole number of at least 1"):
        make(keys=keys)


def test_a_key_must_be_hashable():
    """It is looked up."""
    with pytest.raises(TypeError, match="unhashable"):
        make().keyed(["a"])


def test_the_repr_shows_keys_that_are_not_the_usual_number():
    """As every other setting."""
    assert "keys" not in repr(make())
    assert "keys=7" in repr(make(keys=7))


# -- bounded


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 40), st.lists(st.tuples(st.integers(0, 80), st.sampled_from([0.0, 0.3, 1.5, 700.0])), max_size=200)
)
def test_whatever_keys_come_there_are_never_too_many(most, steps):
    """And what is held is found again, the same."""
    with VirtualClock() as clock:
        policy, held = make(keys=most), {}
        for number, (key, seconds) in enumerate(steps):
            found = policy.keyed(key)
            assert found is held.get(key, found)
            if number % 3 == 0:
                held[key] = found
            assert len(policy._keys) <= most + max(1, most // SPARE_DIVISOR)
            clock.advance(seconds)
        found = None
        held.clear()
        gc.collect()
        assert not policy._keys._held


def test_a_flood_of_new_keys_pushes_out_new_keys():
    """Keys that are in use for some seconds stay, though a hundred times as many come as are kept."""
    with VirtualClock() as clock:
        policy = make(keys=100)
        victims = [f"victim{number}" for number in range(50)]
        budgets = {}
        for second in range(5):
            for victim in victims:
                budgets.setdefault(victim, policy.keyed(victim).budget)
            clock.advance(1.1)
            del second
        for number in range(10_000):
            policy.keyed(number)
        assert {victim: policy.keyed(victim).budget for victim in victims} == budgets
        assert len(policy._keys) <= 100 + 100 // SPARE_DIVISOR


@pytest.mark.parametrize("most", [1, 7, 100])
def test_new_keys_push_out_none_of_as_many_as_are_kept(most):
    """However near the bound: those in use have as many places as the policy says, and new ones have others."""
    with VirtualClock() as clock:
        policy = make(keys=most)
        for _ in range(5):
            budgets = {key: policy.keyed(key).budget for key in range(most)}
            clock.advance(1.1)
        for number in range(1000):
            policy.keyed(f"made up {number}")
        assert {key: policy.keyed(key).budget for key in range(most)} == budgets


@pytest.mark.parametrize("most", [1, 7, 100])
def test_a_new_key_has_one_budget_though_all_places_are_in_use(most):
    """Not a fresh one for each call, which would pay for any number of retries."""
    with VirtualClock() as clock:
        policy = make(keys=most)
        for _ in range(5):
            for key in range(most):
                policy.keyed(key)
            clock.advance(1.1)
        sent = []

        def down():
            sent.append(1)
            raise ConnectionError  # a fresh one: its traceback holds the policy

        for _ in range(500):
            with suppress(ConnectionError):
                policy.keyed("new").call(down)
            for key in range(most):
                policy.keyed(key)
        assert len(sent) < 650


def test_where_all_are_new_those_go_that_were_not_used_for_the_longest_time():
    """Some at once, so that not each new key has to look at all."""
    with VirtualClock() as clock:
        policy = make(keys=16)
        for number in range(16 + 16 // SPARE_DIVISOR):
            policy.keyed(number)
            clock.advance(0.01)
        policy.keyed("last")
        assert kept(policy) == {*range(1 + 16 // SPARE_DIVISOR, 16 + 16 // SPARE_DIVISOR), "last"}


def test_a_key_that_is_not_used_is_forgotten():
    """After ten minutes, whichever key is asked for next."""
    with VirtualClock() as clock:
        policy = make()
        policy.keyed("idle"), policy.keyed("used")
        for _ in range(5):
            clock.advance(IDLE_SECONDS / 4)
            policy.keyed("used")
        assert kept(policy) == {"used"}


def test_a_key_with_calls_in_flight_is_not_lost():
    """One that was pushed out meanwhile is found again, with its shelter and its budget."""
    with VirtualClock() as clock:
        policy = make(keys=2, shelter=Shelter())

        async def load():
            shelter = policy.keyed("busy").shelter
            for number in range(50):
                policy.keyed(number)
            assert "busy" not in kept(policy)
            assert policy.keyed("busy").shelter is shelter
            await clock.asleep(1.0)

        asyncio.run(policy.keyed("busy").acall(load))


def test_what_another_thread_has_dropped_already_is_left_alone():
    """Two may look for what is idle at the same moment."""

    class Emptied(dict):
        def pop(self, key, default=None):
            super().pop(key)
            return default

    with VirtualClock() as clock:
        policy = make()
        policy.keyed("idle")
        policy._keys._entries = Emptied(policy._keys._entries)
        clock.advance(2 * IDLE_SECONDS)
        policy.keyed("used")
        assert not policy._keys._held


def test_a_key_that_has_come_back_is_not_forgotten_with_what_it_had_before():
    """The collector may tell late that something is gone."""
    budget = Budget()
    before, after = KeyState(budget, None, None), KeyState(budget, None, None)
    held = {("a",): ref(after)}
    _forget(held, ("a",), ref(before))
    assert held[("a",)]() is after


def test_copies_of_a_key_are_bounded():
    """A handler may make a policy for each request: what the key has for itself stays the same."""
    policy = make(shelter=Shelter())
    shelters = {id(policy.replace(max_attempts=number).keyed("a").shelter) for number in range(2, 100)}
    assert shelters == {id(policy.keyed("a").shelter)}
    (entry,) = policy._keys._entries.values()
    assert len(entry.copies) <= MAX_COPIES


# -- from many threads


def test_threads_that_ask_for_a_new_key_get_the_same():
    """Eight at once, for many keys, with the shortest turns there are."""
    policy, found, ready = make(), [[] for _ in range(8)], threading.Barrier(8)

    def ask(place):
        ready.wait()
        found[place] += [policy.keyed(number) for number in range(200)]

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(8)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(found[0]) == 200
    assert all([id(key) for key in each] == [id(key) for key in found[0]] for each in found)


@pytest.mark.parametrize("inner", ["same key", "another key", "many keys"])
@pytest.mark.parametrize("outer", ["known key", "new key", "full"])
def test_a_signal_handler_may_ask_for_a_key_at_any_moment(outer, inner):
    """At every bytecode of an operation: it is answered, and both have the same of the same key."""
    asks = {"same key": ["a"], "another key": ["b"], "many keys": range(9)}[inner]

    class Scene:
        def __init__(self):
            self.policy = make(keys=4 if outer == "full" else 100)
            if outer == "known key":
                self.policy.keyed("a")
            if outer == "full":
                for number in range(100, 104):
                    self.policy.keyed(number)

        def ask(self):
            self.outer = self.policy.keyed("a")

        def interrupt(self):
            self.inner = [self.policy.keyed(key) for key in asks]

        def check(self):
            for key in asks:
                assert self.policy.keyed(key).call(max, 1, 2) == 2
            if inner == "same key":
                assert self.inner[0].budget is self.outer.budget
            assert len(self.policy._keys) <= self.policy.keys + 1

    at_every_bytecode(Scene, Scene.ask, Scene.interrupt, where="keyed.py")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_has_the_keys_of_its_parent():
    """And may ask for others: no lock can be held by a thread that is not there."""
    policy = make(shelter=Shelter())
    policy.keyed("a")
    child = os.fork()
    if not child:
        code = 1
        try:
            assert policy.keyed("a").call(max, 1, 2) == 2
            assert policy.keyed("b").call(max, 1, 2) == 2
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_shelters_of_keys_are_shown_as_one():
    """As bad as the worst of them, under the policy's name."""
    from abate.observe.snapshot import snapshot

    with VirtualClock():
        policy = make(shelter=Shelter(name="of keys"), max_attempts=1)
        policy.keyed("up").call(Script("fine"))
        with pytest.raises(ConnectionError):
            policy.keyed("down").call(Script(ConnectionError()))
        (seen,) = [view for view in snapshot().shelters if view.name == "of keys"]
        assert seen.state == "probing"
        assert len(policy.shelters) == 3
    assert make().shelters == []
