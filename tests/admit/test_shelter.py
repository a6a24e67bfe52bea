"""The shelter under threads, loops and forks, on the machine's clock: no call lost or sent twice, no permit leaked."""

import asyncio
import gc
import threading
import time

import pytest
import trio

import abate
from abate import Backoff, Policy, Shelter, wakeups
from abate.admit.dispatcher import Dispatcher
from abate.admit.shelter_core import without_traceback
from abate.admit.shelter_queue import ShelterQueue
from tests.reentry import inside

QUICK = Backoff(0.001, 0.002)


class Down(Exception):
    """What a dependency raises while it is down."""


class Server:
    """A dependency that fails a number of times, and then answers; it records the most calls inside at once."""

    def __init__(self, failures=0, takes=0.0):
        self.lock = threading.Lock()
        self.failures = failures
        self.takes = takes
        self.answered = self.inside = self.most = 0

    def __call__(self):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(self.takes)
        with self.lock:
            self.inside -= 1
            if self.failures:
                self.failures -= 1
                raise Down
            self.answered += 1
            return self.answered

    async def acall(self):
        return self()


def sheltered(shelter=None, **settings):
    given = {"on": Down, "max_attempts": 100, "backoff": QUICK, "shelter": shelter or Shelter(patience=60.0)}
    return Policy(**{**given, **settings})


def test_threads_pass_through_an_outage(together):
    """Eight threads with the shortest switch interval: each call is answered once, and no permit is lost."""
    policy, server = sheltered(budget=abate.Budget.unlimited()), Server(failures=60)
    answers = [answer for part in together(lambda _: [policy.call(server) for _ in range(40)]) for answer in part]
    assert sorted(answers) == list(range(1, 321))
    assert policy.shelter.waiters == 0
    assert policy.shelter.dispatcher().limiter.in_flight == 0


def test_the_limit_holds_across_threads(together):
    """Any number of threads: no more attempts are in flight than the limit allows."""
    policy, server = sheltered(), Server(takes=0.001)
    dispatcher = policy.shelter.dispatcher()
    seen = []
    send = dispatcher.limiter.__class__.send

    def spied(limiter, now):
        permit = send(limiter, now)
        seen.append(limiter.in_flight <= limiter.limit)
        return permit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatcher.limiter.__class__, "send", spied)
        together(lambda _: [policy.call(server) for _ in range(20)])
    assert all(seen)
    assert len(seen) >= 8


def test_a_thread_wakes_a_task_and_a_task_a_thread():
    """Threads and event loops share one shelter: an ending attempt admits a waiter of either kind."""
    shelter = Shelter(patience=60.0)
    policy, server = sheltered(shelter), Server(failures=5)
    results = []

    def in_thread():
        results.extend(policy.call(server) for _ in range(20))

    async def in_task():
        for _ in range(20):
            results.append(await policy.acall(server.acall))

    threads = [
        threading.Thread(target=in_thread),
        threading.Thread(target=lambda: asyncio.run(in_task())),
        threading.Thread(target=lambda: trio.run(in_task)),
        threading.Thread(target=in_thread),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(1, 81))
    assert shelter.waiters == 0


@pytest.mark.parametrize("kind", ["threads", "asyncio", "trio"])
def test_a_returned_permit_wakes_a_waiter(kind):
    """A waiting call is sent as soon as another thread returns its permit."""
    policy = sheltered()
    dispatcher = policy.shelter.dispatcher()
    dispatcher.limiter.limit = 1.0
    held = dispatcher.try_enter(dispatcher.clock.now(), dispatcher.clock.now(), None, True)
    results = []

    def work():
        if kind == "threads":
            results.append(policy.call(Server()))
        elif kind == "asyncio":
            results.append(asyncio.run(policy.acall(Server().acall)))
        else:
            results.append(trio.run(policy.acall, Server().acall))

    thread = threading.Thread(target=work)
    thread.start()
    while not policy.shelter.waiters:
        time.sleep(0.001)
    assert results == []
    dispatcher.answered(held, dispatcher.clock.now(), "")
    thread.join()
    assert results == [1]


