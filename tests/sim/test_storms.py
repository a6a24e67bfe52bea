"""What policies with shelters do in storms, beside the best that is possible (`abate.sim.oracle`): in virtual time."""

from statistics import median

import pytest

from tests.sim.storms import STORMS, run

ROUNDS = 3


@pytest.fixture(scope="module")
def storms():
    """The storms of a name, run once."""
    known = {}

    def of(name, rounds=ROUNDS):
        if name not in known:
            known[name] = [run(STORMS[name], seed) for seed in range(rounds)]
        return known[name]

    return of


@pytest.mark.parametrize(("name", "lost"), [("B", 0.05), ("hang", 0.08), ("reset", 0.08)])
def test_hardly_a_call_of_an_outage_is_lost(storms, name, lost):
    """Of those that came in the outage, with time for it; few requests are sent, and all is well soon after."""
    outages = storms(name)
    assert median(storm.lost(storm.during()) for storm in outages) <= lost
    assert max(storm.load() for storm in outages) <= 0.1
    assert max(storm.peak_after() for storm in outages) <= 1.9
    assert max(storm.recovery() for storm in outages) <= 2.5


@pytest.mark.parametrize("name", ["B at 80 %", "B at 90 %", "B for 20 s", "B, 2 to 15 s"])
def test_new_calls_are_answered_soon_after_an_outage_that_loses_calls(storms, name):
    """If there is no time for everybody, no work is wasted on those that are lost, and nobody waits for them."""
    for storm in storms(name, 1):
        assert storm.counted("dead") <= 0.01 * len(storm.requests)
        assert storm.recovery() <= 2.5


@pytest.mark.parametrize("name", ["C75", "C", "C87", "C95"])
def test_slow_seconds_near_the_capacity_lose_no_call(storms, name):
    """Nobody is lost, and below 90 % of the capacity all is well at once."""
    for storm in storms(name, 1):
        assert storm.lost(storm.calls) == 0.0
        assert storm.counted("dead") <= 5
        assert name == "C95" or storm.recovery() == 0.0


def test_strangers_find_the_end_of_an_outage_with_few_requests(storms):
    """500 processes of one call each: all are answered soon."""
    for storm in storms("A", 1):
        assert storm.lost(storm.calls) == 0.0
        assert len(storm.requests) <= 2050
        assert max(call.ended for call in storm.calls) <= 6.0


def test_calls_with_a_hint_come_back_spread_and_not_late(storms):
    """300 processes that are told to come back in two seconds."""
    for storm in storms("E"):
        assert len(storm.requests) == 600
        assert min(request.at for request in storm.requests if request.attempt == 2) >= 2.0
        assert max(call.ended for call in storm.calls) <= 3.45
        assert storm.peak_after(0.05) <= 26


def test_a_server_that_flaps_is_used_while_it_is_up(storms):
    """Half of the time it is down: hardly a call is lost, and most are answered within a second."""
    flapping = storms("flapping", 5)
    assert median(storm.lost(storm.calls) for storm in flapping) <= 0.02
    assert median(storm.within(storm.calls) for storm in flapping) >= 0.75


def test_half_of_the_capacity_is_used_for_answers_that_somebody_waits_for(storms):
    """A sixth of the calls is too much; the others are answered."""
    for storm in storms("halved for 60 s", 1):
        assert storm.lost(storm.calls) <= 1 / 6 + 0.03
        assert storm.counted("dead") <= 0.02 * len(storm.requests)
