"""The rules of the adaptive concurrency limiter one by one, and its invariants in any order of events."""

import random
from itertools import pairwise
from math import inf, nextafter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from abate.admit import latency_model
from abate.admit import limiter as limiter_module
from abate.admit.latency_model import (
    ANSWER_TIME_FACTOR,
    BASELINE_SAMPLES,
    MIN_SILENCE,
    SAMPLES_PER_SECOND,
    SILENCE_FACTOR,
)
from abate.admit.limiter import (
    CALM_AFTER,
    FAST_STEP,
    INITIAL_LIMIT,
    PROBING_STREAK,
    RECENT_OUTCOMES,
    RECOVERY_LIMIT,
    SHRINK,
    Limiter,
)
from abate.admit.load_experiment import (
    BASELINE_DRIFT,
    EXPERIMENT_AFTER,
    EXPERIMENT_ANSWERS,
    EXPERIMENT_SECONDS,
    LIMIT_GROWTH,
)
from abate.admit.outage_detector import NO_OUTCOME_TIMEOUT
from abate.admit.prober import OUTAGE_SHARE, PAUSE_LEAST, PAUSE_MOST, PROBE_RATIO, Prober
from abate.schedule.backoff import Backoff

EXACT = Backoff(1.0, 30.0, jitter="none")
CHANCE = st.floats(0.0, 1.0, exclude_max=True)


class Chance:
    """A random source that always draws the same number."""

    def __init__(self, value=0.5):
        self.value = value

    def random(self):
        return self.value


def fresh(seed=1):
    """Return a new limiter without any observations."""
    return Limiter(random.Random(seed), 0.0)


def answer(limiter, now, seconds=0.05, waiting=0):
    """Make one attempt that is answered; return the instant of the answer."""
    permit = limiter.send(now)
    limiter.on_answer(permit, now + seconds, waiting)
    return now + seconds


def settled(seconds=0.05, rng=None):
    """Return a limiter after some seconds of calm, and the instant."""
    limiter, now = Limiter(rng or random.Random(1), 0.0), 0.0
    while now < 2 * BASELINE_SAMPLES / SAMPLES_PER_SECOND:
        now = max(answer(limiter, now, seconds), limiter.latencies.next_sample, now + 0.01)
    assert limiter.calm
    assert limiter.latencies.baseline == pytest.approx(seconds)
    return limiter, now


def limited(limit, now=0.0, baseline=0.05):
    """Return a limiter that has seen answers and is recovering with this limit."""
    limiter, _ = settled(baseline)
    limiter._leave_calm(now)
    limiter.state, limiter.limit, limiter._fast_growth = "recovering", float(limit), False
    limiter.latencies.latency = baseline
    return limiter


def paused(now=0.0, plan=EXACT, rng=None):
    """Return a limiter whose first attempt has failed."""
    limiter = Limiter(rng or random.Random(1), now)
    limiter.on_failure(limiter.send(now), now, plan)
    assert limiter.state == "probing"
    return limiter


def all_fails(limiter, now, until=None, plan=EXACT):
    """Make enough consecutive failures to close the limiter, each with the same hint."""
    for _ in range(PROBING_STREAK):
        assert limiter.state != "probing"
        limiter.on_failure(limiter.send(now), now, plan, until)
    assert limiter.state == "probing"


# -- start


def test_a_new_limiter_allows_ten_in_flight():
    """No more are sent before one of them has an outcome or is overdue."""
    limiter = fresh()
    for _ in range(INITIAL_LIMIT):
        assert limiter.due() <= 0.0
        limiter.send(0.0)
    assert limiter.due() > 0.0
    assert limiter.due() == NO_OUTCOME_TIMEOUT


@given(answers=st.integers(1, 60))
def test_the_initial_limit_grows_with_every_answer(answers):
    """It grows while it is what holds calls back."""
    limiter = fresh()
    for _ in range(answers):
        answer(limiter, 0.0, waiting=1)
    assert limiter.limit == pytest.approx(INITIAL_LIMIT + FAST_STEP * answers)


def test_a_limit_that_is_not_reached_does_not_grow():
    """Unused capacity says nothing about the server."""
    limiter = fresh()
    for _ in range(30):
        answer(limiter, 0.0, waiting=0)
    assert limiter.limit == INITIAL_LIMIT


def test_a_failure_before_any_answer_closes_the_limiter():
    """Nothing suggests that the server is up."""
    limiter = paused()
    assert limiter.state == "probing"
    assert limiter.limit == 1.0
    assert limiter.due() > 0.5
    assert limiter.prober.next_probe >= limiter.due()


def test_a_single_failure_after_an_answer_does_not_close_the_limiter():
    """One failure is a blip."""
    limiter = fresh()
    limiter.on_failure(limiter.send(0.0), answer(limiter, 0.0), EXACT)
    assert limiter.state == "calm"
    assert limiter.due() <= 0.05


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6))
def test_the_baseline_latency_is_the_average_and_not_the_minimum(seed):
    """Of random latencies the minimum is far below the average: a limit made for it would starve all calls."""
    limiter, chance = fresh(), random.Random(seed)
    for n in range(400):
        answer(limiter, 0.01 * n, chance.expovariate(1 / 0.05), waiting=5)
    assert 0.02 < limiter.latencies.baseline < 0.08


# -- calm


@given(quiet=st.floats(CALM_AFTER, 100.0), early=st.floats(0.0, CALM_AFTER, exclude_max=True))
def test_a_quiet_second_makes_it_calm(quiet, early):
    """After one second without a failure and without a waiting call, there is no limit. Not before."""
    limiter = fresh()
    limiter.on_answer(limiter.send(0.0), early, 0)
    assert not limiter.calm
    limiter.on_answer(limiter.send(0.0), quiet, 0)
    assert limiter.calm
    assert limiter.state == "calm"
    assert limiter.limit == inf


