"""Errors and bodies that are nested without bound: bounded work, a clear answer, and no RecursionError."""

import logging

import pytest

import abate
from abate import event_sinks
from abate.decide.exception_groups import MAX_GROUP_DEPTH, MAX_GROUP_MEMBERS
from abate.decide.outcome import Outcome
from abate.decide.rules import build_rules
from abate.redact import trace
from abate.stores import open_store
from abate.stores.redis.error_texts import _first
from abate.testing import Script, VirtualClock
from abate.work.source import Message
from abate.work.verdict_rules import MAX_TRACE_CHARS

DEPTH = 10_000


def grouped(depth, member=None):
    """A group within a group within a group."""
    error = member or ConnectionError("down")
    for _ in range(depth):
        error = ExceptionGroup("group", [error])
    return error


def caused(depth, how="__cause__"):
    """An error that was raised from an error that was raised from an error."""
    error = first = ConnectionError("down")
    for number in range(depth):
        before, error = error, ConnectionError(f"down {number}")
        setattr(error, how, before)
    assert error is not first
    return error


NESTED = {
    "groups": lambda: grouped(DEPTH),
    "causes": lambda: caused(DEPTH),
    "contexts": lambda: caused(DEPTH, "__context__"),
}


@pytest.mark.parametrize("nested", NESTED.values(), ids=NESTED)
def test_a_policy_judges_errors_of_any_depth(nested):
    """It raises the error itself after its attempts, or at once for a group that is too deep."""
    error = nested()
    policy = abate.Policy(on=ConnectionError, max_attempts=2, backoff=[0.0])
    with pytest.raises((ConnectionError, ExceptionGroup)) as caught:
        policy.call(Script(error, error))
    assert caught.value is error
    attempts = abate.report(error).attempts
    assert attempts == (1 if isinstance(error, ExceptionGroup) else 2)


class Counted(Exception):
    """Counts how often anybody asks about it."""

    asked = 0


def asked(error):
    Counted.asked += 1
    return isinstance(error, Counted)


@pytest.mark.parametrize("unless", [(), abate.on_error(lambda error: asked(error) and False)])
def test_a_group_costs_as_much_as_it_holds(unless):
    """Each member is asked about once by each rule, and not once for every group around it."""
    Counted.asked = 0
    error = grouped(MAX_GROUP_DEPTH - 1, ExceptionGroup("members", [Counted() for _ in range(100)]))
    ruling = build_rules(on=abate.on_error(asked), unless=unless).decide(Outcome(error=error))
    assert ruling.retry
    assert Counted.asked <= 2 * (100 + MAX_GROUP_DEPTH) * (2 if unless else 1)


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (grouped(MAX_GROUP_DEPTH), True),
        (grouped(MAX_GROUP_DEPTH + 1), False),
        (ExceptionGroup("many", [ConnectionError()] * MAX_GROUP_MEMBERS), True),
        (ExceptionGroup("many", [ConnectionError()] * (MAX_GROUP_MEMBERS + 1)), False),
    ],
    ids=["deep", "too deep", "large", "too large"],
)
def test_the_bounds_of_a_group(error, retry):
    """What is beyond them is fatal."""
    assert build_rules(on=ConnectionError).decide(Outcome(error=error)).retry is retry


def test_a_group_that_holds_another_twice_is_counted_as_often():
    """Sixty groups, each of the one before twice: to look at every member would never end."""
    error = ConnectionError()
    for _ in range(60):
        error = ExceptionGroup("twice", [error, error])
    assert not build_rules(on=ConnectionError).decide(Outcome(error=error)).retry


def twice(depth):
    """Groups that each hold the one before twice."""
    error = ConnectionError("down")
    for _ in range(depth):
        error = ExceptionGroup("twice", [error, error])
    return error


