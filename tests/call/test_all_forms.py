"""Calls behave the same in threads, under asyncio and trio; by `call`, decorator and block."""

import gc
import weakref
from contextlib import suppress

import pytest

import abate
from abate import Budget, Policy, Refused, Report, RetryExhausted
from abate.events import BudgetRefused, FirstFailure, GaveUp, Recovered, Retry
from abate.testing import Script, off


class Gone(ConnectionError):
    """An error that supports weak references."""


class Exit(BaseException):
    """A BaseException, as KeyboardInterrupt and SystemExit are."""


def policy(**settings):
    return Policy(**{"on": ConnectionError, "name": "orders", "backoff": [0.0], **settings})


pytestmark = pytest.mark.usefixtures("either_time")

# A policy without timeouts takes a shorter code path than one that bounds its calls.
PATHS = pytest.mark.parametrize("more", [{}, {"timeout": 60.0}], ids=["plain", "bounded"])


@PATHS
def test_a_success_is_returned_and_deposited(way, counting_budget, more):
    """A successful call passes its arguments on, makes one deposit and withdraws nothing."""
    budget, script = counting_budget(ratio=1.0, reserve=0.0), Script("fine")
    assert way(policy(budget=budget, **more), script, 1, order=2) == "fine"
    assert script.calls == [((1,), {"order": 2})]
    assert (budget.balance(), budget.requested) == (1.0, 0)


@PATHS
def test_failures_are_retried_until_one_attempt_succeeds(way, counting_budget, more):
    """Every attempt gets the same arguments; each retry withdraws, and the success deposits."""
    budget, script = counting_budget(ratio=0.0, reserve=1.0), Script(Gone(), Gone(), "fine")
    assert way(policy(budget=budget, **more), script, 1, order=2) == "fine"
    assert script.calls == [((1,), {"order": 2})] * 3
    assert (budget.granted, budget.refunded, budget.deposited) == (2, 0, 1)


@PATHS
def test_the_last_error_is_raised_with_its_report(way, more):
    """When attempts run out, the call raises the last attempt's error object, with a report."""
    errors = [Gone(number) for number in range(3)]
    with pytest.raises(Gone) as caught:
        way(policy(**more), Script(*errors))
    assert caught.value is errors[-1]
    assert abate.report(caught.value) == Report("orders", 3, 0.0, "attempts")
    assert abate.report(errors[0]) is None


@PATHS
def test_a_fatal_error_is_raised_at_once(way, counting_budget, more):
    """An error that no rule matches is not retried, and nothing is withdrawn for it."""
    budget, error = counting_budget(), KeyError("order")
    with pytest.raises(KeyError) as caught:
        way(policy(budget=budget, **more), Script(error))
    assert caught.value is error
    assert abate.report(error) == Report("orders", 1, 0.0, "fatal")
    assert (budget.requested, budget.deposited) == (0, 0)


@PATHS
def test_an_empty_budget_ends_the_call(way, more):
    """A call whose retry the budget refuses raises its error, with the reason "budget"."""
    with pytest.raises(Gone) as caught:
        way(policy(budget=Budget.empty(), **more), Script(Gone()))
    assert abate.report(caught.value) == Report("orders", 1, 0.0, "budget")


@PATHS
def test_raises_exhausted_wraps_the_last_error(way, more):
    """`raises="exhausted"` raises `RetryExhausted`, with the last error as its cause."""
    errors = [Gone(), Gone(), Gone()]
    with pytest.raises(RetryExhausted) as caught:
        way(policy(raises="exhausted", **more), Script(*errors))
    assert caught.value.__cause__ is errors[-1]
    assert caught.value.report == Report("orders", 3, 0.0, "attempts")


@PATHS
@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_base_exception_is_never_retried(way, counting_budget, more, failures):
    """It propagates from whichever attempt raises it; withdrawals for attempts made are not refunded."""
    budget, script = counting_budget(), Script(*[Gone()] * failures, Exit(), "never")
    with pytest.raises(Exit):
        way(policy(on=Exception, budget=budget, **more), script)
    assert len(script.calls) == failures + 1
    assert (budget.granted, budget.refunded, budget.deposited) == (failures, 0, 0)


def test_with_retries_off_there_is_one_attempt(way):
    """`abate.testing.off` makes a call raise its first error."""
    with off(), pytest.raises(Gone) as caught:
        way(policy(), Script(Gone()))
    assert abate.report(caught.value).reason == "attempts"


def test_a_gate_is_entered_and_left_by_every_attempt(way, scripted_gate):
    """A gate sees retryable failures as not accepted and a success as accepted."""
    gate = scripted_gate()
    assert way(policy(gate=gate), Script(Gone(), Gone(), "fine")) == "fine"
    assert (gate.entered, gate.left) == ([False, True, True], [False, False, True])


def test_a_call_whose_first_attempt_is_refused_sends_nothing(way, scripted_gate, abate_events):
    """The error names the gate that refused, and so does the only event."""
    script = Script("never")
    with pytest.raises(Refused, match="front"):
        way(policy(gate=scripted_gate(False, name="front")), script)
    assert script.calls == []
    assert abate_events == [BudgetRefused("orders", "front", 0)]


def test_a_call_whose_retry_is_refused_raises_the_last_error(way, scripted_gate, counting_budget):
    """The withdrawal for the refused retry is refunded."""
    budget, gate, error = counting_budget(), scripted_gate(True, False), Gone()
    with pytest.raises(Gone) as caught:
        way(policy(gate=gate, budget=budget), Script(error, "never"))
    assert caught.value is error
    assert abate.report(error) == Report("orders", 1, 0.0, "budget")
    assert (budget.granted, budget.refunded) == (1, 1)
    assert gate.left == [False]


