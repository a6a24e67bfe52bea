"""The rules of the shelter's weather, one by one, and what holds whatever happens in whatever order."""

import random
from itertools import pairwise
from math import inf, nextafter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from abate.admit import weather as rules
from abate.admit.weather import (
    DARE,
    DRIFT,
    FIRST,
    HASTE,
    LEARNED,
    OUTAGE_SHARE,
    OVERDUE,
    PAUSE,
    PERSISTENT,
    PROBES,
    QUICKLY,
    QUIET,
    ROW,
    SAMPLES,
    SHRINK,
    SILENCE,
    START,
    STILL,
    TRIAL,
    TRIED,
    Weather,
)
from abate.schedule.backoff import Backoff

EXACT = Backoff(1.0, 30.0, jitter="none")
CHANCE = st.floats(0.0, 1.0, exclude_max=True)


class Chance:
    """Chance that is always the same."""

    def __init__(self, value=0.5):
        self.value = value

    def random(self):
        return self.value


def fresh(seed=1):
    """A process that knows nothing yet."""
    return Weather(random.Random(seed), 0.0)


def answer(weather, now, seconds=0.05, waiting=0):
    """One attempt that is answered; the instant of the answer."""
    ticket = weather.send(now)
    weather.good(ticket, now + seconds, waiting)
    return now + seconds


def settled(seconds=0.05, rng=None):
    """A process that has seen a calm of some seconds, and the instant."""
    weather, now = Weather(rng or random.Random(1), 0.0), 0.0
    while now < 2 * LEARNED / SAMPLES:
        now = max(answer(weather, now, seconds), weather.look, now + 0.01)
    assert weather.calm
    assert weather.usual == pytest.approx(seconds)
    return weather, now


def limited(limit, now=0.0, usual=0.05):
    """A process that has seen answers, in the middle of a recovery with this limit."""
    weather, _ = settled(usual)
    weather._wake(now)
    weather.state, weather.limit, weather._quickly = "recovering", float(limit), False
    weather.latency = usual
    return weather


def closed(now=0.0, plan=EXACT, rng=None):
    """A process whose very first attempt has failed."""
    weather = Weather(rng or random.Random(1), now)
    weather.bad(weather.send(now), now, plan)
    assert weather.state == "probing"
    return weather


def all_fails(weather, now, until=None, plan=EXACT):
    """Enough failures in a row to close it, each with the same hint."""
    for _ in range(ROW):
        assert weather.state != "probing"
        weather.bad(weather.send(now), now, plan, until)
    assert weather.state == "probing"


# -- the beginning


def test_a_process_that_knows_nothing_sends_ten_at_once():
    """And no more before one of them is back, or overdue."""
    weather = fresh()
    for _ in range(START):
        assert weather.may_send(0.0)
        weather.send(0.0)
    assert not weather.may_send(0.0)
    assert weather.due() == OVERDUE


@given(answers=st.integers(1, 60))
def test_a_process_that_knows_nothing_sends_more_with_every_answer(answers):
    """While the limit is what holds calls back."""
    weather = fresh()
    for _ in range(answers):
        answer(weather, 0.0, waiting=1)
    assert weather.limit == pytest.approx(START + QUICKLY * answers)


def test_a_limit_that_holds_nobody_back_does_not_grow():
    """What is not needed teaches nothing."""
    weather = fresh()
    for _ in range(30):
        answer(weather, 0.0, waiting=0)
    assert weather.limit == START


def test_the_very_first_failure_closes():
    """Before any answer there is no reason to believe that the server is up."""
    weather = closed()
    assert weather.state == "probing"
    assert weather.limit == 1.0
    assert not weather.may_send(0.5)
    assert weather.may_send(weather.opens)


def test_a_failure_after_an_answer_closes_nothing():
    """One failure is a blip."""
    weather = fresh()
    weather.bad(weather.send(0.0), answer(weather, 0.0), EXACT)
    assert weather.state == "calm"
    assert weather.may_send(0.05)


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6))
def test_the_usual_is_learned_from_the_average_and_not_from_the_quickest(seed):
    """Of latencies that differ by chance, the quickest is far quicker: a limit made for it would starve everybody."""
    weather, chance = fresh(), random.Random(seed)
    for n in range(400):
        answer(weather, 0.01 * n, chance.expovariate(1 / 0.05), waiting=5)
    assert 0.02 < weather.usual < 0.08


# -- calm


@given(quiet=st.floats(QUIET, 100.0), early=st.floats(0.0, QUIET, exclude_max=True))
def test_it_is_calm_after_a_quiet_second(quiet, early):
    """Without a failure, with nobody held back: the limit is gone. Not before."""
    weather = fresh()
    weather.good(weather.send(0.0), early, 0)
    assert not weather.calm
    weather.good(weather.send(0.0), quiet, 0)
    assert weather.calm
    assert weather.state == "calm"
    assert weather.limit == inf


