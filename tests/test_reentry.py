"""Every lock of the package, interrupted at every bytecode by every operation of the same object and thread.

A lock that is not in `LOCKS` fails a test: a new one needs a reason why it is safe, and a trial here.
"""

import ast
import contextlib
import itertools
import pathlib
import types

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

import abate
from abate import event_sinks, events
from abate.call.counters import CallCounter, TotalsByName, WrapperVersions
from abate.observe.lasting_totals import LastingTotals
from abate.observe.log_writer import LogWriter
from abate.observe.otel import OpenTelemetrySink, SharedState
from abate.observe.page.recent_activity import RecentActivity
from abate.observe.prometheus import PrometheusSink
from abate.stores import StoreError
from abate.stores.message_waits import Wakeups
from abate.stores.postgres import listener as postgres_bells
from abate.stores.postgres import pool as postgres_pool
from abate.stores.redis.connection import RedisConnection
from abate.stores.sqlite.database import Database
from abate.testing import VirtualClock
from abate.wakeups import ThreadWakeup
from tests.reentry import MAX_STEPS, at_every_bytecode

SOURCE = pathlib.Path(abate.__file__).parent
ARCHITECTURE = pathlib.Path(__file__).parent.parent / "docs" / "architecture.md"

TESTED = "tested"
PRIVATE = "private to one call or one wait"
ELSEWHERE = "tested where the rest of it is"
LOCKS = {
    ("wakeups.py", "ThreadWakeup"): PRIVATE,
    ("admit/breaker.py", "Circuit"): TESTED,
    ("admit/bucket.py", "BucketState"): TESTED,
    ("admit/budget_state.py", "BudgetState"): TESTED,
    ("admit/dispatcher.py", "Dispatcher"): ELSEWHERE,
    ("admit/throttle.py", "ThrottleState"): TESTED,
    ("call/counters.py", "TotalsByName"): TESTED,
    ("call/counters.py", "WrapperVersions"): TESTED,
    ("cli/page.py", "_run"): PRIVATE,
    ("clients/grpc_stream.py", "Stream"): ELSEWHERE,
    ("clients/warm.py", "_open_all"): PRIVATE,
    ("event_sinks.py", "_Changes"): TESTED,
    ("reentrant_locks.py", "Section"): ELSEWHERE,
    ("observe/queue_depths.py", "DepthReading"): PRIVATE,
    ("observe/lasting_totals.py", "LastingTotals"): TESTED,
    ("observe/detached.py", "Detached"): TESTED,
    ("observe/otel.py", "SharedState"): TESTED,
    ("observe/otel.py", "OpenTelemetrySink"): TESTED,
    ("observe/page/recent_activity.py", "RecentActivity"): TESTED,
    ("observe/prometheus.py", "PrometheusSink"): TESTED,
    ("observe/log_sampler.py", "LogSampler"): TESTED,
    ("schedule/timeouts.py", "LatencyCounts"): TESTED,
    ("stores/message_waits.py", "Wakeups"): TESTED,
    ("stores/fleet/background_sync.py", "FleetSync"): ELSEWHERE,
    ("stores/postgres/listener.py", "Listener"): TESTED,
    ("stores/sqlite/database.py", "Database"): TESTED,
    ("testing/virtual_clock.py", "VirtualClock"): TESTED,
    ("work/queue_waiters.py", "QueueWaiters"): TESTED,
    ("work/source_client.py", "ThreadReceive"): PRIVATE,
}
WITHOUT = ("admit/concurrency.py", "call/counters.py Tick", "stores/postgres/pool.py", "stores/redis/connection.py")
"""What has no lock, and is tried in the same way."""

KINDS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier", "Section"}


def constructed(path):
    """The classes and functions of a file that make, or are, a lock."""
    text = path.read_text()
    tree = ast.parse(
        text if "threading" in text or "abate.reentrant_locks" in text or path.name == "reentrant_locks.py" else ""
    )
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("threading", "abate.reentrant_locks")
        for alias in node.names
        if alias.name in KINDS
    }
    for top in tree.body:
        for node in ast.walk(top):
            function = node.func if isinstance(node, ast.Call) else None
            if (isinstance(function, ast.Name) and function.id in names) or (
                isinstance(function, ast.Attribute)
                and isinstance(function.value, ast.Name)
                and function.value.id == "threading"
                and function.attr in KINDS
            ):
                yield top.name if hasattr(top, "name") else ast.unparse(top)
        if isinstance(top, ast.ClassDef) and any(isinstance(base, ast.Name) and base.id in names for base in top.bases):
            yield top.name


def test_every_lock_is_known():
    """One that is new needs a reason why it is safe to re-enter, and one that is gone none."""
    found = {
        (str(path.relative_to(SOURCE)), name)
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] != "sim"  # whose threads run simulations of their own
        for name in constructed(path)
    }
    assert found == set(LOCKS)


