"""The arithmetic of the budget, against an exact model that keeps every event; and its validation."""

import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from abate import Budget, Policy, http
from abate.admit.budget_units import Units
from abate.admit.sliding_window import SLOTS
from abate.testing import Script, VirtualClock

FINEST = 10**6
RATIOS = [0.0, 0.1, 0.2, 0.29, 0.3, 0.5, 0.6, 0.7, 0.999, 1.0, 1.5, 1 / 3, 2 / 3, 1 / 7]
RESERVES = [0.0, 0.01, 0.1, 0.3, 1 / 3, 1.0, 2.5, 10.0]
WINDOWS = [0.001, 0.05, 0.3, 1.0, 3.0, 7.0, 10.0, 12.5, 60.0]


def meant(number):
    """Return the number that a float was written for: 0.29 is 29/100, and 1/3 a third."""
    return Fraction(number).limit_denominator(1000)


class Model:
    """A slow budget: every event with its slot, in exact numbers."""

    def __init__(self, ratio, reserve, window, clock):
        self.ratio, self.reserved = meant(ratio), meant(reserve) * meant(window)
        self.width, self.clock = window / SLOTS, clock
        self.deposits, self.withdrawals = [], []

    @property
    def slot(self):
        return int(self.clock.now() / self.width)

    def counted(self, events):
        return [slot for slot in events if slot > self.slot - SLOTS]

    def balance(self):
        earned = self.ratio * len(self.counted(self.deposits))
        return self.reserved + earned - len(self.counted(self.withdrawals))

    def deposit(self):
        self.deposits.append(self.slot)

    def try_withdraw(self):
        allowed = self.balance() >= 1
        if allowed:
            self.withdrawals.append(self.slot)
        return allowed

    def refund(self):
        if self.counted(self.withdrawals):
            self.withdrawals.pop()


class AgainstEveryEvent(RuleBasedStateMachine):
    """Deposits, withdrawals, refunds and time in any order: the budget answers as the model does."""

    @initialize(
        ratio=st.sampled_from(RATIOS),
        reserve=st.sampled_from(RESERVES),
        window=st.sampled_from(WINDOWS),
        start=st.sampled_from([0.0, 0.1, 123456.789]),
    )
    def begin(self, ratio, reserve, window, start):
        self.clock = VirtualClock(start)
        self.window = window
        self.budget = Budget(ratio, reserve, window, clock=self.clock)
        self.model = Model(ratio, reserve, window, self.clock)

    @rule(times=st.integers(1, 20))
    def deposit(self, times):
        for _ in range(times):
            self.budget.deposit()
            self.model.deposit()

    @rule(times=st.integers(1, 12), told=st.booleans())
    def withdraw(self, times, told):
        now = self.clock.now() if told else None
        for _ in range(times):
            assert self.budget.try_withdraw(now) is self.model.try_withdraw()

    @rule()
    def refund(self):
        self.budget.refund()
        self.model.refund()

    @rule()
    def balance(self):
        # not an invariant: reading the balance would expire slots that the other rules are to leave
        assert self.budget.balance() == float(self.model.balance())

    @rule(slots=st.one_of(st.integers(0, 2 * SLOTS), st.floats(0, 2.5), st.floats(0, 1.2 * SLOTS)))
    def advance(self, slots):
        self.clock.advance(slots * self.window / SLOTS)

    def teardown(self):
        if hasattr(self, "budget"):
            self.balance()


TestAgainstEveryEvent = AgainstEveryEvent.TestCase
TestAgainstEveryEvent.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)


@settings(deadline=None)
@given(percent=st.integers(0, 300), deposits=st.integers(0, 500))
def test_a_ratio_is_exact_however_many_deposits(percent, deposits):
    """N deposits at P percent allow the whole part of N * P / 100, not one less."""
    budget = Budget(ratio=percent / 100, reserve=0, clock=VirtualClock())
    for _ in range(deposits):
        budget.deposit()
    allowed = percent * deposits // 100
    assert all(budget.try_withdraw() for _ in range(allowed))
    assert not budget.try_withdraw()
    assert budget.balance() == (percent * deposits - 100 * allowed) / 100


@settings(deadline=None)
@given(numerator=st.integers(0, 10**7), denominator=st.integers(1, FINEST))
def test_a_float_is_read_as_the_fraction_it_was_written_as(numerator, denominator):
    """Up to a denominator of a million, the float next to a fraction means the fraction."""
    terms = Units.of(numerator / denominator, denominator / FINEST)
    assert Fraction(terms.per_deposit, terms.one) == Fraction(numerator, denominator)
    assert Fraction(terms.reserved, terms.one) == Fraction(denominator, FINEST)


@settings(deadline=None)
@given(ratio=st.floats(0, 1000))
def test_any_other_ratio_is_approximated_closely(ratio):
    """The error is below one in a million per deposit, and the denominator stays small."""
    terms = Units.of(ratio, 0.0)
    assert terms.one <= FINEST
    assert abs(Fraction(terms.per_deposit, terms.one) - Fraction(ratio)) <= Fraction(1, FINEST)


