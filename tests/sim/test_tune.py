"""The search for a policy: it finds what is known to be best, keeps the limit, and tests the difference."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import abate
from abate.sim import Clients, Duration, Service, Trigger, World, simulated
from abate.sim.study import estimate
from abate.sim.tune import Bounds, Candidate, Trial, TrialRun, Tuning, tune

FIXED = {"base": (0.1, 0.1), "cap": (1.0, 1.0), "jitter": ("full",)}
"""What makes no difference to open clients."""


def database(load=24.0, horizon=90.0):
    """HotOS's database at a tenth of its size: it serves 30 requests/s, and more retries than 6/s keep it down."""
    return World(
        Clients(count=100, rate=load / 100),
        [Service("db", workers=3, service_time=Duration(0.1, "exponential"))],
        abate.Policy(on=simulated, max_attempts=2, attempt_timeout=1.0),
        [Trigger("stall", at=10.0, for_=5.0)],
        horizon=horizon,
    )


def flaky():
    """Half of the requests fail: attempts per call depend on how many are allowed."""
    return World(
        Clients(count=100, rate=0.3),
        [Service("api", workers=100, service_time=0.01, error_rate=0.5)],
        triggers=[Trigger("error", at=5.0, for_=2.0)],
        horizon=25.0,
    )


# -- the search


def test_it_finds_the_reserve_that_lets_a_service_come_back():
    """Reserves above the spare capacity never recover; the best lies below, and always recovers."""
    tuning = tune(
        database(),
        2.0,
        Bounds(max_attempts=(2, 2), ratio=(0.0, 0.0), reserve=(0.0, 30.0), **FIXED),
        seeds=4,
        samples=12,
    )
    assert tuning.best.candidate.reserve < 6.0
    assert tuning.best.recovery.never == 0
    assert tuning.best.candidate.max_attempts == 2
    assert tuning.finished


def test_two_policies_that_differ_differ_significantly():
    """Without retries it recovers with every seed, with unlimited retries never."""
    bounds = Bounds(max_attempts=(1, 2), ratio=(0.0, 0.0), reserve=(50.0, 50.0), **FIXED)
    tuning = tune(database(), 2.0, bounds, seeds=5, samples=4)
    assert tuning.best.candidate.max_attempts == 1
    assert tuning.runner_up.candidate.max_attempts == 2
    assert tuning.runner_up.recovery.never == 5
    assert 0.0 < tuning.difference.mean - tuning.difference.within < 75.0
    assert tuning.significant


def test_without_recovery_nothing_is_significant():
    """A trigger that lasts beyond the horizon: the infinite recoveries are counted, and the difference is 0."""
    world = flaky()
    endless = World(world.clients, world.services, triggers=[Trigger("error", at=5.0, for_=60.0)], horizon=20.0)
    tuning = tune(endless, 5.0, seeds=2, samples=6)
    assert tuning.best.recovery.never == 2
    assert (tuning.difference.mean, tuning.difference.within) == (0.0, 0.0)
    assert not tuning.significant
    assert not tuning.recovers


@pytest.mark.parametrize(("seeds", "finished", "significant"), [(5, True, True), (4, True, False), (9, False, False)])
def test_few_seeds_are_never_significant(seeds, finished, significant):
    """However large the difference: it takes five pairs, and a search that was not interrupted."""
    ahead, behind = (Trial(Candidate(), (TrialRun(time, 1.0, 1.0),) * seeds, 1.5) for time in (1.0, 50.0))
    tuning = Tuning((ahead,), ahead, behind, estimate([49.0] * seeds), 1.5, 100, finished)
    assert tuning.significant == significant
    assert tuning.recovers


@pytest.mark.parametrize("limit", [1.1, 1.4])
def test_it_keeps_the_limit(limit):
    """The best stays within it, and it is the first of the trials that do."""
    tuning = tune(flaky(), limit, seeds=3, samples=30)
    fitting = [trial for trial in tuning.trials if trial.fits]
    assert fitting[0].candidate == tuning.best.candidate
    assert all(trial.amplification.mean <= limit for trial in fitting)
    assert tuning.best.amplification.mean <= limit * 1.02  # with fresh seeds it may exceed the limit slightly


def test_without_a_candidate_within_the_limit_there_is_no_best():
    """At least two attempts, all paid for, and a limit of 1."""
    tuning = tune(flaky(), 1.0, Bounds(reserve=(50.0, 50.0)), seeds=2, samples=4)
    assert tuning.best is tuning.runner_up is tuning.difference is None
    assert tuning.trials
    assert not tuning.significant


