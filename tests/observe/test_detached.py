"""Sinks that may block, in a thread of their own."""

import gc
import logging
import os
import subprocess
import sys
import threading
from contextvars import ContextVar
from queue import SimpleQueue
from unittest.mock import Mock

import pytest

import abate
from abate import events
from abate.call.counters import wrapper_versions
from abate.observe import detached, install, remove
from abate.observe.detached import Detached, TimeLimited
from tests.stores.processes import forks

EVENT = events.Recovered("orders", 2, 0.5)
PATIENCE = 30.0


@pytest.fixture
def stuck():
    """A sink that blocks until the test is over, and a flag that says that it does."""
    blocked, over = threading.Event(), threading.Event()

    def sink(event):
        blocked.set()
        over.wait(PATIENCE)

    sink.blocked = blocked
    yield sink
    over.set()


def test_everything_arrives_in_order():
    """What fits is brought to the sink, as it came."""
    seen = []
    sink = Detached(seen.append)
    sent = [events.Recovered("orders", number, 0.5) for number in range(1_000)]
    for event in sent:
        sink(event)
    assert sink.flush(PATIENCE)
    assert (seen, sink.dropped, sink.waiting) == (sent, 0, 0)


def test_the_sink_runs_in_another_thread():
    """The caller's thread only hands over."""
    threads = SimpleQueue()
    sink = Detached(lambda event: threads.put(threading.current_thread()))
    sink(EVENT)
    assert threads.get(timeout=PATIENCE) is not threading.current_thread()


def test_a_sink_that_blocks_holds_up_no_call(stuck):
    """Calls go on; what does not fit is dropped and counted, and what waits is bounded."""
    sink = abate.observe.install(Detached(stuck, capacity=10))
    try:
        policy = abate.Policy(name="orders", on=OSError, backoff=[0.0], budget=abate.Budget(1.0, 1_000.0))
        policy.call(abate.testing.Script(OSError(), "fine"))
        assert stuck.blocked.wait(PATIENCE)
        for _ in range(100):
            assert policy.call(abate.testing.Script(OSError(), "fine")) == "fine"
    finally:
        abate.observe.remove(sink)
    # of 303 events one is with the sink, and ten wait
    assert (sink.waiting, sink.dropped) == (10, 303 - 11)
    assert not sink.flush(timeout=0.01)


def test_flushing_a_sink_that_blocks_does_not_pile_up(stuck):
    """However often somebody asks, what waits is bounded."""
    sink = Detached(stuck, capacity=10)
    sink(EVENT)
    assert stuck.blocked.wait(PATIENCE)
    assert not any(sink.flush(timeout=0.0) for _ in range(100))
    assert sink.waiting <= 11


def test_a_slow_sink_is_told_of_once(caplog):
    """When it moves on, the log says that events were dropped."""
    go, blocked = threading.Event(), threading.Event()

    def sink(event):
        blocked.set()
        go.wait(PATIENCE)

    slow = Detached(sink, capacity=1)
    slow(EVENT)
    assert blocked.wait(PATIENCE)
    for _ in range(5):
        slow(EVENT)
    with caplog.at_level(logging.WARNING, logger="abate"):
        go.set()
        assert slow.flush(PATIENCE)
        slow(EVENT)
        assert slow.flush(PATIENCE)
    assert slow.dropped == 4
    told = [record for record in caplog.records if repr(sink) in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]
    assert "is too slow: events are dropped" in told[0].getMessage()


@pytest.fixture
def timed(monkeypatch):
    """The time that sinks are judged by, in a list."""
    now = [100.0]
    monkeypatch.setattr(detached, "monotonic", lambda: now[0])
    return now


def test_a_sink_that_raises_is_tried_again_in_growing_pauses(timed, caplog):
    """Each pause is logged once, and what comes meanwhile is dropped and counted."""
    failures = []

    def broken(event):
        failures.append(timed[0] - 100.0)
        raise RuntimeError("no disk")

    sink = Detached(broken)
    for second in range(1_000):
        timed[0] = 100.0 + second
        sink(EVENT)
        assert sink.flush(PATIENCE)
    assert failures == [0, 10, 30, 70, 150, 310, 610, 910]
    assert sink.dropped == 1_000 - len(failures)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        f"the sink {broken!r} failed: it is tried again in {pause} s" for pause in (10, 20, 40, 80, 160, 300, 300, 300)
    ]