def test_a_wakeup_without_a_waiter_does_nothing():
    """Waking a closed loop, or waking twice, is harmless."""
    kept = []

    async def main():
        kept.append(wakeups.TrioWakeup() if abate.clock.in_trio() else wakeups.AsyncioWakeup())

    asyncio.run(main())
    trio.run(main)
    thread = wakeups.ThreadWakeup()
    for wakeup in (*kept, thread):
        threading.Thread(target=wakeup.notify).start()
    thread.notify()
    thread.wait(abate.clock.MACHINE, 60.0)
    thread.wait(abate.clock.MACHINE, 0.0)


def test_a_forked_child_has_no_attempts_and_no_waiters(in_child, beside):
    """Whatever the parent's threads are doing."""
    policy = sheltered(max_attempts=1)
    server = Server()
    beside(lambda: policy.call(server))
    dispatcher = policy.shelter.dispatcher()
    dispatcher.limiter.limit = 3.0

    def child():
        before = (policy.shelter.waiters, dispatcher.limiter.in_flight)
        return before, policy.call(lambda: "fine")

    for _ in range(5):
        assert in_child(child) == ((0, 0), "fine")


def test_a_waiter_of_the_parent_is_not_in_the_child(in_child):
    """The waiting thread does not exist in the child, and its place is free there."""
    policy = sheltered()
    dispatcher = policy.shelter.dispatcher()
    dispatcher.limiter.limit = 1.0
    held = dispatcher.try_enter(dispatcher.clock.now(), dispatcher.clock.now(), None, True)
    thread = threading.Thread(target=policy.call, args=(Server(),))
    thread.start()
    while not policy.shelter.waiters:
        time.sleep(0.001)
    assert in_child(lambda: policy.call(lambda: "fine")) == "fine"
    dispatcher.answered(held, dispatcher.clock.now(), "")
    thread.join()


def test_a_waiter_collected_in_the_child_does_not_change_its_queue(in_child):
    """The child collects the task of a call that waited at the fork."""
    policy = sheltered()
    dispatcher = policy.shelter.dispatcher()
    dispatcher.limiter.limit = 1.0
    now = dispatcher.clock.now()
    held = dispatcher.try_enter(now, now, None, True)
    waiter = dispatcher.try_enter(now, now, None, True)

    def child():
        dispatcher.leave(waiter, dispatcher.clock.now())
        waiting = policy.shelter.waiters
        dispatcher.abandoned(dispatcher.try_enter(now, now, None, True), dispatcher.clock.now())
        return waiting, policy.call(lambda: "fine")

    assert in_child(child) == (0, "fine")
    assert policy.shelter.waiters == 1
    dispatcher.leave(waiter, now)
    dispatcher.answered(held, now, "")


def test_the_fork_hook_drops_the_waiters_of_the_parent():
    """They are in the parent's queue: removing them in the child changes nothing."""
    with abate.testing.VirtualClock():
        dispatcher = Shelter().dispatcher()
        dispatcher.limiter.limit = 1.0
        dispatcher.try_enter(0.0, 0.0, None, True)
        waiter = dispatcher.try_enter(0.0, 0.0, None, True)
        dispatcher.after_fork()
        dispatcher.leave(waiter, 0.0)
        assert (dispatcher.waiters, dispatcher.limiter.in_flight) == (0, 0)


def test_a_virtual_clock_does_not_keep_a_shelter_alive():
    """A shelter without references is freed, although a clock has a dispatcher of it."""
    import gc
    import weakref

    with abate.testing.VirtualClock():
        shelter = Shelter()
        shelter.dispatcher()
        gone = weakref.ref(shelter)
        dispatcher = weakref.ref(shelter.dispatcher())
        del shelter
        gc.collect()
        gc.collect()  # first the shelter, then what the clock has kept for it
        assert gone() is None
        assert dispatcher() is None


