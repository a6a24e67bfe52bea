"""The shelter's wait queue, against a model that searches a list of all waiters."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from abate.admit.shelter_queue import MAX_STALE, SOON, ShelterQueue, Waiter


class SlowQueue:
    """The rules, as documented, over lists of all waiters in the order in which they were queued."""

    def __init__(self):
        self.fresh, self.late = [], []
        self.last_due, self.moved = -inf, -inf

    def add(self, waiter):
        self.fresh.append(waiter)
        self.last_due = max(self.last_due, soon(waiter))

    def remove(self, waiter):
        (self.fresh if waiter in self.fresh else self.late).remove(waiter)

    def next(self, now, answer_time, interval, catching_up):
        self.moved = now
        for waiter in list(self.fresh):
            if catching_up or soon(waiter) <= now + answer_time:
                self.fresh.remove(waiter)
                self.late.append(waiter)
        first_late, first = min(self.late, key=deadline, default=None), min(self.fresh, key=soon, default=None)
        if first_late is None or first is None:
            return first_late or first
        all_in_time = min(soon(first), self.last_due - len(self.fresh) * interval) > now + answer_time + interval
        return first_late if first_late.deadline < soon(first) and all_in_time else first


def soon(waiter):
    return min(waiter.began + SOON, waiter.deadline)


def deadline(waiter):
    return waiter.deadline


def let_go(shelter_queue, now, **settings):
    """Remove the next waiter from the queue."""
    waiter = shelter_queue.next(now, **settings)
    if waiter is not None:
        assert waiter.answer is None
        shelter_queue.remove(waiter, "in")
    return waiter


class Wakeup:
    """Identifies where a waiter waits."""

    def __init__(self, place):
        self.loop = place


class AgainstAList(RuleBasedStateMachine):
    """Calls arrive, leave and are sent in any order: the same one is next, and none is lost or sent twice."""

    @initialize(capacity=st.sampled_from([1, 3, 1000]), start=st.sampled_from([0.0, -5.0, 1e6]))
    def begin(self, capacity, start):
        self.now, self.shelter_queue, self.model = start, ShelterQueue(capacity), SlowQueue()
        self.inside = []
        self.dues = 0.0

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 0.24, 0.5, 0.79, 1.1, 3.1]))
    def pass_time(self, seconds):
        self.now += seconds

    def come(self, age, patience):
        if self.shelter_queue.full:
            return
        self.dues += 1e-6  # no two are due at the same instant
        waiter = Waiter(self.now - age + self.dues, self.now + patience + self.dues)
        self.shelter_queue.add(waiter)
        self.model.add(waiter)
        self.inside.append(waiter)

    @rule(
        age=st.sampled_from([0.0, 0.0, 0.1, 0.7, 2.0]),
        patience=st.sampled_from([0.3, 1.0, 10.0]),
        times=st.integers(1, 8),
    )
    def call(self, age, patience, times):
        for _ in range(times):
            self.come(age, patience)

    @rule(
        turns=st.sampled_from([1, 1, 1, 5]),
        answer_time=st.sampled_from([0.0, 0.03, 0.5]),
        interval=st.sampled_from([0.0, 0.01, 0.2]),
        catching_up=st.sampled_from([False, False, False, True]),
    )
    def go(self, turns, answer_time, interval, catching_up):
        for _ in range(turns):
            if self.shelter_queue.stale:
                interval = 0.0  # stale entries count like fresh calls
            expected = self.model.next(self.now, answer_time, interval, catching_up)
            waiter = let_go(
                self.shelter_queue, self.now, answer_time=answer_time, interval=interval, catching_up=catching_up
            )
            assert waiter is expected
            if waiter is not None:
                self.inside.remove(waiter)
                self.model.remove(waiter)

    @rule(chance=st.sampled_from([0.0, 0.3, 0.99]))
    def probe(self, chance):
        waiter = self.shelter_queue.probe(self.now, chance)
        if waiter is None:
            assert not self.inside
        else:
            patient = [other for other in self.inside if other.deadline > self.now + SOON] or self.inside
            newest = [other for other in patient if other.began >= self.model.moved]
            assert waiter in newest if newest else waiter.entry == min(other.entry for other in patient)
        self.model.moved = self.now

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), times=st.integers(1, 6))
    def leave(self, data, times):
        for _ in range(min(times, len(self.inside))):
            waiter = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
            self.shelter_queue.remove(waiter, "left")
            assert waiter.answer == "left"
            self.model.remove(waiter)

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), age=st.sampled_from([0.0, 0.5, 2.0]))
    def miss_a_turn(self, data, age):
        """A waiter that was not running at its turn enters again: as any other, and once."""
        waiter = self.inside[data.draw(st.integers(0, len(self.inside) - 1))]
        self.shelter_queue.remove(waiter, "missed")
        self.model.remove(waiter)
        self.now += age
        self.shelter_queue.add(waiter)
        self.model.add(waiter)

    @rule(place=st.sampled_from(["here", "there", None]), age=st.sampled_from([0.0, 2.0]))
    def come_in_a_loop(self, place, age):
        self.come(age, 10.0)
        if self.inside:
            self.inside[-1].wakeup = Wakeup(place)

    @rule(place=st.sampled_from(["here", "there", None]))
    def find(self, place):
        found = self.shelter_queue.waiter_in_loop(place)
        there = [waiter for waiter in self.inside if waiter.wakeup is not None and waiter.wakeup.loop is place]
        assert found in there if there else found is None

    @rule(ahead=st.sampled_from([-1.0, 0.0, 1.0, 10.0]))
    def give_up_hope(self, ahead):
        until = self.now + ahead
        expiring_by = [waiter for waiter in self.inside if waiter.deadline <= until]
        assert sorted(map(id, self.shelter_queue.expiring_by(until))) == sorted(map(id, expiring_by))

    @invariant()
    def everybody_is_counted(self):
        queue = self.shelter_queue
        assert queue.size == len(self.inside) == len(self.model.fresh) + len(self.model.late)
        assert queue.size <= queue.capacity
        assert queue.full == (queue.size == queue.capacity)
        assert len(queue._fresh) + len(queue._late) == queue.size + queue.stale
        assert queue.stale <= max(MAX_STALE, queue.size)

    def teardown(self):
        """In the end every waiter that has not left is sent."""
        for _ in range(len(getattr(self, "inside", []))):
            self.go(1, 0.0, 0.0, False)
        assert not getattr(self, "inside", [])


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)


def fill(shelter_queue, *calls):
    """Add waiters, each given by when its call began and by its deadline."""
    waiters = [Waiter(*call) for call in calls]
    for waiter in waiters:
        shelter_queue.add(waiter)
    return waiters


def order(shelter_queue, waiters, now, **settings):
    """Return the order in which all waiters are sent at one instant, as indices of the list."""
    return [waiters.index(let_go(shelter_queue, now, **settings)) for _ in waiters]


def test_an_empty_queue_has_no_next_waiter():
    """Nothing is found, and a turn has no effect."""
    shelter_queue = ShelterQueue(3)
    assert shelter_queue.next(0.0) is None
    assert shelter_queue.probe(0.0, 0.5) is None
    assert shelter_queue.waiter_in_loop(None) is None
    assert shelter_queue.expiring_by(inf) == []
    assert shelter_queue.size == 0


@given(capacity=st.integers(1, 30), turns=st.integers(0, 30))
def test_the_queue_is_full_at_its_capacity(capacity, turns):
    """Each waiter that is sent makes room for one."""
    shelter_queue = ShelterQueue(capacity)
    for _ in range(capacity):
        assert not shelter_queue.full
        fill(shelter_queue, (0.0, 9.0))
    assert shelter_queue.full
    for _ in range(turns):
        let_go(shelter_queue, 0.0)
    assert shelter_queue.size == max(0, capacity - turns)
    assert shelter_queue.full == (turns == 0)


def test_fresh_calls_go_first():
    """They can be answered soon; calls that can't go after them, the earliest deadline first."""
    shelter_queue = ShelterQueue(10)
    waiters = fill(shelter_queue, (0.0, 20.0), (1.0, 9.0), (3.0, 30.0), (3.1, 20.0))
    assert order(shelter_queue, waiters, 3.2) == [2, 3, 1, 0]


