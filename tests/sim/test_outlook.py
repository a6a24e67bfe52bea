"""The outlook of a world's services: it is what the exact engine does, and claims no more than is known."""

import json
import math

import pytest

import abate
from abate.sim import Clients, Controllers, Duration, Limit, Service, Trigger, World, simulated
from abate.sim.outlook import Outlook, outlook
from abate.sim.scenario import Scenario
from abate.sim.study import run_study
from abate.sim.theory import Feedback


def database(load=280.0, *, kind="open", clients=1000, attempts=2, timeout=1.0, budget=None, shelter=None, **service):
    """HotOS's database, its clients and its stall."""
    backoff = abate.Backoff(0.0, 0.0, jitter="none")
    return World(
        Clients(count=clients, rate=load / clients, kind=kind),
        [Service("db", workers=30, service_time=Duration(0.1, "exponential"), **service)],
        abate.Policy(
            on=simulated,
            attempts=attempts,
            attempt_timeout=timeout,
            backoff=backoff,
            budget=budget or abate.Budget.unlimited(),
            shelter=shelter,
        ),
        [Trigger("stall", at=10.0, for_=10.0)],
        horizon=140.0,
    )


def test_the_outlook_is_a_sentence():
    """What is printed for each service."""
    assert [str(line) for line in outlook(database())] == [
        "db: above 150 requests/s this stays down once it falls (capacity 300, offered 280)"
    ]
    assert [str(line) for line in outlook(database(timeout=None))] == [
        "db: comes back by itself at any load below its capacity (capacity 300, offered 280)"
    ]


WORLDS = {
    "as it was": (database, {}, True),
    "half the load": (database, {"load": 120.0}, False),
    "no retries": (database, {"attempts": 1, "load": 200.0}, False),
    "no timeout": (database, {"timeout": None}, False),
    "a short queue": (database, {"queue_limit": 100}, False),
    "a long queue": (database, {"queue_limit": 400}, True),
    "newest first": (database, {"order": "lifo"}, False),
    "rate limit": (database, {"limit": Limit(250.0), "load": 200.0}, False),
    "request-funded": (database, {"budget": abate.Budget(0.2, 0.0, funded_by="request")}, True),
    "request-funded, little": (database, {"budget": abate.Budget(0.2, 0.0, funded_by="request"), "load": 150.0}, False),
    "success-funded": (database, {"budget": abate.Budget(0.2, 0.0), "load": 240.0}, False),
    "reserve": (database, {"budget": abate.Budget(0.2, 40.0)}, True),
    "shelter": (database, {"shelter": abate.Shelter()}, False),
    "serial": (database, {"kind": "serial", "clients": 2000}, True),
    "serial, few": (database, {"kind": "serial", "clients": 400}, False),
}


@pytest.mark.parametrize("name", WORLDS)
def test_the_outlook_is_what_the_exact_engine_does(name):
    """Whether the database comes back within two minutes, or stays down."""
    build, settings, stays_down = WORLDS[name]
    world = build(**settings)
    assert outlook(world)[0].stays_down == stays_down
    assert math.isinf(world.run(seed=3).measures()["recovery"]) == stays_down


def test_the_outlook_of_a_budget_is_the_closed_form():
    """The world's sentence and `Feedback` agree."""
    for budget in (abate.Budget(0.1, 20.0), abate.Budget(0.1, 0.0, funded_by="request"), abate.Budget.unlimited()):
        feedback = Feedback(30, 0.1, 1.0, 3, budget.ratio, budget.reserve, budget.funded_by)
        assert outlook(database(attempts=3, budget=budget))[0].vulnerable == pytest.approx(feedback.vulnerable)


def test_each_process_has_a_reserve_of_its_own():
    """Four processes with a reserve of 10 are as one with 40."""
    world = database(budget=abate.Budget(0.0, 10.0))
    clients = Clients(count=1000, rate=0.28, processes=4)
    apart = World(clients, world.services, world.policy, world.triggers, world.horizon)
    assert outlook(world)[0].vulnerable == pytest.approx(290.0)
    assert outlook(apart)[0].vulnerable == pytest.approx(260.0)


def test_a_deadline_cuts_attempts_off():
    """Five attempts of a second each don't fit into two and a half."""
    world = database(attempts=5)
    shorter = World(world.clients, world.services, world.policy.replace(timeout=2.5), world.triggers, world.horizon)
    assert outlook(world)[0].vulnerable == pytest.approx(60.0)
    assert outlook(shorter)[0].vulnerable == pytest.approx(100.0)


def test_retries_of_all_layers_count_for_the_service_at_the_bottom():
    """Three times three where layers don't tell each other; three where they do."""
    policy = abate.Policy(on=simulated, attempts=3, attempt_timeout=1.0, budget=abate.Budget.unlimited(), backoff=[0.0])
    front = Service("front", workers=10_000, service_time=0.01, calls=("db",), policy=policy)
    db = Service("db", workers=30, service_time=0.1)
    worlds = [World(Clients(100), [front, db], policy, tells_layers=told) for told in (False, True)]
    found = [outlook(world)[1] for world in worlds]
    assert [line.vulnerable for line in found] == [pytest.approx(300.0 / 9), pytest.approx(100.0)]
    assert [line.stays_down for line in found] == [True, True]


