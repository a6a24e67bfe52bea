"""The order of refusals: what costs nothing comes first, spending last."""

from itertools import combinations

import pytest

from abate import Backoff, Policy, Ruling
from abate.call import Call, Stop, Wait

pytestmark = pytest.mark.filterwarnings("ignore::abate.LayeredRetryWarning")

ORDER = ("fatal", "layer", "attempts", "deadline", "hint", "unsafe", "budget")
NOW = 100.0


@pytest.fixture
def refuse(counting_budget):
    """Fail the first attempt of a call for which all of these reasons to stop hold; its answer, and its budget."""

    def refuse(*reasons):
        ruling = Ruling(
            retry="fatal" not in reasons,
            reason="fatal" if "fatal" in reasons else "blip",
            hint=301.0 if "hint" in reasons else None,
            safe=False if "unsafe" in reasons else None,
        )
        budget = counting_budget(ratio=0.0, reserve=0.0 if "budget" in reasons else 1.0)
        policy = Policy(
            on=lambda error: ruling,
            name="outer",
            max_attempts=1 if "attempts" in reasons else 2,
            backoff=Backoff(1.0, jitter="none"),
            budget=budget,
        )
        call = Call(policy, deadline=NOW if "deadline" in reasons else None)
        error = ConnectionError()
        if "layer" in reasons:
            inner = Call(policy.replace(name="inner"))
            inner.give_up(Stop("layer"), error)  # which holds however often it was tried
        return call.failed(error, NOW), budget

    return refuse


def test_with_no_reason_to_stop_the_call_waits(refuse):
    """The call that the tests below start from is retried, and pays for it."""
    answer, budget = refuse()
    assert answer == Wait(NOW + 1.0)
    assert (budget.granted, budget.refunded) == (1, 0)


@pytest.mark.parametrize("reason", ORDER)
def test_each_reason_stops_the_call_by_itself(refuse, reason):
    """One reason is enough, and it is the one that is told."""
    answer, budget = refuse(reason)
    assert answer == Stop(reason)
    assert (budget.granted, budget.refunded) == (0, 0)


@pytest.mark.parametrize(("cheaper", "dearer"), list(combinations(ORDER, 2)))
def test_of_two_reasons_the_cheaper_one_wins(refuse, cheaper, dearer):
    """The order is fixed, and the budget is not even asked by a call that is refused before it."""
    answer, budget = refuse(cheaper, dearer)
    assert answer == Stop(cheaper)
    assert (budget.requested, budget.refunded) == (0, 0)


def test_of_all_reasons_the_first_in_order_wins(refuse):
    """With the reasons dropped one by one from the front, each is told in its turn."""
    answers = [refuse(*ORDER[place:])[0] for place in range(len(ORDER))]
    assert answers == [Stop(reason) for reason in ORDER]


def test_a_delay_that_ends_at_the_deadline_stops_the_call(counting_budget):
    """Never sleep until the deadline, let alone past it; nothing is withdrawn for such a wait."""
    budget = counting_budget()
    policy = Policy(on=OSError, backoff=Backoff(1.0, jitter="none"), budget=budget)
    assert Call(policy, deadline=NOW + 1.0).failed(OSError(), NOW) == Stop("deadline")
    assert budget.requested == 0
    assert Call(policy, deadline=NOW + 1.001).failed(OSError(), NOW) == Wait(NOW + 1.0)


def test_a_deadline_that_has_passed_stops_the_call():
    """At the deadline and after it there is no retry, not even one without a delay."""
    policy = Policy(on=OSError, backoff=[0.0])
    for late in (0.0, 0.1, 1000.0):
        assert Call(policy, deadline=NOW).failed(OSError(), NOW + late) == Stop("deadline")
