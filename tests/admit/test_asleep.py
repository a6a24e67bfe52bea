"""Waiters that are asleep: event loops that stand still, are blocked or closed. They keep nobody else from going."""

import asyncio
import gc
import signal
import threading
import time
import weakref
from math import inf

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import abate
from abate import Backoff, Policy, Shelter
from abate.admit import door as doors
from abate.admit.bells import AsyncioBell
from abate.admit.door import MISSED, PICK_UP, TIDY
from abate.admit.room import Waiter
from abate.admit.weather import Ticket
from abate.testing import VirtualClock
from tests.reentry import inside

SOON = 8.0
"""Seconds within which something has happened, however busy the machine is; before, it took longer or for ever."""


class Down(Exception):
    """What a dependency raises while it is down."""


def narrow(patience=60.0, **settings):
    """A policy, the door of its shelter, and the one ticket that there is."""
    policy = Policy(on=Down, attempts=50, backoff=Backoff(0.01, 0.02), shelter=Shelter(patience=patience), **settings)
    door = policy.shelter.door()
    door.weather.limit, door.weather.state = 1.0, "storm"
    door.weather.failed = door.clock.now() + 60.0  # nobody is sent for its patience alone
    return policy, door, door.knock(door.clock.now(), door.clock.now(), None, True)


def left_behind(policy, tasks=5):
    """An event loop that is stopped while calls wait in it, and these calls."""

    async def fine():
        return "fine"

    loop = asyncio.new_event_loop()
    waiting = [loop.create_task(policy.acall(fine)) for _ in range(tasks)]
    loop.run_until_complete(asyncio.sleep(0.01))
    assert policy.shelter.waiters == tasks
    return loop, waiting