@pytest.mark.parametrize(
    ("ratio", "deposits", "allowed"),
    [(0.6, 5, 3), (0.1, 10, 1), (0.1, 30, 3), (0.29, 100, 29), (1 / 3, 3, 1), (1 / 3, 300, 100), (0.7, 10, 7)],
)
def test_ratios_whose_float_sums_fall_short(ratio, deposits, allowed):
    """Where a sum of floats falls short of the whole number, the budget does not."""
    budget = Budget(ratio=ratio, reserve=0, clock=VirtualClock())
    for _ in range(deposits):
        budget.deposit()
    assert [budget.try_withdraw() for _ in range(allowed + 1)] == [True] * allowed + [False]


def test_the_reserve_is_per_second_of_the_window():
    """A reserve of 0.3 per second over 10 seconds allows three retries without any deposit, and three more later."""
    clock = VirtualClock()
    budget = Budget(ratio=0.2, reserve=0.3, window=10, clock=clock)
    assert [budget.try_withdraw() for _ in range(4)] == [True, True, True, False]
    clock.advance(10.0)
    assert [budget.try_withdraw() for _ in range(4)] == [True, True, True, False]


def test_a_withdrawal_expires_with_its_window_and_a_refund_counts_at_once():
    """Withdrawals return when their slot leaves the window; refunds return now."""
    clock = VirtualClock()
    budget = Budget(ratio=0, reserve=0.1, window=10, clock=clock)
    assert budget.try_withdraw()
    assert not budget.try_withdraw()
    budget.refund()
    assert budget.try_withdraw()
    clock.advance(9.8)
    assert not budget.try_withdraw()
    clock.advance(0.2)
    assert budget.try_withdraw()


def test_an_event_at_the_border_of_two_slots_counts_in_the_later_one():
    """A deposit and a withdrawal at the instant at which a slot begins expire with that slot."""
    clock = VirtualClock()
    deposited = Budget(ratio=1, reserve=0, window=SLOTS, clock=clock)
    withdrawn = Budget(ratio=0, reserve=1, window=SLOTS, clock=clock)
    told = Budget(ratio=0, reserve=1, window=SLOTS, clock=clock)
    clock.advance(1.0)
    deposited.deposit()
    assert withdrawn.try_withdraw()
    assert told.try_withdraw(clock.now())
    clock.advance(SLOTS - 1)
    assert (deposited.balance(), withdrawn.balance(), told.balance()) == (1, SLOTS - 1, SLOTS - 1)
    clock.advance(1.0)
    assert (deposited.balance(), withdrawn.balance(), told.balance()) == (0, SLOTS, SLOTS)


@pytest.mark.parametrize("reading", [1, 2])
def test_a_refund_in_the_middle_of_a_withdrawal_counts_once(reading):
    """A withdrawal reads the clock twice; a refund that interrupts either reading allows exactly one more."""
    readings, interruptions = [], {}

    def clock():
        readings.append(0.0)
        interruptions.pop(len(readings), int)()
        return 0.0

    budget = Budget(ratio=0.0, reserve=0.1, window=10.0, clock=clock)
    assert [budget.try_withdraw(), budget.try_withdraw()] == [True, False]
    interruptions[len(readings) + reading] = budget.refund
    assert sorted([budget.try_withdraw(), budget.try_withdraw()]) == [False, True]
    assert interruptions == {}


def test_a_refund_without_a_withdrawal_adds_nothing():
    """The balance does not change."""
    budget = Budget(ratio=0, reserve=0.1, window=10, clock=VirtualClock())
    budget.refund()
    assert budget.balance() == 1.0


def test_a_debt_is_paid_off_before_anything_is_allowed():
    """When deposits expire before the withdrawals they paid for, the balance is negative."""
    clock = VirtualClock()
    budget = Budget(ratio=1, reserve=0, window=10, clock=clock)
    budget.deposit()
    clock.advance(5.0)
    assert budget.try_withdraw()
    clock.advance(5.0)
    assert budget.balance() == -1.0
    budget.deposit()
    assert not budget.try_withdraw()
    budget.deposit()
    assert budget.try_withdraw()


def test_successes_fund_by_default():
    """A first attempt is free and deposits nothing; a success deposits; a retry withdraws."""
    budget = Budget(ratio=1, reserve=0, clock=VirtualClock())
    assert budget.enter(retry=False) is None
    assert budget.balance() == 0.0
    assert budget.enter(retry=True) is budget
    budget.leave(accepted=False)
    assert budget.enter(retry=True) is budget
    budget.leave(accepted=True)
    assert budget.enter(retry=True) is None
    assert budget.balance() == 0.0