@pytest.mark.parametrize("trouble", ["waiting", "held back", "failure"])
def test_a_waiting_call_or_a_failure_delays_the_calm(trouble):
    """The second begins anew with each."""
    limiter = fresh()
    answer(limiter, 0.0)
    if trouble == "failure":
        limiter.on_failure(limiter.send(0.9), 1.0, EXACT)
    elif trouble == "held back":
        limiter.limit = 1.0
        limiter.send(1.0)
        limiter.on_held_back(1.0)
        limiter.in_flight = 0
    answer(limiter, 1.1, waiting=trouble == "waiting")
    assert not limiter.calm
    answer(limiter, 2.1)
    assert limiter.calm


def test_a_call_delayed_only_by_pacing_does_not_delay_the_calm():
    """There is capacity, the call is only spaced out."""
    limiter = limited(10.0)
    limiter._last_held_back = -5.0
    limiter.send(0.0)
    assert limiter.due() > 0.0
    assert limiter.due() == pytest.approx(limiter_module.PACING_RATIO * 0.05 / 10.0)
    limiter.on_held_back(0.0)
    assert limiter._last_held_back == -5.0
    limiter.prober.next_probe = 1.0
    limiter.on_held_back(0.0)
    assert limiter._last_held_back == 0.0


@given(sent=st.integers(0, 300))
def test_calm_has_no_limit(sent):
    """Any number of attempts may be in flight."""
    limiter, now = settled()
    for _ in range(sent):
        assert now >= limiter.due()
        limiter.send(now)
    assert now >= limiter.due()
    assert limiter.due() <= now


def test_calm_measures_twenty_answers_a_second():
    """Answers in a bunch with one that was measured are one sample with it."""
    limiter, now = settled(0.05)
    permits = [limiter.send(now) for _ in range(20)]
    before = limiter.latencies.baseline
    for permit in permits:
        limiter.on_answer(permit, now + 0.1, 0)
    assert limiter.latencies.next_sample == now + 0.1 + 1 / SAMPLES_PER_SECOND
    assert limiter.latencies.baseline == pytest.approx(before + 0.05 / BASELINE_SAMPLES)
    assert limiter.calm


@settings(max_examples=30)
@given(seconds=st.floats(0.001, 5.0), other=st.floats(0.5, 1.5))
def test_the_baseline_follows_latency_in_calm(seconds, other):
    """Gradually changing latencies become the new baseline."""
    limiter, now = settled(seconds)
    for _ in range(5 * BASELINE_SAMPLES):
        now = max(answer(limiter, now, seconds * other), limiter.latencies.next_sample)
    assert limiter.calm
    assert limiter.latencies.baseline == pytest.approx(seconds * other, rel=0.02)


def test_many_in_flight_in_calm_are_not_a_storm():
    """Slightly slower answers do not end the calm, at any number in flight."""
    limiter, now = settled(0.05)
    permits = [limiter.send(now) for _ in range(200)]
    for n, permit in enumerate(permits):
        limiter.on_answer(permit, now + 0.1 + 0.06 * n / len(permits), 0)
    assert limiter.calm
    assert limiter.state == "calm"
    assert limiter.limit == inf


def test_a_failure_in_calm_starts_counting_without_a_limit():
    """Counting ends after a second without another failure."""
    limiter, now = settled()
    limiter.on_failure(None, now, EXACT)
    assert not limiter.calm
    assert limiter.state == "calm"
    assert limiter.limit == inf
    answer(limiter, now + 0.9)
    assert not limiter.calm
    answer(limiter, now + CALM_AFTER)
    assert limiter.calm


@given(failures=st.integers(1, 50))
def test_an_uncounted_failure_only_starts_counting(failures):
    """Where successes were not counted, failures must not be."""
    limiter, now = settled()
    for _ in range(failures):
        limiter.on_failure(None, now, EXACT, uncounted=True)
    assert not limiter.calm
    assert limiter.state == "calm"
    assert limiter.failure_ratio == 0.0
    assert now >= limiter.due()


@given(slow=st.floats(5.0, 100.0))
def test_slow_answers_in_calm_start_counting(slow):
    """Answers that take many times the baseline do; slightly slower ones do not."""
    for factor, calm in ((1.9, True), (slow, False)):
        limiter, now = settled(0.05)
        stayed = []
        for _ in range(2):
            now = max(answer(limiter, now, 0.05 * factor), limiter.latencies.next_sample)
            stayed.append(limiter.calm)
        assert all(stayed) is calm


def test_consecutive_slow_answers_start_counting():
    """Each alone is not slow enough: the average of the last ones is."""
    limiter, now = settled(0.05)
    for expected in (True, False):
        now = max(answer(limiter, now, 0.05 * 3.4), limiter.latencies.next_sample)
        assert limiter.calm is expected


@given(baseline=st.floats(1e-6, 1e-3), slow=st.floats(3.0, 10.0))
def test_a_short_pause_of_this_process_does_not_start_counting(baseline, slow):
    """Where answers take microseconds, a multiple is still negligible; only some hundredths of a second count."""
    limiter, now = settled(baseline)
    answer(limiter, now, min(baseline * slow, latency_model.MIN_SLOWDOWN_SECONDS))
    assert limiter.calm
    limiter, now = settled(baseline)
    answer(limiter, now, 2.5 * latency_model.MIN_SLOWDOWN_SECONDS)
    assert not limiter.calm


def test_the_latency_of_a_growing_queue_does_not_become_the_baseline():
    """Ever slower answers to unlimited attempts start counting before they are twice the baseline."""
    limiter, now = settled(0.05)
    seconds = 0.05
    while limiter.calm:
        seconds *= 1.1
        now = max(answer(limiter, now, seconds), limiter.latencies.next_sample, now + 0.01)
        assert seconds < 0.5
    assert limiter.latencies.baseline < 0.1


# -- storm


def test_more_than_half_failing_is_a_storm():
    """The limit is halved."""
    limiter = limited(40.0)
    for n in range(6):
        (answer if n % 3 == 0 else fail)(limiter, 0.1 * n)
    assert limiter.state == "storm"
    assert limiter.limit < 40.0


