"""Hedged attempts in threads, which cannot be cancelled. The tests wait for events, not for time."""

import os
import threading

import pytest

import abate
from abate import Budget, ConcurrencyLimit, Policy
from abate.call.hedge import Hedge
from abate.schedule.timeouts import Timeouts
from abate.testing import Script, VirtualClock
from tests.reentry import PACKAGE, Interrupted, raised_at


class Bench:
    """Attempts in threads that wait for each other and not for time."""

    def __init__(self, *plans):
        self.plans = plans
        self.begun = [threading.Event() for _ in plans]
        self.go = [threading.Event() for _ in plans]
        self.threads = []
        self.left = []
        self._lock = threading.Lock()

    def __call__(self):
        with self._lock:
            number = len(self.threads)
            self.threads.append(threading.current_thread())
        self.left.append(abate.remaining())
        self.begun[number].set()
        assert self.go[number].wait(60)
        end = self.plans[number]
        if isinstance(end, BaseException):
            raise end
        return end

    def finish(self):
        for go in self.go:
            go.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def bench():
    benches = []

    def build(*plans):
        benches.append(Bench(*plans))
        return benches[-1]

    yield build
    for built in benches:
        built.finish()


def calling(hedge, function):
    """Makes a hedged call in a thread of its own; `join` gives its answer or error."""
    box = []

    def body():
        try:
            box.append(hedge.call(function))
        except BaseException as error:
            box.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()

    def join():
        thread.join(60)
        assert not thread.is_alive()
        return box[0]

    return join


def quick(**settings):
    """Timeouts that have learned to hedge after some milliseconds."""
    return learned(0.005, **settings)


def learned(seconds, **settings):
    timeouts = Timeouts(0.01, **settings)
    for _ in range(100):
        timeouts.observe(seconds)
    return timeouts


def make(policy=None, timeouts=None):
    return Hedge(policy or Policy(on=OSError, max_attempts=1), timeouts or learned(10.0))


def test_an_answer_is_passed_on(counting_budget):
    """With the arguments, and without a hedge."""
    budget = counting_budget()
    assert make(Policy(on=OSError, budget=budget)).call(divmod, 7, 2) == (3, 1)
    assert (budget.requested, budget.deposited) == (0, 1)


def test_the_second_attempt_may_win(bench, counting_budget):
    """The loser goes on, and its result is dropped."""
    budget, work = counting_budget(), bench("slow", "quick")
    join = calling(make(Policy(on=OSError, budget=budget), quick()), work)
    assert work.begun[1].wait(60)
    work.go[1].set()
    assert join() == "quick"
    assert work.threads[0].is_alive()
    assert (budget.granted, budget.refunded, budget.deposited) == (1, 0, 1)
    work.finish()


def test_the_first_attempt_may_win(bench):
    """Though a second one was sent."""
    work = bench("first", "second")
    join = calling(make(timeouts=quick()), work)
    assert work.begun[1].wait(60)
    work.go[0].set()
    assert join() == "first"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_failure_waits_for_the_other(bench, order):
    """And where both fail, the error that came first is raised."""
    errors = [OSError("first"), OSError("second")]
    work = bench(*errors)
    timeouts = quick()
    join = calling(make(timeouts=timeouts), work)
    assert work.begun[1].wait(60)
    work.go[order[0]].set()
    work.threads[order[0]].join(60)
    work.go[order[1]].set()
    assert join() is errors[order[0]]


def test_an_attempt_has_a_deadline(bench):
    """The learned timeout of a request, which clients inside keep; or what the caller has left, if that is less."""
    work = bench("slow", "quick")
    join = calling(make(timeouts=quick(floor=20.0)), work)
    assert work.begun[1].wait(60)
    work.go[1].set()
    join()
    assert all(10.0 < left <= 20.0 for left in work.left)
    with abate.deadline(5.0):
        assert make(timeouts=quick(floor=20.0)).call(abate.remaining) <= 5.0
    assert abate.remaining() is None


def test_no_budget_means_no_hedge(bench):
    """The first attempt is waited for: its answer comes, and there was no other."""

    class Empty(Budget):
        """Has nothing, and says when it was asked."""

        def try_withdraw(self, now=None):
            asked.set()
            return False

    asked, work = threading.Event(), bench("slow", "never")
    join = calling(make(Policy(on=OSError, budget=Empty()), quick()), work)
    assert asked.wait(60)
    work.go[0].set()
    assert join() == "slow"
    assert len(work.threads) == 1


