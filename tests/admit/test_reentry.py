"""Gates that are re-entered in the middle of their own operations, step by step (see tests/test_reentry.py)."""

import pytest

from abate import AdaptiveThrottle, Budget, CircuitBreaker, ConcurrencyLimit, TokenBucket
from abate.admit.breaker import Entry
from abate.events import BreakerOpened


class Interrupting:
    """A clock whose next read is interrupted, after a number of others."""

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


class InterruptedUnits:
    """The terms of a ledger, whose reading is interrupted once."""

    def __init__(self, terms, interruption):
        self._units, self._interruption = terms, interruption
        self.answers = []

    def __getattr__(self, name):
        return getattr(self._units, name)

    def balance(self, deposits, withdrawals):
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            self.answers.append(interruption())
        return self._units.balance(deposits, withdrawals)


class InterruptedLook(list):
    """A list whose truth test number `at` is interrupted, after it has answered."""

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
    """It draws a number like any other."""
    budget = budget_of(clock, 3)
    clock.at, clock.interruption = slot, budget.try_withdraw
    budget.balance()
    assert clock.answers == [True]
    assert budget.balance() == 2.0


@pytest.mark.parametrize(("left", "granted"), [(1, False), (2, True), (3, True)])
def test_a_withdrawal_in_a_fold_is_granted_if_it_was_prepaid(clock, left, granted):
    """Otherwise it is refused, and nothing is lost."""
    budget = budget_of(clock, left)
    state = budget.states.main
    terms = state._units = InterruptedUnits(state._units, budget.try_withdraw)
    budget.balance()
    assert terms.answers == [granted]
    assert budget.balance() == left - granted
    assert [budget.try_withdraw() for _ in range(3)] == [True] * (left - granted) + [False] * (3 - left + granted)


@pytest.mark.parametrize("attribute", ["_reentrant_granted", "_reentrant_refused"])
@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_reentrant_withdrawal_counts_once_at_any_point(clock, attribute, at, left):
    """Also between the last check and the prepaid numbers that follow."""
    budget = budget_of(clock, left)
    state = budget.states.main
    looked = InterruptedLook(at, budget.try_withdraw)
    setattr(state, attribute, looked)
    budget.balance()
    granted = sum(looked.answers)
    assert sum(budget.try_withdraw() for _ in range(5)) == left - granted
    assert budget.balance() == 0.0


def test_a_deposit_in_a_fold_counts_once(clock):
    """It does not fold again, and the deposit is there afterwards."""
    budget = Budget(ratio=1.0, reserve=0.0, window=1.0, clock=clock)
    clock.at, clock.interruption = 0.53, budget.deposit
    budget.balance()
    assert budget.balance() == 1.0


def test_reading_the_balance_in_a_fold_returns_the_last_known_value(clock):
    """A gauge may be read by the garbage collector or a signal handler."""
    budget = budget_of(clock, 3)
    clock.interruption = lambda: (budget.balance(), budget.share())
    budget.try_withdraw()
    budget.balance()
    assert clock.answers == [(3.0, 1.0)] or clock.answers == [(2.0, 2 / 3)]


def test_a_refund_in_a_fold_is_not_lost(clock):
    """It is applied after the fold."""
    budget = budget_of(clock, 3)
    assert budget.try_withdraw()
    clock.interruption = budget.refund
    budget.balance()
    assert budget.balance() == 3.0


def bucket_of(clock, tokens, burst=10):
    bucket = TokenBucket(rate=1.0, burst=burst, clock=clock)
    bucket._states.main.tokens = float(tokens)
    return bucket


@pytest.mark.parametrize(("tokens", "taken"), [(5, True), (4, False)])
def test_a_reentrant_take_leaves_the_tokens_of_the_interrupted_one(clock, tokens, taken):
    """It gets a token only if both can be served."""
    bucket = bucket_of(clock, tokens)
    clock.interruption = lambda: bucket.try_acquire(3)
    assert bucket.try_acquire(2)
    assert clock.answers == [taken]
    level = bucket._states.main
    level.charge_owed()
    assert level.tokens == tokens - 2 - 3 * taken


def test_a_reentrant_reservation_waits_for_both(clock):
    """Its instant includes the tokens of the interrupted reservation."""
    bucket = bucket_of(clock, 1)
    level = bucket._states.main
    clock.interruption = lambda: bucket._reserve(level, 2, None)
    first = bucket._reserve(level, 1, None)
    (second,) = clock.answers
    assert (first.due, second.due) == (2.5, 2.5)
    assert list(level.reservations) == [first, second]
    level.charge_owed()
    assert level.tokens == -2.0


def test_a_reentrant_reservation_with_enough_tokens_does_not_wait(clock):
    """With tokens for both, neither waits."""
    bucket = bucket_of(clock, 5)
    level = bucket._states.main
    clock.interruption = lambda: bucket._reserve(level, 2, None)
    assert bucket._reserve(level, 1, None).due == clock.answers[0].due == 0.5
    assert not level.reservations


