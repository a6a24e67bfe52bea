"""ConcurrencyLimit: the number of attempts in flight."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import abate
from abate import ConcurrencyLimit, forks


class AgainstACounter(RuleBasedStateMachine):
    """In any order of acquires and releases, between zero and the limit are held."""

    @initialize(limit=st.integers(1, 4))
    def begin(self, limit):
        self.limit, self.held = limit, 0
        self.permits = ConcurrencyLimit(limit)

    @rule(retry=st.booleans())
    def enter(self, retry):
        refused = self.permits.enter(retry)
        assert refused is (None if self.held < self.limit else self.permits)
        self.held += refused is None

    @rule()
    def try_acquire(self):
        assert self.permits.try_acquire() is (self.held < self.limit)
        self.held = min(self.limit, self.held + 1)

    @rule(
        how=st.sampled_from(
            [ConcurrencyLimit.release, ConcurrencyLimit.refund, lambda permits: permits.leave(accepted=False)]
        )
    )
    def give_back(self, how):
        how(self.permits)
        self.held = max(0, self.held - 1)

    @rule()
    def block(self):
        if self.held < self.limit:
            with self.permits as held:
                assert held.held == self.held + 1
        else:
            with pytest.raises(abate.Refused), self.permits:
                raise AssertionError("it was entered")

    @invariant()
    def the_same_is_held(self):
        assert self.permits.held == self.held


TestAgainstACounter = AgainstACounter.TestCase
TestAgainstACounter.settings = settings(deadline=None, max_examples=30, stateful_step_count=30)


def test_a_block_releases_its_permit_when_it_fails():
    """The error propagates, and the permit is free again."""
    permits = ConcurrencyLimit(1)
    with pytest.raises(KeyError), permits:
        raise KeyError
    assert permits.held == 0


def test_a_refusal_names_the_limit():
    """The error has the name and the number."""
    permits = ConcurrencyLimit(2, name="database")
    with permits, permits, pytest.raises(abate.Refused, match="database refused: all 2 permits are held"), permits:
        pass
    assert repr(permits) == "ConcurrencyLimit(2, held=0)"


def test_releasing_a_permit_twice_does_not_raise_the_limit():
    """The count never goes below zero."""
    permits = ConcurrencyLimit(1)
    permits.release()
    permits.release()
    assert permits.try_acquire()
    assert not permits.try_acquire()


def test_eight_threads_never_hold_more_than_the_limit(together):
    """Threads acquire and release as fast as they can, and hold nothing in the end."""
    permits = ConcurrencyLimit(3)
    inside = []

    def work(place):
        most = 0
        for _ in range(200):
            if permits.try_acquire():
                inside.append(place)
                most = max(most, len(inside))
                inside.remove(place)
                permits.release()
        return most

    assert 1 <= max(together(work)) <= 3
    assert permits.held == 0


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_limit_is_a_whole_number_of_at_least_one(limit, error):
    """Any other limit raises an error that names it."""
    with pytest.raises(error, match="limit must be a whole number of at least 1"):
        ConcurrencyLimit(limit)


def test_a_forked_child_holds_no_permits_of_its_parent(in_child):
    """All permits are free in the child; the parent's are unchanged."""
    permits = ConcurrencyLimit(2)

    def child():
        return permits.held, permits.try_acquire(), permits.try_acquire(), permits.try_acquire()

    with permits, permits:
        assert in_child(child) == (0, True, True, False)
        assert permits.held == 2


def test_the_fork_hook_frees_permits():
    """The same in this process, step by step."""
    permits = ConcurrencyLimit(2)
    permits.try_acquire()
    forks._in_child()
    assert permits.held == 0
