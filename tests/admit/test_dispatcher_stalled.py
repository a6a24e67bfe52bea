"""Waiters in event loops that are stopped, blocked or closed do not hold up other calls."""

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
from abate.admit import shelter_core
from abate.admit.limiter import Permit
from abate.admit.shelter_core import CLAIM_TIMEOUT, MISSED_TURN, STALLED_AFTER
from abate.admit.shelter_queue import Waiter
from abate.testing import VirtualClock
from abate.wakeups import AsyncioWakeup
from tests.reentry import inside

SOON = 8.0
"""Seconds within which something has happened, however busy the machine is; before, it took longer or for ever."""


class Down(Exception):
    """What a dependency raises while it is down."""


def narrow(patience=60.0, **settings):
    """Return a policy, the dispatcher of its shelter, and the only permit."""
    policy = Policy(
        on=Down, max_attempts=50, backoff=Backoff(0.01, 0.02), shelter=Shelter(patience=patience), **settings
    )
    dispatcher = policy.shelter.dispatcher()
    dispatcher.limiter.limit, dispatcher.limiter.state = 1.0, "storm"
    dispatcher.limiter.last_failure = dispatcher.clock.now() + 60.0  # no call is sent for its patience alone
    return policy, dispatcher, dispatcher.try_enter(dispatcher.clock.now(), dispatcher.clock.now(), None, True)


def left_behind(policy, tasks=5):
    """Return an event loop that is stopped while calls wait in it, and these calls."""

    async def fine():
        return "fine"

    loop = asyncio.new_event_loop()
    waiting = [loop.create_task(policy.acall(fine)) for _ in range(tasks)]
    loop.run_until_complete(asyncio.sleep(0.01))
    assert policy.shelter.waiters == tasks
    return loop, waiting


def in_thread(function):
    """Run a function in a thread; return its results, and the thread."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    return results, thread


def until(condition):
    """Wait until the condition holds."""
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


@pytest.mark.parametrize("given", [False, True], ids=["waiting", "with a permit"])
def test_a_dropped_loop_is_collected(given, monkeypatch):
    """The shelter keeps no reference to an event loop that never runs again: its permits are returned."""
    monkeypatch.setattr(shelter_core, "STALLED_AFTER", 0.02)
    monkeypatch.setattr(shelter_core, "CLAIM_TIMEOUT", 0.02)
    policy, dispatcher, held = narrow(patience=0.3)
    loop, waiting = left_behind(policy)
    for task in waiting:
        task._log_destroy_pending = False
    if given:
        dispatcher.answered(held, dispatcher.clock.now(), "")
    loop._ssock.close(), loop._csock.close(), loop._selector.close()
    loop._closed = True  # not by close(), which would empty it: the loop is just dropped
    dropped = weakref.ref(loop)
    del loop, waiting, task

    def is_gone():
        dispatcher.abandoned(dispatcher.limiter.send(dispatcher.clock.now()), dispatcher.clock.now())
        gc.collect()
        return dropped() is None

    until(is_gone)
    assert policy.shelter.waiters == 0


@pytest.mark.parametrize("given", [False, True], ids=["waiting", "with a permit"])
def test_a_dropped_loop_is_collected_without_further_calls(given):
    """In calm no call reaches the shelter: the permits of the loop's tasks are returned all the same."""
    policy, dispatcher, held = narrow(patience=60.0)
    gate = abate.ConcurrencyLimit(10)
    gated = abate.Policy(on=ConnectionError, gate=gate)
    loop, waiting = left_behind(policy)

    async def in_flight():
        await asyncio.sleep(60.0)

    task = loop.create_task(gated.acall(in_flight))
    loop.run_until_complete(asyncio.sleep(0.01))
    assert gate.held == 1
    if given:
        dispatcher.answered(held, dispatcher.clock.now(), "")
    for dropped in (*waiting, task):
        dropped._log_destroy_pending = False
    loop._ssock.close(), loop._csock.close(), loop._selector.close()
    loop._closed = True  # dropped, not closed: close() would empty it
    gone = weakref.ref(loop)
    del loop, waiting, task, dropped
    gc.collect()
    assert gone() is None
    assert gate.held == 0
    assert (dispatcher.core.queue.size, dispatcher.core.timekeepers._by_loop) == (0, {})


