"""A retry budget that a fleet shares: what all members may spend together, and the fallback without the store."""

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
    """Withdraw until the budget refuses; return the number of withdrawals."""
    for count in range(most):
        if not budget.try_withdraw():
            return count
    return most


def members(fleet_sync, count, **terms):
    """Return `count` members that share one budget, each synced once after the last one joined."""
    fleet_syncs = [fleet_sync() for _ in range(count)]
    budgets = [FleetBudget(one, "orders", BudgetTerms(**terms)) for one in fleet_syncs]
    for one in fleet_syncs:
        one.sync_once()
    return fleet_syncs, budgets


def test_a_single_member_has_the_whole_budget(fleet_sync):
    """It holds half of the reserve at once and gets the rest on demand."""
    (one,), (budget,) = members(fleet_sync, 1, ratio=0.2, reserve=10.0, window=10.0)
    spent = spend(budget)
    assert spent == 50
    for _ in range(20):
        one.sync_once()
        spent += spend(budget)
    assert spent == 100


def test_one_member_may_spend_what_another_earned(fleet_sync):
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


def test_earnings_of_this_process_can_be_spent_before_a_sync(fleet_sync):
    """The ratio is applied exactly."""
    _, (budget,) = members(fleet_sync, 1, ratio=0.29, reserve=0.0)
    for _ in range(100):
        budget.deposit()
    assert budget.balance() == 29.0
    assert spend(budget) == 29


def test_a_refund_can_be_spent_again(fleet_sync):
    """A refunded token is available to the next withdrawal."""
    _, (budget,) = members(fleet_sync, 1, ratio=0.0, reserve=0.4, window=10.0)
    assert spend(budget) == 2
    budget.refund()
    assert spend(budget) == 1


def test_with_more_members_than_tokens_idle_members_hold_none(fleet_sync):
    """A member that needs tokens can then withdraw all of them."""
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
def test_a_fleet_never_spends_more_than_one_budget_allows(steps, ratio, reserve):
    """The bound holds for any order of deposits, withdrawals, refunds and syncs of four members."""
    with pytest.MonkeyPatch.context() as patch, open_store("memory:") as store:
        patch.setattr(FleetSync, "start", lambda self: None)
        fleet_syncs, budgets = members(
            lambda: FleetSync(store, "fleet"), 4, ratio=ratio, reserve=reserve, window=1000.0
        )
        deposits = spent = 0
        withdrawn = [0, 0, 0, 0]
        for index, operation, repeat in steps:
            for _ in range(repeat):
                if operation == "deposit":
                    budgets[index].deposit()
                    deposits += 1
                elif operation == "withdraw" and budgets[index].try_withdraw():
                    spent += 1
                    withdrawn[index] += 1
                elif operation == "refund" and withdrawn[index]:
                    budgets[index].refund()
                    spent -= 1
                    withdrawn[index] -= 1
            if operation == "sync_once":
                fleet_syncs[index].sync_once()
            assert spent <= floor(reserve * 1000.0 + ratio * deposits + 1e-6)


def test_without_the_store_each_member_has_its_part_of_the_reserve(fleet_sync, flaky):
    """The ratio is the same; the reserve is divided by the last known number of members."""
    fleet_syncs, budgets = members(fleet_sync, 4, ratio=0.5, reserve=4.0, window=10.0)
    flaky.error = ConnectionError("gone")
    for one, budget in zip(fleet_syncs, budgets, strict=True):
        one.sync_once()
        budget._valid_until = 0.0  # the last reply has expired
        assert spend(budget) == 10
        for _ in range(10):
            budget.deposit()
        assert spend(budget) == 5


def test_tokens_spent_before_an_outage_stay_spent(fleet_sync, flaky):
    """When the store fails, the local budget does not start full."""
    (one,), (budget,) = members(fleet_sync, 1, ratio=0.0, reserve=1.0, window=10.0)
    assert spend(budget) == 5
    flaky.error = ConnectionError("gone")
    one.sync_once()
    budget._valid_until = 0.0
    assert spend(budget) == 5


