"""Threads, asyncio and trio; call, decorator and block: every way to make a call does the same."""

import gc
import weakref
from contextlib import suppress

import pytest

import abate
from abate import Budget, Policy, Refused, Report, RetryExhausted
from abate.events import BudgetRefused, FirstFailure, GaveUp, Recovered, Retry
from abate.testing import Script, off


class Gone(ConnectionError):
    """An error that weak references may point to."""


class Exit(BaseException):
    """What asks a program to end."""


def policy(**settings):
    return Policy(**{"on": ConnectionError, "name": "orders", "backoff": [0.0], **settings})


pytestmark = pytest.mark.usefixtures("either_time")

# A policy whose calls need no more than a deposit takes a shorter path than one that bounds them.
PATHS = pytest.mark.parametrize("more", [{}, {"timeout": 60.0}], ids=["plain", "bounded"])


@PATHS
def test_a_success_is_returned_and_deposited(way, counting_budget, more):
    """One attempt, its arguments passed on, one deposit, nothing withdrawn."""
    budget, script = counting_budget(ratio=1.0, reserve=0.0), Script("fine")
    assert way(policy(budget=budget, **more), script, 1, order=2) == "fine"
    assert script.calls == [((1,), {"order": 2})]
    assert (budget.balance(), budget.asked) == (1.0, 0)


@PATHS
def test_failures_are_retried_until_one_attempt_succeeds(way, counting_budget, more):
    """Every attempt gets the same arguments; each retry is paid for; the success is deposited."""
    budget, script = counting_budget(ratio=0.0, reserve=1.0), Script(Gone(), Gone(), "fine")
    assert way(policy(budget=budget, **more), script, 1, order=2) == "fine"
    assert script.calls == [((1,), {"order": 2})] * 3
    assert (budget.granted, budget.refunded, budget.deposited) == (2, 0, 1)


@PATHS
def test_the_last_error_is_raised_with_its_report(way, more):
    """When the attempts have run out, the error of the last one is raised, the same object."""
    errors = [Gone(number) for number in range(3)]
    with pytest.raises(Gone) as caught:
        way(policy(**more), Script(*errors))
    assert caught.value is errors[-1]
    assert abate.report(caught.value) == Report("orders", 3, 0.0, "attempts")
    assert abate.report(errors[0]) is None


@PATHS
def test_a_fatal_error_is_raised_at_once(way, counting_budget, more):
    """What no rule names is not retried, and nothing is withdrawn for it."""
    budget, error = counting_budget(), KeyError("order")
    with pytest.raises(KeyError) as caught:
        way(policy(budget=budget, **more), Script(error))
    assert caught.value is error
    assert abate.report(error) == Report("orders", 1, 0.0, "fatal")
    assert (budget.asked, budget.deposited) == (0, 0)


@PATHS
def test_a_spent_budget_ends_the_call(way, more):
    """A retry that the budget refuses is not made."""
    with pytest.raises(Gone) as caught:
        way(policy(budget=Budget.empty(), **more), Script(Gone()))
    assert abate.report(caught.value) == Report("orders", 1, 0.0, "budget")


@PATHS
def test_an_error_may_be_wrapped(way, more):
    """`raises="exhausted"` makes one type to catch, with the last error as its cause."""
    errors = [Gone(), Gone(), Gone()]
    with pytest.raises(RetryExhausted) as caught:
        way(policy(raises="exhausted", **more), Script(*errors))
    assert caught.value.__cause__ is errors[-1]
    assert caught.value.report == Report("orders", 3, 0.0, "attempts")


@PATHS
@pytest.mark.parametrize("failures", [0, 1, 2])
def test_what_asks_the_program_to_end_passes_at_once(way, counting_budget, more, failures):
    """It is never caught, whichever attempt it comes from; the attempts that were made are paid for."""
    budget, script = counting_budget(), Script(*[Gone()] * failures, Exit(), "never")
    with pytest.raises(Exit):
        way(policy(on=Exception, budget=budget, **more), script)
    assert len(script.calls) == failures + 1
    assert (budget.granted, budget.refunded, budget.deposited) == (failures, 0, 0)


def test_switched_off_there_is_one_attempt(way):
    """Where retries are off, the first error is raised."""
    with off(), pytest.raises(Gone) as caught:
        way(policy(), Script(Gone()))
    assert abate.report(caught.value).reason == "attempts"


