"""What a run is measured by: each figure by an example that can be reckoned by hand."""

from itertools import accumulate
from math import inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.sim import Clients, Load, Service, Trigger, World
from abate.sim.measures import MAX_POINTS, RunRecorder, jain, percentile, ratio, recovery, slot


def world(*triggers, **settings):
    return World(Clients(count=4), [Service("api")], triggers=triggers, **{"horizon": 20.0, **settings})


def measured(recorder, **loads):
    return recorder.run("exact", 1, loads).measures()


def steady(recorder, start, end, successes=True, attempts=1):
    """One call per slot, which succeeds at once or not at all."""
    for number in range(round(start * 10), round(end * 10)):
        now = number / 10
        recorder.call(number % 4, now)
        for _ in range(attempts):
            recorder.attempt(number % 4, now)
        if successes:
            recorder.success(number % 4, now, now)


# -- slots


@given(number=st.integers(0, 10**6))
def test_a_tenth_of_a_second_is_the_first_of_its_slot(number):
    """Whether it was written as a number or is a sum of many."""
    assert slot(number / 10) == slot(number * 0.1) == number


def test_a_sum_of_tenths_falls_into_one_slot_after_the_other():
    """As the calls of clients do that come ten times a second, for an hour."""
    recorder = RunRecorder(world(horizon=3600.0))
    for now in accumulate([0.1] * 35_998, initial=0.0):
        recorder.attempt(0, now)
    assert set(recorder.attempts[:35_999]) == {1}


@given(instants=st.lists(st.floats(0.0, 20.0)))
def test_everything_up_to_the_horizon_is_counted(instants):
    """The horizon's own instant too."""
    recorder = RunRecorder(world())
    for now in [*instants, 20.0]:
        recorder.call(0, now)
    assert sum(recorder.calls) == len(instants) + 1
    assert recorder.run("exact", 1, {}).calls == len(instants) + 1


@given(horizon=st.floats(0.001, 1000.0))
def test_any_horizon_has_room_for_its_last_instant(horizon):
    """Also one that is not a whole number of slots."""
    recorder = RunRecorder(world(horizon=horizon))
    recorder.attempt(0, horizon)
    assert sum(recorder.attempts) == 1


# -- counts


def test_calls_attempts_and_what_became_of_them():
    """Five calls: three succeed, one of them with a retry; one fails after three attempts; one is still under way."""
    recorder = RunRecorder(world())
    for client, began, attempts in [(0, 1.0, 1), (1, 1.0, 1), (2, 2.0, 2), (3, 3.0, 3), (0, 19.0, 1)]:
        recorder.call(client, began)
        for number in range(attempts):
            recorder.attempt(client, began + number)
    for client, began, ended in [(0, 1.0, 1.5), (1, 1.0, 2.0), (2, 2.0, 4.0)]:
        recorder.success(client, began, ended)
    recorder.failure(3.0, 6.0, "attempts")
    run = recorder.run("exact", 1, {})
    assert (run.calls, run.attempts, run.successes, run.failures, run.unfinished) == (5, 8, 3, 1, 1)
    found = run.measures()
    assert found["unfinished"] == 1.0
    assert found["amplification"] == 8 / 5
    assert found["success"] == 3 / 4
    assert found["goodput"] == 3 / 20
    assert found["completed"] == 6.0
    assert found["mean"] == (0.5 + 1.0 + 2.0) / 3
    assert (found["p50"], found["p99"]) == (1.0, inf)
    # success rates: 1/2, 1, 1, 0
    assert found["fairness"] == pytest.approx(2.5**2 / (4 * 2.25))
    assert found["denials"] == 0.0


def test_denials_are_what_budget_gates_and_shelter_refused():
    """Other reasons are none."""
    recorder = RunRecorder(world())
    for reason, many in {"budget": 3, "shelter": 2, "attempts": 7, "fatal": 5, "deadline": 1}.items():
        for _ in range(many):
            recorder.call(0, 1.0)
            recorder.failure(1.0, 2.0, reason)
    found = measured(recorder)
    assert (found["denials"], found["success"], found["p50"]) == (5.0, 0.0, inf)


def test_what_happens_in_the_warm_up_counts_for_nothing():
    """A call belongs to the time in which it began; goodput is what succeeds after the warm-up."""
    recorder = RunRecorder(world(warmup=10.0))
    steady(recorder, 0.0, 9.0, attempts=5)
    recorder.failure(3.0, 11.0, "attempts")
    recorder.call(0, 9.9)
    recorder.success(0, 9.9, 12.0)
    steady(recorder, 10.0, 15.0)
    run = recorder.run("exact", 1, {})
    assert (run.calls, run.attempts, run.successes, run.failures) == (50, 50, 51, 0)
    found = run.measures()
    assert (found["amplification"], found["goodput"], found["p999"]) == (1.0, 5.1, 0.0)


