"""The oracle: no policy answers more calls, and what it sends is answered."""

from functools import partial
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import Backoff, Budget, Policy, Shelter
from abate.sim import Clients, Controllers, Duration, Limit, Row, Service, Trigger, World, oracle, simulated
from abate.sim.agenda import Agenda, RandomStreams
from abate.sim.server import Request, Server

HORIZON = 30.0
SILENCE = Trigger("spike", 20.0, 10.0, factor=1e-9)
"""No more calls, so that all are over at the horizon."""
NAIVE = Policy(
    on=simulated, max_attempts=8, attempt_timeout=1.5, backoff=Backoff(0.1, jitter="none"), budget=Budget.unlimited()
)
POLICIES = st.sampled_from([None, NAIVE, NAIVE.replace(backoff=Backoff(0.2), budget=Budget(), shelter=Shelter())])
TRIGGERS = st.lists(
    st.builds(
        lambda kind, at, lasts, **more: Trigger(kind, at, lasts, **(more if kind == "error" else {})),
        st.sampled_from(["error", "error", "stall", "slow", "capacity", "spike"]),
        st.sampled_from([0.0, 3.0, 4.0, 9.0]),
        st.sampled_from([0.2, 2.0, 5.0]),
        share=st.sampled_from([1.0, 1.0, 0.4]),
        status=st.sampled_from([503, 500]),
    ),
    max_size=3,
).map(lambda some: [*some, SILENCE])
SERVICES = st.builds(
    partial(Service, "api"),
    workers=st.integers(1, 4),
    service_time=st.sampled_from([0.0, 0.05, 0.3]),
    queue_limit=st.sampled_from([None, 0, 3, 20]),
    order=st.sampled_from(["fifo", "lifo"]),
    drop_expired=st.booleans(),
    error_rate=st.sampled_from([0.0, 0.1]),
    network=st.sampled_from([0.0, 0.02]),
    cold_start=st.sampled_from([0.0, 1.0]),
)


def clients_of(timeouts):
    return st.builds(
        Clients,
        st.integers(4, 12),
        st.sampled_from([0.3, 1.0, 3.0]),
        arrivals=st.sampled_from(["poisson", "periodic", "once"]),
        processes=st.integers(1, 4),
        timeouts=timeouts,
    )


def worlds(clients):
    return st.builds(World, clients, SERVICES, POLICIES, TRIGGERS, horizon=st.just(HORIZON))


@settings(max_examples=80)
@given(world=worlds(clients_of(st.sampled_from([(1.0,), (3.0,), (8.0,)]))), seed=st.integers(0, 1000))
def test_no_policy_answers_more_calls(world, seed):
    """Whatever the policy and the trouble, with service times that do not vary and one timeout."""
    ideal, run = oracle.run(world, seed), world.run(seed)
    assert run.series["calls"] == ideal.series["calls"]
    assert run.successes <= ideal.successes


@settings(max_examples=60)
@given(world=worlds(clients_of(st.sampled_from([(2.0,), (1.0, 4.0, 9.0)]))), seed=st.integers(0, 1000))
def test_what_it_sends_is_answered_in_time(world, seed):
    """Its attempts, made at the service by clients without a policy: no error, no refusal, and none waits in the queue
    unless an outage is about to begin.
    """
    # attempts are counted when they arrive, the oracle knows which fail by chance, and answers in no time have no order
    plain = {"network": 0.0, "error_rate": 0.0, "service_time": world.services[0].service_time.mean or 0.1}
    service = Service(**{**vars(world.services[0]), **plain})
    world = World(**{**vars(world), "services": [service]})
    ideal = oracle.run(world, seed, raster=True)
    agenda, answers = Agenda(), []
    triggers = [trigger for trigger in world.triggers if trigger.share == 1.0]
    known = World(world.clients, world.services, triggers=triggers, horizon=world.horizon)
    server = Server(service, known, agenda, RandomStreams(seed))

    def send(_):
        server.submit(Request(lambda request, failure: answers.append(failure), None, None))

    for at, _ in ideal.points:
        # twice at one instant: so it comes after the answer at that instant that makes a worker free
        agenda.at(at, lambda at: agenda.at(at, send, None), at)
    agenda.run(world.horizon + 1.0)
    assert answers == [None] * ideal.attempts == [None] * ideal.successes
    assert ideal.loads["api"].wasted == ideal.loads["api"].full == ideal.loads["api"].errors == 0


