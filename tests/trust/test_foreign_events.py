"""Events of Lambda and answers of SQS, of any shape: messages, or a `ValueError` that says what is wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate.clients import aws_lambda
from abate.clients.sqs import decode_message
from abate.clients.sqs_message_limits import MAX_BYTES, dead_letter_attributes, size
from abate.clients.sqs_receive_counts import ReceiveCounts
from abate.work.source import Bury

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ARN = "arn:aws:sqs:eu-west-1:123456789012:orders"


def either(strategy):
    """What belongs there, or anything else."""
    return strategy | JSON


ATTRIBUTE = st.fixed_dictionaries(
    {}, optional={"dataType": either(st.just("String")), "stringValue": JSON, "binaryValue": either(st.just("aGk="))}
)
RECORD = st.fixed_dictionaries(
    {},
    optional={
        "messageId": either(st.text(max_size=5)),
        "receiptHandle": either(st.just("r")),
        "body": either(st.text(max_size=20)),
        "eventSource": either(st.just("aws:sqs")),
        "eventSourceARN": either(st.sampled_from([ARN, ARN + ".fifo", "arn", ":::::"])),
        "attributes": either(
            st.fixed_dictionaries(
                {},
                optional={
                    "ApproximateReceiveCount": either(st.sampled_from(["1", "x", "²", "9" * 5000])),
                    "MessageGroupId": JSON,
                },
            )
        ),
        "messageAttributes": either(st.dictionaries(st.text(max_size=5), either(ATTRIBUTE), max_size=2)),
    },
)
GOOD = {"messageId": "good", "receiptHandle": "r", "body": "good", "eventSource": "aws:sqs", "eventSourceARN": ARN}
LIKELY = RECORD.map(lambda record: {**GOOD, **record}) | RECORD


DEPTH = 100_000
"""More than any Python can show, with a stack of the usual size."""


def nested(depth):
    event = []
    for _ in range(depth):
        event = [event]
    return event


@pytest.mark.parametrize(
    "event",
    [
        {"Records": [nested(DEPTH)]},
        nested(DEPTH),
        {"Records": [{**GOOD, "messageAttributes": {"a": nested(DEPTH)}}]},
        {"Records": [{**GOOD, "attributes": nested(DEPTH)}]},
    ],
    ids=["record", "event", "attribute", "attributes"],
)
def test_an_event_nested_deeply_is_refused(event):
    """With an error that does not show all of it."""
    handler = aws_lambda.consumer(dead_letters=False, delays=False)(abate.consumer()(print))
    with pytest.raises(ValueError, match="SQS") as refused:
        handler(event)
    assert len(str(refused.value)) < 400


@settings(max_examples=400, deadline=None)
@given(event=either(st.fixed_dictionaries({"Records": either(st.lists(either(LIKELY), max_size=3))})))
def test_any_event_of_lambda(event):
    """Every message is handled and none is handed out half; or nothing is, and the error says why."""
    seen = []

    @aws_lambda.consumer(dead_letters=False, delays=False)
    @abate.consumer()
    def handler(message):
        assert isinstance(message.body, str)
        assert all(isinstance(value, str) for value in message.attributes.values())
        seen.append(message.key)

    try:
        response = handler(event)
    except ValueError as error:
        assert seen == []
        assert len(str(error)) < 1000
    else:
        assert response["batchItemFailures"] == [] or len(seen) < len(event["Records"])


@settings(max_examples=200, deadline=None)
@given(
    count=st.one_of(
        st.text(max_size=12), st.integers(), st.none(), st.sampled_from(["٣", "²", "-1", "1e5", "9" * 5000])
    ),
    body=st.text(max_size=50),
)
def test_any_count_of_receives(count, body):
    """One that SQS can't have said is taken for the first receive."""
    raw = {"MessageId": "a", "ReceiptHandle": "r", "Body": body, "Attributes": {"ApproximateReceiveCount": count}}
    message = decode_message(raw, fifo=False, now=0.0, lease=30.0, receives=ReceiveCounts())
    assert message.body == body
    assert 1 <= message.receives < 10**9


@settings(max_examples=200, deadline=None)
@given(
    body=st.text(min_size=1, max_size=50),
    attributes=st.dictionaries(
        st.text("abc.-_", min_size=1, max_size=5),
        st.builds(lambda value: {"DataType": "String", "StringValue": value}, st.text(min_size=1, max_size=20)),
        max_size=12,
    ),
    kind=st.text(max_size=20),
    reason=st.text(max_size=300),
    trace=st.text(max_size=300),
    largest=st.integers(200, MAX_BYTES),
)
def test_a_dead_letter_is_one_that_sqs_takes(body, attributes, kind, reason, trace, largest):
    """Whatever was written on it and whatever the error said: it fits where the message itself did."""
    try:
        written = dead_letter_attributes(body, attributes, Bury(kind, reason, trace), "orders", largest)
    except UnicodeEncodeError:
        pytest.fail("text that is no UTF-8 was written")
    assert attributes.items() <= written.items() or "Abate" in str(attributes)
    assert size(body, written) <= max(largest, size(body, attributes))
