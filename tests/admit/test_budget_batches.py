"""Deposits of decorated functions: lock-free, mostly without reading the clock, and none is lost."""

import gc
import tracemalloc
from itertools import repeat
from operator import length_hint

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abate import Budget, ConcurrencyLimit, Policy, TokenBucket
from abate.admit.budget_state import MAX_INSTANTS, MAX_UNTIMED, MIN_BATCH
from abate.admit.sliding_window import SLOTS
from abate.clock import ever_used
from abate.testing import VirtualClock


def deposit_like_a_wrapper(state):
    """Deposit as decorated functions do: take an item of the batch, or read the clock if there is none."""
    for _ in state.batch:
        return
    state.deposit_and_start_batch()


def stream(clock, state, pauses):
    """Deposit after each of these pauses; return the slots of the deposits, in a window of one second per slot."""
    slots = []
    for pause in pauses:
        clock.advance(pause)
        deposit_like_a_wrapper(state)
        slots.append(int(clock.now()))
    return slots


def busy_slot(clock, state):
    """Make 403 deposits now: 64 by their instants, the others in batches of 16, the last of which is used up."""
    stream(clock, state, [0.0] * (64 + 16 + 19 * 17))
    assert length_hint(state.batch) == 0


def counted(slots, clock, early=0):
    """Return how many of these slots are in the window, if each were `earlier` slots older."""
    return sum(slot - early > int(clock.now()) - SLOTS for slot in slots)


@settings(deadline=None, max_examples=30)
@given(per_slot=st.integers(1, 300), slots=st.floats(0.5, 20), later=st.floats(0, SLOTS))
def test_a_steady_stream_of_decorated_calls_is_counted_within_a_slot(per_slot, slots, later):
    """At any rate, every deposit counts until its slot, or the slot before, leaves the window."""
    clock = VirtualClock()
    budget = Budget(ratio=1, reserve=0, window=SLOTS, clock=clock)
    state = budget.states.main
    made = stream(clock, state, [1 / per_slot] * int(per_slot * slots))
    state.deposit_and_start_batch()  # while the stream continues, the clock is read again within the slot
    made.append(int(clock.now()))
    clock.advance(later)
    assert counted(made, clock, 1) <= budget.balance() <= counted(made, clock)


@settings(deadline=None, max_examples=30)
@given(
    per_slot=st.integers(1, 300),
    slots=st.floats(0.5, 5),
    gaps=st.lists(st.floats(0, 30), max_size=50),
    later=st.floats(0, SLOTS),
)
def test_when_a_stream_stops_at_most_a_quarter_of_a_slot_counts_as_older(per_slot, slots, gaps, later):
    """Deposits that read no clock count as older than they are, never as younger, and the rest within a slot."""
    clock = VirtualClock()
    budget = Budget(ratio=1, reserve=0, window=SLOTS, clock=clock)
    made = stream(clock, budget.states.main, [1 / per_slot] * int(per_slot * slots) + gaps)
    clock.advance(later)
    older = (per_slot + 1 + len(gaps)) // 4
    assert counted(made, clock, 1) - older <= budget.balance() <= counted(made, clock)


def test_a_batch_is_bounded():
    """At most a thousand deposits go by without reading the clock, also after a slot of many thousands."""
    clock = VirtualClock()
    budget = Budget(ratio=1, reserve=0, window=SLOTS, clock=clock)
    state = budget.states.main
    stream(clock, state, [0.0] * (80 + 17 * 290))  # the last batch is used up
    clock.advance(1.0)
    deposit_like_a_wrapper(state)
    assert length_hint(state.batch) == MAX_UNTIMED == 1000
    clock.advance(500.0)
    stream(clock, state, [0.0] * (MAX_UNTIMED + 7))
    assert budget.balance() == 7


def test_after_a_pause_every_deposit_reads_the_clock():
    """A busy slot says nothing about one that comes after a pause."""
    clock = VirtualClock()
    budget = Budget(ratio=1, reserve=0, window=SLOTS, clock=clock)
    state = budget.states.main
    busy_slot(clock, state)
    clock.advance(5.0)
    deposit_like_a_wrapper(state)
    assert (length_hint(state.batch), state.batch_target) == (0, 0)


def test_a_slot_that_becomes_busy_has_batches_at_once():
    """They are a quarter of what the slot has counted, so that the next slot's first look at the clock is near."""
    clock = VirtualClock()
    budget = Budget(ratio=1, reserve=0, window=SLOTS, clock=clock)
    state = budget.states.main
    stream(clock, state, [0.0] * 4 * MIN_BATCH)
    assert (state.batch_target, state.instants) == (MIN_BATCH, [])
    assert budget.balance() == 4 * MIN_BATCH