@pytest.mark.parametrize(("patience", "first"), [(0.5, 1), (3.0, 0)])
def test_a_call_is_due_at_its_deadline_if_that_is_soon(patience, first):
    """A call that came later is sent first if it has less time."""
    shelter_queue = ShelterQueue(10)
    waiters = fill(shelter_queue, (0.0, 9.0), (0.1, 0.1 + patience))
    assert order(shelter_queue, waiters, 0.2)[0] == first


def test_a_call_that_cannot_be_answered_soon_is_late():
    """The time that an answer takes counts."""
    for answer_time, first in ((0.05, 0), (0.15, 1)):
        shelter_queue = ShelterQueue(10)
        waiters = fill(shelter_queue, (0.0, 9.0), (0.5, 9.0))
        assert order(shelter_queue, waiters, 0.9, answer_time=answer_time)[0] == first


def test_a_late_call_goes_first_if_its_deadline_is_earlier_and_all_others_have_time():
    """One more turn before them makes none of them late."""
    shelter_queue = ShelterQueue(10)
    waiters = fill(shelter_queue, (0.0, 3.5), (3.0, 30.0), (3.0, 30.0))
    assert order(shelter_queue, waiters, 3.1, answer_time=0.1, interval=0.1) == [0, 1, 2]


def test_a_late_call_goes_last_if_the_others_would_be_late():
    """There is more work than capacity: who has waited longest is lost, and the others are answered soon."""
    shelter_queue = ShelterQueue(10)
    waiters = fill(shelter_queue, (0.0, 3.5), *[(3.0, 30.0)] * 5)
    assert order(shelter_queue, waiters, 3.1, answer_time=0.1, interval=0.2)[:2] == [1, 2]


