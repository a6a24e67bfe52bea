"""The waiting room, against one that keeps everybody in a list and looks through all of it."""

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


class SlowRoom:
    """The rules, as they are written down, over a list of everybody who waits, in the order in which they came."""

    def __init__(self):
        self.fresh, self.old = [], []
        self.turns = 0
        self.aged = self.overflowing = self.moved = -inf

    def add(self, waiter, now):
        (self.fresh if now - waiter.began < FRESH_SECONDS else self.old).append(waiter)

    def remove(self, waiter):
        (self.fresh if waiter in self.fresh else self.old).remove(waiter)

    def next(self, now):
        # those at the head of the line who are not fresh any more become the oldest
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
    """Who goes next leaves the room."""
    waiter = shelter_queue.next(now)
    if waiter is not None:
        assert waiter.answer is None
        shelter_queue.remove(waiter, "in")
    return waiter


class Wakeup:
    """What says where a waiter waits."""

    def __init__(self, place):
        self.loop = place


class AgainstAList(RuleBasedStateMachine):
    """Callers come, go and are let in, in any order: the same one goes next, and nobody is lost or let in twice."""

    @initialize(capacity=st.sampled_from([1, 3, 1000]), start=st.sampled_from([0.0, -5.0, 1e6]))
    def begin(self, capacity, start):
        self.now, self.shelter_queue, self.model = start, ShelterQueue(capacity), SlowRoom()
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
        """Callers come faster than they are let in, for as long as it takes to overflow."""
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
        """One whose turn has come while it slept comes in again, and lines up where it was."""
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
        """In the end everybody who has not left is let in."""
        for _ in range(len(getattr(self, "inside", []))):
            self.go(1)
        assert not getattr(self, "inside", [])


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)


def fill(shelter_queue, begins, now, first=True):
    """So many who began at these instants; they come in that order."""
    waiters = [Waiter(began, inf) for began in begins]
    for waiter in waiters:
        shelter_queue.add(waiter, now, first)
    return waiters


def order(shelter_queue, waiters, now, turns):
    """Who goes next, as places in the list."""
    return [waiters.index(let_go(shelter_queue, now)) for _ in range(turns)]


def test_nobody_goes_where_nobody_waits():
    """An empty room has no next one and nobody to be found, and a turn costs nobody."""
    shelter_queue = ShelterQueue(3)
    assert let_go(shelter_queue, 0.0) is None
    assert shelter_queue.waiter_in_loop(None) is None
    assert shelter_queue.size == 0
    assert shelter_queue.expiring_by(inf) == []


@given(capacity=st.integers(1, 30), turns=st.integers(0, 30))
def test_it_is_full_with_its_capacity_and_not_after_a_turn(capacity, turns):
    """At most so many wait; each one that goes makes room for one."""
    shelter_queue = ShelterQueue(capacity)
    for _ in range(capacity):
        assert not shelter_queue.full
        fill(shelter_queue, [0.0], 0.0)
    assert shelter_queue.full
    for _ in range(turns):
        let_go(shelter_queue, 0.0)
    assert shelter_queue.size == max(0, capacity - turns)
    assert shelter_queue.full == (turns == 0)


def test_fresh_calls_go_in_the_order_they_came():
    """The first come, first served."""
    shelter_queue = ShelterQueue(10)
    assert order(shelter_queue, fill(shelter_queue, [0.0] * 5, 0.0), 0.1, 5) == [0, 1, 2, 3, 4]


def test_every_other_turn_is_for_the_oldest_while_nobody_is_pressed():
    """Fresh, oldest, fresh, oldest: the oldest by their beginning, not as they came in."""
    shelter_queue = ShelterQueue(10)
    waiters = fill(shelter_queue, [-2.0, -3.0, -4.0, 0.0, 0.0, 0.0], 0.0)
    assert order(shelter_queue, waiters, URGENT_AFTER - 0.01, 6) == [3, 2, 4, 1, 5, 0]


def test_one_of_sixteen_turns_is_for_the_oldest_when_a_fresh_call_is_pressed():
    """A fresh call that has waited half a second goes before the oldest, but for the sixteenth turn."""
    shelter_queue = ShelterQueue(100)
    waiters = fill(shelter_queue, [-2.0] * 2 + [0.0] * 40, 0.0)
    served = order(shelter_queue, waiters, URGENT_AFTER, 32)
    assert served == [*range(2, 17), 0, *range(17, 32), 1]


def test_one_who_has_left_presses_nobody():
    """Only those who still wait decide whose turn it is."""
    shelter_queue = ShelterQueue(10)
    waiters = fill(shelter_queue, [-3.0, 0.0, 0.3, 0.3], 0.3)
    waiters[1].answer = "left"
    shelter_queue.remove(waiters[1], "left")
    assert order(shelter_queue, waiters, 0.6, 2) == [2, 0]


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.6, 0.99])
def test_by_chance_one_goes_of_those_who_came_since_the_last_turn(chance):
    """Each of them for its part of the chances; a call that has had an attempt is none of them."""
    shelter_queue = ShelterQueue(100)
    fill(shelter_queue, [0.0, 0.1], 0.1)
    assert shelter_queue.next(0.2, 0.0).began == 0.1
    waiters = fill(shelter_queue, [0.3, 0.4, 0.5], 0.5)
    fill(shelter_queue, [0.15], 0.5, first=False)
    assert shelter_queue.next(0.6, chance) is waiters[::-1][int(chance * 3)]
    assert shelter_queue.next(0.7, chance).began in (0.0, 0.1, 0.15, 0.3, 0.4, 0.5)


