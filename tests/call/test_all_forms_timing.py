"""Waits, deadlines and clocks in every way to make a call, in virtual time."""

import pytest

import abate
from abate import Policy, Report
from abate.testing import Script, VirtualClock, after


class Gone(ConnectionError):
    """A retryable error."""


def policy(**settings):
    return Policy(**{"on": ConnectionError, "name": "orders", "backoff": [0.0], **settings})


def test_a_policy_waits_on_its_own_clock(way):
    """A policy with a clock of its own does not advance the current clock."""
    own = VirtualClock(start=50.0)
    with VirtualClock() as around:
        orders = policy(clock=own, backoff=[3.0, 4.0])
        assert way(orders, Script(Gone(), Gone(), "fine")) == "fine"
    assert (own.waits, own.now()) == ([3.0, 4.0], 57.0)
    assert (around.waits, around.now()) == ([], 0.0)


def test_a_policys_budget_uses_the_policys_clock(way):
    """The budget that a policy creates refills by the policy's clock."""
    own = VirtualClock()
    orders = policy(clock=own)
    assert way(orders, Script(Gone(), "fine")) == "fine"
    assert orders.budget.balance() == pytest.approx(100.0 - 1.0 + 0.2)
    own.advance(20.0)
    assert orders.budget.balance() == 100.0


def test_waits_are_as_scheduled(way):
    """The waits of a call are the delays of its backoff."""
    with VirtualClock() as clock:
        assert way(policy(backoff=[1.0, 2.0]), Script(Gone(), Gone(), "fine")) == "fine"
    assert (clock.waits, clock.now()) == ([1.0, 2.0], 3.0)


def test_a_timeout_sets_the_deadline_of_its_attempts(way, sync_and_async):
    """Each attempt sees the time that is left of the whole call."""
    seen = []

    def attempt():
        seen.append(abate.remaining())
        if len(seen) < 3:
            raise Gone

    with VirtualClock():
        way(policy(timeout=10.0, backoff=[2.0, 3.0]), sync_and_async(attempt))
        assert abate.remaining() is None
    assert seen == [10.0, 8.0, 5.0]


def test_an_attempt_timeout_is_a_deadline_for_each_attempt(way, sync_and_async):
    """Every attempt has the attempt timeout, or the rest of the call's timeout if that is less."""
    seen = []

    def attempt():
        seen.append(abate.remaining())
        if len(seen) < 3:
            raise Gone

    with VirtualClock():
        way(policy(timeout=10.0, attempt_timeout=6.0, backoff=[2.0, 3.0]), sync_and_async(attempt))
    assert seen == [6.0, 6.0, 5.0]


def test_a_call_does_not_wait_past_a_deadline_around_it(way):
    """The earliest deadline applies: a wait that would reach it is not begun."""
    for timeout in (None, 60.0):
        with VirtualClock() as clock, abate.deadline(2.5), pytest.raises(Gone) as caught:
            way(policy(timeout=timeout, backoff=[1.0]), Script(after(0.5, Gone()), after(0.5, Gone())))
        assert abate.report(caught.value) == Report("orders", 2, 1.0, "deadline")
        assert clock.waits == [0.5, 1.0, 0.5]


def test_an_attempt_that_overruns_the_deadline_is_the_last(way):
    """A failure after the deadline is not retried."""
    with VirtualClock(), pytest.raises((Gone, TimeoutError)) as caught:
        way(policy(timeout=2.0), Script(after(2.5, Gone()), "never"))
    assert abate.report(caught.value) == Report("orders", 1, 0.0, "deadline")


def test_hints_are_waited_for(way):
    """A call waits for the server's hint in addition to its backoff."""
    hinting = policy(on=lambda error: error.args[0], backoff=[1.0])
    with VirtualClock() as clock:
        assert way(hinting, Script(Gone(5.0), Gone(7.0), "fine")) == "fine"
    assert clock.waits == [6.0, 8.0]


def test_an_overload_waits_longer_than_a_blip(way, fixed):
    """The delay after a timeout starts from one second, after a reset connection from the base."""
    orders = policy(on=OSError, backoff=abate.Backoff(0.25), rng=fixed(0.5))
    with VirtualClock() as clock:
        way(orders, Script(TimeoutError(), "fine"))
        way(orders, Script(Gone(), "fine"))
    assert clock.waits == [0.5, 0.125]
