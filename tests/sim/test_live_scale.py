"""Worlds made small for live runs: everything shrinks together, and what was changed is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import sim
from abate.sim.live.scale import demand, small


def world(clients: sim.Clients | sim.Controllers, **settings: object) -> sim.World:
    return sim.World(clients, [sim.Service("api", workers=100, queue_limit=50)], **settings)  # type: ignore[arg-type]


@given(st.integers(1, 100_000), st.floats(0.01, 100.0), st.floats(1.0, 1000.0))
def test_no_more_is_offered_than_asked_for(count: int, rate: float, most: float) -> None:
    """But one client there must be."""
    found = small(world(sim.Clients(count=count, rate=rate)), most=most).world.clients
    assert found.offered <= max(most + rate, rate)


def test_a_world_that_is_small_stays_as_it_is() -> None:
    """The very same objects, and nothing to note."""
    mine = world(sim.Clients(count=100), policy=abate.Policy(on=sim.simulated))
    assert small(mine).world == mine
    assert small(mine).world.policy is mine.policy
    assert small(mine).notes == ()


def test_everything_shrinks_by_the_same_factor() -> None:
    """Clients, workers, queue, limit, and what budget, gate and shelter hold."""
    policy = abate.Policy(
        on=sim.simulated,
        budget=abate.Budget(ratio=0.3, reserve=50.0, window=7.0, funded_by="request"),
        gate=abate.Permits(40) & abate.TokenBucket(rate=100.0, burst=20) & abate.Budget(reserve=10.0),
        shelter=abate.Shelter(capacity=500, patience=3.0),
    )
    service = sim.Service("api", workers=100, queue_limit=50, limit=sim.Limit(200.0), calls=("db",), policy=policy)
    mine = sim.World(sim.Clients(count=3000), [service, sim.Service("db", workers=7)], policy)
    found = small(mine, most=300.0)
    api, db = found.world.services
    assert found.factor == 0.1
    assert found.world.clients.count == 300
    assert isinstance(api, sim.Service)
    assert isinstance(db, sim.Service)
    assert (api.workers, api.queue_limit, db.workers) == (10, 5, 1)
    assert api.limit is not None
    assert api.limit.rate == pytest.approx(20.0)
    for poorer in (found.world.policy, api.policy):
        assert poorer is not None
        assert poorer.budget.settings() == (0.3, pytest.approx(5.0), 7.0, "request")
        assert isinstance(poorer.gate, abate.admit.gate.All)
        permits, bucket, budget = poorer.gate.gates
        assert isinstance(permits, abate.Permits)
        assert isinstance(bucket, abate.TokenBucket)
        assert isinstance(budget, abate.Budget)
        assert (permits.limit, bucket.burst) == (4, 2)
        assert (bucket.rate, budget.reserve) == (pytest.approx(10.0), pytest.approx(1.0))
        assert poorer.shelter is not None
        assert (poorer.shelter.capacity, poorer.shelter.patience) == (50, 3.0)


def test_each_process_keeps_its_share() -> None:
    """Fewer processes of the same size have the same budgets each."""
    policy = abate.Policy(on=sim.simulated, budget=abate.Budget(reserve=50.0))
    found = small(world(sim.Clients(count=3000, processes=100), policy=policy)).world
    assert (found.clients.count, found.clients.processes) == (300, 10)
    assert found.policy is not None
    assert found.policy.budget.reserve == 50.0


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        (sim.Clients(count=100, rate=2.0), 200.0),
        (sim.Clients(count=100, arrivals="once"), 100.0),
        (sim.Clients(count=100, arrivals="once", offset="random", spread=10.0), 10.0),
        (sim.Clients(count=100, rate=0.01, arrivals="periodic"), 100.0),
        (sim.Clients(count=100, rate=0.01, arrivals="periodic", offset="consistent"), 1.0),
        (sim.Controllers(count=10, keys=5, relist=1.0), 50.0),
        (sim.Controllers(count=10, keys=5, rate=2.0), 20.0),
    ],
)
def test_what_comes_at_once_counts(clients: sim.Clients | sim.Controllers, expected: float) -> None:
    """A herd is as much work as as many calls in a second."""
    assert demand(world(clients)) == expected


def test_a_spike_counts() -> None:
    """The machine must be able to do the worst second."""
    spike = sim.Trigger("spike", at=1.0, for_=1.0, factor=8.0)
    assert demand(world(sim.Clients(count=100), triggers=[spike])) == 800.0


def test_a_trigger_lasts_long_enough_for_real_clients() -> None:
    """What lasts a millisecond would be over before all have called."""
    found = small(world(sim.Clients(count=1), triggers=[sim.Trigger("error", at=1.0, for_=0.001)]))
    assert found.world.triggers[0].end == 1.1
    assert found.notes == ("trigger 'error' lasts 0.1 s instead of 0.001 s",)


def test_a_trigger_beyond_the_cut_is_refused() -> None:
    """Rather than a run of a world in which nothing goes wrong."""
    late = world(sim.Clients(count=1), triggers=[sim.Trigger("stall", at=100.0, for_=1.0)], horizon=200.0)
    with pytest.raises(
        ValueError, match=r"a live run takes 60 s at most, unless it is told otherwise: .*horizon of 60"
    ):
        small(late)
    assert small(late, longest=200.0).world.horizon == 200.0


def test_bad_bounds_are_named() -> None:
    """By their names, with what was expected."""
    with pytest.raises(ValueError, match="most must be"):
        small(world(sim.Clients(count=1)), most=0.5)
    with pytest.raises(ValueError, match="longest must be"):
        small(world(sim.Clients(count=1)), longest=0.0)
