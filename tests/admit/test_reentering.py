"""Gates that are used in the middle of one of their own operations, step by step (see tests/test_reentry.py)."""

import pytest

from abate import Budget, Permits, Throttle, TokenBucket


class Interrupting:
    """A clock whose next look at it is interrupted, after so many others."""

    def __init__(self):
        self.at = 0.5
        self.interruption = None
        self.answers = []
        self.looks = 0

    def __call__(self):
        interruption, self.interruption = self.interruption, None
        if interruption is not None:
            self.answers.append(interruption())
        return self.at


class InterruptedTerms:
    """The terms of a ledger, the reading of which is interrupted once."""

    def __init__(self, terms, interruption):
        self._terms, self._interruption = terms, interruption
        self.answers = []

    def __getattr__(self, name):
        return getattr(self._terms, name)

    def balance(self, deposits, withdrawals):
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            self.answers.append(interruption())
        return self._terms.balance(deposits, withdrawals)


class InterruptedLook(list):
    """A list whose look number `at` for whether it is empty is interrupted, after it has answered."""

    def __init__(self, at, interruption):
        super().__init__()
        self._at, self._interruption = at, interruption
        self.answers = []

    def __len__(self):
        length = super().__len__()
        self._at -= 1
        if self._at == 0:
            self.answers.append(self._interruption())
        return length


@pytest.fixture
def clock():
    return Interrupting()


def budget_of(clock, left):
    budget = Budget(ratio=0.0, reserve=float(left), window=1.0, clock=clock)
    budget.balance()
    return budget


@pytest.mark.parametrize("slot", [0.5, 0.53], ids=["same slot", "next slot"])
def test_a_withdrawal_before_a_fold_has_begun_counts_once(clock, slot):
    """It takes a number as any other."""
    budget = budget_of(clock, 3)
    clock.at, clock.interruption = slot, budget.try_withdraw
    budget.balance()
    assert clock.answers == [True]
    assert budget.balance() == 2.0


@pytest.mark.parametrize(("left", "granted"), [(1, False), (2, True), (3, True)])
def test_a_withdrawal_in_a_fold_is_granted_if_it_was_prepaid(clock, left, granted):
    """Where it is not sure, it is refused, and nothing is lost by that."""
    budget = budget_of(clock, left)
    ledger = budget.timeline.main
    terms = ledger._terms = InterruptedTerms(ledger._terms, budget.try_withdraw)
    budget.balance()
    assert terms.answers == [granted]
    assert budget.balance() == left - granted
    assert [budget.try_withdraw() for _ in range(3)] == [True] * (left - granted) + [False] * (3 - left + granted)


@pytest.mark.parametrize("attribute", ["_granted", "_spoiled"])
@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_withdrawal_counts_once_wherever_it_comes(clock, attribute, at, left):
    """Also between the last look for one and the numbers that are prepaid then."""
    budget = budget_of(clock, left)
    ledger = budget.timeline.main
    looked = InterruptedLook(at, budget.try_withdraw)
    setattr(ledger, attribute, looked)
    budget.balance()
    granted = sum(looked.answers)
    assert sum(budget.try_withdraw() for _ in range(5)) == left - granted
    assert budget.balance() == 0.0


def test_a_deposit_in_a_fold_counts_once(clock):
    """It does not fold again, and what it brings is there afterwards."""
    budget = Budget(ratio=1.0, reserve=0.0, window=1.0, clock=clock)
    clock.at, clock.interruption = 0.53, budget.deposit
    budget.balance()
    assert budget.balance() == 1.0


def test_a_balance_in_a_fold_is_the_one_known(clock):
    """A gauge is read where the collector, or a handler, reads it."""
    budget = budget_of(clock, 3)
    clock.interruption = lambda: (budget.balance(), budget.share())
    budget.try_withdraw()
    budget.balance()
    assert clock.answers == [(3.0, 1.0)] or clock.answers == [(2.0, 2 / 3)]


def test_a_refund_in_a_fold_is_not_lost(clock):
    """It is made when the fold is over."""
    budget = budget_of(clock, 3)
    assert budget.try_withdraw()
    clock.interruption = budget.refund
    budget.balance()
    assert budget.balance() == 3.0


def bucket_of(clock, tokens, burst=10):
    bucket = TokenBucket(rate=1.0, burst=burst, clock=clock)
    bucket._levels.main.tokens = float(tokens)
    return bucket


@pytest.mark.parametrize(("tokens", "taken"), [(5, True), (4, False)])
def test_tokens_besides_those_that_are_being_taken(clock, tokens, taken):
    """Who interrupts leaves as many as the interrupted one wants."""
    bucket = bucket_of(clock, tokens)
    clock.interruption = lambda: bucket.try_acquire(3)
    assert bucket.try_acquire(2)
    assert clock.answers == [taken]
    level = bucket._levels.main
    level.settle()
    assert level.tokens == tokens - 2 - 3 * taken


def test_a_claim_in_the_middle_of_another_waits_for_both(clock):
    """The instant at which its tokens are there counts what the other one takes."""
    bucket = bucket_of(clock, 1)
    level = bucket._levels.main
    clock.interruption = lambda: bucket._claim(level, 2, None)
    first = bucket._claim(level, 1, None)
    (second,) = clock.answers
    assert (first.due, second.due) == (2.5, 2.5)
    assert list(level.claims) == [first, second]
    level.settle()
    assert level.tokens == -2.0


def test_a_claim_in_the_middle_of_another_that_need_not_wait(clock):
    """Where there are tokens for both, nobody stands in line."""
    bucket = bucket_of(clock, 5)
    level = bucket._levels.main
    clock.interruption = lambda: bucket._claim(level, 2, None)
    assert bucket._claim(level, 1, None).due == clock.answers[0].due == 0.5
    assert not level.claims


def test_a_claim_in_the_middle_of_another_has_no_more_patience_than_it_was_given(clock):
    """It is refused, and takes nothing."""
    bucket = bucket_of(clock, 1)

    def impatient():
        with pytest.raises(TimeoutError, match="the wait is 2 s"):
            bucket._claim(bucket._levels.main, 2, 1.0)

    clock.interruption = impatient
    assert bucket.try_acquire()
    assert bucket._levels.main.tokens == 0.0


def test_a_throttle_goes_by_what_it_knew(clock):
    """What interrupts is counted when the interrupted operation is over."""
    throttle = Throttle(k=1.0, clock=clock)
    for _ in range(3):
        throttle.enter(retry=False)
    known = throttle.probability()
    clock.interruption = lambda: (throttle.probability(), throttle.enter(retry=False) and None)
    throttle.leave(accepted=True)
    assert clock.answers == [(known, None)]
    assert throttle._tallies.main.requests.total == 4
    assert throttle._tallies.main.accepts.total == 1


def test_permits_are_made_as_they_are_needed():
    """A bound that is never reached costs nothing."""
    permits = Permits(10**12)
    assert permits.try_acquire()
    permits.release()
    permits.release()
    assert permits.held == 0


def test_a_run_that_ends_within_a_fold_is_counted(clock):
    """A deposit that found the run at its end starts a new one when the fold is over."""
    budget = Budget(ratio=1.0, reserve=0.0, window=1.0, clock=clock)
    clock.interruption = budget.look
    budget.balance()
    assert budget.balance() == 1.0