def test_a_late_call_with_a_later_deadline_waits():
    """It has time."""
    shelter_queue = ShelterQueue(10)
    waiters = fill(shelter_queue, (0.0, 9.0), (3.0, 30.0))
    assert order(shelter_queue, waiters, 3.1) == [1, 0]


def test_after_a_long_outage_the_earliest_deadline_goes_first():
    """Also before calls that could be answered soon, and those that come meanwhile."""
    shelter_queue = ShelterQueue(10)
    waiters = fill(shelter_queue, (0.0, 20.0), (1.0, 9.0), (3.0, 10.0))
    assert let_go(shelter_queue, 3.1, catching_up=True) is waiters[1]
    (newcomer,) = fill(shelter_queue, (3.2, 5.0))
    assert let_go(shelter_queue, 3.3, catching_up=True) is newcomer
    assert order(shelter_queue, waiters[::2], 3.4) == [1, 0]


def test_a_probe_is_a_call_that_arrived_since_the_last_turn():
    """Each has the same probability; calls that return after a failure are excluded."""
    probed = set()
    for chance in (0.0, 0.3, 0.4, 0.6, 0.7, 0.99):
        shelter_queue = ShelterQueue(100)
        fill(shelter_queue, (0.0, 9.0), (0.1, 9.0))
        shelter_queue.next(0.2)
        newest = fill(shelter_queue, (0.3, 9.0), (0.4, 9.0), (0.5, 9.0))
        fill(shelter_queue, (0.15, 9.0))
        probed.add(newest.index(shelter_queue.probe(0.6, chance)))
    assert probed == {0, 1, 2}


def test_a_probe_has_time_for_an_answer():
    """Also if only calls without time have arrived since the last turn."""
    shelter_queue = ShelterQueue(100)
    (patient,) = fill(shelter_queue, (0.0, 9.0))
    shelter_queue.next(0.1)
    fill(shelter_queue, (0.2, 0.4), (0.3, 0.5))
    assert shelter_queue.probe(0.3, 0.9) is patient


