"""Backoff: capped first and jittered then; the user's own delays; what they add up to."""

import itertools
import math
import random
from collections import deque
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abate.schedule import Backoff, schedule
from abate.schedule.backoff import JITTERS, MAX_DELAYS, max_total_delay

NAN, INF = float("nan"), float("inf")

CHANCE = tuple(jitter for jitter in JITTERS if jitter != "none")
in_every_jitter = pytest.mark.parametrize("jitter", JITTERS)
draws = st.floats(0.0, 1.0, exclude_max=True)
retries = st.integers(1, 60)


class Chance:
    """Draws what it is told, again and again."""

    def __init__(self, *drawn):
        self.random = itertools.cycle(drawn).__next__


@st.composite
def backoffs(draw, jitters=JITTERS):
    base = draw(st.just(0.0) | st.floats(1e-6, 100.0))
    cap = base * draw(st.floats(1.0, 1e4)) if base else draw(st.floats(0.0, 1e4))
    return Backoff(base, cap, draw(st.floats(1.0, 10.0)), draw(st.sampled_from(jitters)))


# -- the ceiling


def test_the_ceiling_grows_by_the_factor_up_to_the_cap():
    """Each retry may wait twice as long as the one before, until the cap."""
    ceilings = [Backoff(base=0.1, cap=5.0).ceiling(retry) for retry in range(1, 9)]
    assert ceilings == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_the_ceiling_of_decorrelated_triples():
    """A decorrelated delay is at most three times the one before, and the first at most three times the base."""
    ceilings = [Backoff(1.0, 50.0, factor=7.0, jitter="decorrelated").ceiling(retry) for retry in range(1, 6)]
    assert ceilings == [3.0, 9.0, 27.0, 50.0, 50.0]


@given(backoff=backoffs(["full", "equal", "none"]), retry=retries)
def test_the_ceiling_is_the_formula(backoff, retry):
    """The ceiling is min(cap, base * factor ** (retry - 1)), worked out here without rounding."""
    grown = Fraction(backoff.base) * Fraction(backoff.factor) ** (retry - 1)
    assert backoff.ceiling(retry) == pytest.approx(float(min(Fraction(backoff.cap), grown)), rel=1e-9)
    assert backoff.ceiling(retry) <= backoff.cap


@given(backoff=backoffs(), retry=st.integers(1, 10**18), further=st.integers(0, 10**18), drawn=draws)
def test_no_retry_is_too_far(backoff, retry, further, drawn):
    """However often something is retried, the ceiling only grows, and neither it nor a delay passes the cap."""
    assert backoff.ceiling(retry) <= backoff.ceiling(retry + further) <= backoff.cap
    assert 0.0 <= backoff.delay(retry, Chance(drawn), previous=backoff.ceiling(retry)) <= backoff.cap


@in_every_jitter
@pytest.mark.parametrize("retry", [1_000, 10_000, 1_000_000, 10**18])
def test_far_retries_wait_at_the_cap(jitter, retry):
    """The power overflows a float long before; the ceiling stays the cap."""
    assert Backoff(0.1, 5.0, jitter=jitter).ceiling(retry) == 5.0


@in_every_jitter
@pytest.mark.parametrize("retry", [1, 2, 10_000, 10**18])
def test_a_base_of_nothing_never_waits(jitter, retry):
    """Nothing doubled is nothing, also where the power overflows."""
    backoff = Backoff(base=0.0, cap=30.0, jitter=jitter)
    assert (backoff.ceiling(retry), backoff.delay(retry, Chance(0.5), previous=0.0)) == (0.0, 0.0)


@pytest.mark.parametrize("retry", [1, 2, 10_000, 10**18])
def test_a_factor_of_one_stays_at_the_base(retry):
    """With factor 1 every retry has the same ceiling."""
    assert Backoff(base=0.7, cap=30.0, factor=1.0).ceiling(retry) == 0.7


