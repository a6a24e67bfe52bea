"""The queue when SQS fails: a front before a real server breaks off, is unavailable, talks garbage, or fails in part.

The queue's clock is virtual, so that no test waits for its backoff.
"""

import pickle

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

import abate
from abate.clients.sqs_api import IncompleteResponse
from abate.testing import VirtualClock
from abate.work.source import Back, Bury, Done
from tests.clients.sqs_servers import (
    KINDS,
    Front,
    busy,
    eventually,
    garbage,
    in_part,
    refused,
    running,
    unavailable,
    unheard,
)

NO_ADDRESS = Bury("permanent", "no address")
PASSING = [refused, unavailable, garbage]
ATTEMPTS = 4


@pytest.fixture(scope="module", params=KINDS)
def front(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp(request.param)) as sqs, Front(sqs) as front:
        yield front


def opened(front, **settings):
    """A queue behind the front, with a dead-letter queue."""
    return front.sqs.opened(client=front.client, clock=VirtualClock(), **settings)


def in_hand(queue, *bodies):
    """Messages that were sent and received, in the order of their bodies."""
    for body in bodies:
        queue.send(body)
    return sorted(queue.receive(10, 0), key=lambda message: message.body)


@pytest.mark.parametrize("trouble", PASSING)
def test_a_queue_opens_after_some_trouble(front, trouble):
    """Its attributes and its dead letters are asked for again."""
    front.troubles["GetQueueAttributes"] += [trouble, trouble]
    front.troubles["GetQueueUrl"] += [trouble]
    queue, dead = opened(front)
    queue.settle([(message, NO_ADDRESS) for message in in_hand(queue, "x")])
    assert front.sqs.held(dead) == 1


@pytest.mark.parametrize("trouble", [refused, unavailable])
def test_a_message_is_received_after_some_trouble(front, trouble):
    """The request is made again, within the policy's attempts."""
    queue, _ = opened(front)
    queue.send("x")
    front.troubles["ReceiveMessage"] += [trouble] * (ATTEMPTS - 1)
    assert [message.body for message in queue.receive(1, 0)] == ["x"]


def test_garbage_is_no_message(front):
    """botocore makes an empty answer of it; the message is there for the next poll."""
    queue, _ = opened(front)
    queue.send("x")
    front.troubles["ReceiveMessage"] += [garbage]
    assert queue.receive(1, 0) == []
    assert [message.body for message in queue.receive(1, 0)] == ["x"]


@pytest.mark.parametrize("trouble", [*PASSING, unheard])
@pytest.mark.parametrize("verdict", [Back(0), NO_ADDRESS], ids=["back", "buried"])
def test_a_verdict_is_carried_out_after_some_trouble(front, trouble, verdict):
    """Whether the request never came, or its answer: the message is where it belongs."""
    queue, dead = opened(front)
    messages = in_hand(queue, "x")
    for operation in ("SendMessage", "ChangeMessageVisibilityBatch"):
        front.troubles[operation] += [trouble]
    queue.settle([(message, verdict) for message in messages])
    front.troubles.clear()
    if isinstance(verdict, Back):
        assert eventually(lambda: queue.receive(1, 0))[0].receives == 2
    else:
        assert front.sqs.held(queue.url) == 0
        assert front.sqs.held(dead) >= 1  # once more where the answer got lost
        assert {letter["Body"] for letter in front.sqs.received(dead)} == {"x"}


@pytest.mark.parametrize("trouble", PASSING)
def test_a_delete_is_carried_out_after_some_trouble(front, trouble):
    """Nothing of it is left."""
    queue, _ = opened(front)
    messages = in_hand(queue, *"abc")
    front.troubles["DeleteMessageBatch"] += [trouble] * (ATTEMPTS - 1)
    assert queue.settle([(message, Done()) for message in messages]) == []
    assert front.sqs.held(queue.url) == 0


