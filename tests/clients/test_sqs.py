"""The queue as a source, against two real servers; see sqs_servers.py for what each of them lets pass."""

import base64
import logging

import boto3
import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abate.clients.sqs import Queue
from abate.testing import VirtualClock
from abate.work.source import Back, Bury, Done, Message
from tests.clients.sqs_servers import KEYS, KINDS, eventually, running

FEW = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
NO_ADDRESS = Bury("permanent", "no address", "Traceback ...")


@pytest.fixture(scope="module", params=KINDS)
def sqs(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


def one(queue):
    """The one message that a queue has."""
    (message,) = queue.receive(1, 0)
    return message


# -- receiving


def test_a_message_has_its_id_its_count_and_its_attributes(sqs):
    """What SQS says about a message is where the contract has it."""
    queue, _ = sqs.opened()
    sqs.client.send_message(
        QueueUrl=queue.url,
        MessageBody="ünïcode",
        MessageAttributes={
            "text": {"DataType": "String", "StringValue": "a"},
            "number": {"DataType": "Number", "StringValue": "1.5"},
            "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        },
    )
    message = one(queue)
    assert (message.body, message.receives, message.token, message.group) == ("ünïcode", 1, 1, None)
    assert message.attributes == {"text": "a", "number": "1.5", "bytes": base64.b64encode(b"\x00\xff").decode()}
    queue.settle([(message, Back(0))])
    again = eventually(lambda: queue.receive(1, 0))[0]
    assert (again.key, again.receives, again.token) == (message.key, 2, 2)


def test_a_receive_that_was_no_attempt_does_not_count(sqs):
    """SQS counts it, this process doesn't: untouched, or done for now."""
    queue, _ = sqs.opened()
    queue.send("a")
    seen = []
    for verdict in (Back(0), Back(0, touched=False), Back(0, touched=False), Back(0), Done(again=0), Back(0), Done()):
        (message,) = eventually(lambda: queue.receive(1, 0))
        seen.append((message.receives, message.token))
        assert message.unanswered is None
        queue.settle([(message, verdict)])
    assert seen == [(1, 1), (2, 2), (2, 3), (2, 4), (3, 5), (1, 6), (2, 7)]


def test_no_more_than_asked_for_and_no_more_than_ten(sqs):
    """A batch of SQS holds ten messages at most."""
    queue, _ = sqs.opened()
    for place in range(15):
        queue.send(str(place))
    assert len(queue.receive(3, 0)) == 3
    assert len(queue.receive(50, 0)) == 10


@pytest.mark.parametrize(("wait", "asked"), [(0, 0), (0.9, 0), (1, 1), (3.7, 3), (20, 20), (300, 20)])
def test_a_poll_is_never_longer_than_asked(sqs, wait, asked):
    """SQS waits for whole seconds, twenty at most."""
    queue, _ = sqs.opened()
    queue.send("here")
    with sqs.watched("ReceiveMessage") as seen:
        assert queue.receive(1, wait)
    assert [request["WaitTimeSeconds"] for request in seen] == [asked]


def test_a_wait_below_a_second_is_slept_and_then_asked_again(sqs):
    """A wait of half a second does not become a tight loop of polls."""
    clock = VirtualClock()
    queue, _ = sqs.opened(clock=clock)
    with sqs.watched("ReceiveMessage") as seen:
        assert queue.receive(1, 0.5) == []
    assert (len(seen), clock.waits) == (2, [0.5])


@pytest.mark.parametrize(("timeout", "asked"), [(3, 2), (0.5, 0), (60, 20), (None, 20)])
def test_a_short_read_timeout_shortens_the_poll(sqs, timeout, asked):
    """A client that gives up after three seconds would lose what comes after them."""
    from abate.clients.botocore import config

    client = boto3.client("sqs", endpoint_url=sqs.endpoint, config=config(read_timeout=timeout), **KEYS)
    queue = Queue(sqs.create(), client=client, dead_letters=False)
    queue.send("here")
    with sqs.watched("ReceiveMessage", client) as seen:
        queue.receive(1, 20)
    client.close()
    assert [request["WaitTimeSeconds"] for request in seen] == [asked]


# -- verdicts


def test_done_deletes(sqs):
    """Twelve done messages are gone, in two batches."""
    queue, dead = sqs.opened()
    for place in range(12):
        queue.send(str(place))
    messages = [*queue.receive(10, 0), *queue.receive(10, 0)]
    with sqs.watched("DeleteMessageBatch") as seen:
        assert queue.settle([(message, Done()) for message in messages]) == []
    assert [len(request["Entries"]) for request in seen] == [10, 2]
    assert (sqs.held(queue.url), sqs.held(dead)) == (0, 0)


@FEW
@given(after=st.floats(0, 10_000, allow_nan=False) | st.integers(0, 1_000), again=st.booleans())
def test_back_is_in_whole_seconds_and_at_most_900(sqs, after, again):
    """A delay is never cut short but by the cap; a done message that comes again is treated alike."""
    queue, _ = sqs.opened()
    queue.send("x")
    message = one(queue)
    with sqs.watched("ChangeMessageVisibilityBatch") as seen:
        queue.settle([(message, Done(again=after) if again else Back(after))])
    ((entry,),) = [request["Entries"] for request in seen]
    seconds = entry["VisibilityTimeout"]
    assert isinstance(seconds, int)
    assert seconds == 900 or seconds - 1 < after <= seconds
    assert seconds <= 900


def test_back_stays_away_for_its_delay(sqs):
    """One comes after a second, the other one doesn't."""
    queue, _ = sqs.opened()
    delays = {"soon": Back(1), "later": Back(600)}
    for body in delays:
        queue.send(body)
    queue.settle([(message, delays[message.body]) for message in queue.receive(2, 0)])
    (message,) = eventually(lambda: queue.receive(2, 0))
    assert (message.body, message.receives) == ("soon", 2)


def test_one_settle_carries_out_all_kinds_of_verdicts(sqs):
    """Done, back and buried together; nothing is lost."""
    queue, dead = sqs.opened()
    for body in ("done", "back", "again", "buried"):
        queue.send(body)
    verdicts = {"done": Done(), "back": Back(0), "again": Done(again=0), "buried": NO_ADDRESS}
    assert queue.settle([(message, verdicts[message.body]) for message in queue.receive(10, 0)]) == []
    assert eventually(lambda: sqs.held(queue.url) == 2)
    assert [raw["Body"] for raw in sqs.received(dead)] == ["buried"]


# -- leases


def test_the_lease_is_the_queues_own_visibility_timeout(sqs):
    """Unless another one is given, for this consumer alone."""
    url = sqs.create(VisibilityTimeout="77")
    assert Queue(url, client=sqs.client, dead_letters=False).lease == 77.0
    queue = Queue(url, client=sqs.client, dead_letters=False, lease=12.5)
    assert queue.lease == 13.0
    with sqs.watched("ReceiveMessage") as seen:
        queue.receive(1, 0)
    assert seen[0]["VisibilityTimeout"] == 13


def test_a_lease_that_runs_out_brings_the_message_back_unless_it_is_extended(sqs):
    """The process that was to settle it may be dead."""
    clock = VirtualClock()
    queue, _ = sqs.opened(lease=1, clock=clock)
    patient = Queue(queue.url, client=sqs.client, lease=600, clock=clock)
    for body in ("forgotten", "extended"):
        queue.send(body)
    forgotten, extended = sorted(queue.receive(2, 0), key=lambda message: message.body, reverse=True)
    assert patient.extend([extended]) == []
    (back,) = eventually(lambda: queue.receive(2, 0))
    assert (back.key, back.receives) == (forgotten.key, 2)
    assert queue.settle([(extended, Done())]) == []
    assert sqs.held(queue.url) == 1


def test_a_verdict_after_the_lease_is_refused(sqs):
    """Another process may have the message: it is neither deleted, nor changed, nor buried."""
    clock = VirtualClock()
    queue, dead = sqs.opened(lease=30, clock=clock)
    for body in "abcd":
        queue.send(body)
    messages = queue.receive(4, 0)
    clock.advance(30.0)
    with sqs.watched("*") as seen:
        assert queue.extend(messages[:1]) == messages[:1]
        late = list(zip(messages, (Done(), Back(0), NO_ADDRESS, Done(again=1)), strict=True))
        assert queue.settle(late) == messages
    assert seen == []
    assert (sqs.held(queue.url), sqs.held(dead)) == (4, 0)


def test_an_extended_lease_is_kept_to_the_second(sqs):
    """The new lease counts from when it was asked for."""
    clock = VirtualClock()
    queue, _ = sqs.opened(lease=30, clock=clock)
    queue.send("x")
    message = one(queue)
    clock.advance(20.0)
    queue.extend([message])
    clock.advance(29.0)
    assert queue.settle([(message, Done())]) == []


def test_twelve_hours_after_it_was_received_a_message_is_lost(sqs):
    """The lease is cut to what is left of them, and then there is none."""
    clock = VirtualClock()
    queue, _ = sqs.opened(lease=40_000, clock=clock)
    queue.send("x")
    message = one(queue)
    with sqs.watched("ChangeMessageVisibilityBatch") as seen:
        clock.advance(39_999.0)
        assert queue.extend([message]) == []
        clock.advance(3_200.5)
        assert queue.extend([message]) == [message]
    assert [request["Entries"][0]["VisibilityTimeout"] for request in seen] == [3_201]


def test_a_receipt_that_sqs_does_not_know_means_lost(sqs):
    """Of a batch, those alone; the others are carried out."""
    queue, _ = sqs.opened()
    for body in ("fine", "lost"):
        queue.send(body)
    fine, lost = sorted(queue.receive(2, 0), key=lambda message: message.body)
    lost.handle.handle = "nonsense"
    assert queue.extend([fine, lost]) == [lost]
    assert queue.settle([(fine, Done()), (lost, Done())]) == [lost]
    assert sqs.held(queue.url) == 1


def test_a_message_that_another_process_has_by_now_is_lost(sqs):
    """The receipt of an earlier receive settles nothing."""
    if sqs.kind == "moto":
        pytest.skip("moto takes an old receipt for a new one")
    queue, _ = sqs.opened()
    queue.send("x")
    mine = one(queue)
    sqs.client.change_message_visibility(QueueUrl=queue.url, ReceiptHandle=mine.handle.handle, VisibilityTimeout=0)
    theirs = one(queue)
    assert queue.settle([(mine, Done())]) == [mine]
    assert queue.settle([(theirs, Done())]) == []


def test_what_is_settled_is_not_extended(sqs):
    """A heartbeat that comes late doesn't take away what has just come back."""
    queue, _ = sqs.opened()
    queue.send("x")
    message = one(queue)
    queue.settle([(message, Back(0))])
    with sqs.watched("ChangeMessageVisibilityBatch") as seen:
        assert queue.extend([message]) == []
    assert seen == []
    assert eventually(lambda: queue.receive(1, 0))


def test_a_message_from_elsewhere_is_refused(sqs):
    """Only what was received here can be settled here."""
    queue, _ = sqs.opened()
    with pytest.raises(TypeError, match="was not received from SQS"):
        queue.settle([(Message("orders/42"), Done())])


# -- dead letters


def test_a_buried_message_is_a_dead_letter_with_its_reason(sqs):
    """The reason, in what queue, and all that its sender wrote; and it is gone from the queue."""
    queue, dead = sqs.opened()
    attributes = {"bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}}
    sqs.client.send_message(QueueUrl=queue.url, MessageBody='{"order": 42}', MessageAttributes=attributes)
    assert queue.settle([(one(queue), NO_ADDRESS)]) == []
    assert sqs.held(queue.url) == 0
    (letter,) = sqs.received(dead)
    assert letter["Body"] == '{"order": 42}'
    written = letter["MessageAttributes"]
    assert written.pop("bytes")["BinaryValue"] == b"\x00\xff"
    assert {name: value["StringValue"] for name, value in written.items()} == {
        "Abate-Reason": "no address",
        "Abate-Kind": "permanent",
        "Abate-Source": queue.name,
        "Abate-Trace": "Traceback ...",
    }


def test_a_large_message_is_buried_whole(sqs):
    """There is room for some of the reason, then for none."""
    dead = sqs.create(MaximumMessageSize="1024")
    queue = Queue(sqs.create(dead=dead), client=sqs.client)
    for body in ("x" * 1_000, "x" * 1_024):
        queue.send(body)
        queue.settle([(one(queue), NO_ADDRESS)])
    assert sqs.held(queue.url) == 0
    letters = {len(raw["Body"]): raw.get("MessageAttributes", {}) for raw in sqs.received(dead)}
    assert letters.keys() == {1_000, 1_024}
    assert letters[1_000]["Abate-Reason"]["StringValue"] == "no add"
    assert letters[1_024] == {}


def test_the_dead_letter_queue_can_be_named(sqs):
    """A queue of your own, whatever the redrive policy says."""
    named = sqs.create()
    queue = Queue(sqs.create(dead=sqs.create()), client=sqs.client, dead_letters=named)
    queue.send("x")
    queue.settle([(one(queue), NO_ADDRESS)])
    assert sqs.held(named) == 1


def test_without_dead_letters_a_buried_message_stays(sqs, caplog):
    """Its lease runs out, and the queue's own count moves it; the reason is logged."""
    queue = Queue(sqs.create(), client=sqs.client, dead_letters=False)
    queue.send("x")
    with caplog.at_level(logging.WARNING, "abate"):
        assert queue.settle([(one(queue), NO_ADDRESS)]) == []
    assert sqs.held(queue.url) == 1
    assert "permanent: no address" in caplog.text


def test_nothing_is_deleted_before_its_dead_letter_is_sent(sqs):
    """The dead-letter queue is gone: an error, the message stays, and the others are settled all the same."""
    queue, dead = sqs.opened()
    for body in ("buried", "done"):
        queue.send(body)
    verdicts = {"buried": NO_ADDRESS, "done": Done()}
    messages = queue.receive(2, 0)
    sqs.client.delete_queue(QueueUrl=dead)
    with pytest.raises(ClientError, match="NonExistentQueue"):
        queue.settle([(message, verdicts[message.body]) for message in messages])
    assert sqs.held(queue.url) == 1


# -- FIFO


def test_a_message_that_failed_holds_its_group_back(sqs):
    """What is behind it in its group doesn't come before it; other groups do."""
    queue, _ = sqs.opened(fifo=True)
    for body in ("a1", "a2", "b1"):
        queue.send(body, group=body[0])
    first = one(queue)
    assert (first.body, first.group) == ("a1", "a")
    queue.settle([(first, Back(1))])
    seen = []
    while len(seen) < 3:
        seen += eventually(lambda: [message.body for message in queue.receive(10, 0)])
    assert seen == ["b1", "a1", "a2"]


def test_dead_letters_of_a_fifo_queue_keep_group_and_order(sqs):
    """Two with the same content are two, and in their order."""
    queue, dead = sqs.opened(fifo=True)
    for place, body in enumerate(("same", "same", "last")):
        queue.send(body, group="a", deduplication=str(place))
    queue.settle([(message, NO_ADDRESS) for message in queue.receive(10, 0)])
    letters = sqs.received(dead)
    assert [letter["Body"] for letter in letters] == ["same", "same", "last"]
    assert {letter["Attributes"]["MessageGroupId"] for letter in letters} == {"a"}
    assert sqs.held(queue.url) == 0


def test_a_fifo_queue_deduplicates_as_told(sqs):
    """By the id given; where the queue does so by itself, by content; and else what is sent twice is there twice."""
    queue, _ = sqs.opened(fifo=True)
    for _ in range(2):
        queue.send("named", group="a", deduplication="n")
        queue.send("unnamed", group="b")
    bodies = [message.body for message in queue.receive(10, 0)]
    assert sorted(bodies) == ["named", "unnamed", "unnamed"]
    by_content = Queue(sqs.create(fifo=True, ContentBasedDeduplication="true"), client=sqs.client, dead_letters=False)
    for _ in range(2):
        by_content.send("same", group="a")
    assert len(by_content.receive(10, 0)) == 1