def fail(limiter, now, plan=EXACT, **how):
    """Make one attempt that fails at once."""
    limiter.on_failure(limiter.send(now), now, plan, **how)
    return now


@given(rest=st.integers(2, 9), times=st.integers(1, 30))
def test_a_third_failing_is_not_a_storm(rest, times):
    """Nor is a smaller share."""
    limiter = limited(40.0)
    now = 0.0
    for _ in range(times):
        fail(limiter, now)
        for _ in range(rest):
            now = answer(limiter, now)
    assert limiter.state == "recovering"
    assert limiter.limit >= 40.0


@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.1, 0.2, 0.3]))
@settings(max_examples=30)
def test_a_third_failing_at_random_rarely_closes_the_limiter(seed, share):
    """A thousand outcomes contain runs of five failures by chance; these do not mean that all fail."""
    limiter, chance = limited(40.0), random.Random(seed)
    closings, now = 0, 0.0
    for _ in range(1000):
        now += 0.01
        (fail if chance.random() < share else answer)(limiter, max(now, limiter.prober.next_probe))
        closings += limiter.state == "probing"
    assert closings <= 5


def test_the_limit_is_cut_once_per_round_trip():
    """Failures of attempts sent before the reduction do not reduce it again."""
    limiter = limited(64.0)
    limiter.latencies.latency = 1.0
    limiter._limit_before_storm, limiter.state, limiter.failure_ratio, limiter._counted_outcomes = (
        64.0,
        "storm",
        0.7,
        20,
    )
    limits = []
    for now in (2.0, 2.5, 2.9, 3.0, 3.5):
        limiter._failure_streak = 0
        limiter.failure_ratio = 0.7
        fail(limiter, now)
        limits.append(limiter.limit)
    assert limits == pytest.approx([64.0 * SHRINK] * 3 + [64.0 * SHRINK**2] * 2)


@settings(max_examples=60)
@given(outcomes=st.lists(st.sampled_from([True, False, False]), min_size=20, max_size=200), limit=st.floats(1.0, 500.0))
def test_the_limit_does_not_fall_below_the_answered_share(outcomes, limit):
    """As long as not all fails, as many are sent as were answered before."""
    limiter = limited(limit)
    lowest = 0.0
    for n, fine in enumerate(outcomes):
        (answer if fine else fail)(limiter, float(n))
        if limiter.state == "probing":
            return
        lowest = max(lowest, limiter.failure_ratio)
        assert limiter.limit >= min(limit, limit * (1.0 - lowest)) - 1e-9 or limiter.limit == 1.0
        if limiter.state == "recovering":
            limit, lowest = limiter.limit, 0.0


def test_a_failure_never_raises_the_limit():
    """Where queueing has lowered the limit below the answered share, a failure does not raise it."""
    limiter = limited(4.0)
    limiter.state, limiter._limit_before_storm, limiter.failure_ratio, limiter._counted_outcomes = (
        "storm",
        100.0,
        0.55,
        20,
    )
    fail(limiter, 5.0)
    assert limiter.limit <= 4.0


def test_without_a_limit_a_storm_starts_from_two_thirds_of_the_attempts_in_flight():
    """When more than half fail."""
    limiter, now = settled()
    limiter.on_failure(None, now, EXACT)
    permits = [limiter.send(now) for _ in range(41)]
    for n, permit in enumerate(permits[:8]):
        (limiter.on_failure(permit, now, EXACT) if n % 4 else limiter.on_answer(permit, now, 0))
    assert limiter.state == "storm"
    assert 15 <= limiter.limit <= 26


def test_a_storm_becomes_a_recovery_when_few_fail():
    """Fewer than a quarter fail, and at least four may be in flight."""
    limiter = limited(4.0)
    limiter.state, limiter.failure_ratio, limiter._counted_outcomes = "storm", 0.4, 20
    now, states = 0.0, []
    for _ in range(6):
        now = answer(limiter, now)
        states.append((limiter.state, limiter.failure_ratio < 0.25))
    assert states[0] == ("storm", False)
    assert states[-1] == ("recovering", True)
    assert all((state == "recovering") == few for state, few in states)


# -- queueing at the server


@given(limit=st.floats(20.0, 500.0), slow=st.floats(6.0, 50.0))
def test_queueing_at_the_server_shrinks_the_limit(limit, slow):
    """By a third, once per round trip."""
    limiter = limited(limit)
    limiter.latencies.latency = 0.05 * slow
    answer(limiter, 100.0, 0.05 * slow, waiting=1)
    assert limiter.limit == pytest.approx(limit * SHRINK)
    answer(limiter, 100.0, 0.05 * slow, waiting=1)
    assert limiter.limit == pytest.approx(limit * SHRINK)


def test_queueing_at_the_server_in_calm_starts_a_storm():
    """The first limit is less than the number in flight."""
    limiter, now = settled(0.05)
    permits = [limiter.send(now) for _ in range(60)]
    for permit in permits[:3]:
        now += 1.0
        limiter.on_answer(permit, now, 0)
    assert not limiter.calm
    assert limiter.state in ("storm", "recovering")
    assert limiter.limit < 60


@given(limit=st.floats(1.0, 300.0), waiting=st.integers(1, 500))
def test_the_limit_grows_gradually_without_queueing(limit, waiting):
    """By a little with each answer, as long as calls wait."""
    limiter = limited(limit)
    answer(limiter, 0.0, 0.05, waiting)
    assert limit < limiter.limit <= limit + 1.0 + limit * 0.01


@settings(max_examples=60)
@given(workers=st.integers(2, 60), waiting=st.sampled_from([1, 50, 200, 1000]), begin=st.floats(1.0, 200.0))
def test_the_limit_converges_to_a_short_queue_at_the_server(workers, waiting, begin):
    """On a server whose latency is due to its queue, the workers are busy and the queue is short."""
    limiter = limited(begin)
    now = 0.0
    for _ in range(4000):
        queued = max(0.0, limiter.limit - workers)
        now += 0.05 / workers
        limiter._adjust_limit(now, waiting)
        limiter.latencies.latency = 0.05 * (1.0 + queued / workers)
    assert limiter.limit >= workers
    assert limiter.limit * (1.0 - 1.5 * 0.05 / limiter.latencies.latency) <= 6.5


