"""What gates do with remote state: changed terms of a budget, failures that other processes have seen."""

import random
import threading
import time
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.admit.budget import Budget
from abate.admit.budget_units import Units
from abate.admit.limiter import Limiter, Permit
from abate.admit.shelter import Shelter
from abate.admit.shelter_queue import Waiter
from abate.schedule.backoff import Backoff
from abate.testing import VirtualClock


@given(st.integers(0, 30), st.integers(0, 30), st.sampled_from([1, 2, 3, 7]))
def test_a_ledger_applies_new_terms_to_its_counts(deposits, withdrawals, members):
    """The counts stay; the allowance is computed anew."""
    with VirtualClock():
        budget = Budget(ratio=0.5, reserve=2.0, window=10.0)
        for _ in range(deposits):
            budget.deposit()
        made = sum(budget.try_withdraw() for _ in range(withdrawals))
        state = budget.states.here()
        state.set_units(Units.of(0.5, 20.0 / members))
        assert budget.balance() == pytest.approx(20.0 / members + 0.5 * deposits - made, abs=1e-5)
        left = max(0, int(budget.balance() + 1e-9))
        assert sum(budget.try_withdraw() for _ in range(100)) == left


def test_total_deposits_never_expire():
    """The total includes deposits that have left the window."""
    with VirtualClock() as clock:
        budget = Budget(window=1.0)
        for _ in range(10):
            budget.deposit()
            clock.advance(0.5)
        state = budget.states.here()
        state.update_counts(clock.now())
        assert state.earned == 10


def sheltered(clock):
    shelter = Shelter(name="orders", clock=clock, rng=random.Random(1))
    return shelter, shelter.dispatcher(), abate.Policy(on=ConnectionError, shelter=shelter, clock=clock)


def test_a_remote_outage_holds_calls_back_until_it_ends():
    """Nothing has failed here; other processes have seen failures."""
    clock = VirtualClock()
    shelter, dispatcher, policy = sheltered(clock)
    dispatcher.apply_remote(True, paused_until=5.0, limit=inf)
    assert shelter.state == "probing"
    assert policy.call(clock.now) >= 5.0


def test_a_held_back_call_is_refused_at_its_deadline():
    """It waits as long as it can."""
    clock = VirtualClock()
    _, dispatcher, policy = sheltered(clock)
    dispatcher.apply_remote(True, paused_until=1000.0, limit=inf)
    with pytest.raises(abate.Refused):
        policy.call(lambda: None)


def test_a_repeated_remote_outage_changes_only_the_instant():
    """A process that is in a storm already keeps its state."""
    clock = VirtualClock()
    shelter, dispatcher, _ = sheltered(clock)
    dispatcher.apply_remote(True, paused_until=5.0, limit=inf)
    epoch = dispatcher.limiter.epoch
    dispatcher.apply_remote(True, paused_until=6.0, limit=inf)
    assert (shelter.state, dispatcher.limiter.epoch) == ("probing", epoch)


def test_a_remote_outage_ends_the_calm():
    """Attempts are counted from then on."""
    clock = VirtualClock()
    shelter, dispatcher, policy = sheltered(clock)
    for _ in range(100):
        policy.call(lambda: clock.advance(0.05))
    assert dispatcher.limiter.calm
    dispatcher.apply_remote(True, paused_until=-inf, limit=inf)
    assert (shelter.state, dispatcher.limiter.calm) == ("probing", False)


def test_a_remote_limit_bounds_attempts_in_flight():
    """It holds until an answer arrives or the remote state changes."""
    clock = VirtualClock()
    _, dispatcher, _ = sheltered(clock)
    dispatcher.apply_remote(False, paused_until=-inf, limit=1.0)
    first = dispatcher.try_enter(0.0, 0.0, None, True)
    assert isinstance(first, Permit)
    second, third = dispatcher.try_enter(0.0, 0.0, None, True), dispatcher.try_enter(0.0, 0.0, None, True)
    assert isinstance(second, Waiter)
    assert second.answer is None
    dispatcher.answered(first, 0.1, "orders")
    assert isinstance(second.answer, Permit)
    assert third.answer is None
    dispatcher.apply_remote(False, paused_until=-inf, limit=inf)
    assert isinstance(third.answer, Permit)


def test_remote_recovery_wakes_waiting_calls():
    """A waiting call is sent when the remote state allows it."""
    shelter = Shelter(name="orders")
    dispatcher = shelter.dispatcher()
    dispatcher.apply_remote(True, paused_until=dispatcher.clock.now() + 1000.0, limit=inf)
    done = []
    policy = abate.Policy(on=OSError, shelter=shelter)
    waiting = threading.Thread(target=lambda: done.append(policy.call(lambda: "fine")))
    waiting.start()
    end = time.monotonic() + 30.0
    while not shelter.waiters:
        assert time.monotonic() < end
        time.sleep(0.001)
    dispatcher.apply_remote(False, -inf, inf)
    waiting.join(30.0)
    assert done == ["fine"]


def test_the_prober_of_a_fleet_probes_sooner():
    """Its rate is that of the whole fleet's calls, and a twentieth of them may probe."""
    pauses = []
    for peers in (1, 50):
        limiter = Limiter(random.Random(1), 0.0)
        limiter.apply_remote_outage(0.0, peers)
        for number in range(8):
            limiter.on_call(number * 0.25)
        limiter.on_failure(limiter.send(2.0), 2.0, Backoff(100.0, 100.0, jitter="none"))
        pauses.append(limiter.prober.next_probe - 2.0)
    assert pauses[1] < pauses[0] / 10


def test_a_new_prober_does_not_wait_for_its_own_backoff():
    """The probe that it had planned for itself alone is brought forward."""
    limiter = Limiter(random.Random(1), 0.0)
    limiter.apply_remote_outage(0.0, 1)
    for number in range(8):
        limiter.on_call(number * 0.25)
    limiter.on_failure(limiter.send(2.0), 2.0, Backoff(100.0, 100.0, jitter="none"))
    before = limiter.prober.next_probe
    limiter.apply_remote_outage(2.0, 50)
    assert limiter.prober.next_probe < before


def test_outcomes_are_counted():
    """Answers and failures are counted, to be shared with other processes."""
    limiter = Limiter(random.Random(1), 0.0)
    limiter.on_answer(limiter.send(0.0), 0.1, 0)
    limiter.on_failure(limiter.send(0.2), 0.3, Backoff(1.0))
    limiter.on_failure(None, 0.4, Backoff(1.0), uncounted=True)
    assert (limiter.answers, limiter.failures) == (1, 1)


def test_the_next_attempt_can_be_made_to_take_a_permit():
    """In calm attempts take none, but the first one after a fork does, which starts the sync."""
    with VirtualClock() as clock:
        dispatcher = abate.Shelter().dispatcher()
        clock.advance(10.0)
        permit = dispatcher.try_enter(clock.now(), clock.now(), None, True)
        dispatcher.answered(permit, clock.now(), "")
        assert dispatcher.admits_freely(clock.now())
        dispatcher.sample_next()
        assert not dispatcher.admits_freely(clock.now())