def test_a_reentrant_reservation_keeps_its_timeout(clock):
    """It is refused, and takes nothing."""
    bucket = bucket_of(clock, 1)

    def impatient():
        with pytest.raises(TimeoutError, match="the wait is 2 s"):
            bucket._reserve(bucket._states.main, 2, 1.0)

    clock.interruption = impatient
    assert bucket.try_acquire()
    assert bucket._states.main.tokens == 0.0


def test_a_reentrant_attempt_is_decided_by_the_last_known_counts(clock):
    """It is counted when the interrupted operation is over."""
    throttle = AdaptiveThrottle(k=1.0, clock=clock)
    for _ in range(3):
        throttle.enter(retry=False)
    known = throttle.probability()
    clock.interruption = lambda: (throttle.probability(), throttle.enter(retry=False) and None)
    throttle.leave(accepted=True)
    assert clock.answers == [(known, None)]
    assert throttle._states.main.requests.total == 4
    assert throttle._states.main.accepts.total == 1


def test_permits_are_allocated_on_demand():
    """A limit that is never reached takes no memory."""
    permits = ConcurrencyLimit(10**12)
    assert permits.try_acquire()
    permits.release()
    permits.release()
    assert permits.held == 0


def test_a_batch_that_ends_within_a_fold_is_counted(clock):
    """A deposit that found the batch at its end starts a new one after the fold."""
    budget = Budget(ratio=1.0, reserve=0.0, window=1.0, clock=clock)
    clock.interruption = budget.deposit_and_start_batch
    budget.balance()
    assert budget.balance() == 1.0


# -- the circuit breaker


def test_a_closed_breaker_admits_a_reentrant_attempt(clock):
    """It is counted after the interrupted operation: as one from before the trip, if that has tripped the breaker."""
    breaker = CircuitBreaker(min_calls=1, pause=10.0, clock=clock)
    breaker.enter(retry=False)
    clock.interruption = lambda: breaker.enter(retry=False)
    breaker.failed(accepted=False)
    assert clock.answers == [None]
    clock.at = 100.0
    breaker.failed(accepted=False)  # the re-entrant one
    assert breaker.seconds_until_half_open() == 0.0


def test_a_trip_during_the_record_of_a_message_emits_its_event(clock, monkeypatch):
    """The re-entrant attempt emitted none, so the interrupted operation does."""
    told = []
    monkeypatch.setattr(CircuitBreaker, "_report_trip", lambda self, circuit: told.append(circuit.take_unreported()))
    breaker = CircuitBreaker(min_calls=2, pause=10.0, clock=clock)
    breaker.enter(retry=False)
    clock.interruption = lambda: (breaker.enter(retry=False), breaker.failed(accepted=False))
    assert breaker.record(False) == 0.0
    assert told == [pytest.approx(10.0, abs=5.0)]
    assert breaker.allowed() == 0


def test_a_trip_is_reported_once(abate_events):
    """Two threads may see that there is something to report."""
    breaker = CircuitBreaker(min_calls=1, pause=10.0)
    breaker.enter(retry=False)
    breaker.failed(accepted=False)
    breaker._report_trip(breaker._circuits.here())
    assert len(abate_events.of(BreakerOpened)) == 1


def test_a_half_open_breaker_refuses_a_reentrant_attempt(clock):
    """The interrupted operation may be the trial."""
    breaker = CircuitBreaker(min_calls=1, pause=10.0, clock=clock)
    breaker.record(False)
    clock.at = 100.0
    clock.interruption = lambda: breaker.enter(retry=False)
    assert breaker.enter(retry=False) is None
    assert clock.answers == [breaker]


def test_a_reentrant_outcome_of_a_message_is_counted_afterwards(clock):
    """It trips the breaker then, and its consumer gets no pause."""
    breaker = CircuitBreaker(min_calls=2, pause=10.0, clock=clock)
    breaker.record(False)
    clock.interruption = lambda: breaker.record(False)
    breaker.enter(retry=False)
    assert clock.answers == [0.0]
    assert breaker.allowed() == 0
    clock.interruption = lambda: breaker.record(True)
    breaker.enter(retry=False)
    assert clock.answers == [0.0, 0.0]
    assert breaker.allowed() == 0


def test_an_attempt_interrupted_while_entering_has_not_entered(clock):
    """Whether it was counted already or would be later."""

    class Broken(CircuitBreaker):
        def _report_trip(self, circuit):
            raise KeyboardInterrupt

    breaker = Broken(min_calls=1, clock=clock)
    circuit = breaker._circuits.main
    circuit.unreported_seconds = 1.0
    with pytest.raises(KeyboardInterrupt):
        breaker.enter(retry=False)
    assert circuit._in_flight == 0
    entry = Entry()
    circuit.break_off(entry)
    circuit._count_deferred(entry)
    assert circuit._in_flight == 0