def test_whole_numbers_are_taken_as_floats():
    """Backoff(1, 30, 2) is the same value as with floats; a power of the int 2 would grow without end."""
    backoff = Backoff(1, 30, 2)
    assert repr(backoff) == "Backoff(base=1.0, cap=30.0, factor=2.0, jitter='full', minimum=0.0)"
    assert backoff == Backoff(1.0, 30.0, 2.0)
    assert hash(backoff) == hash(Backoff(1.0, 30.0, 2.0))


def test_it_is_a_value():
    """The defaults are those of a policy, and can't be changed afterwards."""
    backoff = Backoff()
    assert (backoff.base, backoff.cap, backoff.factor, backoff.jitter) == (0.2, 30.0, 2.0, "full")
    with pytest.raises(AttributeError, match="is frozen"):
        backoff.base = 1.0


# -- the delay


@pytest.mark.parametrize(
    ("jitter", "previous", "delay"),
    [
        ("full", None, 0.75),  # a quarter of 3
        ("equal", None, 1.875),  # from 1.5 to 3
        ("none", None, 3.0),
        ("decorrelated", None, 1.5),  # from 1 to 3: the first previous is the base
        ("decorrelated", 2.0, 2.25),  # from 1 to 6
        ("decorrelated", 8.0, 3.25),  # from 1 to the cap of 10
        ("decorrelated", 0.1, 1.0),  # never below the base
        ("full", 8.0, 0.75),  # only decorrelated looks back
    ],
)
def test_each_jitter_draws_from_its_own_range(jitter, previous, delay):
    """A draw of a quarter lies a quarter into the range of the second retry."""
    assert Backoff(1.0, 10.0, 3.0, jitter).delay(2, Chance(0.25), previous) == delay


@given(backoff=backoffs(), retry=retries, drawn=draws)
def test_each_jitter_keeps_its_bounds(backoff, retry, drawn):
    """full: [0, ceiling]; equal: [ceiling / 2, ceiling]; none: the ceiling; decorrelated: [base, ceiling]."""
    ceiling = backoff.ceiling(retry)
    low = {"full": 0.0, "equal": ceiling / 2, "none": ceiling, "decorrelated": backoff.base}[backoff.jitter]
    previous = backoff.ceiling(retry - 1) if retry > 1 else None
    assert low <= backoff.delay(retry, Chance(drawn), previous) <= ceiling * (1 + 1e-12)


@given(backoff=backoffs(["decorrelated"]), drawn=st.lists(draws, min_size=1, max_size=20))
def test_decorrelated_follows_the_delay_before(backoff, drawn):
    """Each delay lies between the base and three times the delay before it, and never above the cap."""
    previous = None
    for retry, chance in enumerate(drawn, 1):
        top = max(backoff.base, min(backoff.cap, 3.0 * (backoff.base if previous is None else previous)))
        delay = backoff.delay(retry, Chance(chance), previous)
        assert backoff.base <= delay <= top
        assert delay <= backoff.ceiling(retry) * (1 + 1e-9)
        previous = delay


@pytest.mark.parametrize(("jitter", "low"), [("full", 0.0), ("equal", 15.0), ("decorrelated", 0.2)])
def test_a_fleet_at_the_cap_is_still_spread(jitter, low):
    """Ten thousand clients at the cap come back evenly over the whole range: no tenth of it is crowded or empty."""
    backoff, rng = Backoff(jitter=jitter), random.Random(11)
    delays = [backoff.delay(10_000, rng, previous=30.0) for _ in range(10_000)]
    width = (30.0 - low) / 10
    tenths = [0] * 10
    for delay in delays:
        tenths[int((delay - low) / width)] += 1
    assert all(900 < count < 1100 for count in tenths), tenths
    assert len(set(delays)) == len(delays)


