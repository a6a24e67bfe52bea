"""Signal handlers that raise: at every point at which an interpreter runs them, nothing shared is broken or lost.

What has a lock or counts something is tried with the cases of tests/test_reentry.py: an operation that is broken off
was done, or was not. Calls are tried as a whole: whatever they held is free again.
"""

import asyncio
import gc
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

import abate
from abate import event_sinks
from abate.admit.limiter import Permit
from abate.admit.shelter_queue import Waiter
from abate.call import before_retry
from abate.call.before_retry import RetryContext
from abate.clients.grpc_stream import Stream
from abate.schedule.deadlines import remaining
from abate.stores.fleet.background_sync import FleetSync
from abate.stores.postgres import listener as postgres_bells
from abate.stores.postgres import pool as postgres_pool
from abate.testing import Script, VirtualClock
from abate.wakeups import ThreadWakeup
from tests import test_reentry as cases
from tests.reentry import (
    MAX_STEPS,
    Interrupted,
    at_every_bytecode,
    guarded,
    raised_at,
    raised_at_every_point,
)


class Down(Exception):
    """The server is down."""


# -- the shelter's dispatcher


class OfDispatcher(cases.Case):
    """Permits that are out are counted, and no others; a waiter is in the queue, or is woken with an answer."""

    def make(self):
        self.clock = VirtualClock(start=100.0)
        self.dispatcher = abate.Shelter(capacity=5, clock=self.clock).dispatcher()
        self.dispatcher.limiter.latencies.baseline = self.dispatcher.limiter.latencies.latency = 0.01
        self.dispatcher.limiter.limit = 2.0
        self.permits = [self._try_enter() for _ in range(2)]
        self.waiters = [self._try_enter() for _ in range(3)]
        assert {type(one) for one in self.permits} == {Permit}
        for waiter in self.waiters:
            waiter.wakeup = ThreadWakeup()
            self.dispatcher.due(waiter)
        self.clock.advance(0.01)

    def _try_enter(self):
        return self.dispatcher.try_enter(self.clock.now(), self.clock.now(), None, True)

    def do_try_enter(self):
        (self.permits if type(got := self._try_enter()) is Permit else self.waiters).append(got)

    def do_answered(self):
        self.dispatcher.answered(self.permits[0], self.clock.now(), "orders")

    def do_failed(self):
        self.dispatcher.failed(self.permits[0], self.clock.now(), abate.Backoff(1.0), None, Down(), False, "orders")

    def do_abandon(self):
        self.dispatcher.abandoned(self.permits[0], self.clock.now())

    def do_leave(self):
        self.dispatcher.leave(self.waiters[0], self.clock.now())

    def do_on_timer(self):
        self.dispatcher.limiter.limit = 3.0
        self.dispatcher.on_timer(self.waiters[1], self.clock.now())

    def do_claim(self):
        self.dispatcher.abandoned(self.permits[0], self.clock.now())
        self.clock.advance(0.3)  # it is asleep, and has missed its turn
        self.dispatcher.on_timer(self.waiters[2], self.clock.now())
        for waiter in self.waiters:
            if waiter.answer is not None:
                self.dispatcher.claim_answer(waiter)

    def do_apply_remote(self):
        self.dispatcher.apply_remote(True, self.clock.now(), 5.0)

    def do_count(self):
        assert self.dispatcher.waiters <= 5

    def check(self):
        dispatcher, queue, limiter = self.dispatcher, self.dispatcher.core.queue, self.dispatcher.limiter
        cases.quiet(dispatcher._section)
        dispatcher.abandoned(None, self.clock.now())  # what was noted is done by the next operation
        assert not dispatcher.core.to_wake
        given = [waiter.answer for waiter in self.waiters if type(waiter.answer) is Permit]
        out = [one for one in (*self.permits, *given) if one.out and one.epoch == limiter.epoch]
        assert limiter.in_flight == len(out)
        for waiter in self.waiters:
            if waiter.answer is None:
                assert waiter.queued
                assert any(entry[2] is waiter for entry in (*queue._fresh, *queue._late))
            elif waiter.wakeup is not None and waiter not in self.waiters[:2]:  # those are awake
                assert waiter.wakeup.wait(abate.clock.MACHINE, 0.0) or waiter.claimed or self.noted("claim")
        # it goes on, in this thread and in another
        for waiter in self.waiters:
            dispatcher.leave(waiter, self.clock.now())
        guarded(lambda: [dispatcher.abandoned(one, self.clock.now()) for one in (*self.permits, *given)])
        assert (queue.size, limiter.in_flight, dispatcher.waiters) == (0, 0, 0)
        limiter.limit = 1.0
        limiter.prober.next_probe = limiter.prober.hint_until = limiter._next_paced = -1.0
        assert type(guarded(self._try_enter)) is Permit
        waiter = self._try_enter()
        assert type(waiter) is Waiter
        assert dispatcher.waiters == 1


