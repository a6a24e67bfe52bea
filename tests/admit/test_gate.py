"""Gates in a row: in order, all or nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import Budget, Permits, Throttle, TokenBucket
from abate.admit import All, Gate
from abate.testing import VirtualClock


class Counted:
    """A real gate, and how many attempts it must be holding."""

    def __init__(self, make, room, charges_first=True):
        self.gate = make(room)
        self.room, self.charges_first = room, charges_first
        self.taken = 0

    def admits(self, retry):
        return self.taken < self.room or not (retry or self.charges_first)

    def count(self, retry):
        if retry or self.charges_first:
            self.taken += 1


def gates(clock):
    """Lists of gates of every kind, each with room for a few attempts."""
    room = st.integers(1, 4)
    kinds = st.one_of(
        st.builds(Counted, st.just(Permits), room),
        st.builds(Counted, st.just(lambda burst: TokenBucket(1.0, burst, clock)), room),
        st.builds(Counted, st.just(lambda reserve: Budget(0.0, reserve, 1.0, clock=clock)), room, st.just(False)),
    )
    return st.lists(kinds, min_size=2, max_size=5)


def joined(parts):
    """All of them by `&`."""
    whole = parts[0].gate
    for part in parts[1:]:
        whole = whole & part.gate
    return whole


@settings(deadline=None)
@given(data=st.data(), steps=st.lists(st.tuples(st.booleans(), st.sampled_from(["keep", "refund"])), max_size=12))
def test_a_row_admits_what_all_admit_and_keeps_nothing_of_what_it_refuses(data, steps):
    """The first gate without room refuses by name, and those before it are as if they had not been asked."""
    parts = data.draw(gates(VirtualClock()))
    row = joined(parts)
    for retry, then in steps:
        full = [part for part in parts if not part.admits(retry)]
        assert row.enter(retry) is (full[0].gate if full else None)
        if full:
            continue
        if then == "refund" and retry:  # a first attempt takes nothing from a budget, and a row can't know which it was
            row.refund()
        else:
            for part in parts:
                part.count(retry)
    for part in parts:
        left = 0
        while part.gate.enter(retry=True) is None:
            left += 1
        assert left == max(0, part.room - part.taken)


def test_a_throttle_in_a_row_is_refunded_too():
    """An attempt that a later gate refused does not count as requested; one that the throttle refused does."""
    throttle, permits = Throttle(clock=VirtualClock()), Permits(1)
    row = throttle & permits
    with permits:
        assert row.enter(retry=False) is permits
    assert throttle.probability() == 0.0
    assert row.enter(retry=False) is None
    assert throttle.probability() == 1 / 2


def test_a_refused_first_attempt_does_not_return_somebody_elses_retry():
    """A budget in a row gives nothing back for a first attempt, which was free, when a later gate refuses it."""
    budget, permits = Budget(0, 2, 1, clock=VirtualClock()), Permits(1)
    row = budget & permits
    assert row.enter(retry=True) is None
    assert row.enter(retry=False) is permits
    assert budget.balance() == 1.0
    assert row.enter(retry=True) is permits
    assert budget.balance() == 1.0


class Noted(Gate):
    """A gate of a user's own, that notes what it is asked."""

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
    """The last one in is the first one out."""
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


def test_those_before_the_one_that_refuses_are_refunded_in_reverse():
    """And those after it are not asked."""
    notes = []
    closed = Noted("c", notes, closed=True)
    row = Noted("a", notes) & Noted("b", notes) & closed & Noted("d", notes)
    assert row.enter(retry=True) is closed
    assert notes == ["enter a", "enter b", "enter c", "refund b", "refund a"]


@settings(deadline=None)
@given(names=st.lists(st.text("abc", min_size=1), min_size=2, max_size=6), data=st.data())
def test_rows_are_flat_however_they_are_joined(names, data):
    """`a & (b & c)` and `(a & b) & c` are the same three gates, and their names are joined."""
    singles = [Permits(1, name=name) for name in names]
    rows = list(singles)
    while len(rows) > 1:
        place = data.draw(st.integers(0, len(rows) - 2))
        rows[place : place + 2] = [rows[place] & rows[place + 1]]
    assert isinstance(rows[0], All)
    assert list(rows[0].gates) == singles
    assert rows[0].name == " & ".join(names)


@pytest.mark.parametrize("other", [None, 3, "gate", Permits])
def test_a_gate_joins_with_gates_only(other):
    """Anything else may have its own idea of `&`, and is a TypeError if it has none."""
    assert Permits(1).__and__(other) is NotImplemented
    with pytest.raises(TypeError):
        Permits(1) & other
    with pytest.raises(TypeError):
        other & Permits(1)


def test_what_is_no_gate_may_answer_for_itself():
    """`&` is left to the other side where that knows what to do."""

    class Willing:
        def __rand__(self, gate):
            return gate, "mine"

    permits = Permits(1)
    assert permits & Willing() == (permits, "mine")


def test_a_gate_of_ones_own_needs_no_more_than_enter():
    """What it does not say for itself does nothing, and its refusal has a text."""

    class Closed(Gate):
        name = "closed"

        def enter(self, retry):
            return self

    gate, permits = Closed(), Permits(1)
    row = permits & gate
    assert row.enter(retry=False) is gate
    assert permits.held == 0
    gate.leave(accepted=True)
    gate.undo(retry=True)
    assert gate.refusal() == "not admitted"
    with pytest.raises(abate.Refused, match="closed refused: not admitted"):
        abate.Policy(on=OSError, gate=row).call(int)


def test_a_gate_must_say_what_it_admits():
    """The base has no opinion."""
    with pytest.raises(NotImplementedError):
        Gate().enter(retry=False)


def test_a_policy_uses_a_row_as_one_gate():
    """Its attempts hold a permit each and take a token each; the permits are all back in the end."""
    with VirtualClock():
        permits, bucket = Permits(1), TokenBucket(1.0, burst=2)
        policy = abate.Policy(on=OSError, gate=permits & bucket, backoff=[0.1])
        assert policy.call(abate.testing.Script(OSError(), "fine")) == "fine"
        assert permits.held == 0
        assert not bucket.try_acquire()