def test_the_last_error_is_not_held_in_calm():
    """An error and its traceback are kept, as the cause for refusals, only during a storm."""
    with abate.testing.VirtualClock() as clock:
        policy = sheltered()
        policy.call(Server(failures=2))
        dispatcher = policy.shelter.dispatcher()
        assert isinstance(dispatcher.last_error, Down)
        for _ in range(300):
            policy.call(Server())
            clock.advance(0.01)
        assert dispatcher.limiter.calm
        assert dispatcher.last_error is None


def test_a_dropped_loop_does_not_live_on_in_the_last_error():
    """A call whose event loop is dropped during its second attempt gives its permits back."""
    permits, shelter, tries = abate.ConcurrencyLimit(5), Shelter(), []
    policy = Policy(on=Down, backoff=[0.0], gate=permits, shelter=shelter, attempt_timeout=30.0)

    async def call():
        tries.append(1)
        if len(tries) == 1:
            raise Down
        await asyncio.sleep(60.0)

    async def until_the_second_attempt():
        while len(tries) < 2:
            await asyncio.sleep(0.01)

    loop = asyncio.new_event_loop()
    loop.create_task(policy.acall(call))._log_destroy_pending = False
    loop.run_until_complete(until_the_second_attempt())
    assert (permits.held, shelter.dispatcher().limiter.in_flight) == (1, 1)
    loop.close()
    del loop
    for _ in range(3):
        gc.collect()
    assert (permits.held, shelter.dispatcher().limiter.in_flight) == (0, 0)


class Sealed(Down):
    """An error that is made in one way only, and does not change."""

    def __new__(cls, *args):
        raise TypeError

    __init__ = __new__

    def __setattr__(self, name, value):
        raise AttributeError(name)


def test_the_cause_of_refusals_is_a_copy_without_frames():
    """It has the text, the attributes and the notes of the error, and neither its traceback nor its report."""
    try:
        Policy(on=Down, max_attempts=1).call(Server(failures=1))
    except Down as error:
        error.status = 503
        copy = without_traceback(error)
        assert (type(copy), copy.args, copy.status) == (Down, error.args, 503)
        assert copy.__notes__ == error.__notes__
        assert copy.__traceback__ is copy.__cause__ is copy.__context__ is abate.report(copy) is None
        assert abate.report(error).attempts == 1
        assert error.__traceback__ is not None
    sealed = Exception.__new__(Sealed, "once")
    assert (type(without_traceback(sealed)), str(without_traceback(sealed))) == (Sealed, "once")


@pytest.mark.parametrize(
    "error",
    [
        OSError(2, "gone", "a.txt"),
        OSError("no answer"),
        ExceptionGroup("all", [Down("one"), ExceptionGroup("more", [Down("two")])]),
        KeyError("key"),
    ],
)
def test_a_copy_of_an_error_reads_like_it(error):
    """Its text and its representation are the same."""
    copy = without_traceback(error)
    assert copy is not error
    assert (type(copy), str(copy), repr(copy)) == (type(error), str(error), repr(error))


def test_cancelling_a_refused_waiter_changes_nothing():
    """It has left the queue already."""
    with abate.testing.VirtualClock() as clock:
        dispatcher: Dispatcher = Shelter(patience=5.0).dispatcher()
        dispatcher.limiter.limit, dispatcher.limiter.state, dispatcher.limiter.last_failure = 1.0, "storm", 0.0
        permit = dispatcher.try_enter(0.0, 0.0, None, True)
        waiter = dispatcher.try_enter(0.0, 0.0, None, True)
        clock.advance(5.0)
        dispatcher.on_timer(waiter, 5.0)
        assert waiter.answer == "late"
        dispatcher.leave(waiter, 5.0)
        assert (dispatcher.waiters, dispatcher.limiter.in_flight) == (0, 1)
        dispatcher.abandoned(permit, 5.0)
        dispatcher.abandoned(None, 5.0)
        assert dispatcher.limiter.in_flight == 0


