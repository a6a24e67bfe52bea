"""The fleet engine against the exact one, on worlds that both can run."""

from __future__ import annotations

import math
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import Backoff, Budget
from abate.sim import (
    Clients,
    Controllers,
    Duration,
    Limit,
    Row,
    Run,
    Service,
    Trigger,
    World,
    simulated,
)
from abate.sim.fleet.engine import Fleet
from abate.sim.fleet.server_workers import Busy
from abate.sim.fleet.timer_wheel import WIDTH
from abate.sim.fleet.unsupported import unsupported_features
from tests.sim import queueing

FREE = Budget.unlimited()


def policy(**settings: object) -> abate.Policy:
    return abate.Policy(**{"on": simulated, "max_attempts": 4, "budget": FREE, **settings})  # type: ignore[arg-type]


def world(
    clients: Clients | None = None,
    service: Service | None = None,
    retries: abate.Policy | None = None,
    *triggers: Trigger,
    horizon: float = 22.0,
) -> World:
    return World(
        clients or Clients(count=8000, rate=0.1),
        [service or Service("api", workers=100, service_time=0.1, queue_limit=200)],
        retries or policy(),
        triggers,
        horizon,
    )


def storm(clients: int) -> World:
    """The workload whose speed is measured."""
    return World(
        Clients(count=clients, rate=0.1),
        [Service("api", workers=clients // 800, service_time=0.01, queue_limit=clients // 16)],
        policy(max_attempts=6, backoff=Backoff(0.2, 30.0), budget=Budget(0.2, reserve=float(clients))),
        [Trigger("error", at=20.0, for_=10.0)],
        60.0,
    )


OUTAGE = Trigger("error", at=10.0, for_=5.0)
HURRIED = policy(max_attempts=2, attempt_timeout=1.0)
WORLDS = {
    "calm": world(),
    "error": world(None, None, None, OUTAGE),
    "error of a share, with a hint": world(
        None, None, None, Trigger("error", at=10.0, for_=5.0, share=0.7, status=429, retry_after=3.0)
    ),
    "errors by chance": world(None, Service("api", workers=120, service_time=0.1, error_rate=0.3, status=500)),
    "stall": world(None, Service("api", workers=100, service_time=0.1), HURRIED, Trigger("stall", at=10.0, for_=4.0)),
    "stall, the expired dropped": world(
        None,
        Service("api", workers=100, service_time=0.1, drop_expired=True),
        HURRIED,
        Trigger("stall", at=10.0, for_=4.0),
    ),
    "slow": world(None, None, policy(attempt_timeout=1.0, timeout=5.0), Trigger("slow", at=10.0, for_=5.0, factor=4.0)),
    "capacity, and a cold start": world(
        None,
        Service("api", workers=100, service_time=0.1, queue_limit=200, cold_start=4.0),
        policy(backoff=Backoff(0.1, 5.0, jitter="equal")),
        Trigger("capacity", at=10.0, for_=5.0, factor=0.4),
    ),
    "spike": world(None, None, policy(backoff=[0.2, 1.0]), Trigger("spike", at=10.0, for_=5.0, factor=3.0)),
    "a budget funded by successes": world(None, None, policy(budget=Budget(0.2, 10.0)), OUTAGE),
    "a budget funded by requests": world(None, None, policy(budget=Budget(0.1, 2.0, funded_by="request")), OUTAGE),
    "decorrelated, far away": world(
        None,
        Service("api", workers=100, service_time=0.1, queue_limit=200, network=0.025),
        policy(backoff=Backoff(0.1, 5.0, jitter="decorrelated"), attempt_timeout=2.0),
        OUTAGE,
    ),
    "served within a bucket": world(
        Clients(count=8000, rate=1.0),
        Service("api", workers=100, service_time=0.01, queue_limit=2000),
        None,
        Trigger("stall", at=10.0, for_=1.0),
        horizon=18.0,
    ),
    "served by chance": world(
        None,
        Service("api", workers=60, service_time=Duration(0.1, "exponential"), queue_limit=40),
        policy(max_attempts=2),
    ),
    "serial": world(Clients(count=6000, rate=0.2, kind="serial"), None, None, OUTAGE),
    "serial and periodic": world(
        Clients(count=6000, rate=0.1, kind="serial", arrivals="periodic", offset="random"), None, None, OUTAGE
    ),
    "periodic, all at once": world(Clients(count=2000, rate=0.2, arrivals="periodic", start=0.5)),
    "periodic, by chance": world(
        Clients(count=6000, rate=0.1, arrivals="periodic", offset="random"),
        None,
        None,
        Trigger("spike", at=10.0, for_=6.0, factor=1.5),
    ),
    "periodic, each at its own offset": world(
        Clients(count=6000, rate=0.1, arrivals="periodic", offset="consistent", start=1.0),
        None,
        None,
        Trigger("spike", at=10.0, for_=6.0, factor=1.5),
    ),
    "once": world(Clients(count=4000, arrivals="once", start=1.0), None, policy(max_attempts=6)),
    "once, spread": world(Clients(count=8000, arrivals="once", offset="random", spread=9.0), None, None),
}
BOUNDS = {
    "amplification": 0.07,
    "amplification_during": 0.1,
    "success": 0.06,
    "peak_1s": 0.17,
    "goodput": 0.05,
    "mean": 0.14,
}
"""By how much one run may lie beside one of the exact engine: four standard deviations of that difference, as measured
over 24 seeds of a world that is overloaded all the time. The means over those seeds differ by less than 1 %."""


@pytest.mark.parametrize("name", WORLDS)
def test_a_fleet_fares_as_in_the_exact_engine(name):
    """Attempts, successes, peaks and the time to recover, in calm and in every kind of trouble."""
    runs = [WORLDS[name].run(2, engine) for engine in ("exact", "fleet")]
    assert [run.engine for run in runs] == ["exact", "fleet"]
    exact, fleet = (run.measures() for run in runs)
    for measure, bound in BOUNDS.items():
        assert fleet[measure] == pytest.approx(exact[measure], rel=bound, nan_ok=True), measure
    if math.isfinite(exact["recovery"]):
        assert fleet["recovery"] == pytest.approx(exact["recovery"], abs=1.5)
    assert fleet["wasted"] == pytest.approx(exact["wasted"], abs=0.05, nan_ok=True)
    assert fleet["fairness"] == pytest.approx(exact["fairness"], abs=0.03)


CREWS = [(1, 0.011), (1, 0.015), (2, 0.008), (2, 0.015), (5, 0.015), (8, 0.125), (10, 0.015), (30, 0.105)]
SPELLS = {
    "none": (),
    "capacity": (Trigger("capacity", at=4.0, for_=6.0, factor=0.4),),
    "slow": (Trigger("slow", at=4.0, for_=6.0, factor=3.0),),
    "stall": (Trigger("stall", at=4.003, for_=2.0),),
}


@pytest.mark.parametrize("spell", SPELLS)
@pytest.mark.parametrize(("workers", "service_time"), CREWS)
def test_a_small_crew_serves_as_much_as_in_the_exact_engine(workers, service_time, spell):
    """What is rounded for each request would add up where few workers are busy all the time."""
    tried = world(
        Clients(count=1000, rate=1.2 * workers / service_time / 1000),
        Service("api", workers=workers, service_time=service_time, queue_limit=50),
        policy(max_attempts=1),
        *SPELLS[spell],
        horizon=16.0,
    )
    exact, fleet = tried.run(1), Fleet(tried, 1, raster=False).run()
    assert fleet.loads["api"].served == pytest.approx(exact.loads["api"].served, rel=0.01)


def test_busy_workers_come_free_in_order_and_make_room_for_others():
    """More at once than there was room for at first, time and again: none is lost, none is free twice."""
    busy, rng = Busy(horizon=1.0), np.random.default_rng(1)
    due, found = [], []
    for bucket in range(100):
        found.append(busy.take(bucket))
        due.append(rng.uniform(bucket + 1, bucket + 60, size=100) * WIDTH)
        busy.add(due[-1])
    instants = np.concatenate(found)
    expected = np.sort(np.concatenate(due))
    assert np.array_equal(instants, expected[: len(instants)])
    assert expected[len(instants)] >= 100 * WIDTH
    assert len(busy) == len(expected) - len(instants)


def test_the_storm_has_the_same_size_in_both():
    """Amplification within four standard deviations at this size; `benchmarks/sim.py` is large enough for 0.5 %."""
    exact = sum(storm(24_000).run(seed).measures()["amplification"] for seed in range(2)) / 2
    fleet = storm(240_000).run(0, "fleet").measures()
    assert fleet["amplification"] == pytest.approx(exact, rel=0.017)


shapes = st.sampled_from([Duration(0.0), Duration(0.004), Duration(0.1), Duration(0.05, "exponential")])
troubles = st.sampled_from(["error", "stall", "slow", "capacity", "spike"])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["open", "serial"]),
    arrivals=st.sampled_from(["poisson", "periodic", "once"]),
    service_time=shapes,
    queue_limit=st.sampled_from([None, 0, 40]),
    drops=st.booleans(),
    network=st.sampled_from([0.0, 0.004, 0.03]),
    timeouts=st.sampled_from([(None, None), (0.05, None), (None, 0.5), (0.2, 0.5)]),
    jitter=st.sampled_from(["full", "equal", "decorrelated", "none"]),
    budget=st.sampled_from([FREE, Budget(0.1, 5.0), Budget(0.1, 0.0, funded_by="request")]),
    trouble=st.lists(st.tuples(troubles, st.floats(0.0, 2.0), st.floats(0.1, 2.0)), max_size=2),
)
def test_nothing_is_lost_in_any_world(
    seed, kind, arrivals, service_time, queue_limit, drops, network, timeouts, jitter, budget, trouble
):
    """Every call succeeds, is given up once, or is under way at the end; every request was sent."""
    tried = world(
        Clients(count=300, rate=1.0, kind=kind, arrivals=arrivals),
        Service(
            "api",
            workers=20,
            service_time=service_time,
            queue_limit=queue_limit,
            drop_expired=drops,
            network=network,
            error_rate=0.05,
        ),
        policy(
            max_attempts=3,
            attempt_timeout=timeouts[0],
            timeout=timeouts[1],
            backoff=Backoff(0.05, 1.0, jitter=jitter),
            budget=budget,
        ),
        *(Trigger(what, at=at, for_=length) for what, at, length in trouble),
        horizon=3.0,
    )
    run = Fleet(tried, seed, raster=False).run()
    ended, load = run.successes + run.failures, run.loads["api"]
    assert ended <= run.calls <= run.attempts <= 3 * run.calls
    if kind == "serial" and arrivals != "once":
        assert run.calls - ended <= 300  # one each
    assert len(run.latencies) == run.successes
    assert load.served + load.full + load.errors + load.expired <= load.requests <= run.attempts
    assert run.successes <= load.served
    assert 0.0 <= load.wasted <= load.busy
    assert run.completed <= 3.0


