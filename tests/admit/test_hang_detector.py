"""An attempt hangs if it is without an answer for much longer than answers take."""

import pytest

from abate.admit.hang_detector import INITIAL_LIMIT, HangDetector
from abate.admit.latency_model import DEFAULT_HANG_TIMEOUT, LatencyModel


def detector(baseline=0.1):
    latencies = LatencyModel(0.0)
    latencies.baseline = baseline
    return HangDetector(latencies, 0.0)


def cut_off_late(hangs, times, start=0.0):
    """Cut off attempts after 0.2 s, one after the other; return the instant of the last."""
    now = start
    for _ in range(times):
        hangs.on_sent(now)
        hangs.on_abandoned(now, now + 0.2)
        now += 0.2
    return now


def test_an_attempt_hangs_after_eight_times_the_usual_latency():
    """Without a baseline, after a second."""
    assert not detector().is_hung(0.79)
    assert detector().is_hung(0.81)
    assert not detector(None).is_hung(DEFAULT_HANG_TIMEOUT - 0.01)
    assert detector(None).is_hung(DEFAULT_HANG_TIMEOUT)


def test_late_attempts_hang_if_ten_before_them_were_late():
    """They have to span the hang timeout."""
    hangs = detector()
    now = cut_off_late(hangs, INITIAL_LIMIT - 1)
    assert not hangs.is_hung(0.2, now + 0.2)
    now = cut_off_late(hangs, 1, now)
    assert hangs.is_hung(0.2, now + 0.2)
    assert not hangs.is_hung(0.14, now + 0.14)  # not late


def test_a_good_answer_forgets_late_attempts():
    """The next ten have to be late again."""
    hangs = detector()
    now = cut_off_late(hangs, INITIAL_LIMIT)
    hangs.on_good_answer()
    assert not hangs.is_hung(0.2, now + 0.2)
    now = cut_off_late(hangs, INITIAL_LIMIT - 1, now)
    assert not hangs.is_hung(0.2, now + 0.2)


@pytest.mark.parametrize(("unanswered", "now", "silent"), [(10, 0.81, True), (9, 5.0, False), (10, 0.79, False)])
def test_silence_is_ten_attempts_without_an_answer(unanswered, now, silent):
    """For longer than one attempt may take."""
    hangs = detector()
    for _ in range(unanswered):
        hangs.on_sent(0.0)
    assert hangs.is_silent(now) == silent


def test_an_attempt_that_was_not_sent_is_not_unanswered():
    """The others are still."""
    hangs = detector()
    for _ in range(INITIAL_LIMIT):
        hangs.on_sent(0.0)
    hangs.on_abandoned(None, 0.1)
    assert hangs.unanswered == INITIAL_LIMIT - 1
    assert not hangs.is_silent(5.0)