@pytest.mark.parametrize("queued", ["get", "put"])
def test_a_dropped_loop_is_collected_while_its_tasks_wait_in_a_queue(queued):
    """A queue that outlives the loop keeps no reference to it."""
    queue = abate.AsyncWorkQueue(capacity=1)
    if queued == "put":
        queue.add("first")

    async def wait():
        await (queue.get() if queued == "get" else queue.put("second"))

    loop = asyncio.new_event_loop()
    task = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0.01))
    task._log_destroy_pending = False
    loop._ssock.close(), loop._csock.close(), loop._selector.close()
    loop._closed = True
    gone = weakref.ref(loop)
    del loop, task
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS)
def test_a_stopped_loop_does_not_hold_up_other_calls(caller):
    """The permit goes to the next running waiter; when the loop runs again, its calls get their turn."""
    policy, dispatcher, held = narrow()
    loop, waiting = left_behind(policy)
    results, thread = in_thread(lambda: caller(policy))
    until(lambda: policy.shelter.waiters == 6)
    dispatcher.answered(held, dispatcher.clock.now(), "")
    thread.join(SOON)
    assert results == ["fine"]
    assert loop.run_until_complete(asyncio.gather(*waiting)) == ["fine"] * 5
    assert (
        policy.shelter.waiters,
        dispatcher.limiter.in_flight,
        dispatcher.core.timekeepers._by_loop,
        list(dispatcher.core.granted),
    ) == (0, 0, {}, [])
    loop.close()


@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS)
def test_the_timekeeper_is_a_running_waiter(caller):
    """The shelter opens by the passing of time alone, while all earlier waiters sit in a stopped loop."""
    policy, dispatcher, held = narrow()
    loop, waiting = left_behind(policy, 2)
    dispatcher.limiter.prober.next_probe = dispatcher.clock.now() + 0.3
    dispatcher.abandoned(held, dispatcher.clock.now())
    dispatcher.limiter.state = "probing"
    assert caller(policy) == "fine"
    loop.run_until_complete(asyncio.gather(*waiting))
    loop.close()


def test_calls_of_a_blocked_loop_are_refused_when_it_resumes():
    """Their patience has ended meanwhile: they no longer count as waiting, and are refused."""
    policy, dispatcher, held = narrow(patience=0.5)
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
    dispatcher.abandoned(held, dispatcher.clock.now())
    assert (dispatcher.limiter.in_flight, dispatcher.core.timekeepers._by_loop) == (0, {})


def test_a_waiter_past_its_patience_gets_no_permit():
    """It is in a blocked loop; the next running waiter is sent at once."""
    with VirtualClock() as clock:
        _, dispatcher, held = narrow(patience=1.0)
        asleep = dispatcher.try_enter(0.0, 0.0, None, True)
        clock.advance(0.5)
        awake = dispatcher.try_enter(0.5, 0.5, None, True)
        clock.advance(0.7)
        dispatcher.abandoned(held, 1.2)
        assert isinstance(awake.answer, Permit)
        dispatcher.abandoned(awake.answer, 1.2)
        assert asleep.answer is MISSED_TURN
        assert (dispatcher.waiters, dispatcher.limiter.in_flight) == (0, 0)
        assert dispatcher.claim_answer(asleep)
        assert asleep.answer == "late"


def test_a_thousand_waiters_of_a_closed_loop_are_skipped():
    """They are skipped by iteration, without recursion."""
    policy, dispatcher, held = narrow()
    policy.shelter.capacity = 5000
    dispatcher.core.queue.capacity = 5000
    loop, waiting = left_behind(policy, 1200)
    results, thread = in_thread(lambda: policy.call(lambda: "fine"))
    until(lambda: policy.shelter.waiters == 1201)
    loop.close()
    dispatcher.answered(held, dispatcher.clock.now(), "")
    thread.join(SOON)
    assert results == ["fine"]
    assert (policy.shelter.waiters, dispatcher.limiter.in_flight, dispatcher.core.timekeepers._by_loop) == (0, 0, {})
    for task in waiting:
        task._log_destroy_pending = False


def test_a_stopped_loop_is_woken_once():
    """Its callback queue does not grow with repeated wake-ups."""
    wakeups = []

    async def main():
        wakeups.append(AsyncioWakeup())

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    ready = len(loop._ready)
    in_thread(lambda: [wakeups[0].notify() for _ in range(100)])[1].join()
    assert len(loop._ready) <= ready + 1
    assert wakeups[0].notify()
    loop.close()
    assert not wakeups[0].notify()


def test_a_waiter_that_has_not_begun_to_wait_loses_its_permit():
    """The next waiter is sent, and this one asks again."""
    with VirtualClock() as clock:
        _, dispatcher, held = narrow()
        slow, other = dispatcher.try_enter(0.0, 0.0, None, True), dispatcher.try_enter(0.0, 0.0, None, True)
        dispatcher.abandoned(held, 0.0)
        assert isinstance(slow.answer, Permit)
        clock.advance(CLAIM_TIMEOUT)
        dispatcher.try_enter(clock.now(), clock.now(), None, True)
        assert slow.answer is MISSED_TURN
        assert isinstance(other.answer, Permit)
        assert not dispatcher.claim_answer(slow)
        assert slow.answer is None
        assert dispatcher.limiter.in_flight == 1