def test_more_queueing_is_allowed_where_more_calls_wait():
    """Independent clients share the server according to their demand."""
    limits = []
    for waiting in (1, 200, 400, 800):
        limiter = limited(12.0)
        limiter.latencies.latency = 0.12
        answer(limiter, 0.0, 0.12, waiting)
        limits.append(limiter.limit)
    assert limits[0] < limits[1] < limits[2] == limits[3]


def test_no_queueing_is_assumed_before_the_first_answer():
    """Nor where answers take no time, as on a virtual clock."""
    limiter = fresh()
    assert limiter.queued() == 0.0
    answer(limiter, 0.0, 0.0)
    assert limiter.queued() == 0.0


@given(limit=st.floats(1.0, 100.0), latency=st.floats(0.001, 10.0))
def test_attempts_under_a_limit_are_paced(limit, latency):
    """They are at least half of the mean distance apart, so answers that come in a bunch do not cause a burst."""
    limiter = limited(limit)
    limiter.latencies.latency = latency
    limiter.send(5.0)
    limiter.in_flight = 0
    assert limiter.due() == pytest.approx(5.0 + 0.5 * latency / limit)


def test_the_expected_answer_time_is_slightly_above_the_current_latency():
    """Without any latency it is now."""
    assert fresh().latencies.expected_answer_in(3.0) == 3.0
    limiter = limited(5.0)
    limiter.latencies.latency = None
    assert limiter.latencies.expected_answer_in(3.0) == pytest.approx(ANSWER_TIME_FACTOR * 0.05)
    limiter.latencies.latency = 1.0
    assert limiter.latencies.expected_answer_in(3.0) == pytest.approx(ANSWER_TIME_FACTOR)


# -- answers that stay slow


def persist(limiter, seconds, until, now=0.0, waiting=300):
    """Feed answers whose latency is `seconds` of the limit, as fast as the limit allows."""
    while now < until:
        took = seconds(limiter.limit)
        now += took / limiter.limit
        limiter.on_answer(limiter.send(now - took), now, waiting)
    return now


def test_latency_that_is_not_due_to_queueing_becomes_the_baseline():
    """More attempts did not make answers slower, for at least ten seconds."""
    limiter = limited(8.0)
    now = persist(limiter, lambda _: 0.5, EXPERIMENT_AFTER + EXPERIMENT_SECONDS)
    assert limiter.latencies.baseline == pytest.approx(0.05)
    now = persist(limiter, lambda _: 0.5, 2 * EXPERIMENT_AFTER + EXPERIMENT_SECONDS, now)
    assert limiter.latencies.baseline == pytest.approx(0.05 * BASELINE_DRIFT ** (EXPERIMENT_AFTER + EXPERIMENT_SECONDS))
    while limiter.limit < 20.0:
        now = persist(limiter, lambda _: 0.5, now + 0.1, now)
    assert now < 180.0
    assert limiter.latencies.baseline >= 0.5 / 3


@pytest.mark.parametrize("workers", [2, 5, 20])
def test_latency_that_is_due_to_queueing_does_not_become_the_baseline(workers):
    """More attempts made answers slower: the baseline never changes."""
    limiter = limited(3.0 * workers)
    persist(limiter, lambda limit: 0.05 * max(1.0, limit / workers), 600.0)
    assert limiter.latencies.baseline == pytest.approx(0.05, rel=0.02)
    assert limiter.limit < LIMIT_GROWTH * (workers * 1.6 + 12)


def test_a_baseline_raised_by_mistake_is_lowered_again():
    """Gradually, but not below what was learned in calm."""
    limiter = limited(10.0)
    limiter.latencies.baseline, limiter.latencies.recent = 0.06, 0.1
    persist(limiter, lambda limit: 0.05 * limit / 3, 120.0)
    assert limiter.latencies.baseline == pytest.approx(0.05)


@pytest.mark.parametrize(("failure_ratio", "waiting"), [(0.2, 300), (0.0, 0)])
def test_no_experiment_while_attempts_fail_or_no_call_waits(failure_ratio, waiting):
    """Answers may be slow for other reasons then."""
    limiter = limited(8.0)
    now = 0.0
    while now < 60.0:
        limiter.failure_ratio = failure_ratio
        limiter._last_held_back = now
        now = persist(limiter, lambda _: 0.5, now + 0.01, now, waiting)
    assert limiter.latencies.baseline == pytest.approx(0.05)


def test_an_experiment_raises_the_limit_by_a_third_for_a_while():
    """By at least one, for small limits."""
    for limit, more in ((1.0, 2.0), (20.0, 20.0 * LIMIT_GROWTH)):
        limiter = limited(limit)
        limiter.latencies.recent = 0.5
        limiter.experiment.sums = (EXPERIMENT_ANSWERS - 1, 50.0, limit * (EXPERIMENT_ANSWERS - 1))
        limiter.on_answer(limiter.send(10.0), 10.5, 10)
        assert limiter.limit == more
        limiter.on_answer(limiter.send(10.6), 11.1, 10)
        assert limiter.limit == more


def test_the_baseline_falls_with_the_average():
    """In a storm, a hundred faster answers lower the baseline, a single one does not."""
    limiter = limited(5.0, baseline=0.1)
    answer(limiter, 0.0, 0.001, waiting=1)
    assert limiter.latencies.baseline > 0.09
    for n in range(5 * BASELINE_SAMPLES):
        answer(limiter, 0.1 * n, 0.02, waiting=1)
    assert limiter.latencies.baseline == pytest.approx(0.02, rel=0.1)


# -- probing