def in_thread(function):
    """Run it in a thread: its results, and the thread."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    return results, thread


def until(condition):
    """Wait until it is so."""
    due = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < due, "it did not become so"
        time.sleep(0.001)


async def fine():
    return "fine"


CALLERS = {
    "a thread": lambda policy: policy.call(lambda: "fine"),
    "asyncio": lambda policy: asyncio.run(policy.acall(fine)),
    "trio": lambda policy: trio.run(policy.acall, fine),
}


@pytest.mark.parametrize("given", [False, True], ids=["waiting", "with a ticket"])
def test_a_loop_that_was_dropped_is_collected(given, monkeypatch):
    """The shelter keeps no event loop alive whose tasks nobody will ever run: what these hold is given back."""
    monkeypatch.setattr(doors, "TIDY", 0.02)
    monkeypatch.setattr(doors, "PICK_UP", 0.02)
    policy, door, held = narrow(patience=0.3)
    loop, waiting = left_behind(policy)
    for task in waiting:
        task._log_destroy_pending = False
    if given:
        door.answered(held, door.clock.now(), "")
    loop._ssock.close(), loop._csock.close(), loop._selector.close()
    loop._closed = True  # not by close(), which would empty it: it is just forgotten
    dropped = weakref.ref(loop)
    del loop, waiting, task

    def is_gone():
        door.void(door.weather.send(door.clock.now()), door.clock.now())
        gc.collect()
        return dropped() is None

    until(is_gone)
    assert policy.shelter.waiters == 0


@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS)
def test_a_loop_that_stands_still_keeps_nobody_from_going(caller):
    """The ticket goes to the next who is awake; when the loop runs again, its calls have their turn as well."""
    policy, door, held = narrow()
    loop, waiting = left_behind(policy)
    results, thread = in_thread(lambda: caller(policy))
    until(lambda: policy.shelter.waiters == 6)
    door.answered(held, door.clock.now(), "")
    thread.join(SOON)
    assert results == ["fine"]
    assert loop.run_until_complete(asyncio.gather(*waiting)) == ["fine"] * 5
    assert (policy.shelter.waiters, door.weather.in_flight, door._leaders, list(door._handed)) == (0, 0, {}, [])
    loop.close()


@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS)
def test_who_looks_after_the_time_is_awake(caller):
    """It opens by the passing of time alone, and all who came before sit in a loop that stands still."""
    policy, door, held = narrow()
    loop, waiting = left_behind(policy, 2)
    door.weather.opens = door.clock.now() + 0.3
    door.void(held, door.clock.now())
    door.weather.state = "probing"
    assert caller(policy) == "fine"
    loop.run_until_complete(asyncio.gather(*waiting))
    loop.close()


def test_a_loop_that_is_blocked_finds_out_when_it_wakes():
    """Its calls have lost their patience meanwhile: they are refused then, and did not count as waiting before."""
    policy, door, held = narrow(patience=0.5)
    blocked, free = threading.Event(), threading.Event()

    async def main():
        calls = [asyncio.create_task(policy.acall(fine)) for _ in range(3)]
        await asyncio.sleep(0.01)
        blocked.set()
        free.wait(SOON)
        return await asyncio.gather(*calls, return_exceptions=True)

    results, thread = in_thread(lambda: asyncio.run(main()))
    blocked.wait(SOON)
    assert policy.shelter.waiters == 3
    until(lambda: policy.shelter.waiters == 0)
    free.set()
    thread.join(SOON)
    assert [type(result) for result in results[0]] == [abate.Refused] * 3
    door.void(held, door.clock.now())
    assert (door.weather.in_flight, door._leaders) == (0, {})


def test_one_whose_patience_is_over_is_given_no_ticket():
    """It sleeps, and who is awake goes at once."""
    with VirtualClock() as clock:
        _, door, held = narrow(patience=1.0)
        asleep = door.knock(0.0, 0.0, None, True)
        clock.advance(0.5)
        awake = door.knock(0.5, 0.5, None, True)
        clock.advance(0.7)
        door.void(held, 1.2)
        assert isinstance(awake.answer, Ticket)
        door.void(awake.answer, 1.2)
        assert asleep.answer is MISSED
        assert (door.waiters, door.weather.in_flight) == (0, 0)
        assert door.picked_up(asleep)
        assert asleep.answer == "late"


def test_a_thousand_in_a_closed_loop_are_passed_over():
    """One after the other, and not one within the other."""
    policy, door, held = narrow()
    policy.shelter.capacity = 5000
    door._room.capacity = 5000
    loop, waiting = left_behind(policy, 1200)
    results, thread = in_thread(lambda: policy.call(lambda: "fine"))
    until(lambda: policy.shelter.waiters == 1201)
    loop.close()
    door.answered(held, door.clock.now(), "")
    thread.join(SOON)
    assert results == ["fine"]
    assert (policy.shelter.waiters, door.weather.in_flight, door._leaders) == (0, 0, {})
    for task in waiting:
        task._log_destroy_pending = False


def test_a_loop_that_stands_still_is_told_once():
    """Its queue does not grow by those who ring in vain."""
    bells = []

    async def main():
        bells.append(AsyncioBell())

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    ready = len(loop._ready)
    in_thread(lambda: [bells[0].ring() for _ in range(100)])[1].join()
    assert len(loop._ready) <= ready + 1
    assert bells[0].ring()
    loop.close()
    assert not bells[0].ring()


def test_a_waiter_that_has_not_begun_to_wait_loses_its_ticket_too():
    """Whatever keeps it: the next one goes, and it asks again."""
    with VirtualClock() as clock:
        _, door, held = narrow()
        slow, other = door.knock(0.0, 0.0, None, True), door.knock(0.0, 0.0, None, True)
        door.void(held, 0.0)
        assert isinstance(slow.answer, Ticket)
        clock.advance(PICK_UP)
        door.knock(clock.now(), clock.now(), None, True)
        assert slow.answer is MISSED
        assert isinstance(other.answer, Ticket)
        assert not door.picked_up(slow)
        assert slow.answer is None
        assert door.weather.in_flight == 1


# -- within the door


def test_a_call_that_interrupts_the_door_neither_waits_nor_counts():
    """A signal handler may make a call at any point: it is sent, and what it has seen is told when the door is free."""
    policy, door, held = narrow()
    with inside(door._section):
        assert policy.call(lambda: "fine") == "fine"
        with pytest.raises(Down):
            policy.replace(attempts=1).call(failing)
        assert len(door._section.left) == 2
        assert policy.shelter.waiters == 0
        assert door.weather.failures == 0
    assert (door.weather.answers, door.weather.failures, door.weather.in_flight) == (1, 1, 1)
    assert not door._section.left
    door.void(held, door.clock.now())


def failing():
    raise Down


def test_signals_at_any_point_leave_nothing_behind():
    """A handler that makes a call, a thousand times a second, while the door is busy: nothing stuck, nothing lost."""
    policy = Policy(on=Down, attempts=3, backoff=[0.0], shelter=Shelter(), budget=abate.Budget.unlimited())
    door, handled = policy.shelter.door(), []

    def handler(*_):
        handled.append(policy.call(lambda: "fine"))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
        due = time.monotonic() + 0.5
        while time.monotonic() < due:
            door.weather.limit = 100.0
            policy.call(lambda: "fine")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert set(handled) == {"fine"}
    assert (door.weather.in_flight, door.waiters, len(door._section.left)) == (0, 0, 0)


# -- whatever happens


class Clock:
    """A clock that is moved by hand."""

    def __init__(self):
        self.time = 100.0

    def now(self):
        return self.time

    def sleep(self, seconds):
        raise AssertionError("nobody sleeps")


class Place:
    """An event loop, or the threads, which wake whatever happens."""

    def __init__(self, loop):
        self.loop, self.awake = loop, True


class Bell:
    """A bell that is heard in a place that is awake."""

    def __init__(self, place):
        self.where, self.place, self.rung = place, place if place.loop else None, False

    def ring(self):
        self.rung = True
        return True


class Sleepers(RuleBasedStateMachine):
    """Calls in several places, which fall asleep and wake: tickets are conserved, and who is awake is not held up."""

    @initialize(patience=st.sampled_from([0.5, 2.0, 20.0]), limit=st.sampled_from([1.0, 1.0, 2.0]), fine=st.booleans())
    def begin(self, patience, limit, fine):
        self.clock, self.limit, self.fine = Clock(), limit, fine
        self.door = Shelter(1000, patience, clock=self.clock).door()
        self.pin()
        self.places = [Place(True), Place(True), Place(False)]
        self.waiting, self.running, self.over = [], [], 0
        self.asked = 0

    def pin(self):
        """Weather that does not change, but for closing: what is tested here is the door."""
        weather = self.door.weather
        weather._worried = inf
        if not self.fine:
            weather.failed = inf
        if weather.state != "probing" and (weather.state, weather.limit) != ("storm", self.limit):
            weather.state, weather.limit = "storm", self.limit
            self.door.heed(False, -inf, inf)  # so that those who wait find out

    # -- what a driver does

    @rule(place=st.integers(0, 2), left=st.sampled_from([None, 0.3, 5.0]), times=st.integers(1, 4))
    def call(self, place, left, times):
        if not self.places[place].awake:
            return
        for _ in range(times):
            self.asked += 1
            answer = self.door.knock(self.clock.time, self.clock.time, left, True)
            if isinstance(answer, Waiter):
                answer.bell = Bell(self.places[place])
                self.waiting.append(answer)
                self.step(answer)
            elif isinstance(answer, Ticket):
                self.running.append(answer)
            else:
                self.over += 1
        self.settle()

    def step(self, waiter):
        if waiter.answer is not None and self.door.picked_up(waiter):
            self.waiting.remove(waiter)
            if isinstance(waiter.answer, Ticket):
                assert waiter.answer.out
                self.running.append(waiter.answer)
            else:
                self.over += 1
        else:
            waiter.bell.rung = False
            self.timer(waiter)

    def timer(self, waiter):
        waiter.bell.due = self.door.due(waiter)

    def ready(self):
        for waiter in self.waiting:
            if waiter.bell.where.awake and (waiter.bell.rung or self.clock.time >= waiter.bell.due):
                return waiter
        return None

    def settle(self):
        """Let everybody run who is awake."""
        for _ in range(10_000):
            self.pin()
            waiter = self.ready()
            if waiter is None:
                return
            if waiter.answer is None:
                self.door.look(waiter, self.clock.time)
            self.step(waiter)
        raise AssertionError("they never come to rest")

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.2, 0.3, 1.0, 3.0, 12.0]))
    def pass_time(self, seconds):
        end = self.clock.time + seconds
        while True:
            self.settle()
            due = min([waiter.bell.due for waiter in self.waiting if waiter.bell.where.awake], default=inf)
            if due > end:
                break
            self.clock.time = max(self.clock.time, due)
        self.clock.time = end
        self.settle()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["void", "void", "answered", "failed"]))
    def end(self, data, how):
        ticket = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.over += 1
        if how == "failed":
            self.door.failed(ticket, self.clock.time, Backoff(0.1, 1.0), None, None, False, "")
        elif how == "answered":
            self.door.answered(ticket, self.clock.time, "")
        else:
            self.door.void(ticket, self.clock.time)
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data):
        waiter = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.over += 1
        self.door.leave(waiter, self.clock.time)
        self.settle()

    @rule(place=st.integers(0, 1), awake=st.booleans())
    def fall_asleep_or_wake(self, place, awake):
        self.places[place].awake = awake
        self.settle()

    @rule(place=st.integers(0, 1), calls=st.integers(1, 3), other=st.integers(0, 2))
    def strand(self, place, calls, other):
        """Calls wait in a loop that falls asleep, another one comes behind them, and what was in flight ends."""
        self.fall_asleep_or_wake(place, True)
        self.call(place, None, calls)
        self.places[place].awake = False
        self.call(other, None, 1)
        while self.running:
            self.over += 1
            self.door.void(self.running.pop(), self.clock.time)
            self.settle()
        self.pass_time(PICK_UP)

    # -- what holds

    @invariant()
    def tickets_are_conserved(self):
        weather = self.door.weather
        out = [waiter.answer for waiter in self.waiting if isinstance(waiter.answer, Ticket)] + self.running
        assert all(ticket.out for ticket in out)
        assert weather.in_flight == sum(ticket.epoch == weather.epoch for ticket in out)
        assert self.asked == len(self.waiting) + len(self.running) + self.over

    @invariant()
    def who_is_awake_is_not_held_up(self):
        awake = [waiter for waiter in self.waiting if waiter.bell.where.awake]
        assert all(waiter.answer is None for waiter in awake)
        assert all(self.clock.time < waiter.deadline for waiter in awake)
        if awake:
            now = self.clock.time
            assert now < self.door._due(), "somebody could go"
            kept = [waiter for waiter in self.waiting if isinstance(waiter.answer, Ticket)]
            handed = {id(waiter): instant for instant, waiter in self.door._handed}
            assert all(now < handed[id(waiter)] + PICK_UP for waiter in kept)
        assert all(instant <= waiter.deadline for instant, waiter in self.door._handed)

    @invariant()
    def who_waits_is_counted(self):
        counted = self.door.waiters  # which passes over those who should have gone long since
        waiting = [waiter for waiter in self.waiting if waiter.answer is None]
        assert counted == len(waiting)
        assert all(waiter.deadline > self.clock.time - 2 * TIDY for waiter in waiting)

    def teardown(self):
        """When all are awake, everybody's call is over in the end."""
        if hasattr(self, "places"):
            for place in self.places:
                place.awake = True
            for _ in range(60):
                self.pass_time(1.0)
                while self.running:
                    self.door.answered(self.running.pop(), self.clock.time, "")
                    self.over += 1
                    self.settle()
            assert not self.waiting
            assert (self.door.waiters, self.door.weather.in_flight) == (0, 0)
            assert (self.door._leaders, len(self.door._handed)) == ({}, 0)


TestSleepers = Sleepers.TestCase
TestSleepers.settings = settings(deadline=None, max_examples=40, stateful_step_count=40)
