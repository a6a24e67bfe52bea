"""Worlds: what they are made of, and what they refuse. Each error names the value, and what was expected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.sim import Clients, Controllers, Duration, Limit, Row, Service, Trigger, World

ONE = Clients(count=1)
API = Service("api")


def world(*services, **settings):
    return World(**{"clients": ONE, "services": services or (API,), **settings})


STALL = Trigger("stall", at=1.0, for_=1.0)
HUGE = Trigger("spike", at=5.0, for_=5.0, factor=1e200)
REFUSED = [
    # -- clients
    (lambda: Clients(count=0), "count must be a whole number of at least 1, not 0"),
    (lambda: Clients(count=-3), "count must be a whole number of at least 1, not -3"),
    (lambda: Clients(count=1.5), "count must be a whole number of at least 1, not 1.5"),
    (lambda: Clients(count=True), "count must be a whole number of at least 1, not True"),
    (lambda: Clients(count=200_000_000), "count must be at most 100,000,000, not 200000000"),
    (lambda: Clients(), "Clients needs a value for 'count'"),
    (lambda: Clients(count=1, speed=2.0), "Clients has no 'speed'; it has count, rate"),
    (lambda: Clients(count=1, rate=0), "rate must be a number above 0, not 0"),
    (lambda: Clients(count=1, rate=float("nan")), "rate must be a number above 0, not nan"),
    (lambda: Clients(count=1, rate="fast"), "rate must be a number above 0, not 'fast'"),
    (lambda: Clients(count=1, kind="closed"), "kind must be one of 'open', 'serial', not 'closed'"),
    (lambda: Clients(count=1, arrivals="often"), "arrivals must be one of 'poisson', 'periodic', 'once', not 'often'"),
    (lambda: Clients(count=1, offset="odd"), "offset must be one of 'none', 'random', 'consistent', not 'odd'"),
    (lambda: Clients(count=1, start=-1.0), "start must be a number at least 0, not -1.0"),
    (lambda: Clients(count=1, spread=-1.0), "spread must be a number at least 0, not -1.0"),
    (lambda: Clients(count=1, spread=1.0), "spread needs arrivals = 'once' and an offset"),
    (lambda: Clients(count=1, spread=1.0, arrivals="once"), "spread needs arrivals = 'once' and an offset"),
    (lambda: Clients(count=9, processes=0), "processes must be a whole number of at least 1, not 0"),
    (lambda: Clients(count=9, processes=10), "processes must be at most the 9 clients, not 10"),
    (lambda: Clients(count=1, offset="random"), "offset must be 'none' where arrivals are 'poisson', not 'random'"),
    # -- controllers
    (lambda: Controllers(count=0, rate=1.0), "count must be a whole number of at least 1, not 0"),
    (lambda: Controllers(count=1, rate=1.0, keys=0), "keys must be a whole number of at least 1, not 0"),
    (lambda: Controllers(count=1, rate=-1.0), "rate must be a number at least 0, not -1.0"),
    (lambda: Controllers(count=1, relist=-1.0), "relist must be a number at least 0, not -1.0"),
    (lambda: Controllers(count=1, resync=0.0), "resync must be a number above 0, not 0.0"),
    (lambda: Controllers(count=1, rate=1.0, workers=0), "workers must be a whole number of at least 1, not 0"),
    (lambda: Controllers(count=1, rate=1.0, slow=0), "slow must be a number above 0, not 0"),
    (lambda: Controllers(count=2, rate=1.0, processes=3), "processes must be at most the 2 controllers, not 3"),
    (lambda: Controllers(count=1), "controllers need a rate, a relist or a resync: without one nothing is reconciled"),
    # -- limits
    (lambda: Limit(0), "rate must be a number above 0, not 0"),
    (lambda: Limit(1.0, per=0), "per must be a number above 0, not 0"),
    (lambda: Limit(1.0, kind="leaky"), "kind must be one of 'bucket', 'window', not 'leaky'"),
    (lambda: Limit(1.0, retry_after=-1), "retry_after must be a number at least 0, not -1"),
    (lambda: Limit(1.0, retry_after=0.5), "retry_after must be whole seconds, as the header has them, not 0.5"),
    (lambda: Limit(0.5), "per must admit at least one request at a rate of 0.5, not 1.0"),
    # -- services
    (lambda: Service(""), "a service's name must be a word, not ''"),
    (lambda: Service(7), "a service's name must be a word, not 7"),
    (lambda: Service("a", workers=0), "workers must be a whole number of at least 1, not 0"),
    (lambda: Service("a", service_time=-1.0), "service_time: mean must be a number at least 0, not -1.0"),
    (lambda: Service("a", network="far"), "network: mean must be a number at least 0, not 'far'"),
    (lambda: Service("a", queue_limit=-1), "queue_limit must be a whole number of at least 0, not -1"),
    (lambda: Service("a", order="random"), "order must be one of 'fifo', 'lifo', not 'random'"),
    (lambda: Service("a", drop_expired=1), "drop_expired must be True or False, not 1"),
    (lambda: Service("a", error_rate=1.5), "error_rate must be a number at least 0 and at most 1, not 1.5"),
    (lambda: Service("a", status=200), "status must be a whole number of at least 400, not 200"),
    (lambda: Service("a", status=600), "status must be from 400 to 599, not 600"),
    (lambda: Service("a", calls=7), "calls must be names of services, not 7"),
    (lambda: Service("a", calls=["b", ""]), "a name in calls must be a word, not ''"),
    (lambda: Service("a", policy="retry"), "policy must be a Policy, not 'retry'"),
    (lambda: Service("a", cold_start=-1.0), "cold_start must be a number at least 0, not -1.0"),
    (lambda: Service("a", cold_capacity=0), "cold_capacity must be a number above 0 and at most 1, not 0"),
    (lambda: Service("a", limit=5.0), "limit must be a Limit, not 5.0"),
    (lambda: Row("\n"), "a row's name must be a word, not '\\n'"),
    (lambda: Row("row", network=0.0), "network must be above 0"),
    # -- triggers
    (
        lambda: Trigger("fire", 1.0, 1.0),
        "kind must be one of 'error', 'stall', 'slow', 'capacity', 'spike', not 'fire'",
    ),
    (lambda: Trigger("error", -1.0, 1.0), "at must be a number at least 0, not -1.0"),
    (lambda: Trigger("error", 1.0, 0.0), "for must be a number above 0, not 0.0"),
    (lambda: Trigger("error", 1.0, 1.0, share=0), "share must be a number above 0 and at most 1, not 0"),
    (lambda: Trigger("error", 1.0, 1.0, status=302), "status must be a whole number of at least 400, not 302"),
    (lambda: Trigger("error", 1.0, 1.0, retry_after=2.5), "retry_after must be whole seconds"),
    (lambda: Trigger("error", 1.0, 1.0, factor=2.0), "factor has no meaning for the kind 'error': leave it out"),
    (lambda: Trigger("stall", 1.0, 1.0, factor=2.0), "factor has no meaning for the kind 'stall': leave it out"),
    (lambda: Trigger("stall", 1.0, 1.0, share=0.5), "share has no meaning for the kind 'stall': leave it out"),
    (lambda: Trigger("slow", 1.0, 1.0, status=500), "status has no meaning for the kind 'slow': leave it out"),
    (lambda: Trigger("spike", 1.0, 1.0, retry_after=5), "retry_after has no meaning for the kind 'spike'"),
    (lambda: Trigger("capacity", 1.0, 1.0, factor=1.5), "factor must be a number at least 0 and at most 1, not 1.5"),
    (lambda: Trigger("slow", 1.0, 1.0, factor=0), "factor must be a number above 0, not 0"),
    # -- worlds
    (lambda: world(clients=3), "clients must be Clients or Controllers, not 3"),
    (lambda: world(services=()), "services must hold at least one service, not none"),
    (lambda: world(services=7), "services must be a list of Service or Row, not 7"),
    (lambda: world("api"), "services must be a list of Service or Row; 'api' is not"),
    (lambda: world(triggers=["error"]), "triggers must be a list of Trigger; 'error' is not"),
    (lambda: world(policy="retry"), "policy must be a Policy, not 'retry'"),
    (lambda: world(horizon=0), "horizon must be a number above 0, not 0"),
    (lambda: world(horizon=float("inf")), "horizon must be a number above 0 and finite, not inf"),
    (lambda: world(horizon=1e15), "horizon must be at most 1,000,000 s, not 1000000000000000.0"),
    (lambda: world(warmup=-1), "warmup must be a number at least 0, not -1"),
    (lambda: world(warmup=60.0), "warmup must be less than the horizon of 60, not 60.0"),
    (lambda: world(tells_layers="yes"), "tells_layers must be True or False, not 'yes'"),
    (lambda: world(API, API), "services: must have different names; two are called 'api'"),
    (lambda: world(clients=Clients(1, calls="db")), "clients: calls 'db', which is not a service; there are api"),
    (lambda: world(Service("a", calls="b")), "services.a: calls 'b', which is not a service; there are a"),
    (lambda: world(Service("a", calls="a")), "services.a: calls form a cycle: a -> a"),
    (lambda: world(clients=Clients(1, start=60.0)), "clients: start must be before the horizon of 60, not 60.0"),
    (
        lambda: world(clients=Controllers(1, relist=99.0)),
        "controllers: relist must be before the horizon of 60, not 99.0",
    ),
    (lambda: world(triggers=Trigger("error", 60.0, 1.0)), "triggers.0: at must be before the horizon of 60, not 60.0"),
    (
        lambda: world(triggers=Trigger("error", 1.0, 1.0, "db")),
        "triggers.0: service 'db' is not a service; there are api",
    ),
    (
        lambda: world(Row("row"), triggers=Trigger("stall", 1.0, 1.0)),
        "triggers.0: kind 'stall' has no meaning for a row",
    ),
    # -- more calls than anybody can wait for
    (
        lambda: world(clients=Clients(10, rate=1e300), horizon=10.0),
        "clients: count 10 with a rate of 1e+300 over 10 s is 1e+302 calls; at most 1,000,000,000 are simulated",
    ),
    (lambda: world(clients=Clients(10**8, arrivals="periodic")), "clients: count 100000000 with a rate of 1 over 60 s"),
    (
        lambda: world(clients=Clients(10), triggers=[STALL, Trigger("spike", at=5.0, for_=5.0, factor=1e9)]),
        "triggers.1: factor 1e+09 for 5 s makes it 5e+10 calls; at most 1,000,000,000 are simulated",
    ),
    (lambda: world(clients=Clients(10), triggers=[HUGE, HUGE]), "triggers.0: factor 1e+200 for 5 s makes it inf calls"),
    (
        lambda: world(clients=Controllers(10, rate=1e9)),
        "controllers: count 10 with 1 keys, a rate of 1e+09 over 60 s is 6e+11 reconciles; at most 1,000,000,000 are",
    ),
    (
        lambda: world(clients=Controllers(10, resync=1e-9)),
        "a rate of 0, a resync of 1e-09 over 60 s is 6e+11 reconciles",
    ),
    (
        lambda: world(clients=Controllers(1, keys=10**400, relist=1.0)),
        "keys must be a whole number of at least 1 and at most",
    ),
    (lambda: world().run(seed=-1), "seed must be a whole number of at least 0, not -1"),
    (lambda: world().run(engine="fast"), "engine must be one of 'exact', 'coroutine', 'fleet', not 'fast'"),
]


@pytest.mark.parametrize(("made", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_is_refused_by_name(made, said):
    """At construction, before anything runs."""
    with pytest.raises((TypeError, ValueError)) as raised:
        made()
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "clients", [Clients(10_000_000, rate=0.1), Clients(10**8, arrivals="once"), Clients(10**8, rate=0.1)]
)
def test_a_large_fleet_is_not_too_much(clients):
    """Ten million clients with six calls each, and as many as there may be."""
    assert world(clients=clients).clients is clients


def test_a_spike_counts_for_as_long_as_it_lasts():
    """A large factor is no harm where it is short, nor what lies behind the horizon."""
    world(clients=Clients(1000), triggers=Trigger("spike", at=59.9, for_=1000.0, factor=1e6))


@pytest.mark.parametrize("engine", ["exact", "coroutine", "fleet"])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clients": Clients(10, rate=1e-300)}, "no call was made before the horizon of 60 s"),
        (
            {"clients": Clients(10, arrivals="once"), "warmup": 5.0},
            "no call was made after the warm-up of 5 s before the horizon of 60 s",
        ),
    ],
)
def test_a_run_without_calls_says_so(settings, said, engine):
    """An empty table needs a word."""
    (note,) = world(**settings).run(1, engine).notes
    assert note == f"{said}: there is nothing to measure"


def test_a_longer_cycle_is_told_from_where_it_begins():
    """What leads into it is not part of it."""
    services = [Service("in", calls="a"), Service("a", calls="b"), Service("b", calls="c"), Service("c", calls="a")]
    with pytest.raises(ValueError, match=r"form a cycle: a -> b -> c -> a$"):
        world(*services)


@st.composite
def stacks(draw):
    """Services that call later ones only."""
    size = draw(st.integers(2, 6))
    later = [draw(st.sets(st.integers(place + 1, size - 1))) if place + 1 < size else set() for place in range(size)]
    return [tuple(f"s{number}" for number in sorted(numbers)) for numbers in later]


@given(calls=stacks(), data=st.data())
def test_services_may_call_each_other_unless_one_comes_back_to_itself(calls, data):
    """A service that several others call is no circle; a call back to one of its callers is."""
    services = [Service(f"s{place}", calls=called) for place, called in enumerate(calls)]
    assert len(world(*services).services) == len(services)
    reached = {place: {place} for place in range(len(calls))}
    for place in reversed(range(len(calls))):
        for name in calls[place]:
            reached[place] |= reached[int(name[1:])]
    top = data.draw(st.integers(0, len(calls) - 1))
    bottom = data.draw(st.sampled_from(sorted(reached[top])))
    back = Service(f"s{bottom}", calls=(*calls[bottom], f"s{top}"))
    with pytest.raises(ValueError, match="form a cycle"):
        world(*(back if service.name == back.name else service for service in services))


def test_what_is_offered_is_said_by_count_and_rate():
    """Clients that call once offer no rate; controllers offer their changes and their rounds."""
    assert Clients(count=100, rate=0.5).offered == 50.0
    assert Clients(count=100, arrivals="once").offered == 0.0
    assert Controllers(count=10, keys=60, rate=0.5, resync=30.0).offered == 25.0


def test_a_services_capacity_is_that_of_its_workers():
    """Without a service time there is no bound."""
    assert Service("a", workers=4, service_time=Duration(0.5, "exponential")).capacity == 8.0
    assert Service("a").capacity == float("inf")


@pytest.mark.parametrize(
    ("rate", "per", "most"), [(0.29, 100.0, 29), (1.1, 10.0, 11), (2.5, 1.0, 2), (1 / 49, 49.0, 1)]
)
def test_a_limit_lets_whole_requests_pass(rate, per, most):
    """0.29 per second are 29 in 100 s, whatever the float says; half a request is none."""
    assert Limit(rate, per).burst == most


@pytest.mark.parametrize(("kind", "factor"), [("slow", 2.0), ("capacity", 0.5), ("spike", 2.0), ("error", None)])
def test_a_trigger_without_a_factor_has_the_usual_one(kind, factor):
    """Where its kind has one at all."""
    assert Trigger(kind, 1.0, 1.0).factor == factor


def test_trouble_is_from_the_first_trigger_to_the_end_of_the_last():
    """None without triggers."""
    assert world().trouble is None
    triggers = [Trigger("stall", 20.0, 5.0), Trigger("error", 10.0, 30.0), Trigger("slow", 12.0, 1.0)]
    assert world(triggers=triggers).trouble == (10.0, 40.0)


def test_clients_call_the_first_service_unless_told_otherwise():
    """By its name."""
    services = [Service("a"), Service("b")]
    assert (world(*services).entry, world(*services, clients=Clients(1, calls="b")).entry) == ("a", "b")


def test_one_value_may_stand_for_a_list_of_one():
    """A service, a trigger, a name in calls."""
    made = World(ONE, API, triggers=Trigger("error", 1.0, 1.0))
    assert (made.services, len(made.triggers), Service("a", calls="b").calls) == ((API,), 1, ("b",))


def test_worlds_are_values():
    """Frozen, and compared by what they say, policies too."""
    policy = abate.Policy(on=abate.sim.simulated)
    assert world(policy=policy) == world(policy=policy.replace())
    assert world(policy=policy) != world(policy=policy.replace(max_attempts=9))
    with pytest.raises(AttributeError, match="frozen"):
        world().horizon = 5.0


def test_serial_clients_need_not_pause():
    """However high their rate: they call no more often than they are answered."""
    eager = Clients(10, rate=1e9, kind="serial")
    run = World(eager, [Service("api", workers=2, service_time=0.1)], horizon=10.0).run()
    assert run.calls == 10 + 2 * 99
