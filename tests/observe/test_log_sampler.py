"""Which events become log lines."""

import tracemalloc

import pytest

import abate
from abate import events
from abate.observe.event_text import MAX_NAME
from abate.observe.log_sampler import LINE_KINDS, MAX_KEYS, LogLine, LogSampler
from abate.redact import MAX_LINE as MAX_TEXT
from tests.observe.failing_events import DOWN, failed, kinds, worked

# -- kinds of lines

LINES = [
    (failed(), ["failing"]),
    (events.FirstFailure("orders", "fatal", DOWN), []),
    (events.Retry("orders", 1, 0.1, "blip", None, DOWN), ["retry"]),
    (events.BudgetRefused("orders", "budget", 1), ["refused"]),
    (events.GaveUp("orders", "attempts", 3, 1.5, DOWN), ["gave_up"]),
    (events.GaveUp("orders", "fatal", 1, 0.0, DOWN), ["fatal"]),
    (events.GaveUp("orders", "fatal", 1, 0.0, None), ["fatal"]),
    (events.GaveUp("orders", "budget", 1, 0.0, DOWN), ["gave_up"]),
    (events.GaveUp("orders", "layer", 1, 0.0, DOWN), ["gave_up"]),
    (events.GaveUp("orders", "body", 1, 0.0, DOWN), ["gave_up"]),
    (events.GaveUp("orders", "cancelled", 1, 0.0, KeyboardInterrupt()), ["cancelled"]),
    (events.Recovered("orders", 2, 0.5), ["recovered"]),
    (events.LayeredRetry("orders", "inner"), ["layered"]),
    (events.ShelterChanged("orders", "shop", "storm", 12, 1.0), ["shelter"]),
    (events.Waited("bucket", 0.5), []),
    (worked("42"), ["key_failing"]),
    (worked("42", "slow"), ["key_failing", "slowed"]),
    (worked("42", "done"), []),
    (worked("42", "buried"), []),
    (events.Buried("orders", "42", "permanent", "no address"), ["buried"]),
    (events.LeaseLost("orders", "42"), ["lease_lost"]),
    (events.WorkerCrashed("orders", "42", DOWN), ["crashed"]),
    (events.BreakerOpened("orders", 30.0), ["breaker"]),
    (events.SourceFailed("orders", "queue", DOWN, 1.0), ["source_failing"]),
    (events.StoreDegraded("redis", True, DOWN), ["store"]),
    (events.StoreDegraded("redis", False, None), ["store"]),
    (events.Event("orders"), ["other"]),
]


@pytest.mark.parametrize(("event", "expected"), LINES, ids=lambda value: type(value).__name__)
def test_which_events_are_lines(event, expected):
    """Expected events, and events that another one reports, make no line; each line has text, a level and facts."""
    lines = LogSampler().lines(event, 0.0)
    assert kinds(lines) == expected
    for line in lines:
        assert line.text.startswith(f"{event.name}: ")
        assert line.level == LINE_KINDS[line.kind][0]
        assert line.facts["name"] == event.name


# -- keys


def test_lines_of_one_key():
    """A key has lines at failure 1, 5, 10, 20 in a row and when it recovers; then it starts over."""
    sampler = LogSampler(burst=100)
    texts = [line.text for _ in range(25) for line in sampler.lines(worked("42"), 0.0)]
    texts += [line.text for _ in range(2) for line in sampler.lines(worked("42", "done"), 0.0)]
    texts += [line.text for line in sampler.lines(worked("42"), 0.0)]
    texts += [line.text for line in sampler.lines(worked("42", "silent"), 0.0)]
    assert texts == [
        "orders: '42' has failed: OSError('down')",
        "orders: '42' has failed 5 times in a row: OSError('down')",
        "orders: '42' has failed 10 times in a row: OSError('down')",
        "orders: '42' has failed 20 times in a row: OSError('down')",
        "orders: '42' is done after 25 failures",
        "orders: '42' has failed: OSError('down')",
        "orders: '42' is done after 1 failure",
    ]


def test_keys_of_a_queue_whose_backoff_does_not_grow():
    """A constant backoff has no cap to report."""
    service = abate.controller(name="flat-keys", backoff=[1.0])(print)
    event = events.Worked(service.name, "42", "retry", 0.1, 99, DOWN)
    assert kinds(LogSampler().lines(event, 0.0)) == ["key_failing"]