def test_no_jitter_is_no_spread():
    """Only `none` lets the fleet march in step, which is what it says."""
    backoff, rng = Backoff(jitter="none"), random.Random(11)
    assert {backoff.delay(10_000, rng) for _ in range(100)} == {30.0}
    assert {jitter: Backoff(jitter=jitter).jittered for jitter in JITTERS} == {
        "full": True,
        "equal": True,
        "decorrelated": True,
        "none": False,
    }


# -- bad input


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"base": -0.1}, ValueError, "base must be a number at least 0, not -0.1"),
        ({"base": NAN}, ValueError, "base must be a number at least 0, not nan"),
        ({"base": INF}, ValueError, "base must be a number at least 0 and finite, not inf"),
        ({"base": True}, TypeError, "base must be a number at least 0, not True"),
        ({"base": "0.1"}, TypeError, "base must be a number at least 0, not '0.1'"),
        ({"base": None}, TypeError, "base must be a number at least 0, not None"),
        ({"base": 10**400}, ValueError, "base must be a number at least 0, not an integer too large for a float"),
        ({"cap": -1}, ValueError, "cap must be a number at least 0, not -1"),
        ({"cap": NAN}, ValueError, "cap must be a number at least 0, not nan"),
        ({"cap": INF}, ValueError, "cap must be a number at least 0 and finite, not inf"),
        ({"cap": False}, TypeError, "cap must be a number at least 0, not False"),
        ({"base": 2.0, "cap": 1.5}, ValueError, "cap must be at least the base of 2.0, not 1.5"),
        ({"factor": 0.99}, ValueError, "factor must be a number at least 1, not 0.99"),
        ({"factor": NAN}, ValueError, "factor must be a number at least 1, not nan"),
        ({"factor": INF}, ValueError, "factor must be a number at least 1 and finite, not inf"),
        ({"factor": True}, TypeError, "factor must be a number at least 1, not True"),
        (
            {"jitter": "lots"},
            ValueError,
            "jitter must be one of 'full', 'equal', 'decorrelated', 'none', not 'lots'",
        ),
        ({"jitter": None}, ValueError, "jitter must be one of 'full', 'equal', 'decorrelated', 'none', not None"),
        ({"jitter": ["full"]}, ValueError, "jitter must be one of .*, not \\['full'\\]"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, error, message):
    """The error says which setting, what was expected and what was given."""
    with pytest.raises(error, match=f"^{message}$"):
        Backoff(**settings)


def test_the_edges_are_allowed():
    """A cap that is the base, a factor of one and a base of nothing are fine."""
    assert Backoff(base=2.0, cap=2.0, factor=1.0).ceiling(9) == 2.0
    assert Backoff(base=0.0, cap=0.0).ceiling(9) == 0.0


# -- a wider start


@given(backoff=backoffs(), base=st.floats(0.0, 1e5))
def test_at_least_raises_the_base_as_far_as_the_cap_allows(backoff, base):
    """The start is the larger of both, the cap stays, and so does everything else."""
    wider = backoff.at_least(base)
    assert wider.base == max(backoff.base, min(base, backoff.cap))
    assert (wider.cap, wider.factor, wider.jitter) == (backoff.cap, backoff.factor, backoff.jitter)
    assert (wider is backoff) == (wider.base == backoff.base)


# -- the user's own delays


class Evens:
    """Can be read again and again, and never ends."""

    def __iter__(self):
        return itertools.count(0, 2)


def test_a_function_is_asked_for_every_retry():
    """A function of the retry's number gives the delay as it is, whatever chance says."""
    plan = schedule(lambda retry: retry / 4)
    assert [plan.delay(retry, Chance(0.9), previous=7.0) for retry in (1, 2, 6)] == [0.25, 0.5, 1.5]
    assert [plan.ceiling(retry) for retry in (1, 2, 6)] == [0.25, 0.5, 1.5]
    assert plan.jittered is False
    assert plan.at_least(1.0) is plan


