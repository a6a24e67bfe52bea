"""The exact engine: the same seed gives the same run, nothing is lost, and what was given is left alone."""

import gc
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import AdaptiveThrottle, Backoff, Budget, CircuitBreaker, ConcurrencyLimit, Policy, Shelter, TokenBucket
from abate.sim import Clients, Controllers, Duration, Limit, Row, Service, Trigger, World, exact_engine
from tests.sim import queueing

POLICY = Policy(on=abate.sim.simulated, max_attempts=4, backoff=Backoff(0.2), budget=Budget(0.2, 1.0))
POLICIES = st.sampled_from(
    [
        None,
        POLICY,
        POLICY.replace(timeout=2.0),
        POLICY.replace(attempt_timeout=0.3),
        POLICY.replace(shelter=Shelter(capacity=5, patience=3.0)),
        POLICY.replace(gate=TokenBucket(20.0, burst=3) & ConcurrencyLimit(5)),
        POLICY.replace(gate=AdaptiveThrottle()),
        POLICY.replace(gate=CircuitBreaker()),
        POLICY.replace(budget=Budget(0.5, funded_by="request")),
    ]
)
CLIENTS = st.one_of(
    st.builds(Clients, st.integers(1, 20), st.sampled_from([0.5, 3.0]), st.sampled_from(["open", "serial"])),
    st.builds(
        Clients,
        st.integers(1, 20),
        kind=st.sampled_from(["open", "serial"]),
        arrivals=st.sampled_from(["periodic", "once"]),
        offset=st.sampled_from(["none", "random", "consistent"]),
    ),
    st.builds(Controllers, st.integers(1, 5), st.integers(1, 4), rate=st.just(0.5), resync=st.just(4.0)),
)
SERVICES = st.builds(
    lambda inner, **settings: [
        Service("api", calls=inner, policy=POLICY, **settings),
        Service("db", service_time=0.05),
    ],
    inner=st.sampled_from([(), ("db",)]),
    workers=st.integers(1, 3),
    service_time=st.sampled_from([0.0, 0.1, Duration(0.1, "exponential")]),
    queue_limit=st.sampled_from([None, 2]),
    order=st.sampled_from(["fifo", "lifo"]),
    drop_expired=st.booleans(),
    error_rate=st.sampled_from([0.0, 0.2]),
    network=st.sampled_from([0.0, Duration(0.05, "uniform", 0.01)]),
    cold_start=st.sampled_from([0.0, 1.0]),
    limit=st.sampled_from([None, Limit(10.0), Limit(10.0, kind="window")]),
)
TRIGGERS = st.lists(
    st.builds(
        Trigger,
        st.sampled_from(["error", "stall", "slow", "capacity", "spike"]),
        st.sampled_from([0.0, 2.0, 5.0]),
        st.sampled_from([1.0, 3.0, 50.0]),
    ),
    max_size=2,
)
WORLDS = st.builds(World, CLIENTS, SERVICES, POLICIES, TRIGGERS, horizon=st.just(12.0), tells_layers=st.booleans())


def figures(run):
    """A run as text: not a number is equal to itself there."""
    return str((run.series, run.reasons, run.latencies, run.loads, run.completed, run.measures(), run.points))


@settings(max_examples=60)
@given(world=WORLDS, seed=st.integers(0, 1000))
def test_the_same_seed_gives_the_same_run(world, seed):
    """Down to the last latency, whatever ran before it."""
    assert figures(world.run(seed, raster=True)) == figures(world.run(seed, raster=True))


def test_another_seed_gives_another_run():
    """Where chance has a part in it."""
    world = World(Clients(count=50), [Service("api", service_time=Duration(0.1, "exponential"))])
    assert len({figures(world.run(seed)) for seed in range(5)}) == 5


@settings(max_examples=100)
@given(world=WORLDS, seed=st.integers(0, 1000))
def test_calls_succeed_or_fail_or_are_under_way(world, seed):
    """None of them twice, and every attempt belongs to a call; services lose nothing either."""
    run = world.run(seed)
    under_way = run.unfinished
    assert run.calls == run.successes + run.failures + under_way
    assert min(run.series["unfinished"]) >= 0
    assert len(run.latencies) == run.successes
    most = 4 if world.policy is not None else 1
    if isinstance(world.clients, Clients):
        assert run.attempts <= most * run.calls
    if isinstance(world.clients, Clients) and world.clients.kind == "serial":
        assert under_way <= world.clients.count
    for load in run.loads.values():
        ended = load.served + load.full + load.errors + load.limited + load.expired
        assert load.requests >= ended
        assert 0.0 <= load.wasted <= load.busy + 1e-9


