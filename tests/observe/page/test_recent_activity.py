"""What the live page keeps of what happened: bounded, cut, and what stands out."""

import os
import signal
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate import events
from abate.observe.page.hot_keys import FailingKeys, HottestKeys
from abate.observe.page.rates import POINTS, Rates
from abate.observe.page.recent_activity import MAX_NOTICES, MAX_PAIRS, MAX_TEXT
from abate.observe.page.sliding_counts import MOST_WORDS, PART, PARTS, SlidingCounts
from abate.observe.snapshot import MAX_NAMES
from tests.reentry import held_elsewhere

ERROR = ConnectionError("down")


@given(st.lists(st.sampled_from("abcdefgh"), max_size=200), st.integers(1, 6))
def test_the_hottest_keys_are_there_and_never_counted_too_high(keys, most):
    """What makes up more than one in `most` of all is kept, and no certain count is above the true one."""
    hottest = HottestKeys(most)
    for key in keys:
        hottest.add(key)
    true, top = Counter(keys), dict(hottest.top(most))
    assert len(hottest) <= most
    assert all(certain <= true[key] for key, certain in top.items())
    assert {key for key, count in true.items() if count > len(keys) / most} <= top.keys()


def test_what_was_hot_once_gives_way():
    """Fading halves the counts, and drops what is left of nothing."""
    hottest = HottestKeys()
    for key in ["a"] * 8 + ["b"]:
        hottest.add(key)
    hottest.fade()
    assert hottest.top(5) == [("a", 4)]


def test_the_keys_that_failed_most_often_stay():
    """However many keys fail once, one that fails again and again is shown, until it is done or long not heard of."""
    failing = FailingKeys(most=3)
    failing.note("worst", 9, "down", 0.0)
    for number in range(100):
        failing.note(f"key/{number}", 1, "down", 1.0)
    assert len(failing) == 3
    assert failing.top(1, 2.0) == [("worst", 9, "down")]
    assert failing.top(1, 901.0)[0][0] == "key/98"
    failing.note("fresh", 1, "down", 950.0)
    assert "worst" not in [key for key, _, _ in failing.top(3, 1.0)]


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from("abc"))), st.floats(0, 100))
def test_the_last_minute_is_counted_to_within_a_part(steps, later):
    """All of the last 50 seconds is counted, and nothing that is older than 60."""
    lately, now, added = SlidingCounts(), 0.0, []
    for step, word in steps:
        now += step
        lately.add(word, now)
        added.append((now, word))
    end = now + later
    counts = Counter(lately.counts(end))
    assert counts >= Counter(word for at, word in added if end - at < PART * (PARTS - 1))
    assert counts <= Counter(word for at, word in added if end - at <= PART * PARTS)


def test_the_number_of_words_is_bounded():
    """What comes after that is counted as other."""
    lately = SlidingCounts()
    for number in range(1000):
        lately.add(f"word {number}", 0.0)
    assert len(lately.counts(0.0)) == MOST_WORDS + 1
    assert lately.counts(0.0)["other"] == 1000 - MOST_WORDS


def test_a_hundred_thousand_keys_do_not_make_it_grow(recent):
    """Of as many keys as there may be, a bounded number is kept, and the one that stands out is among them."""
    for number in range(100_000):
        recent(events.Worked("orders", f"key/{number}", "retry", 0.01, 1, ERROR))
        if number % 10 == 0:
            recent(events.Worked("orders", "hot", "retry", 0.01, 5, ERROR))
    sizes = recent.with_queue_activity("orders", lambda work: (len(work.hottest), len(work.failing), work.ended))
    assert sizes == (50, 50, 110_000)
    assert recent.with_queue_activity("orders", lambda work: work.hottest.top(1)[0][0]) == "hot"
    assert recent.with_queue_activity("orders", lambda work: work.failing.top(1, 1000.0)[0][:2]) == ("hot", 5)


def test_names_pairs_and_happenings_are_bounded(recent):
    """Whatever is new makes room for itself, and the newest is there."""
    for number in range(2 * MAX_NAMES):
        name = f"{number}" + "x" * 1000
        recent(events.Retry(name, 1, 0.1, "blip", None, ERROR))
        recent(events.Worked(name, "key", "done", 0.1, 1, None))
        recent(events.LayeredRetry(name, "inner"))
        recent(events.LeaseLost(name, "key"))
    assert len(recent._calls) == len(recent._work) == MAX_NAMES
    assert len(recent.layers()) == MAX_PAIRS
    assert len(recent.notices()) == MAX_NOTICES
    assert all(len(name) <= 120 for name in recent._calls)
    assert recent.notices()[0][1].startswith(f"{2 * MAX_NAMES - 1}")


