"""Giving up: what is raised, what it carries, and what is left alone."""

import pytest

import abate
from abate import Outcome, Policy, Report, RetryExhausted
from abate.call import Call, Stop


def give_up(policy, outcome, reason=None, attempts=1):
    """What a call raises that fails with `outcome` until it stops, for `reason` if one is given."""
    call = Call(policy)
    for _ in range(attempts):
        stop = call.failed(outcome, 0.0)
    return call.give_up(Stop(reason) if reason else stop, outcome)


ORDERS = Policy(on=ConnectionError, name="orders", max_attempts=2, backoff=[1.5])
WRAPPING = ORDERS.replace(raises="exhausted")


def test_the_original_error_is_raised_with_a_report_and_a_note():
    """The error is the same object; why it was given up on is told to programs and to people."""
    error = ConnectionError("gone")
    assert give_up(ORDERS, error, attempts=2) is error
    assert abate.report(error) == Report("orders", attempts=2, waited=1.5, reason="attempts")
    assert error.__notes__ == ["abate: orders gave up after 2 attempts and 1.5 s of waiting: attempts"]


def test_the_original_error_is_raised_from_an_outcome_too():
    """A driver may hand over the outcome instead of its error."""
    error = ConnectionError("gone")
    assert give_up(ORDERS, Outcome(error=error), attempts=2) is error


def test_exhausted_wraps_the_error():
    """`raises="exhausted"` makes one type to catch; the error is its cause, and both carry the report."""
    error = ConnectionError("gone")
    raised = give_up(WRAPPING, error, attempts=2)
    assert type(raised) is RetryExhausted
    assert raised.__cause__ is error
    assert raised.result is None
    assert raised.report == abate.report(raised) == abate.report(error) == Report("orders", 2, 1.5, "attempts")
    assert [str(raised)] == [note.removeprefix("abate: ") for note in error.__notes__]
    assert not hasattr(raised, "__notes__"), "its traceback would say it twice"


def test_exhausted_carries_the_result_that_was_never_good():
    """Where no attempt failed with an error, the last result is there to look at."""
    policy = WRAPPING.replace(on=abate.on_result(lambda result: result == "pending"))
    raised = give_up(policy, Outcome(result="pending"), attempts=2)
    assert type(raised) is RetryExhausted
    assert (raised.result, raised.__cause__) == ("pending", None)
    assert abate.report(raised).reason == "attempts"


def test_without_wrapping_the_last_result_is_returned():
    """There is no error to raise: the caller gets what the last attempt returned."""
    policy = ORDERS.replace(on=abate.on_result(lambda result: result == "pending"))
    assert give_up(policy, Outcome(result="pending"), attempts=2) is None


@pytest.mark.parametrize("policy", [ORDERS, WRAPPING], ids=["original", "exhausted"])
def test_a_fatal_error_is_never_wrapped(policy):
    """Nothing was exhausted: it was not retried at all."""
    error = KeyError("order")
    assert give_up(policy, error) is error
    assert abate.report(error) == Report("orders", 1, 0.0, "fatal")


def test_a_fatal_result_is_returned_as_it_is():
    """A rule may call a result fatal; there is still nothing to raise."""
    policy = WRAPPING.replace(on=abate.on_result(lambda result: abate.Ruling.fatal()))
    assert give_up(policy, Outcome(result="broken")) is None


@pytest.mark.parametrize("reason", ["unsafe", "attempts", "deadline", "hint", "budget", "layer"])
def test_every_reason_but_fatal_is_wrapped(reason):
    """Whatever ended the retrying, the type to catch is the same."""
    raised = give_up(WRAPPING, ConnectionError(), reason)
    assert type(raised) is RetryExhausted
    assert raised.report.reason == reason


def test_a_fatal_first_attempt_leaves_no_note():
    """A call that never retried has nothing to say in a traceback; one that had retried before has."""
    first, later = KeyError(), KeyError()
    give_up(ORDERS, first)
    assert not hasattr(first, "__notes__")
    call = Call(ORDERS)
    call.failed(ConnectionError(), 0.0)
    call.give_up(call.failed(later, 1.5), later)
    assert later.__notes__ == ["abate: orders gave up after 2 attempts and 1.5 s of waiting: fatal"]


class Stubborn(ConnectionError):
    """An error that takes no attributes."""

    def __setattr__(self, name, value):
        raise AttributeError(name)


@pytest.mark.parametrize("policy", [ORDERS, WRAPPING], ids=["original", "exhausted"])
def test_an_error_that_takes_no_attributes_is_marked_all_the_same(policy):
    """Frozen errors have a report and a note like any other."""
    error = Stubborn("gone")
    raised = give_up(policy, error, attempts=2)
    assert abate.report(error).attempts == abate.report(raised).attempts == 2
    assert error.__notes__ == ["abate: orders gave up after 2 attempts and 1.5 s of waiting: attempts"]
    assert error in (raised, raised.__cause__)