def test_every_lock_that_can_be_reached_is_tried():
    """What is said to be tested is."""
    assert {lock for lock, why in LOCKS.items() if why == TESTED} == {lock for one in CASES for lock in one.locks}


def test_every_lock_is_in_the_documentation():
    """With the reason why it is safe."""
    table = ARCHITECTURE.read_text().split("## Locks")[1].split("\n## ")[0]
    paths = {path for path, _ in LOCKS} | {one.split()[0] for one in WITHOUT}
    assert [path for path in sorted(paths) if f"`{path}`" not in table] == []


# -- cases


class Case:
    """Something with a lock: how to make one, what can be done to it, and what holds afterwards.

    An operation is a method whose name begins with ``do_``. `notes` says which of them were carried out: what an
    operation returns is noted with it.
    """

    locks = ()
    where = str(SOURCE)
    interrupting = None
    """What can interrupt, where that is not everything."""
    every = 1
    """Of all bytecodes one is tried for each pair of operations, and another one for the next pair."""

    def __init__(self):
        self.notes = []
        self.make()

    def make(self):
        raise NotImplementedError

    def check(self):
        raise NotImplementedError

    @classmethod
    def operations(cls):
        return [name for name in dir(cls) if name.startswith("do_")]

    @classmethod
    def pairs(cls):
        interrupting = cls.interrupting or cls.operations()
        return list(itertools.product(cls.operations(), interrupting))

    def do(self, name):
        self.notes.append((name[3:], getattr(self, name)()))

    def noted(self, *names):
        """What these operations have returned."""
        return [answer for name, answer in self.notes if name in names]


def quiet(section):
    """The section is free, and nothing is deferred."""
    assert section.busy is False
    assert section.deferred == []
    with pytest.raises(RuntimeError):
        section.lock.release()


class OfBudget(Case):
    """Nothing is overspent, wrongly refused, lost or counted twice."""

    locks = (("admit/budget_state.py", "BudgetState"),)
    interrupting = ("do_withdraw", "do_refund", "do_deposit")
    every = 7
    left = 4

    def make(self):
        now = [0.5]
        self.budget = abate.Budget(ratio=0.5, reserve=0.0, window=50.0, clock=lambda: now[0])
        for _ in range(20):
            self.budget.deposit()
        assert all(self.budget.try_withdraw() for _ in range(10 - self.left))
        now[0] = 1.5  # in the next slot, so that the next operation folds

    def do_withdraw(self):
        return self.budget.try_withdraw()

    def do_refund(self):
        self.budget.refund()

    def do_deposit(self):
        self.budget.deposit()

    def do_look(self):
        self.budget.deposit_and_start_batch()

    def do_read(self):
        assert self.budget.balance() >= 0
        assert 0 <= self.budget.share() <= 1

    def check(self):
        withdrawn = self.noted("withdraw")
        assert all(withdrawn)
        deposits = len(self.noted("deposit", "look"))
        assert self.budget.balance() == self.left - len(withdrawn) + len(self.noted("refund")) + deposits / 2
        quiet(self.budget.states.main.section)


class OfTheLastRetry(OfBudget):
    """Of two that want it one gets it."""

    locks = ()
    interrupting = ("do_withdraw",)
    every = 1
    left = 1

    @classmethod
    def operations(cls):
        return ["do_withdraw"]

    def check(self):
        # who interrupts is refused where it is not sure, and then the other one gets it
        assert sorted(self.noted("withdraw")) == [False, True]
        assert self.budget.balance() == 0.0
        quiet(self.budget.states.main.section)


class OfBucket(Case):
    """Tokens are conserved, and there are enough for all."""

    locks = (("admit/bucket.py", "BucketState"),)

    def make(self):
        self.bucket = abate.TokenBucket(rate=1.0, burst=20, clock=VirtualClock())
        self.level = self.bucket._states.main
        self.level.tokens = 15.0

    def do_take(self):
        return self.bucket.try_acquire(3)

    def do_refund(self):
        self.bucket.refund()

    def do_claim(self):
        return self.bucket._reserve(self.level, 2, None).due == 0.0

    def check(self):
        self.level.charge_owed()
        assert all(self.noted("take", "claim"))
        taken = 3 * len(self.noted("take")) + 2 * len(self.noted("claim"))
        assert self.level.tokens == 15.0 - taken + len(self.noted("refund"))
        assert (self.level.asked, self.level.owed) == (0, [])
        quiet(self.level.section)


