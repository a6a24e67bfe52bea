"""Services that call services: the worker waits, deadlines are passed on, and of several layers one retries."""

from itertools import pairwise

import pytest

import abate
from abate.sim import Clients, Service, World


def policy(attempts=3, **settings):
    """Retries at once, as often as it may."""
    settings = {"backoff": [0.0], "budget": abate.Budget.unlimited(), **settings}
    return abate.Policy(on=abate.sim.simulated, max_attempts=attempts, **settings)


def once(*services, **settings):
    """One call of a stack of services."""
    return World(Clients(count=1, arrivals="once"), services, horizon=100.0, **settings).run()


def test_services_are_called_one_after_the_other():
    """After the worker's own part."""
    run = once(
        Service("a", service_time=1.0, calls=("b", "c")), Service("b", service_time=2.0), Service("c", service_time=4.0)
    )
    assert (run.successes, run.completed) == (1, 7.0)


def test_the_worker_waits_for_those_it_calls():
    """A request that comes meanwhile finds it busy."""
    services = [Service("a", service_time=1.0, calls="b"), Service("b", workers=9, service_time=2.0)]
    run = World(Clients(count=2, arrivals="once"), services).run()
    assert run.latencies == [3.0, 6.0]
    assert (run.loads["a"].busy, run.loads["b"].busy) == (6.0, 4.0)


def test_the_first_that_fails_is_the_last_that_is_called():
    """A bad gateway, for those further out."""
    run = once(Service("a", calls=("b", "c")), Service("b", error_rate=1.0, status=404), Service("c"))
    assert (run.reasons, run.loads["b"].requests, run.loads["c"].requests) == ({"attempts": 1}, 1, 0)


def stack(depth, attempts, **settings):
    """How many requests reach the bottom, where everything fails; each layer and the clients retry."""
    names = [f"s{place}" for place in range(depth)]
    services = [Service(name, calls=below, policy=policy(attempts)) for name, below in pairwise(names)]
    run = once(*services, Service(names[-1], error_rate=1.0), policy=policy(attempts), **settings)
    return run.loads[names[-1]].requests, run.reasons


@pytest.mark.parametrize(("depth", "attempts"), [(1, 3), (2, 3), (3, 4), (5, 3)])
def test_layers_that_are_not_told_multiply(depth, attempts):
    """Three attempts at five layers are 243 requests at the bottom."""
    assert stack(depth, attempts, tells_layers=False) == (attempts**depth, {"attempts": 1})


@pytest.mark.parametrize("depth", [2, 5])
def test_of_layers_that_are_told_the_innermost_retries(depth):
    """And the clients say why they stopped."""
    assert stack(depth, 3) == (3, {"layer": 1})


def test_a_service_without_a_policy_has_nothing_to_tell():
    """It has not retried, so those who call it may."""
    run = once(Service("a", calls="b"), Service("b", error_rate=1.0), policy=policy(3))
    assert (run.loads["b"].requests, run.reasons) == (3, {"attempts": 1})


def test_an_error_that_is_not_retried_is_no_layer():
    """The caller may still retry it."""
    run = once(Service("a", calls="b", policy=policy(3)), Service("b", error_rate=1.0, status=404), policy=policy(3))
    assert (run.loads["b"].requests, run.reasons) == (3, {"attempts": 1})


@pytest.mark.parametrize(("tells", "requests", "reason"), [(True, 3, "layer"), (False, 11, "attempts")])
def test_a_deadline_is_passed_on_where_layers_are_told(tells, requests, reason):
    """An inner policy gives up when its caller has; without being told it goes on to its last attempt."""
    inner = policy(11, backoff=[1.0])
    run = once(
        Service("a", calls="b", policy=inner),
        Service("b", error_rate=1.0),
        policy=policy(1, timeout=2.5),
        tells_layers=tells,
    )
    assert (run.loads["b"].requests, run.reasons) == (requests, {reason: 1})
