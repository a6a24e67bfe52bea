"""Combined gates: entered in order, all or none."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import AdaptiveThrottle, Budget, ConcurrencyLimit, TokenBucket
from abate.admit import All, Gate
from abate.call.hedge_race import Race
from abate.testing import VirtualClock


class Counted:
    """A real gate, and how many attempts it must be holding."""

    def __init__(self, make, capacity, charges_first=True):
        self.gate = make(capacity)
        self.capacity, self.charges_first = capacity, charges_first
        self.taken = 0

    def admits(self, retry):
        return self.taken < self.capacity or not (retry or self.charges_first)

    def count(self, retry):
        if retry or self.charges_first:
            self.taken += 1


def gates(clock):
    """Lists of gates of every kind, each with capacity for a few attempts."""
    capacity = st.integers(1, 4)
    kinds = st.one_of(
        st.builds(Counted, st.just(ConcurrencyLimit), capacity),
        st.builds(Counted, st.just(lambda burst: TokenBucket(1.0, burst, clock=clock)), capacity),
        st.builds(Counted, st.just(lambda reserve: Budget(0.0, reserve, 1.0, clock=clock)), capacity, st.just(False)),
    )
    return st.lists(kinds, min_size=2, max_size=5)


def joined(parts):
    """Combine all of them by `&`."""
    whole = parts[0].gate
    for part in parts[1:]:
        whole = whole & part.gate
    return whole


@settings(deadline=None)
@given(data=st.data(), steps=st.lists(st.tuples(st.booleans(), st.sampled_from(["keep", "refund"])), max_size=12))
def test_combined_gates_admit_what_all_admit_and_refund_refused_attempts(data, steps):
    """The first full gate refuses by name, and the gates before it are refunded."""
    parts = data.draw(gates(VirtualClock()))
    row = joined(parts)
    for retry, then in steps:
        full = [part for part in parts if not part.admits(retry)]
        assert row.enter(retry) is (full[0].gate if full else None)
        if full:
            continue
        if (
            then == "refund" and retry
        ):  # a first attempt takes nothing from a budget, and combined gates do not know which it was
            row.refund()
        else:
            for part in parts:
                part.count(retry)
    for part in parts:
        left = 0
        while part.gate.enter(retry=True) is None:
            left += 1
        assert left == max(0, part.capacity - part.taken)


def test_a_combined_throttle_is_refunded():
    """An attempt refused by a later gate does not count as a request; one that the throttle refused does."""
    throttle, permits = AdaptiveThrottle(clock=VirtualClock()), ConcurrencyLimit(1)
    row = throttle & permits
    with permits:
        assert row.enter(retry=False) is permits
    assert throttle.probability() == 0.0
    assert row.enter(retry=False) is None
    assert throttle.probability() == 1 / 2


def test_a_refused_first_attempt_does_not_refund_the_retry_of_another_call():
    """A combined budget refunds nothing for a first attempt, which was free."""
    budget, permits = Budget(0, 2, 1, clock=VirtualClock()), ConcurrencyLimit(1)
    row = budget & permits
    assert row.enter(retry=True) is None
    assert row.enter(retry=False) is permits
    assert budget.balance() == 1.0
    assert row.enter(retry=True) is permits
    assert budget.balance() == 1.0


class Noted(Gate):
    """A user-defined gate that records its calls."""

    def __init__(self, name, notes, closed=False):
        self.name, self.notes, self.closed = name, notes, closed

    def enter(self, retry):
        self.notes.append(f"enter {self.name}")
        return self if self.closed else None

    def leave(self, accepted):
        self.notes.append(f"leave {self.name} {accepted}")

    def refund(self):
        self.notes.append(f"refund {self.name}")


def test_gates_are_entered_in_order_and_left_in_reverse():
    """The last gate entered is the first one left."""
    notes = []
    row = Noted("a", notes) & Noted("b", notes) & Noted("c", notes)
    assert row.enter(retry=False) is None
    row.leave(accepted=True)
    row.refund()
    assert notes == [
        *("enter a", "enter b", "enter c"),
        *("leave c True", "leave b True", "leave a True"),
        *("refund c", "refund b", "refund a"),
    ]


def test_gates_before_the_refusing_one_are_refunded_in_reverse():
    """The gates after it are not entered."""
    notes = []
    closed = Noted("c", notes, closed=True)
    row = Noted("a", notes) & Noted("b", notes) & closed & Noted("d", notes)
    assert row.enter(retry=True) is closed
    assert notes == ["enter a", "enter b", "enter c", "refund b", "refund a"]


@settings(deadline=None)
@given(names=st.lists(st.text("abc", min_size=1), min_size=2, max_size=6), data=st.data())
def test_combinations_are_flat(names, data):
    """`a & (b & c)` and `(a & b) & c` are the same three gates, and their names are joined."""
    singles = [ConcurrencyLimit(1, name=name) for name in names]
    rows = list(singles)
    while len(rows) > 1:
        place = data.draw(st.integers(0, len(rows) - 2))
        rows[place : place + 2] = [rows[place] & rows[place + 1]]
    assert isinstance(rows[0], All)
    assert list(rows[0].gates) == singles
    assert rows[0].name == " & ".join(names)


@pytest.mark.parametrize("other", [None, 3, "gate", ConcurrencyLimit])
def test_a_gate_combines_with_gates_only(other):
    """Any other operand raises TypeError unless it implements `&` itself."""
    assert ConcurrencyLimit(1).__and__(other) is NotImplemented
    with pytest.raises(TypeError):
        ConcurrencyLimit(1) & other
    with pytest.raises(TypeError):
        other & ConcurrencyLimit(1)


def test_the_other_operand_may_implement_the_operator():
    """`&` returns NotImplemented, so the other operand's method is used."""

    class Willing:
        def __rand__(self, gate):
            return gate, "mine"

    permits = ConcurrencyLimit(1)
    assert permits & Willing() == (permits, "mine")