@pytest.mark.parametrize(
    ("answer", "error"),
    [(-1, ValueError), (NAN, ValueError), (INF, ValueError), (None, TypeError), (True, TypeError)],
)
def test_a_bad_number_of_a_function_is_named(answer, error):
    """The error names the retry and what the function gave."""
    plan = schedule(lambda retry: answer)
    given = "the delay that the schedule gave for retry 2"
    message = f"^{given} must be a number at least 0( and finite)?, not {answer!r}$"
    with pytest.raises(error, match=message):
        plan.delay(2, Chance(0.5))
    with pytest.raises(error, match=message):
        plan.ceiling(2)


@given(
    delays=st.lists(st.floats(0.0, 1e6) | st.integers(0, 10**6), min_size=1),
    retry=st.integers(1, 200),
    kind=st.sampled_from([list, tuple, deque]),
    drawn=draws,
)
def test_a_list_gives_its_delays_and_repeats_the_last(delays, retry, kind, drawn):
    """Retry n waits the n-th delay, exactly; after the end the last one counts."""
    plan = schedule(kind(delays))
    expected = delays[min(retry, len(delays)) - 1]
    assert plan.delay(retry, Chance(drawn), previous=1.0) == plan.ceiling(retry) == expected
    assert plan.jittered is False
    assert plan.at_least(1e9) is plan


def test_a_list_that_is_changed_later_changes_nothing():
    """The delays are read when the schedule is made."""
    delays = [1.0, 2.0]
    plan = schedule(delays)
    delays[:] = [9.0]
    assert [plan.ceiling(retry) for retry in (1, 2, 3)] == [1.0, 2.0, 2.0]


def test_own_delays_are_values_too():
    """Policies with the same delays are equal and can be looked up, like those with the same Backoff."""
    assert schedule([1, 2]) == schedule((1.0, 2.0)) != schedule([1, 3])
    assert {schedule([1, 2]): "list", schedule(math.sqrt): "function"}[schedule(math.sqrt)] == "function"


def test_anything_that_can_be_read_again_will_do():
    """A range, or an iterable of the user's own; of one without end the first ten thousand count."""
    assert schedule(range(1, 4)).ceiling(9) == 3
    plan = schedule(Evens())
    assert (plan.ceiling(2), plan.ceiling(MAX_DELAYS), plan.ceiling(MAX_DELAYS + 5)) == (2, 19_998, 19_998)


@pytest.mark.parametrize(
    "once", [iter([1.0]), (delay for delay in [1.0]), map(float, "12")], ids=lambda once: type(once).__name__
)
def test_what_can_be_read_only_once_is_refused(once):
    """A generator would serve the first call and leave the others without delays."""
    with pytest.raises(TypeError, match=r"is an iterator, which only one call could read: give a list$"):
        schedule(once)


@pytest.mark.parametrize(
    ("delays", "error", "message"),
    [
        ([0.1, -0.5], ValueError, r"backoff\[1\] must be a number at least 0, not -0.5"),
        ([NAN], ValueError, r"backoff\[0\] must be a number at least 0, not nan"),
        ((1, 2, INF), ValueError, r"backoff\[2\] must be a number at least 0 and finite, not inf"),
        ([0.1, "0.5"], TypeError, r"backoff\[1\] must be a number at least 0, not '0.5'"),
        ([True], TypeError, r"backoff\[0\] must be a number at least 0, not True"),
        ([], ValueError, "backoff must be .* an iterable of seconds, not an empty iterable"),
    ],
)
def test_a_bad_number_in_a_list_is_named_with_its_place(delays, error, message):
    """The error says which delay it is."""
    with pytest.raises(error, match=f"^{message}$"):
        schedule(delays)


@pytest.mark.parametrize("nonsense", ["1, 2", b"12", 5, 0.5, None, True, object, Backoff, float], ids=repr)
def test_what_is_no_schedule_is_refused(nonsense):
    """Neither text nor a number nor a class: the error says what would do."""
    with pytest.raises(TypeError, match=r"^backoff must be a Backoff, a function .* or an iterable of seconds, not "):
        schedule(nonsense)


