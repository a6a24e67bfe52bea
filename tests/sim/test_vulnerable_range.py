"""The vulnerable range: it is what the exact engine does, and it is stated only where the closed form holds."""

import json
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import abate
from abate.sim import Clients, Controllers, Duration, Limit, Row, Service, Trigger, World, simulated
from abate.sim.scenario import Scenario
from abate.sim.study import run_study
from abate.sim.vulnerable_range import VulnerableRange, least_vulnerable_load, vulnerable_range
from tests.sim.queueing import RetryFeedback


def database(load=280.0, *, kind="open", clients=1000, attempts=2, timeout=1.0, budget=None, shelter=None, **service):
    """HotOS's database, its clients and its stall."""
    backoff = abate.Backoff(0.0, 0.0, jitter="none")
    return World(
        Clients(count=clients, rate=load / clients, kind=kind),
        [Service("db", workers=30, service_time=Duration(0.1, "exponential"), **service)],
        abate.Policy(
            on=simulated,
            max_attempts=attempts,
            attempt_timeout=timeout,
            backoff=backoff,
            budget=budget or abate.Budget.unlimited(),
            shelter=shelter,
        ),
        [Trigger("stall", at=10.0, for_=10.0)],
        horizon=140.0,
    )


def test_the_range_is_a_sentence():
    """What is printed below a table."""
    found = vulnerable_range(database())
    assert str(found) == "db: above 150 requests/s this stays down once it falls (capacity 300, offered 280)"
    found = vulnerable_range(database(timeout=None))
    assert str(found) == "db: comes back by itself at any load below its capacity (capacity 300, offered 280)"


WORLDS = {
    "as it was": ({}, True),
    "half the load": ({"load": 120.0}, False),
    "no retries": ({"attempts": 1, "load": 200.0}, False),
    "no timeout": ({"timeout": None}, False),
    "a short queue": ({"queue_limit": 100}, False),
    "a long queue": ({"queue_limit": 400}, True),
    "request-funded": ({"budget": abate.Budget(0.2, 0.0, funded_by="request")}, True),
    "request-funded, little": ({"budget": abate.Budget(0.2, 0.0, funded_by="request"), "load": 150.0}, False),
    "success-funded": ({"budget": abate.Budget(0.2, 0.0), "load": 240.0}, False),
    "reserve": ({"budget": abate.Budget(0.2, 40.0)}, True),
    "shelter": ({"shelter": abate.Shelter()}, False),
}


@pytest.mark.parametrize("name", WORLDS)
def test_the_range_is_what_the_exact_engine_does(name):
    """Whether the database recovers within two minutes, or stays down."""
    settings, stays_down = WORLDS[name]
    world = database(**settings)
    assert vulnerable_range(world).stays_down == stays_down
    assert math.isinf(world.run(seed=3).measures()["recovery"]) == stays_down


def test_each_process_has_a_reserve_of_its_own():
    """Four processes with a reserve of 10 are as one with 40."""
    world = database(budget=abate.Budget(0.0, 10.0))
    clients = Clients(count=1000, rate=0.28, processes=4)
    apart = World(clients, world.services, world.policy, world.triggers, world.horizon)
    assert vulnerable_range(world).above == pytest.approx(290.0)
    assert vulnerable_range(apart).above == pytest.approx(260.0)


async def fetch(send):
    await send()


@pytest.mark.parametrize(
    "world",
    [
        World(Clients(count=100, code=fetch), [Service("db", service_time=0.1)]),
        World(Clients(count=100, kind="serial"), [Service("db", service_time=0.1)]),
        World(Clients(count=100, arrivals="once"), [Service("db", service_time=0.1)]),
        World(Controllers(count=100, rate=1.0), [Service("db", service_time=0.1)]),
        World(Clients(count=100), [Service("db")]),
        World(Clients(count=100), [Row("row")]),
        World(Clients(count=100), [Service("front", service_time=0.1, calls=("db",)), Service("db")]),
        database(limit=Limit(250.0)),
        database(order="lifo"),
        database(drop_expired=True),
    ],
    ids=["code", "serial", "once", "controllers", "no time", "row", "stack", "rate limit", "lifo", "drops expired"],
)
def test_nothing_is_stated_where_the_closed_form_does_not_hold(world):
    """The run has to answer."""
    assert vulnerable_range(world) is None


def test_nothing_is_stated_of_a_deadline_that_cuts_attempts():
    """How many attempts it leaves depends on the delays."""
    world = database(attempts=5)
    shorter = World(world.clients, world.services, world.policy.replace(timeout=2.5), world.triggers, world.horizon)
    assert vulnerable_range(shorter) is None