@pytest.mark.parametrize("trouble", ["waiting", "held back", "failure"])
def test_it_is_not_calm_while_somebody_waits_or_something_fails(trouble):
    """The second begins anew with each."""
    weather = fresh()
    answer(weather, 0.0)
    if trouble == "failure":
        weather.bad(weather.send(0.9), 1.0, EXACT)
    elif trouble == "held back":
        weather.limit = 1.0
        weather.send(1.0)
        weather.held_back(1.0)
        weather.in_flight = 0
    answer(weather, 1.1, waiting=trouble == "waiting")
    assert not weather.calm
    answer(weather, 2.1)
    assert weather.calm


def test_a_call_that_waits_for_the_pace_only_does_not_feel_the_limit():
    """There is room, it only has to be a moment later: it is calm all the same."""
    weather = limited(10.0)
    weather._held_back = -5.0
    weather.send(0.0)
    assert not weather.may_send(0.0)
    assert weather.due() == pytest.approx(rules.PACE * 0.05 / 10.0)
    weather.held_back(0.0)
    assert weather._held_back == -5.0
    weather.opens = 1.0
    weather.held_back(0.0)
    assert weather._held_back == 0.0


@given(sent=st.integers(0, 300))
def test_calm_has_no_limit(sent):
    """However many are out."""
    weather, now = settled()
    for _ in range(sent):
        assert weather.may_send(now)
        weather.send(now)
    assert weather.may_send(now)
    assert weather.due() <= now


def test_calm_measures_twenty_answers_a_second():
    """The answers that come in a bunch with one that was measured are one sample with it."""
    weather, now = settled(0.05)
    tickets = [weather.send(now) for _ in range(20)]
    before = weather.usual
    for ticket in tickets:
        weather.good(ticket, now + 0.1, 0)
    assert weather.look == now + 0.1 + 1 / SAMPLES
    assert weather.usual == pytest.approx(before + 0.05 / LEARNED)
    assert weather.calm


@settings(max_examples=30)
@given(seconds=st.floats(0.001, 5.0), other=st.floats(0.5, 1.5))
def test_the_usual_follows_in_calm(seconds, other):
    """Latencies that become others little by little are the new usual."""
    weather, now = settled(seconds)
    for _ in range(5 * LEARNED):
        now = max(answer(weather, now, seconds * other), weather.look)
    assert weather.calm
    assert weather.usual == pytest.approx(seconds * other, rel=0.02)


def test_many_in_flight_in_calm_are_no_storm():
    """What is a little slower is not looked into, however much is out: calm and a limit never go together."""
    weather, now = settled(0.05)
    tickets = [weather.send(now) for _ in range(200)]
    for n, ticket in enumerate(tickets):
        weather.good(ticket, now + 0.1 + 0.06 * n / len(tickets), 0)
    assert weather.calm
    assert weather.state == "calm"
    assert weather.limit == inf


def test_a_failure_in_calm_begins_the_counting_and_no_limit():
    """It ends after a second that brings no other."""
    weather, now = settled()
    weather.bad(None, now, EXACT)
    assert not weather.calm
    assert weather.state == "calm"
    assert weather.limit == inf
    answer(weather, now + 0.9)
    assert not weather.calm
    answer(weather, now + QUIET)
    assert weather.calm


@given(failures=st.integers(1, 50))
def test_hearsay_begins_the_counting_and_no_more(failures):
    """Where successes were not counted, failures must not be."""
    weather, now = settled()
    for _ in range(failures):
        weather.bad(None, now, EXACT, hearsay=True)
    assert not weather.calm
    assert weather.state == "calm"
    assert weather.failing == 0.0
    assert weather.may_send(now)


@given(slow=st.floats(5.0, 100.0))
def test_slow_answers_in_calm_begin_the_counting(slow):
    """That take many times as long as usual; a little slower is no reason."""
    for factor, calm in ((1.9, True), (slow, False)):
        weather, now = settled(0.05)
        stayed = []
        for _ in range(2):
            now = max(answer(weather, now, 0.05 * factor), weather.look)
            stayed.append(weather.calm)
        assert all(stayed) is calm


def test_one_slow_answer_after_the_other_wakes_it():
    """Each for itself is not slow enough: the last ones together are."""
    weather, now = settled(0.05)
    for expected in (True, False):
        now = max(answer(weather, now, 0.05 * 3.4), weather.look)
        assert weather.calm is expected


