"""Events and sinks."""

import os
import signal
import threading
import time

import pytest

import abate
from abate import event_sinks, events
from abate.event_sinks import emit, install
from abate.events import Recovered
from abate.testing import Recorder, Script, VirtualClock
from tests.reentry import held_elsewhere


@pytest.fixture(autouse=True)
def no_sinks_left():
    """Every test leaves the process as it found it."""
    before = event_sinks.installed
    yield
    assert event_sinks.installed == before


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
        event_sinks.install("nonsense")


def test_a_class_is_not_a_sink():
    """An instance was forgotten, which would be silent for ever."""
    with pytest.raises(TypeError, match=r"LoggingSink\(\) instead of"):
        abate.observe.install(abate.observe.LoggingSink)
    with pytest.raises(TypeError, match="not a class"):
        install(Recovered)


def test_a_sink_that_is_not_installed_can_be_removed():
    """Removing is idempotent."""
    event_sinks.remove(print)


def test_a_sink_that_another_one_removes_gets_no_more_events():
    """Not even the event that is being handed out, and nothing of it stays behind for a sink that comes after it."""
    seen = []

    def first(event):
        event_sinks.remove(seen.append)

    install(first)
    second = seen.append
    install(second)
    before = set(event_sinks._sink_health)
    emit(Recovered("orders", 2, 0.1))
    event_sinks.remove(first)
    assert seen == []
    assert before - set(event_sinks._sink_health) == {id(first), id(second)}


# -- sinks that fail


