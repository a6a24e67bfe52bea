"""Recent activity for the live page: bounded, cut to length, with the most active keys."""

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
from abate.observe.page.sliding_counts import MAX_WORDS, PART, PARTS, SlidingCounts
from abate.observe.snapshot import MAX_NAMES
from tests.reentry import held_elsewhere

ERROR = ConnectionError("down")


@given(st.lists(st.sampled_from("abcdefgh"), max_size=200), st.integers(1, 6))
def test_the_hottest_keys_are_kept_and_never_overcounted(keys, most):
    """Keys with more than a share of 1/`most` are kept, and no count exceeds the true one."""
    hottest = HottestKeys(most)
    for key in keys:
        hottest.add(key)
    true, top = Counter(keys), dict(hottest.top(most))
    assert len(hottest) <= most
    assert all(certain <= true[key] for key, certain in top.items())
    assert {key for key, count in true.items() if count > len(keys) / most} <= top.keys()


def test_old_counts_fade():
    """Fading halves the counts, and drops those that reach zero."""
    hottest = HottestKeys()
    for key in ["a"] * 8 + ["b"]:
        hottest.add(key)
    hottest.fade()
    assert hottest.top(5) == [("a", 4)]


def test_the_keys_with_the_most_failures_are_kept():
    """Many keys that fail once don't displace one that fails often, until it has not failed for a long time."""
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
def test_the_last_minute_is_counted_to_within_one_part(steps, later):
    """Everything of the last 50 seconds is counted, and nothing older than 60."""
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
    """Further words are counted as other."""
    lately = SlidingCounts()
    for number in range(1000):
        lately.add(f"word {number}", 0.0)
    assert len(lately.counts(0.0)) == MAX_WORDS + 1
    assert lately.counts(0.0)["other"] == 1000 - MAX_WORDS


def test_memory_does_not_grow_with_the_number_of_keys(recent):
    """Of 100,000 keys a bounded number is kept, including the most frequent one."""
    for number in range(100_000):
        recent(events.Worked("orders", f"key/{number}", "retry", 0.01, 1, ERROR))
        if number % 10 == 0:
            recent(events.Worked("orders", "hot", "retry", 0.01, 5, ERROR))
    sizes = recent.with_queue_activity("orders", lambda work: (len(work.hottest), len(work.failing), work.ended))
    assert sizes == (50, 50, 110_000)
    assert recent.with_queue_activity("orders", lambda work: work.hottest.top(1)[0][0]) == "hot"
    assert recent.with_queue_activity("orders", lambda work: work.failing.top(1, 1000.0)[0][:2]) == ("hot", 5)


def test_names_pairs_and_notices_are_bounded(recent):
    """New entries displace old ones."""
    names = [f"{number}" + "x" * 1000 for number in range(2 * MAX_NAMES)]
    for name in names:
        recent(events.Retry(name, 1, 0.1, "blip", None, ERROR))
        recent(events.Worked(name, "key", "done", 0.1, 1, None))
        recent(events.LayeredRetry(name, "inner"))
        recent(events.LeaseLost(name, "key"))
    shown = [name[:120] for name in names]
    kept = [name for name in shown if recent.with_policy_activity(name, lambda calls: calls.error)]
    queues = [name for name in shown if recent.with_queue_activity(name, lambda work: work.ended)]
    assert kept == queues == shown[-MAX_NAMES:]
    assert len(recent.layers()) == MAX_PAIRS
    assert len(recent.notices()) == MAX_NOTICES
    assert recent.notices()[0][1].startswith(f"{2 * MAX_NAMES - 1}")


class Unprintable(Exception):
    """An error whose text can't be made."""

    def __str__(self):
        raise RuntimeError("no")


def test_texts_are_cut_and_unprintable_errors_are_named_by_type(recent):
    """An error text of a megabyte is kept as 200 characters."""
    recent(events.Retry("orders", 1, 0.1, "blip", None, OSError("x" * 1_000_000)))
    text = recent.with_policy_activity("orders", lambda calls: calls.error[1])
    assert len(text) == MAX_TEXT
    assert text.startswith("OSError: xxx")
    recent(events.GaveUp("orders", "attempts", 3, 0.1, Unprintable()))
    assert (
        recent.with_policy_activity("orders", lambda calls: calls.error[1])
        == "Unprintable: (the error has no readable text)"
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
        (events.LayeredRetry("orders", "inner"), "wraps inner: only one of the two retries"),
        (events.Buried("orders", "42", "permanent", "no"), "buried a key (permanent)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, events.Event) else "",
)
def test_which_events_make_a_notice(recent, event, line):
    """Each transition is one notice, with its time and count."""
    recent(event)
    assert recent.notices() == [(1000.0, "orders", line, 1)]


def test_a_repeated_notice_is_counted(recent):
    """It is not listed again."""
    for _ in range(5):
        recent(events.LeaseLost("orders", "42"))
        recent(events.BudgetRefused("orders", "budget", 1))
    assert [(text, times) for _, _, text, times in recent.notices()] == [
        ("lost a lease", 4),
        ("budget refused a retry", 1),
        ("lost a lease", 1),
    ]


def test_a_policy_without_a_name_is_shown_as_a_policy(recent):
    """Notices and layers have a placeholder instead of an empty name."""
    recent(events.ShelterChanged("", "shop", "storm", 0, 1.0))
    recent(events.LayeredRetry("", ""))
    assert [name for _, name, _, _ in recent.notices()] == ["a policy", "a policy"]
    assert recent.layers() == [("a policy", "a policy", 1)]


@pytest.mark.parametrize("event", [events.Recovered("orders", 2, 0.1), events.FirstFailure("orders", "blip", ERROR)])
def test_ordinary_events_make_no_notice(recent, event):
    """A first failure and a recovery need no attention."""
    recent(event)
    assert recent.notices() == []


@given(st.lists(st.lists(st.integers(0, 1000), min_size=2, max_size=2), max_size=300))
def test_rates_are_bounded_and_never_negative(totals):
    """Also if a total decreases."""
    rates = Rates()
    for pair in totals:
        rates.note(pair, 1.0)
    lines = rates.lines()
    assert [len(line) for line in lines] == [min(POINTS, len(totals))] * len(lines)
    assert all(point >= 0 for line in lines for point in line)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_during_an_event_does_not_block_the_child(recent):
    """The child has no thread that would release the lock."""
    with held_elsewhere(recent._section):
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # kills the child if it hangs
            recent(events.LeaseLost("orders", "42"))
            os._exit(0 if len(recent.notices()) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