class OfEmptyBucket(Case):
    """No call takes tokens that do not exist; one that is interrupted while it waits returns what it had taken."""

    locks = ()

    def make(self):
        self.bucket = abate.TokenBucket(rate=1.0, burst=2, clock=VirtualClock())
        self.level = self.bucket._states.main
        self.level.tokens = 0.0
        self.reservations = [self.bucket._reserve(self.level, 1, None) for _ in range(2)]

    def do_take(self):
        return self.bucket.try_acquire()

    def do_claim(self):
        claim = self.bucket._reserve(self.level, 1, None)
        self.reservations.append(claim)
        return claim.due

    def do_break_off(self):
        self.bucket._abandon(self.level, self.reservations.pop())

    def do_refund(self):
        self.bucket.refund()

    def check(self):
        self.level.charge_owed()
        assert not any(self.noted("take"))
        assert all(due >= 1.0 for due in self.noted("claim"))
        made, broken = len(self.noted("claim")), len(self.noted("break_off"))
        for claim in self.reservations:
            self.bucket._abandon(self.level, claim)  # the wait has ended: all tokens come back
        assert not self.level.reservations
        assert self.level.tokens == min(2.0, len(self.noted("refund"))) + 0.0 * (made + broken)
        quiet(self.level.section)


class OfPermits(Case):
    """No more are held than there are, and none gets lost."""

    def make(self):
        self.permits = abate.ConcurrencyLimit(3)
        assert self.permits.try_acquire()

    def do_take(self):
        return self.permits.try_acquire()

    def do_release(self):
        before = self.permits.held
        self.permits.release()
        return before

    def check(self):
        assert all(self.noted("take"))
        held = self.permits.held
        # the second of two releases finds nothing to release
        assert held == max(0, 1 + len(self.noted("take")) - len(self.noted("release")))
        assert sum(self.permits.try_acquire() for _ in range(10)) == 3 - held


class OfThrottle(Case):
    """Everything is counted once."""

    locks = (("admit/throttle.py", "ThrottleState"),)

    def make(self):
        self.throttle = abate.AdaptiveThrottle(clock=VirtualClock())
        for _ in range(3):
            self.throttle.enter(retry=False)
            self.throttle.leave(accepted=True)

    def do_enter(self):
        return self.throttle.enter(retry=False)

    def do_leave(self):
        self.throttle.leave(accepted=True)

    def do_refund(self):
        self.throttle.refund()

    def do_read(self):
        assert 0 <= self.throttle.probability() <= 1

    def check(self):
        tally = self.throttle._states.main
        assert self.noted("enter") == [None] * len(self.noted("enter"))
        assert tally.requests.total == 3 + len(self.noted("enter")) - len(self.noted("refund"))
        assert tally.accepts.total == 3 + len(self.noted("leave"))
        quiet(tally.section)


class OfBreaker(Case):
    """Everything is counted once; what enters while it is closed is admitted."""

    locks = (("admit/breaker.py", "Circuit"),)
    every = 2
    failures = 2

    def make(self):
        now = [0.5]
        self.breaker = abate.CircuitBreaker(min_calls=5, window=50.0, pause=10.0, clock=lambda: now[0])
        for _ in range(4):
            self.breaker.enter(retry=False)
        for _ in range(self.failures):
            self.breaker.failed(accepted=False)
        now[0] = 1.5  # in the next slot, so that the next outcome rolls the window

    def do_enter(self):
        return self.breaker.enter(retry=False) is not None

    def do_succeed(self):
        self.breaker.leave(accepted=True)

    def do_fail(self):
        self.breaker.failed(accepted=False)

    def do_err(self):
        self.breaker.failed(accepted=True)

    def do_void(self):
        self.breaker.leave(accepted=None)

    def do_read(self):
        return self.breaker.allowed() > 0 or self.breaker.seconds_until_half_open() > 0

    def do_record(self):
        return self.breaker.record(True)

    def check(self):
        circuit = self.breaker._circuits.main
        assert not any(self.noted("enter"))
        ended = self.noted("succeed", "fail", "err", "void")
        assert circuit._in_flight == max(0, 4 - self.failures - len(ended)) + len(self.noted("enter"))
        good, failed, erred = circuit._counts
        assert good.total == len(self.noted("succeed", "record"))
        assert (failed.total, erred.total) == (self.failures + len(self.noted("fail")), len(self.noted("err")))
        assert (circuit.tripped, circuit.trips, circuit.unreported_seconds) == (False, 0, 0.0)
        quiet(circuit.section)


class Told:
    """A sink that is called on the spot."""

    inline = True

    def __init__(self):
        self.events = []

    def __call__(self, event):
        self.events.append(event)