@pytest.mark.parametrize("answered", [0, 3, 30])
def test_almost_only_failures_close_the_limiter(answered):
    """Five in a row and four of the last five: from then on, one attempt at a time."""
    limiter = limited(10.0)
    for n in range(answered):
        answer(limiter, 0.1 * n)
    row = 0
    while limiter.state != "probing":
        fail(limiter, 10.0 + row)
        row += 1
        assert row <= 2 * limiter_module.RECENT_OUTCOMES
    assert row >= PROBING_STREAK
    assert limiter.failure_ratio >= limiter_module.OUTAGE_FAILURE_RATIO
    assert limiter.limit == 1.0
    assert limiter.in_flight == 0


def test_a_probe_is_one_attempt():
    """The next probe is sent when the last has failed and the pause is over."""
    limiter = paused(0.0)
    permit = limiter.send(limiter.prober.next_probe)
    assert limiter.prober.next_probe < limiter.due()
    limiter.on_failure(permit, limiter.prober.next_probe + 0.1, EXACT)
    assert limiter.prober.next_probe == pytest.approx(1.1 + 2.0)
    assert limiter.due() > 3.0
    assert limiter.due() <= 3.2


@given(pauses=st.integers(1, 12), base=st.floats(0.01, 5.0))
def test_the_pause_of_an_idle_process_is_the_backoff(pauses, base):
    """Without jitter, exactly."""
    plan = Backoff(base, 30.0, jitter="none")
    limiter = paused(0.0, plan)
    now = 0.0
    for n in range(1, pauses + 1):
        assert limiter.prober.next_probe - now == pytest.approx(plan.delay(n, random.Random()))
        now = fail(limiter, limiter.prober.next_probe, plan)


@given(chance=CHANCE, pauses=st.integers(2, 12), jitter=st.sampled_from(["full", "equal", "decorrelated"]))
def test_the_pause_is_a_jittered_backoff(chance, pauses, jitter):
    """At first up to the ceiling of the second, then close to its own: clients that failed together stay spread."""
    plan = Backoff(0.2, 30.0, jitter=jitter)
    limiter = paused(0.0, plan, Chance(chance))
    assert limiter.prober.next_probe == pytest.approx(plan.ceiling(2) * chance)
    for n in range(2, pauses + 1):
        now = fail(limiter, limiter.prober.next_probe, plan)
        assert limiter.prober.next_probe - now == pytest.approx(
            plan.ceiling(n) * (PAUSE_LEAST + (PAUSE_MOST - PAUSE_LEAST) * chance)
        )


def outage(rate, seconds, plan, seed=1):
    """Simulate an outage for a process with this rate of calls; return the instants of its attempts."""
    limiter, now = settled(rng=random.Random(seed))
    start, sent = now, []
    for n in range(int(rate * seconds)):
        now = start + n / rate
        limiter.on_call(now)
        if now >= limiter.due():
            sent.append(now - start)
            fail(limiter, now, plan)
    return sent


@settings(max_examples=15)
@given(rate=st.sampled_from([20, 50, 200]), seed=st.integers(0, 10**6), cap=st.sampled_from([5.0, 30.0, 600.0]))
def test_a_busy_process_probes_with_at_most_a_twentieth_of_its_calls(rate, seed, cap):
    """Except for the first few attempts; and the longer the outage, the fewer."""
    sent = outage(rate, 60.0, Backoff(0.2, cap), seed)
    assert len(sent) <= PROBE_RATIO * rate * 60.0 + 2 * PROBING_STREAK + 10
    early, late = [sum(start <= at < start + 20 for at in sent) for start in (0, 40)]
    assert late < early
    assert late <= 20 / (40 * OUTAGE_SHARE * 0.8) + 1 + 20 / (cap / 2)


@settings(max_examples=15)
@given(rate=st.sampled_from([5, 20, 100]), seed=st.integers(0, 10**6))
def test_a_busy_process_probes_sooner_than_its_backoff(rate, seed):
    """It notices the end of an outage within a tenth of its length, though its backoff would take minutes."""
    sent = outage(rate, 60.0, Backoff(0.2, 600.0), seed)
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    assert max(gaps) <= 1.2 * max(60.0 * OUTAGE_SHARE, 1 / (PROBE_RATIO * rate)) + 1.0


def test_probes_of_two_processes_are_not_at_the_same_instants():
    """The pauses of a busy process have jitter too."""
    first, second = (outage(100, 30.0, Backoff(0.2, 600.0, jitter="full"), seed) for seed in (1, 2))
    assert len(set(first) & set(second)) < len(first) / 4


def test_old_calls_do_not_count_towards_the_rate():
    """The rate is that of the last seconds."""
    limiter = fresh()
    for n in range(1000):
        limiter.on_call(n * 0.001)
    for n in range(30):
        limiter.on_call(60.0 + 10 * n)
    rate = limiter.prober._calls / max(3.0, 350.0 - limiter.prober._calls_since)
    assert rate < 0.5


def test_an_answer_to_a_probe_sets_the_limit_to_three():
    """A fatal error is an answer too. Each further answer raises the limit."""
    limiter = paused()
    now = answer(limiter, limiter.prober.next_probe, waiting=9)
    assert limiter.state == "recovering"
    assert RECOVERY_LIMIT <= limiter.limit <= RECOVERY_LIMIT + FAST_STEP
    assert limiter.paused_until() <= now
    for _ in range(8):
        now = answer(limiter, now, waiting=9)
    assert limiter.limit >= RECOVERY_LIMIT + 8 * FAST_STEP


def test_occasional_failures_after_the_first_answer_do_not_close_the_limiter():
    """Many failures do: the server is down again."""
    limiter = paused()
    now = answer(limiter, limiter.prober.next_probe, waiting=9)
    fail(limiter, now)
    assert limiter.state == "recovering"
    for _ in range(20):
        fail(limiter, now)
        if limiter.state == "probing":
            return
    pytest.fail("it did not close")


