"""Logging that can't break what logs."""

import io
import logging
import sys

import pytest

from abate import event_sinks, events
from abate.logs import Log

log = Log("abate.test")


class Broken(logging.Handler):
    """A handler that raises, as the standard library's own never do."""

    def emit(self, record):
        raise RuntimeError("the log server is down")


@pytest.fixture
def broken():
    handler, logger = Broken(), logging.getLogger("abate")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_it_logs_under_its_name_and_from_where_it_is_called(level, caplog):
    """Name, level, text and place are those of a logger of the standard library."""
    caplog.set_level(logging.DEBUG, "abate.test")
    getattr(log, level)("%s is %d", "this", 1)
    (record,) = caplog.records
    assert (record.name, record.levelname.lower(), record.getMessage()) == ("abate.test", level, "this is 1")
    assert record.funcName == "test_it_logs_under_its_name_and_from_where_it_is_called"


def test_an_exception_is_shown_with_its_traceback(caplog):
    """The error that is being handled, or the one that is given."""
    try:
        raise KeyError("x")
    except KeyError as error:
        log.exception("while handled")
        given = error
    log.error("given", exc_info=given)
    assert [record.exc_info[1] for record in caplog.records] == [given, given]


def test_a_handler_that_raises_is_reported_on_stderr(broken, capsys):
    """The code that logs goes on."""
    log.warning("%s fails", "it")
    shown = capsys.readouterr().err
    assert "logging failed on '%s fails' ('it',)" in shown
    assert "the log server is down" in shown


def test_nothing_is_reported_where_logging_is_told_not_to(broken, capsys, monkeypatch):
    """`logging.raiseExceptions` counts, as for the standard library."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    log.warning("it fails")
    assert capsys.readouterr().err == ""


class Unspeakable:
    def __repr__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize("stream", [None, "closed"])
def test_what_can_not_be_reported_either_is_dropped(broken, monkeypatch, stream):
    """A closed stderr, or none, or an argument without a repr: nothing is raised."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", stream and closed)
    log.warning("it fails")
    log.warning("%r fails", Unspeakable())


def test_a_sink_is_left_alone_though_that_can_not_be_logged(broken, capsys):
    """Neither the sink nor the logging breaks who emits."""

    def sink(event):
        raise KeyError("x")

    event_sinks.install(sink)
    for _ in range(3):
        event_sinks.emit(events.Recovered("orders", 1, 0.1))
    assert events.dropped(sink) == 2
    event_sinks.remove(sink)
