"""Critical sections that are safe to re-enter: what they promise, with a real collector and real signals as well."""

import itertools
import os
import subprocess
import sys
import textwrap
import threading

import pytest

import abate
from abate import reentrant_locks
from abate.reentrant_locks import Section
from tests.reentry import at_every_bytecode, guarded, held_elsewhere, interrupted_at

# -- the section itself


class Counter:
    """A count that is changed in two steps, and a log of the operations inside."""

    def __init__(self):
        self.section = Section()
        self.value = self.shadow = 0

    def add(self):
        self.section.run_or_defer(self._add)

    def _add(self):
        value = self.value
        self.value = value + 1
        self.shadow += 1

    def read(self):
        return self.section.call(self._read, otherwise=self._read)

    def _read(self):
        return self.value

    def take(self):
        return self.section.call(self._take, otherwise=lambda: "inside")

    def _take(self):
        self._add()
        return self.value


def quiet(section):
    """The section is free, and nothing is deferred."""
    assert section.busy is False
    assert section.deferred == []
    assert section.lock.acquire(timeout=0)
    section.lock.release()
    with pytest.raises(RuntimeError):
        section.lock.release()


def test_what_needs_no_answer_is_done_before_the_thread_goes_on():
    """An operation in the middle of another waits for it, and for nothing else."""
    section, seen = Section(), []

    def outer():
        section.run_or_defer(seen.append, "within")
        assert seen == []
        return "answer"

    assert section.call(outer, otherwise=str) == "answer"
    assert seen == ["within"]
    quiet(section)


def test_what_an_interrupted_operation_was_left_is_done_though_it_failed():
    """An error of the one in the middle is its own; what came meanwhile is not lost."""
    section, seen = Section(), []

    def outer():
        section.run_or_defer(seen.append, "within")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        section.call(outer, otherwise=str)
    assert seen == ["within"]
    with pytest.raises(ZeroDivisionError):
        section.run_or_defer(lambda: 1 / 0)
    quiet(section)


def test_an_operation_that_can_be_left_waits_for_another_thread_but_not_for_ever():
    """Two threads may be inside a section each, and be interrupted by what needs the other's."""
    counter = Counter()
    with held_elsewhere(counter.section):
        counter.add()
        assert counter.value == 0
        assert len(counter.section.deferred) == 1
    assert counter.read() == 1
    quiet(counter.section)


def test_two_threads_that_interrupt_each_other_both_go_on():
    """Each is inside one section and needs the other: a refund of one is left to the other, which gets its answer."""
    one, other = Counter(), Counter()
    meet = threading.Barrier(2)

    def cross(mine, theirs, interruption):
        def within():
            meet.wait(30)
            interruption(theirs)

        mine.section.call(within, otherwise=lambda: None)

    def body():
        beside = threading.Thread(target=cross, args=(one, other, Counter.add), daemon=True)
        beside.start()
        cross(other, one, Counter.read)
        beside.join()

    guarded(body)
    assert one.read() == 0
    assert other.read() == 1


def asking():
    """What `call` answers: 1 inside, and -1 where it can't wait."""
    section = Section()
    return section, lambda: section.call(int, 1, otherwise=lambda _: -1)


def withdrawing():
    """The last retry of a budget, asked for where nothing is prepaid."""
    state = abate.Budget(ratio=0.0, reserve=1.0, window=1.0, clock=lambda: 0.0).states.main
    return state.section, lambda: int(state.withdraw())


def observing():
    """An observation; what is left counts as soon as anybody is inside."""
    timeouts = abate.Timeouts(clock=lambda: 0.0)

    def observe():
        timeouts.observe(1.0)
        return timeouts._main.requests.total or -1

    return timeouts._main, observe


WAYS = [asking, withdrawing, observing]


@pytest.mark.parametrize("way", WAYS)
def test_a_thread_that_has_interrupted_nothing_waits_as_long_as_it_takes(way, monkeypatch):
    """However often its patience has ended."""
    section, operation = way()
    looks, answers = threading.Semaphore(0), []
    entering_with_timeout = Section.entering_with_timeout

    def counted(section):
        for taken in entering_with_timeout(section):
            looks.release()
            yield taken

    monkeypatch.setattr(Section, "entering_with_timeout", counted)
    monkeypatch.setattr(reentrant_locks, "MAX_WAIT", 0.001)
    waiting = threading.Thread(target=lambda: answers.append(operation()))
    with held_elsewhere(section):
        waiting.start()
        for _ in range(3):
            assert looks.acquire(timeout=10)
        assert answers == []
    waiting.join(60)
    assert answers == [1]
    quiet(section)


