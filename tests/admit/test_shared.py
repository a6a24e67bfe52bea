"""What gates do with what others know: other terms of a budget, a dependency that others have seen fail."""

import random
import threading
import time
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.admit.budget import Budget, Terms
from abate.admit.room import Waiter
from abate.admit.shelter import Shelter
from abate.admit.weather import Ticket, Weather
from abate.schedule.backoff import Backoff
from abate.testing import VirtualClock


@given(st.integers(0, 30), st.integers(0, 30), st.sampled_from([1, 2, 3, 7]))
def test_a_ledger_goes_by_other_terms_from_now_on(deposits, withdrawals, members):
    """What was counted stays counted; what it allows is worked out anew."""
    with VirtualClock():
        budget = Budget(ratio=0.5, reserve=2.0, window=10.0)
        for _ in range(deposits):
            budget.deposit()
        made = sum(budget.try_withdraw() for _ in range(withdrawals))
        ledger = budget.timeline.here()
        ledger.agree(Terms.of(0.5, 20.0 / members))
        assert budget.balance() == pytest.approx(20.0 / members + 0.5 * deposits - made, abs=1e-5)
        left = max(0, int(budget.balance() + 1e-9))
        assert sum(budget.try_withdraw() for _ in range(100)) == left


def test_deposits_are_counted_for_good():
    """Those that have left the window included."""
    with VirtualClock() as clock:
        budget = Budget(window=1.0)
        for _ in range(10):
            budget.deposit()
            clock.advance(0.5)
        ledger = budget.timeline.here()
        ledger.fold(clock.now())
        assert ledger.earned == 10


def sheltered(clock):
    shelter = Shelter(name="orders", clock=clock, rng=random.Random(1))
    return shelter, shelter.door(), abate.Policy(on=ConnectionError, shelter=shelter, clock=clock)


def test_a_warning_holds_calls_back_until_it_is_lifted():
    """Nothing has failed here; others have seen it."""
    clock = VirtualClock()
    shelter, door, policy = sheltered(clock)
    door.heed(True, barred=5.0, ceiling=inf)
    assert shelter.state == "probing"
    assert policy.call(clock.now) >= 5.0


def test_who_is_barred_and_has_no_time_is_refused():
    """It waits as long as it can."""
    clock = VirtualClock()
    _, door, policy = sheltered(clock)
    door.heed(True, barred=1000.0, ceiling=inf)
    with pytest.raises(abate.Refused):
        policy.call(lambda: None)


def test_a_second_warning_changes_nothing_but_the_instant():
    """A process that is in the storm already goes on as it was."""
    clock = VirtualClock()
    shelter, door, _ = sheltered(clock)
    door.heed(True, barred=5.0, ceiling=inf)
    epoch = door.weather.epoch
    door.heed(True, barred=6.0, ceiling=inf)
    assert (shelter.state, door.weather.epoch) == ("probing", epoch)


def test_a_calm_shelter_wakes_up_when_it_is_warned():
    """What went by without being counted is counted from now on."""
    clock = VirtualClock()
    shelter, door, policy = sheltered(clock)
    for _ in range(100):
        policy.call(lambda: clock.advance(0.05))
    assert door.weather.calm
    door.heed(True, barred=-inf, ceiling=inf)
    assert (shelter.state, door.weather.calm) == ("probing", False)


def test_no_more_are_in_flight_than_others_leave_room_for():
    """A ceiling holds until an answer, or other news."""
    clock = VirtualClock()
    _, door, _ = sheltered(clock)
    door.heed(False, barred=-inf, ceiling=1.0)
    first = door.knock(0.0, 0.0, None, True)
    assert isinstance(first, Ticket)
    second, third = door.knock(0.0, 0.0, None, True), door.knock(0.0, 0.0, None, True)
    assert isinstance(second, Waiter)
    assert second.answer is None
    door.answered(first, 0.1, "orders")
    assert isinstance(second.answer, Ticket)
    assert third.answer is None
    door.heed(False, barred=-inf, ceiling=inf)
    assert isinstance(third.answer, Ticket)


def test_news_wake_those_who_wait():
    """Whoever waits for a turn has it when the doors open."""
    shelter = Shelter(name="orders")
    door = shelter.door()
    door.heed(True, barred=door.clock.now() + 1000.0, ceiling=inf)
    done = []
    policy = abate.Policy(on=OSError, shelter=shelter)
    waiting = threading.Thread(target=lambda: done.append(policy.call(lambda: "fine")))
    waiting.start()
    end = time.monotonic() + 30.0
    while not shelter.waiters:
        assert time.monotonic() < end
        time.sleep(0.001)
    door.heed(False, -inf, inf)
    waiting.join(30.0)
    assert done == ["fine"]


def test_who_probes_for_many_probes_sooner():
    """The calls of a fleet are sent together, and a twentieth of them may probe."""
    pauses = []
    for peers in (1, 50):
        weather = Weather(random.Random(1), 0.0)
        weather.warned(0.0, peers)
        for number in range(8):
            weather.offered(number * 0.25)
        weather.bad(weather.send(2.0), 2.0, Backoff(100.0, 100.0, jitter="none"))
        pauses.append(weather.opens - 2.0)
    assert pauses[1] < pauses[0] / 10


def test_whoever_becomes_the_prober_does_not_wait_for_its_own_backoff():
    """What it had planned for itself alone is brought forward."""
    weather = Weather(random.Random(1), 0.0)
    weather.warned(0.0, 1)
    for number in range(8):
        weather.offered(number * 0.25)
    weather.bad(weather.send(2.0), 2.0, Backoff(100.0, 100.0, jitter="none"))
    before = weather.opens
    weather.warned(2.0, 50)
    assert weather.opens < before


def test_outcomes_are_counted():
    """Answers and failures, so that they can be told to others."""
    weather = Weather(random.Random(1), 0.0)
    weather.good(weather.send(0.0), 0.1, 0)
    weather.bad(weather.send(0.2), 0.3, Backoff(1.0))
    weather.bad(None, 0.4, Backoff(1.0), hearsay=True)
    assert (weather.answers, weather.failures) == (1, 1)
