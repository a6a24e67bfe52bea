"""The logging sink."""

import gc
import logging
import pickle
import subprocess
import sys
from math import inf
from queue import SimpleQueue
from weakref import ref

import pytest

import abate
from abate import events
from abate.observe import LoggingSink, event_text, log_writer
from abate.observe.log_writer import LogWriter, flush_all
from tests.stores.processes import forks, in_child

ERROR = OSError("down")

LINES = [
    (events.FirstFailure("orders", "blip", ERROR), "DEBUG", "orders: first failure (blip): OSError('down')"),
    (
        events.Retry("orders", 1, 0.25, "blip", None, ERROR),
        "INFO",
        "orders: attempt 1 failed (blip), next in 0.25 s: OSError('down')",
    ),
    (
        events.Retry("orders", 1, 3.5, "overload", 3.0, None),
        "INFO",
        "orders: attempt 1 failed (overload, asked for 3 s), next in 3.5 s",
    ),
    (events.BudgetRefused("orders", "budget", 1), "WARNING", "orders: budget refused attempt 2"),
    (
        events.GaveUp("orders", "attempts", 3, 1.5, ERROR),
        "WARNING",
        "orders: gave up after 3 attempts and 1.5 s of waiting (attempts): OSError('down')",
    ),
    (events.Recovered("orders", 2, 0.5), "INFO", "orders: succeeded on attempt 2 after 0.5 s of waiting"),
    (
        events.Recovered("orders", 2, 0.5, "GET https://shop.example/42"),
        "INFO",
        "orders: succeeded on attempt 2 of GET https://shop.example/42 after 0.5 s of waiting",
    ),
    (
        events.BudgetRefused("orders", "budget", 1, "GET https://shop.example/42"),
        "WARNING",
        "orders: budget refused attempt 2 of GET https://shop.example/42",
    ),
    (events.LayeredRetry("outer", "inner"), "WARNING", "outer: did not retry what inner had given up on"),
    (
        events.ShelterChanged("orders", "shop", "probing", 12, 1.0),
        "WARNING",
        "orders: shelter shop changed to probing: the server seems to be down, so single attempts test it;"
        " 12 calls wait",
    ),
    (
        events.ShelterChanged("orders", "shop", "storm", 3, 4.75),
        "WARNING",
        "orders: shelter shop changed to storm: most attempts fail or answers are slow, so at most 4.75 attempts"
        " are in flight; 3 calls wait",
    ),
    (
        events.ShelterChanged("orders", "shop", "calm", 0, inf),
        "WARNING",
        "orders: shelter shop changed to calm: attempts are not limited any more",
    ),
    (
        events.Worked("orders", "42", "retry", 0.25, 3, ERROR),
        "DEBUG",
        "orders: '42' is retry after 0.25 s (handed out 3 times): OSError('down')",
    ),
    (
        events.Worked("orders", "42", "done", 0.25, 1, None),
        "DEBUG",
        "orders: '42' is done after 0.25 s (handed out 1 times)",
    ),
    (events.Event("orders"), "INFO", "orders: Event(name='orders')"),
]


@pytest.mark.parametrize(("event", "level", "line"), LINES, ids=lambda value: type(value).__name__)
def test_every_event_is_a_line(caplog, event, level, line):
    """With `every`, each event has its level and text, and its facts are in the record as `abate`."""
    with caplog.at_level(logging.DEBUG, logger="abate"):
        LoggingSink(every=True)(event)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (level, line)
    assert record.abate == {"event": event_text.event_type(event), **event_text.facts(event)}


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("made", [0, 3])
def test_a_refusal_and_its_facts_name_the_same_attempt(caplog, every, made):
    """Both name the attempt that was refused: the one after those that were made."""
    LoggingSink(every=every)(events.BudgetRefused("orders", "budget", made))
    (record,) = caplog.records
    assert record.getMessage() == f"orders: budget refused attempt {made + 1}"
    assert record.abate["attempt"] == made + 1


def test_facts_are_plain_values():
    """Facts are a dictionary that any formatter can write: errors and keys as text, numbers unchanged."""
    event = events.Worked("orders", ("a", 1), "retry", 0.25, 3, ERROR)
    assert event_text.facts(event) == {
        "name": "orders",
        "key": "('a', 1)",
        "ending": "retry",
        "seconds": 0.25,
        "receives": 3,
        "error_type": "OSError",
        "error": "OSError('down')",
    }
    assert event_text.facts(events.StoreDegraded("redis", False, None)) == {
        "name": "redis",
        "degraded": False,
        "error": None,
    }