@settings(max_examples=60)
@given(clients=CLIENTS, services=SERVICES, policy=POLICIES, seed=st.integers(0, 1000))
def test_in_the_end_every_call_of_clients_that_call_once_is_over(clients, services, policy, seed):
    """Nothing hangs: what was sent comes to an end when nothing new arrives."""
    if isinstance(clients, Controllers):
        clients = Controllers(count=clients.count, keys=clients.keys, relist=1.0)
    else:
        clients = Clients(count=clients.count, arrivals="once")
    run = World(clients, services, policy, [Trigger("stall", 1.0, 5.0)], horizon=2000.0).run(seed)
    assert run.calls == run.successes + run.failures


@settings(max_examples=30)
@given(world=WORLDS, seed=st.integers(0, 1000))
def test_one_client_is_a_world_too(world, seed):
    """All that can be said of many can be said of one."""
    if isinstance(world.clients, Clients):
        one = Clients(count=1, rate=3.0, kind=world.clients.kind)
        run = World(one, world.services, world.policy, world.triggers, 12.0).run(seed)
        assert run.measures()["fairness"] == pytest.approx(1.0)


def test_production_objects_are_left_as_they_were():
    """A policy's own budget, gate and shelter see nothing of a world in which all of them were used up."""
    budget, bucket, shelter = Budget(0.1, 0.5), TokenBucket(0.001, burst=7), Shelter(capacity=3)
    policy = POLICY.replace(budget=budget, gate=bucket, shelter=shelter)
    known = dict(policy.rulings_by_type)
    world = World(Clients(count=50), Service("api"), policy, Trigger("error", 5.0, 20.0), horizon=30.0)
    assert world.run().measures()["denials"] > 0
    assert (budget.balance(), bucket.burst, shelter.state, shelter.waiters) == (5.0, 7, "calm", 0)
    assert [bucket.try_acquire() for _ in range(8)] == [True] * 7 + [False]
    assert policy.rulings_by_type == known


def test_each_run_begins_with_a_full_budget():
    """What one run has spent is not missing in the next."""
    policy = Policy(on=abate.sim.simulated, max_attempts=2, backoff=[0.0], budget=Budget(0.0, 0.5))
    world = World(Clients(count=20, arrivals="once"), Service("api", error_rate=1.0), policy)
    assert [world.run(seed).attempts for seed in range(3)] == [25, 25, 25]


@pytest.mark.parametrize(("processes", "attempts"), [(1, 25), (2, 30), (4, 40), (20, 40)])
def test_each_process_has_a_budget_of_its_own(processes, attempts):
    """Five retries each, as long as its clients need them."""
    policy = Policy(on=abate.sim.simulated, max_attempts=2, backoff=[0.0], budget=Budget(0.0, 0.5))
    clients = Clients(count=20, arrivals="once", processes=processes)
    assert World(clients, Service("api", error_rate=1.0), policy).run().attempts == attempts


def test_without_a_policy_there_is_one_attempt():
    """And why it failed is told all the same."""
    run = World(Clients(count=5, arrivals="once"), Service("api", error_rate=1.0)).run()
    assert (run.attempts, run.reasons) == (5, {"attempts": 5})


def test_who_retries_what_is_not_simulated_is_told_so():
    """A policy for another client's errors is taken to retry what HTTP would; one for HTTP's is taken as it is."""
    api = Service("api", error_rate=1.0)
    foreign = Policy(on=KeyError, name="orders", max_attempts=2, backoff=[0.0])
    run = World(Clients(count=5, arrivals="once"), api, foreign).run()
    assert run.attempts == 10
    assert run.notes == ("policy 'orders' matches none of the simulated errors: the HTTP rules are used",)
    assert World(Clients(count=5, arrivals="once"), api, foreign.replace(on=abate.http.transient)).run().notes == ()


def test_a_policys_own_rules_decide():
    """What it would not retry is fatal; what it would is retried, whatever HTTP's table says."""

    def reasons(on, status):
        policy = Policy(on=on, max_attempts=2, backoff=[0.0], budget=Budget.unlimited())
        return dict(
            World(Clients(count=1, arrivals="once"), Service("api", error_rate=1.0, status=status), policy)
            .run()
            .reasons
        )

    assert reasons(abate.sim.simulated, 404) == {"fatal": 1}
    assert reasons(abate.http.status(404), 404) == {"attempts": 1}
    assert reasons(abate.http.status(503), 500) == {"fatal": 1}


