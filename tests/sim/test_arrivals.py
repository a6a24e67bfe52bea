"""When clients call: rates, offsets, spikes, and clients that wait for their results."""

from collections import Counter
from itertools import pairwise
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate import consistent_jitter
from abate.sim import Clients, Service, Trigger, World
from abate.sim.agenda import Agenda, RandomStreams
from abate.sim.arrivals import Arrivals


def arrived(clients, *triggers, horizon=60.0, seed=1, takes=None):
    """Which client called when; a call of a serial client `takes` seconds."""
    world = World(clients, [Service("api")], triggers=triggers, horizon=horizon)
    agenda, calls = Agenda(), []

    def begin(client):
        calls.append((agenda.now(), client))
        if takes is not None:
            agenda.at(agenda.now() + takes, arrivals.finished, client)

    arrivals = Arrivals(world, agenda, RandomStreams(seed), begin)
    agenda.run(horizon)
    return calls


def instants(calls, client=None):
    return [at for at, who in calls if client is None or who == client]


def between(calls, start, end):
    return sum(start <= at < end for at, _ in calls)


# -- streams


def test_an_open_stream_has_the_rate_of_all_clients_together():
    """By chance: within five standard deviations, and each client has its part."""
    calls = arrived(Clients(count=20, rate=5.0))
    assert abs(len(calls) - 6000) < 5 * sqrt(6000)
    shares = Counter(client for _, client in calls)
    assert set(shares) == set(range(20))
    assert all(abs(many - 300) < 5 * sqrt(300) for many in shares.values())


def test_the_gaps_of_a_stream_are_exponential():
    """As many below the median, and above three times the mean, as there should be."""
    times = instants(arrived(Clients(count=1, rate=100.0)))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    for limit, share in [(0.00693147, 0.5), (0.03, 0.950213)]:
        assert sum(gap <= limit for gap in gaps) / len(gaps) == pytest.approx(share, abs=0.035)


def test_a_spike_brings_so_many_times_as_many():
    """While it lasts; two at once multiply."""
    spikes = [Trigger("spike", 20.0, 20.0, factor=3.0), Trigger("spike", 30.0, 10.0, factor=2.0)]
    calls = arrived(Clients(count=10, rate=10.0), *spikes)
    for start, end, expected in [(0.0, 20.0, 2000), (20.0, 30.0, 3000), (30.0, 40.0, 6000), (40.0, 60.0, 2000)]:
        assert abs(between(calls, start, end) - expected) < 5 * sqrt(expected)


@pytest.mark.parametrize("arrivals", ["poisson", "periodic", "once"])
def test_no_call_is_made_before_the_start(arrivals):
    """And all do after it."""
    calls = arrived(Clients(count=5, rate=10.0, arrivals=arrivals, start=20.0))
    assert min(instants(calls)) >= 20.0
    assert {client for _, client in calls} == set(range(5))


# -- grids


def test_periodic_clients_without_an_offset_call_at_the_same_instants():
    """All of them, once per period."""
    calls = arrived(Clients(count=3, rate=0.25, arrivals="periodic", start=1.0), horizon=10.0)
    assert calls == [(at, client) for at in (1.0, 5.0, 9.0) for client in range(3)]


def test_a_consistent_offset_is_each_clients_own():
    """The one that `abate.consistent_jitter` gives, in every period."""
    calls = arrived(Clients(count=50, rate=0.25, arrivals="periodic", offset="consistent"), horizon=12.0)
    for client in range(50):
        offset = consistent_jitter(f"client-{client}", 4.0)
        assert instants(calls, client) == pytest.approx([offset, offset + 4.0, offset + 8.0])


def test_a_random_offset_is_another_in_each_period():
    """Within the period, evenly."""
    calls = arrived(Clients(count=400, rate=0.25, arrivals="periodic", offset="random"), horizon=12.0)
    for begins in (0.0, 4.0, 8.0):
        assert between(calls, begins, begins + 4.0) == 400
        assert abs(between(calls, begins, begins + 1.0) - 100) < 5 * sqrt(75)
    offsets = [at % 4.0 for at in instants(calls, 7)]
    assert len(set(offsets)) == 3