@pytest.mark.parametrize("late", [0.0, 1.0, SLOTS - 1.0, SLOTS, 1000.0])
def test_rare_deposits_count_when_they_were_made(late):
    """However late they are counted, and one that was made after the clock was read counts as now."""
    clock = VirtualClock()
    budget = Budget(ratio=1, reserve=0, window=SLOTS, clock=clock)
    for _ in range(3):
        budget.deposit()
        clock.advance(1.0)
    budget.states.main.instants.append(clock.now() + late + 5.0)
    clock.advance(late)
    slots = [0, 1, 2]
    assert budget.balance() == counted(slots, clock) + 1
    assert (budget.states.main.instants, budget.states.main.earned) == ([], 4)


def test_uncounted_instants_are_bounded():
    """Nobody withdraws for long: a few dozen instants are kept."""
    clock = VirtualClock()
    budget = Budget(ratio=1, reserve=0, window=SLOTS, clock=clock)
    for _ in range(1000):
        budget.deposit()
        clock.advance(0.5)
        assert len(budget.states.main.instants) <= MAX_INSTANTS
    assert budget.balance() == 2 * SLOTS - 2


def test_disowned_deposits_cannot_be_withdrawn():
    """Entered deposits and those of an unfinished batch are removed; withdrawals stay, and later deposits count."""
    clock = VirtualClock()
    budget = Budget(ratio=1, reserve=1, window=SLOTS, clock=clock)
    state = budget.states.main
    stream(clock, state, [0.01] * 110)
    assert length_hint(state.batch), "it is in the middle of a run"
    assert [budget.try_withdraw() for _ in range(3)] == [True] * 3
    earned = state.earned
    stream(clock, state, [0.0] * 3)
    state.forget_deposits()
    assert state.earned == earned + 3, "what was disowned has been counted"
    assert (budget.balance(), length_hint(state.batch)) == (SLOTS - 3.0, 0)
    stream(clock, state, [0.02] * 10)
    assert budget.balance() == SLOTS + 7.0
    assert sum(budget.try_withdraw() for _ in range(100)) == SLOTS + 7


def test_reading_the_balance_does_not_shrink_batches():
    """After a slot of 403, a quarter of them go by without reading the clock, although folds come in between."""
    clock = VirtualClock()
    budget = Budget(ratio=1, reserve=0, window=SLOTS, clock=clock)
    state = budget.states.main
    busy_slot(clock, state)
    clock.advance(1.0)
    for looked in range(1, 4):
        deposit_like_a_wrapper(state)
        assert length_hint(state.batch) == 100
        stream(clock, state, [0.0] * 100)
        assert budget.balance() == 403 + 101 * looked


def test_a_batch_begun_by_another_thread_continues():
    """Two threads find the batch at its end: the second does not replace the batch that the first has begun."""
    budget = Budget(ratio=1, reserve=0, window=SLOTS, clock=VirtualClock())
    state = budget.states.main
    state.batch_target = 10  # as after a busy slot
    state.deposit_and_start_batch()
    run = state.batch
    for _ in range(3):
        deposit_like_a_wrapper(state)
    state.deposit_and_start_batch()
    assert state.batch is run
    assert length_hint(run) == 7
    assert budget.balance() == 5


class Untouchable:
    """A lock that fails the test when it is taken."""

    def __enter__(self):
        raise AssertionError("the lock was taken")

    def __exit__(self, *error):
        raise NotImplementedError


@pytest.mark.parametrize(
    "operation",
    [Budget.balance, Budget.try_withdraw, Budget.refund],
    ids=lambda operation: operation.__name__,
)
def test_within_a_slot_neither_a_deposit_nor_a_withdrawal_takes_the_lock(operation):
    """Once a slot is open, both work without the lock."""
    clock = VirtualClock()
    budget = Budget(ratio=1, reserve=5, window=SLOTS, clock=clock)
    state = budget.states.main
    lock = state.section.lock
    for _ in range(3):
        clock.advance(1.0)
        operation(budget)
        assert clock.now() < state.end
        state.section.lock = Untouchable()
        budget.deposit()
        deposit_like_a_wrapper(state)
        assert budget.try_withdraw()
        state.section.lock = lock


