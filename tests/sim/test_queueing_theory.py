"""Closed forms: the published figures, the rules that hold between them, and the exact engine beside them."""

import math
import statistics

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import abate
from abate.sim import Clients, Duration, Service, World, simulated
from abate.sim.queueing_theory import RetryFeedback, blocking, calls_at_bottom, late, mean_time, waiting

HOTOS = RetryFeedback(workers=30, service_time=0.1, timeout=1.0, max_attempts=2)
SEEDS = range(12)

loads = st.floats(0.01, 3.0)
"""Erlangs per worker."""
worker_counts = st.integers(1, 60)
extras = st.integers(0, 200)


def one_worker(load: float, places: int) -> tuple[float, float]:
    """Blocking and mean time of M/M/1/K, as the textbook has them: from the weights of the states."""
    weights = [load**inside for inside in range(places + 1)]
    total = math.fsum(weights)
    full = weights[-1] / total
    inside = math.fsum(count * weight for count, weight in enumerate(weights)) / total
    return full, inside / (load * (1.0 - full))


# -- queues


@pytest.mark.parametrize(
    ("rate", "workers", "places", "full", "time"),
    [(0.8, 1, 10, 0.023493, 3.7971), (3.6, 4, 20, 0.016805, 2.1950)],
)
def test_queues_with_so_many_places_have_the_published_figures(rate, workers, places, full, time):
    """M/M/1/10 at 0.8 and M/M/4 with 20 places at 3.6."""
    assert blocking(rate, 1.0, workers, places) == pytest.approx(full, abs=5e-7)
    assert mean_time(rate, 1.0, workers, places) == pytest.approx(time, abs=5e-5)


@given(load=loads, places=st.integers(1, 60))
def test_one_worker_is_the_textbook_s_queue(load, places):
    """With c = 1 the recursion gives M/M/1/K."""
    full, time = one_worker(load, places)
    assert blocking(load, 1.0, 1, places) == pytest.approx(full, rel=1e-9)
    assert mean_time(load, 1.0, 1, places) == pytest.approx(time, rel=1e-9)


@given(load=loads, workers=worker_counts, extra=extras)
def test_blocking_is_a_share_that_more_places_make_smaller(load, workers, extra):
    """Within 0 and 1; less with another place, more with more load."""
    rate, places = load * workers, workers + extra
    here = blocking(rate, 1.0, workers, places)
    ulps = 1.0 + 1e-12
    assert 0.0 <= here <= 1.0
    assert blocking(rate, 1.0, workers, places + 1) <= here * ulps
    assert blocking(rate * 1.1, 1.0, workers, places) * ulps >= here


@given(load=loads, workers=worker_counts, extra=extras)
def test_who_is_let_in_takes_at_least_its_own_service(load, workers, extra):
    """And at most the time of all requests before it."""
    places = workers + extra
    time = mean_time(load * workers, 1.0, workers, places)
    assert 1.0 - 1e-9 <= time <= (1.0 + extra / workers) * (1.0 + 1e-9)


@given(load=st.floats(0.05, 0.9), workers=worker_counts)
def test_a_queue_with_many_places_is_one_without_a_limit(load, workers):
    """M/M/c/K tends to M/M/c."""
    many = mean_time(load * workers, 1.0, workers, workers + 1000)
    assert many == pytest.approx(mean_time(load * workers, 1.0, workers), rel=1e-6)


@pytest.mark.parametrize("workers", [1000, 100_000])
def test_a_thousand_workers_are_no_trouble(workers):
    """No factorial overflows, and the load that is let in never exceeds the workers."""
    for load in (0.5, 0.99, 1.0, 1.5):
        full = blocking(load * workers, 1.0, workers, workers)
        assert 0.0 <= full < 1.0
        assert load * (1.0 - full) < 1.0
    # Erlang's B at a load equal to the number of workers is sqrt(2 / (pi * c)), to within 1/c
    assert blocking(workers, 1.0, workers, workers) == pytest.approx(math.sqrt(2.0 / (math.pi * workers)), rel=0.03)


def test_times_scale_with_the_service_time():
    """Twice as slow at half the rate is the same queue in slow motion."""
    assert blocking(5.0, 0.2, 2, 6) == pytest.approx(blocking(10.0, 0.1, 2, 6))
    assert mean_time(5.0, 0.2, 2, 6) == pytest.approx(2.0 * mean_time(10.0, 0.1, 2, 6))
    assert late(2.0, 5.0, 0.2, 2) == pytest.approx(late(1.0, 10.0, 0.1, 2))


