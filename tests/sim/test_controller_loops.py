"""Controllers in a simulated world: keys are not lost, have one worker each, and come back as the judge says."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import Backoff, Budget, Policy
from abate.sim import Controllers, Duration, Service, Trigger, World
from abate.sim.controller_loops import start_controllers
from abate.sim.server import answer
from abate.sim.simulation import Simulation

FINE = None
POLICY = Policy(on=abate.sim.simulated, backoff=Backoff(1.0, jitter="none"), budget=Budget.unlimited())


class Scripted:
    """In the place of a service: answers each request by the script, the last line of it from then on."""

    def __init__(self, stage, *script):
        self.agenda = stage.agenda
        self.script = list(script)
        self.sent = []
        self.in_flight = {}
        self.most = {}

    def submit(self, request):
        client = request.owner.client
        self.sent.append((self.agenda.now(), client))
        self.in_flight[client] = self.in_flight.get(client, 0) + 1
        self.most[client] = max(self.most.get(client, 0), self.in_flight[client])
        seconds, status = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.agenda.at(self.agenda.now() + seconds, self.answer, (request, status))

    def answer(self, answered):
        request, status = answered
        self.in_flight[request.owner.client] -= 1
        request.reply(request, None if status is FINE else answer(status)())


def watched(controllers, *script, policy=POLICY, horizon=100.0):
    """Run controllers against a scripted service, in a world that knows of these failures."""
    failing = [Trigger("error", 0.0, 1.0, status=status) for status in (404, 502)]
    stage = Simulation(World(controllers, [Service("api")], policy=policy, triggers=failing, horizon=horizon), 1, False)
    stage.entry = Scripted(stage, *script)
    start_controllers(stage)
    stage.agenda.run(horizon)
    return stage.recorder, stage.entry


def test_a_change_is_reconciled():
    """Each need is a call, which ends with the reconcile that met it."""
    run = World(
        Controllers(count=3, keys=2, relist=1.0), Service("api", workers=9, service_time=0.5), horizon=9.0
    ).run()
    assert (run.calls, run.successes, run.attempts, run.failures) == (6, 6, 6, 0)
    assert run.latencies == [0.5, 0.5, 0.5, 1.0, 1.0, 1.0]  # one worker per controller, two keys


def test_needs_that_come_while_a_key_waits_are_one():
    """Two rounds while the first reconcile is under way make one more for both, counted from the first of them."""
    recorder, server = watched(Controllers(count=1, resync=1.0), (2.9, FINE), (0.05, FINE), horizon=4.2)
    first = server.sent[0][0]
    assert [at - first for at, _ in server.sent[:3]] == pytest.approx([0.0, 2.9, 3.0])
    assert list(recorder.latencies)[:3] == pytest.approx([2.9, 1.95, 0.05])


def test_a_need_is_met_by_a_reconcile_that_began_after_it():
    """What changes while it is under way needs another one."""
    recorder, server = watched(Controllers(count=1, resync=2.0), (3.0, FINE), (0.5, FINE), horizon=5.9)
    first = server.sent[0][0]
    assert [at - first for at, _ in server.sent][:2] == pytest.approx([0.0, 3.0])
    # the first took 3 s; the second need came 2 s after it, and was met 0.5 s after it was taken up
    assert recorder.latencies[:2] == pytest.approx([3.0, 1.5])


@pytest.mark.parametrize(
    ("policy", "status", "gaps"),
    [
        (POLICY, 503, [1.0, 2.0, 4.0, 8.0]),
        (POLICY.replace(backoff=Backoff(0.25, jitter="none")), 503, [1.0, 2.0, 4.0, 8.0]),  # overload: from a second on
        (POLICY.replace(backoff=Backoff(0.25, jitter="none")), 502, [0.25, 0.5, 1.0, 2.0]),
        (POLICY.replace(max_attempts=1), 503, [1.0, 2.0, 4.0, 8.0]),  # a queue knows no last attempt
    ],
)
def test_what_fails_comes_back_by_the_judges_backoff(policy, status, gaps):
    """Until it succeeds, and as one call."""
    controllers, script = Controllers(count=1, relist=1.0), [*[(0.0, status)] * 4, (0.0, FINE)]
    recorder, server = watched(controllers, *script, policy=policy)
    instants = [at for at, _ in server.sent]
    assert [later - earlier for earlier, later in pairwise(instants)] == pytest.approx(gaps)
    assert recorder.latencies == [pytest.approx(sum(gaps))]
    assert (sum(recorder.calls), sum(recorder.successes), recorder.reasons) == (1, 1, {})


def test_a_success_forgets_the_failures():
    """The next failure begins with the first delay again."""
    script = [(0.0, 503), (0.0, 503), (0.0, FINE), (0.0, 503), (0.0, FINE)]
    _, server = watched(Controllers(count=1, resync=20.0), *script, horizon=39.0)
    instants = [at for at, _ in server.sent]
    assert [later - earlier for earlier, later in pairwise(instants)][:4] == pytest.approx([1.0, 2.0, 17.0, 1.0])


def test_without_a_budget_it_comes_back_slowly():
    """Half up or down around `slow`."""
    policy = POLICY.replace(budget=Budget.empty())
    _, server = watched(Controllers(count=1, relist=1.0, slow=40.0), (0.0, 503), (0.0, FINE), policy=policy)
    (first, _), (second, _) = server.sent
    assert 20.0 <= second - first <= 60.0


def test_what_is_fatal_is_parked():
    """Its need has failed; a later one brings the key back."""
    recorder, server = watched(Controllers(count=1, resync=10.0), (0.0, 404), (0.0, FINE), horizon=19.0)
    assert len(server.sent) == 2
    assert (dict(recorder.reasons), sum(recorder.successes)) == ({"fatal": 1}, 1)


def test_a_need_that_came_meanwhile_survives_a_fatal_failure():
    """It was not what failed: the key comes back for it, and it is met."""
    recorder, server = watched(Controllers(count=1, resync=2.0), (3.0, 404), (0.5, FINE), horizon=5.9)
    first = server.sent[0][0]
    assert [at - first for at, _ in server.sent][:2] == pytest.approx([0.0, 3.0])
    assert dict(recorder.reasons) == {"fatal": 1}
    assert recorder.latencies[0] == pytest.approx(1.5)


def test_any_number_of_keys_may_fail_at_once():
    """They are taken one after the other, not one within the other."""
    world = World(
        Controllers(count=1, keys=5000, relist=1.0),
        Service("api", service_time=0.5),
        policy=POLICY,
        triggers=Trigger("error", 1.2, 10.0),
        horizon=9000.0,
    )
    run = world.run()
    assert (run.calls, run.successes, run.failures) == (5000, 5000, 0)


@settings(max_examples=40)
@given(
    keys=st.integers(1, 4),
    workers=st.integers(1, 4),
    count=st.integers(1, 3),
    script=st.lists(
        st.tuples(st.sampled_from([0.0, 0.3, 2.0]), st.sampled_from([FINE, 503, 404])), min_size=1, max_size=30
    ),
)
def test_a_key_has_one_worker_at_most(keys, workers, count, script):
    """And a controller no more than its workers."""
    controllers = Controllers(count=count, keys=keys, workers=workers, rate=2.0)
    _, server = watched(controllers, *script, (0.5, FINE), horizon=20.0)
    assert max(server.most.values()) <= min(keys, workers)


@settings(max_examples=40)
@given(
    controllers=st.builds(
        Controllers,
        st.integers(1, 4),
        st.integers(1, 5),
        rate=st.just(0.0),
        relist=st.floats(0.0, 5.0),
        resync=st.just(None),
        workers=st.integers(1, 3),
        slow=st.just(5.0),
        processes=st.just(1),
    ),
    service=st.builds(
        Service,
        st.just("api"),
        workers=st.integers(1, 3),
        service_time=st.sampled_from([0.0, 0.2, Duration(0.2, "exponential")]),
        queue_limit=st.sampled_from([None, 0, 2]),
        network=st.sampled_from([0.0, 0.05]),
    ),
    trigger=st.builds(
        Trigger, st.sampled_from(["error", "stall", "capacity"]), st.floats(0.0, 5.0), st.floats(0.1, 5.0)
    ),
    policy=st.sampled_from(
        [
            POLICY,
            POLICY.replace(backoff=Backoff(0.5), budget=Budget(0.2, 0.1)),
            POLICY.replace(backoff=Backoff(0.5), attempt_timeout=1.0),
            POLICY.replace(shelter=abate.Shelter()),
        ]
    ),
    seed=st.integers(0, 50),
)
def test_no_key_is_lost(controllers, service, trigger, policy, seed):
    """When the trouble is over every need is met, however often it was refused or timed out."""
    run = World(controllers, service, policy=policy, triggers=trigger, horizon=600.0).run(seed)
    assert run.calls == controllers.count * controllers.keys
    assert (run.successes, run.failures) == (run.calls, 0)


@settings(max_examples=20)
@given(seed=st.integers(0, 100), rate=st.sampled_from([0.5, 3.0]), status=st.sampled_from([503, 404]))
def test_needs_are_met_or_failed_or_still_open(seed, rate, status):
    """Never more than there were."""
    controllers = Controllers(count=5, keys=3, rate=rate, resync=7.0)
    service = Service("api", workers=2, service_time=0.1, error_rate=0.3, status=status)
    run = World(controllers, service, policy=POLICY, horizon=30.0).run(seed)
    still_open = run.calls - run.successes - run.failures
    assert 0 <= still_open <= 5 * 3 * 2  # a key has a need that waits, and one that is worked on