@pytest.mark.parametrize("gated", [True, False])
def test_a_hedge_for_which_there_is_no_thread_is_refunded(bench, counting_budget, scripted_gate, gated):
    """A thread whose stack does not fit into memory cannot be started; the first attempt is waited for."""
    asked = threading.Event()

    class Asked(counting_budget):
        """Takes the room for further threads away when the hedge is about to be sent."""

        def try_withdraw(self, now=None):
            threading.stack_size(2**46)
            asked.set()
            return super().try_withdraw(now)

    class Refunded(scripted_gate):
        """Keeps count of refunds among those that leave."""

        def refund(self):
            self.left.append("refunded")

    budget, gate, work = Asked(), Refunded() if gated else None, bench("slow", "never")
    join = calling(make(Policy(on=OSError, budget=budget, gate=gate), quick()), work)
    try:
        assert asked.wait(60)
        work.go[0].set()
        assert join() == "slow"
    finally:
        threading.stack_size(0)
    assert (budget.granted, budget.refunded) == (1, 1)
    assert gate is None or gate.left == ["refunded", True]
    assert len(work.threads) == 1


@pytest.mark.parametrize(("second", "accepted"), [("fine", True), (OSError(), False), (SystemExit(), None)])
def test_a_permit_is_held_until_the_attempt_has_ended(bench, second, accepted):
    """Also by one that has lost; it is given back with what became of it."""
    left = threading.Event()
    seen = []

    class Watched(abate.Gate):
        """Says when the second attempt leaves, which no policy does."""

        name = "watched"

        def enter(self, retry):
            return None

        def leave(self, accepted):
            if threading.current_thread() in work.threads:
                seen.append(accepted)
                left.set()

    work = bench("first", second)
    join = calling(make(Policy(on=OSError, gate=Watched()), quick()), work)
    assert work.begun[1].wait(60)
    work.go[0].set()
    assert join() == "first"
    assert not seen
    work.go[1].set()
    assert left.wait(60)
    assert seen == [accepted]


def test_an_exit_in_an_attempt_reaches_the_caller(bench):
    """It is no failure, and the other attempt is not waited for."""
    work = bench("slow", SystemExit(3))
    join = calling(make(timeouts=quick()), work)
    assert work.begun[1].wait(60)
    work.go[1].set()
    assert isinstance(join(), SystemExit)


def test_a_loser_counts_as_slow(bench):
    """When the second attempt has won, the first is slower than that; it is not counted again when it ends."""
    timeouts, work = quick(), bench("slow", "quick")
    join = calling(make(timeouts=timeouts), work)
    assert work.begun[1].wait(60)
    work.go[1].set()
    join()
    assert timeouts._main.requests.total == 101
    assert timeouts._main.requests._top > timeouts._bucket(0.005)
    work.finish()
    assert timeouts._main.requests.total == 101


def test_failures_are_retried():
    """By the policy, around the race."""
    assert make(Policy(on=OSError, backoff=[0.0])).call(Script(OSError(), "fine")) == "fine"


def test_the_attempt_that_loses_keeps_the_deadline_of_its_call():
    """It belongs to the call, whose block is over when the other has answered."""
    numbers, left, go, ended = iter((1, 2)), [], threading.Event(), threading.Event()

    def work():
        if next(numbers) == 2:
            return "quick"
        go.wait(60)
        left.append(abate.remaining())
        ended.set()

    assert make(Policy(on=OSError, timeout=5.0), quick(floor=3600.0, ceiling=3600.0)).call(work) == "quick"
    assert abate.remaining() is None
    go.set()
    assert ended.wait(60)
    assert left[0] <= 5.0


def test_a_signal_handler_that_raises_leaves_no_permit_behind():
    """Wherever the caller is interrupted: a second attempt that was not begun is refunded, and it begins no more."""

    def tried(step):
        permits, budget = ConcurrencyLimit(5), Budget(ratio=0.0, reserve=1.0, window=10.0, clock=VirtualClock())
        begun, go = [], threading.Event()

        def work():
            begun.append(threading.current_thread())
            (go.wait if len(begun) == 1 else go.set)()

        hedge = make(Policy(on=OSError, max_attempts=1, gate=permits, budget=budget), quick())
        found = raised_at(step, lambda: hedge.call(work), os.path.join(PACKAGE, "call"))
        go.set()
        for thread in threading.enumerate():
            if thread.name == "abate hedge":
                thread.join(60)
        assert (permits.held, budget.balance()) == (0, 11.0 - max(1, len(begun))), f"raised at point {step}"
        return found

    points = next(step for step in range(1, 1000) if not tried(step))
    assert points > 20


def test_a_hedge_whose_thread_begins_after_an_interrupt_is_not_sent(bench, counting_budget, monkeypatch):
    """The interrupted caller has refunded it."""
    late = []

    class Late(threading.Thread):
        """Begins when the test runs it, if it is the second; the caller is interrupted."""

        def start(self):
            if work.threads:
                late.append(self)
                raise Interrupted
            super().start()
            assert work.begun[0].wait(60)

    monkeypatch.setattr(abate.call.hedge, "Thread", Late)
    budget, permits, work = counting_budget(), ConcurrencyLimit(5), bench("slow", "never")
    with pytest.raises(Interrupted):
        make(Policy(on=OSError, budget=budget, gate=permits), quick()).call(work)
    assert (budget.granted, budget.refunded, permits.held) == (1, 1, 0)
    late[0].run()
    assert len(work.threads) == 1
    assert permits.held == 0