@pytest.mark.parametrize("operation", OfDispatcher.operations())
def test_a_dispatcher_keeps_its_counts(operation):
    """Whatever is broken off, tickets and waiters are conserved, and the next ones are served."""
    points = raised_at_every_point(OfDispatcher, lambda thing: thing.do(operation))
    assert points > 3


@pytest.mark.parametrize("interruption", ["do_try_enter", "do_leave", "do_abandon", "do_failed", "do_count"])
@pytest.mark.parametrize("operation", OfDispatcher.operations())
def test_a_dispatcher_that_is_interrupted_keeps_its_counts(operation, interruption):
    """Any operation in the middle of any other, of the same thread, as a finalizer or a signal handler makes them."""
    steps = range(1, MAX_STEPS, 13)
    at_every_bytecode(
        OfDispatcher, lambda thing: thing.do(operation), lambda thing: thing.do(interruption), steps=steps
    )


TWO_SHELTERS = """
import faulthandler; faulthandler.dump_traceback_later(40, exit=True)
import gc, threading, time
import abate
gc.set_threshold(1)
class Down(Exception): pass
policies = [
    abate.Policy(on=Down, max_attempts=2, backoff=[0.0], shelter=abate.Shelter(name=name, patience=0.05),
                 gate=abate.ConcurrencyLimit(50), budget=abate.Budget.unlimited())
    for name in ("one", "other")
]
def down(): raise Down
def abandon(policy):  # a cycle that holds an attempt of a call
    attempts = iter(policy.attempts())
    try: held = [attempts, next(attempts)]
    except (Down, abate.Refused): return
    held.append(held)
class Calls:  # a finalizer that makes a call; each may wait, so that their number is bounded
    made = ended = 0
    def __init__(self, policy): self.policy, self.me = policy, self; Calls.made += 1
    def __del__(self):
        Calls.ended += 1
        self.policy.call(int)
end = time.monotonic() + 2.0
def work(mine, theirs):
    while time.monotonic() < end:
        abandon(theirs)
        if Calls.made - Calls.ended < 20: Calls(theirs)
        try: mine.call(down)
        except (Down, abate.Refused): pass
        try: mine.call(int)
        except abate.Refused: pass
threads = [threading.Thread(target=work, args=(policies[n], policies[1 - n])) for n in (0, 1)]
for thread in threads: thread.start()
for thread in threads: thread.join()
gc.collect()
for policy in policies:
    dispatcher = policy.shelter.dispatcher()
    assert policy.gate.held == 0, policy.gate
    assert dispatcher.waiters == 0 and not dispatcher._section.deferred and not dispatcher._section.busy
    assert dispatcher.limiter.in_flight == 0, dispatcher.limiter.in_flight
print("went on")
"""


def test_two_shelters_that_interrupt_each_other_go_on():
    """Two threads, two shelters, and a collector that finalizes calls of the one within the other."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TWO_SHELTERS], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "went on\n", ended.stderr[-3000:]


RAISING = """
import faulthandler; faulthandler.dump_traceback_later(40, exit=True)
import signal, threading, time
import abate
class Down(Exception): pass
class Limit(Exception): pass
def handler(*_): raise Limit
permits, other = abate.ConcurrencyLimit(3), abate.ConcurrencyLimit(4)
shelter, queue = abate.Shelter(patience=0.05), abate.WorkQueue()
policy = abate.Policy(
    on=Down, max_attempts=2, backoff=[0.0], timeout=5.0, shelter=shelter, gate=permits & other,
    budget=abate.Budget.unlimited()
)
signal.signal(signal.SIGALRM, handler)
def down(): raise Down
keys, raised = set(range(20)), 0
for key in keys: queue.add(key)
end = time.monotonic() + 2.0
while time.monotonic() < end:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
        while True:
            for function in (int, down):
                try: policy.call(function)
                except (Down, abate.Refused): pass
            key = queue.get()
            queue.add(key)
            queue.done(key)
    except Limit: raised += 1
    finally: signal.setitimer(signal.ITIMER_REAL, 0)
    for key in list(queue._keys.in_hand):  # it was broken off after `get`
        queue.add(key)
        queue.done(key)