def test_a_line_without_a_limit_grows_for_ever_under_too_much_load():
    """All wait, all are late, and the mean is infinite."""
    assert mean_time(10.0, 1.0, 10) == math.inf
    assert waiting(10.0, 1.0, 10) == late(1e9, 10.0, 1.0, 10) == 1.0


@given(load=st.floats(0.05, 0.98), span=st.floats(0.0, 50.0))
def test_one_worker_s_times_are_exponential(load, span):
    """The tail of M/M/1 is exp(-(mu - lambda) t)."""
    assert late(span, load, 1.0, 1) == pytest.approx(math.exp(-(1.0 - load) * span), rel=1e-9, abs=1e-300)


@given(load=st.floats(0.05, 0.98), workers=worker_counts)
@settings(max_examples=40)
def test_the_area_under_the_tail_is_the_mean(load, workers):
    """P(T > t) summed over t gives W, also where its two exponentials coincide."""
    rate, step = load * workers, 0.02
    last = 40.0 + 40.0 / (workers * (1.0 - load))
    points = [late(step * place, rate, 1.0, workers) for place in range(math.ceil(last / step))]
    assert points == sorted(points, reverse=True)
    area = step * (math.fsum(points) - points[0] / 2.0)
    assert area == pytest.approx(mean_time(rate, 1.0, workers), rel=2e-3)