def test_a_gate_is_entered_and_left_by_every_attempt(way, scripted_gate):
    """Retryable failures were not accepted, the success was."""
    gate = scripted_gate()
    assert way(policy(gate=gate), Script(Gone(), Gone(), "fine")) == "fine"
    assert (gate.entered, gate.left) == ([False, True, True], [False, False, True])


def test_a_gate_that_refuses_the_first_attempt(way, scripted_gate, abate_events):
    """Nothing is sent; the error names the gate, and so does the one event."""
    script = Script("never")
    with pytest.raises(Refused, match="front"):
        way(policy(gate=scripted_gate(False, name="front")), script)
    assert script.calls == []
    assert abate_events == [BudgetRefused("orders", "front", 0)]


def test_a_gate_that_refuses_a_retry(way, scripted_gate, counting_budget):
    """The last error is raised, and the withdrawal for the retry goes back."""
    budget, gate, error = counting_budget(), scripted_gate(True, False), Gone()
    with pytest.raises(Gone) as caught:
        way(policy(gate=gate, budget=budget), Script(error, "never"))
    assert caught.value is error
    assert abate.report(error) == Report("orders", 1, 0.0, "budget")
    assert (budget.granted, budget.refunded) == (1, 1)
    assert gate.left == [False]


def test_a_gate_that_refuses_a_retry_of_a_wrapping_policy(way, scripted_gate):
    """That error is wrapped like any other."""
    error = Gone()
    with pytest.raises(RetryExhausted) as caught:
        way(policy(gate=scripted_gate(True, False), raises="exhausted"), Script(error, "never"))
    assert caught.value.__cause__ is error


def test_an_attempt_that_is_broken_off_leaves_its_gate(way, scripted_gate, abate_events):
    """The gate is told that there is no verdict on the attempt, and the sinks that the call was cancelled."""
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
    """A budget funded by requests gets one deposit per call, however it ends."""
    budget = counting_budget(funded_by="request")
    orders = policy(budget=budget, **more)
    assert way(orders, Script(Gone(), "fine")) == "fine"
    with pytest.raises(KeyError):
        way(orders, Script(KeyError()))
    assert budget.deposited == 2


def test_the_events_are_the_same_in_every_way(way, abate_events):
    """Each transition is told once, in order."""
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
    """A result that a rule speaks against is worth another attempt; only the good one is deposited."""
    budget = counting_budget()
    orders = policy(on=(ConnectionError, abate.on_result(lambda result: result is None)), budget=budget, **more)
    script = Script(None, Gone(), "fine")
    assert way_with_result(orders, script) == "fine"
    assert (budget.granted, budget.deposited) == (2, 1)


@PATHS
def test_the_last_result_is_returned_when_attempts_run_out(way_with_result, counting_budget, more):
    """There is no error to raise; a result that was never good is no success either."""
    budget = counting_budget()
    orders = policy(on=abate.on_result(lambda result: result < 10), budget=budget, **more)
    assert way_with_result(orders, Script(1, 2, 3)) == 3
    assert budget.deposited == 0


def test_the_last_result_is_in_the_error_of_a_wrapping_policy(way_with_result):
    """`raises="exhausted"` raises for results as well."""
    orders = policy(on=abate.on_result(lambda result: result < 10), raises="exhausted")
    with pytest.raises(RetryExhausted) as caught:
        way_with_result(orders, Script(1, 2, 3))
    assert (caught.value.result, caught.value.__cause__) == (3, None)


# -- nothing is kept alive


class Leaving:
    """Fails so many times with an error of its own making, then succeeds; knows which errors are still alive."""

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


def left_alive(way, policy, function):
    """The errors that are alive after a call whose own error was dropped, without the garbage collector's help."""

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
    """No reference cycle holds an error back until the garbage collector comes round."""
    function = Leaving(failures)
    assert left_alive(way, policy(raises=raises, **more), function) == []
    assert len(function.errors) == failures


@pytest.mark.parametrize("raises", ["original", "exhausted"])
def test_errors_that_a_gate_ended_are_freed_at_once(way, scripted_gate, raises):
    """Nor the error of a call whose retry was refused."""
    function = Leaving(3)
    assert left_alive(way, policy(gate=scripted_gate(True, False), raises=raises), function) == []
    assert len(function.errors) == 1