def test_a_record_holds_no_reference_to_the_error():
    """Handlers that keep records keep neither large errors nor frames alive."""
    records = []

    class KeepingHandler(logging.Handler):
        def emit(self, record):
            records.append(record)

    logger = logging.Logger("kept")
    logger.addHandler(KeepingHandler())
    sink = LoggingSink(logger)

    class Large(Exception):
        pass

    error = Large("x" * 1_000_000)
    gone = ref(error)
    sink(events.GaveUp("orders", "attempts", 3, 1.5, error))
    del error
    assert gone() is None
    assert len(pickle.dumps(records[0].__dict__)) < 5_000


def test_a_logger_may_be_given_by_name_or_as_an_object(caplog):
    """The sink writes to that logger."""
    with caplog.at_level(logging.INFO):
        LoggingSink("shop.retries")(events.Recovered("orders", 2, 0.5))
        LoggingSink(logging.getLogger("shop.other"))(events.Recovered("orders", 2, 0.5))
    assert [record.name for record in caplog.records] == ["shop.retries", "shop.other"]


def test_a_disabled_level_makes_no_record(caplog):
    """Events below the logger's level are not recorded."""
    with caplog.at_level(logging.ERROR, logger="abate"):
        LoggingSink()(events.Recovered("orders", 2, 0.5))
        LoggingSink(every=True)(events.Recovered("orders", 2, 0.5))
    assert caplog.records == []


@pytest.fixture
def installed():
    """Install sinks for one test."""
    sinks = []

    def install(sink):
        sinks.append(abate.observe.install(sink))
        return sink

    yield install
    for sink in sinks:
        abate.observe.remove(sink)


def test_an_installed_sink_logs_calls(caplog, installed):
    """A call that fails and recovers makes three lines: at DEBUG its first failure, at INFO the rest."""
    installed(LoggingSink())
    with caplog.at_level(logging.DEBUG, logger="abate"), abate.testing.VirtualClock():
        abate.Policy(name="orders", on=OSError, backoff=[1.0]).call(abate.testing.Script(ERROR, "fine"))
    assert [(record.levelname, record.abate["event"]) for record in caplog.records] == [
        ("DEBUG", "failing"),
        ("INFO", "retry"),
        ("INFO", "recovered"),
    ]


def test_with_every_each_attempt_is_a_line(caplog, installed):
    """The retry itself is logged too."""
    installed(LoggingSink(every=True))
    with caplog.at_level(logging.INFO, logger="abate"), abate.testing.VirtualClock():
        abate.Policy(name="orders", on=OSError, backoff=[1.0]).call(abate.testing.Script(ERROR, "fine"))
    assert [record.abate["event"] for record in caplog.records] == ["retry", "recovered"]


def test_a_storm_of_calls_makes_few_lines(caplog, installed):
    """A thousand calls that fail within a minute make a burst and a summary of each kind."""
    installed(LoggingSink(burst=2, window=60.0))
    policy = abate.Policy(name="orders", on=OSError, max_attempts=2, backoff=[0.0], budget=abate.Budget(0.0, 1_000.0))
    with caplog.at_level(logging.INFO, logger="abate"), abate.testing.VirtualClock() as clock:
        for _ in range(1_001):
            with pytest.raises(OSError):
                policy.call(abate.testing.Script(ERROR, ERROR))
            clock.advance(0.06)
    logged_lines = [(record.abate["event"], record.abate.get("more")) for record in caplog.records]
    assert logged_lines == [("retry", None), ("gave_up", None)] * 2 + [("retry", 998), ("gave_up", 998)]
    assert caplog.records[-1].getMessage() == "orders: … and 998 more calls gave up (attempts) in the last 60 s"


def test_virtual_time_does_not_affect_real_time(caplog):
    """Each clock has its own episodes."""
    sink, event = LoggingSink(burst=1), events.Recovered("orders", 2, 0.5)
    with caplog.at_level(logging.INFO, logger="abate"):
        with abate.testing.VirtualClock(start=1e12):
            sink(event)
        sink(event)
        sink(event)
    assert len(caplog.records) == 2


def test_a_summary_is_written_without_another_event():
    """A timer writes the summary after the storm has ended."""
    written = SimpleQueue()
    lines = LogWriter(written.put, burst=1, window=1.0)
    for _ in range(5):
        lines(events.Recovered("orders", 2, 0.5))
    logged_lines = [written.get(timeout=30.0)]
    while sum(line.more + (line.event is not None) for line in logged_lines) < 5:
        logged_lines.append(written.get(timeout=30.0))
    while not logged_lines[-1].over:
        logged_lines.append(written.get(timeout=30.0))


def test_a_summary_that_cannot_be_written_is_logged():
    """The timer's thread logs the error and survives it."""
    logged, logger = SimpleQueue(), logging.getLogger("abate")

    class QueueHandler(logging.Handler):
        def emit(self, record):
            logged.put(record.getMessage())

    def write(line):
        if line.event is None:
            raise OSError("no disk")

    handler = QueueHandler()
    logger.addHandler(handler)
    try:
        lines = LogWriter(write, burst=1, window=1.0)
        lines(events.Recovered("orders", 2, 0.5))
        lines(events.Recovered("orders", 2, 0.5))
        assert logged.get(timeout=30.0) == "a summary could not be written"
    finally:
        logger.removeHandler(handler)