assert raised > 100, raised
dispatcher = shelter.dispatcher()
free = []
def look():  # from another thread
    free.append([sum(one.try_acquire() for _ in range(9)) for one in (permits, other)])
    free.append((dispatcher.waiters, dispatcher.limiter.in_flight))
    free.append(set(queue.take(100)) == keys)
thread = threading.Thread(target=look)
thread.start()
thread.join()
assert free == [[3, 4], (0, 0), True], free
print("went on")
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")
def test_real_signals_that_raise_break_nothing():
    """A soft time limit, some thousand times, wherever the interpreter runs its handler."""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", RAISING], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "went on\n", ended.stderr[-3000:]


# -- everything else that has a lock


def views(operation):
    """An operation that is broken off was not done, or it was, with any of these answers."""
    return [[], *([(operation[3:], answer)] for answer in (None, True, False, 0.0, 1.0))]


CONSERVED = [
    cases.OfBucket,
    cases.OfPermits,
    cases.OfThrottle,
    cases.OfBreaker,
    cases.OfHalfOpenBreaker,
    cases.OfRoll,
    cases.OfWatch,
    cases.OfClock,
]


@pytest.mark.parametrize("case", CONSERVED, ids=lambda case: case.__name__)
def test_what_is_broken_off_was_done_or_was_not(case):
    """Nothing in between, and nothing twice; the next operation finds everything as it should be."""
    for operation in case.operations():
        try:
            raised_at_every_point(case, lambda thing, name=operation: thing.do(name), case.where, views(operation))
        except BaseException as error:
            error.add_note(operation)
            raise


SECTIONS = {
    cases.OfBudget: lambda thing: thing.budget.states.main.section,
    cases.OfEmptyBucket: lambda thing: thing.level.section,
    cases.OfTimeouts: lambda thing: thing.timeouts._main,
    cases.OfWorkQueue: lambda thing: thing.queue._section,
    cases.OfShutdown: lambda thing: thing.queue._section,
    cases.OfFullQueue: lambda thing: thing.queue._section,
    cases.OfBells: lambda thing: thing.wakeups._section,
    cases.OfEars: lambda thing: thing.listener._section,
    cases.OfRecent: lambda thing: thing.sink._section,
    cases.OfPrometheus: lambda thing: thing.sink._section,
    cases.OfOpenTelemetry: lambda thing: thing.sink._section,
    cases.OfLines: lambda thing: thing.sink._by_clock.main.sampler._section,
    cases.OfCarried: lambda thing: thing.carried._section,
}


@pytest.mark.parametrize("case", SECTIONS, ids=lambda case: case.__name__)
def test_no_section_stays_taken(case, monkeypatch):
    """It is free for every thread, with nothing left to do; each operation can be called again, here and elsewhere."""
    monkeypatch.setattr(postgres_bells, "Thread", cases.FakeThread)

    def body():
        for number, operation in enumerate(case.operations()):
            for step in range(1 + number % case.every, MAX_STEPS, case.every):
                thing = case()
                try:
                    if not raised_at(step, lambda thing=thing, name=operation: thing.do(name), case.where):
                        break
                    SECTIONS[case](thing).run_deferred()
                    cases.quiet(SECTIONS[case](thing))
                    if step % 5 == 0:
                        guarded(lambda thing=thing: [thing.do(name) for name in case.operations()])
                finally:
                    if hasattr(thing, "provider"):
                        thing.provider.shutdown()

    guarded(body)


class OfDebts(cases.Case):
    """Tokens that are owed are charged once."""

    where = str(cases.SOURCE / "admit")

    def make(self):
        self.level = abate.TokenBucket(rate=1.0, burst=20, clock=VirtualClock())._states.main
        self.level.owed += [2, 3]

    def do_settle(self):
        self.level.charge_owed()

    def check(self):
        self.level.charge_owed()
        assert (self.level.tokens, self.level.owed) == (15.0, [])