class OfTrippingBreaker(OfBreaker):
    """It trips once, and tells so once."""

    locks = ()
    every = 3
    failures = 3

    def make(self):
        super().make()
        self.breaker.failed(accepted=False)
        assert self.breaker.enter(retry=False) is None
        self.told = Told()
        event_sinks.install(self.told)

    def do_record(self):
        return self.breaker.record(False, taken=0)

    def check(self):
        event_sinks.remove(self.told)
        circuit = self.breaker._circuits.main
        trips = bool(self.noted("fail", "err", "record"))
        assert (circuit.tripped, circuit.trips, circuit.unreported_seconds) == (trips, int(trips), 0.0)
        assert len(self.told.events) + sum(seconds > 0 for seconds in self.noted("record")) == trips
        assert circuit._older <= circuit._in_flight
        quiet(circuit.section)


class OfHalfOpenBreaker(Case):
    """Of two that enter at most one is on trial, and its place comes back."""

    locks = ()

    def make(self):
        now = [0.5]
        self.breaker = abate.CircuitBreaker(min_calls=1, pause=10.0, clock=lambda: now[0])
        self.breaker.record(False)
        now[0] = 100.0

    def do_enter(self):
        return self.breaker.enter(retry=False) is None

    def do_read(self):
        assert self.breaker.allowed() == 1
        assert self.breaker.seconds_until_half_open() == 0.0

    def check(self):
        circuit = self.breaker._circuits.main
        assert circuit._in_flight == sum(self.noted("enter")) <= 1
        if circuit._in_flight:
            self.breaker.refund()
        assert self.breaker.enter(retry=False) is None
        assert self.breaker.enter(retry=False) is self.breaker
        assert circuit._in_flight == 1
        quiet(circuit.section)


class OfTimeouts(Case):
    """No observation is lost, and a timeout is never below what is known."""

    locks = (("schedule/timeouts.py", "LatencyCounts"),)
    every = 4

    def make(self):
        now = [0.0]
        self.timeouts = abate.Timeouts(false_rate=0.25, ceiling=5.0, half_life=10.0, clock=lambda: now[0])
        for _ in range(3):
            self.timeouts.observe(1.0)
        now[0] = 11.0  # the next one drops what is old
        self.timeouts.observe(1.0)
        now[0] = 22.0

    def do_observe(self):
        self.timeouts.observe(1.0)

    def do_connect(self):
        self.timeouts.observe_connect(1.0)

    def do_read(self):
        return self.timeouts.request(), self.timeouts.connect(), self.timeouts.quantile(0.5)

    def check(self):
        here = self.timeouts._main
        for request, connect, quantile in self.noted("read"):
            assert min(request, connect, quantile) > 0.97
        here._drop_old()
        requests, connects = 1 + len(self.noted("observe")), len(self.noted("connect"))
        for histogram, seen in ((here.requests, requests), (here.connects, connects)):
            assert histogram.total == sum(histogram._counts) == seen
        quiet(here)


class OfRoll(Case):
    """Counts of policies that come and go are all there."""

    locks = (("call/counters.py", "TotalsByName"),)

    def make(self):
        self.call_totals, self.kept = TotalsByName(), []
        self.do_come_and_go()

    def do_come_and_go(self):
        tally = CallCounter("orders")
        self.call_totals.track(tally)
        tally.begun.add()
        tally.good.add()

    def do_come(self):
        tally = CallCounter("orders")
        self.kept.append(tally)
        self.call_totals.track(tally)
        tally.begun.add()
        tally.bad.add()

    def do_read(self):
        return self.call_totals.totals()["orders"]

    def check(self):
        total = self.call_totals.totals()["orders"]
        assert (total.good, total.bad) == (1 + len(self.noted("come_and_go")), len(self.noted("come")))
        assert total.begun == total.good + total.bad
        quiet(self.call_totals._section)


class OfTick(Case):
    """A count is exact, and never goes back."""

    interrupting = ("do_count", "do_read")

    @classmethod
    def operations(cls):
        return ["do_read"]  # to count is one operation of an iterator

    def make(self):
        self.counter = CallCounter()

    def do_count(self):
        self.counter.begun.add()

    def do_read(self):
        return self.counter.begun.read(), self.counter.in_flight

    def check(self):
        assert self.counter.begun.read() == len(self.noted("count"))
        assert all(0 <= seen <= flying <= 2 for seen, flying in self.noted("read"))


class OfWatch(Case):
    """Sinks that count are counted, and every wrapper runs the code for that number."""

    locks = (("call/counters.py", "WrapperVersions"),)

    def make(self):
        self.watch, self.stand_ins = WrapperVersions(), []
        self.watch.start_counting()
        self.do_keep()

    def do_come(self):
        self.watch.start_counting()

    def do_go(self):
        self.watch.stop_counting()

    def do_keep(self):
        plain, counted = (lambda: "plain").__code__, (lambda: "counted").__code__
        stand_in = types.FunctionType(plain, {"_a_version": lambda counts, bound: counted if counts else plain})
        self.watch.keep(stand_in)
        self.stand_ins.append(stand_in)

    def check(self):
        watchers = max(0, 1 + len(self.noted("come")) - len(self.noted("go")))
        assert self.watch.on == (watchers > 0)
        assert {stand_in() for stand_in in self.stand_ins} == {"counted" if watchers else "plain"}
        quiet(self.watch._section)


