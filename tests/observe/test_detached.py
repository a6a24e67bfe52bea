"""Detached sinks: sinks that may block run in a thread of their own."""

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
from abate import event_sinks, events
from abate.call.counters import wrapper_versions
from abate.observe import detached, install, remove
from abate.observe.detached import Detached, TimeLimited
from tests.stores.processes import forks

EVENT = events.Recovered("orders", 2, 0.5)
PATIENCE = 30.0


@pytest.fixture
def stuck():
    """Return a sink that blocks until the test is over, with an event that is set once it blocks."""
    blocked, over = threading.Event(), threading.Event()

    def sink(event):
        blocked.set()
        over.wait(PATIENCE)

    sink.blocked = blocked
    yield sink
    over.set()


def test_events_arrive_in_order():
    """The sink receives every event that fits into the queue, in the order of emission."""
    seen = []
    sink = Detached(seen.append)
    sent = [events.Recovered("orders", number, 0.5) for number in range(1_000)]
    for event in sent:
        sink(event)
    assert sink.flush(PATIENCE)
    assert (seen, sink.dropped, sink.waiting) == (sent, 0, 0)


def test_the_sink_runs_in_another_thread():
    """The caller's thread only enqueues the event."""
    threads = SimpleQueue()
    sink = Detached(lambda event: threads.put(threading.current_thread()))
    sink(EVENT)
    assert threads.get(timeout=PATIENCE) is not threading.current_thread()


def test_a_blocking_sink_delays_no_call(stuck):
    """Calls continue; the queue is bounded, and events beyond it are dropped and counted."""
    sink = abate.observe.install(Detached(stuck, capacity=10))
    try:
        policy = abate.Policy(name="orders", on=OSError, backoff=[0.0], budget=abate.Budget(1.0, 1_000.0))
        policy.call(abate.testing.Script(OSError(), "fine"))
        assert stuck.blocked.wait(PATIENCE)
        for _ in range(100):
            assert policy.call(abate.testing.Script(OSError(), "fine")) == "fine"
    finally:
        abate.observe.remove(sink)
    # of 303 events, the sink holds one and ten are queued
    assert (sink.waiting, sink.dropped) == (10, 303 - 11)
    assert not sink.flush(timeout=0.01)


def test_flushing_a_blocking_sink_does_not_grow_its_queue(stuck):
    """The queue stays bounded however often flush is called."""
    sink = Detached(stuck, capacity=10)
    sink(EVENT)
    assert stuck.blocked.wait(PATIENCE)
    assert not any(sink.flush(timeout=0.0) for _ in range(100))
    assert sink.waiting <= 11


def test_a_slow_sink_is_reported_once(caplog):
    """When the sink continues, one warning says that events were dropped."""
    proceed, blocked = threading.Event(), threading.Event()

    def sink(event):
        blocked.set()
        proceed.wait(PATIENCE)

    slow = Detached(sink, capacity=1)
    slow(EVENT)
    assert blocked.wait(PATIENCE)
    for _ in range(5):
        slow(EVENT)
    with caplog.at_level(logging.WARNING, logger="abate"):
        proceed.set()
        assert slow.flush(PATIENCE)
        slow(EVENT)
        assert slow.flush(PATIENCE)
    assert slow.dropped == 4
    warnings = [record for record in caplog.records if repr(sink) in record.getMessage()]
    assert [record.levelname for record in warnings] == ["WARNING"]
    assert "is too slow: events are dropped" in warnings[0].getMessage()


@pytest.fixture
def timed(monkeypatch):
    """Replace the clock that times sinks, and return its time in a list."""
    now = [100.0]
    monkeypatch.setattr(detached, "monotonic", lambda: now[0])
    return now


def test_a_raising_sink_is_retried_after_growing_pauses(timed, caplog):
    """Each pause is logged once; events during a pause are dropped and counted."""
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


def test_a_recovered_sink_receives_every_event(timed, caplog):
    """The same thread delivers them, and the log says how many were dropped."""
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


def test_events_queued_before_a_failure_are_dropped_and_counted(timed):
    """A failing sink is not called again for each event that was already queued."""
    blocked, proceed = threading.Event(), threading.Event()
    failures = []

    def broken(event):
        failures.append(event)
        blocked.set()
        proceed.wait(PATIENCE)
        raise RuntimeError("no disk")

    sink = Detached(broken)
    for _ in range(10):
        sink(EVENT)
    assert blocked.wait(PATIENCE)
    proceed.set()
    assert sink.flush(PATIENCE)
    assert (len(failures), sink.dropped) == (1, 9)