def test_a_permit_returned_by_reentry_is_deferred():
    """The collector may finalize an abandoned call while this thread holds the lock: no deadlock."""
    with abate.testing.VirtualClock():
        dispatcher = Shelter().dispatcher()
        dispatcher.limiter.limit = 1.0
        permit, waiter = dispatcher.try_enter(0.0, 0.0, None, True), dispatcher.try_enter(0.0, 0.0, None, True)
        with inside(dispatcher._section):
            dispatcher.abandoned(permit, 0.0)
            dispatcher.leave(waiter, 0.0)
            assert (dispatcher.limiter.in_flight, dispatcher.waiters) == (1, 1)
        assert (dispatcher.limiter.in_flight, dispatcher.waiters) == (0, 0)


def test_a_waiter_of_a_closed_loop_is_skipped():
    """A task that never runs again takes no permit, and raises nothing where an attempt ends."""
    policy = sheltered()
    dispatcher = policy.shelter.dispatcher()
    dispatcher.limiter.limit = 1.0
    held = dispatcher.try_enter(dispatcher.clock.now(), dispatcher.clock.now(), None, True)
    loop = asyncio.new_event_loop()
    task = loop.create_task(policy.acall(Server().acall))
    loop.run_until_complete(asyncio.sleep(0.01, None))
    assert policy.shelter.waiters == 1
    loop.close()
    dispatcher.answered(held, dispatcher.clock.now(), "")
    assert (policy.shelter.waiters, dispatcher.limiter.in_flight) == (0, 0)
    task._log_destroy_pending = False


def test_a_fork_within_an_attempt_counts_nothing_twice(in_child):
    """An attempt that continues in the child is not counted there, and its end changes nothing."""
    policy = sheltered()

    def child():
        return policy.shelter.dispatcher().limiter.in_flight

    def attempt():
        return in_child(lambda: policy.call(lambda: "fine") and child())

    assert policy.call(attempt) == 0


def test_threads_do_not_depend_on_a_stopped_loop():
    """The timekeeper of that loop may never run again: one of the threads keeps the time as well."""
    policy = sheltered(max_attempts=1)
    dispatcher = policy.shelter.dispatcher()
    dispatcher.limiter.state, dispatcher.limiter.prober.next_probe = "probing", dispatcher.clock.now() + 0.05
    loop = asyncio.new_event_loop()
    task = loop.create_task(policy.acall(Server().acall))
    loop.run_until_complete(asyncio.sleep(0.01, None))
    assert policy.shelter.waiters == 1
    assert policy.call(Server()) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


def test_the_end_of_an_attempt_from_before_the_fork_is_ignored_in_the_child(in_child):
    """It was the parent's: the child's in-flight count does not change."""
    dispatcher = Shelter().dispatcher()
    permit = dispatcher.try_enter(dispatcher.clock.now(), dispatcher.clock.now(), None, True)

    def child():
        dispatcher.answered(permit, dispatcher.clock.now(), "")
        return dispatcher.limiter.in_flight

    assert in_child(child) == 0


def test_a_call_with_too_little_time_for_an_answer_is_refused():
    """Answers take 2 s: a call with one second left is refused at its turn, and the next one is sent."""
    with abate.testing.VirtualClock() as clock:
        dispatcher = Shelter(patience=60.0).dispatcher()
        dispatcher.limiter.limit, dispatcher.limiter.state, dispatcher.limiter.latencies.latency = 1.0, "storm", 2.0
        dispatcher.limiter.last_failure = 0.0
        permit = dispatcher.try_enter(0.0, 0.0, None, True)
        hurried, patient = dispatcher.try_enter(0.0, 0.0, 3.0, True), dispatcher.try_enter(0.0, 0.0, 30.0, True)
        clock.advance(2.0)
        dispatcher.abandoned(permit, 2.0)
        assert hurried.answer == "late"
        assert patient.answer is not None
        assert patient.answer != "late"