class OfEvents(Case):
    """Every sink that was installed, and not removed, is there once."""

    locks = (("event_sinks.py", "_Changes"),)

    def make(self):
        self.before = event_sinks.installed
        self.numbers = itertools.count()
        self.there = event_sinks.install(lambda event: None)
        self.mine = [self.there]

    def do_install(self):
        number = next(self.numbers)
        sink = lambda event: number  # noqa: E731
        self.mine.append(sink)
        event_sinks.install(sink)
        return sink

    def do_remove(self):
        event_sinks.remove(self.there)

    def check(self):
        try:
            gone = [self.there] if self.noted("remove") else []
            assert sorted(map(id, event_sinks.installed)) == sorted(
                map(id, [*self.before, *(sink for sink in self.mine if sink not in gone)])
            )
            quiet(event_sinks._changes)
        finally:
            for sink in self.mine:
                event_sinks.remove(sink)


class OfWorkQueue(Case):
    """No key is lost, none is handed out twice, and all are counted."""

    locks = (("work/queue_waiters.py", "QueueWaiters"),)
    where = str(SOURCE / "work")
    interrupting = ("do_add", "do_add_again", "do_add_rate_limited", "do_break_off", "do_done", "do_look", "do_take")
    every = 11

    def make(self):
        self.clock = VirtualClock(start=100.0)
        self.queue = abate.WorkQueue(clock=self.clock)
        self.numbers = itertools.count()
        for key in ("one", "two", "three"):
            self.queue.add(key)
        self.queue.add_after("later", -1.0)
        self.queue.add_after("much later", 1000.0)
        self.taken = [self.queue.get(0.0), self.queue.get(0.0)]
        self.wakeup = ThreadWakeup()
        self.queue._getters.append(self.wakeup)  # a waiter that has to be woken
        self.added = 4

    def _added(self):
        self.added += 1

    def do_add(self):
        self.queue.add(("new", next(self.numbers)), priority=1)
        self._added()

    def do_add_again(self):
        self.queue.add("three")

    def do_add_after(self):
        self.queue.add_after(("new", next(self.numbers)), 0.0)
        self._added()

    def do_add_rate_limited(self):
        assert self.queue.add_rate_limited(("new", next(self.numbers))) >= 0.0
        self._added()

    def do_take(self):
        self.taken += self.queue.take(1)

    def do_get(self):
        try:
            self.taken.append(self.queue.get(0.0))
        except RuntimeError as error:
            assert "can't wait" in str(error)

    def do_done(self):
        with contextlib.suppress(IndexError):
            self.queue.done(self.taken.pop(0))

    def do_break_off(self):
        self.queue._abandon_get(self.wakeup)

    def do_look(self):
        self.queue.next_due(), self.queue.age(), self.queue.plans(), self.queue.forget("one"), self.queue.adds

    def do_cancel(self):
        return self.queue.cancel("much later")

    def check(self):
        queue = self.queue
        quiet(queue._section)
        assert queue.in_hand == len(self.taken)
        assert any(self.noted("cancel")) == bool(self.noted("cancel"))
        gone = len([1 for _ in self.noted("done")])
        ready = len(queue) + queue.delayed + any(self.noted("cancel")) - 1
        assert ready + len(self.taken) + min(gone, self.added) >= self.added
        delivered = {*self.taken, *queue.take(1000)}
        self.clock.advance(10_000.0)
        delivered |= set(queue.take(1000))
        assert len({*delivered, "much later"}) + gone >= self.added + 1
        assert queue.adds == self.added + 1 + len(self.noted("add_again"))
        assert queue.in_hand == len(delivered)


class OfShutdown(Case):
    """A queue that a signal handler shuts down delivers what is ready, and takes nothing new."""

    locks = ()
    interrupting = ("do_shutdown",)

    def make(self):
        self.queue = abate.WorkQueue(clock=VirtualClock())
        self.queue.add("one")
        self.queue.add_after("later", 10.0)

    def do_shutdown(self):
        self.queue.shutdown()

    def do_add(self):
        try:
            self.queue.add("two")
        except abate.ShutDown:
            return "shut down"

    def do_get(self):
        return self.queue.get(0.0)

    def check(self):
        quiet(self.queue._section)
        with pytest.raises(abate.ShutDown):
            self.queue.add("three")
        added = [] if "shut down" in self.noted("add") else self.noted("add")
        expected = {"one"} | ({"two"} if added else set())
        assert {*self.noted("get"), *self.queue.take(10)} == expected
        assert self.queue.delayed == 0


