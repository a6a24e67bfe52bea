"""Token buckets against fixed retries: Marc Brooker's figures, their closed forms, and his bucket played by itself.

Success and load are counted over calls that fail by chance, so what may be expected of a run is known: a figure is
reproduced where it lies within four standard errors, his own included. His figures are of 100 clients, ten calls per
second each. For how long is not said: 30 s, as his bucket then has his load (1.121 after 20 s, 1.109 after 50 s). The
budget's window and reserve were fitted to his two loads; at all other rates nothing was.
"""

from functools import cache
from math import sqrt
from random import Random

import pytest

from abate import Backoff, Budget, Policy
from abate.sim import Clients, Duration, Service, World, load_scenario, simulated

CALLS = 30_000
SEEDS = 2
RETRIES = 3


@cache
def seen(variant: str, rate: float) -> tuple[float, float]:
    """Success and load of a variant where requests fail at this rate."""
    return figures(variant, f"services.api.error_rate={rate}")


def figures(variant: str, *settings: str) -> tuple[float, float]:
    scenario = load_scenario("brooker-buckets")
    for setting in settings:
        scenario = scenario.changed(setting)
    world = next(case.world for case in scenario.cases() if case.variant == variant)
    runs = [world.run(seed).measures() for seed in range(SEEDS)]
    return sum(run["success"] for run in runs) / SEEDS, sum(run["amplification"] for run in runs) / SEEDS


def closed_form(rate: float, retries: int) -> tuple[float, float]:
    """Success and load, by the number of retries."""
    return 1 - rate ** (retries + 1), sum(rate**retry for retry in range(retries + 1))


def errors(rate: float, retries: int, calls: float) -> tuple[float, float]:
    """The standard errors of both, by the number of calls."""
    success, load = closed_form(rate, retries)
    squares = sum((2 * retry + 1) * rate**retry for retry in range(retries + 1))
    return sqrt(success * (1 - success) / calls), sqrt((squares - load**2) / calls)


@pytest.mark.parametrize(
    ("rate", "variant", "retries", "success", "load"),
    [
        (0.1, "none", 0, 0.898, 1.0),
        (0.5, "none", 0, 0.501, 1.0),
        (0.1, "three-retries", RETRIES, 0.9999, 1.110),
        (0.5, "three-retries", RETRIES, 0.939, 1.869),
        (0.5, "backoff", RETRIES, 0.939, 1.879),
    ],
)
def test_fixed_retries_as_published(rate, variant, retries, success, load):
    """His figures, which are of one run of his program, lie within the noise of both."""
    found = seen(variant, rate)
    # of his run and of ours; the last digit of a published figure is rounded
    within = [4 * error + 0.0005 for error in errors(rate, retries, 1 / (1 / CALLS + 1 / (CALLS * SEEDS)))]
    assert found[0] == pytest.approx(success, abs=within[0])
    assert found[1] == pytest.approx(load, abs=within[1])


@pytest.mark.parametrize("rate", [0.02, 0.2, 0.3, 0.5, 0.75])
def test_fixed_retries_in_closed_form(rate):
    """Three retries make 1 + p + p² + p³ attempts per call, and all but p⁴ succeed."""
    found, expected = seen("three-retries", rate), closed_form(rate, RETRIES)
    within = errors(rate, RETRIES, CALLS * SEEDS)
    assert found[0] == pytest.approx(expected[0], abs=4 * within[0])
    # a retry that is due after the horizon is not seen: some 20 ms of 30 s
    assert found[1] == pytest.approx(expected[1], abs=4 * within[1] + 0.002)


@pytest.mark.parametrize(("rate", "success", "load"), [(0.1, 0.988, 1.095), (0.5, 0.561, 1.114)])
def test_the_bucket_as_published(rate, success, load):
    """A budget of 10 % of requests, 0.15 per second beside, over 18 s: within 0.003 of his load, and of his success."""
    found = seen("adaptive", rate)
    assert found[1] == pytest.approx(load, abs=0.003)
    assert found[0] == pytest.approx(success, abs=0.003 + 4 * sqrt(rate * (1 - rate) / CALLS))


def bucket(rate: float, clients: int = 100, size: float = 5.0, earned: float = 0.1) -> tuple[float, float]:
    """His bucket, without any time: full at first; a call earns, a retry pays, while more than one token is left."""
    chance, sent, good, calls = Random(1).random, 0, 0, CALLS // clients
    for _ in range(clients):
        tokens = size
        for _ in range(calls):
            tokens = min(size, tokens + earned)
            sent += 1
            failed = chance() < rate
            while failed and tokens > 1:
                tokens -= 1
                sent += 1
                failed = chance() < rate
            good += not failed
    return good / CALLS, sent / CALLS


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.15, 0.2, 0.3, 0.4, 0.75, 1.0])
def test_the_budget_follows_his_bucket(rate):
    """Between and beyond the published rates the two stay within 0.005 of each other's load."""
    found, his = seen("adaptive", rate), bucket(rate)
    assert found[1] == pytest.approx(his[1], abs=0.005)
    assert found[0] == pytest.approx(his[0], abs=0.005 + 4 * sqrt(rate * (1 - rate) / CALLS))


@pytest.mark.parametrize(("clients", "load"), [(10, 1.101), (1000, 1.235)])
def test_many_small_clients_spend_more(clients, load):
    """Each has tokens of its own at first: the same calls, made by more clients, bring more retries."""
    settings = (f"clients.count={clients}", f"clients.processes={clients}", f"clients.rate={1000 / clients}")
    found = figures("adaptive", "services.api.error_rate=0.5", *settings)
    assert found[1] == pytest.approx(load, abs=0.01)
    assert bucket(0.5, clients)[1] == pytest.approx(load, abs=0.01)


@pytest.mark.parametrize("variant", ["none", "three-retries", "backoff", "adaptive"])
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_success_is_the_share_of_attempts_that_do_not_fail(variant, rate):
    """Each attempt is a throw of the same dice, so load times 1 - p succeed, whatever the policy."""
    success, load = seen(variant, rate)
    within = 4 * sqrt(load * rate * (1 - rate) / (CALLS * SEEDS))
    assert success == pytest.approx(load * (1 - rate), abs=within + 0.002)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_backoff_changes_nothing_for_open_clients(rate):
    """They call again whatever became of their last call: load is the same with and without."""
    within = errors(rate, RETRIES, CALLS * SEEDS / 2)[1]
    assert seen("backoff", rate)[1] == pytest.approx(seen("three-retries", rate)[1], abs=4 * within + 0.004)


def test_backoff_relieves_the_server_of_serial_clients():
    """Clients that wait for their own result send less per second when they wait between attempts."""

    def sent(backoff: Backoff | list[float]) -> float:
        world = World(
            Clients(count=100, rate=10.0, kind="serial"),
            [Service("api", workers=1000, error_rate=0.5, status=500, network=Duration(0.01, "exponential"))],
            Policy(on=simulated, max_attempts=RETRIES + 1, backoff=backoff, budget=Budget.unlimited()),
            horizon=20.0,
        )
        return sum(world.run(seed).attempts for seed in range(SEEDS)) / (SEEDS * world.horizon)

    # a round takes 100 ms of thinking and 1.875 attempts of 20 ms each; what is waited in it comes on top: here as
    # much as 0.5 × 100 + 0.25 × 200 + 0.125 × 400 ms
    assert sent([0.0]) == pytest.approx(100 * 1.875 / 0.1375, rel=0.03)
    assert sent(Backoff(0.1, 1.0, jitter="none")) == pytest.approx(100 * 1.875 / 0.2875, rel=0.03)