# -- re-entry


def test_a_call_that_interrupts_the_dispatcher_neither_waits_nor_counts():
    """A signal handler's call is sent, and its outcome is recorded when the dispatcher is free."""
    policy, dispatcher, held = narrow()
    with inside(dispatcher._section):
        assert policy.call(lambda: "fine") == "fine"
        with pytest.raises(Down):
            policy.replace(max_attempts=1).call(failure_ratio)
        assert len(dispatcher._section.deferred) == 2
        assert policy.shelter.waiters == 0
        assert dispatcher.limiter.failures == 0
    assert (dispatcher.limiter.answers, dispatcher.limiter.failures, dispatcher.limiter.in_flight) == (1, 1, 1)
    assert not dispatcher._section.deferred
    dispatcher.abandoned(held, dispatcher.clock.now())


def failure_ratio():
    raise Down


def test_signals_at_any_point_leave_no_permit_or_waiter():
    """A handler makes a call a thousand times a second while the dispatcher is busy: nothing hangs or is lost."""
    policy = Policy(on=Down, max_attempts=3, backoff=[0.0], shelter=Shelter(), budget=abate.Budget.unlimited())
    dispatcher, handled = policy.shelter.dispatcher(), []

    def handler(*_):
        handled.append(policy.call(lambda: "fine"))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
        due = time.monotonic() + 0.5
        while time.monotonic() < due:
            dispatcher.limiter.limit = 100.0
            policy.call(lambda: "fine")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert set(handled) == {"fine"}
    assert (dispatcher.limiter.in_flight, dispatcher.waiters, len(dispatcher._section.deferred)) == (0, 0, 0)


# -- state machine


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.time = 100.0

    def now(self):
        return self.time

    def sleep(self, seconds):
        raise AssertionError("this clock cannot sleep")


class Place:
    """An event loop, or the threads, which always run."""

    def __init__(self, loop):
        self.loop, self.awake = loop, True


class Wakeup:
    """A wake-up that takes effect if its place is running."""

    def __init__(self, place):
        self.where, self.loop, self.rung = place, place if place.loop else None, False

    def notify(self):
        self.rung = True
        return True


