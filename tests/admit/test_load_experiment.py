"""The load experiment compares latencies with and without a raised limit."""

import pytest

from abate.admit.latency_model import LatencyModel
from abate.admit.load_experiment import (
    BASELINE_DRIFT,
    EXPERIMENT_AFTER,
    EXPERIMENT_SECONDS,
    LIMIT_GROWTH,
    LoadExperiment,
)

DRIFT = BASELINE_DRIFT ** (EXPERIMENT_AFTER + EXPERIMENT_SECONDS)


def slow_dependency():
    """Return latencies whose usual value is 0.1 s, and that have been slow lately."""
    latencies = LatencyModel(0.0)
    latencies.baseline = 0.1
    latencies.recent, latencies.lowest_baseline = 0.5, 0.05
    return latencies


def answers(experiment, latencies, limit, seconds, now, until):
    """Feed an answer every 10 ms until an instant; return the limit."""
    while now < until:
        now += 0.01
        limit = experiment.on_answer(now - seconds, now, limit, latencies, interfered=False)
    return limit


def raised():
    """Return an experiment that has just raised a limit of 20."""
    experiment, latencies = LoadExperiment(0.0), slow_dependency()
    limit = answers(experiment, latencies, 20.0, 0.5, 0.6, EXPERIMENT_AFTER + 0.1)
    assert (limit, experiment.runs) == (20.0 * LIMIT_GROWTH, True)
    return experiment, latencies, limit


def test_the_limit_goes_back_if_answers_become_slower_in_proportion():
    """The attempts wait in a queue of our own making; the baseline falls as well."""
    experiment, latencies, limit = raised()
    limit = answers(experiment, latencies, limit, 0.5 * LIMIT_GROWTH, EXPERIMENT_AFTER + 0.8, 16.5)
    assert (limit, experiment.runs) == (pytest.approx(20.0), False)
    assert latencies.baseline == pytest.approx(0.1 / DRIFT)


def test_the_limit_stays_if_answers_do_not_become_slower():
    """The server itself is slower: the baseline rises."""
    experiment, latencies, limit = raised()
    limit = answers(experiment, latencies, limit, 0.5, EXPERIMENT_AFTER + 0.8, 16.5)
    assert (limit, experiment.runs) == (20.0 * LIMIT_GROWTH, False)
    assert latencies.baseline == pytest.approx(0.1 * DRIFT)


def test_the_baseline_does_not_fall_below_the_lowest_one():
    """What was measured in calm is the lower bound."""
    experiment, latencies, limit = raised()
    latencies.lowest_baseline = 0.09
    answers(experiment, latencies, limit, 0.5 * LIMIT_GROWTH, EXPERIMENT_AFTER + 0.8, 16.5)
    assert latencies.baseline == 0.09


def test_interference_ends_an_experiment():
    """Later answers are compared anew, with the limit as it is."""
    experiment, latencies, limit = raised()
    assert experiment.on_answer(11.0, 11.5, limit, latencies, interfered=True) == limit
    assert not experiment.runs
