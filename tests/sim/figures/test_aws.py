"""Contention on one row: AWS's figures, cell by cell. Trials are seeds 0, 1, …; a cell is reproduced where |z| < 4.

The standard error is that of our own trials. The deviation per trial is the one that is known of AWS's program, where
that is (100 and 200 clients), and else our own.
"""

from functools import cache
from math import sqrt
from random import Random
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.sim import load_scenario
from abate.sim.aws_decorrelated import AwsDecorrelated
from abate.sim.scenario import Case

VARIANTS = ("none", "exponential", "equal", "full", "decorrelated")
TABLE = {
    10: ((51, 383), (51, 3568), (42, 734), (39, 463), (38, 436)),
    50: ((690, 1140), (625, 36420), (347, 4274), (333, 2870), (375, 2185)),
    100: ((2424, 2030), (1855, 63399), (812, 6635), (796, 4930), (1002, 4607)),
    150: ((5147, 2882), (3536, 85541), (1325, 8331), (1319, 6395), (1761, 6492)),
    200: ((8816, 3701), (5603, 104926), (1871, 9693), (1889, 7735), (2608, 8301)),
}
"""Clients: calls and milliseconds of each variant, as means."""
DEVIATIONS = {
    100: ((34, 45), (56, 3568), (8, 671), (7, 561), (28, 703)),
    200: ((72, 47), (129, 4343), (13, 649), (12, 568), (65, 939)),
}
"""The same per trial: the standard deviations."""
TRIALS = {10: 100, 50: 50, 100: 30, 150: 15, 200: 12}


def case(variant: str, clients: int) -> Case:
    cases = load_scenario("aws-occ").changed(f"clients.count={clients}").cases()
    return next(case for case in cases if case.variant == variant)


@cache
def trials(variant: str, clients: int, seeds: int) -> tuple[list[float], list[float]]:
    """Calls, and milliseconds until the last client has written."""
    world = case(variant, clients).world
    runs = [world.run(seed) for seed in range(seeds)]
    assert all(run.successes == clients for run in runs)
    return [float(run.attempts) for run in runs], [run.completed * 1000 for run in runs]


def faster(one: str, other: str, clients: int, seeds: int) -> float:
    """By how many standard errors one variant is done before the other."""
    left, right = trials(one, clients, seeds)[1], trials(other, clients, seeds)[1]
    return (fmean(right) - fmean(left)) / sqrt((stdev(left) ** 2 + stdev(right) ** 2) / seeds)


@pytest.mark.parametrize("clients", TABLE)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_cell_of_the_table(variant, clients):
    """Calls and completion time come out as AWS's program has them."""
    place = VARIANTS.index(variant)
    for what, (published, seen) in enumerate(
        zip(TABLE[clients][place], trials(variant, clients, TRIALS[clients]), strict=True)
    ):
        known = DEVIATIONS.get(clients)
        deviation = known[place][what] if known else stdev(seen)
        z = (fmean(seen) - published) / (deviation / sqrt(len(seen)))
        assert abs(z) < 4, f"{'ms' if what else 'calls'}: {fmean(seen):.0f}, published {published}, z = {z:.1f}"


def test_jitter_halves_the_calls():
    """With a hundred clients, full jitter makes less than half of the calls of exponential backoff without it."""
    assert fmean(trials("full", 100, 30)[0]) < 0.5 * fmean(trials("exponential", 100, 30)[0])


def test_exponential_backoff_alone_is_the_slowest():
    """Losers stay in step: with a hundred clients it takes nine times as long as jitter, or as no backoff at all."""
    slowest = fmean(trials("exponential", 100, 30)[1])
    assert slowest > 9 * max(fmean(trials(other, 100, 30)[1]) for other in VARIANTS if other != "exponential")


@pytest.mark.parametrize("clients", [20, 50, 90])
def test_few_clients_are_done_first_with_decorrelated_jitter(clients):
    """Full jitter is not the fastest up to some 130 clients."""
    assert faster("decorrelated", "full", clients, seeds=60) > 2


def test_many_clients_are_done_first_with_full_jitter():
    """Beyond some 130 clients full jitter overtakes decorrelated jitter as AWS draws it."""
    assert faster("full", "decorrelated", 200, seeds=40) > 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_more_clients_take_more_calls_and_more_time(variant):
    """Both grow from 20 clients to 180, and calls faster than the clients do."""
    counts = (20, 60, 100, 140, 180)
    calls, times = zip(*(map(fmean, trials(variant, count, 8)) for count in counts), strict=True)
    assert list(calls) == sorted(calls)
    assert list(times) == sorted(times)
    each = [made / count for made, count in zip(calls, counts, strict=True)]
    assert each == sorted(each)


def test_drawing_below_the_cap_is_faster_than_capping_what_was_drawn():
    """With 200 clients abate's own decorrelated jitter makes the calls that AWS's makes, and is done sooner."""
    ours, theirs = trials("capped-first", 200, 40)[0], trials("decorrelated", 200, 40)[0]
    assert fmean(ours) == pytest.approx(fmean(theirs), rel=0.02)
    assert faster("capped-first", "decorrelated", 200, seeds=40) > 4


@given(
    base=st.floats(0.001, 1.0),
    times=st.floats(1.0, 1000.0),
    previous=st.none() | st.floats(0.0, 100.0),
    seed=st.integers(0, 9),
)
def test_the_published_jitter_lies_between_base_and_cap(base, times, previous, seed):
    """Whatever it waited before, and never more than three times as long."""
    plan = AwsDecorrelated(base, base * times)
    last = base if previous is None else max(base, min(plan.cap, previous))
    delay = plan.delay(1, Random(seed), last)
    assert min(base, plan.cap) <= delay <= min(plan.cap, 3 * last) * (1 + 1e-12)


def test_the_published_jitter_has_the_ceilings_of_its_draws():
    """Each retry may wait three times as long as the last, up to the cap; overload starts from a wider base."""
    plan = AwsDecorrelated(0.005, 2.0)
    assert [plan.ceiling(retry) for retry in (1, 2, 5, 6, 10_000)] == pytest.approx([0.015, 0.045, 1.215, 2.0, 2.0])
    assert plan.at_least(1.0) == AwsDecorrelated(1.0, 2.0)
    assert plan.at_least(5.0) == AwsDecorrelated(2.0, 2.0)
    assert plan.at_least(0.001) is plan


@pytest.mark.parametrize(
    ("backoff", "message"),
    [
        ('{ jitter = "aws-decorrelated", factor = 3.0 }', r"x.toml: \[policy\] backoff has an unknown key 'factor'"),
        ('{ jitter = "aws-decorrelated", base = 0.0 }', r"x.toml: \[policy\] backoff: base must be .* not 0.0"),
        ('{ jitter = "aws-decorrelated", base = 2.0, cap = 1.0 }', r"cap must be at least the base of 2.0, not 1.0"),
    ],
)
def test_bad_settings_of_the_published_jitter_are_named(tmp_path, backoff, message):
    """The error names file, table and key."""
    file = tmp_path / "x.toml"
    file.write_text(f"[clients]\ncount = 1\n[policy]\nbackoff = {backoff}\n[services.api]\n")
    with pytest.raises(ValueError, match=message):
        load_scenario(file)