def test_an_answer_resets_the_pauses():
    """A following outage is a new one."""
    limiter = paused()
    for _ in range(4):
        fail(limiter, limiter.prober.next_probe)
    assert limiter.prober.next_probe > 8.0
    now = answer(limiter, limiter.prober.next_probe, waiting=9)
    while limiter.state != "probing":
        fail(limiter, now)
    assert limiter.prober.next_probe == now + 1.0


# -- hints


@given(hint=st.floats(0.001, 5.0))
def test_a_hint_closes_the_limiter_when_all_fail(hint):
    """It then applies to all calls."""
    limiter, now = settled()
    all_fails(limiter, now, now + hint, Backoff(0.0, 0.0))
    assert limiter.paused_until() == now + hint
    assert nextafter(now + hint, -inf) < limiter.due()
    assert now + hint >= limiter.due()


@given(hint=st.floats(0.0, 1000.0), failures=st.integers(1, PROBING_STREAK - 1))
def test_hints_of_some_calls_do_not_close_the_limiter(hint, failures):
    """Up to four in calm: they do not hold other calls back."""
    limiter, now = settled()
    for _ in range(failures):
        limiter.on_failure(limiter.send(now), now, EXACT, now + hint)
    assert limiter.state == "calm"
    assert now >= limiter.due()


@given(patience=st.floats(0.1, 100.0), hint=st.floats(0.0, 1e6))
def test_no_hint_closes_for_longer_than_half_of_the_patience(patience, hint):
    """Waiting calls learn in time whether the hint still holds."""
    limiter = Limiter(random.Random(1), 0.0, patience)
    limiter.on_failure(limiter.send(0.0), 0.0, Backoff(0.0, 0.0), hint_until=hint)
    assert limiter.paused_until() == min(hint, patience / 2)


def test_an_answer_ends_a_hint():
    """The hinted call waits by itself; the server serves others."""
    limiter, now = settled()
    late = limiter.send(now)
    all_fails(limiter, now, now + 20.0)
    assert limiter.due() == now + 20.0
    limiter.on_answer(late, now + 1.0, 0)
    assert limiter.state == "recovering"
    assert now + 1.0 >= limiter.due()


def test_a_late_hint_does_not_lengthen_the_pause():
    """It comes from an attempt in flight at the closing: its instant holds, and the backoff does not grow."""
    limiter, now = settled()
    late = limiter.send(now)
    all_fails(limiter, now, now + 1.0)
    next_probe, epoch = limiter.prober.next_probe, limiter.epoch
    limiter.on_failure(late, now, EXACT, hint_until=now + 5.0)
    assert limiter.paused_until() == now + 5.0
    assert (limiter.prober.next_probe, limiter.epoch) == (next_probe, epoch)


# -- silence and lost attempts


@given(baseline=st.floats(0.001, 2.0), late=st.floats(0.01, 5.0))
def test_silence_lowers_the_limit(baseline, late):
    """Ten attempts without an outcome for too long: no more are sent, long before they time out."""
    limiter, now = settled(baseline)
    for _ in range(INITIAL_LIMIT):
        limiter.send(now)
    too_long = now + max(MIN_SILENCE, SILENCE_FACTOR * limiter.latencies.baseline)
    limiter.on_call(too_long - 0.001)
    assert too_long >= limiter.due()
    limiter.on_call(too_long + late)
    assert not limiter.calm
    assert limiter.state == "storm"
    assert limiter.limit == INITIAL_LIMIT
    assert too_long + late < limiter.due()


def test_nine_in_flight_are_not_a_silence():
    """Nor are ten after an outcome of the first."""
    limiter, now = settled()
    permits = [limiter.send(now) for _ in range(INITIAL_LIMIT - 1)]
    limiter.on_call(now + 9.0)
    limiter.on_answer(permits[0], now + 9.0, 0)
    limiter.send(now + 9.0)
    limiter.on_call(now + 19.0)
    assert limiter.limit == inf


def test_an_outcome_ends_the_silence():
    """The server was only slow: more may be sent."""
    limiter, now = settled()
    permits = [limiter.send(now) for _ in range(INITIAL_LIMIT)]
    limiter.on_call(now + 5.0)
    assert now + 5.0 < limiter.due()
    for permit in permits:
        limiter.on_answer(permit, now + 5.0, 5)
    assert now + 5.0 >= limiter.due()
    limiter.on_call(now + 5.0)
    assert limiter.state == "recovering"


def test_silence_in_a_storm_does_not_raise_the_limit():
    """It only ever stops attempts."""
    limiter = limited(2.0)
    limiter.hangs.unanswered, limiter.hangs.unanswered_since = INITIAL_LIMIT, 0.0
    limiter.on_call(50.0)
    assert limiter.limit == 2.0
    assert limiter.state == "recovering"


def test_an_overdue_attempt_allows_another():
    """After ten seconds without any outcome one more is sent, and ten seconds later another."""
    limiter = fresh()
    for _ in range(INITIAL_LIMIT):
        limiter.send(0.0)
    for overdue in (NO_OUTCOME_TIMEOUT, 2 * NO_OUTCOME_TIMEOUT, 3 * NO_OUTCOME_TIMEOUT):
        assert nextafter(overdue, 0.0) < limiter.due()
        assert overdue >= limiter.due()
        limiter.send(overdue)
        assert overdue < limiter.due()


def test_a_probe_without_an_outcome_is_followed_by_another():
    """A probe that hangs does not keep the limiter paused for ever."""
    limiter = paused()
    limiter.send(5.0)
    assert limiter.due() > 14.9
    assert limiter.due() <= 15.0


@pytest.mark.parametrize("end", ["good", "bad", "void"])
def test_attempts_in_flight_at_the_closing_are_not_counted(end):
    """They may never end; when they do, no capacity is freed."""
    limiter, now = settled()
    left = [limiter.send(now) for _ in range(5)]
    all_fails(limiter, now)
    assert limiter.in_flight == 0
    probe = limiter.send(now + 2.0)
    assert limiter.in_flight == 1
    for permit in left:
        if end == "good":
            limiter.on_answer(permit, now + 2.0, 1)
        elif end == "bad":
            limiter.on_failure(permit, now + 2.0, EXACT)
        else:
            limiter.on_abandoned(permit, now + 2.0)
        assert not permit.out
        assert limiter.in_flight == 1
    limiter.on_abandoned(probe, now + 2.0)
    assert limiter.in_flight == 0


