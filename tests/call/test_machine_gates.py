"""Gates and the budget: admissions, deposits, and what is returned when a call is interrupted."""

import pytest

from abate import Backoff, ConcurrencyLimit, Outcome, Policy, Refused, on_result
from abate.call import Call, Send, Stop, Wait
from abate.events import BudgetRefused, FirstFailure, GaveUp, Retry

ERROR = ConnectionError("gone")


@pytest.fixture
def budget(counting_budget):
    return counting_budget()


@pytest.fixture
def make(budget):
    """A call with this gate, its budget counted."""

    def make(gate, **settings):
        return Call(
            Policy(
                **{
                    "on": ConnectionError,
                    "name": "orders",
                    "backoff": Backoff(1.0, jitter="none"),
                    "budget": budget,
                    "gate": gate,
                    **settings,
                }
            )
        )

    return make


def test_every_attempt_enters_and_leaves(make, scripted_gate):
    """The gate is told whether an attempt is a retry, and how it ended: retryable errors were not accepted."""
    gate = scripted_gate()
    call = make(gate)
    for _ in range(2):
        assert call.begin() == Send()
        call.failed(ERROR, 0.0)
    call.begin()
    call.succeeded()
    assert gate.entered == [False, True, True]
    assert gate.left == [False, False, True]


def test_a_fatal_error_was_accepted_by_the_server(make, scripted_gate):
    """A server that answers with an error of the caller's has taken the request."""
    gate = scripted_gate()
    call = make(gate)
    call.begin()
    assert call.failed(KeyError(), 0.0) == Stop("fatal")
    assert gate.left == [True]


def test_a_result_that_is_not_good_was_accepted(make, scripted_gate):
    """A result that is worth another attempt is an answer of the server, which took the request."""
    gate = scripted_gate()
    call = make(gate, on=on_result(lambda result: result is None))
    call.begin()
    assert call.failed(Outcome(result=None), 0.0) == Wait(1.0)
    assert gate.left == [True]


def test_a_refused_first_attempt_raises_refused(make, scripted_gate, budget, abate_events):
    """Nothing was sent, so there is no error to raise but the gate's own."""
    call = make(scripted_gate(False, name="front"))
    with pytest.raises(Refused) as caught:
        call.begin()
    assert (str(caught.value), caught.value.gate) == ("front refused: it is closed", "front")
    assert caught.value.__notes__ == ["abate: orders gave up after 0 attempts: budget"]
    assert abate_events == [BudgetRefused("orders", "front", 0)]
    assert (budget.requested, budget.refunded) == (0, 0)


def test_a_call_whose_first_attempt_was_refused_is_over(make, scripted_gate, abate_events):
    """Ending it again afterwards has no effect."""
    gate = scripted_gate(False)
    call = make(gate)
    with pytest.raises(Refused) as caught:
        call.begin()
    call.broken_off(caught.value)
    assert [type(event) for event in abate_events] == [BudgetRefused]
    assert gate.left == []


def test_of_combined_gates_the_one_that_refused_is_named(make, scripted_gate):
    """What the gates before it had given goes back."""
    permits = ConcurrencyLimit(1)
    call = make(permits & scripted_gate(False, name="back"))
    with pytest.raises(Refused, match=r"^back refused"):
        call.begin()
    assert permits.held == 0


def test_a_refused_retry_stops_the_call_and_refunds_it(make, scripted_gate, budget, abate_events):
    """The withdrawal was for an attempt that is not made."""
    gate = scripted_gate(True, False, name="front")
    call = make(gate)
    call.begin()
    call.failed(ERROR, 0.0)
    stop = call.begin()
    assert stop == Stop("budget")
    assert call.give_up(stop, ERROR) is ERROR
    assert (budget.granted, budget.refunded) == (1, 1)
    assert (gate.entered, gate.left) == ([False], [False])
    assert abate_events == [
        FirstFailure("orders", "blip", ERROR),
        Retry("orders", 1, 1.0, "blip", None, ERROR),
        BudgetRefused("orders", "front", 1),
        GaveUp("orders", "budget", 1, 1.0, ERROR),
    ]


def test_an_attempt_that_is_broken_off_leaves_the_gate_without_a_verdict(make, scripted_gate, budget):
    """The attempt was made, so its withdrawal is spent; whether the server took it is not known."""
    gate = scripted_gate()
    call = make(gate)
    call.begin()
    call.failed(ERROR, 0.0)
    call.begin()
    call.broken_off(KeyboardInterrupt())
    assert gate.left == [False, None]
    assert (budget.granted, budget.refunded) == (1, 0)


def test_a_wait_that_is_broken_off_refunds_its_withdrawal(make, scripted_gate, budget):
    """The retry that was paid for is not made."""
    gate = scripted_gate()
    call = make(gate)
    call.begin()
    call.failed(ERROR, 0.0)
    call.broken_off()
    assert (budget.granted, budget.refunded) == (1, 1)
    assert gate.left == [False]


def test_breaking_off_twice_refunds_once(make, budget, abate_events):
    """A call that is over is left alone, and told of once."""
    call = make(None)
    call.failed(ERROR, 0.0)
    call.broken_off()
    call.broken_off(KeyboardInterrupt())
    assert budget.refunded == 1
    assert abate_events.of(GaveUp) == []


def test_breaking_off_after_giving_up_changes_nothing(make, scripted_gate, budget, abate_events):
    """The error that a call gave up with passes through drivers that break off whatever is raised."""
    gate = scripted_gate()
    call = make(gate, max_attempts=1)
    call.begin()
    call.give_up(call.failed(ERROR, 0.0), ERROR)
    call.broken_off(ERROR)
    assert len(abate_events.of(GaveUp)) == 1
    assert (gate.left, budget.refunded) == ([False], 0)


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_call_that_succeeds_deposits_once(make, budget, failures):
    """However many attempts it took; failures deposit nothing."""
    call = make(None)
    for _ in range(failures):
        call.begin()
        call.failed(ERROR, 0.0)
        assert budget.deposited == 0
    call.begin()
    call.succeeded()
    assert budget.deposited == 1


@pytest.mark.parametrize("failures", [0, 1, 2])
@pytest.mark.parametrize("succeeds", [True, False])
def test_funded_by_requests_a_call_deposits_once_when_it_begins(make, counting_budget, failures, succeeds):
    """Whatever becomes of it, and however many attempts it takes."""
    budget = counting_budget(funded_by="request")
    call = make(None, budget=budget)
    for _ in range(failures):
        call.begin()
        call.failed(ERROR, 0.0)
    call.begin()
    if succeeds:
        call.succeeded()
    else:
        call.failed(KeyError(), 0.0)
    assert budget.deposited == 1


def test_funded_by_requests_a_refused_call_deposits_nothing(make, scripted_gate, counting_budget):
    """A request that was not sent funds no retry."""
    budget = counting_budget(funded_by="request")
    with pytest.raises(Refused):
        make(scripted_gate(False), budget=budget).begin()
    assert budget.deposited == 0