class Timed:
    """The time that sinks are judged by, as the test has it."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def timed(monkeypatch):
    clock = Timed()
    monkeypatch.setattr(event_sinks, "monotonic", clock)
    return clock


@pytest.fixture
def installed():
    """Installs sinks, and removes them after the test."""
    sinks = []

    def add(sink):
        sinks.append(install(sink))
        return sink

    yield add
    for sink in sinks:
        event_sinks.remove(sink)


EVENT = Recovered("orders", 2, 0.1)


class Broken:
    """A sink that fails for as long as it is told to."""

    def __init__(self):
        self.given, self.fails = 0, True

    def __call__(self, event):
        self.given += 1
        if self.fails:
            raise RuntimeError("no disk")


def test_a_failing_sink_is_left_alone_and_logged(installed, timed, caplog):
    """It gets no further event for ten seconds; the others do."""
    got, broken = [], installed(Broken())
    installed(got.append)
    for _ in range(5):
        emit(EVENT)
    assert (broken.given, len(got), events.dropped(broken)) == (1, 5, 4)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"failed on {EVENT!r}: it is tried again in 10 s" in caplog.text


def test_a_sink_that_has_failed_is_tried_again_in_growing_pauses(installed, timed, caplog):
    """By one event each, after 10 s, 20 s, 40 s and so on, up to five minutes; each pause is a line of the log."""
    broken = installed(Broken())
    tried = []
    for second in range(2_000):
        timed.now = 100.0 + second
        before = broken.given
        emit(EVENT)
        if broken.given > before:
            tried.append(second)
    assert tried == [0, 10, 30, 70, 150, 310, 610, 910, 1210, 1510, 1810]
    assert len(caplog.records) == len(tried)
    assert events.dropped(broken) == 2_000 - len(tried)


def test_a_sink_that_works_again_gets_everything(installed, timed, caplog):
    """The log says so, and how much was dropped."""
    broken = installed(Broken())
    for _ in range(4):
        emit(EVENT)
    broken.fails = False
    timed.now += 10.0
    caplog.clear()
    for _ in range(5):
        emit(EVENT)
    assert (broken.given, events.dropped(broken)) == (6, 3)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith("takes events again; 3 were dropped meanwhile")


def test_what_fails_soon_after_it_worked_waits_longer(installed, timed, caplog):
    """The pause goes on growing, and begins anew once it has worked for five minutes."""
    broken = installed(Broken())
    pauses = []
    for well in (1.0, 1.0, 400.0, 1.0):
        broken.fails = True
        caplog.clear()
        emit(EVENT)
        pauses.append(float(caplog.messages[0].split()[-2]))
        broken.fails = False
        timed.now += pauses[-1]
        emit(EVENT)
        timed.now += well
    assert pauses == [10.0, 20.0, 40.0, 10.0]


def test_a_sink_that_holds_up_a_call_is_left_alone(installed, timed, caplog):
    """One call pays for it, the next does not; when the pause is over, one tries it."""
    entered = []

    def slow(event):
        entered.append(event)
        timed.now += 1.5

    installed(slow)
    for _ in range(3):
        emit(EVENT)
    assert len(entered) == 1
    assert "holds calls up (put it behind abate.observe.Detached): it is tried again in 10 s" in caplog.text
    timed.now += 10.0
    for _ in range(3):
        emit(EVENT)
    assert len(entered) == 2
    assert "it is tried again in 20 s" in caplog.text


def test_a_sink_that_holds_up_many_calls_a_little_is_left_alone(installed, timed, monkeypatch):
    """What it takes in a minute counts together; what it took before that does not."""
    monkeypatch.setattr(event_sinks, "SLOW", 0.0)
    entered = []

    def slow(event):
        entered.append(event)
        timed.now += 0.4 * event_sinks.MAX_HOLD_UP

    installed(slow)
    for pause in (0.0, event_sinks.MINUTE + 1.0, 0.0):
        timed.now += pause
        emit(EVENT)
    assert events.dropped(slow) == 0
    for _ in range(3):
        emit(EVENT)
    assert (len(entered), events.dropped(slow)) == (4, 2)
    event_sinks.remove(slow)
    install(slow)  # a sink that is installed again starts without a pause
    emit(EVENT)
    assert len(entered) == 5


def test_a_sink_that_never_returns_keeps_one_call(installed, timed, caplog):
    """Calls of other threads go on without it, however often its pause is over; once it has returned it is tried."""
    entered, release = threading.Semaphore(0), threading.Event()

    def stuck(event):
        entered.release()
        release.wait(30.0)

    installed(stuck)
    held = threading.Thread(target=emit, args=(EVENT,))
    held.start()
    assert entered.acquire(timeout=30.0)
    for second in range(1000):
        timed.now = 102.0 + second
        emit(EVENT)
    assert not entered.acquire(blocking=False)
    said = [message.partition("> ")[2] for message in caplog.messages]
    assert said[0] == "has not returned: it is tried again in 10 s"
    assert [each.partition(";")[0] for each in said[1:]] == [
        f"has still not returned: it is tried again in {pause} s" for pause in (20, 40, 80, 160, 300, 300, 300)
    ]
    release.set()
    held.join(30.0)
    assert not entered.acquire(blocking=False)
    timed.now += 300.0
    emit(EVENT)
    assert entered.acquire(timeout=30.0)
    emit(EVENT)
    assert entered.acquire(timeout=30.0)
    assert "takes events again; 1000 were dropped meanwhile" in caplog.messages[-1]


def test_one_call_of_many_threads_tries_a_sink_that_blocked(installed, timed):
    """If it blocks again, the others are not held up by it."""
    release, inside = threading.Event(), []
    broken = Broken()

    def sink(event):
        broken(event)
        inside.append(event)
        release.wait(30.0)

    installed(sink)
    emit(EVENT)
    broken.fails = False
    timed.now += 10.0
    threads = [threading.Thread(target=emit, args=(EVENT,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(3000):
        if sum(thread.is_alive() for thread in threads) == 1 and inside:
            break
        time.sleep(0.01)
    assert len(inside) == 1
    assert sum(thread.is_alive() for thread in threads) == 1
    release.set()
    for thread in threads:
        thread.join(30.0)


@pytest.mark.parametrize("at", ["sink", "trial"])
def test_an_interrupt_inside_a_sink_passes_and_loses_no_sink(installed, timed, at):
    """Whatever breaks a call off comes out of it, and the sink is tried again."""
    broken = installed(Broken())
    if at == "trial":
        emit(EVENT)
        timed.now += 10.0

    given = []

    def interrupted(event):
        given.append(event)
        if len(given) == 1:
            raise KeyboardInterrupt

    installed(interrupted)
    broken.fails = False
    with pytest.raises(KeyboardInterrupt):
        emit(EVENT)
    timed.now += 300.0
    emit(EVENT)
    assert len(given) == 2


def test_a_sink_that_is_not_installed_has_dropped_nothing():
    """A count belongs to an installed sink."""
    assert events.dropped(print) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forks beside threads are what is tested here
def test_a_child_does_not_wait_for_what_its_parent_was_busy_with():
    """A fork while another thread is inside a sink: in the child no thread is."""
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
        os._exit(sum(len(health.inside) for health in event_sinks._sink_health.values()))
    release.set()
    held.join(30.0)
    event_sinks.remove(busy)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forks beside threads are what is tested here
def test_a_child_installs_sinks_though_another_thread_was_about_to():
    """The thread that held the lock of the list is not in the child."""
    with held_elsewhere(event_sinks._changes):
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

    before = event_sinks.installed
    try:
        event_sinks.installed = (*before, Meddling())
        install(first)
        assert event_sinks.installed[-2:] == (first, second)
    finally:
        event_sinks.installed = before