def test_a_failed_sync_drops_the_tokens_held(fleet_sync, flaky):
    """The store may already have taken them back; local limits apply at once."""
    (one,), (budget,) = members(fleet_sync, 1, ratio=0.0, reserve=1.0, window=10.0)
    flaky.error = ConnectionError("gone")
    one.sync_once()
    assert spend(budget) == 10


def test_a_store_outage_and_its_end_are_reported_once_each(fleet_sync, flaky, caplog):
    """One StoreDegraded event and one log line when the store fails, and when it answers again."""
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


def test_a_budget_is_local_if_the_store_never_answered(fleet_sync, flaky):
    """Construction does not fail, and withdrawals use the local limit."""
    flaky.error = ConnectionError("gone")
    budget = FleetBudget(fleet_sync(), "orders", BudgetTerms(ratio=0.0, reserve=1.0, window=10.0))
    assert spend(budget) == 10


def test_closing_returns_the_tokens_held(manual_sync):
    """Tokens of a process that closes its store are available to other members."""
    with open_store("memory:") as store:
        fleet_sync = FleetSync(store, "fleet")
        FleetBudget(fleet_sync, "orders", BudgetTerms(0.0, 1.0, 10.0))
        assert store.balance("orders", BudgetTerms(0.0, 1.0, 10.0)) == 5.0
        fleet_sync._thread = object()
        budget = FleetBudget(fleet_sync, "orders", BudgetTerms(0.0, 1.0, 10.0))
        fleet_sync.close()
        assert store.balance("orders", BudgetTerms(0.0, 1.0, 10.0)) == 10.0
        del budget


def test_tokens_returned_on_close_are_not_spent_again(manual_sync):
    """After closing the budget is local and keeps count of what it has spent."""
    with open_store("memory:") as store:
        fleet_sync = FleetSync(store, "fleet")
        budget = FleetBudget(fleet_sync, "orders", BudgetTerms(0.0, 1.0, 10.0))
        assert spend(budget, 3) == 3
        fleet_sync._thread = object()
        fleet_sync.close()
        assert spend(budget) == 7


def test_one_name_is_one_object(store):
    """Two objects of one name would have the reserve twice without the store."""
    assert store.budget("a", 0.1) is store.budget("a", 0.1)
    assert store.budget("a", 0.1) is not store.budget("b", 0.1)
    assert store.bucket("a", 5.0) is store.bucket("a", 5.0)
    assert store.shelter("a") is store.shelter("a")


def test_a_refund_creates_no_token(fleet_sync):
    """Neither in virtual time nor without a matching withdrawal."""
    _, (budget,) = members(fleet_sync, 1, ratio=0.0, reserve=1.0, window=10.0)
    with VirtualClock():
        assert spend(budget, 3) == 3
        for _ in range(3):
            budget.refund()
    assert budget.balance() == 5
    budget.refund()
    assert budget.balance() == 5
    assert budget.try_withdraw()
    budget.refund()
    budget.refund()
    assert budget.balance() == 5, "one withdrawal is one token"


def test_forked_children_join_the_fleet(tmp_path):
    """A child starts its sync thread on first use, and forked servers share one budget."""
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


def test_a_fork_does_not_copy_tokens(fleet_sync):
    """The child starts with no tokens and a member id of its own; the parent keeps its tokens."""
    (one,), (budget,) = members(fleet_sync, 1, ratio=0.0, reserve=1.0, window=10.0)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, f"{budget.balance():g} {one.member}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    held, member = os.read(reading, 1000).decode().split(" ", 1)
    os.close(reading)
    os.close(writing)
    assert held == "0"
    assert member != one.member
    assert budget.balance() == 5


def test_virtual_time_has_a_budget_of_its_own(fleet_sync):
    """A test in virtual time neither sees nor spends the fleet's tokens."""
    _, (budget,) = members(fleet_sync, 1, ratio=0.0, reserve=1.0, window=10.0)
    with VirtualClock():
        assert spend(budget) == 10
    assert spend(budget) == 5


def test_a_policy_pays_retries_from_it(fleet_sync):
    """The policy stops with reason 'budget' when the fleet budget is spent."""
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