@given(usual=st.floats(1e-6, 1e-3), slow=st.floats(3.0, 10.0))
def test_a_hiccup_of_this_process_wakes_nobody(usual, slow):
    """Where answers take microseconds, many times as long is next to nothing; some hundredths of a second count."""
    weather, now = settled(usual)
    answer(weather, now, min(usual * slow, rules.NOTICED))
    assert weather.calm
    weather, now = settled(usual)
    answer(weather, now, 2.5 * rules.NOTICED)
    assert not weather.calm


def test_a_queue_that_grows_does_not_become_the_usual():
    """Answers that take longer and longer while all attempts are sent wake it before they are twice the usual."""
    weather, now = settled(0.05)
    seconds = 0.05
    while weather.calm:
        seconds *= 1.1
        now = max(answer(weather, now, seconds), weather.look, now + 0.01)
        assert seconds < 0.5
    assert weather.usual < 0.1


# -- storm


def test_more_than_half_failing_is_a_storm():
    """What may be in flight is halved."""
    weather = limited(40.0)
    for n in range(6):
        (answer if n % 3 == 0 else fail)(weather, 0.1 * n)
    assert weather.state == "storm"
    assert weather.limit < 40.0


def fail(weather, now, plan=EXACT, **how):
    """One attempt that fails at once."""
    weather.bad(weather.send(now), now, plan, **how)
    return now


@given(rest=st.integers(2, 9), times=st.integers(1, 30))
def test_a_third_failing_is_no_storm(rest, times):
    """Nor is less."""
    weather = limited(40.0)
    now = 0.0
    for _ in range(times):
        fail(weather, now)
        for _ in range(rest):
            now = answer(weather, now)
    assert weather.state == "recovering"
    assert weather.limit >= 40.0


@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.1, 0.2, 0.3]))
@settings(max_examples=30)
def test_a_third_failing_by_chance_closes_next_to_never(seed, share):
    """A thousand outcomes have rows of five by chance; all is not taken to fail for that."""
    weather, chance = limited(40.0), random.Random(seed)
    closings, now = 0, 0.0
    for _ in range(1000):
        now += 0.01
        (fail if chance.random() < share else answer)(weather, max(now, weather.opens))
        closings += weather.state == "probing"
    assert closings <= 5


def test_the_limit_is_halved_once_per_round_trip():
    """What was sent before is not counted against it twice."""
    weather = limited(64.0)
    weather.latency = 1.0
    weather._before, weather.state, weather.failing, weather._outcomes = 64.0, "storm", 0.7, 20
    limits = []
    for now in (2.0, 2.5, 2.9, 3.0, 3.5):
        weather._row = 0
        weather.failing = 0.7
        fail(weather, now)
        limits.append(weather.limit)
    floor = pytest.approx(64.0 * (1 - 0.73))
    assert limits == [32.0, 32.0, 32.0, floor, floor]


@settings(max_examples=60)
@given(outcomes=st.lists(st.sampled_from([True, False, False]), min_size=20, max_size=200), limit=st.floats(1.0, 500.0))
def test_it_goes_down_to_the_share_that_was_answered_and_no_further(outcomes, limit):
    """As long as not all fails: what was answered before is sent still."""
    weather = limited(limit)
    lowest = 0.0
    for n, fine in enumerate(outcomes):
        (answer if fine else fail)(weather, float(n))
        if weather.state == "probing":
            return
        lowest = max(lowest, weather.failing)
        assert weather.limit >= min(limit, limit * (1.0 - lowest)) - 1e-9 or weather.limit == 1.0
        if weather.state == "recovering":
            limit, lowest = weather.limit, 0.0


def test_a_failure_never_lets_more_be_sent():
    """Where crowding has lowered the limit below the share that was answered, a failure does not put it up."""
    weather = limited(4.0)
    weather.state, weather._before, weather.failing, weather._outcomes = "storm", 100.0, 0.55, 20
    fail(weather, 5.0)
    assert weather.limit <= 4.0


def test_without_a_limit_the_storm_begins_from_what_is_in_flight():
    """Half of that, when more than half fails."""
    weather, now = settled()
    weather.bad(None, now, EXACT)
    tickets = [weather.send(now) for _ in range(41)]
    for n, ticket in enumerate(tickets[:8]):
        (weather.bad(ticket, now, EXACT) if n % 4 else weather.good(ticket, now, 0))
    assert weather.state == "storm"
    assert 10 <= weather.limit <= 20


def test_a_storm_becomes_a_recovery_when_few_fail():
    """Less than a quarter, and at least four may be in flight."""
    weather = limited(4.0)
    weather.state, weather.failing, weather._outcomes = "storm", 0.4, 20
    now, states = 0.0, []
    for _ in range(6):
        now = answer(weather, now)
        states.append((weather.state, weather.failing < 0.25))
    assert states[0] == ("storm", False)
    assert states[-1] == ("recovering", True)
    assert all((state == "recovering") == few for state, few in states)