class Sleepers(RuleBasedStateMachine):
    """Calls in several places, which stop and resume: permits are conserved, and running waiters are not held up."""

    @initialize(patience=st.sampled_from([0.5, 2.0, 20.0]), limit=st.sampled_from([1.0, 1.0, 2.0]), fine=st.booleans())
    def begin(self, patience, limit, fine):
        self.clock, self.limit, self.fine = Clock(), limit, fine
        self.dispatcher = Shelter(1000, patience, clock=self.clock).dispatcher()
        self.pin()
        self.places = [Place(True), Place(True), Place(False)]
        self.waiting, self.running, self.over = [], [], 0
        self.asked = 0

    def pin(self):
        """Fix the limiter except for closing: the dispatcher is tested here."""
        limiter = self.dispatcher.limiter
        limiter._last_trouble = inf
        if not self.fine:
            limiter.last_failure = inf
        if limiter.state != "probing" and (limiter.state, limiter.limit) != ("storm", self.limit):
            limiter.state, limiter.limit = "storm", self.limit
            self.dispatcher.apply_remote(False, -inf, inf)  # so that waiters notice

    # -- what a driver does

    @rule(place=st.integers(0, 2), left=st.sampled_from([None, 0.3, 5.0]), times=st.integers(1, 4))
    def call(self, place, left, times):
        if not self.places[place].awake:
            return
        for _ in range(times):
            self.asked += 1
            answer = self.dispatcher.try_enter(self.clock.time, self.clock.time, left, True)
            if isinstance(answer, Waiter):
                answer.wakeup = Wakeup(self.places[place])
                self.waiting.append(answer)
                self.step(answer)
            elif isinstance(answer, Permit):
                self.running.append(answer)
            else:
                self.over += 1
        self.settle()

    def step(self, waiter):
        if waiter.answer is not None and self.dispatcher.claim_answer(waiter):
            self.waiting.remove(waiter)
            if isinstance(waiter.answer, Permit):
                assert waiter.answer.out
                self.running.append(waiter.answer)
            else:
                self.over += 1
        else:
            waiter.wakeup.rung = False
            self.timer(waiter)

    def timer(self, waiter):
        waiter.wakeup.due = self.dispatcher.due(waiter)

    def ready(self):
        for waiter in self.waiting:
            if waiter.wakeup.where.awake and (waiter.wakeup.rung or self.clock.time >= waiter.wakeup.due):
                return waiter
        return None

    def settle(self):
        """Let every running waiter run."""
        for _ in range(10_000):
            self.pin()
            waiter = self.ready()
            if waiter is None:
                return
            if waiter.answer is None:
                self.dispatcher.on_timer(waiter, self.clock.time)
            self.step(waiter)
        raise AssertionError("they never come to rest")

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.2, 0.3, 1.0, 3.0, 12.0]))
    def pass_time(self, seconds):
        end = self.clock.time + seconds
        while True:
            self.settle()
            due = min([waiter.wakeup.due for waiter in self.waiting if waiter.wakeup.where.awake], default=inf)
            if due > end:
                break
            self.clock.time = max(self.clock.time, due)
        self.clock.time = end
        self.settle()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["void", "void", "answered", "failed"]))
    def end(self, data, how):
        permit = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.over += 1
        if how == "failed":
            self.dispatcher.failed(permit, self.clock.time, Backoff(0.1, 1.0), None, None, False, "")
        elif how == "answered":
            self.dispatcher.answered(permit, self.clock.time, "")
        else:
            self.dispatcher.abandoned(permit, self.clock.time)
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data):
        waiter = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.over += 1
        self.dispatcher.leave(waiter, self.clock.time)
        self.settle()

    @rule(place=st.integers(0, 1), awake=st.booleans())
    def fall_asleep_or_wake(self, place, awake):
        self.places[place].awake = awake
        self.settle()

    @rule(place=st.integers(0, 1), calls=st.integers(1, 3), other=st.integers(0, 2))
    def strand(self, place, calls, other):
        """Calls wait in a loop that stops, another call arrives behind them, and an attempt in flight ends."""
        self.fall_asleep_or_wake(place, True)
        self.call(place, None, calls)
        self.places[place].awake = False
        self.call(other, None, 1)
        while self.running:
            self.over += 1
            self.dispatcher.abandoned(self.running.pop(), self.clock.time)
            self.settle()
        self.pass_time(CLAIM_TIMEOUT)

    # -- invariants

    @invariant()
    def tickets_are_conserved(self):
        limiter = self.dispatcher.limiter
        out = [waiter.answer for waiter in self.waiting if isinstance(waiter.answer, Permit)] + self.running
        assert all(permit.out for permit in out)
        assert limiter.in_flight == sum(permit.epoch == limiter.epoch for permit in out)
        assert self.asked == len(self.waiting) + len(self.running) + self.over

    @invariant()
    def who_is_awake_is_not_held_up(self):
        awake = [waiter for waiter in self.waiting if waiter.wakeup.where.awake]
        assert all(waiter.answer is None for waiter in awake)
        assert all(self.clock.time < waiter.deadline for waiter in awake)
        if awake:
            now = self.clock.time
            assert now < self.dispatcher.core.due(), "a waiter could be sent"
            kept = [waiter for waiter in self.waiting if isinstance(waiter.answer, Permit)]
            handed = {id(waiter): instant for instant, waiter in self.dispatcher.core.granted}
            assert all(now < handed[id(waiter)] + CLAIM_TIMEOUT for waiter in kept)
        assert all(instant <= waiter.deadline for instant, waiter in self.dispatcher.core.granted)

    @invariant()
    def who_waits_is_counted(self):
        counted = self.dispatcher.waiters  # which skips waiters that should have been sent long ago
        waiting = [waiter for waiter in self.waiting if waiter.answer is None]
        assert counted == len(waiting)
        assert all(waiter.deadline > self.clock.time - 2 * STALLED_AFTER for waiter in waiting)

    def teardown(self):
        """When all places run, every call ends."""
        if hasattr(self, "places"):
            for place in self.places:
                place.awake = True
            for _ in range(60):
                self.pass_time(1.0)
                while self.running:
                    self.dispatcher.answered(self.running.pop(), self.clock.time, "")
                    self.over += 1
                    self.settle()
            assert not self.waiting
            assert (self.dispatcher.waiters, self.dispatcher.limiter.in_flight) == (0, 0)
            assert (self.dispatcher.core.timekeepers._by_loop, len(self.dispatcher.core.granted)) == ({}, 0)


TestSleepers = Sleepers.TestCase
TestSleepers.settings = settings(deadline=None, max_examples=40, stateful_step_count=40)


@pytest.mark.parametrize("patience", [2.0, 20.0])
def test_a_loop_that_wakes_has_a_timekeeper_though_its_first_waiter_leaves(patience):
    """Its timekeeper was dropped while it was stalled, and is out of time; a waiter behind it keeps the time then."""
    state = Sleepers()
    state.begin(patience, 1.0, False)
    for calls, place in [(1, 1), (3, 1), (1, 0), (1, 1)]:
        state.strand(place, calls, 0)
    state.pass_time(1.0)
    state.strand(0, 1, 0)
    state.fall_asleep_or_wake(1, True)
    state.who_is_awake_is_not_held_up()
    state.pass_time(12.0)
    state.who_is_awake_is_not_held_up()
    state.teardown()