def test_finalists_are_ranked_and_run_with_all_seeds():
    """Each was run with every seed, and no two have the same figures."""
    tuning = tune(flaky(), 1.5, seeds=6, samples=20)
    assert len(tuning.trials) >= 3
    assert all(len(trial.runs) == 6 for trial in tuning.trials)
    assert [trial.rank for trial in tuning.trials] == sorted(trial.rank for trial in tuning.trials)
    assert len({trial.runs for trial in tuning.trials}) == len(tuning.trials)


def test_the_same_seed_gives_the_same_result():
    """And another seed gives another result."""
    found = [tune(flaky(), 1.5, seeds=2, samples=6, seed=seed) for seed in (7, 7, 8)]
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_the_best_is_compared_with_seeds_that_did_not_choose_it():
    """Its figures are not those that it was chosen for."""
    tuning = tune(flaky(), 1.5, seeds=3, samples=6)
    chosen = next(trial for trial in tuning.trials if trial.candidate == tuning.best.candidate)
    fresh = [tuning.best.candidate.world(flaky()).run(seed).measures() for seed in (3, 4, 5)]
    assert tuning.best.runs == tuple(TrialRun(run["recovery"], run["amplification"], run["success"]) for run in fresh)
    assert tuning.best.runs != chosen.runs


# -- progress and interrupts


def test_progress_counts_every_run_and_stays_within_the_plan():
    """The plan does not change on the way."""
    told = []
    tuning = tune(flaky(), 1.5, seeds=3, samples=6, progress=lambda done, planned: told.append((done, planned)))
    done, planned = zip(*told, strict=True)
    assert list(done) == list(range(1, tuning.total_runs + 1))
    assert len(set(planned)) == 1
    assert done[-1] <= planned[0]


@pytest.mark.parametrize("after", [2, 7, 20])
def test_an_interrupt_returns_what_was_found(after):
    """All trials have as many runs as there were complete rounds, and the best is the first within the limit."""

    def interrupt(done, planned):
        if done > after:
            raise KeyboardInterrupt

    tuning = tune(flaky(), 3.0, seeds=15, samples=6, progress=interrupt)
    assert not tuning.finished
    assert tuning.trials
    assert len({len(trial.runs) for trial in tuning.trials}) == 1
    assert tuning.best == next(trial for trial in tuning.trials if trial.fits)


def test_an_interrupt_of_the_first_run_returns_nothing():
    """No trials, no best, and no error."""

    def interrupt(done, planned):
        raise KeyboardInterrupt

    tuning = tune(flaky(), 1.5, seeds=2, samples=4, progress=interrupt)
    assert (tuning.trials, tuning.best, tuning.difference, tuning.finished) == ((), None, None, False)


# -- ranking


def trial(*runs, limit=1.5):
    return Trial(Candidate(), tuple(TrialRun(*each) for each in runs), limit)


def test_recovering_more_often_ranks_before_recovering_sooner():
    """The limit counts most, then recovery, then success between those that are as fast."""
    steady = trial((9.0, 1.2, 0.9), (9.0, 1.2, 0.9))
    lucky = trial((1.0, 1.2, 0.9), (math.inf, 1.2, 0.9))
    never = trial((math.inf, 1.2, 0.9), (math.inf, 1.2, 0.9))
    greedy = trial((0.0, 1.6, 0.9), (0.0, 1.6, 0.9))
    kinder = trial((9.1, 1.3, 0.95), (9.1, 1.3, 0.95))
    order = sorted([never, greedy, lucky, steady, kinder], key=lambda each: each.rank)
    assert order == [kinder, steady, lucky, never, greedy]


# -- candidates and bounds


def test_a_candidate_changes_the_policy_and_nothing_else():
    """Timeouts, the budget's window and what it is funded by stay as they were."""
    world = database()
    given_policy = world.policy.replace(
        budget=abate.Budget(0.5, 1.0, 20.0, "request"), backoff=abate.Backoff(factor=3.0)
    )
    world = World(world.clients, world.services, given_policy, world.triggers, world.horizon)
    made = Candidate(5, 0.3, 4.0, "equal", 0.15, 7.0).world(world)
    assert made.policy.max_attempts == 5
    assert made.policy.backoff == abate.Backoff(0.3, 4.0, 3.0, "equal")
    assert made.policy.budget.settings() == (0.15, 7.0, 20.0, "request")
    assert made.policy.attempt_timeout == 1.0
    assert (made.clients, made.services, made.triggers) == (world.clients, world.services, world.triggers)