def test_requests_fund_if_set():
    """The first attempt deposits when it enters, and its success deposits nothing more."""
    budget = Budget(ratio=1, reserve=0, funded_by="request", clock=VirtualClock())
    assert budget.enter(retry=False) is None
    assert budget.balance() == 1.0
    budget.leave(accepted=True)
    assert budget.balance() == 1.0
    assert budget.enter(retry=True) is None
    assert budget.enter(retry=True) is budget


def test_a_refunded_retry_returns_its_withdrawal():
    """A later gate refused the retry; a refused first attempt withdrew nothing, and returns nothing."""
    budget = Budget(ratio=0, reserve=5, window=1, clock=VirtualClock())
    for _ in range(2):
        assert budget.enter(retry=True) is None
    budget.undo(retry=False)
    assert budget.balance() == 3.0
    budget.undo(retry=True)
    assert budget.balance() == 4.0


def test_a_budget_allows_a_fifth_and_ten_a_second_by_default():
    """Over ten seconds: a hundred retries without traffic, and one more for every five successes."""
    budget = Budget(clock=VirtualClock())
    assert budget.settings() == (0.2, 10.0, 10.0, "success")
    assert budget.balance() == 100.0
    for _ in range(5):
        budget.deposit()
    assert budget.balance() == 101.0


def test_empty_admits_no_retry():
    """No number of successes changes that."""
    budget = Budget.empty()
    for _ in range(1000):
        budget.deposit()
    assert not budget.try_withdraw()
    assert budget.balance() == 0.0
    assert budget.name == "empty budget"


def test_unlimited_admits_every_retry():
    """It counts nothing: its balance is infinite, and a refund has no effect."""
    budget = Budget.unlimited()
    assert all(budget.try_withdraw() for _ in range(1000))
    budget.refund()
    budget.deposit()
    assert budget.balance() == math.inf
    assert budget.refusal() == "its balance of inf retries is spent"
    assert repr(budget) == "Budget(ratio=0, reserve=inf, window=10, funded_by='success')"


@pytest.mark.parametrize("wrong", [-1, -0.001, math.nan, -math.inf, 10**400])
@pytest.mark.parametrize("name", ["ratio", "reserve", "window"])
def test_numbers_out_of_range_are_refused_by_name(name, wrong):
    """The error names the setting: negative, NaN, or too large for a float."""
    with pytest.raises(ValueError, match=f"{name} must be a number at least"):
        Budget(**{name: wrong})


@pytest.mark.parametrize("wrong", [True, "1", None, 1j])
@pytest.mark.parametrize("name", ["ratio", "reserve", "window"])
def test_values_that_are_not_numbers_are_refused_by_name(name, wrong):
    """Neither a bool nor text that looks like a number is accepted."""
    with pytest.raises(TypeError, match=f"{name} must be a number at least"):
        Budget(**{name: wrong})


@pytest.mark.parametrize("settings", [{"window": 0}, {"window": 0.0009}, {"window": math.inf}, {"ratio": math.inf}])
def test_a_window_too_short_and_infinities_are_refused(settings):
    """Only the reserve may be infinite."""
    with pytest.raises(ValueError, match="must be a number at least"):
        Budget(**settings)


@pytest.mark.parametrize("wrong", ["retries", "", None, 1, ["success"]])
def test_an_unknown_funding_is_refused_by_name(wrong):
    """The error lists the valid values."""
    with pytest.raises(ValueError, match="funded_by must be one of 'success', 'request'"):
        Budget(funded_by=wrong)


def test_repr_settings_and_refusal_reason():
    """The budget shows its settings; a refusal gives a reason."""
    budget = Budget(ratio=0.25, reserve=0.05, window=10, funded_by="request", clock=VirtualClock(), name="mine")
    assert repr(budget) == "Budget(ratio=0.25, reserve=0.05, window=10, funded_by='request')"
    assert budget.settings() == (0.25, 0.05, 10.0, "request")
    assert budget.settings() == Budget(ratio=0.25, reserve=0.05, window=10, funded_by="request").settings()
    assert budget.refusal() == "its balance of 0.5 retries is spent"
    assert budget.name == "mine"


def test_a_policy_withdraws_and_deposits():
    """Two retries withdraw two, and the success makes one deposit."""
    with VirtualClock():
        budget = Budget(ratio=0.5, reserve=1, window=10)
        Policy(on=OSError, budget=budget).call(Script(OSError(), OSError(), "fine"))
        assert budget.balance() == 10 - 2 + 0.5


def test_as_a_gate_it_earns_nothing_from_failures():
    """A server that answers every attempt with a 500 pays for no retry, as with the budget of the policy."""
    with VirtualClock():
        gate = Budget(ratio=1.0, reserve=0)
        on = http.status(500)
        policy = Policy(on=on, max_attempts=2, backoff=[0.0], budget=Budget.unlimited(), gate=gate)
        failing = Script(*[SimpleNamespace(status_code=500, headers={})] * 3)
        for _ in range(3):
            policy.call(failing)
        assert (len(failing.calls), gate.balance()) == (3, 0.0)
        policy.call(Script("fine"))
        assert gate.balance() == 1.0
