"""The fuse: when it blows, for how long, and how it mends."""

import random
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate import Fuse
from abate.work.fuse import LONGEST


def blown(fuse, now=0.0):
    """Blow it by failures alone."""
    for _ in range(fuse.least):
        pause = fuse.record(False, now)
    assert pause > 0
    return pause


def test_a_fuse_that_has_seen_nothing_lets_everything_through():
    """At first there is room for any number."""
    assert Fuse().room(0.0) == inf


@given(st.lists(st.booleans(), max_size=100), st.integers(1, 30), st.floats(0.05, 1.0))
def test_it_blows_at_the_threshold_and_not_before(outcomes, least, threshold):
    """It blows with the first failure that makes the share of failures reach the threshold, given enough outcomes."""
    fuse = Fuse(threshold, least, window=60.0, pause=30.0)
    ended = failed = 0
    for ok in outcomes:
        ended, failed = ended + 1, failed + (not ok)
        pause = fuse.record(ok, 1.0)
        due = not ok and ended >= least and failed >= threshold * ended
        assert (pause > 0) == due
        assert (fuse.room(1.0) == 0) == due
        if due:
            return


@given(st.integers(0, 2**32), st.floats(0.1, 1000))
def test_the_pause_is_jittered(seed, pause):
    """Give or take half, so that consumers don't come back together."""
    seconds = blown(Fuse(pause=pause, rng=random.Random(seed)))
    assert 0.5 * pause <= seconds <= 1.5 * pause


def test_after_the_pause_one_is_taken_on_trial():
    """Nothing before the pause is over, then one at a time."""
    fuse = Fuse()
    pause = blown(fuse, now=10.0)
    assert fuse.opens == 10.0 + pause
    assert fuse.room(10.0 + pause * 0.99) == 0
    assert fuse.room(10.0 + pause) == 1


def test_it_tells_for_how_long_it_lets_nothing_through():
    """Until it takes one on trial, and until that has mended it."""
    fuse = Fuse(least=1, pause=30.0)
    assert fuse.blown(now=0.0) is None
    pause = fuse.record(False, now=10.0)
    assert [fuse.blown(now=10.0 + part * pause) for part in (0.0, 0.5, 1.0, 2.0)] == pytest.approx(
        [pause, pause / 2, 0.0, 0.0]
    )
    fuse.record(True, now=10.0 + pause)
    assert fuse.blown(now=10.0 + pause) is None


def test_a_good_trial_mends_it():
    """With the first success everything is let through, and what happened before is forgotten."""
    fuse = Fuse(least=5)
    pause = blown(fuse)
    assert fuse.record(True, pause + 1) == 0.0
    assert fuse.room(pause + 1) == inf
    assert [fuse.record(False, pause + 2) > 0 for _ in range(5)] == [False] * 4 + [True]


def test_a_failed_trial_doubles_the_pause_up_to_the_longest():
    """A dependency that stays down is asked less and less often."""

    class Middle:
        def random(self):
            return 0.5

    fuse = Fuse(pause=10.0, rng=Middle())
    now, pauses = 0.0, [blown(fuse)]
    for _ in range(5):
        now += pauses[-1]
        pauses.append(fuse.record(False, now))
    assert pauses == [10.0, 20.0, 40.0, 80.0, 10.0 * LONGEST, 10.0 * LONGEST]


@given(st.lists(st.booleans(), max_size=50))
def test_what_was_in_hand_when_it_blew_counts_neither_way(late):
    """Outcomes that come while it is blown change nothing."""
    fuse = Fuse(pause=1000.0)
    blown(fuse)
    opens = fuse.opens
    assert [fuse.record(ok, 1.0) for ok in late] == [0.0] * len(late)
    assert fuse.opens == opens
    assert fuse.room(opens) == 1


@given(st.lists(st.booleans(), max_size=20))
def test_what_was_taken_before_it_blew_is_no_trial(late):
    """It says how the dependency was then: only a message that was taken since mends or blows."""
    fuse = Fuse(pause=10.0)
    taken = fuse.blows
    pause = blown(fuse)
    assert [fuse.record(ok, pause, taken) for ok in late] == [0.0] * len(late)
    assert fuse.room(pause) == 1
    taken, again = fuse.blows, fuse.record(False, pause, fuse.blows)
    assert again > 0
    assert fuse.record(True, pause + again, taken) == 0.0  # a trial of before
    assert fuse.room(pause + again) == 1
    fuse.record(True, pause + again, fuse.blows)
    assert fuse.room(pause + again) == inf


def test_what_was_taken_before_counts_once_it_is_mended():
    """Then it is an outcome like any other."""
    fuse = Fuse(least=2, pause=10.0)
    pause = blown(fuse)
    fuse.record(True, pause)
    assert [fuse.record(False, pause, taken=0) > 0 for _ in range(2)] == [False, True]


def test_old_failures_are_forgotten():
    """Only the last window counts."""
    fuse = Fuse(least=2, window=10.0)
    fuse.record(False, 0.0)
    assert fuse.record(False, 20.0) == 0.0
    assert fuse.record(False, 20.1) > 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": 0}, "threshold must be a number above 0 and at most 1, not 0"),
        ({"threshold": 1.1}, "threshold must be a number above 0 and at most 1, not 1.1"),
        ({"least": 0}, "least must be a whole number of at least 1, not 0"),
        ({"window": 0}, "window must be a number at least 0.001, not 0"),
        ({"pause": 0}, "pause must be a number above 0, not 0"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    """A clear error at construction."""
    with pytest.raises(ValueError, match=message):
        Fuse(**settings)


# -- errors that are one sender's


def test_error_answers_blow_nothing_while_others_end_well():
    """Three of four messages get a 500, as those of one sender may: the others are taken as ever."""
    fuse = Fuse(threshold=0.5, least=20)
    for number in range(1000):
        assert fuse.record(number % 4 == 0, now=number / 80, answered=True) == 0.0


def test_error_answers_blow_where_nothing_ends_well():
    """An outage that shows as 500s is one: when what ended well before has left the window, and not before."""
    fuse = Fuse(threshold=0.5, least=20, window=60.0)
    fuse.record(True, now=0.0)
    blown = [second for second in range(1, 100) if fuse.record(False, now=float(second), answered=True)]
    assert 60 <= blown[0] <= 62


def test_error_answers_are_left_out_of_the_share():
    """Neither for the fuse nor against it: what the others do decides."""
    fuse = Fuse(threshold=0.5, least=10)
    for _ in range(5):
        assert fuse.record(True, now=1.0) == 0.0
    for _ in range(50):
        assert fuse.record(False, now=1.0, answered=True) == 0.0
    assert [fuse.record(False, now=1.0) > 0.0 for _ in range(5)] == [False] * 4 + [True]


def test_an_error_answer_to_a_trial_blows_again():
    """It is the only message, and it has not ended well."""
    fuse = Fuse(threshold=0.5, least=4, pause=30.0)
    for _ in range(4):
        fuse.record(False, now=1.0)
    assert fuse.record(False, now=60.0, answered=True) > 0.0
