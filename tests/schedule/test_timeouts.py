"""Timeouts learned from latencies: accuracy, memory, and how they follow change without following themselves."""

import importlib.util
import math
import os
import random
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate import forks
from abate.schedule import timeouts as timeouts_module
from abate.schedule.timeouts import BUCKETS, GROWTH, Timeouts
from abate.testing import VirtualClock
from tests.reentry import held_elsewhere

QUICKEST = 30.0 / 22_000
SECONDS = st.floats(min_value=QUICKEST, max_value=30.0)


def exact(values, q):
    """The smallest value that at least a share `q` of the values does not exceed."""
    return sorted(values)[math.ceil(round(q * len(values), 9)) - 1]


# -- how exact


@given(st.lists(SECONDS, min_size=1, max_size=300), st.floats(min_value=0.01, max_value=0.99))
def test_a_quantile_is_within_two_percent_of_the_exact_one(values, q):
    """Whatever was observed; or it is the ceiling, where too few were."""
    timeouts = Timeouts()
    for value in values:
        timeouts.observe(value)
    if len(values) * (1 - q) < 1 - 1e-9:
        assert timeouts.quantile(q) == 30.0
    else:
        assert timeouts.quantile(q) == pytest.approx(exact(values, q), rel=0.02)


@given(st.lists(SECONDS, min_size=20, max_size=300), st.floats(min_value=1e-3, max_value=1e6))
def test_the_error_is_the_same_for_every_ceiling(values, scale):
    """Buckets are laid out down from the ceiling."""
    timeouts = Timeouts(0.05, 0.0, 30.0 * scale)
    for value in values:
        timeouts.observe(value * scale)
        timeouts.observe_connect(value * scale)
    assert timeouts.request() == pytest.approx(exact(values, 0.95) * scale, rel=0.02)
    assert timeouts.connect() == timeouts.request()


@pytest.mark.parametrize("edge", [-0.49, 0.0, 0.49])
def test_every_bucket_is_accurate(edge):
    """From the lowest bucket to the ceiling, near both borders and in the middle, for requests and connects."""
    for below in range(BUCKETS):
        seconds = 30.0 * GROWTH ** (edge - below)
        timeouts = Timeouts(0.5, floor=0.0)
        for _ in range(2):
            timeouts.observe(seconds)
            timeouts.observe_connect(seconds)
        assert timeouts.request() == pytest.approx(seconds, rel=0.02)
        assert timeouts.connect() == timeouts.request()


@given(
    st.lists(st.floats(min_value=0.0, max_value=1e9), max_size=100),
    st.floats(min_value=0.0, max_value=20.0),
    st.floats(min_value=20.0, max_value=1e4),
)
def test_a_timeout_is_never_outside_its_bounds(values, low, high):
    """For any latencies."""
    timeouts = Timeouts(0.1, low, high)
    for value in values:
        timeouts.observe(value)
        timeouts.timed_out(value)
        timeouts.observe_connect(value)
        timeouts.connect_timed_out(value)
    assert low <= timeouts.request() <= high
    assert low <= timeouts.connect() <= high
    assert timeouts.quantile(0.5) <= high


def test_a_quantile_may_lie_below_the_floor():
    """The floor applies to timeouts only; a hedge needs the observed value."""
    timeouts = Timeouts(0.1, floor=1.0)
    for _ in range(20):
        timeouts.observe(0.01)
    assert timeouts.request() == 1.0
    assert timeouts.quantile(0.9) == pytest.approx(0.01, rel=0.02)


def test_latencies_outside_the_buckets_count_in_the_first_or_last():
    """Zero, and longer than the ceiling."""
    timeouts = Timeouts(0.5, floor=0.0)
    for _ in range(2):
        timeouts.observe(0.0)
        timeouts.observe_connect(0.0)
    assert timeouts.quantile(0.5) == timeouts.connect() == pytest.approx(30.0 / 22_000, rel=0.01)
    for _ in range(4):
        timeouts.observe(1e300)
    assert timeouts.quantile(0.5) == 30.0


# -- little data


def test_the_timeout_is_the_ceiling_until_there_are_enough_observations():
    """A quantile of one in a thousand needs a thousand observations."""
    timeouts = Timeouts(0.001)
    for _ in range(999):
        timeouts.observe(0.1)
    assert timeouts.request() == 30.0
    timeouts.observe(0.1)
    assert timeouts.request() == pytest.approx(0.1, rel=0.02)


def test_connects_and_requests_are_learned_separately():
    """Neither changes the other."""
    timeouts = Timeouts(0.5)
    timeouts.observe(2.0)
    timeouts.observe(2.0)
    assert (timeouts.connect(), timeouts.request()) == (30.0, pytest.approx(2.0, rel=0.02))
    timeouts.observe_connect(0.2)
    timeouts.observe_connect(0.2)
    assert (timeouts.connect(), timeouts.request()) == (pytest.approx(0.2, rel=0.02), pytest.approx(2.0, rel=0.02))