# -- crowding


@given(limit=st.floats(20.0, 500.0), slow=st.floats(6.0, 50.0))
def test_the_limit_shrinks_at_once_where_many_crowd(limit, slow):
    """By a fifth, once per round trip."""
    weather = limited(limit)
    weather.latency = 0.05 * slow
    answer(weather, 100.0, 0.05 * slow, waiting=1)
    assert weather.limit == pytest.approx(limit * SHRINK)
    answer(weather, 100.0, 0.05 * slow, waiting=1)
    assert weather.limit == pytest.approx(limit * SHRINK)


def test_crowding_without_a_limit_is_a_storm():
    """The first limit is less than what is in flight."""
    weather, now = settled(0.05)
    tickets = [weather.send(now) for _ in range(60)]
    for ticket in tickets[:3]:
        now += 1.0
        weather.good(ticket, now, 0)
    assert not weather.calm
    assert weather.state in ("storm", "recovering")
    assert weather.limit < 60


@given(limit=st.floats(1.0, 300.0), waiting=st.integers(1, 500))
def test_the_limit_grows_step_by_step_where_nobody_crowds(limit, waiting):
    """By a little with each answer, as long as calls wait."""
    weather = limited(limit)
    answer(weather, 0.0, 0.05, waiting)
    assert limit < weather.limit <= limit + 1.0 + limit * 0.01


@settings(max_examples=60)
@given(workers=st.integers(2, 60), waiting=st.sampled_from([1, 50, 200, 1000]), begin=st.floats(1.0, 200.0))
def test_the_limit_goes_to_where_a_few_stand_in_the_queue(workers, waiting, begin):
    """Of a server whose latency is what its queue makes it: the workers are busy, and the queue is short."""
    weather = limited(begin)
    now = 0.0
    for _ in range(4000):
        queued = max(0.0, weather.limit - workers)
        now += 0.05 / workers
        weather._adapt(now, waiting)
        weather.latency = 0.05 * (1.0 + queued / workers)
    assert weather.limit >= workers
    assert weather.limit * (1.0 - 1.5 * 0.05 / weather.latency) <= 6.5


def test_more_may_crowd_where_more_calls_wait():
    """Clients that don't know of each other share the server by what they need."""
    limits = []
    for waiting in (1, 100, 200, 400):
        weather = limited(12.0)
        weather.latency = 0.12
        answer(weather, 0.0, 0.12, waiting)
        limits.append(weather.limit)
    assert limits[0] < limits[1] < limits[2] == limits[3]


def test_nothing_is_known_of_a_crowd_before_the_first_answer():
    """Nor where answers take no time, as on a virtual clock."""
    weather = fresh()
    assert weather.crowd() == 0.0
    answer(weather, 0.0, 0.0)
    assert weather.crowd() == 0.0


@given(limit=st.floats(1.0, 100.0), latency=st.floats(0.001, 10.0))
def test_what_is_sent_under_a_limit_is_paced(limit, latency):
    """Half of the mean distance lies between two: what comes back in a bunch is not sent as one."""
    weather = limited(limit)
    weather.latency = latency
    weather.send(5.0)
    weather.in_flight = 0
    assert weather.due() == pytest.approx(5.0 + 0.5 * latency / limit)


def test_an_attempt_has_its_answer_by_a_little_more_than_the_last_latency():
    """As far as latencies tell: without any, at once."""
    assert fresh().answers_by(3.0) == 3.0
    weather = limited(5.0)
    weather.latency = None
    assert weather.answers_by(3.0) == pytest.approx(3.0 + HASTE * 0.05)
    weather.latency = 1.0
    assert weather.answers_by(3.0) == pytest.approx(3.0 + HASTE)


# -- answers that stay slow


def persist(weather, seconds, until, now=0.0, waiting=300):
    """Answers that take as long as `seconds` says for the limit, one by one, as fast as the limit lets them through."""
    while now < until:
        took = seconds(weather.limit)
        now += took / weather.limit
        weather.good(weather.send(now - took), now, waiting)
    return now


def test_answers_that_stay_slow_become_the_usual():
    """More was sent, and they did not become slower: it was not the queue. No sooner than after ten seconds of it."""
    weather = limited(8.0)
    now = persist(weather, lambda _: 0.5, PERSISTENT + TRIAL)
    assert weather.usual == pytest.approx(0.05)
    now = persist(weather, lambda _: 0.5, 2 * PERSISTENT + TRIAL, now)
    assert weather.usual == pytest.approx(0.05 * DRIFT ** (PERSISTENT + TRIAL))
    while weather.limit < 20.0:
        now = persist(weather, lambda _: 0.5, now + 0.1, now)
    assert now < 180.0
    assert weather.usual >= 0.5 / 3