@example(point=[1.0 - 2.0**-53] * 6, low=0.0)
@given(point=st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=6, max_size=6), low=st.floats(0.0, 3.0))
def test_candidates_lie_within_their_bounds(point, low):
    """However odd the bounds, and the cap never below the base."""
    bounds = Bounds(
        max_attempts=(2, 5), base=(low, low + 1.0), cap=(0.5, 3.3), ratio=(0.111, 0.222), reserve=(0.0, 0.0)
    )
    found = bounds.at(point)
    for name in ("max_attempts", "base", "cap", "ratio", "reserve"):
        least, most = getattr(bounds, name)
        assert least <= getattr(found, name) <= most, name
    assert found.base <= found.cap


def test_without_retries_nothing_else_makes_a_difference():
    """All candidates with one attempt are one."""
    bounds = Bounds(max_attempts=(1, 2))
    assert bounds.at([0.1] * 6) == bounds.at([0.1, 0.9, 0.9, 0.9, 0.9, 0.9])
    assert bounds.at([0.9] * 6) != bounds.at([0.9, 0.1, 0.1, 0.1, 0.1, 0.1])


@pytest.mark.parametrize("fewest", [1, 2])
def test_retries_that_nothing_pays_for_are_none(fewest):
    """A ratio and a reserve of 0 are one policy, whatever the attempts and the backoff."""
    bounds = Bounds(max_attempts=(fewest, 6))
    none = bounds.at([0.1, 0.9, 0.9, 0.9, 0.0, 0.0])
    assert none == bounds.at([0.9, 0.1, 0.1, 0.1, 0.0, 0.0])
    assert (none.max_attempts, none.ratio, none.reserve) == (fewest, 0.0, 0.0)
    assert bounds.at([0.9] * 4 + [0.0, 0.1]).max_attempts == 6


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ratio": (0.5, 0.1)}, "ratio must go from low to high, not from 0.5 to 0.1"),
        ({"retries": (1, 2)}, "Bounds has no 'retries'; it has max_attempts, base, cap, jitter, ratio, reserve"),
        ({"max_attempts": (0, 3)}, "max_attempts must be a whole number of at least 1, not 0"),
        ({"max_attempts": (1.5, 3)}, "max_attempts must be a whole number of at least 1, not 1.5"),
        ({"base": ()}, r"base must be two numbers, the lowest and the highest, not \(\)"),
        ({"cap": 5.0}, "cap must be two numbers, the lowest and the highest, not 5.0"),
        ({"reserve": (0.0, math.inf)}, "reserve must be a number at least 0 and finite, not inf"),
        ({"jitter": ()}, r"jitter must be a list of some of 'full', .*, not \(\)"),
        ({"jitter": "full"}, "jitter must be a list of some of 'full', .*, not 'full'"),
        ({"jitter": ("some",)}, "jitter must be one of 'full', .*, not 'some'"),
        ({"base": (2.0, 3.0), "cap": (0.5, 1.0)}, "cap must reach the lowest base of 2, and goes up to 1 only"),
    ],
)
def test_bad_bounds_are_named(wrong, message):
    """The error says which, and what was expected."""
    with pytest.raises((TypeError, ValueError), match=message):
        Bounds(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"limit": 0.9}, "limit must be a number at least 1, not 0.9"),
        ({"seeds": 0}, "seeds must be a whole number of at least 1, not 0"),
        ({"samples": 0}, "samples must be a whole number of at least 1, not 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, not -1"),
        ({"engine": "steam"}, "engine must be one of 'exact', 'coroutine', 'fleet', not 'steam'"),
    ],
)
def test_a_search_that_cannot_be_is_refused(wrong, message):
    """Before anything was run."""
    with pytest.raises(ValueError, match=message):
        tune(flaky(), **{"limit": 1.5, **wrong})


def test_a_world_without_trouble_has_nothing_to_recover_from():
    """There is nothing to search for."""
    with pytest.raises(ValueError, match="the world has no trigger: there is nothing to recover from"):
        tune(World(Clients(1), [Service("api")]), 1.5)


def test_clients_that_call_once_have_no_recovery():
    """Nothing arrives after the trouble, so nothing shows that it is over."""
    once = World(Clients(50, arrivals="once"), [Service("api")], triggers=[Trigger("error", at=0.0, for_=2.0)])
    with pytest.raises(ValueError, match="no client calls after the trigger"):
        tune(once, 1.5)