@pytest.mark.parametrize(("load", "said"), [(310.0, "more than"), (300.0, "all that")])
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_load_above_the_capacity_is_stated(load, said, attempts):
    """With retries or without."""
    found = vulnerable_range(database(load, attempts=attempts, timeout=None))
    assert str(found) == f"db: is offered {said} it can serve (capacity 300, offered {load:g})"


def test_the_json_of_a_study_has_the_range_and_the_assertions():
    """Of each case, and all of it is JSON."""
    document = {
        "run": {"horizon": 2.0},
        "clients": {"count": 20},
        "services": {"api": {"workers": 10, "service_time": 0.1}},
        "variants": {"open": {}, "serial": {"clients": {"kind": "serial"}}},
        "assert": {"max_amplification": 0.5, "min_success": 0.5},
    }
    first, second = run_study(Scenario("small", "small.toml", document), seeds=2).as_json()["cases"]
    json.dumps(first, allow_nan=False)
    assert first["vulnerable_range"] == VulnerableRange("api", 100.0, 20.0).as_json()
    assert first["vulnerable_range"]["stays_down"] is False
    assert second["vulnerable_range"] is None
    held = {each["key"]: each["holds"] for each in first["assertions"]}
    assert held == {"max_amplification": False, "min_success": True}
    assert first["assertions"][0]["seen"]["mean"] == 1.0


def test_timeouts_of_the_clients_are_timeouts_of_calls():
    """The closed form has none: as with a policy's `timeout`, nothing is stated."""
    world = database()
    clients = type(world.clients)(**{**vars(world.clients), "timeouts": (2.0,)})
    assert vulnerable_range(world) is not None
    assert vulnerable_range(World(clients, world.services, world.policy, world.triggers, world.horizon)) is None


# -- the closed form, and the load equation of retries


def test_hotos_s_database_is_vulnerable_above_150():
    """Half of what it serves, as every call is made twice."""
    assert least_vulnerable_load(300.0, 2, 0.0, math.inf, "success") == 150.0


@pytest.mark.parametrize(
    ("load", "points", "stable"),
    [
        (149.0, [149], [True]),
        (151.0, [151, 300, 302], [True, False, True]),
        (280.0, [280, 297, 560], [True, False, True]),
        (299.0, [598], [True]),
        (310.0, [620], [True]),
    ],
)
def test_the_load_equation_has_hotos_s_fixed_points(load, points, stable):
    """One at 149, three at 151 and 280, and only the upper one close to the capacity."""
    found = RetryFeedback(workers=30, service_time=0.1, timeout=1.0, max_attempts=2).fixed_points(load)
    assert [round(point.total) for point in found] == points
    assert [point.stable for point in found] == stable


@given(
    feedback=st.builds(
        RetryFeedback,
        workers=st.integers(1, 40),
        service_time=st.floats(0.01, 1.0),
        timeout=st.floats(0.5, 5.0),
        max_attempts=st.integers(1, 6),
        ratio=st.floats(0.0, 1.0),
        reserve=st.one_of(st.just(math.inf), st.floats(0.0, 20.0)),
        funded_by=st.sampled_from(["success", "request"]),
    ),
    share=st.floats(0.05, 0.99),
)
@settings(max_examples=60, deadline=None)
def test_a_service_is_vulnerable_where_there_is_a_balance_above_its_capacity(feedback, share):
    """The closed form says the same as the load equation."""
    load = share * feedback.capacity
    _, _, _, max_attempts, ratio, reserve, funded_by = feedback
    least = least_vulnerable_load(feedback.capacity, max_attempts, ratio, reserve, funded_by)
    assume(abs(load - least) > 1e-6 * load)
    down = feedback.fixed_points(load)[-1].total >= feedback.capacity
    assert down == (load > least)


@given(ratio=st.floats(0.01, 2.0), share=st.floats(0.1, 0.99))
def test_a_request_funded_ratio_must_be_below_capacity_over_load_minus_one(ratio, share):
    """The rule for users: with enough attempts to spend it, and no reserve."""
    assume(abs(ratio - (1.0 / share - 1.0)) > 1e-9)
    least = least_vulnerable_load(300.0, 1000, ratio, 0.0, "request")
    assert (share * 300.0 > least) == (ratio > 1.0 / share - 1.0)


def test_a_success_funded_budget_leaves_only_its_reserve():
    """Nothing succeeds, so nothing is paid in: the ratio does not count."""
    for reserve, least in ((0.0, 300.0), (10.0, 290.0), (1000.0, 75.0)):
        assert least_vulnerable_load(300.0, 4, 5.0, reserve, "success") == pytest.approx(least)