@pytest.mark.parametrize(
    "error",
    [twice(16), ExceptionGroup("many", [twice(9), twice(9)]), ExceptionGroup("many", [ConnectionError()] * 100_000)],
    ids=["deep", "several", "wide"],
)
def test_a_traceback_of_a_group_with_many_members_leaves_them_out(error):
    """`traceback` would format each as often as it is there, and sixty such groups would never end."""
    assert trace(error).startswith("ExceptionGroup: ")
    assert "down" not in trace(error)


def test_a_traceback_shows_members_and_causes():
    """Within the bounds, each once."""
    error = ExceptionGroup("two", [caused(3), KeyError("other")])
    error.exceptions[1].__context__ = error
    written = trace(error)
    assert [written.count(text) for text in ("ConnectionError: down\n", "down 2", "KeyError: 'other'")] == [1, 1, 1]


def test_members_of_nested_groups_are_judged_as_they_are():
    """Within the bounds, a group in a group is retried by the same rules: cut off, excepted, named as a whole."""
    inner = ExceptionGroup("inner", [abate.AttemptTimeout(1.0), ConnectionError()])
    decide = build_rules(on=ConnectionError).decide
    assert decide(Outcome(error=ExceptionGroup("outer", [inner]))).overloaded
    assert not decide(Outcome(error=ExceptionGroup("outer", [inner, ValueError()]))).retry
    excepting = build_rules(on=ConnectionError, unless=ConnectionResetError).decide
    assert not excepting(Outcome(error=grouped(3, ConnectionResetError()))).retry
    assert build_rules(on=ExceptionGroup).decide(Outcome(error=grouped(3, ValueError()))).retry


@pytest.mark.parametrize("nested", NESTED.values(), ids=NESTED)
def test_a_message_whose_handler_raises_it_is_buried_with_a_short_trace(nested, caplog):
    """The dead letter names the error, and the other messages are worked on."""
    clock = VirtualClock(start=1000.0)
    seen = []
    with clock, open_store("memory:", clock=clock) as store:
        queue = store.queue("orders")
        for body in ("bad", "good"):
            queue.add(body, body)

        @abate.consumer(on=KeyError, max_receives=1)
        def handle(message):
            if message.body == "bad":
                raise nested()
            seen.append(message.body)

        handle.run(queue, drain=True)
        assert seen == ["good"]
        (letter,) = queue.dead()
        assert letter.kind == "fatal"
        assert "RecursionError" not in letter.reason
        assert letter.reason.startswith(("ConnectionError: down", "ExceptionGroup: group"))
        assert "in handle" in letter.trace
        assert len(letter.trace) <= MAX_TRACE_CHARS


@pytest.mark.parametrize("nested", NESTED.values(), ids=NESTED)
def test_sinks_and_logs_take_errors_of_any_depth(nested, monkeypatch):
    """What a handler of `logging` cannot format is its own complaint; no call fails because of it."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    sink = abate.observe.install(abate.observe.LoggingSink())
    try:
        error = nested()
        policy = abate.Policy(on=ConnectionError, max_attempts=2, backoff=[0.0])
        with pytest.raises((ConnectionError, ExceptionGroup)):
            policy.call(Script(error, error))
        assert sink in event_sinks.installed, "it raised, and was cut off"
    finally:
        abate.observe.remove(sink)


def test_causes_in_a_circle_end():
    """An error that was raised from one that was raised from it."""
    one, other = ConnectionError("one"), ConnectionError("other")
    one.__cause__, other.__cause__ = other, one
    assert _first(one) in (one, other)
    assert abate.report(one) is None
    policy = abate.Policy(on=ConnectionError, max_attempts=2, backoff=[0.0])
    with pytest.raises(ConnectionError):
        policy.call(Script(one, one))


@pytest.mark.parametrize("body", ["[" * DEPTH * 10, '{"a":' * DEPTH * 10, "[" * DEPTH * 10 + "]" * DEPTH * 10])
def test_a_body_nested_too_deeply_is_no_json(body):
    """An error like that of any other body that is none."""
    with pytest.raises(ValueError, match="the body is nested too deeply to be read as JSON"):
        Message("a", body).json()
