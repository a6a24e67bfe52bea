"""What queues of keys for threads and for tasks share: what they refuse, count and tell; nothing here waits."""

import doctest
import os
import random
import signal
import threading

import pytest

import abate
from abate.testing import VirtualClock
from abate.wakeups import ThreadWakeup
from abate.work import AsyncWorkQueue, QueueFull, ShutDown, WorkQueue, queue_waiters, work_queue, work_queue_base
from tests.reentry import PACKAGE, PATIENCE, at_every_bytecode, held_elsewhere

BOTH = pytest.mark.parametrize("kind", [WorkQueue, AsyncWorkQueue])
SOURCE = os.path.join(PACKAGE, "work")
STEADY = abate.Backoff(1.0, 60.0, jitter="none")


@BOTH
@pytest.mark.parametrize("method", ["add", "add_after", "add_rate_limited"])
def test_what_is_no_key_or_no_priority_is_refused(kind, method):
    """With an error that names it; nothing has been added, and no failure counted."""
    keys = kind()

    def call(key, priority=0):
        rest = (1.0,) if method == "add_after" else ()
        getattr(keys, method)(key, *rest, priority=priority)

    with pytest.raises(TypeError, match=r"a key must be hashable, not \['a'\]"):
        call(["a"])
    with pytest.raises(TypeError, match="a key must not be None"):
        call(None)
    with pytest.raises(ValueError, match="priority must be a whole number of at least 0, not -1"):
        call("a", -1)
    for wrong in (1.5, "1", True):
        with pytest.raises(TypeError, match="priority must be a whole number"):
            call("a", wrong)
    assert (len(keys), keys.delayed, keys.requeues("a")) == (0, 0, 0)


@BOTH
@pytest.mark.parametrize("seconds", ["1", None, float("nan"), float("inf")])
def test_seconds_are_a_number(kind, seconds):
    """Neither a string, nor NaN or infinity."""
    with pytest.raises((TypeError, ValueError), match="seconds must be a number"):
        kind().add_after("a", seconds)


@BOTH
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 0}, "capacity must be a whole number of at least 1, not 0"),
        ({"capacity": 1.5}, "capacity must be a whole number of at least 1, not 1.5"),
        ({"rate": 0}, "rate must be a number above 0, not 0"),
        ({"rate": "fast"}, "rate must be a number above 0, not 'fast'"),
        ({"burst": 0}, "burst must be a whole number of at least 1, not 0"),
        ({"clock": 5}, "clock must have now"),
    ],
)
def test_a_queue_says_what_it_cannot_be(kind, arguments, message):
    """Each argument by its name."""
    with pytest.raises((TypeError, ValueError), match=message):
        kind(**arguments)


@BOTH
def test_done_is_for_what_is_in_hand(kind):
    """Neither for a key that was not taken, nor twice."""
    keys = kind()
    keys.add("a")
    with pytest.raises(ValueError, match="'a' is not in hand"):
        keys.done("a")
    assert len(keys) == 1


@BOTH
def test_a_full_queue_refuses_another_key(kind):
    """Those of later are counted too; one that waits already is not another."""
    keys = kind(capacity=2)
    keys.add("a")
    keys.add_after("b", 60.0)
    for refused in (lambda: keys.add("c"), lambda: keys.add_after("c", 1.0), lambda: keys.add_rate_limited("c")):
        with pytest.raises(QueueFull, match="the queue is full: it holds 2 keys"):
            refused()
    keys.add("a")
    keys.add("b")
    assert (len(keys), keys.delayed) == (2, 0)


@BOTH
@pytest.mark.parametrize("state", ["unknown", "ready", "in hand", "to come back"])
def test_after_shutdown_nothing_is_added(kind, state):
    """Neither now nor later, nor a key that is there already; what was added before is still delivered."""
    keys = kind()
    if state != "unknown":
        keys.add("a")
    if state in ("in hand", "to come back"):
        assert keys.take(1) == ["a"]
    if state == "to come back":
        keys.add("a")
    adds = keys.adds
    keys.shutdown()
    for refused in (
        lambda: keys.add("a"),
        lambda: keys.add("a", priority=3),
        lambda: keys.add_after("a", 1.0),
        lambda: keys.add_after("a", 0.0),
        lambda: keys.add_rate_limited("a"),
    ):
        with pytest.raises(ShutDown, match="the queue is shut down"):
            refused()
    assert (keys.adds, keys.requeues("a")) == (adds, 0)
    if keys.in_hand:
        keys.done("a")
    assert keys.take(9) == (["a"] if state in ("ready", "to come back") else [])