@pytest.mark.parametrize("workers", [2, 5, 20])
def test_answers_that_are_slow_for_the_queue_do_not(workers):
    """More was sent, and they became slower: the usual stays what it was, for as long as it takes."""
    weather = limited(3.0 * workers)
    persist(weather, lambda limit: 0.05 * max(1.0, limit / workers), 600.0)
    assert weather.usual == pytest.approx(0.05, rel=0.02)
    assert weather.limit < DARE * (workers * 1.6 + 12)


def test_what_was_taken_for_the_usual_by_mistake_is_taken_back():
    """Step by step, but not below what was learned."""
    weather = limited(10.0)
    weather.usual, weather._lately = 0.06, 0.1
    persist(weather, lambda limit: 0.05 * limit / 3, 120.0)
    assert weather.usual == pytest.approx(0.05)


@pytest.mark.parametrize(("failing", "waiting"), [(0.2, 300), (0.0, 0)])
def test_nothing_is_tried_where_attempts_fail_or_nobody_waits(failing, waiting):
    """Answers may be slow for other reasons then."""
    weather = limited(8.0)
    now = 0.0
    while now < 60.0:
        weather.failing = failing
        weather._held_back = now
        now = persist(weather, lambda _: 0.5, now + 0.01, now, waiting)
    assert weather.usual == pytest.approx(0.05)


def test_a_trial_sends_a_third_more_for_a_while():
    """And at least one more, for small limits."""
    for limit, more in ((1.0, 2.0), (20.0, 20.0 * DARE)):
        weather = limited(limit)
        weather._lately = 0.5
        weather._sample_of = (TRIED - 1, 50.0, limit * (TRIED - 1))
        weather.good(weather.send(10.0), 10.5, 10)
        assert weather.limit == more
        weather.good(weather.send(10.6), 11.1, 10)
        assert weather.limit == more


def test_the_usual_becomes_quicker_with_the_average():
    """A server that answers faster than it used to, in a storm: a hundred answers say so, one of them does not."""
    weather = limited(5.0, usual=0.1)
    answer(weather, 0.0, 0.001, waiting=1)
    assert weather.usual > 0.09
    for n in range(5 * LEARNED):
        answer(weather, 0.1 * n, 0.02, waiting=1)
    assert weather.usual == pytest.approx(0.02, rel=0.1)


# -- probing


@pytest.mark.parametrize("answered", [0, 3, 30])
def test_next_to_nothing_but_failures_closes(answered):
    """Five in a row at least, and four of five of the last: one attempt at a time from there on."""
    weather = limited(10.0)
    for n in range(answered):
        answer(weather, 0.1 * n)
    row = 0
    while weather.state != "probing":
        fail(weather, 10.0 + row)
        row += 1
        assert row <= 2 * rules.RECENT
    assert row >= ROW
    assert weather.failing >= rules.ALL
    assert weather.limit == 1.0
    assert weather.in_flight == 0


def test_a_probe_is_one_attempt():
    """The next one goes when it has failed, and the pause is over."""
    weather = closed(0.0)
    ticket = weather.send(weather.opens)
    assert not weather.may_send(weather.opens)
    weather.bad(ticket, weather.opens + 0.1, EXACT)
    assert weather.opens == pytest.approx(1.1 + 2.0)
    assert not weather.may_send(3.0)
    assert weather.may_send(3.2)


@given(pauses=st.integers(1, 12), base=st.floats(0.01, 5.0))
def test_the_pause_of_an_idle_process_is_its_own_backoff(pauses, base):
    """Where chance has no part in it, to the digit."""
    plan = Backoff(base, 30.0, jitter="none")
    weather = closed(0.0, plan)
    now = 0.0
    for n in range(1, pauses + 1):
        assert weather.opens - now == pytest.approx(plan.delay(n, random.Random()))
        now = fail(weather, weather.opens, plan)


@given(chance=CHANCE, pauses=st.integers(2, 12), jitter=st.sampled_from(["full", "equal", "decorrelated"]))
def test_the_pause_has_the_scale_of_the_backoff_and_chance_in_it(chance, pauses, jitter):
    """At first anything up to its ceiling, then from half of it on: clients don't come back together."""
    plan = Backoff(0.2, 30.0, jitter=jitter)
    weather = closed(0.0, plan, Chance(chance))
    assert weather.opens == pytest.approx(plan.ceiling(1) * chance)
    for n in range(2, pauses + 1):
        now = fail(weather, weather.opens, plan)
        assert weather.opens - now == pytest.approx(plan.ceiling(n) * (PAUSE[0] + PAUSE[1] * chance))


