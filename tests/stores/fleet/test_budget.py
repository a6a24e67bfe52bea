"""A budget that a fleet shares: what all together may spend, and what each does without the store."""

import os
import time
from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import events
from abate.stores import BudgetTerms, open_store
from abate.stores.fleet import FleetBudget, FleetSync
from abate.testing import VirtualClock


def spend(budget, most=10**6):
    """Withdraw until it is refused: how often it was not."""
    for count in range(most):
        if not budget.try_withdraw():
            return count
    return most


def members(fleet_sync, many, **terms):
    """So many processes that share one budget; all of them have gone to the store since the last one came."""
    fleet_syncs = [fleet_sync() for _ in range(many)]
    budgets = [FleetBudget(one, "orders", BudgetTerms(**terms)) for one in fleet_syncs]
    for one in fleet_syncs:
        one.sync_once()
    return fleet_syncs, budgets


def test_a_lone_member_has_the_whole_budget(fleet_sync):
    """Half of the reserve at once, the rest when it is needed."""
    (one,), (budget,) = members(fleet_sync, 1, ratio=0.2, reserve=10.0, window=10.0)
    spent = spend(budget)
    assert spent == 50
    for _ in range(20):
        one.sync_once()
        spent += spend(budget)
    assert spent == 100


def test_what_one_earns_another_may_spend(fleet_sync):
    """The fleet has one balance."""
    (rich, poor), (earning, spending) = members(fleet_sync, 2, ratio=0.5, reserve=0.0)
    for _ in range(40):
        earning.deposit()
    assert not spending.try_withdraw()
    rich.sync_once()
    spent = 0
    for _ in range(20):
        poor.sync_once()
        spent += spend(spending)
    assert spent == 20


def test_what_is_earned_here_can_be_spent_at_once(fleet_sync):
    """No journey is needed for it, and what the ratio says is exact."""
    _, (budget,) = members(fleet_sync, 1, ratio=0.29, reserve=0.0)
    for _ in range(100):
        budget.deposit()
    assert budget.balance() == 29.0
    assert spend(budget) == 29


def test_a_refund_can_be_spent_again(fleet_sync):
    """A wait that was cancelled costs nothing."""
    _, (budget,) = members(fleet_sync, 1, ratio=0.0, reserve=0.4, window=10.0)
    assert spend(budget) == 2
    budget.refund()
    assert spend(budget) == 1


def test_where_there_are_more_members_than_tokens_nobody_sits_on_them(fleet_sync):
    """In quiet times none are held, so that whoever is in need finds them."""
    fleet_syncs, budgets = members(fleet_sync, 50, ratio=0.0, reserve=1.0, window=10.0)
    assert [budget.balance() for budget in budgets[5:]] == [0.0] * 45
    needy, budget = fleet_syncs[-1], budgets[-1]
    spent = 0
    for one in fleet_syncs:
        one.sync_once()
    for _ in range(60):
        spent += spend(budget)
        needy.sync_once()
    assert spent == 10


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["deposit", "withdraw", "sync_once", "refund"]), st.integers(1, 30)),
    max_size=60,
)


@settings(max_examples=60)
@given(STEPS, st.sampled_from([0.0, 0.1, 0.29, 0.6, 1.0]), st.sampled_from([0.0, 0.3, 2.0]))
def test_all_together_never_spend_more_than_one_budget_allows(steps, ratio, reserve):
    """Whoever earns, spends, returns and travels when: the sum is that of one budget."""
    with pytest.MonkeyPatch.context() as still, open_store("memory:") as store:
        still.setattr(FleetSync, "start", lambda self: None)
        fleet_syncs, budgets = members(
            lambda: FleetSync(store, "fleet"), 4, ratio=ratio, reserve=reserve, window=1000.0
        )
        deposits = spent = 0
        owed = [0, 0, 0, 0]
        for who, what, many in steps:
            for _ in range(many):
                if what == "deposit":
                    budgets[who].deposit()
                    deposits += 1
                elif what == "withdraw" and budgets[who].try_withdraw():
                    spent += 1
                    owed[who] += 1
                elif what == "refund" and owed[who]:
                    budgets[who].refund()
                    spent -= 1
                    owed[who] -= 1
            if what == "sync_once":
                fleet_syncs[who].sync_once()
            assert spent <= floor(reserve * 1000.0 + ratio * deposits + 1e-6)


def test_without_the_store_each_has_its_part_of_the_reserve(fleet_sync, flaky):
    """The same ratio, and the reserve shared by as many as there were."""
    fleet_syncs, budgets = members(fleet_sync, 4, ratio=0.5, reserve=4.0, window=10.0)
    flaky.error = ConnectionError("gone")
    for one, budget in zip(fleet_syncs, budgets, strict=True):
        one.sync_once()
        budget._valid_until = 0.0  # a while later
        assert spend(budget) == 10
        for _ in range(10):
            budget.deposit()
        assert spend(budget) == 5


def test_what_was_spent_with_the_store_is_spent_without_it(fleet_sync, flaky):
    """A store that goes away leaves no full budget behind."""
    (one,), (budget,) = members(fleet_sync, 1, ratio=0.0, reserve=1.0, window=10.0)
    assert spend(budget) == 5
    flaky.error = ConnectionError("gone")
    one.sync_once()
    budget._valid_until = 0.0
    assert spend(budget) == 5


def test_a_journey_that_fails_leaves_nothing_held(fleet_sync, flaky):
    """The store may have taken back what was handed in: each goes by its own limits at once."""
    (one,), (budget,) = members(fleet_sync, 1, ratio=0.0, reserve=1.0, window=10.0)
    flaky.error = ConnectionError("gone")
    one.sync_once()
    assert len(budget._tokens) == 0
    assert spend(budget) == 10