@settings(max_examples=40)
@given(
    count=st.integers(2, 6),
    workers=st.integers(1, 2),
    timeout=st.sampled_from([0.5, 1.2, 3.0]),
    down=st.sampled_from([(0.0, 1.0), (0.5, 0.3), (0.7, 2.0)]),
    seed=st.integers(0, 1000),
)
def test_it_answers_as_many_as_the_best_order(count, workers, timeout, down, seed):
    """All orders of all selections of a few calls were tried: none answers more."""
    clients = Clients(count, arrivals="once", offset="random", spread=1.5, timeouts=(timeout,))
    service = Service("api", workers, 0.4, queue_limit=0)
    world = World(clients, [service], triggers=[Trigger("error", *down)], horizon=10.0)
    arrivals = [at for at, _ in World(clients, [Service("api")], horizon=10.0).run(seed, raster=True).points]

    def answered(order):
        free = [0.0] * workers
        for at in order:
            start = max(at, min(free))
            if down[0] <= start < sum(down):
                start = sum(down)
            if start + 0.4 > at + timeout:
                return 0
            free[free.index(min(free))] = start + 0.4
        return len(order)

    best = max(answered(order) for size in range(count + 1) for order in permutations(arrivals, size))
    assert oracle.run(world, seed).successes == best


def test_it_sends_nothing_while_the_service_is_down():
    """Neither into errors nor into a stall; what the queue holds when an outage begins is served in it."""
    outages = [Trigger("error", 5.0, 5.0), Trigger("stall", 15.05, 2.0)]
    world = World(Clients(100, timeouts=(8.0,)), [Service("api", 50, 0.04)], triggers=outages, horizon=30.0)
    run = oracle.run(world, seed=1)
    assert sum(run.series["attempts"][50:100]) == sum(run.series["attempts"][151:170]) == 0
    assert sum(run.series["calls"][151:170]) > 150
    assert sum(run.series["calls"][50:100]) > 400
    assert run.measures()["success"] == 1.0
    spike = Trigger("spike", 4.0, 1.0, factor=3.0)
    crowd = World(world.clients, [Service("api", 5, 0.04, queue_limit=40)], None, [spike, outages[0]], 30.0)
    run = oracle.run(crowd, seed=1)
    assert sum(run.series["attempts"][50:100]) == 0
    assert sum(run.series["successes"][50:100]) == 40 + 5


@pytest.mark.parametrize(
    ("clients", "triggers", "attempts", "done"),
    [
        (Clients(500, arrivals="once"), [Trigger("error", 0.0, 3.0), Trigger("slow", 3.0, 1.0)], 500, 5.0),
        (Clients(300, arrivals="once"), [Trigger("error", 0.0, 2.0, retry_after=2.0)], 300, 2.9),
    ],
)
def test_a_herd_is_served_as_fast_as_the_service_can(clients, triggers, attempts, done):
    """333 per second from the end of the outage on, and half of that while it is slow."""
    run = oracle.run(World(clients, [Service("api", 10, 0.03, queue_limit=50)], triggers=triggers), seed=1)
    assert (run.attempts, run.successes) == (attempts, attempts)
    assert run.completed == pytest.approx(done)


def test_a_storm_of_five_seconds_costs_nothing_with_more_patience():
    """At 60 % load, the backlog of an outage is worked off before its oldest call is 7.5 s old; 4 s are too few."""
    triggers = [Trigger("error", 5.0, 5.0), Trigger("slow", 10.0, 2.0, factor=1.5)]
    service = Service("api", 10, 0.03, queue_limit=50)
    lost = {}
    for timeout in (7.5, 4.0):
        world = World(Clients(200, timeouts=(timeout,)), [service], triggers=triggers, horizon=35.0)
        lost[timeout] = 1.0 - oracle.run(world, seed=1).measures()["success"]
    assert lost[7.5] == 0.0
    assert lost[4.0] == pytest.approx(1.5 / 35, abs=0.02)


@pytest.mark.parametrize("shape", ["exponential", "lognormal"])
def test_where_service_times_vary_calls_that_fit_go_first(shape):
    """A request that takes long goes to a call with time for it; more than nine in ten of what can be served is."""
    work = Duration(0.2, shape, spread=0.4 if shape == "lognormal" else 0.0)
    world = World(Clients(30, timeouts=(0.5, 3.0)), [Service("api", 4, work)], horizon=100.0)
    run = oracle.run(world, seed=3)
    assert run.reasons.keys() == {"deadline"}
    assert run.loads["api"].busy > 0.9 * 4 * 100.0
    assert run.latencies[-1] <= 3.0