def test_failures_of_attempts_in_flight_at_the_closing_do_not_lengthen_pauses():
    """They are from before the closing."""
    limiter, now = settled()
    left = [limiter.send(now) for _ in range(50)]
    all_fails(limiter, now)
    next_probe = limiter.prober.next_probe
    for permit in left:
        limiter.on_failure(permit, now + 0.1, EXACT)
    limiter.on_failure(None, now + 0.1, EXACT)
    assert limiter.prober.next_probe == next_probe


def test_a_cancelled_attempt_counts_as_neither_answer_nor_failure():
    """It frees its capacity."""
    limiter = limited(1.0)
    permit = limiter.send(0.0)
    failure_ratio, baseline, state = limiter.failure_ratio, limiter.latencies.baseline, limiter.state
    assert limiter.due() > 1.0
    limiter.on_abandoned(permit, 1.0)
    assert limiter.due() <= 1.0
    assert (limiter.failure_ratio, limiter.latencies.baseline, limiter.state) == (failure_ratio, baseline, state)


def test_an_answer_without_a_permit_counts():
    """It was sent in calm, without counting, and ends while outcomes are counted."""
    limiter = paused()
    limiter.on_answer(None, 0.1, 0)
    assert limiter.state == "recovering"
    assert limiter.in_flight == 0


def test_a_cancelled_attempt_does_not_end_a_silence():
    """It is no outcome from the server: ten others are still out."""
    limiter, now = settled()
    permits = [limiter.send(now) for _ in range(INITIAL_LIMIT + 1)]
    limiter.on_abandoned(permits[0], now + 4.0, sent=True)
    limiter.on_call(now + 5.0)
    assert limiter.state == "storm"


def test_a_probe_without_an_answer_pauses_for_a_quarter_of_the_patience_at_most():
    """Its caller has cut it off: calls that arrive then must not be refused for longer than they could wait."""
    limiter = Limiter(random.Random(1), 0.0, patience=4.0)
    limiter.on_failure(limiter.send(0.0), 0.0, EXACT)
    now = limiter.due()
    probe = limiter.send(now)
    limiter.on_abandoned(probe, now + 3.0, sent=True)
    assert now + 3.0 < limiter.due() <= now + 4.0


@pytest.mark.parametrize(("base", "longest"), [(0.5, 1.0), (3.0, 3.0)])
def test_pauses_grow_up_to_a_quarter_of_the_patience_or_the_first_delay(base, longest):
    """Calls that wait for four seconds learn in time that the server is up; a long backoff stays as the user set it."""
    limiter, now = Limiter(random.Random(1), 0.0, patience=4.0), 0.0
    for _ in range(9):
        limiter.on_failure(limiter.send(now), now, Backoff(base, 60.0))
        assert limiter.due() - now <= longest
        now = limiter.due()
    assert limiter.due() - now == 0.0


# -- state machine


class Whatever(RuleBasedStateMachine):
    """Attempts, outcomes, calls and time in any order; attempts only within the limit."""

    @initialize(seed=st.integers(0, 1000), start=st.sampled_from([0.0, 1e6, -50.0]))
    def begin(self, seed, start):
        self.now = start
        self.limiter = Limiter(random.Random(seed), start, 20.0)
        self.out, self.hint = [], -inf
        self.clean = self.callers = 0
        self.since = start
        self.answered = False
        self.overdue = 0
        self.plan = Backoff(0.2, 30.0)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.3, 1.0, 4.0, 11.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @rule(times=st.sampled_from([1, 3, 12, 40]))
    def send(self, times):
        limiter = self.limiter
        for _ in range(times):
            limiter.on_call(self.now)
            if self.now < limiter.due():
                limiter.on_held_back(self.now)
                return
            full, before = limiter._at_limit(), limiter.limit
            if full:
                assert self.now >= limiter._last_outcome + NO_OUTCOME_TIMEOUT, (
                    "only what is overdue lets one go above the limit"
                )
            self.out.append(limiter.send(self.now))
            assert full or limiter.in_flight <= before
            assert limiter.limit == before

    def take(self, data):
        return self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), waiting=st.sampled_from([0, 0, 1, 300]), times=st.integers(1, 12))
    def answer(self, data, waiting, times):
        self.hint = self.hint if self.limiter.state != "probing" else -inf
        for _ in range(min(times, len(self.out))):
            self.limiter.on_answer(self.take(data), self.now, waiting)
            self.was_answered()

    def was_answered(self):
        self.answered = True
        self.clean = 0 if self.callers else self.clean + 1
        self.callers = 0

    def has_failed(self, before):
        self.callers += 1
        if before != "probing":
            self.since = self.now

    @precondition(lambda self: self.out)
    @rule(
        data=st.data(),
        hint=st.sampled_from([None] * 6 + [0.0, 0.5, 15.0]),
        times=st.integers(1, 8),
        taken=st.booleans(),
    )
    def fail(self, data, hint, times, taken):
        for _ in range(min(times, len(self.out))):
            until = None if hint is None else self.now + hint
            limit, state, failure_ratio = self.limiter.limit, self.limiter.state, self.limiter.failure_ratio
            calm = self.limiter.calm  # the first failure starts counting
            self.limiter.on_failure(self.take(data), self.now, self.plan, until, answered=taken)
            own = taken and not calm and state not in ("probing", "recovering") and self.limiter.is_serving()
            self.has_failed(state)
            assert self.limiter.limit <= limit, "a failure never lets more be sent"
            if own:
                assert (limit, state, failure_ratio) == (
                    self.limiter.limit,
                    self.limiter.state,
                    self.limiter.failure_ratio,
                )
            elif self.limiter.state == "probing" and until is not None:
                sure = not self.answered or (self.clean >= RECENT_OUTCOMES and self.callers >= PROBING_STREAK)
                hold = 10.0 if sure else min(10.0, self.now - self.since)
                self.hint = max(self.hint, min(until, self.now + hold))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), sent=st.booleans())
    def break_off(self, data, sent):
        before = self.limiter.limit, self.limiter.failure_ratio, self.limiter.state
        self.limiter.on_abandoned(self.take(data), self.now, sent)
        assert before == (self.limiter.limit, self.limiter.failure_ratio, self.limiter.state)

    @rule(fine=st.booleans(), uncounted=st.booleans())
    def hear(self, fine, uncounted):
        """The outcome of an attempt without a permit."""
        if fine:
            self.hint = self.hint if self.limiter.state != "probing" else -inf
            self.limiter.on_answer(None, self.now, 0)
            self.was_answered()
        else:
            before = self.limiter.state
            self.limiter.on_failure(None, self.now, self.plan, None, uncounted)
            self.has_failed(before)

    @invariant()
    def what_is_out_is_counted(self):
        limiter = self.limiter
        assert limiter.in_flight == sum(permit.epoch == limiter.epoch for permit in self.out) >= 0
        assert all(permit.out for permit in self.out)
        assert limiter.limit >= 1.0
        assert 0.0 <= limiter.failure_ratio <= 1.0

    @invariant()
    def calm_is_without_a_limit(self):
        limiter = self.limiter
        if limiter.calm:
            assert limiter.state == "calm"
            assert limiter.limit == inf
        assert limiter.limit < inf or limiter.state == "calm"

    @invariant()
    def due_is_true(self):
        due = self.limiter.due()
        assert due < inf
        assert self.limiter.paused_until() <= due

    @invariant()
    def nothing_goes_before_a_hint(self):
        if self.hint > -inf:
            assert nextafter(self.hint, -inf) < self.limiter.due()
        assert self.limiter.paused_until() >= self.hint