def test_the_sink_sees_the_context_of_the_event():
    """Context variables, the clock and the current span are those of the call."""
    where: ContextVar[str] = ContextVar("where")
    seen = SimpleQueue()
    sink = Detached(lambda event: seen.put(where.get()))
    where.set("here")
    sink(EVENT)
    where.set("elsewhere")
    assert seen.get(timeout=PATIENCE) == "here"


def test_detached_counts_if_its_sink_counts():
    """`counts` is the wrapped sink's own setting."""

    class Counting:
        counts = True

        def __call__(self, event):
            pass

    assert (Detached(Counting()).counts, Detached(print).counts) == (True, False)


def test_nothing_to_flush_needs_no_thread():
    """A sink that never received an event flushes at once and starts no thread."""
    before = threading.active_count()
    assert Detached(print).flush(0.0)
    assert threading.active_count() == before


def test_many_threads_enqueue_at_once():
    """Each event is delivered once or dropped."""
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


def test_the_thread_ends_when_the_sink_is_collected():
    """An unreferenced sink leaves no thread behind."""
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
    """After a fork the child delivers its own events, and not those that were queued in the parent."""
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


def test_queued_events_are_delivered_at_exit():
    """A program that ends at once loses no events."""
    assert ended("print('seen', flush=True)", 30.0).stdout.split() == ["seen"] * 3


def test_a_sink_that_blocks_forever_does_not_block_exit():
    """The wait at exit is limited by `grace`."""
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
    """The constructor raises an error that names the value."""
    with pytest.raises(error, match=message):
        Detached(*arguments)


# -- other functions as sinks


def called(policy):
    """Make a call that fails once."""
    return policy.call(abate.testing.Script(OSError(), "fine"))


@pytest.fixture
def orders():
    return abate.Policy(name="orders", on=OSError, backoff=[0.0], budget=abate.Budget.unlimited())


def test_an_installed_function_has_received_all_events_when_the_call_ends(orders):
    """The call waits for the function, and `remove` accepts the function itself."""
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
    """Return the live threads of sinks."""
    return {thread for thread in threading.enumerate() if thread.name == "abate-sink"}


def test_a_function_that_never_returns_delays_one_call_for_a_limited_time(orders, stuck, monkeypatch, caplog):
    """The call leaves it behind; after the pause no call waits for it until it has returned."""
    monkeypatch.setattr(event_sinks, "MAX_HOLD_UP", 0.05)
    threads = sink_threads()
    abate.observe.install(stuck)
    try:
        assert called(orders) == "fine"
        assert "holds calls up" in caplog.text
        assert called(orders) == "fine"
        dropped = events.dropped(stuck)
        assert dropped >= 3
        now = event_sinks.monotonic()
        monkeypatch.setattr(event_sinks, "monotonic", lambda: now + 10_000.0)
        for _ in range(3):
            assert called(orders) == "fine"
        assert "TimeoutError: it has not returned from an earlier event" in caplog.text
        assert len(sink_threads() - threads) == 1
    finally:
        abate.observe.remove(stuck)


def test_a_raising_function_is_paused(orders, caplog):
    """The call continues."""
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


def test_a_function_may_make_calls(orders):
    """It receives the events of those calls too."""
    seen = []

    def sink(event):
        seen.append(event)
        if len(seen) == 4:
            called(orders)

    abate.observe.install(sink)
    try:
        called(orders)  # starts the sink's thread
        called(orders)
    finally:
        abate.observe.remove(sink)
    assert len(seen) == 9


def test_removing_a_function_ends_its_thread(orders):
    """No thread is left after `remove`."""
    before = set(threading.enumerate())
    seen = []
    abate.observe.install(seen.append)
    called(orders)
    (thread,) = set(threading.enumerate()) - before
    abate.observe.remove(seen.append)
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_mock_is_called_with_a_time_limit():
    """An attribute that a mock makes up is not taken for a promise not to block, nor for `counts`."""
    sink = Mock()
    install(sink)
    try:
        assert type(event_sinks.installed[-1]) is TimeLimited
        assert not wrapper_versions.on
        assert Detached(sink).counts is False
    finally:
        remove(sink)


def test_an_interrupt_while_the_thread_starts_leaves_one_thread_and_loses_nothing(monkeypatch):
    """The next event starts a second thread, which ends because the first one is running."""
    seen, start = [], detached.SinkThread.start
    sink = Detached(lambda event: seen.append((event, threading.current_thread())))

    def interrupted(worker):
        start(worker)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(detached.SinkThread, "start", interrupted)
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
    assert len({thread for _, thread in seen}) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_the_thread_starts_keeps_the_lock_of_the_child(monkeypatch):
    """A signal handler forks; the child starts a thread of its own."""
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