def test_calls_take_turns_to_probe_if_none_has_arrived():
    """But for those with little time, whose deadline would cut the probe off: nothing would be known."""
    shelter_queue = ShelterQueue(100)
    waiters = fill(shelter_queue, (0.0, 4.0), (0.5, 20.0), (3.0, 7.0))
    shelter_queue.next(3.1)
    for turn in range(4):
        waiter = shelter_queue.probe(3.2, 0.0)
        assert waiter is waiters[1 + turn % 2]
        shelter_queue.remove(waiter, "in")
        shelter_queue.add(waiter)


@settings(max_examples=40)
@given(
    before=st.integers(0, 10),
    gaps=st.lists(st.sampled_from([0.0, 0.01, 0.05, 0.2]), min_size=1, max_size=8),
    every=st.sampled_from([2, 3, 1000]),
)
def test_a_late_call_is_sent_before_its_deadline_if_there_is_time(before, gaps, every):
    """Though fresh calls keep coming, and others are before it."""
    shelter_queue = ShelterQueue(10**6)
    *_, mine = fill(shelter_queue, *[(-20.0 - n, 2.0) for n in range(before)], (-10.0, 5.0))
    now = 0.0
    for turn in range(1000):
        now += gaps[turn % len(gaps)]
        fill(shelter_queue, *[(now, now + 30.0)] * (turn % every == 0))
        if let_go(shelter_queue, now, interval=0.05) is mine:
            return
        now += 0.05
        if not mine.queued or now > mine.deadline:
            pytest.fail("its turn never came")


@settings(max_examples=30)
@given(stay=st.integers(0, 100), leave=st.integers(1, 400), age=st.sampled_from([0.0, 5.0]))
def test_memory_of_calls_that_have_left_is_bounded(stay, leave, age):
    """At most as many as still wait, or a few: memory does not grow with calls that give up."""
    shelter_queue = ShelterQueue(1000)
    waiting = fill(shelter_queue, *[(-age, 9.0)] * stay)
    for _ in range(leave):
        (gone,) = fill(shelter_queue, (-age, 9.0))
        shelter_queue.remove(gone, "left")
        entries = len(shelter_queue._fresh) + len(shelter_queue._late)
        assert entries <= shelter_queue.size + max(MAX_STALE, shelter_queue.size)
    assert shelter_queue.size == stay
    assert {let_go(shelter_queue, 0.0) for _ in range(stay)} == set(waiting)
    assert let_go(shelter_queue, 0.0) is None


def test_a_waiter_that_is_queued_again_is_there_once():
    """Its old entry is no longer its own."""
    shelter_queue = ShelterQueue(10)
    first, other = fill(shelter_queue, (0.0, 9.0), (0.0, 9.0))
    shelter_queue.remove(other, "missed")
    shelter_queue.add(other)
    assert [let_go(shelter_queue, 0.1) for _ in range(3)] == [first, other, None]


def test_a_waiter_of_a_loop_is_found():
    """Fresh or late, and never one that has left, waits elsewhere or has not begun to wait."""
    shelter_queue = ShelterQueue(10)
    waiters = fill(shelter_queue, (-3.0, 9.0), (-2.0, 9.0), (0.0, 9.0), (0.0, 9.0), (0.0, 9.0))
    for waiter, place in zip(waiters, ["here", "there", "there", "here", None], strict=True):
        waiter.wakeup = Wakeup(place)
    fill(shelter_queue, (0.0, 9.0))
    shelter_queue.next(0.0)
    for place, found in (("there", 2), ("here", 3), ("here", 0), ("there", 1), (None, 4)):
        assert shelter_queue.waiter_in_loop(place) is waiters[found]
        shelter_queue.remove(waiters[found], "left")
    assert shelter_queue.waiter_in_loop("here") is None
    assert shelter_queue.size == 1