def test_the_tail_has_no_gap_where_its_two_exponentials_coincide():
    """At a load of exactly one worker less than there are, and beside it."""
    exact = late(2.0, 3.0, 1.0, 4)
    assert late(2.0, 3.0 - 1e-9, 1.0, 4) == pytest.approx(exact, rel=1e-6)
    assert late(2.0, 3.0 + 1e-9, 1.0, 4) == pytest.approx(exact, rel=1e-6)
    assert late(1e6, 3.999, 1.0, 4) == 0.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: blocking(0.0, 1.0, 1, 1), "rate must be a number above 0, not 0.0"),
        (lambda: blocking(1.0, math.nan, 1, 1), "service_time must be a number above 0, not nan"),
        (lambda: blocking(1e-200, 1e-200, 1, 1), "rate times service_time must be a number above 0, not 0.0"),
        (lambda: blocking(1.0, 1.0, 4, 3), "places must be from the 4 workers to 10,000,000, not 3"),
        (lambda: mean_time(1.0, 1.0, 0), "workers must be a whole number of at least 1, not 0"),
        (lambda: late(-1.0, 1.0, 1.0, 1), "seconds must be a number at least 0, not -1.0"),
        (lambda: HOTOS.fixed_points(0.0), "load must be a number above 0, not 0.0"),
        (lambda: RetryFeedback(1, 1.0, 1.0, 0), "max_attempts must be a whole number of at least 1, not 0"),
        (
            lambda: RetryFeedback(1, 1.0, 1.0, 2, funded_by="luck"),
            "funded_by must be one of 'success', 'request', not 'luck'",
        ),
        (lambda: calls_at_bottom([]), "attempts must hold a number for each layer, not none"),
        (lambda: calls_at_bottom([3, 0]), r"attempts\[1\] must be a whole number of at least 1, not 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(wrong, message):
    """The error says which value it was, and what was expected."""
    with pytest.raises(ValueError, match=message):
        wrong()


# -- the load equation


@pytest.mark.parametrize(
    ("load", "points", "stable"),
    [
        (149.0, [149], [True]),
        (151.0, [151, 300, 302], [True, False, True]),
        (280.0, [280, 297, 560], [True, False, True]),
        (299.0, [598], [True]),
        (310.0, [620], [True]),
    ],
)
def test_the_load_equation_has_hotos_s_fixed_points(load, points, stable):
    """One at 149, three at 151 and 280, and only the upper one close to the capacity."""
    found = HOTOS.fixed_points(load)
    assert [round(point) for point in found] == points
    assert [point.stable for point in found] == stable


def test_hotos_s_database_is_vulnerable_above_150():
    """Half of what it serves, as every call is made twice."""
    assert HOTOS.vulnerable == 150.0


feedbacks = st.builds(
    RetryFeedback,
    workers=st.integers(1, 40),
    service_time=st.floats(0.01, 1.0),
    timeout=st.floats(0.5, 5.0),
    max_attempts=st.integers(1, 6),
    ratio=st.floats(0.0, 1.0),
    reserve=st.one_of(st.just(math.inf), st.floats(0.0, 20.0)),
    funded_by=st.sampled_from(["success", "request"]),
)


@given(feedback=feedbacks, share=st.floats(0.05, 1.2))
@settings(max_examples=60, deadline=None)
def test_fixed_points_are_fixed_and_alternate(feedback, share):
    """Each solves the equation; the first and the last are stable, and between two stable ones lies a brink."""
    load = share * feedback.capacity
    found = feedback.fixed_points(load)
    assert [point.stable for point in found] == [place % 2 == 0 for place in range(len(found))]
    assert len(found) % 2 == 1
    assert found == sorted(found)
    for point in found:
        # just below the capacity the curve is steep: as near as a float comes, the sides differ by its slope
        near = [feedback.total(load, point * (1.0 + side * 1e-13)) - point for side in (-1.0, 0.0, 1.0)]
        assert min(near) <= 1e-9 * point
        assert max(near) >= -1e-9 * point


@given(feedback=feedbacks, share=st.floats(0.05, 0.99))
@settings(max_examples=60, deadline=None)
def test_a_service_is_vulnerable_where_there_is_a_balance_above_its_capacity(feedback, share):
    """The closed form says the same as the load equation."""
    load = share * feedback.capacity
    assume(abs(load - feedback.vulnerable) > 1e-6 * load)
    down = feedback.fixed_points(load)[-1] >= feedback.capacity
    assert down == (load > feedback.vulnerable)


@given(ratio=st.floats(0.01, 2.0), share=st.floats(0.1, 0.99))
def test_a_request_funded_ratio_must_be_below_capacity_over_load_minus_one(ratio, share):
    """The rule for users: with enough attempts to spend it, and no reserve."""
    load = share * HOTOS.capacity
    assume(abs(ratio - (1.0 / share - 1.0)) > 1e-9)
    feedback = RetryFeedback(30, 0.1, 1.0, max_attempts=1000, ratio=ratio, reserve=0.0, funded_by="request")
    assert (load > feedback.vulnerable) == (ratio > HOTOS.capacity / load - 1.0)


def test_a_success_funded_budget_leaves_only_its_reserve():
    """Nothing succeeds, so nothing is paid in: the ratio does not count."""
    assert RetryFeedback(30, 0.1, 1.0, 4, ratio=5.0, reserve=0.0).vulnerable == pytest.approx(300.0)
    assert RetryFeedback(30, 0.1, 1.0, 4, ratio=5.0, reserve=10.0).vulnerable == pytest.approx(290.0)
    assert RetryFeedback(30, 0.1, 1.0, 4, ratio=5.0, reserve=1000.0).vulnerable == pytest.approx(75.0)


# -- stacks


@pytest.mark.parametrize(
    ("attempts", "told", "calls"), [([3] * 5, False, 243), ([4] * 3, False, 64), ([3] * 5, True, 3)]
)
def test_retries_multiply_from_layer_to_layer_unless_they_are_told(attempts, told, calls):
    """3 tries at 5 layers, 4 at 3, and the layer rule; as the exact engine has it."""
    assert calls_at_bottom(attempts, told) == calls
    policy = abate.Policy(on=simulated, max_attempts=attempts[0], budget=abate.Budget.unlimited(), backoff=[0.0])
    names = [f"layer{place}" for place in range(len(attempts))]
    inner = [(name,) for name in names[1:]] + [()]
    services = [
        Service(name, calls=calls, policy=policy if calls else None) for name, calls in zip(names, inner, strict=True)
    ]
    bottom = Service(names[-1], error_rate=1.0)
    world = World(Clients(count=1, arrivals="once"), [*services[:-1], bottom], policy, horizon=60.0, tells_layers=told)
    assert world.run(seed=1).loads[names[-1]].requests == calls


# -- the exact engine beside them


@pytest.mark.parametrize(("rate", "workers", "places"), [(0.8, 1, 10), (3.6, 4, 20)])
def test_the_exact_engine_agrees_with_the_closed_forms(rate, workers, places):
    """Blocking and mean time over twelve seeds, each within four standard errors of the closed form."""
    service = Service("api", workers, Duration(1.0, "exponential"), queue_limit=places - workers)
    world = World(Clients(count=10, rate=rate / 10), [service], horizon=24_000.0 / workers, warmup=100.0)
    measures = [world.run(seed).measures() for seed in SEEDS]
    for name, expected in (
        ("blocking.api", blocking(rate, 1.0, workers, places)),
        ("mean", mean_time(rate, 1.0, workers, places)),
    ):
        seen = [run[name] for run in measures]
        error = statistics.stdev(seen) / math.sqrt(len(seen))
        assert abs(statistics.fmean(seen) - expected) < 4.0 * error, (name, statistics.fmean(seen), expected, error)
        assert error < 0.1 * expected  # or the test could not fail
