"""Layers of retries over a service that fails: k tries at n layers make k to the power of n requests below, or k."""

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abate import Budget, Policy
from abate.sim import Clients, Service, Trigger, World, load_scenario, run_study, simulated


def policy(attempts: int) -> Policy:
    return Policy(on=simulated, max_attempts=attempts, backoff=[0.001], budget=Budget.unlimited())


def stack(tries: list[int], *, tells_layers: bool, calls: int = 1, down: float = 100.0) -> World:
    """The given number of layers above a service that is down: the clients first, the innermost last."""
    last = len(tries)
    services = [
        Service(f"layer-{place}", workers=1000, calls=(f"layer-{place + 1}",), policy=policy(tries[place]))
        for place in range(1, last)
    ]
    return World(
        Clients(count=calls, arrivals="once"),
        [*services, Service(f"layer-{last}", workers=1000)],
        policy(tries[0]),
        [Trigger("error", at=0.0, for_=down, service=f"layer-{last}")],
        horizon=100.0,
        tells_layers=tells_layers,
    )


def below(world: World) -> int:
    """Requests at the innermost service."""
    run = world.run()
    assert run.failures == run.calls
    return run.loads[world.services[-1].name].requests


@pytest.mark.parametrize(("tries", "layers", "requests"), [(3, 5, 243), (4, 3, 64), (3, 3, 27), (2, 8, 256), (1, 5, 1)])
def test_layers_multiply(tries, layers, requests):
    """If no layer reports that it has retried already."""
    assert below(stack([tries] * layers, tells_layers=False)) == requests


@pytest.mark.parametrize(("tries", "layers"), [(3, 5), (4, 3), (2, 8), (3, 1)])
def test_one_layer_retries(tries, layers):
    """Where services tell, the innermost layer alone retries."""
    assert below(stack([tries] * layers, tells_layers=True)) == tries


@settings(max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans(), st.integers(1, 3))
def test_what_reaches_the_bottom_is_the_product_or_the_last(tries, tells_layers, calls):
    """Where services tell, the last layer that retries at all does: one that tries once is no layer."""
    last = next((number for number in reversed(tries) if number > 1), 1)
    expected = last if tells_layers else prod(tries)
    assert below(stack(tries, tells_layers=tells_layers, calls=calls)) == calls * expected


def test_every_layer_sees_the_tries_of_those_above_it():
    """Layer by layer: 3, 9, 27, 81, 243 requests, or 1, 1, 1, 1, 3."""
    for tells_layers, expected in ((False, [3, 9, 27, 81, 243]), (True, [1, 1, 1, 1, 3])):
        loads = stack([3] * 5, tells_layers=tells_layers).run().loads
        assert [loads[f"layer-{place}"].requests for place in range(1, 6)] == expected


def test_one_layer_is_enough_for_a_blip():
    """A failure that the innermost layer gets over costs the same either way, and every call succeeds."""
    for tells_layers in (False, True):
        run = stack([3] * 5, tells_layers=tells_layers, calls=10, down=0.0015).run()
        assert (run.successes, run.attempts, run.loads["layer-5"].requests) == (10, 10, 30)


def test_the_scenario_that_ships():
    """243 requests for a call, and 3 with the layer rule, in every run."""
    study = run_study(load_scenario("deep-stack"), jobs=1)
    requests = {
        result.case.variant: {sample.measures["requests.database"] for sample in result.samples}
        for result in study.results
    }
    assert requests == {"naive": {243.0}, "one-layer": {3.0}}
    assert study.broken() == []