def test_the_store_coming_and_going_is_said_once_each(fleet_sync, flaky, caplog):
    """An event and a line of the log when it goes, and when it is back."""
    seen = []
    (one,), _ = members(fleet_sync, 1)
    sink = abate.observe.install(seen.append)
    try:
        flaky.error = ConnectionError("gone")
        one.sync_once()
        one.sync_once()
        assert one.degraded
        flaky.error = None
        one.sync_once()
        one.sync_once()
    finally:
        abate.observe.remove(sink)
    assert [(event.name, event.degraded) for event in seen if isinstance(event, events.StoreDegraded)] == [
        ("fleet", True),
        ("fleet", False),
    ]
    assert "each process applies local limits" in caplog.text
    assert "answers again" in caplog.text


def test_a_store_that_was_never_there_leaves_a_budget_of_its_own(fleet_sync, flaky):
    """Construction doesn't fail, and calls have a budget."""
    flaky.error = ConnectionError("gone")
    budget = FleetBudget(fleet_sync(), "orders", BudgetTerms(ratio=0.0, reserve=1.0, window=10.0))
    assert spend(budget) == 10


def test_closing_hands_in_what_is_held(still):
    """The tokens of a process that ends in order are there for the others."""
    with open_store("memory:") as store:
        fleet_sync = FleetSync(store, "fleet")
        FleetBudget(fleet_sync, "orders", BudgetTerms(0.0, 1.0, 10.0))
        assert store.balance("orders", BudgetTerms(0.0, 1.0, 10.0)) == 5.0
        fleet_sync._thread = object()
        budget = FleetBudget(fleet_sync, "orders", BudgetTerms(0.0, 1.0, 10.0))
        fleet_sync.close()
        assert store.balance("orders", BudgetTerms(0.0, 1.0, 10.0)) == 10.0
        del budget


def test_what_was_handed_in_at_the_end_is_not_spent(still):
    """After closing it is a budget of its own."""
    with open_store("memory:") as store:
        fleet_sync = FleetSync(store, "fleet")
        budget = FleetBudget(fleet_sync, "orders", BudgetTerms(0.0, 1.0, 10.0))
        assert spend(budget, 3) == 3
        fleet_sync._thread = object()
        fleet_sync.close()
        assert len(budget._tokens) == 0
        assert spend(budget) == 7


def test_one_name_is_one_budget(store):
    """Two objects of one name would have the reserve twice without the store."""
    assert store.budget("a", 0.1) is store.budget("a", 0.1)
    assert store.budget("a", 0.1) is not store.budget("b", 0.1)
    assert store.bucket("a", 5.0) is store.bucket("a", 5.0)
    assert store.shelter("a") is store.shelter("a")


def test_a_refund_in_virtual_time_makes_no_token(fleet_sync):
    """Nor does one of a withdrawal that no token stood for."""
    _, (budget,) = members(fleet_sync, 1, ratio=0.0, reserve=1.0, window=10.0)
    with VirtualClock():
        assert spend(budget, 3) == 3
        for _ in range(3):
            budget.refund()
    assert len(budget._tokens) == 5
    budget.refund()
    assert len(budget._tokens) == 5
    assert budget.try_withdraw()
    budget.refund()
    budget.refund()
    assert len(budget._tokens) == 5, "one withdrawal is one token"


def test_a_child_joins_the_fleet(tmp_path):
    """Its courier goes when it is needed, so that forked servers share one budget."""
    url = f"sqlite:///{tmp_path}/fleet.db"
    with open_store(url) as store:
        budget = store.budget("orders", ratio=0.0, reserve=1.0, window=1000.0)
        reading, writing = os.pipe()
        children = []
        for _ in range(3):
            child = os.fork()
            if not child:
                end = time.monotonic() + 20.0
                spent = 0
                while store.fleet_sync.rounds < 4 and time.monotonic() < end:
                    spent += budget.try_withdraw()
                    time.sleep(0.001)
                os.write(writing, f"{spent} {budget._members}\n".encode())
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        rows = [line.split() for line in os.read(reading, 1000).decode().splitlines()]
        os.close(reading)
        os.close(writing)
    assert len(rows) == 3
    assert max(int(known) for _, known in rows) >= 3
    assert sum(int(spent) for spent, _ in rows) <= 1000


def test_a_childs_tokens_are_its_own(fleet_sync):
    """A fork doesn't double what was granted."""
    (one,), (budget,) = members(fleet_sync, 1, ratio=0.0, reserve=1.0, window=10.0)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, f"{len(budget._tokens)} {one.member}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    held, member = os.read(reading, 1000).decode().split(" ", 1)
    os.close(reading)
    os.close(writing)
    assert held == "0"
    assert member != one.member
    assert len(budget._tokens) == 5


def test_virtual_time_has_a_budget_of_its_own(fleet_sync):
    """A test in virtual time neither sees nor spends what the fleet has."""
    _, (budget,) = members(fleet_sync, 1, ratio=0.0, reserve=1.0, window=10.0)
    with VirtualClock():
        assert spend(budget) == 10
    assert spend(budget) == 5


def test_a_policy_takes_it(fleet_sync):
    """It is a budget: retries are paid from it."""
    _, (budget,) = members(fleet_sync, 1, ratio=0.0, reserve=0.2, window=10.0)
    policy = abate.Policy(on=ConnectionError, max_attempts=5, backoff=[0.0], budget=budget)
    calls = []

    @policy
    def fail():
        calls.append(1)
        raise ConnectionError

    with pytest.raises(ConnectionError) as raised:
        fail()
    assert (len(calls), abate.report(raised.value).reason) == (2, "budget")