# -- change


def test_an_observation_counts_for_one_to_two_half_lives():
    """An observation of the first half counts through the second, and is dropped with the third."""
    clock = VirtualClock()
    timeouts = Timeouts(0.1, half_life=10.0, clock=clock)
    clock.advance(9.0)
    for _ in range(20):
        timeouts.observe(5.0)
        timeouts.observe_connect(5.0)
    clock.advance(1.0)
    for _ in range(200):
        timeouts.observe(1.0)
        timeouts.observe_connect(1.0)
    clock.advance(9.0)
    assert timeouts.quantile(0.95) == pytest.approx(5.0, rel=0.02)
    clock.advance(1.0)
    assert timeouts.quantile(0.95) == timeouts.connect() == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(("pause", "known"), [(9.9, True), (10.0, True), (19.9, True), (20.0, False), (1e6, False)])
def test_observations_expire_after_two_half_lives_without_traffic(pause, known):
    """The timeout is the ceiling again, and learns anew."""
    clock = VirtualClock()
    timeouts = Timeouts(0.1, half_life=10.0, clock=clock)
    for _ in range(20):
        timeouts.observe(1.0)
    clock.advance(pause)
    assert (timeouts.request() != 30.0) is known
    for _ in range(500):
        timeouts.observe(2.0)
    assert timeouts.request() == pytest.approx(2.0, rel=0.02)


def test_halves_rotate_on_a_grid_of_half_lives():
    """An observation at the end of a half does not prolong it."""
    clock = VirtualClock()
    timeouts = Timeouts(0.5, half_life=10.0, clock=clock)
    for _ in range(4):  # at 9, 18, 27, 36
        clock.advance(9.0)
        timeouts.observe(1.0)
    clock.advance(3.9)  # 39.9: the halves from 20 and from 30 count
    assert timeouts.quantile(0.5) == pytest.approx(1.0, rel=0.02)
    clock.advance(0.1)  # 40: only that from 30
    assert timeouts.quantile(0.5) == 30.0


def test_an_observation_at_the_border_of_two_halves_counts_in_the_later_one():
    """It expires with the half that begins at that instant."""
    clock = VirtualClock()
    timeouts = Timeouts(0.5, half_life=10.0, clock=clock)
    clock.advance(10.0)
    for _ in range(2):
        timeouts.observe(1.0)
    clock.advance(19.0)
    assert timeouts.quantile(0.5) == pytest.approx(1.0, rel=0.02)
    clock.advance(1.0)
    assert timeouts.quantile(0.5) == 30.0


def closed_loop(timeouts, clock, latency_of, requests):
    """Requests cut off by the learned timeout, a hundred a second; the timeouts that were in force."""
    used = []
    for number in range(requests):
        clock.advance(0.01)
        if number % 10 == 0:
            timeout = timeouts.request()
        used.append(timeout)
        seconds = latency_of()
        if seconds > timeout:
            timeouts.timed_out(timeout)
        else:
            timeouts.observe(seconds)
    return used


@pytest.mark.parametrize("slower", [3.0, 30.0])
def test_a_timeout_that_has_become_too_short_grows_again(slower):
    """A dependency becomes slower than every timeout learned: after a while, its answers come in again."""
    rng, clock = random.Random(7), VirtualClock()
    timeouts = Timeouts(0.01, floor=0.001, half_life=60.0, clock=clock)
    before = closed_loop(timeouts, clock, lambda: rng.lognormvariate(math.log(0.02), 0.4), 10_000)[-1]
    assert before < 0.02 * slower  # so at first everything is cut off
    after = closed_loop(timeouts, clock, lambda: slower * rng.lognormvariate(math.log(0.02), 0.4), 10_000)
    right = 0.02 * slower * math.exp(2.326 * 0.4)
    assert min(after[2000:]) > 0.8 * right
    assert max(after[5000:]) < 2.5 * right


def test_a_timeout_does_not_shrink_with_what_it_cuts_off():
    """Left alone with its own timeouts for twenty half-lives, it stays where it belongs."""
    rng, clock = random.Random(7), VirtualClock()
    timeouts = Timeouts(0.05, floor=0.001, half_life=10.0, clock=clock)
    used = closed_loop(timeouts, clock, lambda: rng.lognormvariate(math.log(0.1), 0.5), 20_000)
    right = 0.1 * math.exp(1.645 * 0.5)
    assert 0.8 * right < min(used[1000:]) <= max(used[1000:]) < 2.5 * right