def test_a_sink_that_works_again_is_brought_everything(timed, caplog):
    """In the same thread; the log says how much was dropped."""
    threads, fails = [], [True]

    def sink(event):
        threads.append(threading.current_thread())
        if fails[0]:
            raise RuntimeError("no disk")

    detached_sink = Detached(sink)
    for _ in range(4):
        detached_sink(EVENT)
        assert detached_sink.flush(PATIENCE)
    fails[0] = False
    timed[0] += 10.0
    for _ in range(5):
        detached_sink(EVENT)
    assert detached_sink.flush(PATIENCE)
    assert (len(threads), len(set(threads)), detached_sink.dropped) == (6, 1, 3)
    assert caplog.messages[-1] == f"the sink {sink!r} takes events again; 3 were dropped meanwhile"


def test_what_was_handed_over_before_a_failure_is_dropped_and_counted(timed):
    """A queue of events is not a queue of failures."""
    blocked, go = threading.Event(), threading.Event()
    failures = []

    def broken(event):
        failures.append(event)
        blocked.set()
        go.wait(PATIENCE)
        raise RuntimeError("no disk")

    sink = Detached(broken)
    for _ in range(10):
        sink(EVENT)
    assert blocked.wait(PATIENCE)
    go.set()
    assert sink.flush(PATIENCE)
    assert (len(failures), sink.dropped) == (1, 9)


def test_the_sink_sees_the_context_of_the_event():
    """Context variables are those of the call, and so are the clock and the current span."""
    where: ContextVar[str] = ContextVar("where")
    seen = SimpleQueue()
    sink = Detached(lambda event: seen.put(where.get()))
    where.set("here")
    sink(EVENT)
    where.set("elsewhere")
    assert seen.get(timeout=PATIENCE) == "here"


def test_it_counts_where_its_sink_does():
    """A sink that wants calls to be counted has them counted behind this as well."""

    class Counting:
        counts = True

        def __call__(self, event):
            pass

    assert (Detached(Counting()).counts, Detached(print).counts) == (True, False)


def test_nothing_to_flush_needs_no_thread():
    """One that never had an event has nothing to wait for."""
    before = threading.active_count()
    assert Detached(print).flush(0.0)
    assert threading.active_count() == before


def test_many_threads_hand_over_at_once():
    """Each event is brought or dropped, none twice, and one thread brings them."""
    seen = []
    sink = Detached(seen.append, capacity=500)

    def storm():
        for _ in range(1_000):
            sink(EVENT)

    threads = [threading.Thread(target=storm) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sink.flush(PATIENCE)
    assert len(seen) + sink.dropped == 8_000


def test_its_thread_ends_with_it():
    """One that nobody holds leaves no thread behind."""
    threads = SimpleQueue()
    sink = Detached(lambda event: threads.put(threading.current_thread()))
    sink(EVENT)
    thread = threads.get(timeout=PATIENCE)
    del sink
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


@forks
def test_a_child_has_a_thread_of_its_own(stuck):
    """After a fork events arrive in the child, and it does not bring what the parent has waiting."""
    sink = Detached(stuck)
    sink(EVENT)
    assert stuck.blocked.wait(PATIENCE)
    sink(EVENT)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        sink.sink = lambda event: os.write(write, b"x")
        sink(EVENT)
        os._exit(0 if sink.flush(PATIENCE) else 1)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read, "rb") as brought:
        assert (status, brought.read()) == (0, b"x")


AT_EXIT = """
import sys, threading
from abate import events
from abate.observe.detached import Detached
from tests.stores.processes import forks
def sink(event):
    {body}
detached = Detached(sink, grace={grace})
for _ in range(3):
    detached(events.Recovered("orders", 2, 0.5))
"""


def ended(body, grace):
    program = AT_EXIT.format(body=body, grace=grace)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)


def test_what_waits_at_exit_is_brought():
    """A program that ends at once loses nothing."""
    assert ended("print('seen', flush=True)", 30.0).stdout.split() == ["seen"] * 3


