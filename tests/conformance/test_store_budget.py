"""Budgets in a store: what `abate.Budget` does on one clock, all who share the store do together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abate.admit import Budget
from abate.stores import BudgetTerms, open_store
from abate.testing import VirtualClock
from tests.conformance.conftest import STORES


def test_a_deposit_earns_its_ratio_exactly(store):
    """0.6 is 0.6: five deposits pay for three retries, and not for two."""
    budget = store.ledger("nightly", ratio=0.6, reserve=0)
    for _ in range(5):
        budget.deposit()
    assert budget.balance() == 3.0
    assert [budget.try_withdraw() for _ in range(4)] == [True, True, True, False]


def test_all_that_open_it_share_it(store):
    """By its name; another name is another budget."""
    mine, yours, other = store.ledger("a", 0.0, 0.1), store.ledger("a", 0.0, 0.1), store.ledger("b", 0.0, 0.1)
    assert (mine.try_withdraw(), yours.try_withdraw(), other.try_withdraw()) == (True, False, True)


def test_a_refund_takes_back_the_newest_withdrawal(store, clock):
    """And never more than there were."""
    budget = store.ledger("a", ratio=0.0, reserve=0.3)
    for _ in range(3):
        assert budget.try_withdraw()
        clock.advance(3.0)
    budget.refund()
    assert budget.balance() == 1.0
    clock.advance(1.0)  # the first has left the window, the refunded third does not
    assert budget.balance() == 2.0
    for _ in range(5):
        budget.refund()
    assert budget.balance() == 3.0


def test_an_exchange_pays_in_first_and_grants_what_there_is(store):
    """All of it is one step; what was not granted is not owed."""
    terms = BudgetTerms(ratio=0.5, reserve=0)
    assert store.exchange("a", terms, deposits=7, want=10) == 3
    assert store.exchange("a", terms, want=10) == 0
    assert store.exchange("a", terms, returned=2, want=10) == 2
    assert store.exchange("a", terms, deposits=1) == 0
    assert store.balance("a", terms) == 1.0


def test_different_terms_see_the_same_counts(store):
    """The counts are shared; what they allow depends on the settings of the process that asks."""
    generous, strict = store.ledger("a", 1.0, 0.0), store.ledger("a", 0.1, 0.0)
    for _ in range(10):
        strict.deposit()
    assert (generous.balance(), strict.balance()) == (10.0, 1.0)
    assert strict.try_withdraw()
    assert (generous.balance(), strict.balance()) == (9.0, 0.0)


def test_different_windows_see_the_same_counts(store, clock):
    """Each for as long as its own window lasts."""
    short, long = store.ledger("a", 1.0, 0.0, window=1.0), store.ledger("a", 1.0, 0.0, window=100.0)
    long.deposit()
    assert (short.balance(), long.balance()) == (1.0, 1.0)
    clock.advance(50.0)
    assert (short.balance(), long.balance()) == (0.0, 1.0)


def test_a_clock_that_was_set_back_does_not_freeze_a_budget(url):
    """What was counted in a far future is forgotten at the next exchange."""
    clock = VirtualClock(start=1e9)
    with open_store(url, clock=clock) as store:
        budget = store.ledger("a", ratio=0.0, reserve=0.1)
        assert budget.try_withdraw()
        clock._now = 1000.0
        budget.deposit()
        assert budget.try_withdraw()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda store: store.ledger("", 1.0), "a budget's name must be a non-empty string"),
        (lambda store: store.ledger("a", ratio=-1), "ratio must be a number at least 0 and at most 1e+15, not -1"),
        (lambda store: store.ledger("a", reserve=float("inf")), "at least 0 and at most 1e+15, not inf"),
        (lambda store: store.ledger("a", window=0.0), "at least 0.001 and at most 1e+15, not 0.0"),
        (
            lambda store: store.exchange("a", BudgetTerms(), want=-1),
            "want must be a whole number of at least 0, not -1",
        ),
        (
            lambda store: store.exchange("a", BudgetTerms(), deposits=1.5),
            "deposits must be a whole number of at least 0",
        ),
    ],
)
def test_odd_terms_are_refused_by_name(store, call, said):
    """Each error names the value, and what was expected."""
    with pytest.raises((TypeError, ValueError)) as raised:
        call(store)
    assert said in str(raised.value)


STEPS = st.lists(
    st.one_of(
        st.sampled_from(["deposit", "try_withdraw", "try_withdraw", "refund"]),
        st.floats(0.0, 4.0, allow_nan=False),
    ),
    max_size=60,
)


@pytest.mark.parametrize("kind", STORES)
@settings(max_examples=60)
@given(steps=STEPS, ratio=st.sampled_from([0.0, 0.2, 0.6, 1.0, 1 / 3]), reserve=st.sampled_from([0.0, 0.3, 0.5]))
def test_it_answers_as_a_budget_of_the_process_does(kind, tmp_path_factory, steps, ratio, reserve):
    """Step by step, and to the last fraction."""
    clock = VirtualClock(start=1000.0)
    with open_store(STORES[kind](tmp_path_factory.mktemp("store")), clock=clock) as store:
        ours, model = store.ledger("a", ratio, reserve), Budget(ratio, reserve, clock=clock)
        for step in steps:
            if isinstance(step, float):
                clock.advance(step)
            else:
                assert getattr(ours, step)() == getattr(model, step)()
            assert ours.balance() == model.balance()