class Unspeakable(Exception):
    """An error that can't be shown."""

    def __str__(self):
        raise RuntimeError("no")


def test_texts_are_cut_and_what_cannot_be_shown_harms_nobody(recent):
    """An error of a megabyte is kept as 200 characters; one whose text can't be made is named by its type."""
    recent(events.Retry("orders", 1, 0.1, "blip", None, OSError("x" * 1_000_000)))
    text = recent.with_policy_activity("orders", lambda calls: calls.error[1])
    assert len(text) == MAX_TEXT
    assert text.startswith("OSError: xxx")
    recent(events.GaveUp("orders", "attempts", 3, 0.1, Unspeakable()))
    assert (
        recent.with_policy_activity("orders", lambda calls: calls.error[1])
        == "Unspeakable: (the error has no readable text)"
    )


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (events.ShelterChanged("orders", "shop", "storm", 3, 1.0), "shop is now storm, 3 calls wait"),
        (events.ShelterChanged("orders", "shop", "calm", 0, 1.0), "shop is now calm"),
        (events.BreakerOpened("orders", 30.0), "circuit breaker open for 30 s: most attempts fail"),
        (events.LeaseLost("orders", "42"), "lost a lease"),
        (events.WorkerCrashed("orders", "42", SystemExit()), "a worker crashed: SystemExit"),
        (events.SourceFailed("orders", "sqs", ERROR, 1.0), "sqs fails: ConnectionError: down"),
        (events.StoreDegraded("orders", True, ERROR), "doesn't answer: limits are local"),
        (events.StoreDegraded("orders", False, None), "answers again"),
        (events.BudgetRefused("orders", "budget", 1), "budget refused a retry"),
        (events.LayeredRetry("orders", "inner"), "stands around inner: only one of the two retries"),
        (events.Buried("orders", "42", "permanent", "no"), "buried a key (permanent)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, events.Event) else "",
)
def test_what_a_person_on_call_wants_to_know_is_a_line(recent, event, line):
    """Each transition is one line, with when and how often."""
    recent(event)
    assert recent.notices() == [(1000.0, "orders", line, 1)]


def test_the_same_again_is_counted_and_not_listed_again(recent):
    """A storm of one kind is one line."""
    for _ in range(5):
        recent(events.LeaseLost("orders", "42"))
        recent(events.BudgetRefused("orders", "budget", 1))
    assert [(text, times) for _, _, text, times in recent.notices()] == [
        ("lost a lease", 4),
        ("budget refused a retry", 1),
        ("lost a lease", 1),
    ]


def test_who_has_no_name_is_a_policy(recent):
    """A line says something about somebody."""
    recent(events.ShelterChanged("", "shop", "storm", 0, 1.0))
    recent(events.LayeredRetry("", ""))
    assert [name for _, name, _, _ in recent.notices()] == ["a policy", "a policy"]
    assert recent.layers() == [("a policy", "a policy", 1)]


@pytest.mark.parametrize("event", [events.Recovered("orders", 2, 0.1), events.FirstFailure("orders", "blip", ERROR)])
def test_the_ordinary_is_no_line(recent, event):
    """Nobody is called for a call that went well in the end."""
    recent(event)
    assert recent.notices() == []


@given(st.lists(st.lists(st.integers(0, 1000), min_size=2, max_size=2), max_size=300))
def test_lines_are_bounded_and_never_below_zero(totals):
    """Even where a total goes back, as one does that was forgotten in between."""
    rates = Rates()
    for pair in totals:
        rates.note(pair, 1.0)
    lines = rates.lines()
    assert [len(line) for line in lines] == [min(POINTS, len(totals))] * len(lines)
    assert all(point >= 0 for line in lines for point in line)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_is_not_held_up_by_a_thread_that_it_does_not_have(recent):
    """A fork in the midst of an event leaves the child with a sink that works."""
    with held_elsewhere(recent._section):
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends a child that hangs
            recent(events.LeaseLost("orders", "42"))
            os._exit(0 if len(recent.notices()) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