def outage(rate, seconds, plan, seed=1):
    """A process that makes so many calls per second through an outage: the instants of its attempts."""
    weather, now = settled(rng=random.Random(seed))
    start, sent = now, []
    for n in range(int(rate * seconds)):
        now = start + n / rate
        weather.offered(now)
        if weather.may_send(now):
            sent.append(now - start)
            fail(weather, now, plan)
    return sent


@settings(max_examples=15)
@given(rate=st.sampled_from([20, 50, 200]), seed=st.integers(0, 10**6), cap=st.sampled_from([5.0, 30.0, 600.0]))
def test_a_busy_process_probes_with_a_twentieth_of_its_calls_at_most(rate, seed, cap):
    """But for the first few attempts, by which it finds out; and the longer the outage, the slower."""
    sent = outage(rate, 60.0, Backoff(0.2, cap), seed)
    assert len(sent) <= PROBES * rate * 60.0 + 2 * ROW + 10
    early, late = [sum(start <= at < start + 20 for at in sent) for start in (0, 40)]
    assert late < early
    assert late <= 20 / (40 * OUTAGE_SHARE * 0.8) + 1 + 20 / (cap / 2)


@settings(max_examples=15)
@given(rate=st.sampled_from([5, 20, 100]), seed=st.integers(0, 10**6))
def test_a_busy_process_probes_sooner_than_its_own_backoff(rate, seed):
    """It notices the end of an outage within a tenth of its length, though its backoff would take minutes."""
    sent = outage(rate, 60.0, Backoff(0.2, 600.0), seed)
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    assert max(gaps) <= 1.2 * max(60.0 * OUTAGE_SHARE, 1 / (PROBES * rate)) + 1.0


def test_probes_of_two_processes_are_not_at_the_same_instants():
    """Chance has a part in the pause of a busy process too."""
    first, second = (outage(100, 30.0, Backoff(0.2, 600.0, jitter="full"), seed) for seed in (1, 2))
    assert len(set(first) & set(second)) < len(first) / 4


def test_calls_of_long_ago_do_not_make_a_process_busy():
    """The rate is that of the last seconds."""
    weather = fresh()
    for n in range(1000):
        weather.offered(n * 0.001)
    for n in range(30):
        weather.offered(60.0 + 10 * n)
    rate = weather._offered / max(3.0, 350.0 - weather._offered_since)
    assert rate < 0.5


def test_an_answer_to_a_probe_opens_for_three():
    """A fatal error is an answer too: the server is up. Each further answer lets more be sent."""
    weather = closed()
    now = answer(weather, weather.opens, waiting=9)
    assert weather.state == "recovering"
    assert FIRST <= weather.limit <= FIRST + QUICKLY
    assert weather.shut() <= now
    for _ in range(8):
        now = answer(weather, now, waiting=9)
    assert weather.limit >= FIRST + 8 * QUICKLY


def test_a_failure_after_the_first_answer_is_no_storm_but_many_are():
    """A server that comes back with an error now and then is not closed for it; one that goes down again is."""
    weather = closed()
    now = answer(weather, weather.opens, waiting=9)
    fail(weather, now)
    assert weather.state == "recovering"
    for _ in range(20):
        fail(weather, now)
        if weather.state == "probing":
            return
    pytest.fail("it did not close")


def test_the_pauses_begin_anew_after_an_answer():
    """An outage that follows is another one."""
    weather = closed()
    for _ in range(4):
        fail(weather, weather.opens)
    assert weather.opens > 8.0
    now = answer(weather, weather.opens, waiting=9)
    while weather.state != "probing":
        fail(weather, now)
    assert weather.opens == now + 1.0


# -- hints


@given(hint=st.floats(0.001, 5.0))
def test_a_hint_that_all_are_given_closes_until_then(hint):
    """Where all fails, it is for everybody."""
    weather, now = settled()
    all_fails(weather, now, now + hint, Backoff(0.0, 0.0))
    assert weather.shut() == now + hint
    assert not weather.may_send(nextafter(now + hint, -inf))
    assert weather.may_send(now + hint)


@given(hint=st.floats(0.0, 1000.0), failures=st.integers(1, ROW - 1))
def test_a_hint_that_some_are_given_closes_nothing(hint, failures):
    """Up to four, in a calm: the others are not held back by what these were told."""
    weather, now = settled()
    for _ in range(failures):
        weather.bad(weather.send(now), now, EXACT, now + hint)
    assert weather.state == "calm"
    assert weather.may_send(now)


@given(patience=st.floats(0.1, 100.0), hint=st.floats(0.0, 1e6))
def test_no_hint_closes_for_longer_than_half_of_the_patience(patience, hint):
    """Whatever the server asks for: those who wait learn in time whether it still holds."""
    weather = Weather(random.Random(1), 0.0, patience)
    weather.bad(weather.send(0.0), 0.0, Backoff(0.0, 0.0), until=hint)
    assert weather.shut() == min(hint, patience / 2)


