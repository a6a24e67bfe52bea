"""Events and sinks."""

import logging
import os
import signal
import threading
import time

import pytest

import abate
from abate import events
from abate.events import Recovered, emit, install
from abate.testing import Recorder, Script, VirtualClock
from tests.reentry import held_elsewhere


@pytest.fixture(autouse=True)
def no_sinks_left():
    """Every test leaves the process as it found it."""
    before = events.sinks
    yield
    assert events.sinks == before


def test_a_call_that_recovers_tells_its_story():
    """First failure, each retry with delay and reason, recovered: in order, with the policy's name."""
    policy = abate.Policy(name="orders", on=(ConnectionError, TimeoutError), backoff=[0.5])
    reset, late = ConnectionResetError(), TimeoutError()
    with VirtualClock(), Recorder() as seen:
        policy.call(Script(reset, late, "fine"))
    assert seen == [
        events.FirstFailure("orders", "blip", reset),
        events.Retry("orders", 1, 0.5, "blip", None, reset),
        events.Retry("orders", 2, 0.5, "overload", None, late),
        events.Recovered("orders", 3, 1.0),
    ]


def test_a_call_that_gives_up_says_why():
    """The last event of a failed call carries its reason."""
    error = OSError()
    policy = abate.Policy(name="orders", on=OSError, budget=abate.Budget.empty())
    with Recorder() as seen, pytest.raises(OSError):
        policy.call(Script(error))
    assert seen == [
        events.FirstFailure("orders", "blip", error),
        events.BudgetRefused("orders", "empty budget", 1),
        events.GaveUp("orders", "budget", 1, 0.0, error),
    ]


def test_a_call_that_succeeds_at_once_is_no_event():
    """Calm makes no noise."""
    with Recorder() as seen:
        abate.Policy(on=OSError).call(int)
    assert seen == []


def test_a_sink_must_be_callable():
    """Anything but a function is refused where it is installed."""
    with pytest.raises(TypeError, match="a sink must be a function of one event, not 'nonsense'"):
        events.install("nonsense")


def test_a_class_is_not_a_sink():
    """An instance was forgotten, which would be silent for ever."""
    with pytest.raises(TypeError, match=r"LoggingSink\(\) instead of"):
        abate.observe.install(abate.observe.LoggingSink)
    with pytest.raises(TypeError, match="not a class"):
        install(Recovered)


def test_a_sink_that_is_not_installed_can_be_removed():
    """Removing is idempotent."""
    events.remove(print)


def test_a_failing_sink_is_cut_off_and_logged(caplog):
    """A sink that raises gets no further event; the others do."""
    got, failures = [], []

    def broken(event):
        failures.append(event)
        raise RuntimeError("no disk")

    events.install(broken)
    events.install(got.append)
    with caplog.at_level(logging.ERROR, logger="abate"):
        events.emit(events.Recovered("orders", 2, 0.1))
        events.emit(events.Recovered("orders", 3, 0.2))
    events.remove(got.append)
    assert (len(failures), len(got)) == (1, 2)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_sink_that_holds_up_a_call_is_cut_off(monkeypatch, caplog):
    """One call pays for it, the next does not."""
    monkeypatch.setattr(events, "STUCK", 0.01)
    entered = []

    def slow(event):
        entered.append(event)
        time.sleep(0.05)

    install(slow)
    for _ in range(3):
        emit(Recovered("orders", 2, 0.1))
    assert len(entered) == 1
    assert slow not in events.sinks
    assert "holds calls up" in caplog.text


def test_a_sink_that_holds_up_many_calls_a_little_is_cut_off(monkeypatch):
    """What it takes in a minute counts together; what it took before that does not."""
    monkeypatch.setattr(events, "SLOW", 0.0)
    now = [100.0]
    monkeypatch.setattr(events, "monotonic", lambda: now[0])
    entered = []

    def slow(event):
        entered.append(event)
        now[0] += 0.4 * events.STUCK

    install(slow)
    for pause in (0.0, events.MINUTE + 1.0, 0.0):
        now[0] += pause
        emit(Recovered("orders", 2, 0.1))
    assert slow in events.sinks
    for _ in range(3):
        emit(Recovered("orders", 2, 0.1))
    assert len(entered) == 4
    assert slow not in events.sinks
    install(slow)  # who comes again has a clean slate
    emit(Recovered("orders", 2, 0.1))
    assert slow in events.sinks
    events.remove(slow)


def test_a_sink_that_never_returns_keeps_one_call(monkeypatch, caplog):
    """Calls of other threads go on without it."""
    monkeypatch.setattr(events, "STUCK", 0.01)
    entered, release = threading.Event(), threading.Event()

    def stuck(event):
        entered.set()
        release.wait(30.0)

    install(stuck)
    held = threading.Thread(target=emit, args=(Recovered("orders", 2, 0.1),))
    held.start()
    assert entered.wait(30.0)
    time.sleep(0.05)
    emit(Recovered("orders", 2, 0.1))
    assert stuck not in events.sinks
    release.set()
    held.join(30.0)
    assert "has not returned" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forks beside threads are what is tested here
def test_a_child_does_not_wait_for_what_its_parent_was_busy_with():
    """A fork while another thread is in the midst of a sink: in the child nobody is."""
    entered, release = threading.Event(), threading.Event()

    def busy(event):
        entered.set()
        release.wait(30.0)

    install(busy)
    held = threading.Thread(target=emit, args=(Recovered("orders", 2, 0.1),))
    held.start()
    assert entered.wait(30.0)
    child = os.fork()
    if child == 0:
        os._exit(len(events._inside))
    release.set()
    held.join(30.0)
    events.remove(busy)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forks beside threads are what is tested here
def test_a_child_installs_sinks_though_another_thread_was_about_to():
    """The thread that held the lock of the list is not in the child."""
    with held_elsewhere(events._changes):
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends a child that hangs
            seen = []
            install(seen.append)
            emit(Recovered("orders", 2, 0.1))
            os._exit(0 if len(seen) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_sink_that_is_installed_by_a_comparison_of_sinks_is_installed():
    """Whatever code runs in the middle of a change of the list may change it, too."""
    first, second = [].append, [].append

    class Meddling:
        done = False

        def __eq__(self, other):
            if not self.done:
                self.done = True
                install(second)
            return False

        def __call__(self, event):
            raise NotImplementedError

    before = events.sinks
    try:
        events.sinks = (*before, Meddling())
        install(first)
        assert events.sinks[-2:] == (first, second)
    finally:
        events.sinks = before