def test_fairness_is_that_of_the_calls_after_the_warm_up():
    """What happened to a client in the warm-up does not count, neither failures nor successes."""
    recorder = RunRecorder(world(warmup=10.0))
    for client, began, ended in [(1, 1.0, 2.0), (2, 9.0, 12.0), (0, 11.0, 12.0), (3, 11.0, 12.0)]:
        recorder.call(client, began)
        recorder.success(client, began, ended)
    for _ in range(5):
        recorder.call(0, 3.0)
        recorder.failure(3.0, 4.0, "attempts")
    assert measured(recorder)["fairness"] == 1.0


# -- calls that are under way at the horizon


def under_way(*began, took=(), **settings):
    """Calls that began then are in flight; the others took the given seconds."""
    recorder = RunRecorder(world(**settings))
    for since in began:
        recorder.call(0, since)
    for seconds in took:
        recorder.call(1, 10.0)
        recorder.success(1, 10.0, 10.0 + seconds)
    return measured(recorder)


def test_a_service_that_never_answers_has_no_success():
    """Its calls have been under way for long."""
    found = under_way(1.0, 2.0, 3.0)
    assert (found["success"], found["p50"], found["unfinished"]) == (0.0, inf, 3.0)


def test_a_call_that_the_horizon_cuts_off_counts_for_nothing():
    """A second is given to all of them."""
    found = under_way(19.0, 19.5, 20.0, took=[0.1])
    assert (found["success"], found["p999"], found["unfinished"]) == (1.0, pytest.approx(0.1), 3.0)
    assert under_way(18.9, 19.5, 20.0, took=[0.1])["success"] == 0.5


def test_where_calls_take_long_more_time_is_given():
    """As long as half of the successes took: 4 s."""
    took = [3.0, 4.0, 5.0]
    assert under_way(16.0, 17.0, 18.0, took=took)["success"] == 1.0
    found = under_way(1.0, 15.9, 17.0, took=took)
    assert (found["success"], found["p50"], found["p99"]) == (3 / 5, 5.0, inf)


def test_what_began_in_the_warm_up_is_not_unfinished():
    """It counts for nothing, however it ends."""
    found = under_way(1.0, 2.0, 9.9, 11.0, took=[0.1], warmup=10.0)
    assert (found["unfinished"], found["success"]) == (1.0, 0.5)


def test_a_world_of_less_than_a_second_has_no_late_calls():
    """No call can have waited for longer."""
    found = under_way(0.0, 0.1, horizon=0.5)
    assert found["unfinished"] == 2.0
    assert isnan(found["success"])


def test_a_run_without_anything_has_no_shares():
    """They are no numbers, and nothing is divided by 0."""
    found = measured(RunRecorder(world()))
    for name in ("amplification", "success", "mean", "p50", "fairness", "wasted", "recovery", "peak_to_mean_1s"):
        assert isnan(found[name]), name
    assert (found["calls"], found["goodput"], found["peak_100ms"], found["peak_1s"]) == (0.0, 0.0, 0.0, 0.0)


# -- peaks


def test_peaks_are_the_fullest_tenth_and_the_fullest_second():
    """Over the mean up to the last attempt: what is not simulated is not calm."""
    recorder = RunRecorder(world())
    for now, many in [(0.0, 2), (1.2, 6), (1.7, 4), (3.9, 8)]:
        for _ in range(many):
            recorder.attempt(0, now)
    found = measured(recorder)
    assert (found["peak_100ms"], found["peak_1s"]) == (8.0, 10.0)
    assert found["peak_to_mean_100ms"] == pytest.approx(8 / (20 / 40))
    assert found["peak_to_mean_1s"] == pytest.approx(10 / (20 / 4))


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=50))
def test_no_peak_is_below_the_mean(instants):
    """However short it is."""
    recorder = RunRecorder(world())
    for now in instants:
        recorder.attempt(0, now)
    found = measured(recorder)
    assert found["peak_to_mean_100ms"] >= 1.0
    assert found["peak_to_mean_1s"] >= 1.0
    assert found["peak_100ms"] <= found["peak_1s"] <= len(instants)


# -- trouble


def test_amplification_during_the_trouble_and_after_it():
    """From the beginning of the first trigger to the end of the last."""
    recorder = RunRecorder(world(Trigger("error", 5.0, 2.0), Trigger("stall", 6.0, 2.0)))
    steady(recorder, 0.0, 5.0)
    steady(recorder, 5.0, 8.0, attempts=3, successes=False)
    steady(recorder, 8.0, 9.0, attempts=2)
    steady(recorder, 9.0, 20.0)
    found = measured(recorder)
    assert found["amplification_during"] == 3.0
    assert found["amplification_after"] == pytest.approx((20 + 110) / 120)
    assert found["peak_after"] == 2.0


def test_recovery_is_when_goodput_keeps_up_for_five_seconds():
    """Counted from the end of the trouble: here nothing succeeds for 4 s more."""
    recorder = RunRecorder(world(Trigger("error", 2.0, 3.0)))
    steady(recorder, 0.0, 2.0)
    steady(recorder, 2.0, 9.0, successes=False)
    steady(recorder, 9.0, 20.0)
    # a window of 5 s may hold half a second in which nothing succeeded
    assert measured(recorder)["recovery"] == pytest.approx(3.5)


