"""One budget shared by threads, clocks and processes: nothing lost, nothing spent twice, no lock left held."""

import gc
import os
import weakref

import pytest

from abate import Budget, forks
from abate.admit.sliding_window import SlidingWindow
from abate.testing import VirtualClock
from tests.reentry import held_elsewhere


def frozen():
    """A clock that stands still makes the allowance exact, however the threads interleave."""
    return 1000.0


def deposit(budget, hot):
    """Deposit by the method, or as decorated functions do."""
    if hot:
        for _ in budget.states.main.batch:
            return
        budget.states.main.deposit_and_start_batch()
    else:
        budget.deposit()


def drain(budget):
    """Withdraw until refused; return how many withdrawals were granted."""
    for taken in range(10_000):
        if not budget.try_withdraw():
            return taken
    raise AssertionError("it is never refused")


def test_no_deposit_is_lost(together):
    """Eight threads deposit in both ways while others read the balance: every deposit counts."""
    budget = Budget(ratio=1, reserve=0, clock=frozen)
    budget.states.main.batch_target = 20  # as after a busy slot

    def work(place):
        for n in range(300):
            deposit(budget, hot=place % 2)
            if n % 50 == place:
                budget.balance()

    together(work)
    assert budget.balance() == 8 * 300


def test_no_deposit_is_lost_while_time_moves(together):
    """The same while slots keep ending, within one window."""
    clock = VirtualClock()
    budget = Budget(ratio=1, reserve=0, window=1000, clock=clock)

    def work(place):
        for _ in range(300):
            clock.advance(0.3)
            deposit(budget, hot=place % 2)

    together(work)
    assert budget.balance() == 8 * 300


@pytest.mark.parametrize("round_", range(5))
def test_withdrawals_reach_the_allowance_exactly(together, round_):
    """Eight threads together withdraw all of a reserve, and not one more."""
    budget = Budget(ratio=0, reserve=500, window=1, clock=frozen)
    assert sum(together(lambda place: drain(budget))) == 500
    assert budget.balance() == 0.0


def test_withdrawals_reach_the_allowance_exactly_while_the_balance_is_read(together):
    """Reading the balance between a draw and its check takes nothing from the thread that drew."""
    budget = Budget(ratio=0, reserve=500, window=1, clock=frozen)

    def work(place):
        if place % 2:
            return drain(budget)
        for _ in range(200):
            budget.balance()
        return 0

    assert sum(together(work)) == 500
    assert budget.balance() == 0.0


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_withdrawals_never_exceed_what_deposits_have_earned(together, ratio):
    """Each thread deposits and withdraws in turn: withdrawals never exceed deposits, and each is counted."""
    budget = Budget(ratio=ratio, reserve=0, clock=frozen)

    def work(place):
        taken = 0
        for _ in range(300):
            budget.deposit()
            taken += budget.try_withdraw()
        return taken

    taken = sum(together(work))
    assert taken <= ratio * 8 * 300
    # a thread delayed over several folds may be overcharged; none was undercharged
    assert budget.balance() <= ratio * 8 * 300 - taken


def test_refunds_return_withdrawals(together):
    """Threads that withdraw and refund leave the balance unchanged."""
    budget = Budget(ratio=0, reserve=10, window=1, clock=frozen)

    def work(place):
        for _ in range(200):
            assert budget.try_withdraw()
            budget.refund()

    together(work)
    assert budget.balance() == 10.0


@pytest.mark.parametrize("folds", [1, 2, 5])
def test_a_number_that_a_fold_has_paid_for_is_not_paid_for_again(folds):
    """A thread that drew a prepaid number and was delayed before its check is admitted at no further cost."""
    budget = Budget(ratio=0, reserve=9, window=1, clock=frozen)
    state = budget.states.main
    number = next(state.next_withdrawal)
    for spent in range(folds):
        assert budget.balance() == 8.0 - spent
        assert budget.try_withdraw()
    assert number not in range(*state.prepaid)
    assert state.withdraw(number)
    assert budget.balance() == 8.0 - folds


class Overtaken:
    """Numbers, and what another thread does right after one was drawn."""

    def __init__(self, numbers, meanwhile):
        self.numbers, self.meanwhile = numbers, meanwhile

    def __next__(self):
        number = next(self.numbers)
        self.meanwhile()
        return number


def test_nothing_is_prepaid_during_a_fold():
    """A thread that draws during a fold takes the slow path, and is counted once."""
    budget = Budget(ratio=0, reserve=5, window=1, clock=frozen)
    state = budget.states.main
    numbers, drawn = state.next_withdrawal, []

    def next_withdrawal():
        drawn.append(next(numbers))
        first, end = state.prepaid
        assert not first <= drawn[-1] < end

    state.next_withdrawal = Overtaken(numbers, next_withdrawal)
    assert budget.balance() == 5.0
    state.next_withdrawal = numbers
    assert state.withdraw(drawn[0])
    assert budget.balance() == 4.0


def test_nothing_is_prepaid_before_a_fold_has_drawn_its_number():
    """A thread that draws in between takes the slow path, even with the first number; the fold has paid for it."""
    budget = Budget(ratio=0, reserve=5, window=1, clock=frozen)
    state = budget.states.main
    ticks, drawn = state.deposit_numbers, []

    def next_withdrawal():
        drawn.append(next(state.next_withdrawal))
        first, end = state.prepaid
        assert not first <= drawn[-1] < end

    state.deposit_numbers = Overtaken(ticks, next_withdrawal)
    assert budget.balance() == 4.0
    state.deposit_numbers = ticks
    assert state.withdraw(drawn[0])
    assert budget.balance() == 4.0