UNDEFINED = {
    "reconcile": World(Controllers(3, relist=1.0), [Service("api")]),
    "serial": World(Clients(3, kind="serial"), [Service("api")]),
    "code": World(Clients(3, code="app:fetch"), [Service("api")]),
    "row": World(Clients(3), [Row("row")]),
    "several queues": World(Clients(3), [Service("api", calls=("db",)), Service("db")]),
    "rate limit": World(Clients(3), [Service("api", limit=Limit(3.0))]),
    "network": World(Clients(3), [Service("api", network=Duration(0.1, "exponential"))]),
}


@pytest.mark.parametrize("word", UNDEFINED)
def test_worlds_without_an_oracle_tell_why(word):
    """No figure is better than a wrong one."""
    assert word in oracle.undefined(UNDEFINED[word])


def test_one_call_of_each_serial_client_is_known_before():
    """Serial clients that call once do not wait for results."""
    assert oracle.undefined(World(Clients(3, kind="serial", arrivals="once"), [Service("api")])) == ""


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"timeout": 4.0}, 4.0),
        ({"attempt_timeout": 1.0}, 3 * 1.0 + 2 * 1.0),
        ({"attempt_timeout": 1.0, "shelter": Shelter(patience=7.0)}, 3 * (1.0 + 7.0) + 2 * 1.0),
        ({}, float("inf")),
    ],
)
def test_calls_have_the_time_that_their_policy_allows(changes, limit):
    """Its timeout, or what attempts and waits can add up to."""
    policy = Policy(**{"on": simulated, "max_attempts": 3, "backoff": [1.0], **changes})
    world = World(Clients(3), [Service("api")], policy)
    assert oracle.time_limits(world) == (limit,)
    asks = World(Clients(3), [Service("api")], policy, [Trigger("error", 1.0, 1.0, retry_after=2.0)])
    assert oracle.time_limits(asks) == (changes.get("timeout", float("inf")),)
    assert oracle.time_limits(World(Clients(3, timeouts=[2, 9]), [Service("api")], policy)) == (2.0, 9.0)


# -- timeouts of clients


@pytest.mark.parametrize("engine", ["exact", "coroutine"])
def test_clients_take_the_timeouts_in_turn(engine):
    """In a long outage each call waits for as long as its own timeout, behind one shelter per process."""
    clients = Clients(6, arrivals="once", processes=2, timeouts=[1.0, 2.0, 4.0])
    policy = Policy(on=simulated, max_attempts=99, backoff=[0.25], budget=abate.Budget.unlimited())
    outage = Trigger("error", 0.0, 30.0)
    world = World(clients, [Service("api")], policy, [outage], horizon=20.0)
    run = world.run(1, engine)
    assert run.reasons == {"deadline": 6}
    assert [sum(run.series["attempts"][at : at + 10]) for at in (0, 10, 20, 30)] == [24, 16, 8, 8]


def test_the_timeouts_of_a_process_share_its_shelter():
    """The first that notices an outage holds back the others, too."""
    shelter = Shelter(patience=9.0)
    policy = Policy(on=simulated, max_attempts=5, budget=Budget(), shelter=shelter)
    attempts = {}
    for timeouts in ((8.0,), (8.0, 8.0, 8.0, 8.0)):
        clients = Clients(40, processes=2, timeouts=timeouts)
        world = World(clients, [Service("api", 9, 0.1)], policy, [Trigger("error", 5.0, 6.0)], horizon=30.0)
        attempts[len(timeouts)] = sum(world.run(1).series["attempts"][50:110])
    assert attempts[4] < 1.5 * attempts[1]


@pytest.mark.parametrize("wrong", [{"timeouts": [0.0]}, {"timeouts": [1.0], "code": "app:fetch"}])
def test_timeouts_that_mean_nothing_are_refused(wrong):
    """Each is above 0; clients with their own code have their own."""
    with pytest.raises(ValueError, match="timeouts"):
        Clients(3, **wrong)


def test_timeouts_are_a_list():
    """A text or a number is none."""
    for wrong in ("5", 5.0):
        with pytest.raises(TypeError, match="timeouts must be a list of seconds"):
            Clients(3, timeouts=wrong)