TestWhatever = Whatever.TestCase
TestWhatever.settings = settings(deadline=None, max_examples=50, stateful_step_count=50)


# -- the calls of an outage


@pytest.mark.parametrize(("seconds", "caught_up"), [(0.5, False), (9.9, False), (10.1, True), (3600.0, True)])
def test_the_calls_of_an_outage_are_worked_off_for_as_long_as_they_may_wait(seconds, caught_up):
    """Later none of them is left, also if no call has come since the first answer."""
    limiter = Limiter(random.Random(1), 0.0, patience=10.0)
    answer(limiter, 0.0)
    now = all_fails_for(limiter, 1.0, 3.0)
    now = answer(limiter, max(now, limiter.prober.next_probe))
    assert limiter.catching_up(now)
    assert limiter.catching_up(now + seconds) is not caught_up


@pytest.mark.parametrize(("length", "answered"), [(1.0, False), (3.0, True)])
def test_short_outages_and_those_of_errors_leave_nothing_to_work_off(length, answered):
    """New calls go first, as ever."""
    limiter = Limiter(random.Random(1), 0.0, patience=10.0)
    answer(limiter, 0.0)
    now = all_fails_for(limiter, 1.0, length, answered=answered)
    now = answer(limiter, max(now, limiter.prober.next_probe))
    assert not limiter.catching_up(now)


def test_an_outage_that_other_processes_saw_is_not_taken_for_the_last_one_of_errors():
    """Its calls are worked off, though the outage before it concerned some callers only."""
    limiter = Limiter(random.Random(1), 0.0, patience=10.0)
    answer(limiter, 0.0)
    now = all_fails_for(limiter, 1.0, 3.0, answered=True)
    now = answer(limiter, max(now, limiter.prober.next_probe))
    limiter.apply_remote_outage(now + 5.0, peers=1)
    now = answer(limiter, now + 9.0)
    assert limiter.catching_up(now)


def all_fails_for(limiter, now, seconds, **how):
    """Let all attempts fail for a while; return the instant."""
    end, plan = now + seconds, Backoff(0.1, jitter="none")
    while now < end:
        fail(limiter, now, plan, **how)
        now = max(now + 0.01, limiter.prober.next_probe)
    assert limiter.state == "probing"
    return now


# -- the rate of calls


def prober_in_calm(gaps, start=0.0):
    """Return a prober that saw calls come so many seconds after their samples were due, and the instant."""
    prober, now = Prober(random.Random(1), start, 10.0), start
    for gap in gaps:
        now += 0.05
        prober.on_call(now + gap, now)
        now += gap
    prober.outage_start = now
    return prober, now


def test_the_usual_rate_of_calls_bounds_the_first_pause():
    """An outage begins with it, so its end is noticed soon."""
    prober, now = prober_in_calm([0.01] * 30)
    prober.reset_call_rate(now)
    assert prober.pause_by_rate(now) == pytest.approx(1 / (PROBE_RATIO * 100.0))


def test_without_samples_the_rate_of_calls_is_measured_from_the_first():
    """A few gaps tell too little."""
    prober, now = prober_in_calm([0.01] * 5)
    prober.reset_call_rate(now)
    assert prober.pause_by_rate(now) == inf


def test_a_night_without_calls_is_one_long_gap():
    """It counts as ten seconds, and is forgotten after as many samples as any other."""
    prober, now = prober_in_calm([0.01] * 30 + [30_000.0] + [0.01] * 200)
    prober.reset_call_rate(now)
    assert prober.pause_by_rate(now) == pytest.approx(1 / (PROBE_RATIO * 100.0), rel=0.1)


def test_only_the_first_call_after_a_sample_is_due_tells_the_gap():
    """Others come while it is in flight; and a sample that is due at once has no gap."""
    prober, now = prober_in_calm([0.01] * 30)
    for n in range(50):
        prober.on_call(now + 0.1 * n, now - 0.01)
        prober.on_call(now + 0.1 * n, -inf)
    prober.reset_call_rate(now)
    assert prober.pause_by_rate(now) == pytest.approx(1 / (PROBE_RATIO * 100.0))