def test_who_has_just_looked_at_the_clock_spares_the_budget_a_look():
    """A withdrawal that is told the time does not ask for it."""
    looks = []
    budget = Budget(ratio=0, reserve=5, window=SLOTS, clock=lambda: looks.append(1) or 0.5)
    looks.clear()
    assert budget.try_withdraw(0.6)
    assert looks == []
    assert budget.try_withdraw()
    assert looks == [1]


@pytest.fixture
def no_virtual_time_yet():
    """As if no virtual clock had been entered in this process."""
    before, ever_used.virtual = ever_used.virtual, False
    yield
    ever_used.virtual = before


def test_decorated_calls_deposit_in_real_time(no_virtual_time_yet):
    """Each success of a decorated function deposits once, whether or not it reads the clock."""
    budget = Budget(ratio=1, reserve=0, window=86400)
    work = Policy(on=OSError, budget=budget)(int)
    for _ in range(10):
        work()
    budget.states.main.batch_target = 4  # as after a busy slot
    for _ in range(10):
        work()
    assert budget.balance() == 20


def test_the_first_virtual_clock_ends_the_batches(no_virtual_time_yet):
    """From then on every decorated call looks up its clock; earlier deposits count."""
    others = ConcurrencyLimit(1), TokenBucket(1.0)  # these have no batches, and are left alone
    budget = Budget(ratio=1, reserve=0, window=86400)
    work = Policy(on=OSError, budget=budget)(int)
    budget.states.main.batch_target = 100
    for _ in range(10):
        work()
    assert length_hint(budget.states.main.batch) == 91
    with VirtualClock():
        work()
        assert budget.balance() == 1
    work()
    assert budget.balance() == 11
    assert all(gate.enter(retry=False) is None for gate in others)


def test_a_rare_deposit_reads_the_clock_each_time():
    """As long as a batch would be smaller than `MIN_BATCH`, each counts exactly in its own slot."""
    clock = VirtualClock()
    budget = Budget(ratio=1, reserve=0, window=SLOTS, clock=clock)
    rare = 4 * MIN_BATCH - 1
    for _ in range(SLOTS):
        for _ in range(rare):
            deposit_like_a_wrapper(budget.states.main)
        clock.advance(1.0)
    for left in range(SLOTS - 1, 0, -1):
        assert budget.balance() == rare * left
        clock.advance(1.0)


def test_a_busy_stream_reads_the_clock_about_four_times_a_slot():
    """A hundred deposits per slot read the clock at most eight times a slot, and at least twice."""
    clock, looks = VirtualClock(), []

    def now():
        looks.append(1)
        return clock.now()

    budget = Budget(ratio=1, reserve=0, window=SLOTS, clock=now)
    for _ in range(100 * 20):
        clock.advance(0.01)
        deposit_like_a_wrapper(budget.states.main)
    looks.clear()
    for _ in range(100 * 20):
        clock.advance(0.01)
        deposit_like_a_wrapper(budget.states.main)
    assert 2 * 20 <= len(looks) <= 8 * 20


def busy(clock):
    """Return a budget with a million deposits in its window, at a growing rate."""
    budget = Budget(ratio=0.2, reserve=10, window=10, clock=clock)
    state = budget.states.main
    for _ in repeat(None, 1_000_000):
        for _ in state.batch:
            break
        else:
            clock.advance(0.002)
            state.deposit_and_start_batch()
    budget.try_withdraw()
    return budget


def test_a_million_deposits_take_no_more_memory_than_one():
    """A budget with deposits in all of its window takes less than 2.5 KB."""
    sizes = []
    for _ in range(3):  # objects that are created once per process do not count
        clock = VirtualClock()
        gc.collect()
        tracemalloc.start()
        try:
            budget = busy(clock)
            gc.collect()
            # of abate alone: a collector has lists of its own, which are longer where there is no GIL
            held = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/abate/*")])
            sizes.append(sum(trace.size for trace in held.traces))
        finally:
            tracemalloc.stop()
        assert clock.now() < 10.0
        assert budget.balance() == 10 * 10 + 0.2 * 1_000_000 - 1
    assert min(sizes) <= 2500


def test_deposits_take_their_numbers_from_the_iterator_they_are_given():
    """A forked child learns so of its first deposit; given back their own numbers, they are counted as before."""
    budget = Budget(ratio=1.0, reserve=0.0)
    state, asked = budget.states.main, []

    def numbers():
        for number in state.deposit_numbers:
            asked.append(number)
            yield number

    state.number_deposits_by(numbers())
    budget.deposit()
    assert asked == [0]
    state.number_deposits_by(state.deposit_numbers)
    budget.deposit()
    assert (asked, budget.balance()) == ([0], 2.0)