class OfGates(cases.Case):
    """An `enter` that is interrupted has not entered; a `leave` that is interrupted can be repeated."""

    where = str(cases.SOURCE)

    def make(self):
        self.permits = [abate.ConcurrencyLimit(2), abate.ConcurrencyLimit(3)]
        self.gate = self.permits[0] & abate.TokenBucket(rate=1.0, burst=9, clock=VirtualClock()) & self.permits[1]
        for _ in range(2):  # of one permit that was held before, and of one that was not
            assert all(permits.try_acquire() for permits in self.permits)
        for permits in self.permits:
            permits.release()
        self.held = 1

    def do_enter(self):
        assert self.gate.enter(retry=False) is None
        self.held += 1

    def do_enter_one(self):
        permits = abate.ConcurrencyLimit(1)
        self.permits.append(permits)
        assert permits.enter(retry=False) is None

    def do_leave(self):
        self.held = 0
        self.gate.leave(accepted=True)

    def check(self):
        if self.held == 0:
            self.gate.leave(accepted=True)
        assert [permits.held for permits in self.permits[:2]] == [self.held] * 2
        assert [permits.held for permits in self.permits[2:]] in ([], [0])


class OfSinks(cases.OfEvents):
    """A sink that is being installed or removed is there once, or is not."""

    def check(self):
        try:
            cases.quiet(event_sinks._changes)
            there = [sink for sink in event_sinks.installed if sink not in self.before]
            assert len(set(there)) == len(there)
            assert set(there) <= set(self.mine)
            assert self.there in there or len(self.mine) == 1
            assert guarded(lambda: event_sinks.install(self.there)) in event_sinks.installed
        finally:
            for sink in self.mine:
                event_sinks.remove(sink)
            assert event_sinks.installed == self.before


class OfPlaces(cases.OfPool):
    """Every place in the pool is free again, and no connection is there twice."""

    def check(self):
        pool = self.pool
        assert pool._free.qsize() == postgres_pool.MAX_CONNECTIONS
        assert len(set(pool._idle)) == len(pool._idle)
        if not pool._closed:
            assert guarded(lambda: pool.run("SELECT 1")) == []
        guarded(pool.close)
        assert pool._idle == []


class OfClients(cases.OfServer):
    """There is one client for each use, which the next call gets too; none is kept after the end."""

    def check(self):
        server = self.server
        if not server._closed:
            assert guarded(lambda: server._client("work")) is server._clients["work"]
            assert server._clients["work"].open
        guarded(server.close)
        assert server._clients == {}


class OfFile(cases.OfFile):
    """It is free for every thread, and what was written is there as a whole, or not at all."""

    where = ""

    def make(self):
        super().make()
        self.kept = []

    def do(self, name):
        try:
            super().do(name)
        except Interrupted as error:
            self.kept.append(error)  # with the frames that it came through
            raise

    def check(self):
        assert not self.file._owner
        assert not self.file._db.in_transaction
        ((before,),) = guarded(lambda: self.file.read("SELECT count(*) FROM noted"))
        assert before in (0, 1)
        guarded(lambda: self.file.transaction(self._insert))
        assert self.file.read("SELECT count(*) FROM noted") == [(before + 1,)]
        self.kept.clear()


class OfStream(cases.Case):
    """A stream of gRPC: reading on returns all of its messages but the one that was being read."""

    where = str(cases.SOURCE)

    def make(self):
        self.stream = Stream(abate.Policy(on=Down, timeout=60.0), lambda: iter(["one", "two"]))

    def do_read(self):
        return next(self.stream)

    def check(self):
        assert guarded(lambda: list(self.stream)) in (["one", "two"], ["two"])


class OfJourney(cases.Case):
    """No journey is under way, and the next one is made."""

    where = str(cases.SOURCE / "stores" / "fleet" / "background_sync.py")

    def make(self):
        self.taken = []
        self.party = SimpleNamespace(
            request=lambda now: SimpleNamespace(name="orders"),
            apply=lambda answer, until: self.taken.append(answer),
            fall_back=lambda: None,
            on_close=lambda: None,
        )
        store = SimpleNamespace(sync_members=lambda member, offers: ["answer" for _ in offers])
        self.fleet_sync = FleetSync(store, "memory:")
        self.fleet_sync._synced = SimpleNamespace(alive=lambda: [self.party])
        self.fleet_sync.rounds = 1

    def do_travel(self):
        self.fleet_sync.sync_once()

    def do_close(self):
        self.fleet_sync.close()

    def check(self):
        assert not self.fleet_sync._in_round
        self.taken.clear()
        guarded(self.fleet_sync.sync_once)
        assert self.taken == ([] if self.fleet_sync.is_closed else ["answer"])
        guarded(self.fleet_sync.close)