def test_the_oldest_go_when_nobody_is_fresh():
    """In the order of their beginning, also on turns that are for the fresh."""
    shelter_queue = ShelterQueue(10)
    assert order(shelter_queue, fill(shelter_queue, [-2.0, -1.0, -5.0], 0.0), 0.0, 3) == [2, 0, 1]


def test_a_call_is_fresh_for_less_than_its_time():
    """At that instant it is one of the oldest already: a newcomer goes first."""
    for age, newcomer in ((FRESH_SECONDS - 0.125, 0), (FRESH_SECONDS, 1)):
        shelter_queue = ShelterQueue(10)
        waiters = fill(shelter_queue, [-age, 0.0], 0.0)
        assert order(shelter_queue, waiters, 0.0, 1) == [newcomer]


@given(ages=st.lists(st.floats(1.0, 50.0), min_size=1, max_size=20), age=st.floats(1.0, 100.0))
def test_a_retry_lines_up_behind_those_who_have_had_no_attempt(ages, age):
    """However long ago its call began: those who came in before it go before it."""
    shelter_queue = ShelterQueue(100)
    waiters = fill(shelter_queue, [-one for one in ages], 0.0)
    retry, *_ = fill(shelter_queue, [-age], 0.0, first=False)
    assert order(shelter_queue, [*waiters, retry], 0.0, len(ages) + 1)[-1] == len(ages)


def overflow(shelter_queue, seconds, gap=0.1):
    """Three come and one goes, every `gap`, for so long: all who came, and the instant."""
    came, now = [], 0.0
    while now < seconds:
        came += fill(shelter_queue, [now] * 3, now)
        let_go(shelter_queue, now)
        now += gap
    return came, now


@pytest.mark.parametrize(
    ("seconds", "last"), [(FRESH_SECONDS + LIFO_AFTER - 0.2, False), (FRESH_SECONDS + LIFO_AFTER + 1.5, True)]
)
def test_the_last_come_go_first_where_calls_overflow(seconds, last):
    """After three seconds in which calls have lost their freshness; until then the first come."""
    shelter_queue = ShelterQueue(1000)
    _, now = overflow(shelter_queue, seconds)
    fresh = fill(shelter_queue, [now] * 2, now)
    served = [let_go(shelter_queue, now) for _ in range(3)]  # one of them may be for the oldest
    assert [waiter for waiter in served if waiter in fresh] == (fresh[::-1] if last else [])


def test_of_the_last_come_those_who_have_left_are_passed_over():
    """The last one who still waits goes first."""
    shelter_queue = ShelterQueue(1000)
    _, now = overflow(shelter_queue, 6.0)
    fresh = fill(shelter_queue, [now] * 3, now)
    for waiter in fresh[1:]:
        waiter.answer = "left"
        shelter_queue.remove(waiter, "left")
    assert fresh[0] in [let_go(shelter_queue, now) for _ in range(2)]


def test_the_last_come_do_not_go_first_when_it_has_settled():
    """A second in which nobody loses its freshness ends it."""
    shelter_queue = ShelterQueue(1000)
    _, now = overflow(shelter_queue, 6.0)
    while shelter_queue.size:
        let_go(shelter_queue, now)
    now += LIFO_ENDS_AFTER + 0.1
    waiters = fill(shelter_queue, [now] * 3, now)
    assert order(shelter_queue, waiters, now, 3) == [0, 1, 2]


def test_nothing_overflows_while_it_is_closed():
    """Calls lose their freshness where nobody goes at all, every second turn later than four a second: first come."""
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
def test_nobody_starves_whatever_fresh_calls_come(before, gaps, callers, retries):
    """An old one goes within sixteen turns for each who is older, though fresh calls and retries keep coming."""
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


def test_one_that_is_overtaken_as_the_last_come_go_first_has_its_turn_when_it_is_old():
    """Adaptive LIFO leaves the first come behind, but not for ever: they become the oldest."""
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
def test_places_of_those_who_have_left_are_given_up(stay, leave, age):
    """At most as many as still wait, or a few: a process whose callers give up does not grow."""
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


def test_who_waits_in_a_place_is_found_there():
    """Fresh or old, and never one who has left, waits elsewhere or has not begun to wait."""
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


def test_hopeless_are_those_whose_deadline_is_not_after_the_instant():
    """Fresh and old alike, without those who have left."""
    shelter_queue = ShelterQueue(10)
    waiters = [Waiter(began, deadline) for began in (-5.0, 0.0) for deadline in (1.0, 2.0, 3.0)]
    for waiter in waiters:
        shelter_queue.add(waiter, 0.0, True)
    waiters[0].answer = "left"
    shelter_queue.remove(waiters[0], "left")
    assert {waiters.index(waiter) for waiter in shelter_queue.expiring_by(2.0)} == {1, 3, 4}