@BOTH
def test_a_batch_is_what_is_ready_now(kind):
    """At most the given number, due keys included; each is in hand, and the call does not wait."""
    with VirtualClock() as clock:
        keys = kind()
        assert keys.take(3) == []
        for key in "abc":
            keys.add(key)
        keys.add_after("due", 1.0)
        keys.add_after("later", 2.0)
        assert keys.take(2) == ["a", "b"]
        clock.advance(1.0)
        assert (keys.take(0), keys.take(5), keys.take(5)) == ([], ["c", "due"], [])
        assert (keys.in_hand, clock.now()) == (4, 1.0)
        keys.shutdown()
        assert keys.take(1) == []
        for wrong in (-1, 1.5, None):
            with pytest.raises((TypeError, ValueError), match="max_keys must be a whole number of at least 0"):
                keys.take(wrong)


@BOTH
def test_adds_are_counted(kind):
    """Those of a key that was waiting apart; those that were refused not at all."""
    keys = kind(capacity=2, backoff=STEADY)
    for key in "aaba":
        keys.add(key)
    keys.add("a", priority=1)
    keys.add_after("b", 1.0)
    keys.add_rate_limited("b")
    for refused in (lambda: keys.add("c"), lambda: keys.add(None), lambda: keys.add_after("c", 1.0)):
        with pytest.raises((QueueFull, TypeError)):
            refused()
    assert (keys.adds, keys.coalesced, len(keys)) == (7, 5, 2)


@BOTH
def test_a_key_that_fails_comes_back_no_earlier_than_asked(kind):
    """The longer of its backoff and what was asked for counts."""
    with VirtualClock():
        keys = kind(backoff=STEADY)
        assert [keys.add_rate_limited("a", least=least) for least in (0.0, 5, 1.0)] == [1.0, 5.0, 4.0]
        for wrong in (-1.0, float("nan"), "1"):
            with pytest.raises((TypeError, ValueError), match="least must be a number at least 0"):
                keys.add_rate_limited("a", least=wrong)
        assert keys.requeues("a") == 3


@BOTH
def test_a_key_that_fails_backs_off_by_itself(kind):
    """Until it is forgotten; the rate is for all together."""
    with VirtualClock() as clock:
        keys = kind(backoff=STEADY, rate=0.25, burst=3)
        assert [keys.add_rate_limited(key) for key in "aabb"] == [1.0, 2.0, 1.0, 4.0]
        assert (keys.requeues("a"), keys.delayed, keys.next_due()) == (2, 2, 1.0)
        keys.forget("a")
        assert keys.requeues("a") == 0
        clock.advance(100.0)
        assert keys.add_rate_limited("c") == 1.0
        assert keys.age() == 99.0
        assert kind(backoff=[5.0], rng=random.Random(1)).add_rate_limited("a") == 5.0


def test_the_age_is_that_of_the_oldest_key():
    """Also of one that came due without an operation in between."""
    with VirtualClock() as clock:
        keys = WorkQueue()
        assert keys.age() == 0.0
        keys.add_after("a", 2.0)
        clock.advance(1.0)
        keys.add("b")
        assert (keys.get(), keys.age()) == ("b", 0.0)
        clock.advance(4.0)
        assert (keys.age(), len(keys), keys.delayed, keys.in_hand) == (3.0, 1, 0, 1)


@pytest.mark.parametrize("module", [work_queue_base, queue_waiters, work_queue])
def test_the_examples_are_true(module):
    """Those in the documentation."""
    assert doctest.testmod(module).failed == 0


def within(queue, interruption):
    """What an interruption gets in the middle of an operation of the same thread."""
    return queue._section.call(interruption, otherwise=lambda: None)


def test_what_a_signal_handler_does_in_the_middle_of_an_operation_is_done_after_it():
    """Keys are added, done, put off and cancelled; nothing is handed out meanwhile."""
    with VirtualClock() as clock:
        queue = abate.WorkQueue(backoff=abate.Backoff(1.0, jitter="none"))
        queue.add("in hand")
        assert queue.get() == "in hand"
        queue.add_after("off", 60.0)
        queue.add("waiting")

        def interruption():
            queue.add("one")
            queue.add_after("two", 5.0)
            assert queue.add_rate_limited("three") == 1.0
            assert queue.cancel("off")
            queue.done("in hand")
            queue.done("in hand")  # the error of another operation
            assert queue.take(5) == []
            assert (queue.next_due(), queue.age()) == (60.0, 0.0)
            with pytest.raises(RuntimeError, match="can't wait"):
                queue.get()

        within(queue, interruption)
        assert (queue.in_hand, queue.requeues("three"), queue.delayed) == (0, 1, 2)
        assert queue.take(5) == ["waiting", "one"]
        clock.advance(10.0)
        assert queue.take(5) == ["three", "two"]
        assert queue.adds == 6