def test_a_dependency_that_hangs_ends_at_the_ceiling():
    """Nothing is ever answered: the timeout doubles, and stops."""
    clock = VirtualClock()
    timeouts = Timeouts(0.01, ceiling=5.0, clock=clock)
    for _ in range(1000):
        timeouts.observe(0.1)
    assert closed_loop(timeouts, clock, lambda: 1e9, 2000)[-1] == 5.0


def test_it_comes_down_when_the_dependency_is_quick_again():
    """After two half-lives nothing is left of the slow time."""
    clock = VirtualClock()
    timeouts = Timeouts(0.01, half_life=5.0, clock=clock)
    closed_loop(timeouts, clock, lambda: 10.0, 1000)
    assert closed_loop(timeouts, clock, lambda: 0.1, 1100)[-1] == pytest.approx(0.1, rel=0.02)


@given(SECONDS)
def test_a_cut_off_request_counts_as_slower_than_an_answer_at_that_time(seconds):
    """Among as many answers just in time, the quantile lies above them."""
    timeouts = Timeouts(0.5, ceiling=100.0)
    for _ in range(4):
        timeouts.observe(seconds)
        timeouts.observe_connect(seconds)
    for _ in range(5):
        timeouts.timed_out(seconds)
        timeouts.connect_timed_out(seconds)
    assert timeouts.quantile(0.5) > 1.9 * seconds
    assert timeouts.connect() > 1.9 * seconds


# -- time, threads, forks


def test_a_virtual_clock_learns_separately():
    """A test in virtual time neither sees nor changes what the process has learned."""
    timeouts = Timeouts(0.5)
    for _ in range(2):
        timeouts.observe(1.0)
    for _ in range(2):
        with VirtualClock() as clock:
            assert timeouts.request() == 30.0
            timeouts.observe(5.0)
            timeouts.observe(5.0)
            assert timeouts.request() == pytest.approx(5.0, rel=0.02)
            clock.advance(1e9)
    assert timeouts.request() == pytest.approx(1.0, rel=0.02)


def test_a_virtual_clock_has_one_state(monkeypatch):
    """It is created at the first use and reused from then on."""
    made = []

    class Counted(timeouts_module.LatencyCounts):
        def __init__(self, half_life, clock):
            super().__init__(half_life, clock)
            made.append(clock)

    timeouts = Timeouts()
    monkeypatch.setattr(timeouts_module, "LatencyCounts", Counted)
    with VirtualClock() as clock:
        for _ in range(3):
            timeouts.observe(1.0)
            timeouts.request()
    assert made == [clock]


def test_an_explicit_clock_is_used_in_every_context():
    """The context's virtual clock is ignored."""
    now = [0.0]
    timeouts = Timeouts(0.5, half_life=10.0, clock=lambda: now[0])
    with VirtualClock() as clock:
        timeouts.observe(1.0)
        timeouts.observe(1.0)
        clock.advance(1e9)
        assert timeouts.request() < 30.0
    now[0] = 20.0
    assert timeouts.request() == 30.0


