"""What every store refuses to take, and how it says so."""

import pytest

from abate.errors import LARGEST
from abate.stores import Depth
from abate.stores.encoding import DEFAULT_MAX_BODY, MAX_KEY_BYTES
from abate.work.source import LeaseLost, Message


@pytest.mark.parametrize(
    ("arguments", "options", "error", "said"),
    [
        ((42,), {}, TypeError, "a key must be a non-empty string of at most 512 bytes, not 42"),
        (("",), {}, ValueError, "a key must be a non-empty string of at most 512 bytes, not ''"),
        (("ü" * 257,), {}, ValueError, "a key must be a non-empty string of at most 512 bytes, not of 514"),
        (("a", b"bytes"), {}, TypeError, "a body must be a string of at most 262144 bytes, not b'bytes'"),
        (("a", {"to": 1}), {}, TypeError, "at most 262144 bytes, not {'to': 1}: write json.dumps(...)"),
        (("a", "x" * 300_000), {}, ValueError, "a body must be a string of at most 262144 bytes, not of 300000"),
        (("a", "ok \udcff"), {}, ValueError, "in UTF-8; character 3 can't be encoded"),
        (("a",), {"priority": -1}, ValueError, "at least 0 and at most 2147483647, not -1"),
        (("a",), {"priority": 1.5}, TypeError, "at least 0 and at most 2147483647, not 1.5"),
        (
            ("a",),
            {"priority": 2**31},
            ValueError,
            "priority must be a whole number of at least 0 and at most 2147483647",
        ),
        (("a",), {"priority": 10**5000}, ValueError, "at most 2147483647, not an integer of 16610 bits"),
        (("a",), {"after": -1.0}, ValueError, "after must be a number at least 0, not -1.0"),
        (("a",), {"after": float("nan")}, ValueError, "after must be a number at least 0, not nan"),
        (("a",), {"attributes": {"n": 1}}, TypeError, "the attribute 'n' must be a string of at most 262144 bytes"),
        (("a",), {"attributes": {1: "n"}}, TypeError, "an attribute's name must be a non-empty string"),
        (("a",), {"attributes": ["n"]}, TypeError, "attributes must be strings by name"),
        (("a",), {"attributes": {"n": "x" * 262_144}}, ValueError, "at most 262144 bytes together, not of 262145"),
    ],
)
def test_what_can_not_be_added_is_refused_by_name(queue, arguments, options, error, said):
    """And nothing of it is kept."""
    with pytest.raises(error) as raised:
        queue.add(*arguments, **options)
    assert said in str(raised.value)
    assert queue.depth() == Depth()


def test_the_largest_that_is_allowed_is_kept_whole(queue):
    """Keys, bodies and attributes up to their length."""
    key, body, attributes = "k" * MAX_KEY_BYTES, "ü" * (DEFAULT_MAX_BODY // 2), {"n": "x" * (DEFAULT_MAX_BODY - 1)}
    queue.add(key, body, attributes=attributes)
    (message,) = queue.receive()
    assert (message.key, message.body, message.attributes) == (key, body, attributes)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda queue: queue.receive(0), "max_messages must be a whole number of at least 1, not 0"),
        (
            lambda queue: queue.receive(2**63),
            "max_messages must be a whole number of at least 1 and at most 2**63 - 1, not an integer of 64 bits",
        ),
        (lambda queue: queue.receive(wait=-1), "wait must be a number at least 0, not -1"),
        (lambda queue: queue.dead(0), "max_messages must be a whole number of at least 1, not 0"),
        (lambda queue: queue.redrive("a"), "keys must be a list of keys, or None for all, not 'a'"),
        (lambda queue: queue.done(Message(42)), "expected a message that was received from this queue"),
        (lambda queue: queue.extend(["a"]), "expected a message that was received from this queue, not 'a'"),
        (lambda queue: queue.settle([(Message("a"), None)]), "a verdict must be Done, Back or Bury, not None"),
        (lambda queue: queue.done(Message("a"), again=-1.0), "again must be a number at least 0, not -1.0"),
    ],
)
def test_odd_arguments_are_refused_by_name(queue, call, said):
    """Each error names the value, and what was expected."""
    with pytest.raises((TypeError, ValueError)) as raised:
        call(queue)
    assert said in str(raised.value)


def test_the_largest_count_of_messages_receives_all(queue):
    """And reads all dead letters."""
    for key in "ab":
        queue.add(key)
    messages = queue.receive(LARGEST)
    assert [message.key for message in messages] == ["a", "b"]
    queue.bury(messages[0], "bad")
    assert len(queue.dead(LARGEST)) == 1


def test_odd_queues_are_refused_by_name(store):
    """A queue needs a name, a lease that lasts, and room for one."""
    for arguments, options in (
        (("",), {}),
        (("a",), {"lease": 0.0}),
        (("a",), {"capacity": 0}),
        (("a",), {"lease": float("inf")}),
        (("a",), {"capacity": 2**63}),
        (("a",), {"max_body": 10**5000}),
    ):
        with pytest.raises(ValueError):
            store.queue(*arguments, **options)


def test_a_message_that_was_not_received_is_lost(queue):
    """One that this queue never handed out."""
    with pytest.raises(LeaseLost):
        queue.done(Message("a", token=1))
    assert queue.settle([]) == []
    assert queue.extend([]) == []


def test_what_there_is_says_what_it_is(store, queue):
    """In a debugger, and in a log."""
    assert "'orders', lease 10 s" in repr(queue)
    assert repr(store.ledger("nightly")) == "StoreBudget('nightly', BudgetTerms(ratio=0.2, reserve=10.0, window=10.0))"
    assert "Store" in repr(store)