def test_a_full_or_closed_queue_refuses_a_signal_handler_as_anybody():
    """What it takes it keeps, also where others have filled it meanwhile."""
    queue = abate.WorkQueue(capacity=1)

    def interruption():
        queue.add("one")
        queue.add("two")  # there was room for one more when it was looked
        queue.add_after("three", 5.0)

    within(queue, interruption)
    assert (len(queue), queue.delayed) == (2, 1)
    for add in (queue.add, lambda key: queue.add_after(key, 1.0), queue.add_rate_limited):
        with pytest.raises(abate.QueueFull):
            within(queue, lambda add=add: add("four"))
    within(queue, queue.shutdown)
    for add in (queue.add, lambda key: queue.add_after(key, 1.0), queue.add_rate_limited):
        with pytest.raises(abate.ShutDown):
            within(queue, lambda add=add: add("four"))
    assert queue.take(5) == ["one", "two"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_uses_a_queue_that_another_thread_was_in():
    """The thread is not in the child, and no waiter of the parent is woken there."""
    queue = abate.WorkQueue()
    queue._getters.append(ThreadWakeup())
    with held_elsewhere(queue._section):
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends a child that hangs
            queue.add("a")
            os._exit(0 if queue.get() == "a" and not queue._getters else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class InHand:
    """A queue whose only key is in hand, and what is done with that key by a worker and by a producer."""

    def __init__(self, before):
        self.clock = VirtualClock()
        self.queue = WorkQueue(clock=self.clock)
        self.queue.add("key")
        assert self.queue.get() == "key"
        self.before = before
        if before == "added":
            self.queue.add("key")
        elif before == "delayed":
            self.queue.add_after("key", 1.0)
            self.clock.advance(1.0)

    def add(self):
        """Add the key; or let it be due, after a delay that was asked for."""
        if self.before == "delayed":
            self.queue.age()
        else:
            self.queue.add("key", priority=1)

    def done(self):
        self.queue.done("key")

    def check(self):
        """The key comes back once, whichever was first, and nothing is left of it."""
        assert self.queue.take(2) == ["key"]
        self.queue.done("key")
        assert (len(self.queue), self.queue.in_hand, self.queue.delayed) == (0, 0, 0)
        self.queue.add("key", priority=1)
        self.queue.add("other")
        assert self.queue.take(3) == ["key", "other"]
        self.queue.done("key")
        self.queue.done("other")
        assert self.queue.coalesced == (self.before == "added")
        self.queue.drain(timeout=0.0)


def in_another_thread(act):
    """Call it in a thread, and wait for the thread as long as it does not need the lock that this thread may hold."""
    thread = threading.Thread(target=act)
    thread.start()
    thread.join(0.005)
    return thread


@pytest.mark.parametrize("before", ["nothing", "added", "delayed"])
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(("operation", "interruption"), [("add", "done"), ("done", "add")])
def test_a_key_that_is_added_in_the_middle_of_its_done_comes_back_once(operation, interruption, elsewhere, before):
    """At every bytecode; also if it is done in the middle of the add, by the same thread or by another one."""
    threads = []

    def interrupt(thing):
        act = getattr(thing, interruption)
        if elsewhere:
            threads.append(in_another_thread(act))
        else:
            act()

    def operate(thing):
        getattr(thing, operation)()

    class Joined(InHand):
        def check(self):
            for thread in threads:
                thread.join(PATIENCE)
            super().check()

    assert at_every_bytecode(lambda: Joined(before), operate, interrupt, where=SOURCE) > 9


class Awaited:
    """A queue that is shut down while its only key is in hand."""

    def __init__(self):
        self.queue, self.is_done = WorkQueue(), False
        self.queue.add("key")
        assert self.queue.get() == "key"
        self.queue.shutdown()

    def drain(self):
        self.queue.drain(timeout=PATIENCE)

    def get(self):
        with pytest.raises(ShutDown):
            self.queue.get(timeout=PATIENCE)

    def done(self):
        if not self.is_done:
            self.is_done = True
            self.queue.done("key")

    def check(self):
        assert not self.queue.in_hand


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("operation", [Awaited.drain, Awaited.get])
def test_a_waiter_sees_a_key_that_is_done_before_it_waits(operation, elsewhere, monkeypatch):
    """At every bytecode, or at last when it waits, it is woken: no wait lasts until its timeout."""
    begun, wait = [], ThreadWakeup.wait

    def make():
        begun[:] = [Awaited()]
        return begun[0]

    def wait_until_woken(wakeup, clock, seconds):
        begun[0].done()
        assert wait(wakeup, clock, seconds), "nothing has woken it"
        return True

    monkeypatch.setattr(ThreadWakeup, "wait", wait_until_woken)
    interrupt = (lambda thing: in_another_thread(thing.done)) if elsewhere else Awaited.done
    assert at_every_bytecode(make, operation, interrupt, where=SOURCE) > 9