@pytest.mark.parametrize(
    "case",
    [OfDebts, OfGates, OfSinks, OfPlaces, OfClients, OfFile, OfStream, OfJourney],
    ids=lambda case: case.__name__,
)
def test_what_is_shared_can_be_used_again(case):
    """Whatever was broken off has left no lock taken, no place in use and nothing half done."""
    for operation in case.operations():
        try:
            raised_at_every_point(case, lambda thing, name=operation: thing.do(name), case.where)
        except BaseException as error:
            error.add_note(operation)
            raise


class LateValue(ValueError):
    """What a handler raises that looks like an error of the queue's own."""


class OtherFull(abate.QueueFull):
    """What a handler raises that adds to another queue, which is full."""


class Keys(cases.Case):
    """A work queue with keys in every state, and every operation on it."""

    def make(self):
        self.clock = VirtualClock(start=100.0)
        self.queue = abate.WorkQueue(clock=self.clock)
        self.queue.add("one")
        self.queue.add("two", priority=1)
        self.queue.add_after("later", 5.0)
        self.queue.add_after("due", -1.0)
        self.queue.add("held")
        self.held = []
        while "held" not in self.held:
            self.held.append(self.queue.get(0.0))
        for key in self.held[:-1]:
            self.queue.done(key)
            self.queue.add(key)
        self.held = ["held"]
        self.queue.add("held")  # comes back when it is done
        self.clock.advance(6.0)

    def do_get(self):
        self.held.append(self.queue.get(0.0))

    def do_take(self):
        self.held += self.queue.take(2)

    def do_add(self):
        self.queue.add("later", priority=2)

    def do_put(self):
        self.queue.put("later", priority=2)

    def do_raise(self):
        self.queue.add("one", priority=3)

    def do_put_off(self):
        self.queue.add_rate_limited("one")

    def do_done(self):
        self.queue.done("held")

    def check(self):
        queue = self.queue
        queue._section.run_deferred()
        cases.quiet(queue._section)
        assert set(self.held) <= set(queue._keys.in_hand) | {"held"}
        assert set(queue._keys.in_hand) <= set(self.held)
        for key in list(queue._keys.in_hand):
            queue.done(key)
        assert all(100.0 <= since <= 106.0 for _, since in queue._keys.ready.values())
        self.clock.advance(1000.0)
        rest = set(guarded(lambda: queue.take(100)))
        assert rest | set(self.held) == {"one", "two", "later", "due", "held"}
        assert "held" in rest
        assert queue.delayed == 0


@pytest.mark.parametrize("raised", [Interrupted, LateValue, OtherFull])
def test_a_key_is_never_lost(raised):
    """A `get` that is interrupted has taken no key; every key that was added or delayed is delivered."""
    for operation in Keys.operations():
        try:
            raised_at_every_point(Keys, lambda thing, name=operation: thing.do(name), error=raised)
        except BaseException as error:
            error.add_note(operation)
            raise


# -- calls


class Call:
    """Calls with everything that they can hold."""

    def __init__(self, prepare=lambda self: None):
        self.notes = []
        self.clock = VirtualClock(start=100.0)
        with self.clock:
            self.permits = [abate.ConcurrencyLimit(2), abate.ConcurrencyLimit(3)]
            self.bucket = abate.TokenBucket(rate=1000.0, burst=100)
            self.shelter = abate.Shelter()
            self.policy = abate.Policy(
                on=Down,
                max_attempts=3,
                backoff=[0.01],
                timeout=60.0,
                gate=self.permits[0] & self.bucket & self.permits[1],
                shelter=self.shelter,
                budget=abate.Budget(ratio=1.0, reserve=10.0),
            )
            self.dispatcher = self.shelter.dispatcher()
        self.bounds = []
        prepare(self)

    def serve(self, *answers):
        script = Script(*answers)

        def server():
            self.bounds.append(remaining())
            return script()

        return server

    def check(self):
        with self.clock:
            assert remaining() is None
            assert [permits.held for permits in self.permits] == [0, 0]
            cases.quiet(self.dispatcher._section)
            assert (self.dispatcher.limiter.in_flight, self.dispatcher.waiters) == (0, 0)
            self.clock.advance(20.0)
            assert self.policy.call(Script("fine")) == "fine"
            assert [permits.held for permits in self.permits] == [0, 0]
            taken = [sum(permits.try_acquire() for _ in range(5)) for permits in self.permits]
            assert taken == [2, 3]