def test_raises_exhausted_wraps_the_error_of_a_refused_retry(way, scripted_gate):
    """A retry that a gate refuses ends the call with `RetryExhausted` as well."""
    error = Gone()
    with pytest.raises(RetryExhausted) as caught:
        way(policy(gate=scripted_gate(True, False), raises="exhausted"), Script(error, "never"))
    assert caught.value.__cause__ is error


def test_an_interrupted_attempt_leaves_its_gate_without_an_outcome(way, scripted_gate, abate_events):
    """The gate is left with None, and sinks receive a give-up with the reason "cancelled"."""
    gate, gone, end = scripted_gate(), Gone(), Exit()
    with pytest.raises(Exit):
        way(policy(gate=gate), Script(gone, end))
    assert gate.left == [False, None]
    assert abate_events == [
        FirstFailure("orders", "blip", gone),
        Retry("orders", 1, 0.0, "blip", None, gone),
        GaveUp("orders", "cancelled", 1, 0.0, end),
    ]


@PATHS
def test_requests_fund_a_budget_once_per_call(way, counting_budget, more):
    """A budget funded by requests gets one deposit per call, whether the call succeeds or fails."""
    budget = counting_budget(funded_by="request")
    orders = policy(budget=budget, **more)
    assert way(orders, Script(Gone(), "fine")) == "fine"
    with pytest.raises(KeyError):
        way(orders, Script(KeyError()))
    assert budget.deposited == 2


def test_the_events_are_the_same_in_every_way(way, abate_events):
    """Each transition emits one event, in order."""
    errors = [Gone() for _ in range(5)]
    way(policy(), Script(*errors[:2], "fine"))
    with pytest.raises(Gone):
        way(policy(max_attempts=2), Script(*errors[3:]))
    assert abate_events == [
        FirstFailure("orders", "blip", errors[0]),
        Retry("orders", 1, 0.0, "blip", None, errors[0]),
        Retry("orders", 2, 0.0, "blip", None, errors[1]),
        Recovered("orders", 3, 0.0),
        FirstFailure("orders", "blip", errors[3]),
        Retry("orders", 1, 0.0, "blip", None, errors[3]),
        GaveUp("orders", "attempts", 2, 0.0, errors[4]),
    ]


# -- results


@PATHS
def test_results_are_retried(way_with_result, counting_budget, more):
    """A result that a rule rejects is retried; only the accepted result makes a deposit."""
    budget = counting_budget()
    orders = policy(on=(ConnectionError, abate.on_result(lambda result: result is None)), budget=budget, **more)
    script = Script(None, Gone(), "fine")
    assert way_with_result(orders, script) == "fine"
    assert (budget.granted, budget.deposited) == (2, 1)


@PATHS
def test_the_last_result_is_returned_when_attempts_run_out(way_with_result, counting_budget, more):
    """A rejected last result is returned without an error, and makes no deposit."""
    budget = counting_budget()
    orders = policy(on=abate.on_result(lambda result: result < 10), budget=budget, **more)
    assert way_with_result(orders, Script(1, 2, 3)) == 3
    assert budget.deposited == 0


def test_raises_exhausted_carries_the_last_result(way_with_result):
    """`raises="exhausted"` raises for rejected results as well; the error has no cause."""
    orders = policy(on=abate.on_result(lambda result: result < 10), raises="exhausted")
    with pytest.raises(RetryExhausted) as caught:
        way_with_result(orders, Script(1, 2, 3))
    assert (caught.value.result, caught.value.__cause__) == (3, None)


# -- references


class FailsThenSucceeds:
    """Raise new errors a number of times, then succeed; keep weak references to the errors."""

    def __init__(self, failures):
        self.failures = failures
        self.errors = []

    def __call__(self):
        if len(self.errors) < self.failures:
            raise self._error()
        return "fine"

    async def acall(self):
        return self()

    def _error(self):
        error = Gone()
        self.errors.append(weakref.ref(error))
        return error

    def alive(self):
        return [error() for error in self.errors if error() is not None]


def errors_alive(way, policy, function):
    """Return the errors still alive after a call, with the garbage collector disabled."""

    def in_thread():
        with suppress(Gone, RetryExhausted):
            way.in_thread(policy, function)
        return function.alive()

    async def in_task():
        with suppress(Gone, RetryExhausted):
            await way.in_task(policy, function)
        return function.alive()

    gc.disable()
    try:
        return in_thread() if way.loop == "threads" else way.run(in_task)
    finally:
        gc.enable()


@PATHS
@pytest.mark.parametrize("raises", ["original", "exhausted"])
@pytest.mark.parametrize("failures", [2, 3], ids=["recovered", "given up"])
def test_errors_are_freed_at_once(way, raises, failures, more):
    """A call leaves no reference cycle that would keep its errors until a collection."""
    function = FailsThenSucceeds(failures)
    assert errors_alive(way, policy(raises=raises, **more), function) == []
    assert len(function.errors) == failures


@pytest.mark.parametrize("raises", ["original", "exhausted"])
def test_the_error_of_a_refused_retry_is_freed_at_once(way, scripted_gate, raises):
    """A call that a gate ended leaves no reference cycle either."""
    function = FailsThenSucceeds(3)
    assert errors_alive(way, policy(gate=scripted_gate(True, False), raises=raises), function) == []
    assert len(function.errors) == 1
