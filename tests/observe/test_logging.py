"""The logging sink."""

import logging

import pytest

import abate
from abate import events
from abate.observe import LoggingSink

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
        "orders: attempt 1 failed (overload, asked for 3 s), next in 3.5 s: None",
    ),
    (events.BudgetRefused("orders", "budget", 1), "WARNING", "orders: budget refused attempt 2"),
    (
        events.GaveUp("orders", "attempts", 3, 1.5, ERROR),
        "WARNING",
        "orders: gave up after 3 attempts and 1.5 s (attempts): OSError('down')",
    ),
    (events.Recovered("orders", 2, 0.5), "INFO", "orders: succeeded on attempt 2 after 0.5 s of waiting"),
    (events.LayeredRetry("outer", "inner"), "WARNING", "outer: did not retry what inner had given up on"),
    (
        events.ShelterChanged("orders", "shop", "probing", 12, 1.0),
        "WARNING",
        "orders: shop is probing, with 12 waiting and at most 1 in flight",
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
    (events.Event("orders"), "INFO", "Event(policy='orders')"),
]


@pytest.mark.parametrize(("event", "level", "line"), LINES, ids=lambda value: type(value).__name__)
def test_every_event_is_a_line(caplog, event, level, line):
    """Each event has its level and its sentence, and comes along as `abate` in the record."""
    with caplog.at_level(logging.DEBUG, logger="abate"):
        LoggingSink()(event)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage(), record.abate) == (level, line, event)


def test_a_logger_may_be_given_by_name_or_itself(caplog):
    """The sink writes where it is told to."""
    with caplog.at_level(logging.INFO):
        LoggingSink("shop.retries")(events.Recovered("orders", 2, 0.5))
        LoggingSink(logging.getLogger("shop.other"))(events.Recovered("orders", 2, 0.5))
    assert [record.name for record in caplog.records] == ["shop.retries", "shop.other"]


def test_a_line_that_nobody_reads_is_not_made(caplog):
    """Below the logger's level nothing is recorded."""
    with caplog.at_level(logging.ERROR, logger="abate"):
        LoggingSink()(events.Recovered("orders", 2, 0.5))
    assert caplog.records == []


def test_installed_it_logs_calls(caplog):
    """From a call to a line, through the installed sink."""
    sink = abate.observe.install(LoggingSink())
    try:
        with caplog.at_level(logging.INFO, logger="abate"), abate.testing.VirtualClock():
            abate.Policy(name="orders", on=OSError, backoff=[1.0]).call(abate.testing.Script(ERROR, "fine"))
    finally:
        abate.observe.remove(sink)
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]


@pytest.mark.parametrize(
    "event",
    [
        events.Buried("orders", "42", "permanent", "no"),
        events.FuseBlown("orders", 30.0),
        events.LeaseLost("orders", "42"),
        events.SourceFailed("orders", "queue", ERROR, 1.0),
        events.StoreDegraded("redis", True, ERROR),
        events.WorkerCrashed("orders", "42", ERROR),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_is_logged_where_it_happens_is_not_logged_twice(caplog, event):
    """Controllers, consumers and stores log their troubles by themselves."""
    with caplog.at_level(logging.DEBUG):
        LoggingSink()(event)
    assert caplog.records == []