def test_a_schedule_is_taken_as_it_is():
    """A Backoff, or anything that has its methods."""

    class Own:
        jittered = True

        def delay(self, retry, rng, previous=None):
            return rng.random()

        def ceiling(self, retry):
            return 1.0

        def at_least(self, base):
            return self

    for plan in (Backoff(), Own()):
        assert schedule(plan) is plan


# -- in all


@given(backoff=backoffs(), retries=st.integers(0, 300))
def test_the_total_is_the_sum_of_the_ceilings(backoff, retries):
    """The most that the given number of retries may wait in all."""
    assert max_total_delay(backoff, retries) == math.fsum(backoff.ceiling(retry) for retry in range(1, retries + 1))


@settings(max_examples=10)
@given(st.integers(1, 10**6), st.sampled_from([Backoff(1.0, 8.0), schedule([1.0, 2.0, 8.0])]))
def test_the_total_of_very_many_retries_goes_on_at_the_last_ceiling(further, plan):
    """Beyond ten thousand nothing is added up one by one."""
    assert max_total_delay(plan, MAX_DELAYS + further) == max_total_delay(plan, MAX_DELAYS) + 8.0 * further


def test_without_retries_no_delay_is_asked_for():
    """Nothing waits for nothing; retries count from 1, also for the user's function."""
    assert max_total_delay(schedule(lambda retry: 1.0 / retry), 0) == 0.0


def test_the_total_covers_a_backoff_that_grows_slowly():
    """Where the cap is not reached within ten thousand retries, the total is still no less than the waits."""
    backoff, retries = Backoff(1.0, 1e6, factor=1.001), 12_000
    assert max_total_delay(backoff, retries) >= math.fsum(backoff.ceiling(retry) for retry in range(1, retries + 1))


@pytest.mark.parametrize(("retries", "error"), [(-1, ValueError), (1.0, TypeError), (True, TypeError)])
def test_a_bad_number_of_retries_is_refused(retries, error):
    """Retries are counted from nought."""
    with pytest.raises(error, match=f"^retries must be a whole number of at least 0, not {retries!r}$"):
        max_total_delay(Backoff(), retries)


@given(
    base=st.floats(0.0, 10.0),
    more=st.floats(0.0, 60.0),
    jitter=st.sampled_from(["full", "equal", "decorrelated", "none"]),
    share=st.floats(0.0, 1.0),
    retry=st.integers(1, 2000),
    drawn=st.floats(0.0, 1.0, exclude_max=True),
)
def test_no_delay_is_shorter_than_the_minimum(base, more, jitter, share, retry, drawn):
    """Nor longer than the ceiling; a wider base keeps the minimum."""
    cap = base + more
    backoff = Backoff(base, cap, 2.0, jitter, minimum=share * cap)
    rng = type("Fixed", (), {"random": lambda self: drawn})()
    for plan in (backoff, backoff.at_least(1.0)):
        assert share * cap <= plan.delay(retry, rng) * (1 + 1e-12)
        assert plan.delay(retry, rng) <= plan.ceiling(retry) * (1 + 1e-12) + 1e-300


def test_first_retries_are_spread_whatever_the_minimum():
    """A minimum above the base does not make a fleet return at one instant."""
    backoff = Backoff(0.1, 60.0, minimum=2.0)
    assert backoff.ceiling(1) == backoff.start == 4.0
    assert {round(backoff.delay(1, random.Random(seed)), 3) for seed in range(50)} > {0.0} - {0.0}
    assert max(backoff.delay(1, random.Random(seed)) for seed in range(50)) > 3.5


@pytest.mark.parametrize("minimum", [-1.0, 31.0])
def test_a_minimum_lies_between_zero_and_the_cap(minimum):
    """The error names it."""
    with pytest.raises(ValueError, match="minimum must be"):
        Backoff(minimum=minimum)