def test_remote_state_and_attempts_exclude_each_other():
    """While one thread applies remote state, another that asks for a permit waits, and sees it."""
    told, go_on, listening = threading.Event(), threading.Event(), []

    def now():
        if threading.current_thread() in listening:  # inside `apply_remote`
            told.set()
            assert go_on.wait(30.0)
        return 100.0

    dispatcher = Shelter(clock=now).dispatcher()
    answers = []
    hearing = threading.Thread(target=dispatcher.apply_remote, args=(False, 200.0, 1.0))
    asking = threading.Thread(target=lambda: answers.append(dispatcher.try_enter(100.0, 100.0, None, True)))
    listening.append(hearing)
    hearing.start()
    assert told.wait(30.0)
    asking.start()
    asking.join(0.1)
    assert answers == [], "it was answered by half of the news"
    go_on.set()
    hearing.join(30.0)
    asking.join(30.0)
    assert [type(answer).__name__ for answer in answers] == ["Waiter"]


def test_calls_that_are_passed_over_are_not_searched_again_and_again(monkeypatch):
    """The search for a probe looks at all that wait: once per turn, however many of them have missed theirs."""
    searches = []
    probe = ShelterQueue.probe
    monkeypatch.setattr(ShelterQueue, "probe", lambda *of: searches.append(1) or probe(*of))
    with abate.testing.VirtualClock() as clock:
        dispatcher = Shelter(patience=60.0).dispatcher()
        dispatcher.failed(dispatcher.try_enter(0.0, 0.0, None, True), 0.0, Backoff(5.0), None, None, False, "")
        waiters = [dispatcher.try_enter(0.0, 0.0, 20.0, True) for _ in range(200)]
        clock.advance(20.5)
        dispatcher.on_timer(waiters[0], 20.5)
    assert {waiter.answer for waiter in waiters} == {"missed"}
    assert len(searches) == 1


def test_slow_answers_leave_somebody_to_probe():
    """Answers take three seconds of the five that calls have: one of them probes, and the others wait for it."""
    with abate.testing.VirtualClock() as clock:
        dispatcher = Shelter(patience=60.0).dispatcher()
        dispatcher.limiter.latencies.latency = dispatcher.limiter.latencies.baseline = 3.0
        dispatcher.failed(
            dispatcher.try_enter(0.0, 0.0, None, True), 0.0, Backoff(0.5, jitter="none"), None, None, False, ""
        )
        waiters = [dispatcher.try_enter(0.0, 0.0, 5.0, True) for _ in range(20)]
        clock.advance(0.5)
        dispatcher.on_timer(waiters[0], 0.5)
    assert sorted(type(waiter.answer).__name__ for waiter in waiters) == ["NoneType"] * 19 + ["Permit"]


def test_a_call_that_comes_in_an_outage_is_not_sent_at_its_last_moment():
    """The answer would come too late, though nothing has failed since it came."""
    with abate.testing.VirtualClock() as clock:
        dispatcher = Shelter(patience=60.0).dispatcher()
        dispatcher.limiter.latencies.latency = dispatcher.limiter.latencies.baseline = 1.0
        exact = Backoff(5.0, jitter="none")
        dispatcher.failed(dispatcher.try_enter(0.0, 0.0, None, True), 0.0, exact, None, None, False, "")
        clock.advance(1.0)
        hurried, patient = dispatcher.try_enter(1.0, 1.0, 4.9, True), dispatcher.try_enter(1.0, 1.0, 30.0, True)
        clock.advance(4.0)
        dispatcher.on_timer(patient, 5.0)
        assert dispatcher.claim_answer(patient), "it probes"
        clock.advance(0.5)
        dispatcher.on_timer(hurried, 5.5)
        assert hurried.answer is None
        clock.advance(0.4)
        dispatcher.on_timer(hurried, 5.9)
        assert hurried.answer == "late"