def test_an_answer_ends_a_hint():
    """Whoever was told is held back by itself; the server serves others."""
    weather, now = settled()
    late = weather.send(now)
    all_fails(weather, now, now + 20.0)
    assert weather.due() == now + 20.0
    weather.good(late, now + 1.0, 0)
    assert weather.state == "recovering"
    assert weather.may_send(now + 1.0)


def test_a_hint_that_comes_late_counts_and_closes_nothing_else():
    """From an attempt that was in flight when it closed: its instant holds, the pause is not a longer one."""
    weather, now = settled()
    late = weather.send(now)
    all_fails(weather, now, now + 1.0)
    opens, epoch = weather.opens, weather.epoch
    weather.bad(late, now, EXACT, until=now + 5.0)
    assert weather.shut() == now + 5.0
    assert (weather.opens, weather.epoch) == (opens, epoch)


# -- silence, and what never comes back


@given(usual=st.floats(0.001, 2.0), late=st.floats(0.01, 5.0))
def test_silence_stops_the_sending(usual, late):
    """Ten attempts in a row without a word for too long: no more are sent, long before they time out."""
    weather, now = settled(usual)
    for _ in range(START):
        weather.send(now)
    too_long = now + max(SILENCE, STILL * weather.usual)
    weather.offered(too_long - 0.001)
    assert weather.may_send(too_long)
    weather.offered(too_long + late)
    assert not weather.calm
    assert weather.state == "storm"
    assert weather.limit == START
    assert not weather.may_send(too_long + late)


def test_nine_in_flight_are_no_silence():
    """Nor are ten of which the first came back."""
    weather, now = settled()
    tickets = [weather.send(now) for _ in range(START - 1)]
    weather.offered(now + 9.0)
    weather.good(tickets[0], now + 9.0, 0)
    weather.send(now + 9.0)
    weather.offered(now + 19.0)
    assert weather.limit == inf


def test_one_that_is_back_ends_the_silence():
    """It was only slow: others may go."""
    weather, now = settled()
    tickets = [weather.send(now) for _ in range(START)]
    weather.offered(now + 5.0)
    assert not weather.may_send(now + 5.0)
    for ticket in tickets:
        weather.good(ticket, now + 5.0, 5)
    assert weather.may_send(now + 5.0)
    weather.offered(now + 5.0)
    assert weather.state == "recovering"


def test_silence_in_a_storm_leaves_a_lower_limit_alone():
    """It stops what is sent, and never lets more go."""
    weather = limited(2.0)
    weather._silent, weather._silence = START, 0.0
    weather.offered(50.0)
    assert weather.limit == 2.0
    assert weather.state == "recovering"


def test_an_overdue_attempt_lets_another_go():
    """Ten seconds without any outcome: one more, and ten seconds later another."""
    weather = fresh()
    for _ in range(START):
        weather.send(0.0)
    for overdue in (OVERDUE, 2 * OVERDUE, 3 * OVERDUE):
        assert not weather.may_send(nextafter(overdue, 0.0))
        assert weather.may_send(overdue)
        weather.send(overdue)
        assert not weather.may_send(overdue)


def test_a_probe_that_does_not_come_back_is_followed_by_another():
    """A probe that hangs must not keep it closed for ever."""
    weather = closed()
    weather.send(5.0)
    assert not weather.may_send(14.9)
    assert weather.may_send(15.0)


@pytest.mark.parametrize("end", ["good", "bad", "void"])
def test_what_was_in_flight_when_it_closed_takes_no_room_and_frees_none(end):
    """It may never come back; when it does, it is not counted."""
    weather, now = settled()
    left = [weather.send(now) for _ in range(5)]
    all_fails(weather, now)
    assert weather.in_flight == 0
    probe = weather.send(now + 2.0)
    assert weather.in_flight == 1
    for ticket in left:
        if end == "good":
            weather.good(ticket, now + 2.0, 1)
        elif end == "bad":
            weather.bad(ticket, now + 2.0, EXACT)
        else:
            weather.void(ticket, now + 2.0)
        assert not ticket.out
        assert weather.in_flight == 1
    weather.void(probe, now + 2.0)
    assert weather.in_flight == 0


def test_failures_of_what_was_in_flight_when_it_closed_lengthen_no_pause():
    """They are from before."""
    weather, now = settled()
    left = [weather.send(now) for _ in range(50)]
    all_fails(weather, now)
    opens = weather.opens
    for ticket in left:
        weather.bad(ticket, now + 0.1, EXACT)
    weather.bad(None, now + 0.1, EXACT)
    assert weather.opens == opens


