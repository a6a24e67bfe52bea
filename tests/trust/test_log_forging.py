"""Only abate writes its log lines: text of keys, names and errors is quoted."""

import asyncio
import io
import logging
import sys

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import DeadlineExceeded, Policy, Refused, Report, events, observe
from abate.cli import main
from abate.cli.run import RedactingFormatter
from abate.cli.terminal import StatusLine, escape, say, table
from abate.logs import MAX_ARGUMENT, Log
from abate.redact import escaped, one_line

FORGED = "x\n2026-01-01 ERROR abate: forged\r\x1b[2J\x85\u2028\u2029\u202e\x00\x7f\ud800"
TEXTS = st.one_of(
    st.just(FORGED), st.text(max_size=100), st.text("\r\n\x0b\x0c\x1c\x1b\x85\u2028\u202e\u2066a%s{", max_size=30)
)

EVENTS = [
    lambda text, error: events.FirstFailure(text, text, error),
    lambda text, error: events.FirstFailure(text, text, error, text, 503),
    lambda text, error: events.Retry(text, 1, 0.1, text, None, error),
    lambda text, error: events.Retry(text, 1, 0.1, text, None, None, text, 503),
    lambda text, error: events.BudgetRefused(text, text, 1),
    lambda text, error: events.GaveUp(text, text, 3, 0.1, error),
    lambda text, error: events.GaveUp(text, text, 3, 0.1, None, text),
    lambda text, error: events.Recovered(text, 2, 0.1),
    lambda text, error: events.LayeredRetry(text, text),
    lambda text, error: events.ShelterChanged(text, text, text, 1, 1.0),
    lambda text, error: events.Waited(text, 1.0),
    lambda text, error: events.Worked(text, text, "retry", 0.1, 1, error),
    lambda text, error: events.Worked(text, [text], text, 0.1, 1, error),
    lambda text, error: events.Buried(text, text, text, text),
    lambda text, error: events.LeaseLost(text, text),
    lambda text, error: events.WorkerCrashed(text, text, error),
    lambda text, error: events.BreakerOpened(text, 1.0, gate=True),
    lambda text, error: events.SourceFailed(text, text, error, 1.0),
    lambda text, error: events.StoreDegraded(text, True, error),
]


class Named(Exception):
    """An error whose `repr` is what a peer sent."""

    def __repr__(self):
        return str(self)


@pytest.fixture(scope="module")
def logger():
    """A logger of its own, and the stream that it writes to, which begins anew for every look."""
    stream = io.StringIO()
    logger = logging.getLogger("abate.forging")
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield logger, stream
    logger.removeHandler(handler)


def lines(stream):
    """What was written, line by line; and it is empty again."""
    text = stream.getvalue()
    stream.seek(0)
    stream.truncate()
    assert not text or text.endswith("\n")
    return text[:-1].split("\n") if text else []


@given(TEXTS)
def test_the_errors_of_a_policy_are_one_line(text):
    """Whatever its name holds."""
    for error in (abate.DeadlineExceeded(text), abate.Refused(text, "why")):
        assert str(error).isprintable()


@given(TEXTS, st.sampled_from(EVENTS))
def test_one_event_is_one_line(logger, text, make):
    """In logging and in structlog; no line has a control character, and none is longer than a few errors."""
    event = make(text, Named(text))
    every = observe.LoggingSink(logger[0], every=True)
    every.LOGGED_ELSEWHERE = ()
    every(event)
    (written,) = lines(logger[1])
    assert written.isprintable()
    once = observe.LoggingSink(logger[0])
    once.LOGGED_ELSEWHERE = ()
    once(event)
    assert all(each.isprintable() for each in lines(logger[1]))
    entries = structlog.testing.CapturingLogger()
    observe.StructlogSink(entries, every=True)(event)
    (entry,) = entries.calls
    assert all(value.isprintable() for value in entry.kwargs.values() if isinstance(value, str))


@given(TEXTS)
def test_one_line_of_the_work_loop_is_one_line(logger, text):
    """Whatever the arguments are, by `%s` and by `%r`."""
    log = Log("abate.forging")
    log.warning("%s: %r failed %d times: %s (%g s)", text, text, 3, Named(text), 0.5)
    log.error("%s", [text])
    first, second = lines(logger[1])
    assert (first + second).isprintable()
    assert "failed 3 times" in first