class OfFullQueue(Case):
    """A key for which there was room is not lost if other adds fill the queue meanwhile."""

    locks = ()

    def make(self):
        self.queue = abate.WorkQueue(capacity=2, clock=VirtualClock())
        self.numbers = itertools.count()
        self.queue.add("one")

    def do_add(self):
        key = next(self.numbers)
        try:
            self.queue.add(key)
        except abate.QueueFull:
            return None
        return key

    def check(self):
        quiet(self.queue._section)
        added = {key for key in self.noted("add") if key is not None}
        assert added
        assert set(self.queue.take(10)) == {"one"} | added


class OfBells(Case):
    """Every waiter that is notified is woken, and none is left in the list."""

    locks = (("stores/message_waits.py", "Wakeups"),)

    def make(self):
        self.wakeups = Wakeups(lambda: False)
        self.standing = self.wakeups.waiting("orders")
        self.waiters = self.standing.__enter__()
        self.asleep = ThreadWakeup()
        self.wakeups._start_waiting(self.waiters, self.waiters.generation, self.asleep)

    def do_ring(self):
        self.wakeups.wake_queue("orders")

    def do_ring_all(self):
        self.wakeups.wake_all()

    def do_wait(self):
        self.wakeups.wait(self.waiters, self.waiters.generation, 0.0)

    def do_stand(self):
        with self.wakeups.waiting("orders"), self.wakeups.waiting("mails"):
            pass

    def check(self):
        quiet(self.wakeups._section)
        rung = len(self.noted("ring", "ring_all"))
        assert self.waiters.generation == rung
        assert self.asleep.wait(abate.clock.MACHINE, 0.0) == (rung > 0 or bool(self.noted("stand")))
        self.wakeups._stop_waiting(self.waiters, self.asleep)
        assert self.waiters.asleep == []
        assert self.wakeups._poller is None
        assert list(self.wakeups._wait_lists) == ["orders"]
        self.standing.__exit__(None, None, None)
        assert self.wakeups._wait_lists == {}


class OfFile(Case):
    """What interrupts a transaction is refused, and what was accepted is there."""

    locks = (("stores/sqlite/database.py", "Database"),)
    where = str(SOURCE / "stores" / "sqlite" / "database.py")

    def make(self):
        self.file = Database(None, "NORMAL", 5.0)
        self.file.transaction(lambda db: db.execute("CREATE TABLE noted (number)"))

    def do_write(self):
        try:
            self.file.transaction(self._insert)
        except StoreError as error:
            assert "in use by this thread" in str(error)
            return False
        return True

    def _insert(self, db):
        db.execute("INSERT INTO noted VALUES (1)")

    def do_read(self):
        try:
            ((count,),) = self.file.read("SELECT count(*) FROM noted")
        except StoreError as error:
            assert "in use by this thread" in str(error)
            return True
        return 0 <= count <= 2

    def check(self):
        assert all(self.noted("read"))
        assert self.file.read("SELECT count(*) FROM noted") == [(sum(self.noted("write")),)]
        assert any(self.noted("write", "read"))
        assert not self.file._owner


class OfClosedFile(OfFile):
    """A file that is closed in the middle of a transaction is closed after it."""

    locks = ()
    interrupting = ("do_close",)

    def do_close(self):
        self.file.close()

    @classmethod
    def operations(cls):
        return ["do_close", "do_write_or_not"]

    def do_write_or_not(self):
        with contextlib.suppress(StoreError):
            self.file.transaction(self._insert)

    def check(self):
        assert self.file._db is None
        with pytest.raises(StoreError, match="is closed"):
            self.file.read("SELECT 1")


class FakeSession:
    """A connection to nothing."""

    version = 170000
    process = 1

    def __init__(self, *_):
        self.used = float("inf")
        self.open = True
        self.busy = False

    def run(self, *_):
        assert self.open
        assert not self.busy, "two statements at once on one connection"
        self.busy = True
        self.busy = False
        return []

    def broken(self):
        return False

    def close(self):
        self.open = False