@pytest.mark.parametrize("way", WAYS)
def test_a_thread_that_has_interrupted_a_section_does_not_wait_for_another(way, monkeypatch):
    """The thread inside that one may wait for this one."""
    section, operation = way()
    monkeypatch.setattr(reentrant_locks, "MAX_WAIT", 0.001)
    with held_elsewhere(section):
        own = guarded(lambda: Section().call(operation, otherwise=int))
    assert own == (1 if way is withdrawing else -1)  # that one was prepaid before the other thread was inside
    section.run_deferred()
    quiet(section)
    if way is observing:
        assert section.requests.total == 1


def test_who_leaves_does_what_others_have_left_meanwhile():
    """Threads that leave their operations to the one inside lose none of them."""
    counter, threads = Counter(), 8

    def work():
        for _ in range(500):
            counter.add()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(before)
    assert (counter.read(), counter.shadow) == (threads * 500, threads * 500)
    quiet(counter.section)


def test_a_section_is_free_in_a_child_of_which_it_was_held_elsewhere():
    """The thread that was inside is not in the child."""
    counter = Counter()
    with held_elsewhere(counter.section):
        counter.section.after_fork()
        counter.add()
        assert counter.take() == 2
        quiet(counter.section)


def test_a_fork_by_an_interruption_leaves_this_thread_inside():
    """In the child the interrupted operation goes on, and is not disturbed before it has ended."""
    counter = Counter()

    def outer():
        counter.section.after_fork()
        counter.add()
        assert counter.value == 0

    counter.section.call(outer, otherwise=lambda: None)
    assert counter.read() == 1
    quiet(counter.section)


@pytest.mark.parametrize("interruption", ["add", "read", "take"])
@pytest.mark.parametrize("operation", ["add", "read", "take"])
def test_nothing_is_lost_or_broken_at_any_bytecode(operation, interruption):
    """The operation and what interrupts it are both done, whole, once each."""

    class Checked(Counter):
        def __init__(self):
            super().__init__()
            self.answers = []

        def do(self, name):
            self.answers.append(getattr(self, name)())

        def check(self):
            quiet(self.section)
            adds = sum(one != "read" for one in (operation, interruption)) - self.answers.count("inside")
            assert (self.value, self.shadow) == (adds, adds)

    steps = at_every_bytecode(Checked, lambda one: one.do(operation), lambda one: one.do(interruption))
    assert steps > 30


def test_many_interruptions_of_one_operation_are_all_done():
    """One after every hundred bytecodes; what interrupts is more work for the one that it interrupts."""
    counter, bytecodes = Counter(), itertools.count(1)

    def interrupt():
        if next(bytecodes) % 100 == 0:
            counter.add()

    guarded(lambda: interrupted_at(None, lambda: [counter.add() for _ in range(100)], interrupt))
    assert counter.value == counter.shadow == 100 + next(bytecodes) // 100
    assert counter.value > 110
    quiet(counter.section)


class Broken(BaseException):
    """What a signal handler raises."""


def broken(times, seen, what):
    """A function that is interrupted at its end, the given number of times."""
    left = [Broken] * times

    def act():
        seen.append(what)
        if left:
            raise left.pop()

    return act


def test_what_is_broken_off_is_done_again_and_so_is_what_was_left_behind_it():
    """The exception is raised when everything is done."""
    section, seen = Section(), []

    def outer():
        section.run_or_defer(broken(1, seen, "first"))
        section.run_or_defer(seen.append, "second")

    with pytest.raises(Broken):
        section.call(outer, otherwise=str)
    assert seen == ["first", "first", "second"]
    quiet(section)


def test_what_was_left_by_others_is_done_though_the_first_is_broken_off():
    """Several that are broken off, each one once."""
    section, seen = Section(), []

    def outer():
        for what in ("first", "second", "third"):
            section.run_or_defer(broken(1, seen, what))

    with pytest.raises(Broken):
        section.call(outer, otherwise=str)
    assert seen == ["first", "first", "second", "second", "third", "third"]
    quiet(section)