def test_keys_of_two_queues_are_two_keys():
    """The same key in another queue is counted separately."""
    sampler = LogSampler()
    sampler.lines(worked("42", policy="orders"), 0.0)
    assert kinds(sampler.lines(worked("42", policy="mail"), 0.0)) == ["key_failing"]
    assert sampler.lines(worked("42", "done", policy="other"), 0.0) == []


def test_a_buried_key_starts_over():
    """The `Buried` event reports the end, and the key's failures are forgotten."""
    sampler = LogSampler()
    sampler.lines(worked("42"), 0.0)
    assert sampler.lines(worked("42", "buried"), 0.0) == []
    assert sampler.lines(worked("42", "done"), 0.0) == []


@pytest.mark.parametrize("key", [["unhashable"], ("orders", 42), None, b"42"], ids=repr)
def test_keys_of_any_type_are_accepted(key):
    """Keys need not be strings, nor even hashable."""
    sampler = LogSampler()
    assert kinds(sampler.lines(worked(key), 0.0)) == ["key_failing"]
    assert kinds(sampler.lines(worked(key, "done"), 0.0)) == ["key_recovered"]


def test_a_key_and_an_error_without_a_repr():
    """An object whose `__repr__` or `__hash__` raises is logged by its type."""

    class Unprintable(Exception):
        def __repr__(self):
            raise RuntimeError("no")

        def __hash__(self):
            raise RuntimeError("no")

    (line,) = LogSampler().lines(events.Worked("orders", Unprintable(), "retry", 0.1, 1, Unprintable()), 0.0)
    assert line.text == "orders: a Unprintable that can't be shown has failed: a Unprintable that can't be shown"


def test_a_hundred_thousand_keys_and_long_errors_stay_small():
    """Memory and lines stay bounded for any number of keys, and for names and error texts of a megabyte."""
    sampler = LogSampler()
    huge = OSError("x" * 1_000_000)
    lines = list(sampler.lines(events.FirstFailure("p" * 1_000_000, "blip", huge), 0.0))

    def fail(numbers):
        for number in numbers:
            event = events.Worked("orders", f"{number}" + "k" * 1_000, "retry", 0.1, 1, huge)
            lines.extend(sampler.lines(event, number / 1_000))

    fail(range(80_000))
    tracemalloc.start()  # slows everything down, so only the last keys are traced
    try:
        fail(range(80_000, 100_000))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    lines += sampler.remaining_lines(100.0)
    assert kept < 400 * MAX_KEYS  # the keys themselves would take five times as much
    assert len(lines) < 10
    assert (
        sum(line.more for line in lines) + sum(line.kind == "key_failing" and not line.more for line in lines)
        == 100_000
    )
    longest = MAX_TEXT + 2 * MAX_NAME
    for line in lines:
        assert len(line.text) < longest
        assert all(len(str(fact)) <= MAX_TEXT for fact in line.facts.values())


def test_a_line_break_in_a_key_or_an_error_is_escaped():
    """Data from a peer can't forge a log line."""
    for event in (
        events.Worked("orders", "a\nroot: all is well", "retry", 0.1, 1, OSError("b\nroot: fine")),
        events.Buried("orders", "a\nb", "permanent", "c\nd"),
        events.GaveUp("orders", "attempts", 3, 1.0, OSError("b\nroot: fine")),
    ):
        (line,) = LogSampler().lines(event, 0.0)
        assert "\n" not in line.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"burst": 0}, "burst must be a whole number of at least 1, not 0"),
        ({"window": 0}, "window must be a number above 0, not 0"),
        ({"max_episodes": 0}, "max_episodes must be a whole number of at least 1, not 0"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(settings, message):
    """The error names the value and what was expected."""
    with pytest.raises(ValueError, match=message):
        LogSampler(**settings)


def test_every_kind_has_a_level_and_a_plural():
    """A summary of every kind has text."""
    for kind in LINE_KINDS:
        assert LogLine(kind, "orders", more=2, seconds=60.0).text.startswith("orders: … and 2 more ")