def test_all_calls_end_where_there_is_time_enough():
    """No request is lost in a queue, on the timer wheel or in transit."""
    for network in (0.0, 0.03):
        service = Service("api", workers=5, service_time=0.02, queue_limit=30, network=network)
        retries = policy(attempt_timeout=0.3, backoff=Backoff(0.1, 2.0))
        run = world(Clients(count=2000, arrivals="once"), service, retries).run(1, "fleet")
        assert run.calls == 2000 == run.successes + run.failures
        assert run.reasons.keys() <= {"attempts", "deadline"}


def test_the_same_seed_gives_the_same_run_and_another_another():
    """Chance is the seed's alone."""
    runs = [WORLDS["slow"].run(seed, "fleet") for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert pickle.loads(pickle.dumps(runs[0].latencies)) == runs[0].latencies


def test_a_raster_shows_attempts_and_costs_nothing_else():
    """In the order in which they were sent, and the run is the same."""
    plain, run = (WORLDS["error"].run(1, "fleet", raster) for raster in (False, True))
    assert plain.points == ()
    assert len(run.points) == sum(run.series["attempts"])
    assert max(abs(second[0] - first[0]) for first, second in zip(run.points, run.points[1:], strict=False)) < 0.1
    assert {client for _, client in run.points} <= set(range(8000))
    assert plain.series == run.series


def test_reasons_are_those_of_the_exact_engine():
    """Calls end for the same reasons: hints that are too long, deadlines, budgets, fatal answers."""
    tried = {
        "hint": (policy(max_hint=2.0), Trigger("error", at=5.0, for_=5.0, retry_after=3.0)),
        "deadline": (policy(timeout=0.5), OUTAGE),
        "budget": (policy(budget=Budget.empty()), OUTAGE),
        "fatal": (policy(), Trigger("error", at=5.0, for_=5.0, status=404)),
        "unsafe": (policy(idempotent=False), OUTAGE),
        "attempts": (policy(max_attempts=1), OUTAGE),
    }
    for reason, (retries, trigger) in tried.items():
        found = [world(None, None, retries, trigger, horizon=20.0).run(1, engine) for engine in ("exact", "fleet")]
        assert [set(run.reasons) for run in found] == [set(found[0].reasons)] * 2
        assert reason in found[0].reasons
        assert found[1].reasons[reason] == pytest.approx(found[0].reasons[reason], rel=0.1)


SERVICE = Service("api", workers=10, service_time=0.1)
LACKING = {
    "controllers": World(Controllers(count=2, rate=1.0), [SERVICE], horizon=1.0),
    "clients in several processes": world(Clients(count=10, processes=2), horizon=1.0),
    "clients with timeouts of their own": world(Clients(count=10, timeouts=(1.0, 2.0)), horizon=1.0),
    "a row": World(Clients(count=2), [Row("row")], horizon=1.0),
    "services that call services": World(Clients(count=2), [Service("api", calls=("db",)), Service("db")], horizon=1.0),
    "a rate limit": world(Clients(count=2), Service("api", limit=Limit(5.0)), horizon=1.0),
    "a lifo queue": world(Clients(count=2), Service("api", order="lifo"), horizon=1.0),
    "a network whose time varies": world(
        Clients(count=2), Service("api", network=Duration(0.1, "exponential")), horizon=1.0
    ),
    "a queue shorter than what is served in 10 ms": world(
        Clients(count=2), Service("api", workers=100, service_time=0.01, queue_limit=99), horizon=1.0
    ),
    "4 workers at 10 ms a request (waits within 2 % need 100 workers, or more than 10 ms)": world(
        Clients(count=20), Service("api", workers=4, service_time=0.01), horizon=1.0
    ),
    "1 worker at 49 ms a request (waits within 2 % need 200 workers, or 50 ms)": world(
        Clients(count=20), Service("api", service_time=Duration(0.049, "exponential")), horizon=1.0
    ),
    "a shelter": world(Clients(count=2), None, policy(shelter=abate.Shelter()), horizon=1.0),
    "a gate": world(Clients(count=2), None, policy(gate=abate.ConcurrencyLimit(5)), horizon=1.0),
    "a custom schedule": world(Clients(count=2), None, policy(backoff=lambda retry: 0.1), horizon=1.0),
}


@pytest.mark.parametrize("what", LACKING)
def test_what_has_no_array_form_is_run_by_the_exact_engine_which_says_so(what):
    """The run is that of the exact engine, with a note that names what is missing."""
    run, exact = LACKING[what].run(3, "fleet"), LACKING[what].run(3)
    assert run.engine == "exact"
    assert run.notes == (*exact.notes, f"run by the exact engine: there is no array form of {what}")
    assert run.series == exact.series


@pytest.mark.parametrize(
    ("workers", "service_time"),
    [
        (4, 0.0),
        (4, 0.011),
        (1, 0.0001),
        (100, 0.01),
        (1250, 0.01),
        (4, Duration(0.05, "exponential")),
        (200, Duration(0.01, "exponential")),
        (200, Duration(0.03, "lognormal", spread=0.03)),
    ],
)
def test_workers_that_are_slow_or_many_have_an_array_form(workers, service_time):
    """What comes free within a bucket comes free once, or evens out."""
    assert not unsupported_features(world(None, Service("api", workers=workers, service_time=service_time)))


@pytest.mark.parametrize(
    ("workers", "rate", "load", "places"), [(4, 100.0, 0.9, 16), (4, 20.0, 0.9, 4), (200, 100.0, 0.8, 400)]
)
def test_waits_and_blocking_are_those_of_the_closed_form(workers, rate, load, places):
    """Near the steps of 10 ms too: M/M/c/K, by the engine that runs it."""
    offered = load * workers * rate
    tried = World(
        Clients(count=100, rate=offered / 100),
        [Service("api", workers, Duration(1.0 / rate, "exponential"), queue_limit=places)],
        horizon=100.0 if workers == 4 else 10.0,
        warmup=1.0,
    )
    found = [tried.run(seed, "fleet").measures() for seed in range(3)]
    blocking, time = (sum(each[name] for each in found) / len(found) for name in ("blocking.api", "mean"))
    queue = (offered, 1.0 / rate, workers, workers + places)
    assert time == pytest.approx(queueing.mean_time(*queue), rel=0.05)
    assert blocking == pytest.approx(queueing.blocking(*queue), rel=0.1, abs=1e-4)


def test_several_things_without_an_array_form_are_named_in_one_note():
    """All of them at once, so that one correction is enough."""
    lacking = world(Clients(count=4, processes=2), Service("api", order="lifo"), policy(shelter=abate.Shelter()))
    assert unsupported_features(lacking) == ["clients in several processes", "a lifo queue", "a shelter"]


def test_what_a_policy_does_not_name_is_noted_as_in_the_exact_engine():
    """The note on failures that the policy says nothing about."""
    odd = world(Clients(count=10), None, policy(on=KeyError), OUTAGE, horizon=20.0)
    assert odd.run(1, "fleet").notes == odd.run(1).notes != ()


def test_warm_up_counts_for_nothing():
    """Neither in latencies nor in reasons, as in the exact engine."""
    warm = World(Clients(count=4000, rate=0.1), [SERVICE], policy(max_attempts=1), [OUTAGE], horizon=20.0, warmup=12.0)
    exact, fleet = warm.run(1), warm.run(1, "fleet")
    assert len(fleet.latencies) == pytest.approx(len(exact.latencies), rel=0.1)
    assert fleet.failures == pytest.approx(exact.failures, rel=0.1)


def test_memory_is_bounded_by_what_is_under_way():
    """Four times as long a run takes no more than its longer series."""

    def peak(horizon: float) -> int:
        tried = world(Clients(count=20_000, rate=0.1), Service("api", workers=300, service_time=0.1), horizon=horizon)
        tracemalloc.start()
        tried.run(1, "fleet")
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(8.0) < 1.5 * peak(2.0) + 500_000


def test_latencies_of_a_fleet_lie_within_a_bucket_of_the_exact_ones():
    """Without a queue every call takes the service time plus the time in transit."""
    run: Run = world(None, Service("api", workers=500, service_time=0.1, network=0.02)).run(1, "fleet")
    assert [run.measures()[name] for name in ("p50", "p99", "mean")] == pytest.approx([0.14] * 3, abs=0.0015)