@pytest.mark.parametrize(("end", "found"), [(15.1, inf), (15.0, 10.0), (9.0, 4.0)])
def test_what_recovers_too_late_to_be_sure_has_not(end, found):
    """Five seconds have to be seen before the horizon, of which a tenth may be bad."""
    calls = [10] * 201
    successes = [10 if place >= end * 10 + 5 else 0 for place in range(201)]
    assert recovery(calls, successes, end=5.0) == pytest.approx(found)


def test_where_nothing_goes_down_recovery_takes_no_time():
    """And where the trouble lasts beyond the horizon it never comes."""
    recorder = RunRecorder(world(Trigger("slow", 5.0, 2.0)))
    steady(recorder, 0.0, 20.0)
    assert measured(recorder)["recovery"] == 0.0
    recorder = RunRecorder(world(Trigger("slow", 5.0, 200.0)))
    steady(recorder, 0.0, 20.0)
    assert measured(recorder)["recovery"] == inf


@given(
    counts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=120), end=st.integers(0, 130)
)
def test_recovery_is_the_first_five_seconds_that_are_good_enough(counts, end):
    """As a search from the beginning finds it; a second without calls is ignored."""
    calls, successes = [arrived for arrived, _ in counts], [good for _, good in counts]
    expected = inf
    for place in range(end, len(calls) - 50):
        arrived = sum(calls[place : place + 50])
        if arrived and sum(successes[place : place + 50]) >= 0.9 * arrived:
            expected = (place - end) / 10
            break
    assert recovery(calls, successes, end / 10) == pytest.approx(expected)


# -- the work of services


def test_wasted_is_the_share_of_all_workers_time():
    """Of all services together; blocking is each one's own."""
    loads = {
        "a": Load(requests=10, served=8, full=2, busy=6.0, wasted=1.0),
        "b": Load(requests=5, served=5, busy=2.0, wasted=1.0),
    }
    found = measured(RunRecorder(world()), **loads)
    assert found["wasted"] == 0.25
    assert (found["requests.a"], found["blocking.a"], found["requests.b"], found["blocking.b"]) == (10.0, 0.2, 5.0, 0.0)


def test_loads_can_be_subtracted():
    """Field by field: what was seen since."""
    before = Load(requests=10, served=8, full=2, errors=1, limited=1, expired=1, busy=6.0, wasted=1.0)
    after = Load(requests=30, served=18, full=3, errors=5, limited=2, expired=4, busy=8.0, wasted=1.5)
    assert after.since(before) == Load(20, 10, 1, 4, 1, 3, 2.0, 0.5)
    assert after.since(Load(requests=0)) == after


# -- percentiles, fairness, shares


@given(
    latencies=st.lists(st.floats(0.0, 100.0), max_size=60).map(sorted),
    failures=st.integers(0, 60),
    share=st.sampled_from([0.5, 0.99, 0.999]),
)
def test_a_percentile_is_the_time_within_which_that_share_has_succeeded(latencies, failures, share):
    """The least such time; failures take forever."""
    finished = len(latencies) + failures
    found = percentile(latencies, finished, share)
    if not finished:
        assert isnan(found)
        return
    times = [*latencies, *[inf] * failures]
    assert found in times
    assert sum(time <= found for time in times) >= share * finished
    assert sum(time < found for time in times) < share * finished


@given(rates=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40), scale=st.floats(0.1, 10.0))
def test_fairness_lies_between_one_of_all_and_one(rates, scale):
    """Whatever the scale, and the order."""
    found = jain(rates)
    assert 1 / len(rates) - 1e-9 <= found <= 1.0 + 1e-9
    assert jain([rate * scale for rate in reversed(rates)]) == pytest.approx(found, rel=1e-6, abs=1e-6)


@given(rate=st.floats(0.01, 1.0), many=st.integers(1, 40), others=st.integers(0, 40))
def test_fairness_is_the_share_of_the_clients_that_have_everything(rate, many, others):
    """All alike: 1; one of n: 1/n."""
    assert jain([rate] * many + [0.0] * others) == pytest.approx(many / (many + others))


def test_a_share_of_nothing_is_no_number():
    """And nothing of something is 0."""
    assert isnan(ratio(1, 0))
    assert ratio(0, 5) == 0.0
    assert isnan(percentile([], 0, 0.5))


# -- rasters


def test_a_raster_keeps_client_and_instant_of_attempts():
    """Where it was asked for."""
    recorder = RunRecorder(world(), raster=True)
    recorder.attempt(3, 0.25)
    recorder.attempt(1, 0.75)
    assert recorder.run("exact", 1, {}).points == [(0.25, 3), (0.75, 1)]
    assert RunRecorder(world()).run("exact", 1, {}).points == ()


def test_a_raster_is_bounded(monkeypatch):
    """The first ones are kept."""
    assert MAX_POINTS == 200_000
    monkeypatch.setattr("abate.sim.measures.MAX_POINTS", 3)
    recorder = RunRecorder(world(), raster=True)
    for number in range(9):
        recorder.attempt(0, float(number))
    assert [at for at, _ in recorder.points] == [0.0, 1.0, 2.0]
    assert sum(recorder.attempts) == 9