def test_remaining_counts_are_written_at_exit():
    """They are written before logging shuts down."""
    program = """
import gc
import logging
from abate import event_sinks, events, observe
logging.basicConfig(level="INFO", format="%(message)s")
sink = observe.install(observe.LoggingSink(burst=1))
for _ in range(10):
    event_sinks.emit(events.Recovered("orders", 2, 0.5))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    first, last = ended.stderr.splitlines()
    assert first == "orders: succeeded on attempt 2 after 0.5 s of waiting"
    assert last.startswith("orders: … and 9 more calls succeeded after a retry in the last ")


@forks
def test_a_child_logs_its_own_events():
    """After a fork the child starts over: its first event is a line, and its timer writes its summaries."""
    written = [SimpleQueue()]
    lines = LogWriter(lambda line: written[0].put(line), burst=1, window=1.0)
    for _ in range(3):
        lines(events.Recovered("orders", 2, 0.5))

    def child():
        written[0] = mine = SimpleQueue()
        for _ in range(3):
            lines(events.Recovered("orders", 2, 0.5))
        logged_lines = [mine.get(timeout=30.0)]
        while sum(line.more + (line.event is not None) for line in logged_lines) < 3:
            logged_lines.append(mine.get(timeout=30.0))
        return [line.event is not None for line in logged_lines]

    assert in_child(child) == "[True, False]"


def test_a_failing_writer_does_not_stop_the_others_at_exit(caplog):
    """Its error is logged."""

    def broken(line):
        if line.event is None:
            raise OSError("no disk")

    lines = LogWriter(broken, burst=1)
    for _ in range(2):
        lines(events.Recovered("orders", 2, 0.5))
    flush_all()
    assert "the last lines could not be written" in caplog.text


def test_bad_settings_are_refused():
    """The constructor raises an error that names the value."""
    with pytest.raises(ValueError, match="burst must be a whole number of at least 1, not 0"):
        LoggingSink(burst=0)
    with pytest.raises(ValueError, match="window must be a number above 0, not -1"):
        LoggingSink(window=-1)


@pytest.mark.parametrize(
    "event",
    [
        events.Buried("orders", "42", "permanent", "no"),
        events.BreakerOpened("orders", 30.0),
        events.LeaseLost("orders", "42"),
        events.SourceFailed("orders", "queue", ERROR, 1.0),
        events.StoreDegraded("redis", True, ERROR),
        events.WorkerCrashed("orders", "42", ERROR),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_that_are_logged_at_their_source_are_not_logged_twice(caplog, event):
    """Controllers, consumers and stores log these events themselves."""
    with caplog.at_level(logging.DEBUG):
        LoggingSink()(event)
        LoggingSink(every=True)(event)
    assert caplog.records == []


def test_a_dropped_sink_is_collected():
    """Its timer does not keep it alive."""
    sink = LoggingSink(burst=1)
    for _ in range(2):
        sink(events.FirstFailure("orders", "blip", ERROR))
    weak = ref(sink)
    del sink
    gc.collect()
    assert weak() is None


class FakeTimer:
    """Timers that expire when the test says so."""

    def __init__(self, seconds, function, args):
        self.expire = lambda: function(*args)
        self.started.append(self)

    def start(self):
        if self.interrupted:
            self.interrupted.pop()
            raise KeyboardInterrupt


def test_an_interrupted_start_of_a_timer_leaves_one_timer_in_the_end(monkeypatch):
    """A signal handler may raise when the thread runs already: two chains of timers would last as long as a storm."""
    started = []
    monkeypatch.setattr(FakeTimer, "started", started, raising=False)
    monkeypatch.setattr(FakeTimer, "interrupted", [True], raising=False)
    monkeypatch.setattr(log_writer, "Timer", FakeTimer)
    lines = LogWriter(lambda line: None, burst=1)
    event = events.Recovered("orders", 2, 0.5)
    lines(event)
    with pytest.raises(KeyboardInterrupt):
        lines(event)
    lines(event)
    assert len(started) == 2
    for timer in started.copy():
        timer.expire()
    assert len(started) == 3


def test_a_timer_whose_start_was_interrupted_goes_on_if_no_event_comes(monkeypatch):
    """Its thread may run all the same, and is the only one that can write the summary."""
    started = []
    monkeypatch.setattr(FakeTimer, "started", started, raising=False)
    monkeypatch.setattr(FakeTimer, "interrupted", [True], raising=False)
    monkeypatch.setattr(log_writer, "Timer", FakeTimer)
    lines = LogWriter(lambda line: None, burst=1)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(2):
            lines(events.Recovered("orders", 2, 0.5))
    started[0].expire()
    assert len(started) == 2
