"""The waiting room, against one that keeps everybody in a list and looks through all of it."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from abate.admit.room import FEW, FRESH, MOVING, OVERFLOW, PRESSED, SETTLED, TURNS, Room, Waiter


class SlowRoom:
    """The rules, as they are written down, over a list of everybody who waits, in the order in which they came."""

    def __init__(self):
        self.fresh, self.old = [], []
        self.turns = 0
        self.aged = self.overflowing = self.moved = -inf

    def add(self, waiter, now):
        (self.fresh if now - waiter.began < FRESH else self.old).append(waiter)

    def remove(self, waiter):
        (self.fresh if waiter in self.fresh else self.old).remove(waiter)

    def next(self, now):
        # those at the head of the line who are not fresh any more become the oldest
        while self.fresh and now - self.fresh[0].began >= FRESH:
            self.old.append(self.fresh.pop(0))
            if now - self.aged > SETTLED or now - self.moved > MOVING:
                self.overflowing = now
            self.aged = now
        self.moved = now
        self.turns += 1
        every = TURNS if self.fresh and now - self.fresh[0].began >= PRESSED else 2
        if self.old and (not self.fresh or self.turns % every == 0):
            return self._take(self.old, min(self.old, key=lambda waiter: waiter.line))
        overflows = now - self.overflowing > OVERFLOW and now - self.aged < SETTLED
        return self._take(self.fresh, self.fresh[-1 if overflows else 0]) if self.fresh else None

    @staticmethod
    def _take(line, waiter):
        line.remove(waiter)
        return waiter


def let_go(room, now):
    """Who goes next leaves the room."""
    waiter = room.next(now)
    if waiter is not None:
        assert waiter.answer is None
        room.remove(waiter, "in")
    return waiter


class Bell:
    """What says where a waiter waits."""

    def __init__(self, place):
        self.place = place


class AgainstAList(RuleBasedStateMachine):
    """Callers come, go and are let in, in any order: the same one goes next, and nobody is lost or let in twice."""

    @initialize(capacity=st.sampled_from([1, 3, 1000]), start=st.sampled_from([0.0, -5.0, 1e6]))
    def begin(self, capacity, start):
        self.now, self.room, self.model = start, Room(capacity), SlowRoom()
        self.inside, self.left = [], []

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 0.24, 0.26, 0.5, 0.79, 1.1, 3.1]))
    def pass_time(self, seconds):
        self.now += seconds

    def come(self, age, first, patience):
        if self.room.full:
            return
        waiter = Waiter(self.now - age, self.now + patience)
        self.room.add(waiter, self.now, first)
        assert waiter.line[0] == (waiter.began if first else self.now)
        self.model.add(waiter, self.now)
        self.inside.append(waiter)

    @rule(patience=st.sampled_from([0.0, 1.0, 10.0]), times=st.integers(1, 8))
    def call(self, patience, times):
        for _ in range(times):
            self.come(0.0, True, patience)

    @rule(age=st.sampled_from([0.0, 0.1, 0.4, 0.5, 0.7, 0.8, 2.0]), first=st.booleans())
    def come_back(self, age, first):
        self.come(age, first, 10.0)

    @rule(turns=st.sampled_from([1, 1, 1, 5, TURNS]))
    def go(self, turns):
        for _ in range(turns):
            waiter = let_go(self.room, self.now)
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
            self.room.remove(waiter, "left")
            self.model.remove(waiter)

    @rule(place=st.sampled_from(["here", "there", None]), age=st.sampled_from([0.0, 2.0]))
    def come_in_a_loop(self, place, age):
        self.come(age, True, 10.0)
        if self.inside:
            self.inside[-1].bell = Bell(place)

    @rule(place=st.sampled_from(["here", "there", None]))
    def find(self, place):
        found = self.room.waiting_in(place)
        there = [waiter for waiter in self.inside if waiter.bell is not None and waiter.bell.place is place]
        assert found in there if there else found is None

    @rule(age=st.sampled_from([0.0, 0.5, 2.0]))
    def miss_a_turn(self, age):
        """One whose turn has come while it slept comes in again, and lines up where it was."""
        waiter = let_go(self.room, self.now)
        assert waiter is self.model.next(self.now)
        if waiter is not None:
            line = waiter.line
            self.now += age
            self.room.add_again(waiter, self.now)
            assert waiter.line == line
            self.model.add(waiter, self.now)

    @rule(ahead=st.sampled_from([-1.0, 0.0, 1.0, 10.0]))
    def give_up_hope(self, ahead):
        until = self.now + ahead
        hopeless = [waiter for waiter in self.inside if waiter.deadline <= until]
        assert sorted(map(id, self.room.hopeless(until))) == sorted(map(id, hopeless))

    @invariant()
    def everybody_is_counted(self):
        assert self.room.size == len(self.inside) == len(self.model.fresh) + len(self.model.old)
        assert self.room.size <= self.room.capacity
        assert self.room.full == (self.room.size == self.room.capacity)
        places = len(self.room._fresh) + len(self.room._oldest)
        assert places == self.room.size + self.room.gone
        assert self.room.gone <= max(FEW, self.room.capacity)

    def teardown(self):
        """In the end everybody who has not left is let in."""
        for _ in range(len(getattr(self, "inside", []))):
            self.go(1)
        assert not getattr(self, "inside", [])


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)


def fill(room, begins, now, first=True):
    """So many who began at these instants; they come in that order."""
    waiters = [Waiter(began, inf) for began in begins]
    for waiter in waiters:
        room.add(waiter, now, first)
    return waiters


def order(room, waiters, now, turns):
    """Who goes next, as places in the list."""
    return [waiters.index(let_go(room, now)) for _ in range(turns)]


def test_nobody_goes_where_nobody_waits():
    """An empty room has no next one and nobody to be found, and a turn costs nobody."""
    room = Room(3)
    assert let_go(room, 0.0) is None
    assert room.waiting_in(None) is None
    assert room.size == 0
    assert room.hopeless(inf) == []


@given(capacity=st.integers(1, 30), turns=st.integers(0, 30))
def test_it_is_full_with_its_capacity_and_not_after_a_turn(capacity, turns):
    """At most so many wait; each one that goes makes room for one."""
    room = Room(capacity)
    for _ in range(capacity):
        assert not room.full
        fill(room, [0.0], 0.0)
    assert room.full
    for _ in range(turns):
        let_go(room, 0.0)
    assert room.size == max(0, capacity - turns)
    assert room.full == (turns == 0)


def test_fresh_calls_go_in_the_order_they_came():
    """The first come, first served."""
    room = Room(10)
    assert order(room, fill(room, [0.0] * 5, 0.0), 0.1, 5) == [0, 1, 2, 3, 4]


def test_every_other_turn_is_for_the_oldest_while_nobody_is_pressed():
    """Fresh, oldest, fresh, oldest: the oldest by their beginning, not as they came in."""
    room = Room(10)
    waiters = fill(room, [-2.0, -3.0, -4.0, 0.0, 0.0, 0.0], 0.0)
    assert order(room, waiters, PRESSED - 0.01, 6) == [3, 2, 4, 1, 5, 0]


def test_one_of_sixteen_turns_is_for_the_oldest_when_a_fresh_call_is_pressed():
    """A fresh call that has waited half a second goes before the oldest, but for the sixteenth turn."""
    room = Room(100)
    waiters = fill(room, [-2.0] * 2 + [0.0] * 40, 0.0)
    served = order(room, waiters, PRESSED, 32)
    assert served == [*range(2, 17), 0, *range(17, 32), 1]


def test_one_who_has_left_presses_nobody():
    """Only those who still wait decide whose turn it is."""
    room = Room(10)
    waiters = fill(room, [-3.0, 0.0, 0.3, 0.3], 0.3)
    waiters[1].answer = "left"
    room.remove(waiters[1], "left")
    assert order(room, waiters, 0.6, 2) == [2, 0]


def test_the_oldest_go_when_nobody_is_fresh():
    """In the order of their beginning, also on turns that are for the fresh."""
    room = Room(10)
    assert order(room, fill(room, [-2.0, -1.0, -5.0], 0.0), 0.0, 3) == [2, 0, 1]


def test_a_call_is_fresh_for_less_than_its_time():
    """At that instant it is one of the oldest already: a newcomer goes first."""
    for age, newcomer in ((FRESH - 0.125, 0), (FRESH, 1)):
        room = Room(10)
        waiters = fill(room, [-age, 0.0], 0.0)
        assert order(room, waiters, 0.0, 1) == [newcomer]


@given(ages=st.lists(st.floats(1.0, 50.0), min_size=1, max_size=20), age=st.floats(1.0, 100.0))
def test_a_retry_lines_up_behind_those_who_have_had_no_attempt(ages, age):
    """However long ago its call began: those who came in before it go before it."""
    room = Room(100)
    waiters = fill(room, [-one for one in ages], 0.0)
    retry, *_ = fill(room, [-age], 0.0, first=False)
    assert order(room, [*waiters, retry], 0.0, len(ages) + 1)[-1] == len(ages)


def overflow(room, seconds, gap=0.1):
    """Three come and one goes, every `gap`, for so long: all who came, and the instant."""
    came, now = [], 0.0
    while now < seconds:
        came += fill(room, [now] * 3, now)
        let_go(room, now)
        now += gap
    return came, now


@pytest.mark.parametrize(("seconds", "last"), [(FRESH + OVERFLOW - 0.2, False), (FRESH + OVERFLOW + 1.5, True)])
def test_the_last_come_go_first_where_calls_overflow(seconds, last):
    """After three seconds in which calls have lost their freshness; until then the first come."""
    room = Room(1000)
    _, now = overflow(room, seconds)
    fresh = fill(room, [now] * 2, now)
    served = [let_go(room, now) for _ in range(3)]  # one of them may be for the oldest
    assert [waiter for waiter in served if waiter in fresh] == (fresh[::-1] if last else [])


def test_of_the_last_come_those_who_have_left_are_passed_over():
    """The last one who still waits goes first."""
    room = Room(1000)
    _, now = overflow(room, 6.0)
    fresh = fill(room, [now] * 3, now)
    for waiter in fresh[1:]:
        waiter.answer = "left"
        room.remove(waiter, "left")
    assert fresh[0] in [let_go(room, now) for _ in range(2)]


def test_the_last_come_do_not_go_first_when_it_has_settled():
    """A second in which nobody loses its freshness ends it."""
    room = Room(1000)
    _, now = overflow(room, 6.0)
    while room.size:
        let_go(room, now)
    now += SETTLED + 0.1
    waiters = fill(room, [now] * 3, now)
    assert order(room, waiters, now, 3) == [0, 1, 2]


def test_nothing_overflows_while_it_is_closed():
    """Calls lose their freshness where nobody goes at all, every second turn later than four a second: first come."""
    room = Room(1000)
    _, now = overflow(room, 9.0, gap=MOVING + 0.05)
    fresh = fill(room, [now] * 3, now)
    let_go(room, now)
    served = [let_go(room, now) for _ in range(12)]
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
    room = Room(10**6)
    *_, mine = fill(room, [-20.0 - n for n in range(before)] + [-10.0], 0.0)
    now = 0.0
    for turn in range(TURNS * (before + 1)):
        now += gaps[turn % len(gaps)]
        fill(room, [now] * callers, now)
        if retries:
            fill(room, [now - 50.0], now, first=False)
        if let_go(room, now) is mine:
            return
    pytest.fail("its turn never came")


def test_one_that_is_overtaken_as_the_last_come_go_first_has_its_turn_when_it_is_old():
    """Adaptive LIFO leaves the first come behind, but not for ever: they become the oldest."""
    room = Room(10**6)
    _, now = overflow(room, 6.0)
    mine, *_ = fill(room, [now], now)
    ahead = room.size
    served = []
    while mine not in served and len(served) < TURNS * (ahead + 1):
        now += 0.01
        fill(room, [now] * 2, now)
        served.append(let_go(room, now))
    assert mine in served
    assert len(served) > TURNS


@settings(max_examples=30)
@given(stay=st.integers(0, 100), leave=st.integers(1, 400), age=st.sampled_from([0.0, 5.0]))
def test_places_of_those_who_have_left_are_given_up(stay, leave, age):
    """At most as many as still wait, or a few: a process whose callers give up does not grow."""
    room = Room(1000)
    waiting = fill(room, [-age] * stay, 0.0)
    for _ in range(leave):
        gone, *_ = fill(room, [-age], 0.0)
        gone.answer = "left"
        room.remove(gone, "left")
        assert len(room._fresh) + len(room._oldest) <= room.size + max(FEW, room.size)
    assert room.size == stay
    assert {let_go(room, 0.0) for _ in range(stay)} == set(waiting)
    assert let_go(room, 0.0) is None


def test_who_waits_in_a_place_is_found_there():
    """Fresh or old, and never one who has left, waits elsewhere or has not begun to wait."""
    room = Room(10)
    waiters = fill(room, [-3.0, -2.0, 0.0, 0.0, 0.0], 0.0)
    for waiter, place in zip(waiters, ["here", "there", "there", "here", None], strict=True):
        waiter.bell = Bell(place)
    fill(room, [0.0], 0.0)
    for place, found in (("there", 2), ("here", 3), ("here", 0), ("there", 1), (None, 4)):
        assert room.waiting_in(place) is waiters[found]
        waiters[found].answer = "left"
        room.remove(waiters[found], "left")
    assert room.waiting_in("here") is None
    assert room.size == 1


def test_hopeless_are_those_whose_deadline_is_not_after_the_instant():
    """Fresh and old alike, without those who have left."""
    room = Room(10)
    waiters = [Waiter(began, deadline) for began in (-5.0, 0.0) for deadline in (1.0, 2.0, 3.0)]
    for waiter in waiters:
        room.add(waiter, 0.0, True)
    waiters[0].answer = "left"
    room.remove(waiters[0], "left")
    assert {waiters.index(waiter) for waiter in room.hopeless(2.0)} == {1, 3, 4}