def test_threads_lose_no_observation():
    """Four threads at once; the interpreter switches as often as it can."""
    timeouts = Timeouts(1 / 20_000)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: [timeouts.observe(0.1) for _ in range(5000)], daemon=True) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert timeouts.request() == pytest.approx(0.1, rel=0.02)  # known from 20,000 observations on
    assert timeouts.quantile(1 - 1 / 20_001) == 30.0  # would be known from 20,001 on


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_while_the_lock_is_held_leaves_the_child_usable():
    """The thread that held the lock does not exist in the child."""
    timeouts = Timeouts(0.5)
    with held_elsewhere(timeouts._main):
        child = os.fork()
        if not child:
            timeouts.observe(1.0)
            timeouts.observe(1.0)
            os._exit(0 if timeouts.request() < 30.0 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_fork_hook_replaces_the_lock():
    """The same in this process."""
    timeouts = Timeouts(0.5)
    with held_elsewhere(timeouts._main):
        forks._in_child()
        timeouts.observe(1.0)
        timeouts.observe(1.0)
        assert timeouts.request() < 30.0


def test_the_module_loads_without_register_at_fork(monkeypatch):
    """Not every system has `os.register_at_fork`."""
    monkeypatch.delattr(os, "register_at_fork")
    again = importlib.util.module_from_spec(timeouts_module.__spec__)
    timeouts_module.__spec__.loader.exec_module(again)
    assert again.Timeouts().request() == 30.0


# -- size


def size(thing, seen):
    """The bytes of an object with slots, and of everything that it alone refers to."""
    if id(thing) in seen or thing is None or isinstance(thing, type) or callable(thing):
        return 0
    seen.add(id(thing))
    slots = [slot for kind in type(thing).__mro__ for slot in getattr(kind, "__slots__", ()) if slot != "__weakref__"]
    return sys.getsizeof(thing) + sum(size(getattr(thing, slot), seen) for slot in slots)


def test_a_dependency_takes_little_memory_however_much_is_observed():
    """4.3 KB, requests and connects together, after a hundred thousand of them (objects of 3.13 take 1 % more)."""
    timeouts = Timeouts(name="orders")
    rng = random.Random(1)
    for _ in range(50_000):
        timeouts.observe(rng.lognormvariate(-3, 1))
        timeouts.observe_connect(rng.lognormvariate(-3, 1))
    assert size(timeouts, set()) <= 4300


def test_a_bucket_stops_counting_at_its_maximum():
    """A bucket counts up to 65,535 connects; the share of slower ones is too large from then on."""
    timeouts = Timeouts(0.01)
    for _ in range(65_535 + 10):
        timeouts.observe_connect(0.1)
    assert timeouts._main.connects.total == 65_535
    assert timeouts.connect() == pytest.approx(0.1, rel=0.02)


def test_four_billion_requests_of_one_bucket_are_counted():
    """The count then stops instead of raising in the middle of a call; other buckets continue."""
    timeouts = Timeouts(0.01)
    requests = timeouts._main.requests
    timeouts.observe(0.1)
    place = requests._counts.index(1)
    requests._counts[place] = requests.total = 2**32 - 2
    for _ in range(3):
        timeouts.observe(0.1)
    assert requests._counts[place] == requests.total == 2**32 - 1
    timeouts.observe(0.2)
    assert requests.total == 2**32
    assert timeouts.request() == pytest.approx(0.1, rel=0.02)


# -- arguments


@pytest.mark.parametrize("seconds", [-1.0, -1e-300, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("method", ["observe", "observe_connect", "timed_out", "connect_timed_out"])
def test_a_bad_duration_is_refused(method, seconds):
    """It is not counted."""
    timeouts = Timeouts(0.5)
    with pytest.raises(ValueError, match=r"seconds must be a number at least 0( and finite)?, not"):
        getattr(timeouts, method)(seconds)
    timeouts.observe(1.0)
    timeouts.observe_connect(1.0)
    assert (timeouts.request(), timeouts.connect()) == (30.0, 30.0)  # one observation is too few, two are enough


@pytest.mark.parametrize("method", ["observe", "observe_connect", "timed_out", "connect_timed_out"])
def test_a_duration_must_be_a_number(method):
    """A string raises TypeError."""
    with pytest.raises(TypeError):
        getattr(Timeouts(), method)("1.0")


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 2.0, math.nan])
def test_a_share_lies_between_zero_and_one(share):
    """Both the false rate and a quantile are checked."""
    with pytest.raises(ValueError, match="false_rate must be a number above 0"):
        Timeouts(share)
    with pytest.raises(ValueError, match="q must be a number above 0"):
        Timeouts().quantile(share)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"ceiling": 0.0}, ValueError, "ceiling must be a number above 0, not 0.0"),
        ({"ceiling": math.inf}, ValueError, "ceiling"),
        ({"floor": -1.0}, ValueError, "floor must be a number at least 0 and at most 30, not -1.0"),
        ({"floor": 31.0}, ValueError, "floor must be a number at least 0 and at most 30, not 31.0"),
        ({"half_life": 0.0}, ValueError, "half_life must be a number at least 0.001, not 0.0"),
        ({"name": 7}, TypeError, "name must be a string, not 7"),
        ({"clock": 7}, TypeError, "clock must have now"),
        ({"false_rate": "0.1"}, TypeError, "false_rate"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, error, message):
    """The constructor raises an error that names the setting."""
    with pytest.raises(error, match=message):
        Timeouts(**settings)


def test_the_repr_shows_the_settings():
    """The name is shown if there is one."""
    assert repr(Timeouts()) == "Timeouts(false_rate=0.001, floor=0.05, ceiling=30, half_life=300)"
    assert repr(Timeouts(0.01, name="db")) == (
        "Timeouts(false_rate=0.01, floor=0.05, ceiling=30, name='db', half_life=300)"
    )


def test_a_reentrant_observation_is_counted():
    """As by a signal handler: it is counted next, and the timeout is the ceiling meanwhile."""
    now, seen = [0.0], []
    timeouts = Timeouts(0.5, ceiling=5.0, half_life=10.0, clock=lambda: now[0])
    timeouts.observe(1.0)

    class Interrupted(type(timeouts._main.requests)):
        __slots__ = ()

        def rotate(self):
            timeouts.observe(1.0)
            timeouts.observe_connect(1.0)
            seen.append((timeouts.request(), timeouts.connect(), timeouts.quantile(0.5)))
            super().rotate()

    timeouts._main.requests.__class__ = Interrupted
    now[0] = 11.0
    timeouts.observe(1.0)
    assert seen == [(5.0, 5.0, 5.0)]
    assert timeouts._main.requests.total == 3
    assert timeouts._main.connects.total == 1