class OfPool(Case):
    """Each statement has a connection of its own, and returns it."""

    where = str(SOURCE / "stores" / "postgres" / "pool.py")

    def make(self):
        self.pool = postgres_pool.Pool.__new__(postgres_pool.Pool)
        self.pool.address = types.SimpleNamespace(timeout=5.0, schema="abate", conninfo=lambda limited: b"")
        self.pool._limited, self.pool._ready, self.pool._closed = True, True, False
        self.pool.after_fork()
        self.sessions = []
        self.pool.connect = self._connect

    def _connect(self, deadline):
        self.sessions.append(FakeSession())
        return self.sessions[-1]

    def do_run(self):
        return self.pool.run("SELECT 1")

    def do_close(self):
        self.pool.close()

    def do(self, name):
        try:
            super().do(name)
        except StoreError as error:
            assert "is closed" in str(error)

    def check(self):
        assert self.pool._free.qsize() == postgres_pool.MAX_CONNECTIONS
        still = [session for session in self.sessions if session.open]
        assert set(still) == (set() if self.noted("close") else set(self.pool._idle))
        if not self.noted("close"):
            assert len(self.noted("run")) == 2


class FakeThread:
    """A thread that does not run."""

    def __init__(self, target, args, **_):
        self.target, self.args, self.started = target, args, False

    def start(self):
        self.started = True

    def is_alive(self):
        return False


class OfEars(Case):
    """One thread listens at most, and is told to end once the store is closed."""

    locks = (("stores/postgres/listener.py", "Listener"),)
    where = str(SOURCE / "stores" / "postgres" / "listener.py")

    def make(self):
        self.listener = postgres_bells.Listener(
            types.SimpleNamespace(address=types.SimpleNamespace(timeout=1.0)), Wakeups(None)
        )

    def do_attend(self):
        self.listener.announce("orders")

    def do_close(self):
        self.listener.close()

    def check(self):
        quiet(self.listener._section)
        thread = self.listener._thread
        if thread is not None:
            assert thread.started
            (reading,) = thread.args
            if self.noted("close"):
                import os

                os.set_blocking(reading, False)
                assert os.read(reading, 10)
            self.listener._end(reading)
        elif self.noted("announce"):
            assert self.noted("close")


class OfServer(Case):
    """There is one client for each use, and none is left open."""

    where = str(SOURCE / "stores" / "redis" / "connection.py")

    def make(self):
        self.server = RedisConnection.__new__(RedisConnection)
        self.server.address = types.SimpleNamespace(name="redis://")
        self.server._closed, self.server._clients = False, {}
        self.made = []
        self.server._make_client = self._made

    def _made(self, use):
        self.made.append(FakeSession())
        return self.made[-1]

    def do_ask(self):
        try:
            return self.server._client("work")
        except StoreError:
            return None

    def do_close(self):
        self.server.close()

    def check(self):
        still = [client for client in self.made if client.open]
        assert still == ([] if self.noted("close") else [self.server._clients["work"]])
        if not self.noted("close"):
            assert set(self.noted("ask")) == set(still)


class OfSink(Case):
    """Every event is counted once."""

    event = events.GaveUp("orders", "attempts", 3, 1.5, OSError())

    def do_tell(self):
        self.sink(self.event)

    def do_retry(self):
        self.sink(events.Retry("orders", 1, 0.5, "blip", None, OSError()))


class OfRecent(OfSink):
    locks = (("observe/page/recent_activity.py", "RecentActivity"),)

    def make(self):
        self.sink = RecentActivity(VirtualClock())
        self.sink(events.Retry("orders", 1, 0.5, "blip", None, OSError()))

    def do_read(self):
        return (
            self.sink.with_policy_activity("orders", lambda calls: calls.retries),
            self.sink.notices(),
            self.sink.layers(),
        )

    def check(self):
        given_up = self.sink.with_policy_activity("orders", lambda calls: calls.given_up.counts(0.0))
        assert given_up == ({"attempts": len(self.noted("tell"))} if self.noted("tell") else {})
        assert self.sink.with_policy_activity("orders", lambda calls: calls.retries) == 1 + len(self.noted("retry"))
        quiet(self.sink._section)


class OfPrometheus(OfSink):
    locks = (("observe/prometheus.py", "PrometheusSink"),)
    where = str(SOURCE / "observe")

    def make(self):
        self.registry = CollectorRegistry()
        self.sink = PrometheusSink(self.registry)

    def check(self):
        retries = self.registry.get_sample_value("abate_retries_total", {"policy": "orders", "reason": "blip"})
        ended = self.registry.get_sample_value("abate_calls_total", {"policy": "orders", "outcome": "attempts"})
        assert (retries or 0, ended or 0) == (len(self.noted("retry")), len(self.noted("tell")))
        quiet(self.sink._section)


