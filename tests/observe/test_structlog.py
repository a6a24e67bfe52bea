"""The structlog sink."""

import json

import pytest
import structlog
from structlog.testing import capture_logs

import abate
from abate import events
from abate.observe.structlog import StructlogSink

ERROR = OSError("down")


def test_a_call_makes_entries():
    """A call that recovers makes three entries, with a name and values."""
    with capture_logs() as entries:
        sink = abate.observe.install(StructlogSink())
        try:
            with abate.testing.VirtualClock():
                abate.Policy(name="orders", on=OSError, backoff=[1.0]).call(abate.testing.Script(ERROR, "fine"))
        finally:
            abate.observe.remove(sink)
    assert entries == [
        {
            "event": "failing",
            "log_level": "debug",
            "name": "orders",
            "reason": "blip",
            "error_type": "OSError",
            "error": "OSError('down')",
        },
        {
            "event": "retry",
            "log_level": "info",
            "name": "orders",
            "attempt": 1,
            "delay": 1.0,
            "reason": "blip",
            "hint": None,
            "error_type": "OSError",
            "error": "OSError('down')",
        },
        {"event": "recovered", "log_level": "info", "name": "orders", "attempts": 2, "waited": 1.0},
    ]


def test_a_storm_makes_few_entries():
    """It makes a burst, and a summary with the count."""
    with capture_logs() as entries, abate.testing.VirtualClock() as clock:
        sink = StructlogSink(burst=1)
        for _ in range(1_000):
            sink(events.GaveUp("orders", "attempts", 3, 1.0, ERROR))
        clock.advance(61.0)
        sink(events.Recovered("orders", 2, 0.5))
    assert [(entry["event"], entry.get("more")) for entry in entries] == [
        ("gave_up", None),
        ("gave_up", 999),
        ("recovered", None),
    ]


@pytest.mark.parametrize("every", [False, True])
def test_a_refusal_names_the_attempt_that_was_refused(every):
    """`attempt` is the number that the logging sink prints."""
    with capture_logs() as entries:
        StructlogSink(every=every)(events.BudgetRefused("orders", "budget", 3))
    assert [entry["attempt"] for entry in entries] == [4]


def test_with_every_each_event_is_an_entry():
    """The entry is named after the event's type, and has its level."""
    with capture_logs() as entries:
        sink = StructlogSink(every=True)
        for _ in range(5):
            sink(events.FirstFailure("orders", "blip", ERROR))
        sink(events.Buried("orders", "42", "permanent", "no address"))
    assert [(entry["event"], entry["log_level"]) for entry in entries] == [("first_failure", "debug")] * 5 + [
        ("buried", "error")
    ]
    assert entries[-1]["kind"] == "permanent"


def test_values_bound_to_the_logger_are_kept():
    """The user's own logger is used, with its values and processors; every entry can be written as JSON."""
    written = []

    def keep(_, __, text):
        written.append(text)
        raise structlog.DropEvent

    logger = structlog.wrap_logger(
        structlog.PrintLogger(),
        processors=[structlog.processors.JSONRenderer(), keep],
        wrapper_class=structlog.make_filtering_bound_logger(0),
    ).bind(service="shop")
    sink = StructlogSink(logger, every=True)
    for event in (
        events.Worked("orders", ("a", 1), "retry", 0.25, 3, ERROR),
        events.StoreDegraded("redis", True, ERROR),
        events.GaveUp("orders", "attempts", 3, 1.5, OSError("x" * 1_000_000)),
    ):
        sink(event)
    entries = [json.loads(text) for text in written]
    assert [entry["service"] for entry in entries] == ["shop"] * 3
    assert entries[0]["key"] == "('a', 1)"
    assert max(map(len, written)) < 2_000


def test_a_logger_of_another_type_is_refused():
    """The constructor raises an error that names the value."""
    with pytest.raises(TypeError, match=r"logger must be one of structlog's, with info\(\) and warning\(\), not 42"):
        StructlogSink(42)
