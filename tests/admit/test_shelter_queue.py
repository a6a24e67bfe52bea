"""The shelter's wait queue, against a model that searches a list of all waiters."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from abate.admit.shelter_queue import (
    FRESH_SECONDS,
    LIFO_AFTER,
    LIFO_ENDS_AFTER,
    MAX_STALE,
    MOVING_WITHIN,
    OLDEST_EVERY,
    URGENT_AFTER,
    ShelterQueue,
    Waiter,
)


class SlowQueue:
    """The rules, as documented, over a list of all waiters in order of arrival."""

    def __init__(self):
        self.fresh, self.old = [], []
        self.turns = 0
        self.aged = self.overflowing = self.moved = -inf

    def add(self, waiter, now):
        (self.fresh if now - waiter.began < FRESH_SECONDS else self.old).append(waiter)

    def remove(self, waiter):
        (self.fresh if waiter in self.fresh else self.old).remove(waiter)

    def next(self, now):
        # waiters at the head that are no longer fresh become the oldest
        while self.fresh and now - self.fresh[0].began >= FRESH_SECONDS:
            self.old.append(self.fresh.pop(0))
            if now - self.aged > LIFO_ENDS_AFTER or now - self.moved > MOVING_WITHIN:
                self.overflowing = now
            self.aged = now
        self.moved = now
        self.turns += 1
        every = OLDEST_EVERY if self.fresh and now - self.fresh[0].began >= URGENT_AFTER else 2
        if self.old and (not self.fresh or self.turns % every == 0):
            return self._take(self.old, min(self.old, key=lambda waiter: waiter.order))
        overflows = now - self.overflowing > LIFO_AFTER and now - self.aged < LIFO_ENDS_AFTER
        return self._take(self.fresh, self.fresh[-1 if overflows else 0]) if self.fresh else None

    @staticmethod
    def _take(line, waiter):
        line.remove(waiter)
        return waiter


def let_go(shelter_queue, now):
    """Remove the next waiter from the queue."""
    waiter = shelter_queue.next(now)
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
        self.inside, self.left = [], []

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 0.24, 0.26, 0.5, 0.79, 1.1, 3.1]))
    def pass_time(self, seconds):
        self.now += seconds

    def come(self, age, first, patience):
        if self.shelter_queue.full:
            return
        waiter = Waiter(self.now - age, self.now + patience)
        self.shelter_queue.add(waiter, self.now, first)
        assert waiter.order[0] == (waiter.began if first else self.now)
        self.model.add(waiter, self.now)
        self.inside.append(waiter)

    @rule(patience=st.sampled_from([0.0, 1.0, 10.0]), times=st.integers(1, 8))
    def call(self, patience, times):
        for _ in range(times):
            self.come(0.0, True, patience)

    @rule(age=st.sampled_from([0.0, 0.1, 0.4, 0.5, 0.7, 0.8, 2.0]), first=st.booleans())
    def come_back(self, age, first):
        self.come(age, first, 10.0)

    @rule(turns=st.sampled_from([1, 1, 1, 5, OLDEST_EVERY]))
    def go(self, turns):
        for _ in range(turns):
            waiter = let_go(self.shelter_queue, self.now)
            assert waiter is self.model.next(self.now)
            if waiter is not None:
                self.inside.remove(waiter)

    @rule(steps=st.integers(2, 40), gap=st.sampled_from([0.1, 0.2, 0.3]), callers=st.integers(0, 3))
    def rush(self, steps, gap, callers):
        """Calls arrive faster than they are sent, long enough to overflow."""
        for _ in range(steps):
            self.now += gap
            self.call(10.0, callers)
            self.go(1)

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), times=st.integers(1, 6))
    def leave(self, data, times):
        for _ in range(min(times, len(self.inside))):
            waiter = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
            waiter.answer = "left"
            self.shelter_queue.remove(waiter, "left")
            self.model.remove(waiter)

    @rule(place=st.sampled_from(["here", "there", None]), age=st.sampled_from([0.0, 2.0]))
    def come_in_a_loop(self, place, age):
        self.come(age, True, 10.0)
        if self.inside:
            self.inside[-1].wakeup = Wakeup(place)

    @rule(place=st.sampled_from(["here", "there", None]))
    def find(self, place):
        found = self.shelter_queue.waiter_in_loop(place)
        there = [waiter for waiter in self.inside if waiter.wakeup is not None and waiter.wakeup.loop is place]
        assert found in there if there else found is None

    @rule(age=st.sampled_from([0.0, 0.5, 2.0]))
    def miss_a_turn(self, age):
        """A waiter that was not running at its turn enters again at its old position."""
        waiter = let_go(self.shelter_queue, self.now)
        assert waiter is self.model.next(self.now)
        if waiter is not None:
            line = waiter.order
            self.now += age
            self.shelter_queue.add_again(waiter, self.now)
            assert waiter.order == line
            self.model.add(waiter, self.now)

    @rule(ahead=st.sampled_from([-1.0, 0.0, 1.0, 10.0]))
    def give_up_hope(self, ahead):
        until = self.now + ahead
        expiring_by = [waiter for waiter in self.inside if waiter.deadline <= until]
        assert sorted(map(id, self.shelter_queue.expiring_by(until))) == sorted(map(id, expiring_by))

    @invariant()
    def everybody_is_counted(self):
        assert self.shelter_queue.size == len(self.inside) == len(self.model.fresh) + len(self.model.old)
        assert self.shelter_queue.size <= self.shelter_queue.capacity
        assert self.shelter_queue.full == (self.shelter_queue.size == self.shelter_queue.capacity)
        places = len(self.shelter_queue._fresh) + len(self.shelter_queue._oldest)
        assert places == self.shelter_queue.size + self.shelter_queue.stale
        assert self.shelter_queue.stale <= max(MAX_STALE, self.shelter_queue.capacity)

    def teardown(self):
        """In the end every waiter that has not left is sent."""
        for _ in range(len(getattr(self, "inside", []))):
            self.go(1)
        assert not getattr(self, "inside", [])


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)


def fill(shelter_queue, begins, now, first=True):
    """Add waiters whose calls began at these instants, in that order."""
    waiters = [Waiter(began, inf) for began in begins]
    for waiter in waiters:
        shelter_queue.add(waiter, now, first)
    return waiters


def order(shelter_queue, waiters, now, turns):
    """Return the order in which waiters are sent, as indices of the list."""
    return [waiters.index(let_go(shelter_queue, now)) for _ in range(turns)]


def test_an_empty_queue_has_no_next_waiter():
    """Nothing is found, and a turn has no effect."""
    shelter_queue = ShelterQueue(3)
    assert let_go(shelter_queue, 0.0) is None
    assert shelter_queue.waiter_in_loop(None) is None
    assert shelter_queue.size == 0
    assert shelter_queue.expiring_by(inf) == []


@given(capacity=st.integers(1, 30), turns=st.integers(0, 30))
def test_the_queue_is_full_at_its_capacity(capacity, turns):
    """Each waiter that is sent makes room for one."""
    shelter_queue = ShelterQueue(capacity)
    for _ in range(capacity):
        assert not shelter_queue.full
        fill(shelter_queue, [0.0], 0.0)
    assert shelter_queue.full
    for _ in range(turns):
        let_go(shelter_queue, 0.0)
    assert shelter_queue.size == max(0, capacity - turns)
    assert shelter_queue.full == (turns == 0)


def test_fresh_calls_are_sent_in_order_of_arrival():
    """First come, first served."""
    shelter_queue = ShelterQueue(10)
    assert order(shelter_queue, fill(shelter_queue, [0.0] * 5, 0.0), 0.1, 5) == [0, 1, 2, 3, 4]


def test_every_other_turn_is_for_the_oldest_while_no_fresh_call_is_urgent():
    """Fresh, oldest, fresh, oldest: the oldest by the begin of the call, not by arrival in the queue."""
    shelter_queue = ShelterQueue(10)
    waiters = fill(shelter_queue, [-2.0, -3.0, -4.0, 0.0, 0.0, 0.0], 0.0)
    assert order(shelter_queue, waiters, URGENT_AFTER - 0.01, 6) == [3, 2, 4, 1, 5, 0]


def test_one_of_sixteen_turns_is_for_the_oldest_when_a_fresh_call_is_urgent():
    """A fresh call that has waited half a second precedes the oldest, except at the sixteenth turn."""
    shelter_queue = ShelterQueue(100)
    waiters = fill(shelter_queue, [-2.0] * 2 + [0.0] * 40, 0.0)
    served = order(shelter_queue, waiters, URGENT_AFTER, 32)
    assert served == [*range(2, 17), 0, *range(17, 32), 1]


def test_a_call_that_has_left_is_not_urgent():
    """Only current waiters decide whose turn it is."""
    shelter_queue = ShelterQueue(10)
    waiters = fill(shelter_queue, [-3.0, 0.0, 0.3, 0.3], 0.3)
    waiters[1].answer = "left"
    shelter_queue.remove(waiters[1], "left")
    assert order(shelter_queue, waiters, 0.6, 2) == [2, 0]


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.6, 0.99])
def test_a_random_turn_takes_a_call_that_arrived_since_the_last_turn(chance):
    """Each has the same probability; retries are excluded."""
    shelter_queue = ShelterQueue(100)
    fill(shelter_queue, [0.0, 0.1], 0.1)
    assert shelter_queue.next(0.2, 0.0).began == 0.1
    waiters = fill(shelter_queue, [0.3, 0.4, 0.5], 0.5)
    fill(shelter_queue, [0.15], 0.5, first=False)
    assert shelter_queue.next(0.6, chance) is waiters[::-1][int(chance * 3)]
    assert shelter_queue.next(0.7, chance).began in (0.0, 0.1, 0.15, 0.3, 0.4, 0.5)


def test_the_oldest_are_sent_when_no_call_is_fresh():
    """In the order of their begin, also on turns for fresh calls."""
    shelter_queue = ShelterQueue(10)
    assert order(shelter_queue, fill(shelter_queue, [-2.0, -1.0, -5.0], 0.0), 0.0, 3) == [2, 0, 1]


def test_a_call_stops_being_fresh_at_its_instant():
    """At that instant it is one of the oldest: a newcomer is sent first."""
    for age, newcomer in ((FRESH_SECONDS - 0.125, 0), (FRESH_SECONDS, 1)):
        shelter_queue = ShelterQueue(10)
        waiters = fill(shelter_queue, [-age, 0.0], 0.0)
        assert order(shelter_queue, waiters, 0.0, 1) == [newcomer]


@given(ages=st.lists(st.floats(1.0, 50.0), min_size=1, max_size=20), age=st.floats(1.0, 100.0))
def test_a_retry_queues_behind_first_attempts(ages, age):
    """However long ago its call began: earlier arrivals are sent first."""
    shelter_queue = ShelterQueue(100)
    waiters = fill(shelter_queue, [-one for one in ages], 0.0)
    retry, *_ = fill(shelter_queue, [-age], 0.0, first=False)
    assert order(shelter_queue, [*waiters, retry], 0.0, len(ages) + 1)[-1] == len(ages)


def overflow(shelter_queue, seconds, gap=0.1):
    """Add three and send one every `gap` for a while; return all waiters, and the instant."""
    came, now = [], 0.0
    while now < seconds:
        came += fill(shelter_queue, [now] * 3, now)
        let_go(shelter_queue, now)
        now += gap
    return came, now


@pytest.mark.parametrize(
    ("seconds", "last"), [(FRESH_SECONDS + LIFO_AFTER - 0.2, False), (FRESH_SECONDS + LIFO_AFTER + 1.5, True)]
)
def test_an_overflowing_queue_is_last_in_first_out(seconds, last):
    """After three seconds in which calls stopped being fresh; first in, first out until then."""
    shelter_queue = ShelterQueue(1000)
    _, now = overflow(shelter_queue, seconds)
    fresh = fill(shelter_queue, [now] * 2, now)
    served = [let_go(shelter_queue, now) for _ in range(3)]  # one of these turns may be for the oldest
    assert [waiter for waiter in served if waiter in fresh] == (fresh[::-1] if last else [])


def test_last_in_first_out_skips_calls_that_have_left():
    """The last call that still waits is sent first."""
    shelter_queue = ShelterQueue(1000)
    _, now = overflow(shelter_queue, 6.0)
    fresh = fill(shelter_queue, [now] * 3, now)
    for waiter in fresh[1:]:
        waiter.answer = "left"
        shelter_queue.remove(waiter, "left")
    assert fresh[0] in [let_go(shelter_queue, now) for _ in range(2)]


def test_the_queue_is_first_in_first_out_again_after_an_overflow():
    """A second in which every call is sent while fresh ends the overflow."""
    shelter_queue = ShelterQueue(1000)
    _, now = overflow(shelter_queue, 6.0)
    while shelter_queue.size:
        let_go(shelter_queue, now)
    now += LIFO_ENDS_AFTER + 0.1
    waiters = fill(shelter_queue, [now] * 3, now)
    assert order(shelter_queue, waiters, now, 3) == [0, 1, 2]


def test_a_closed_shelter_does_not_overflow():
    """Calls stop being fresh because few are sent at all: first come, first served."""
    shelter_queue = ShelterQueue(1000)
    _, now = overflow(shelter_queue, 9.0, gap=MOVING_WITHIN + 0.05)
    fresh = fill(shelter_queue, [now] * 3, now)
    let_go(shelter_queue, now)
    served = [let_go(shelter_queue, now) for _ in range(12)]
    assert [waiter for waiter in served if waiter in fresh] == [waiter for waiter in fresh if waiter in served], (
        "in the order they came"
    )


@settings(max_examples=40)
@given(
    before=st.integers(0, 10),
    gaps=st.lists(st.sampled_from([0.0, 0.01, 0.05, 0.2, 0.6]), min_size=1, max_size=8),
    callers=st.integers(1, 4),
    retries=st.booleans(),
)
def test_no_call_starves(before, gaps, callers, retries):
    """An old call is sent within sixteen turns for each older one, though fresh calls and retries keep coming."""
    shelter_queue = ShelterQueue(10**6)
    *_, mine = fill(shelter_queue, [-20.0 - n for n in range(before)] + [-10.0], 0.0)
    now = 0.0
    for turn in range(OLDEST_EVERY * (before + 1)):
        now += gaps[turn % len(gaps)]
        fill(shelter_queue, [now] * callers, now)
        if retries:
            fill(shelter_queue, [now - 50.0], now, first=False)
        if let_go(shelter_queue, now) is mine:
            return
    pytest.fail("its turn never came")


def test_a_call_overtaken_in_an_overflow_is_sent_when_it_is_old():
    """Adaptive LIFO delays early arrivals, but they become the oldest."""
    shelter_queue = ShelterQueue(10**6)
    _, now = overflow(shelter_queue, 6.0)
    mine, *_ = fill(shelter_queue, [now], now)
    ahead = shelter_queue.size
    served = []
    while mine not in served and len(served) < OLDEST_EVERY * (ahead + 1):
        now += 0.01
        fill(shelter_queue, [now] * 2, now)
        served.append(let_go(shelter_queue, now))
    assert mine in served
    assert len(served) > OLDEST_EVERY


@settings(max_examples=30)
@given(stay=st.integers(0, 100), leave=st.integers(1, 400), age=st.sampled_from([0.0, 5.0]))
def test_memory_of_calls_that_have_left_is_bounded(stay, leave, age):
    """At most as many as still wait, or a few: memory does not grow with calls that give up."""
    shelter_queue = ShelterQueue(1000)
    waiting = fill(shelter_queue, [-age] * stay, 0.0)
    for _ in range(leave):
        gone, *_ = fill(shelter_queue, [-age], 0.0)
        gone.answer = "left"
        shelter_queue.remove(gone, "left")
        assert len(shelter_queue._fresh) + len(shelter_queue._oldest) <= shelter_queue.size + max(
            MAX_STALE, shelter_queue.size
        )
    assert shelter_queue.size == stay
    assert {let_go(shelter_queue, 0.0) for _ in range(stay)} == set(waiting)
    assert let_go(shelter_queue, 0.0) is None


def test_a_waiter_of_a_loop_is_found():
    """Fresh or old, and never one that has left, waits elsewhere or has not begun to wait."""
    shelter_queue = ShelterQueue(10)
    waiters = fill(shelter_queue, [-3.0, -2.0, 0.0, 0.0, 0.0], 0.0)
    for waiter, place in zip(waiters, ["here", "there", "there", "here", None], strict=True):
        waiter.wakeup = Wakeup(place)
    fill(shelter_queue, [0.0], 0.0)
    for place, found in (("there", 2), ("here", 3), ("here", 0), ("there", 1), (None, 4)):
        assert shelter_queue.waiter_in_loop(place) is waiters[found]
        waiters[found].answer = "left"
        shelter_queue.remove(waiters[found], "left")
    assert shelter_queue.waiter_in_loop("here") is None
    assert shelter_queue.size == 1


def test_hopeless_calls_have_a_deadline_at_or_before_the_instant():
    """Fresh and old alike, without those that have left."""
    shelter_queue = ShelterQueue(10)
    waiters = [Waiter(began, deadline) for began in (-5.0, 0.0) for deadline in (1.0, 2.0, 3.0)]
    for waiter in waiters:
        shelter_queue.add(waiter, 0.0, True)
    waiters[0].answer = "left"
    shelter_queue.remove(waiters[0], "left")
    assert {waiters.index(waiter) for waiter in shelter_queue.expiring_by(2.0)} == {1, 3, 4}