def test_a_spike_shortens_periods():
    """To a half, while it lasts."""
    calls = arrived(Clients(count=1, rate=1.0, arrivals="periodic"), Trigger("spike", 2.0, 2.0), horizon=6.0)
    assert instants(calls) == [0.0, 1.0, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0]


@given(
    count=st.integers(1, 20),
    rate=st.sampled_from([0.25, 0.5, 2.0]),
    offset=st.sampled_from(["none", "random", "consistent"]),
    seed=st.integers(0, 100),
)
def test_each_client_calls_once_in_each_period(count, rate, offset, seed):
    """Whatever its offset."""
    clients = Clients(count=count, rate=rate, arrivals="periodic", offset=offset)
    calls = arrived(clients, horizon=8.0, seed=seed)
    for begins in range(int(8.0 * rate)):
        callers = [client for at, client in calls if begins / rate <= at < (begins + 1) / rate]
        assert sorted(callers) == list(range(count))


# -- once


def test_clients_that_call_once_come_together_unless_they_are_spread():
    """All at the start, or over the spread by chance, or each at its own place."""
    assert arrived(Clients(count=3, arrivals="once", start=2.0)) == [(2.0, 0), (2.0, 1), (2.0, 2)]
    for offset in ("random", "consistent"):
        calls = arrived(Clients(count=400, arrivals="once", start=2.0, offset=offset, spread=8.0))
        assert sorted(client for _, client in calls) == list(range(400))
        assert between(calls, 2.0, 10.0) == 400
        assert abs(between(calls, 2.0, 4.0) - 100) < 5 * sqrt(75)


def test_a_consistent_place_is_the_same_for_every_seed():
    """A random one is not."""
    for offset, same in [("consistent", True), ("random", False)]:
        clients = Clients(count=9, arrivals="once", offset=offset, spread=8.0)
        assert (arrived(clients, seed=1) == arrived(clients, seed=2)) is same


# -- serial clients


def test_a_serial_client_goes_on_after_its_result():
    """Its period begins with the result."""
    calls = arrived(Clients(count=1, rate=1.0, kind="serial", arrivals="periodic"), horizon=10.0, takes=2.0)
    assert instants(calls) == [0.0, 3.0, 6.0, 9.0]


def test_serial_clients_think_by_chance():
    """As long as their rate says on average: 1.5 s of thinking and 0.5 s of waiting make 30 calls a minute each."""
    calls = arrived(Clients(count=200, rate=1 / 1.5, kind="serial"), takes=0.5)
    assert abs(len(calls) - 200 * 30) < 5 * sqrt(200 * 30)


def test_a_serial_client_without_a_result_does_not_call_again():
    """It waits, for as long as it takes."""
    calls = arrived(Clients(count=5, rate=1.0, kind="serial"))
    assert sorted(client for _, client in calls) == list(range(5))


def test_serial_clients_that_call_once_are_done_with_it():
    """A result brings no second call."""
    assert len(arrived(Clients(count=5, kind="serial", arrivals="once"), takes=0.5)) == 5


def test_a_spike_makes_serial_clients_think_less():
    """Half as long, while it lasts."""
    clients = Clients(count=1, rate=1.0, kind="serial", arrivals="periodic")
    calls = arrived(clients, Trigger("spike", 3.0, 3.0), horizon=8.0, takes=0.5)
    assert instants(calls) == [0.0, 1.5, 3.0, 4.0, 5.0, 6.0, 7.5]


@given(
    clients=st.builds(
        Clients,
        st.integers(1, 10),
        st.sampled_from([0.5, 3.0]),
        st.sampled_from(["open", "serial"]),
        st.sampled_from(["poisson", "periodic", "once"]),
    ),
    seed=st.integers(0, 100),
)
def test_the_same_seed_brings_the_same_calls(clients, seed):
    """For all kinds of clients and rates."""
    assert arrived(clients, horizon=5.0, seed=seed, takes=0.25) == arrived(clients, horizon=5.0, seed=seed, takes=0.25)