def test_the_last_prepaid_number_is_paid_for():
    """The balance was spent exactly and nothing refused: a new deposit is not charged for the delayed thread."""
    budget = Budget(ratio=1, reserve=1, window=1, clock=frozen)
    state = budget.states.main
    number = next(state.next_withdrawal)
    assert budget.balance() == 0.0
    budget.deposit()
    assert budget.balance() == 1.0
    assert budget.try_withdraw()
    assert budget.balance() == 0.0
    assert state.withdraw(number)


def test_an_interrupted_fold_counts_nothing_twice(monkeypatch):
    """After Ctrl-C at any point, the next fold does not enter again what is in the windows already."""
    budget = Budget(ratio=1, reserve=5, window=1, clock=frozen)
    budget.deposit()
    assert budget.try_withdraw()
    assert budget.try_withdraw()

    def broken(window, now):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SlidingWindow, "roll", broken)
        with pytest.raises(KeyboardInterrupt):
            budget.balance()
    assert budget.balance() == 4.0
    assert drain(budget) == 4


def test_a_delayed_thread_is_never_admitted_unpaid():
    """A thread delayed while the balance was spent and earned again is charged twice at worst."""
    clock = VirtualClock()
    budget = Budget(ratio=0, reserve=2, window=1, clock=clock)
    state = budget.states.main
    number = next(state.next_withdrawal)
    for _ in range(3):
        drain(budget)
        clock.advance(1.0)
    assert state.withdraw(number)
    assert drain(budget) == 1


def test_a_virtual_clock_has_its_own_ledger():
    """Deposits and withdrawals in virtual time change neither real time nor another clock."""
    budget = Budget(ratio=1, reserve=1, window=2)
    with VirtualClock():
        assert drain(budget) == 2
        assert budget.balance() == 0.0
        with VirtualClock():
            budget.deposit()
            assert budget.balance() == 3.0
        assert budget.balance() == 0.0
    assert budget.balance() == 2.0


def test_a_virtual_clock_keeps_its_ledger():
    """A clock that is entered a second time continues with its counts."""
    budget = Budget(ratio=1, reserve=1, window=2)
    clock = VirtualClock()
    with clock:
        assert drain(budget) == 2
    with clock:
        assert not budget.try_withdraw()
        clock.advance(2.0)
        assert drain(budget) == 2


def test_an_explicit_clock_is_used_in_every_context():
    """A budget with ``clock=`` uses that clock, also where the context has entered another."""
    mine = VirtualClock()
    budget = Budget(ratio=1, reserve=1, window=1, clock=mine)
    with VirtualClock() as other:
        assert drain(budget) == 1
        other.advance(100.0)
        assert not budget.try_withdraw()
    assert not budget.try_withdraw()
    mine.advance(1.0)
    assert budget.try_withdraw()


def test_a_ledger_is_freed_with_its_clock():
    """A long-lived budget keeps no ledger of virtual clocks that are gone."""
    budget = Budget()
    with VirtualClock() as clock:
        budget.deposit()
        state = weakref.ref(budget.states.here())
    del clock
    gc.collect()
    assert state() is None


def test_a_fork_while_the_lock_is_held_leaves_the_child_usable(in_child):
    """The child reads, withdraws and deposits."""
    budget = Budget(ratio=1, reserve=2, window=1, clock=frozen)
    budget.deposit()

    def child():
        before = budget.balance()
        budget.deposit()
        return before, drain(budget), budget.balance()

    with held_elsewhere(budget.states.main.section):
        assert in_child(child) == (3.0, 4, 0.0)
    assert budget.balance() == 3.0


def test_forks_during_use_leave_consistent_counts(in_child, beside):
    """While a thread uses the budget: in each child the balance equals a recount, and stays consistent."""
    budget = Budget(ratio=1, reserve=0, clock=frozen)
    state = budget.states.main
    made, parent = [0, 0], os.getpid()

    def hammer():
        budget.deposit()
        made[0] += 1
        budget.deposit()
        made[0] += 1
        made[1] += budget.try_withdraw()
        budget.balance()

    def child():
        assert os.getpid() != parent
        before = budget.balance()
        recount = sum(state.deposits._ring) - sum(state.withdrawals._ring)
        for _ in range(5):
            budget.deposit()
        budget.try_withdraw()
        return made[0] - made[1], before, recount, budget.balance()

    beside(hammer)
    for _ in range(20):
        expected, before, recount, after = in_child(child)
        assert before == recount
        assert after == before + 4
        # the thread may have been between an operation and its record, or within a fold
        assert expected - 2 <= before <= expected + 2


def test_the_fork_hook_repairs_a_ledger():
    """The same in this process, step by step: a new lock, recounted totals, the drawn numbers kept."""
    budget = Budget(ratio=1, reserve=2, window=1, clock=frozen)
    budget.deposit()
    assert budget.try_withdraw()
    state = budget.states.main
    with held_elsewhere(state.section):
        state.deposits.total = state.withdrawals.total = 77  # as if a thread had been stopped half-way
        state.prepaid = (0, 0)
        forks._in_child()
        assert budget.balance() == 2.0