@pytest.mark.parametrize("way", ["run", "ask"])
def test_who_is_broken_off_before_it_has_begun_to_finish_finishes(way, monkeypatch):
    """Nothing is left deferred, as the next entry may be long in coming."""
    section, seen, finish = Section(), [], Section._run_deferred
    breaks = [Broken]

    def broken_off(self, entering):
        if breaks:
            raise breaks.pop()
        finish(self, entering)

    monkeypatch.setattr(Section, "_run_deferred", broken_off)
    with pytest.raises(Broken):
        if way == "run":
            section.run_or_defer(seen.append, "done")
        else:
            section.call(section.deferred.append, (seen.append, ("done",)), otherwise=str)
    assert seen == ["done"]
    quiet(section)


# -- the real thing: each in a process of its own, which ends with a traceback where it hangs

BEGIN = """
import faulthandler; faulthandler.dump_traceback_later(40, exit=True)
import asyncio, gc, itertools, os, signal, sys, threading, time
import abate
import logging
logging.getLogger("abate").addHandler(logging.NullHandler())
logging.getLogger("abate").propagate = False
sink = abate.observe.install(abate.observe.LoggingSink())
budget = abate.Budget(ratio=0.0, reserve=1e4, window=0.05)
bucket = abate.TokenBucket(rate=1e3, burst=5)
queue = abate.WorkQueue()
store = abate.open_store("memory:").queue("orders")
policy = abate.Policy(name="o", on=OSError, backoff=[60.0], budget=budget, gate=bucket & abate.ConcurrencyLimit(50))
quick = abate.Policy(name="q", on=OSError, backoff=[0.0], max_attempts=2, budget=budget, gate=abate.AdaptiveThrottle())
def down(): raise OSError
async def adown(): raise OSError
def call():
    try: quick.call(down)
    except (OSError, abate.Refused): pass
"""

ABANDONED = """
tasks = abate.AsyncWorkQueue()
end = time.monotonic() + 1.0
while time.monotonic() < end:
    loop = asyncio.new_event_loop()  # ends with tasks that wait: for a backoff, for tokens, for a key
    for _ in range(5):
        for waiting in (policy.acall(adown), bucket.aacquire(), tasks.get()):
            loop.create_task(waiting)._log_destroy_pending = False
    for _ in range(2): loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    for _ in range(50):
        bucket.try_acquire(); budget.balance(); budget.try_withdraw()
        tasks.add("a"); tasks.done(tasks.take(1)[0])
gc.collect()
assert policy.gate.gates[1].held == 0, policy.gate
assert len(tasks) == 0 and tasks.in_hand == 0
print("went on")
"""

SIGNALS = """
handled, added, numbers = [], [], itertools.count()
def handler(*_):  # which other signals interrupt
    n = next(numbers)
    call(); bucket.try_acquire(); budget.balance()
    queue.add(n); queue.add("a"); handled.append(n)
    try: store.add(f"handler/{n}"); added.append(n)
    except abate.StoreError: pass
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
end, own = time.monotonic() + 1.0, 0
taken = set()
while time.monotonic() < end:
    call(); bucket.try_acquire(); budget.balance()
    own += 1
    queue.add("a"); store.add(f"own/{own}")
    for key in queue.take(100):
        taken.add(key); queue.done(key)
signal.setitimer(signal.ITIMER_REAL, 0)
for key in queue.take(10**6):
    taken.add(key); queue.done(key)
assert taken >= set(handled), set(handled) - taken
assert store.depth().ready == own + len(added), (store.depth(), own, len(added))
assert len(handled) > 50, handled
print("went on")
"""

BOTH = """
gc.set_threshold(1)
stop = threading.Event()
def beside():
    while not stop.is_set():
        attempts = policy.attempts()
        def work():
            for attempt in attempts:
                with attempt: raise OSError
                yield
        abandoned = work(); next(abandoned, None)
        me = [abandoned]; me.append(me)
        del abandoned, me, work
        call()
threads = [threading.Thread(target=beside, daemon=True) for _ in range(3)]
for thread in threads: thread.start()
signal.signal(signal.SIGALRM, lambda *_: call())
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
end = time.monotonic() + 1.0
while time.monotonic() < end: call(); budget.balance()
signal.setitimer(signal.ITIMER_REAL, 0)
stop.set()
for thread in threads: thread.join()
print("went on")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs timers that send signals")
@pytest.mark.parametrize("program", [ABANDONED, SIGNALS, BOTH], ids=["abandoned calls", "signal handlers", "both"])
def test_calls_that_interrupt_calls_don_t_hang(program):
    """Budgets, buckets, permits, queues, a store and a sink, all interrupted at points that the interpreter chooses."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(BEGIN + program)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout == "went on\n", ended.stderr[-3000:]