@pytest.mark.parametrize("on", [abate.sim.simulated, abate.http.transient, KeyError])
def test_what_an_inner_service_could_not_do_is_worth_another_attempt(on):
    """For clients with any rules, and for controllers: a bad gateway that has not been retried."""
    services = [Service("a", calls="b"), Service("b")]
    policy = Policy(on=on, max_attempts=2, backoff=[4.0], budget=Budget.unlimited())
    for clients in (Clients(count=1, arrivals="once"), Controllers(count=1, relist=0.0)):
        run = World(clients, services, policy, Trigger("error", 0.0, 2.0, service="b")).run()
        assert (run.attempts, run.successes, run.reasons) == (2, 1, {})


@pytest.mark.parametrize("on", [abate.sim.simulated, abate.http.transient])
def test_hints_are_kept_by_each_reader(on):
    """By the header or by the ruling: no retry comes before that time."""
    policy = Policy(on=on, max_attempts=2, backoff=[0.5], budget=Budget.unlimited())
    trigger = Trigger("error", 0.0, 1.0, retry_after=4)
    assert World(Clients(count=1, arrivals="once"), Service("api"), policy, trigger).run().completed == 4.5


def test_of_several_that_write_a_row_at_once_one_wins():
    """The others conflict, and come back until they have written."""
    policy = Policy(on=abate.sim.simulated, max_attempts=100, backoff=Backoff(0.01), budget=Budget.unlimited())
    run = World(Clients(count=20, arrivals="once"), Row("row"), policy).run()
    assert (run.successes, run.failures, run.loads["row"].served) == (20, 0, 20)
    assert run.loads["row"].errors == run.attempts - 20 >= 19


def test_a_service_that_calls_two_draws_their_jitter_apart():
    """Each call has a stream of chance of its own, or both would wait alike."""
    services = [
        Service("a", calls=("b", "c"), policy=POLICY, workers=99),
        Service("b", error_rate=0.5),
        Service("c", error_rate=0.5),
    ]
    stage = exact_engine.Simulation(World(Clients(count=1), services), 1, False)
    first, second = (caller._policy.random_source.random() for caller in stage.servers["a"].callers)
    assert first != second


def test_the_garbage_collector_is_left_as_it_was():
    """On or off, and also when a run breaks off."""
    world = World(Clients(count=3), Service("api"))
    for on in (True, False):
        (gc.enable if on else gc.disable)()
        try:
            world.run()
            assert gc.isenabled() is on
        finally:
            gc.enable()


def test_a_trigger_that_ends_after_the_horizon_is_cut():
    """It has begun, and never ends."""
    run = World(Clients(count=10), Service("api"), None, Trigger("error", 30.0, 1000.0)).run()
    assert (run.measures()["recovery"], run.successes > 0, run.failures > 0) == (float("inf"), True, True)


# -- the horizon and the warm-up, in all engines

ENGINES = pytest.mark.parametrize("engine", ["exact", "coroutine", "fleet"])
BOTH_CROWDS = pytest.mark.parametrize("timeout", [None, 500.0])  # clients without timeouts take a shorter way


@ENGINES
@BOTH_CROWDS
def test_a_service_that_stops_is_seen_to_be_dead(engine, timeout):
    """Calls that wait for it until the horizon are no successes."""
    policy = Policy(on=abate.sim.simulated, max_attempts=1, timeout=timeout)
    stall = Trigger("stall", at=1.0, for_=59.0)
    api = Service("api", workers=10, service_time=0.1)
    run = World(Clients(count=100), api, policy, stall, horizon=60.0).run(1, engine=engine)
    found = run.measures()
    assert found["success"] < 0.03
    assert (found["p50"], found["p99"]) == (float("inf"), float("inf"))
    assert run.calls == run.successes + run.failures + run.unfinished
    assert found["unfinished"] == run.unfinished > 5000


@ENGINES
@BOTH_CROWDS
def test_the_calls_that_a_healthy_run_ends_with_do_no_harm(engine, timeout):
    """They are cut off, not late."""
    policy = Policy(on=abate.sim.simulated, max_attempts=1, timeout=timeout)
    run = World(Clients(count=100), Service("api", workers=20, service_time=0.1), policy).run(1, engine=engine)
    assert run.unfinished > 0
    assert run.measures()["success"] == 1.0
    assert run.measures()["p999"] < 1.0