def test_a_sink_that_blocks_for_ever_does_not_keep_the_program():
    """The wait at exit is bounded by the grace."""
    assert ended("print('seen', flush=True); threading.Event().wait()", 0.1).stdout.split() == ["seen"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("nonsense",), TypeError, "a sink must be a function of one event, not 'nonsense'"),
        ((print, 0), ValueError, "capacity must be a whole number of at least 1, not 0"),
        ((print, 1, -1.0), ValueError, "grace must be a number at least 0, not -1.0"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(arguments, error, message):
    """At construction, naming the value."""
    with pytest.raises(error, match=message):
        Detached(*arguments)


# -- sinks that nobody knows


def called(policy):
    """Make a call that fails once."""
    return policy.call(abate.testing.Script(OSError(), "fine"))


@pytest.fixture
def orders():
    return abate.Policy(name="orders", on=OSError, backoff=[0.0], budget=abate.Budget.unlimited())


def test_a_function_that_is_installed_has_had_the_events_when_the_call_is_over(orders):
    """As if the call had called it; and it can be removed by itself."""
    seen = []
    abate.observe.install(seen.append)
    abate.observe.install(seen.append)
    try:
        called(orders)
        assert [type(event).__name__ for event in seen] == ["FirstFailure", "Retry", "Recovered"]
    finally:
        abate.observe.remove(seen.append)
    called(orders)
    assert len(seen) == 3


def sink_threads():
    """The threads of sinks that are alive now."""
    return {thread for thread in threading.enumerate() if thread.name == "abate-sink"}


def test_a_function_that_never_returns_holds_up_one_call_and_not_for_ever(orders, stuck, monkeypatch, caplog):
    """It is left behind; when a pause is over, no call waits for it as long as it has not returned."""
    monkeypatch.setattr(events, "MAX_HOLD_UP", 0.05)
    threads = sink_threads()
    abate.observe.install(stuck)
    try:
        assert called(orders) == "fine"
        assert "holds calls up" in caplog.text
        assert called(orders) == "fine"
        dropped = events.dropped(stuck)
        assert dropped >= 3
        now = events.monotonic()
        monkeypatch.setattr(events, "monotonic", lambda: now + 10_000.0)
        for _ in range(3):
            assert called(orders) == "fine"
        assert "TimeoutError: it has not returned from an earlier event" in caplog.text
        assert len(sink_threads() - threads) == 1
    finally:
        abate.observe.remove(stuck)


def test_a_function_that_raises_is_left_alone(orders, caplog):
    """And the call goes on."""
    failures = []

    def broken(event):
        failures.append(event)
        raise RuntimeError("no disk")

    abate.observe.install(broken)
    try:
        assert called(orders) == "fine"
        assert (len(failures), events.dropped(broken)) == (1, 2)
        assert "no disk" in caplog.text
    finally:
        abate.observe.remove(broken)


def test_a_function_may_make_calls_itself(orders):
    """Their events come to it as well."""
    seen = []

    def sink(event):
        seen.append(event)
        if len(seen) == 4:
            called(orders)

    abate.observe.install(sink)
    try:
        called(orders)  # from here on it has its thread
        called(orders)
    finally:
        abate.observe.remove(sink)
    assert len(seen) == 9


def test_a_function_that_is_removed_leaves_no_thread(orders):
    """Its thread ends."""
    before = set(threading.enumerate())
    seen = []
    abate.observe.install(seen.append)
    called(orders)
    (thread,) = set(threading.enumerate()) - before
    abate.observe.remove(seen.append)
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_sink_with_an_attribute_for_every_name_is_attended():
    """A mock has never said that it does not block, nor that calls are to be counted for it."""
    sink = Mock()
    install(sink)
    try:
        assert type(events.sinks[-1]) is TimeLimited
        assert not wrapper_versions.on
        assert Detached(sink).counts is False
    finally:
        remove(sink)


def test_who_is_broken_off_as_it_starts_the_thread_leaves_one_thread_and_loses_nothing(monkeypatch):
    """Another one is started by the next event, and finds the first at work."""
    seen, start = [], detached.SinkThread.start
    sink = Detached(lambda event: seen.append((event, threading.current_thread())))

    def broken_off(worker):
        start(worker)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(detached.SinkThread, "start", broken_off)
        sink("one")
    sink("two")
    assert sink.flush(PATIENCE)
    second = detached.SinkThread(sink.sink, sink._queue, sink._dropped, sink._threads)
    second.start()
    second.join(PATIENCE)
    assert not second.is_alive()
    sink("three")
    assert sink.flush(PATIENCE)
    assert [event for event, _ in seen] == ["one", "two", "three"]
    assert {thread for _, thread in seen} == {sink._worker}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_by_a_signal_handler_as_the_thread_is_started_keeps_the_child_s_own_lock(monkeypatch):
    """The child starts a thread of its own."""
    sink, start = Detached([].append), detached.SinkThread.start

    def forked(worker):
        sink.after_fork()  # what the child does first
        start(worker)

    with monkeypatch.context() as patched:
        patched.setattr(detached.SinkThread, "start", forked)
        sink("parent's")
    assert not sink._starting.locked()
    sink("own")
    assert sink.flush(PATIENCE)