def test_a_line_is_bounded(logger):
    """A megabyte is not a line of a megabyte."""
    Log("abate.forging").warning("%s and %r", "x" * 1_000_000, "y" * 1_000_000)
    (written,) = lines(logger[1])
    assert len(written) <= 2 * MAX_ARGUMENT + 5


@given(TEXTS)
def test_a_traceback_forges_no_line(logger, text):
    """Every line but the first is indented, and none has control characters."""
    try:
        try:
            raise OSError(text)
        except OSError as error:
            raise ValueError(text) from error
    except ValueError:
        Log("abate.forging").exception("%s failed", text)
    first, *others = lines(logger[1])
    assert first.endswith(" failed")
    assert others
    assert all(each.startswith("  ") and each.isprintable() for each in others)


def test_the_record_has_the_error_itself(logger):
    """Handlers that report errors get the object, not a text."""
    records, handler = [], logging.Handler()
    handler.emit = records.append
    logger[0].addHandler(handler)
    error = OSError(FORGED)
    Log("abate.forging").error("it failed", exc_info=error)
    logger[0].removeHandler(handler)
    lines(logger[1])
    assert records[0].exc_info[1] is error


@given(TEXTS)
def test_an_error_of_a_policy_is_one_line(text):
    """Names may come from requests: a policy for each tenant."""
    for made in (DeadlineExceeded(text), Refused(text, "no room"), Report(text, 1, 0.0, "attempts")):
        assert str(made).isprintable()


def test_a_warning_about_a_function_is_one_line():
    """Of one that returns a result in one call and a coroutine in another."""
    by_turns = Policy(on=ConnectionError, name=FORGED)(lambda answer: answer)
    by_turns(1)
    with pytest.warns(RuntimeWarning, match="in another") as warned:
        asyncio.run(by_turns(asyncio.sleep(0)))
    assert str(warned[0].message).isprintable()


@given(TEXTS)
def test_commands_write_one_line_for_one_thing(text):
    """Messages, tables and the status line; nothing but the terminal's own sequences moves its cursor."""
    stream = io.StringIO()
    before, sys.stderr = sys.stderr, stream
    try:
        say(text)
    finally:
        sys.stderr = before
    assert stream.getvalue() == f"abate: {escape(text)}\n"
    assert escape(text).isprintable()
    assert len(table(["a", "b"], [[text, text], [1, text]]).split("\n")) == 3
    drawn = io.StringIO()
    StatusLine(drawn).draw(text)
    assert drawn.getvalue().removeprefix("\r").removesuffix("\x1b[K").isprintable()


@given(TEXTS)
def test_what_a_module_logs_under_abate_run_begins_one_line(text):
    """Its own lines may go on below, indented."""
    record = logging.LogRecord("app", logging.ERROR, "app.py", 1, "%s", (text,), None)
    first, *others = RedactingFormatter("%(levelname)s %(message)s").format(record).split("\n")
    assert first.startswith("ERROR ")
    assert all(each.startswith("  ") for each in others)
    assert (first + "".join(others)).isprintable()


def test_keys_and_reasons_in_a_table_are_one_row_each(tmp_path, capsys):
    """A dead letter can't show a row that is not there."""
    import abate

    url = f"sqlite:///{tmp_path}/work.db"
    with abate.open_store(url) as store:
        queue = store.queue("orders")
        queue.add("42\nforged  row\x1b[2J")
        (message,) = queue.receive()
        queue.bury(message, "why\r\x1b[1A\u2028not")
    assert main(["queue", "dead", url]) == 0
    told = capsys.readouterr().out
    assert len(told.splitlines()) == 2
    assert r"42\nforged  row\x1b[2J" in told
    assert r"why\r\x1b[1A\u2028not" in told


@given(st.text(max_size=200))
def test_what_is_printable_is_not_quoted(text):
    """And everything else can be read off its escape sequence."""
    assert escaped(text).isprintable()
    if text.isprintable():
        assert escaped(text) == text
    assert len(one_line(text, 20)) <= 20