@ENGINES
@BOTH_CROWDS
def test_services_count_nothing_of_the_warm_up(engine, timeout):
    """M/M/1/10 at 0.8: the share that finds it full is that of the closed form, whatever came before the warm-up."""
    queue = Service("q", service_time=Duration(0.02, "exponential"), queue_limit=9)
    policy = Policy(on=abate.sim.simulated, max_attempts=1, timeout=timeout)
    world = World(Clients(count=40), queue, policy, Trigger("stall", 10.0, 40.0), 200.0, warmup=60.0)
    run = world.run(3, engine=engine)
    found = run.measures()
    assert found["requests.q"] == run.attempts
    assert found["blocking.q"] == pytest.approx(0.8**10 * 0.2 / (1 - 0.8**11), abs=0.012)
    assert run.loads["q"].busy / 140.0 == pytest.approx(0.8 * (1 - found["blocking.q"]), rel=0.05)


@ENGINES
@BOTH_CROWDS
def test_work_that_was_wasted_in_the_warm_up_does_not_count(engine, timeout):
    """A stall before its end leaves no trace in what is wasted, nor in the fairness."""
    policy = Policy(on=abate.sim.simulated, max_attempts=1, attempt_timeout=timeout and 0.5)
    api = Service("api", workers=10, service_time=0.05)
    world = World(Clients(count=40), api, policy, Trigger("stall", 2.0, 10.0), 60.0, warmup=30.0)
    found = world.run(1, engine=engine).measures()
    assert (found["wasted"], found["success"]) == (0.0, 1.0)
    # all but those whose calls are under way
    assert found["fairness"] > 0.999


@pytest.mark.parametrize("engine", ["exact", "coroutine"])
def test_a_row_counts_nothing_of_the_warm_up(engine):
    """Writes that conflicted before are not its load."""
    row = Row("row", network=0.01)
    run = World(Clients(count=20, arrivals="once"), row, POLICY, horizon=60.0, warmup=50.0).run(1, engine=engine)
    assert (run.loads["row"].requests, run.loads["row"].errors, run.calls) == (0, 0, 0)


@pytest.mark.parametrize("warmup", [0.0, 4.0])
@settings(max_examples=40)
@given(world=WORLDS, seed=st.integers(0, 1000))
def test_both_engines_of_events_see_the_same_calls_under_way(warmup, world, seed):
    """To the count, slot by slot, and so do all figures that come of it."""
    names = ("success", "unfinished", "p50", "p99", "fairness", "wasted", "requests.api", "blocking.api")
    world = World(world.clients, world.services, world.policy, world.triggers, world.horizon, warmup)
    one, other = world.run(seed), world.run(seed, engine="coroutine")
    assert one.series["unfinished"] == other.series["unfinished"]
    assert str([one.measures()[name] for name in names]) == str([other.measures()[name] for name in names])
    assert one.calls == len(one.latencies) + one.failures + one.unfinished


@pytest.mark.parametrize(
    ("rate", "workers", "places", "full", "time"),
    [(0.8, 1, 10, 0.023493, 3.7971), (3.6, 4, 20, 0.016805, 2.1950)],
)
def test_queues_have_the_published_figures(rate, workers, places, full, time):
    """M/M/1/10 at 0.8 and M/M/4 with 20 places at 3.6: within four standard errors of twelve seeds."""
    assert queueing.blocking(rate, 1.0, workers, places) == pytest.approx(full, abs=5e-7)
    assert queueing.mean_time(rate, 1.0, workers, places) == pytest.approx(time, abs=5e-5)
    service = Service("api", workers, Duration(1.0, "exponential"), queue_limit=places - workers)
    world = World(Clients(count=10, rate=rate / 10), [service], horizon=24_000.0 / workers, warmup=100.0)
    measures = [world.run(seed).measures() for seed in range(12)]
    for name, expected in (("blocking.api", full), ("mean", time)):
        seen = [run[name] for run in measures]
        error = statistics.stdev(seen) / math.sqrt(len(seen))
        assert abs(statistics.fmean(seen) - expected) < 4.0 * error, (name, statistics.fmean(seen), expected, error)
        assert error < 0.1 * expected  # or the test could not fail
