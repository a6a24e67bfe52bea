"""The failures of keys: how long each is delayed, and how many are counted."""

import doctest

from abate import Backoff
from abate.work import key_failures
from abate.work.key_failures import KeyFailures


def test_who_failed_longest_ago_is_forgotten_first(monkeypatch):
    """The failures of a bounded number of keys are counted."""
    monkeypatch.setattr(key_failures, "MAX_FAILURES", 2)
    failures = KeyFailures(backoff=Backoff(1.0, 8.0, jitter="none"))
    assert [failures.next_delay(key, 0.0, None) for key in "abac"] == [1.0, 1.0, 2.0, 1.0]
    assert [failures.requeues(key) for key in "abc"] == [2, 0, 1]


def test_without_backoff_only_the_rate_delays():
    """The burst goes at once, then one per token; after a pause the burst is there again, and no more."""
    failures = KeyFailures(rate=2.0, burst=2)
    assert [failures.next_delay(n, 10.0, None) for n in range(4)] == [0.0, 0.0, 0.5, 1.0]
    assert [failures.next_delay(n, 100.0, None) for n in range(3)] == [0.0, 0.0, 0.5]
    assert KeyFailures().next_delay("a", 0.0, None) == 0.0


def test_the_examples_are_true():
    """Those in the documentation."""
    assert doctest.testmod(key_failures).failed == 0