def test_an_attempt_that_was_broken_off_tells_nothing():
    """It makes room, and counts neither as an answer nor as a failure."""
    weather = limited(1.0)
    ticket = weather.send(0.0)
    failing, usual, state = weather.failing, weather.usual, weather.state
    assert not weather.may_send(1.0)
    weather.void(ticket, 1.0)
    assert weather.may_send(1.0)
    assert (weather.failing, weather.usual, weather.state) == (failing, usual, state)


def test_an_answer_without_a_ticket_counts():
    """What was sent in calm, where nobody counts, comes back when somebody does."""
    weather = closed()
    weather.good(None, 0.1, 0)
    assert weather.state == "recovering"
    assert weather.in_flight == 0


def test_what_was_cut_off_does_not_end_a_silence():
    """It is no word from the server: ten others are out as long as before."""
    weather, now = settled()
    tickets = [weather.send(now) for _ in range(START + 1)]
    weather.void(tickets[0], now + 4.0, sent=True)
    weather.offered(now + 5.0)
    assert weather.state == "storm"


# -- whatever happens


class Whatever(RuleBasedStateMachine):
    """Attempts, outcomes, calls and time in any order, and attempts only where there is room for one."""

    @initialize(seed=st.integers(0, 1000), start=st.sampled_from([0.0, 1e6, -50.0]))
    def begin(self, seed, start):
        self.now = start
        self.weather = Weather(random.Random(seed), start, 20.0)
        self.out, self.hint = [], -inf
        self.overdue = 0
        self.plan = Backoff(0.2, 30.0)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.3, 1.0, 4.0, 11.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @rule(times=st.sampled_from([1, 3, 12, 40]))
    def send(self, times):
        weather = self.weather
        for _ in range(times):
            weather.offered(self.now)
            if not weather.may_send(self.now):
                weather.held_back(self.now)
                return
            full, before = weather._full(), weather.limit
            if full:
                assert self.now >= weather._heard + OVERDUE, "only what is overdue lets one go above the limit"
            self.out.append(weather.send(self.now))
            assert full or weather.in_flight <= before
            assert weather.limit == before

    def take(self, data):
        return self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), waiting=st.sampled_from([0, 0, 1, 300]), times=st.integers(1, 12))
    def answer(self, data, waiting, times):
        self.hint = self.hint if self.weather.state != "probing" else -inf
        for _ in range(min(times, len(self.out))):
            self.weather.good(self.take(data), self.now, waiting)

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
            limit, state, failing = self.weather.limit, self.weather.state, self.weather.failing
            own = taken and state != "probing" and self.weather.serves(self.now)
            self.weather.bad(self.take(data), self.now, self.plan, until, taken=taken)
            assert self.weather.limit <= limit, "a failure never lets more be sent"
            if own:
                assert (limit, state, failing) == (self.weather.limit, self.weather.state, self.weather.failing)
            elif self.weather.state == "probing" and until is not None:
                self.hint = max(self.hint, min(until, self.now + 10.0))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), sent=st.booleans())
    def break_off(self, data, sent):
        before = self.weather.limit, self.weather.failing, self.weather.state
        self.weather.void(self.take(data), self.now, sent)
        assert before == (self.weather.limit, self.weather.failing, self.weather.state)

    @rule(fine=st.booleans(), hearsay=st.booleans())
    def hear(self, fine, hearsay):
        """Of an attempt without a ticket."""
        if fine:
            self.hint = self.hint if self.weather.state != "probing" else -inf
            self.weather.good(None, self.now, 0)
        else:
            self.weather.bad(None, self.now, self.plan, None, hearsay)

    @invariant()
    def what_is_out_is_counted(self):
        weather = self.weather
        assert weather.in_flight == sum(ticket.epoch == weather.epoch for ticket in self.out) >= 0
        assert all(ticket.out for ticket in self.out)
        assert weather.limit >= 1.0
        assert 0.0 <= weather.failing <= 1.0

    @invariant()
    def calm_is_without_a_limit(self):
        weather = self.weather
        if weather.calm:
            assert weather.state == "calm"
            assert weather.limit == inf
        assert weather.limit < inf or weather.state == "calm"

    @invariant()
    def due_is_true(self):
        due = self.weather.due()
        assert due < inf
        assert self.weather.may_send(due)
        if due > -inf:
            assert not self.weather.may_send(nextafter(due, -inf))
        assert self.weather.shut() <= due

    @invariant()
    def nothing_goes_before_a_hint(self):
        if self.hint > -inf:
            assert not self.weather.may_send(nextafter(self.hint, -inf))
        assert self.weather.shut() >= self.hint


TestWhatever = Whatever.TestCase
TestWhatever.settings = settings(deadline=None, max_examples=50, stateful_step_count=50)