def test_a_worker_that_waits_is_one_that_does_not_call():
    """Few workers in front of a service bound what reaches it."""
    policy = abate.Policy(on=simulated, attempts=3, attempt_timeout=1.0, budget=abate.Budget.unlimited(), backoff=[0.0])
    front = Service("front", workers=50, service_time=0.01, calls=("db",), policy=policy)
    db = Service("db", workers=30, service_time=0.1)
    front_line, db_line = outlook(World(Clients(100), [front, db], policy))
    assert db_line.vulnerable is None
    assert front_line.capacity == pytest.approx(50 / 0.11)


@pytest.mark.parametrize(("keys", "vulnerable"), [(1, None), (20, 0.0)])
def test_controllers_bring_every_key_back(keys, vulnerable):
    """Their load when all fails is that of all their keys, whatever changes; as the exact engine has it."""
    plan, boundless = abate.Backoff(1.0, 2.0), abate.Budget.unlimited()
    policy = abate.Policy(on=simulated, attempt_timeout=1.0, backoff=plan, budget=boundless)
    controllers = Controllers(count=400, keys=keys, relist=12.0, workers=2, rate=0.1)
    api, stall = Service("api", workers=30, service_time=0.1), Trigger("stall", at=10.0, for_=10.0)
    world = World(controllers, [api], policy, [stall], horizon=80.0)
    assert outlook(world)[0].vulnerable == vulnerable
    assert math.isinf(world.run(seed=1).measures()["recovery"]) == (vulnerable is not None)


def test_what_has_no_limit_or_is_called_once_comes_back():
    """A service that takes no time, and clients that call once."""
    policy = abate.Policy(on=simulated, attempt_timeout=1.0, budget=abate.Budget.unlimited())
    assert outlook(World(Clients(10), [Service("api")], policy))[0] == Outlook("api", math.inf, 10.0)
    once = World(Clients(10, arrivals="once"), [Service("api", service_time=0.1)], policy)
    assert outlook(once)[0].vulnerable is None


# -- what is not known, or not the retries' doing


@pytest.mark.parametrize(("load", "seed", "recovers"), [(160.0, 3, True), (280.0, 3, False)])
def test_a_service_that_drops_what_has_expired_may_stay_down(load, seed, recovers):
    """Above the same load as others; but from some loads above it, it comes back."""
    world = database(load, drop_expired=True)
    (found,) = outlook(world)
    assert found.vulnerable == pytest.approx(150.0)
    assert found.fate == "may stay down"
    assert not found.stays_down
    assert str(found).startswith("db: above 150 requests/s this may stay down once it falls")
    assert math.isfinite(world.run(seed=seed).measures()["recovery"]) == recovers


def test_of_code_of_their_own_nothing_is_known():
    """Nobody has read how often it tries again."""

    async def fetch(send):
        await send()

    db = Service("db", workers=30, service_time=0.1)
    (found,) = outlook(World(Clients(count=100, code=fetch), [db]))
    assert found == Outlook("db", 300.0, 100.0, fate="not known")
    assert "not known" in str(found)
    assert "comes back" not in str(found)


def test_a_rate_limit_is_the_capacity():
    """Workers that could serve more are of no use, and a line that cannot grow is no danger."""
    assert outlook(database(90.0, limit=Limit(100.0))) == [Outlook("db", 100.0, 90.0)]
    assert outlook(database(280.0, limit=Limit(1000.0)))[0].capacity == pytest.approx(300.0)
    assert outlook(database(120.0, limit=Limit(100.0)))[0].fate == "overloaded"


@pytest.mark.parametrize(("load", "said"), [(310.0, "more than"), (300.0, "all that")])
@pytest.mark.parametrize("attempts", [1, 2])
def test_who_is_offered_more_than_it_can_serve_is_told_so(load, said, attempts):
    """With retries or without: it is not a matter of what goes wrong."""
    (found,) = outlook(database(load, attempts=attempts, timeout=None))
    assert str(found) == f"db: is offered {said} it can serve (capacity 300, offered {load:g})"


def test_those_who_wait_for_a_result_do_not_offer_more():
    """Serial clients slow down with the service."""
    (found,) = outlook(database(310.0, kind="serial", timeout=None))
    assert found.fate == "comes back"


def test_a_fate_that_has_no_range_is_refused():
    """The error says what was expected."""
    with pytest.raises(ValueError, match="vulnerable must be a number where the fate is 'stays down', not None"):
        Outlook("db", 300.0, 280.0, fate="stays down")
    with pytest.raises(ValueError, match=r"fate must be one of 'comes back', .*, not 'dies'"):
        Outlook("db", 300.0, 280.0, fate="dies")


def test_a_study_for_machines_has_the_outlook_and_the_verdicts():
    """Of each case, and all of it is JSON."""
    document = {
        "run": {"horizon": 2.0},
        "clients": {"count": 20},
        "services": {"api": {"workers": 10, "service_time": 0.1}, "free": {}},
        "assert": {"max_amplification": 0.5, "min_success": 0.5},
    }
    (case,) = run_study(Scenario("small", "small.toml", document), seeds=2).as_json()["cases"]
    json.dumps(case, allow_nan=False)
    assert [(sight["service"], sight["capacity"], sight["fate"]) for sight in case["outlook"]] == [
        ("api", 100.0, "comes back"),
        ("free", None, "comes back"),
    ]
    held = {verdict["key"]: verdict["holds"] for verdict in case["verdicts"]}
    assert held == {"max_amplification": False, "min_success": True}
    assert case["verdicts"][0]["seen"]["mean"] == 1.0
