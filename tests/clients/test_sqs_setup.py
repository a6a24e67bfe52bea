"""Sending to a queue, and making one: what is refused, against two real servers."""

import subprocess
import sys

import boto3
import pytest
from botocore.exceptions import ClientError

from abate import LayeredRetryWarning
from abate.clients.sqs import Queue
from tests.clients.sqs_servers import KEYS, KINDS, running


@pytest.fixture(scope="module", params=KINDS)
def sqs(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


def opened(sqs, **settings):
    """A queue without dead letters, as a source."""
    return Queue(sqs.create(**settings), client=sqs.client, dead_letters=False)


# -- sending


def test_what_is_sent_arrives(sqs):
    """Body, attributes and delay; the answer is the message's id."""
    queue = opened(sqs)
    with sqs.watched("SendMessage") as seen:
        key = queue.send("now", attributes={"trace.id": "ü"})
        queue.send("later", delay=600.5)
    assert [request["DelaySeconds"] for request in seen] == [0, 601]
    (message,) = queue.receive(10, 0)
    assert (message.key, message.body, message.attributes) == (key, "now", {"trace.id": "ü"})


@pytest.mark.parametrize(
    ("body", "more", "error", "said"),
    [
        (b"bytes", {}, TypeError, "body must be a string, not b'bytes'"),
        (None, {}, TypeError, "body must be a string, not None"),
        ("", {}, ValueError, "body must have at least one character"),
        ("a\x00", {}, ValueError, r"body holds '\\x00' at place 1"),
        ("\ud800", {}, ValueError, "body holds .* at place 0"),
        ("x" * 262_145, {}, ValueError, "262144 bytes, attributes included, not 262145"),
        ("é" * 150_000, {}, ValueError, "not 300000"),
        ("x" * 262_140, {"attributes": {"a": "b"}}, ValueError, "not 262148"),
        ("x", {"attributes": {"a": ""}}, ValueError, "the attribute 'a' must have at least one character"),
        ("x", {"attributes": {"a": 1}}, TypeError, "the attribute 'a' must be a string, not 1"),
        ("x", {"attributes": {"AWS.a": "b"}}, ValueError, "not 'AWS.a'"),
        ("x", {"attributes": {"a b": "b"}}, ValueError, "not 'a b'"),
        ("x", {"attributes": dict.fromkeys("abcdefghijk", "x")}, ValueError, "10 attributes at most, not 11"),
        ("x", {"delay": 901}, ValueError, "delay must be a number at least 0 and at most 900, not 901"),
        ("x", {"group": "a"}, ValueError, "is a standard queue"),
    ],
)
def test_what_sqs_would_refuse_is_refused_before(sqs, body, more, error, said):
    """With a clear error, and nothing sent."""
    queue = opened(sqs)
    with sqs.watched("SendMessage") as seen, pytest.raises(error, match=said):
        queue.send(body, **more)
    assert seen == []


def test_a_fifo_queue_needs_a_group_and_takes_no_delay(sqs):
    """SQS would refuse both."""
    queue = opened(sqs, fifo=True)
    with pytest.raises(ValueError, match="is a FIFO queue: pass group="):
        queue.send("x")
    with pytest.raises(ValueError, match=r"does not support a delay of one message, as 5"):
        queue.send("x", group="a", delay=5)


def test_the_largest_message_fits_and_more_where_both_allow_it(sqs):
    """The bound is the smaller of the queue's and the one given."""
    queue = opened(sqs)
    queue.send("x" * 262_144)
    small = Queue(sqs.create(MaximumMessageSize="1024"), client=sqs.client, dead_letters=False, max_body=10**6)
    with pytest.raises(ValueError, match="1024 bytes"):
        small.send("x" * 1_025)


# -- construction


def test_without_a_redrive_policy_dead_letters_must_be_said(sqs):
    """It is reported at construction, not at the first permanent failure."""
    with pytest.raises(ValueError, match=r"has no redrive policy: dead_letters must be"):
        Queue(sqs.create(), client=sqs.client)


def test_a_queue_that_is_not_there_is_an_error_at_once(sqs):
    """For the dead letters as for the queue itself."""
    with pytest.raises(ClientError, match="NonExistentQueue"):
        Queue(sqs.create() + "x", client=sqs.client)
    with pytest.raises(ClientError, match="NonExistentQueue"):
        Queue(sqs.create(), client=sqs.client, dead_letters=sqs.create() + "x")


def test_dead_letters_need_a_queue_of_the_same_kind(sqs):
    """A FIFO queue needs a FIFO queue, a standard one a standard one."""
    standard, fifo = sqs.create(), sqs.create(fifo=True)
    with pytest.raises(ValueError, match=r"of the FIFO queue .* need a FIFO queue"):
        Queue(fifo, client=sqs.client, dead_letters=standard)
    with pytest.raises(ValueError, match=r"of the standard queue .* need a standard queue"):
        Queue(standard, client=sqs.client, dead_letters=fifo)


def test_a_visibility_timeout_of_zero_needs_a_lease(sqs):
    """No consumer can work on a message that it never receives."""
    url = sqs.create(VisibilityTimeout="0")
    with pytest.raises(ValueError, match="visibility timeout of 0"):
        Queue(url, client=sqs.client, dead_letters=False)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"url": "orders"}, ValueError, "url must be the URL of a queue, not 'orders'"),
        ({"url": None}, ValueError, "url must be the URL of a queue, not None"),
        ({"dead_letters": "orders"}, ValueError, "dead_letters must be the URL of a queue, not 'orders'"),
        ({"dead_letters": True}, ValueError, "dead_letters must be the URL of a queue, not True"),
        ({"lease": 0}, ValueError, "lease must be a number above 0 and at most 43200, not 0"),
        ({"lease": 43_201}, ValueError, "not 43201"),
        ({"patience": 21}, ValueError, "patience must be a number above 0 and at most 20, not 21"),
        ({"patience": 0}, ValueError, "patience must be a number above 0 and at most 20, not 0"),
        ({"max_body": 0}, ValueError, "max_body must be"),
        ({"clock": 5}, TypeError, "clock must"),
        ({"client": "boto3"}, TypeError, "client must be a client of boto3 for SQS, not 'boto3'"),
    ],
)
def test_bad_settings_are_named(sqs, given, error, said):
    """The value, and what was expected."""
    settings = {"url": sqs.create(), "client": sqs.client, "dead_letters": False, **given}
    with pytest.raises(error, match=said):
        Queue(**settings)


def test_a_client_that_retries_by_itself_is_warned_about(sqs):
    """Two layers of retries multiply."""
    client = boto3.client("sqs", endpoint_url=sqs.endpoint, **KEYS)
    with pytest.warns(LayeredRetryWarning, match="multiply"):
        Queue(sqs.create(), client=client, dead_letters=False)
    client.close()


def test_a_queue_makes_its_own_client(sqs, monkeypatch):
    """At the host of its URL, with the credentials of the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    queue = Queue(sqs.create(), dead_letters=False)
    try:
        queue.send("x")
        assert [message.body for message in queue.receive(1, 0)] == ["x"]
    finally:
        queue.close()


def test_without_boto3_it_says_what_to_install():
    """The import is made when a queue is."""
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from abate.clients.sqs import Queue\n"
        "Queue('http://127.0.0.1:1/123456789012/orders')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "abate.clients.sqs needs boto3: install abate[sqs]" in done.stderr
    assert done.returncode == 1
