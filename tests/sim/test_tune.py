"""The search for a policy: it finds what is known to be best, keeps the limit, and says how sure it is."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import abate
from abate.sim import Clients, Duration, Service, Trigger, World, simulated
from abate.sim.tune import Bounds, Candidate, Seen, Trial, Tuning, tune

FIXED = {"base": (0.1, 0.1), "cap": (1.0, 1.0), "jitter": ("full",)}
"""What makes no difference to open clients."""


def database(load=24.0, horizon=90.0):
    """HotOS's database at a tenth of its size: it serves 30 requests/s, and more retries than 6/s keep it down."""
    return World(
        Clients(count=100, rate=load / 100),
        [Service("db", workers=3, service_time=Duration(0.1, "exponential"))],
        abate.Policy(on=simulated, attempts=2, attempt_timeout=1.0),
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
    """Reserves above what is spare never recover; the best lies below, and was never seen to fail."""
    tuning = tune(
        database(), 2.0, Bounds(attempts=(2, 2), ratio=(0.0, 0.0), reserve=(0.0, 30.0), **FIXED), seeds=4, samples=12
    )
    assert tuning.best.candidate.reserve < 6.0
    assert tuning.best.recovery.never == 0
    assert tuning.best.candidate.attempts == 2
    assert tuning.finished


def test_of_two_that_differ_it_is_sure():
    """No retries come back each time, unlimited ones never: it wins with all seeds, by a lead that is not chance."""
    tuning = tune(
        database(), 2.0, Bounds(attempts=(1, 2), ratio=(0.0, 0.0), reserve=(50.0, 50.0), **FIXED), seeds=5, samples=4
    )
    assert tuning.best.candidate.attempts == 1
    assert tuning.runner_up.candidate.attempts == 2
    assert tuning.runner_up.recovery.never == 5
    assert tuning.wins == 1.0
    assert 0.0 < tuning.lead[1] <= tuning.lead[0] <= tuning.lead[2] < 75.0
    assert tuning.sure


def test_where_nothing_recovers_it_is_not_sure():
    """A trigger that outlasts the horizon: the infinite recoveries are counted, and nobody leads."""
    world = flaky()
    endless = World(world.clients, world.services, triggers=[Trigger("error", at=5.0, for_=60.0)], horizon=20.0)
    tuning = tune(endless, 5.0, seeds=2, samples=6)
    assert tuning.best.recovery.never == 2
    assert tuning.wins == 0.5
    assert tuning.lead == (0.0, 0.0, 0.0)
    assert not tuning.sure
    assert not tuning.recovers


@pytest.mark.parametrize(("seeds", "finished", "sure"), [(5, True, True), (4, True, False), (9, False, False)])
def test_it_is_not_sure_of_what_it_has_hardly_seen(seeds, finished, sure):
    """However large the lead: five pairs at least, and nothing broken off."""
    ahead, behind = (Trial(Candidate(), (Seen(time, 1.0, 1.0),) * seeds, 1.5) for time in (1.0, 50.0))
    tuning = Tuning((ahead,), ahead, behind, 1.0, (49.0, 48.0, 50.0), 1.5, seeds, 100, finished)
    assert tuning.sure == sure
    assert tuning.recovers


@pytest.mark.parametrize("limit", [1.1, 1.4])
def test_it_keeps_the_limit(limit):
    """The best stays within it, though others that exceed it save more calls."""
    tuning = tune(flaky(), limit, seeds=3, samples=18)
    fitting = [trial for trial in tuning.front if trial.fits]
    beyond = [trial for trial in tuning.front if not trial.fits]
    assert fitting[0].candidate == tuning.best.candidate
    assert tuning.best.amplification.mean <= limit * 1.02  # with fresh seeds, a hair beyond it may be
    assert all(trial.amplification.mean <= limit for trial in fitting)
    assert max(trial.success.mean for trial in beyond) > tuning.best.success.mean


def test_a_limit_that_nobody_keeps_leaves_no_best():
    """At least two attempts, all paid for, and a limit of 1."""
    tuning = tune(flaky(), 1.0, Bounds(reserve=(50.0, 50.0)), seeds=2, samples=4)
    assert tuning.best is tuning.runner_up is None
    assert math.isnan(tuning.wins)
    assert tuning.front
    assert not tuning.sure


def test_nobody_on_the_front_beats_another():
    """And all were seen with all seeds, and fared differently."""
    tuning = tune(flaky(), 1.5, seeds=3, samples=12)
    assert all(len(trial.seen) == tuning.seeds == 3 for trial in tuning.front)
    assert not any(one.beats(two) for one in tuning.front for two in tuning.front)
    assert len({trial.seen for trial in tuning.front}) == len(tuning.front) > 1


def test_the_same_seed_gives_the_same_result():
    """And another one another."""
    found = [tune(flaky(), 1.5, seeds=2, samples=6, seed=seed) for seed in (7, 7, 8)]
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_the_best_is_judged_by_seeds_that_did_not_choose_it():
    """What is said of it is not what it was chosen for."""
    tuning = tune(flaky(), 1.5, seeds=3, samples=6)
    chosen = next(trial for trial in tuning.front if trial.candidate == tuning.best.candidate)
    fresh = [tuning.best.candidate.world(flaky()).run(seed).measures() for seed in (3, 4, 5)]
    assert tuning.best.seen == tuple(Seen(run["recovery"], run["amplification"], run["success"]) for run in fresh)
    assert tuning.best.seen != chosen.seen


# -- on the way


def test_progress_grows_to_what_was_planned():
    """Never beyond it, and the plan does not change."""
    told = []
    tuning = tune(flaky(), 1.5, seeds=3, samples=6, progress=lambda done, planned: told.append((done, planned)))
    done, planned = zip(*told, strict=True)
    assert len(told) == tuning.runs
    assert list(done) == sorted(set(done))
    assert set(planned) == {done[-1]}


@pytest.mark.parametrize("after", [2, 7, 20, 44])
def test_who_breaks_it_off_gets_the_front_so_far(after):
    """With as many seeds as all of a round were seen with."""

    def break_off(done, planned):
        if done > after:
            raise KeyboardInterrupt

    tuning = tune(flaky(), 3.0, seeds=3, samples=6, progress=break_off)
    assert not tuning.finished
    assert tuning.front
    assert 1 <= tuning.seeds <= 3
    assert all(len(trial.seen) == tuning.seeds for trial in tuning.front)
    assert tuning.best == next(trial for trial in tuning.front if trial.fits)


def test_who_breaks_it_off_at_once_gets_nothing():
    """No front, no best, and no error."""

    def break_off(done, planned):
        raise KeyboardInterrupt

    tuning = tune(flaky(), 1.5, seeds=2, samples=4, progress=break_off)
    assert (tuning.front, tuning.best, tuning.seeds, tuning.finished) == ((), None, 0, False)


# -- order


def trial(*seen, limit=1.5):
    return Trial(Candidate(), tuple(Seen(*each) for each in seen), limit)


def test_who_recovers_more_often_comes_before_who_recovers_sooner():
    """Then the limit counts most, the recovery next, and success between those that are as fast."""
    steady = trial((9.0, 1.2, 0.9), (9.0, 1.2, 0.9))
    lucky = trial((1.0, 1.2, 0.9), (math.inf, 1.2, 0.9))
    never = trial((math.inf, 1.2, 0.9), (math.inf, 1.2, 0.9))
    greedy = trial((0.0, 1.6, 0.9), (0.0, 1.6, 0.9))
    kinder = trial((9.1, 1.3, 0.95), (9.1, 1.3, 0.95))
    order = sorted([never, greedy, lucky, steady, kinder], key=lambda each: each.rank)
    assert order == [kinder, steady, lucky, never, greedy]


figures = st.tuples(st.sampled_from([0.0, 1.0, 5.0, math.inf]), st.floats(1.0, 3.0), st.floats(0.0, 1.0))


@given(one=figures, two=figures, three=figures)
def test_beating_is_an_order(one, two, three):
    """Nobody beats itself, no two beat each other, and it carries on."""
    first, second, third = trial(one), trial(two), trial(three)
    assert not first.beats(first)
    assert not (first.beats(second) and second.beats(first))
    if first.beats(second) and second.beats(third):
        assert first.beats(third)


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
    bounds = Bounds(attempts=(2, 5), base=(low, low + 1.0), cap=(0.5, 3.3), ratio=(0.111, 0.222), reserve=(0.0, 0.0))
    found = bounds.at(point)
    for name in ("attempts", "base", "cap", "ratio", "reserve"):
        least, most = getattr(bounds, name)
        assert least <= getattr(found, name) <= most, name
    assert found.base <= found.cap


def test_without_retries_nothing_else_makes_a_difference():
    """All candidates with one attempt are one."""
    bounds = Bounds(attempts=(1, 2))
    assert bounds.at([0.1] * 6) == bounds.at([0.1, 0.9, 0.9, 0.9, 0.9, 0.9])
    assert bounds.at([0.9] * 6) != bounds.at([0.9, 0.1, 0.1, 0.1, 0.1, 0.1])


@pytest.mark.parametrize("fewest", [1, 2])
def test_retries_that_nothing_pays_for_are_none(fewest):
    """A ratio and a reserve of 0 are one policy, whatever the attempts and the backoff."""
    bounds = Bounds(attempts=(fewest, 6))
    none = bounds.at([0.1, 0.9, 0.9, 0.9, 0.0, 0.0])
    assert none == bounds.at([0.9, 0.1, 0.1, 0.1, 0.0, 0.0])
    assert (none.attempts, none.ratio, none.reserve) == (fewest, 0.0, 0.0)
    assert bounds.at([0.9] * 4 + [0.0, 0.1]).attempts == 6


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ratio": (0.5, 0.1)}, "ratio must go from low to high, not from 0.5 to 0.1"),
        ({"retries": (1, 2)}, "Bounds has no 'retries'; it has attempts, base, cap, jitter, ratio, reserve"),
        ({"attempts": (0, 3)}, "attempts must be a whole number of at least 1, not 0"),
        ({"attempts": (1.5, 3)}, "attempts must be a whole number of at least 1, not 1.5"),
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
    with pytest.raises(ValueError, match="nobody calls again after the trouble"):
        tune(once, 1.5)