def test_a_user_defined_gate_needs_only_enter():
    """The other methods do nothing by default, and a refusal has a default text."""

    class Closed(Gate):
        name = "closed"

        def enter(self, retry):
            return self

    gate, permits = Closed(), ConcurrencyLimit(1)
    row = permits & gate
    assert row.enter(retry=False) is gate
    assert permits.held == 0
    gate.leave(accepted=True)
    gate.undo(retry=True)
    assert gate.refusal() == "not admitted"
    with pytest.raises(abate.Refused, match="closed refused: not admitted"):
        abate.Policy(on=OSError, gate=row).call(int)


def test_the_base_gate_does_not_implement_enter():
    """Calling it raises NotImplementedError."""
    with pytest.raises(NotImplementedError):
        Gate().enter(retry=False)


def test_a_policy_uses_combined_gates_as_one():
    """Each attempt holds a permit and takes a token; all permits are free in the end."""
    with VirtualClock():
        permits, bucket = ConcurrencyLimit(1), TokenBucket(1.0, burst=2)
        policy = abate.Policy(on=OSError, gate=permits & bucket, backoff=[0.1])
        assert policy.call(abate.testing.Script(OSError(), "fine")) == "fine"
        assert permits.held == 0
        assert not bucket.try_acquire()


# -- gates that raise


class Broken(Gate):
    """A user-defined gate with a bug in one of its methods."""

    def __init__(self, method, error=RuntimeError):
        self.name = "broken"
        self.method, self.error = method, error

    def _do(self, method):
        if method == self.method:
            raise self.error(method)

    def enter(self, retry):
        self._do("enter")

    def leave(self, accepted):
        self._do("leave")

    def refund(self):
        self._do("refund")


METHODS = {
    "enter": lambda row: row.enter(True),
    "leave": lambda row: (row.enter(True), row.leave(True)),
    "refund": lambda row: (row.enter(True), row.refund()),
    "undo": lambda row: (row.enter(True), row.undo(True)),
}


@given(st.sampled_from(sorted(METHODS)), st.integers(0, 3), st.sampled_from([RuntimeError, KeyboardInterrupt]))
def test_a_gate_that_raises_leaves_the_others_consistent(method, place, error):
    """At any position: the gates before it are refunded, those after it are still left, and its error propagates."""
    permits = [ConcurrencyLimit(1, name=f"permits {number}") for number in range(3)]
    gates = [*permits[:place], Broken("refund" if method == "undo" else method, error), *permits[place:]]
    with pytest.raises(error):
        METHODS[method](All(tuple(gates)))
    assert [each.held for each in permits] == [0, 0, 0]


def test_undoing_combined_gates_charges_nothing_for_first_attempts():
    """A budget charges nothing for a first attempt, and refunds nothing for it."""
    clock = VirtualClock()
    budget = Budget(0.0, 1.0, 10.0, clock=clock)
    row = ConcurrencyLimit(1) & budget
    row.enter(False)
    before = budget.balance()
    row.undo(False)
    assert budget.balance() == before
    assert row.enter(False) is None


@pytest.mark.parametrize("method", ["enter", "leave"])
@pytest.mark.parametrize("form", ["call", "decorated", "block"])
@pytest.mark.parametrize("outcome", ["fine", OSError])
def test_a_call_with_a_gate_that_raises_releases_everything(method, form, outcome):
    """Earlier concurrency limits and the shelter's permit are free, and the gate's error propagates."""
    permits = ConcurrencyLimit(1)
    with VirtualClock():
        policy = abate.Policy(
            on=OSError, backoff=[0.0], gate=permits & Broken(method), shelter=abate.Shelter(), budget=Budget()
        )
        script = abate.testing.Script(outcome)
        before = policy.budget.balance()
        with pytest.raises(RuntimeError, match=method):
            if form == "call":
                policy.call(script)
            elif form == "decorated":
                policy(script)()
            else:
                for attempt in policy.attempts():
                    with attempt:
                        script()
        assert permits.held == 0
        assert policy.shelter.dispatcher().limiter.in_flight == 0
        assert policy.budget.balance() == before


def test_a_gate_that_raises_does_not_stop_a_cancellation(caplog):
    """A cancelled call ends cancelled; the gate's error is logged, and the other gates are left."""
    permits = ConcurrencyLimit(1)
    policy = abate.Policy(on=OSError, name="orders", gate=permits & Broken("leave"))

    async def main():
        task = asyncio.create_task(policy.acall(asyncio.sleep, 3600.0))
        await asyncio.sleep(0)
        assert permits.held == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert permits.held == 0
    assert "the gate of orders failed when a call was interrupted" in caplog.text


def test_a_hedge_whose_gate_raises_is_refunded():
    """The budget's withdrawal for the second attempt is returned."""
    budget = Budget(0.0, 1.0, 10.0)
    policy = abate.Policy(on=OSError, budget=budget)
    before = budget.balance()
    race = Race(policy.replace(gate=Broken("enter")), abate.Timeouts(), abate.clock.MACHINE)
    with pytest.raises(RuntimeError, match="enter"):
        race.hedge()
    assert budget.balance() == before


def test_a_gate_and_a_predicate_that_both_raise():
    """The gate's error is raised with the predicate's as its context; the other gates are left."""

    def broken(error):
        raise ValueError("a bug")

    permits = ConcurrencyLimit(1)
    with pytest.raises(RuntimeError, match="leave") as caught:
        abate.Policy(on=broken, gate=permits & Broken("leave")).call(abate.testing.Script(OSError()))
    assert isinstance(caught.value.__context__, ValueError)
    assert permits.held == 0