def stormy(call):
    """A server that is down: attempts are held back."""
    with call.clock:
        dispatcher, now = call.dispatcher, call.clock.now()
        dispatcher.failed(None, now, abate.Backoff(0.5), None, Down(), False, "orders")
        assert dispatcher.limiter.state != "calm"


def in_threads(call):
    with call.clock:
        assert call.policy.call(call.serve(Down(), "fine")) == "fine"


def to_the_end(call):
    with call.clock, pytest.raises(Down):
        call.policy.call(call.serve(Down(), Down(), Down()))


def in_a_block(call):
    server = call.serve(Down(), "fine")
    with call.clock:
        for attempt in call.policy.attempts():
            with attempt:
                server()


def in_tasks(call):
    server = call.serve(Down(), "fine")

    async def attempt():
        return server()

    async def main():
        with call.clock:
            return await call.policy.acall(attempt)

    assert asyncio.run(main()) == "fine"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("error", "prepare", "way"),
    [
        (Interrupted, lambda call: None, in_threads),
        (Interrupted, stormy, in_threads),
        (ArithmeticError, stormy, in_threads),
        (Interrupted, lambda call: None, to_the_end),
        (Interrupted, stormy, in_a_block),
        (ArithmeticError, lambda call: None, in_a_block),
        (KeyboardInterrupt, lambda call: None, in_tasks),
        (KeyboardInterrupt, stormy, in_tasks),
    ],
)
def test_a_call_gives_back_what_it_holds(way, prepare, error):
    """ConcurrencyLimit, tokens, tickets and places to wait; and no deadline stays behind it."""
    points = raised_at_every_point(lambda: Call(prepare), way, error=error, every=5)
    gc.collect()  # coroutines that were never awaited warn here, not in a later test
    assert points > 100


# -- streams and deadlines


class StreamOfCall(Call):
    """The same for a stream, whose generator the collector may have to destroy."""

    def check(self):
        gc.collect(1)
        super().check()


def through_a_stream(call):
    server = call.serve(Down(), "fine", "more")

    @call.policy
    def items():
        yield server()
        yield server()

    with call.clock:
        assert list(items()) == ["fine", "more"]


def as_far_as_its_first_item(call):
    server = call.serve("fine", "more")

    @call.policy
    def items():
        yield server()
        yield server()

    with call.clock:
        stream = items()
        assert next(stream) == "fine"
        stream.close()


def with_a_break_inside(call):
    server = call.serve("fine", Down(), "more")

    @call.policy.replace(resume=lambda last: {}, idle=5.0)
    def items():
        item = None
        while item != "more":
            item = server()
            yield item

    with call.clock:
        assert list(items()) == ["fine", "more"]


@pytest.mark.parametrize("way", [through_a_stream, as_far_as_its_first_item, with_a_break_inside])
def test_a_stream_gives_back_what_it_holds(way):
    """Its permits are free again, each once, wherever it was broken off."""
    assert raised_at_every_point(StreamOfCall, way, every=3) > 100


def test_the_end_of_a_stream_swallows_no_interrupt(monkeypatch):
    """What a handler raises reaches the caller: nothing of a stream that has ended runs in a finalizer."""
    swallowed = []
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)
    raised_at_every_point(StreamOfCall, as_far_as_its_first_item, every=3)
    assert swallowed == []


def before_a_retry(thing):
    before_retry.run(lambda retry: None, RetryContext(Down(), 1, 0.0), 5.0)


def before_a_retry_of_a_task(thing):
    with pytest.raises(StopIteration):
        before_retry.arun(lambda retry: None, RetryContext(Down(), 1, 0.0), 5.0, abate.clock.MACHINE).send(None)


def in_a_carried_deadline(thing):
    thing.carried()


class Bounded:
    """Code that runs under a deadline of abate's own making."""

    def __init__(self):
        self.notes = []
        with abate.deadline(5.0):
            self.carried = abate.carry_deadline(remaining)

    def check(self):
        assert remaining() is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("way", [before_a_retry, before_a_retry_of_a_task, in_a_carried_deadline])
def test_no_deadline_stays_behind(way):
    """The code after it is not bound by it, wherever it was broken off."""
    assert raised_at_every_point(Bounded, way) > 10