class OfOpenTelemetry(OfSink):
    locks = (("observe/otel.py", "OpenTelemetrySink"), ("observe/otel.py", "SharedState"))
    where = str(SOURCE / "observe" / "otel.py")
    every = 4

    def make(self):
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.sink = OpenTelemetrySink(self.provider)
        self.look = SharedState(dict)

    def do_abandon(self):
        def abandoned():
            try:
                yield
            finally:
                self.sink(events.LayeredRetry("orders", "inner"))

        call = abandoned()
        next(call)
        call.close()

    def do_look(self):
        return self.look.of("abate.queue.depth")

    def check(self):
        counted = {"abate.retries": 0, "abate.calls": 0, "abate.layered_retries": 0}
        for _ in range(2):  # the second collection has what the first was told to count
            collected = self.reader.get_metrics_data()
            for resource in () if collected is None else collected.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        if metric.name in counted:
                            mine = [
                                point.value
                                for point in metric.data.data_points
                                if point.attributes["abate.policy"] == "orders"
                                and point.attributes.get("abate.outcome", "attempts") == "attempts"
                            ]
                            counted[metric.name] = sum(mine)
        assert counted == {
            "abate.retries": len(self.noted("retry")),
            "abate.calls": len(self.noted("tell")),
            "abate.layered_retries": len(self.noted("abandon")),
        }
        quiet(self.sink._section)
        quiet(self.look._section)
        self.provider.shutdown()


class OfLines(OfSink):
    """Every line is written once."""

    locks = (("observe/log_sampler.py", "LogSampler"),)
    every = 5

    def make(self):
        self.written = []
        self.sink = LogWriter(self.written.append, burst=10, clock=VirtualClock())

    def do_retry(self):
        self.sink(events.Worked("orders", "key", "retry", 0.1, 1, OSError()))

    def do_flush(self):
        self.sink.flush()

    def check(self):
        kinds = sorted(line.kind for line in self.written)
        assert kinds == ["gave_up"] * len(self.noted("tell")) + ["key_failing"] * min(1, len(self.noted("retry")))
        sampler = self.sink._by_clock.main.sampler
        assert sum(sampler._keys.values()) == len(self.noted("retry"))
        quiet(sampler._section)


class OfCarried(Case):
    """Counts of things that are gone are carried on, once."""

    locks = (("observe/lasting_totals.py", "LastingTotals"),)

    class Thing:
        counted = 1, 1

    def make(self):
        self.carried = LastingTotals(self._reading)
        self.kept = [self.Thing()]
        self.seen = 1
        self.do_read()

    def _reading(self, thing):
        counted = thing.counted
        return lambda: counted

    def do_read(self):
        return self.carried.totals([(thing, "orders") for thing in self.kept])["orders"]

    def do_replace(self):
        self.kept[:] = [self.Thing()]
        self.seen += 1
        self.do_read()

    def check(self):
        self.kept[:] = []
        total = self.carried.totals([])["orders"]
        assert total[0] == total[1]
        assert 1 <= total[0] <= self.seen
        quiet(self.carried._section)


class OfDetached(OfSink):
    """Every event is handed over, by one thread."""

    locks = (("observe/detached.py", "Detached"),)

    def make(self):
        self.seen = []
        self.sink = abate.observe.Detached(self.seen.append)

    def check(self):
        assert self.sink.flush(30.0)
        assert len(self.seen) == len(self.noted("tell", "retry"))


class OfClock(Case):
    """All the time that was waited for has passed."""

    locks = (("testing/virtual_clock.py", "VirtualClock"),)

    def make(self):
        self.clock = VirtualClock()

    def do_advance(self):
        self.clock.advance(1.0)

    def do_sleep(self):
        self.clock.sleep(2.0)

    def check(self):
        assert self.clock.now() == len(self.noted("advance")) + 2 * len(self.noted("sleep"))
        quiet(self.clock._section)


CASES = [
    OfBudget,
    OfTheLastRetry,
    OfBucket,
    OfEmptyBucket,
    OfPermits,
    OfThrottle,
    OfBreaker,
    OfTrippingBreaker,
    OfHalfOpenBreaker,
    OfTimeouts,
    OfRoll,
    OfTick,
    OfWatch,
    OfEvents,
    OfWorkQueue,
    OfShutdown,
    OfFullQueue,
    OfBells,
    OfFile,
    OfClosedFile,
    OfPool,
    OfEars,
    OfServer,
    OfRecent,
    OfPrometheus,
    OfOpenTelemetry,
    OfLines,
    OfCarried,
    OfDetached,
    OfClock,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_at_every_bytecode(case, monkeypatch):
    """Each operation, interrupted by each: nothing hangs, and what the class above says holds."""
    monkeypatch.setattr(postgres_bells, "Thread", FakeThread)

    def run(name):
        return lambda thing: thing.do(name)

    for place, (operation, interruption) in enumerate(case.pairs()):
        try:
            steps = range(1 + place % case.every, MAX_STEPS, case.every)
            at_every_bytecode(case, run(operation), run(interruption), case.where, steps)
        except BaseException as error:
            error.add_note(f"{operation} was interrupted by {interruption}")
            raise
