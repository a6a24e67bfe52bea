"""How long things take: means and spreads of the shapes."""

from math import exp, pi, sqrt
from random import Random
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.sim import Duration

MANY = 20_000


def drawn(duration, many=MANY, seed=1):
    draw = duration.sampler(Random(seed))
    return [draw() for _ in range(many)]


@pytest.mark.parametrize(
    ("duration", "mean", "spread"),
    [
        (Duration(0.5), 0.5, 0.0),
        (Duration(0.5, "exponential"), 0.5, 0.5),
        (Duration(0.5, "uniform", spread=0.2), 0.5, 0.2 / sqrt(3)),
        (Duration(0.5, "normal", spread=0.1), 0.5, 0.1),
        (Duration(0.0, "normal", spread=0.1), 0.1 * sqrt(2 / pi), 0.1 * sqrt(1 - 2 / pi)),
        (Duration(0.5, "lognormal", spread=0.25), 0.5, 0.25),
    ],
    ids=repr,
)
def test_mean_and_spread_are_as_said(duration, mean, spread):
    """Within five standard errors; a normal one has its sign left out, which counts where the mean is 0."""
    found = drawn(duration)
    assert fmean(found) == pytest.approx(mean, abs=5 * spread / sqrt(MANY) + 1e-12)
    assert stdev(found) == pytest.approx(spread, rel=0.05, abs=1e-12)


@pytest.mark.parametrize(("share", "instant"), [(0.5, 0.693147), (0.9, 2.302585), (0.99, 4.60517)])
def test_exponential_ones_have_the_tail_of_a_queueing_theorist(share, instant):
    """1 - exp(-x), and not only its mean."""
    within = sum(seconds <= instant for seconds in drawn(Duration(1.0, "exponential"))) / MANY
    assert within == pytest.approx(share, abs=5 * sqrt(share * (1 - share) / MANY))
    assert 1 - exp(-instant) == pytest.approx(share, abs=1e-6)


SPREADABLE = st.builds(
    Duration,
    st.floats(0.001, 100.0),
    st.sampled_from(["normal", "lognormal"]),
    st.floats(0.0, 100.0),
)
PLAIN = st.builds(Duration, st.floats(0.0, 100.0), st.sampled_from(["constant", "exponential"]))


@given(duration=st.one_of(SPREADABLE, PLAIN), seed=st.integers(0, 1000))
def test_nothing_takes_less_than_no_time(duration, seed):
    """Whatever the shape."""
    assert all(0.0 <= seconds < float("inf") for seconds in drawn(duration, many=20, seed=seed))


@given(mean=st.floats(0.0, 100.0), part=st.floats(0.0, 1.0), seed=st.integers(0, 1000))
def test_uniform_ones_lie_within_their_spread(mean, part, seed):
    """On both sides of the mean."""
    duration = Duration(mean, "uniform", spread=mean * part)
    assert all(abs(seconds - mean) <= mean * part + 1e-9 for seconds in drawn(duration, many=20, seed=seed))


@given(duration=st.one_of(SPREADABLE, PLAIN), seed=st.integers(0, 1000))
def test_the_same_chance_gives_the_same_durations(duration, seed):
    """All of them, in order."""
    assert drawn(duration, many=5, seed=seed) == drawn(duration, many=5, seed=seed)


def test_a_number_is_a_constant_duration():
    """And a duration is itself."""
    assert Duration.of(0.5) == Duration(0.5, "constant")
    assert Duration.of(Duration(1.0, "exponential")) == Duration(1.0, "exponential")


def test_nothing_takes_no_time_at_all():
    """A mean of 0 may still have a spread."""
    assert Duration(0.0).is_zero
    assert Duration(0.0, "exponential").is_zero
    assert not Duration(0.0, "normal", spread=0.1).is_zero


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mean": -1.0}, "mean must be a number at least 0, not -1.0"),
        ({"mean": float("inf")}, "mean must be a number at least 0 and finite, not inf"),
        ({"mean": 1.0, "shape": "pareto"}, "shape must be one of 'constant', 'exponential', 'uniform', 'normal'"),
        ({"mean": 1.0, "shape": "normal", "spread": -0.1}, "spread must be a number at least 0, not -0.1"),
        ({"mean": 1.0, "spread": 0.1}, "spread must be 0 for the shape 'constant', not 0.1"),
        ({"mean": 1.0, "shape": "exponential", "spread": 0.1}, "spread must be 0 for the shape 'exponential', not 0.1"),
        ({"mean": 1.0, "shape": "uniform", "spread": 2.0}, "spread must be at most the mean of 1.0, not 2.0"),
        ({"mean": 0.0, "shape": "lognormal"}, "mean must be above 0 for the shape 'lognormal', not 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(settings, said):
    """Each error names the value, and what was expected."""
    with pytest.raises(ValueError) as raised:
        Duration(**settings)
    assert said in str(raised.value)