@pytest.mark.parametrize(("code", "sender"), [("InternalError", False), ("RequestThrottled", True), ("Odd", False)])
def test_of_a_batch_only_what_failed_is_repeated(front, code, sender):
    """And none of them is taken for lost."""
    queue, _ = opened(front)
    messages = in_hand(queue, *"abcde")
    front.troubles["DeleteMessageBatch"] += [in_part(code, sender, 1, 3), in_part(code, sender, 0)]
    with front.sqs.watched("DeleteMessageBatch", front.client) as seen:
        assert queue.settle([(message, Done()) for message in messages]) == []
    assert [[entry["Id"] for entry in request["Entries"]] for request in seen] == [list("01234"), ["1", "3"], ["1"]]
    assert front.sqs.held(queue.url) == 0


@pytest.mark.parametrize("code", ["ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue"])
def test_of_a_batch_what_is_refused_for_good_is_lost(front, code):
    """It is not asked for again."""
    queue, _ = opened(front)
    messages = in_hand(queue, *"abc")
    front.troubles["ChangeMessageVisibilityBatch"] += [in_part(code, True, 1)]
    with front.sqs.watched("ChangeMessageVisibilityBatch", front.client) as seen:
        assert queue.extend(messages) == [messages[1]]
    assert len(seen) == 1


def test_what_fails_for_longer_is_an_error_and_nothing_is_lost(front):
    """The message stays in the queue; a later settle carries the verdict out."""
    queue, _ = opened(front)
    messages = in_hand(queue, "x")
    front.troubles["DeleteMessageBatch"] += [unavailable] * ATTEMPTS
    with pytest.raises(ClientError) as caught:
        queue.settle([(messages[0], Done())])
    assert abate.report(caught.value).attempts == ATTEMPTS
    assert front.sqs.held(queue.url) == 1
    assert queue.settle([(messages[0], Done())]) == []
    assert front.sqs.held(queue.url) == 0


@pytest.mark.parametrize(("trouble", "error"), [(garbage, IncompleteResponse), (refused, ConnectionClosedError)])
def test_a_dead_letter_that_sqs_did_not_acknowledge_deletes_nothing(front, trouble, error):
    """An answer that doesn't name it is none."""
    queue, dead = opened(front)
    messages = in_hand(queue, "x")
    front.troubles["SendMessage"] += [trouble] * ATTEMPTS
    with pytest.raises(error):
        queue.settle([(messages[0], NO_ADDRESS)])
    assert (front.sqs.held(queue.url), front.sqs.held(dead)) == (1, 0)


def test_a_dead_letter_is_sent_once_when_only_the_delete_fails(front):
    """Settling again sends nothing twice, and settles nothing twice."""
    queue, dead = opened(front)
    back, buried = in_hand(queue, "back", "buried")
    front.troubles["DeleteMessageBatch"] += [unavailable] * ATTEMPTS
    settlements = [(back, Back(600)), (buried, NO_ADDRESS)]
    with pytest.raises(ClientError):
        queue.settle(settlements)
    with front.sqs.watched("ChangeMessageVisibilityBatch", front.client) as seen:
        assert queue.settle(settlements) == []
    assert seen == []
    assert (front.sqs.held(queue.url), front.sqs.held(dead)) == (1, 1)


def test_an_error_survives_pickling():
    """It may be raised in another process than the one that reads it."""
    error = pickle.loads(pickle.dumps(IncompleteResponse("SendMessage")))
    assert (error.operation, str(error)) == ("SendMessage", str(IncompleteResponse("SendMessage")))


def test_a_fifo_receive_whose_answer_got_lost_is_made_again_as_the_same(front):
    """By its attempt's id SQS gives the same messages, instead of holding their groups."""
    queue, _ = opened(front, fifo=True)
    front.troubles["ReceiveMessage"] += [refused]
    with front.sqs.watched("ReceiveMessage", front.client) as seen:
        queue.receive(1, 0)
        queue.receive(1, 0)
    first, repeated, next_one = [request["ReceiveRequestAttemptId"] for request in seen]
    assert first == repeated != next_one


def test_requests_about_a_lease_end_with_it(front):
    """SQS asks for five seconds, and the lease is over by then."""
    queue, _ = opened(front, lease=2)
    messages = in_hand(queue, "x")
    front.troubles["ChangeMessageVisibilityBatch"] += [busy]
    with pytest.raises(ClientError) as caught:
        queue.extend(messages)
    assert abate.report(caught.value).reason == "hint"
