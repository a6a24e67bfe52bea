"""Consumers as Lambda functions: batches as an event source mapping brings them, from real queues and made up."""

import asyncio
import base64
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import event_sinks
from abate.admit.breaker import CircuitBreaker
from abate.clients import aws_lambda
from abate.testing import VirtualClock
from abate.work.consumer import consumer
from abate.work.handler_results import Again, PermanentFailure, Recoverable, SilentSuccess
from tests.clients.sqs_servers import KINDS, eventually, running

ARN = "arn:aws:sqs:us-east-1:123456789012:orders"
OUTCOMES = ("done", "silent", "again", "permanent", "recoverable", "error", "odd")
FINE = ("done", "silent", "odd")


@pytest.fixture(scope="module", params=KINDS)
def sqs(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


def record(body, arn=ARN, group=None, receives=1, key=None):
    """A record of an event."""
    attributes = {"ApproximateReceiveCount": str(receives)} | ({"MessageGroupId": group} if group else {})
    return {
        "messageId": key or body,
        "receiptHandle": "r",
        "body": body,
        "attributes": attributes,
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
    }


def mapped(sqs, url):
    """The event that a mapping makes of what a queue has."""

    def attribute(value):
        written = {"dataType": value["DataType"], "stringListValues": [], "binaryListValues": []}
        if "BinaryValue" in value:
            return {**written, "binaryValue": base64.b64encode(value["BinaryValue"]).decode()}
        return {**written, "stringValue": value["StringValue"]}

    records = [
        {
            "messageId": raw["MessageId"],
            "receiptHandle": raw["ReceiptHandle"],
            "body": raw["Body"],
            "attributes": raw["Attributes"],
            "messageAttributes": {name: attribute(value) for name, value in raw.get("MessageAttributes", {}).items()},
            "md5OfBody": raw["MD5OfBody"],
            "eventSource": "aws:sqs",
            "eventSourceARN": sqs.arn(url),
            "awsRegion": "us-east-1",
        }
        for raw in sqs.received(url)
    ]
    return {"Records": records}


def failed(response):
    """The messages that a response reports."""
    assert response.keys() == {"batchItemFailures"}
    return [item["itemIdentifier"] for item in response["batchItemFailures"]]


def obedient(message):
    """A handler that does what the message says, up to the first slash."""
    outcome = message.body.partition("/")[0]
    if outcome == "silent":
        raise SilentSuccess
    if outcome == "permanent":
        raise PermanentFailure("no address")
    if outcome == "recoverable":
        raise Recoverable("not yet", after=30.0)
    if outcome == "error":
        raise ConnectionError("the ledger is down")
    return Again(5) if outcome == "again" else 42 if outcome == "odd" else None


class Context:
    """What Lambda tells a function about its time, on the clock of the context."""

    def __init__(self, seconds):
        self.ends = abate.clock.current().now() + seconds

    def get_remaining_time_in_millis(self):
        return int((self.ends - abate.clock.current().now()) * 1000)


# -- what is reported


@given(
    batch=st.lists(st.tuples(st.sampled_from(OUTCOMES), st.sampled_from("abc")), max_size=12),
    fifo=st.booleans(),
    hold=st.sampled_from(("batch", "group")),
    asynchronous=st.booleans(),
)
def test_what_is_not_done_is_reported_and_in_order(batch, fifo, hold, asynchronous):
    """Standard: what failed. FIFO: also what comes after it, in the batch or in its group, and it is not touched."""
    touched = []

    def handle(message):
        touched.append(message.key)
        return obedient(message)

    async def ahandle(message):
        await asyncio.sleep(0)
        return handle(message)

    arn = ARN + ".fifo" * fifo
    records = [
        record(outcome, arn, group if fifo else None, key=f"{place}") for place, (outcome, group) in enumerate(batch)
    ]
    handler = aws_lambda.consumer(hold=hold)(ahandle if asynchronous else handle)
    reported = failed(handler({"Records": records}, None))
    handler.close()

    expected, untouched, held = [], [], set()
    for place, (outcome, group) in enumerate(batch):
        if group in held or "all" in held:
            untouched.append(str(place))
        if group in held or "all" in held or outcome not in FINE:
            expected.append(str(place))
            if fifo:
                held.add(group if hold == "group" else "all")
    assert reported == expected
    assert touched == [str(place) for place in range(len(batch)) if str(place) not in untouched]
    assert handler.tally["returned"] == len(untouched)
    assert handler.tally["silent"] == sum(str(place) in touched for place, (o, _) in enumerate(batch) if o == "silent")
    assert sum(handler.tally.values()) == len(batch)


def test_an_error_that_on_does_not_name_is_fatal():
    """The consumer's own settings rule."""
    handler = aws_lambda.consumer()(consumer(on=TimeoutError)(obedient))
    assert failed(handler({"Records": [record("error"), record("done")]}, None)) == ["error"]
    assert handler.tally == {"buried": 1, "done": 1}


@pytest.mark.parametrize("crash", [SystemExit(1), asyncio.CancelledError(), GeneratorExit()])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_handler_that_crashes_fails_its_own_message_alone(crash, asynchronous):
    """What was done before must not come again."""

    def handle(message):
        if message.body == "bad":
            raise crash

    async def ahandle(message):
        handle(message)

    handler = aws_lambda.consumer()(consumer(breaker=False)(ahandle if asynchronous else handle))
    assert failed(handler({"Records": [record("done"), record("bad"), record("done")]}, None)) == ["bad"]
    handler.close()


def test_rules_that_fail_themselves_fail_their_message_alone():
    """A predicate that can't read an error is no reason to have the batch again."""
    handler = aws_lambda.consumer()(consumer(on=lambda error: error.code == 5)(obedient))
    assert failed(handler({"Records": [record("done"), record("error"), record("done")]}, None)) == ["error"]


def test_what_other_containers_gave_back_is_handled_here_however_often_it_was_received():
    """Their receives look like those of a message that kills the function: it has its turn alone, and is not buried."""
    handled, counts = [], dict.fromkeys("abcd", 7)
    while counts:
        handler = aws_lambda.consumer()(consumer(max_receives=3)(lambda message: handled.append(message.key)))
        reported = failed(handler({"Records": [record(key, receives=n) for key, n in counts.items()]}, None))
        assert handler.tally == Counter(done=1, returned=len(reported))
        counts = {key: counts[key] + 1 for key in reported}
    assert handled == list("abcd")


def test_a_message_that_was_handed_out_too_often_is_buried_when_it_fails():
    """Then it was handled, and it is known why."""
    handler = aws_lambda.consumer()(consumer(max_receives=3)(obedient))
    assert failed(handler({"Records": [record("error", receives=7)]}, None)) == ["error"]
    assert handler.tally == {"buried": 1}


def test_a_message_that_may_kill_the_function_is_handled_alone():
    """The others of its batch are reported, untouched, and don't share its fate."""
    handled = []
    handler = aws_lambda.consumer()(consumer(max_receives=3)(lambda message: handled.append(message.key)))
    records = [record("a"), record("s", receives=4), record("t", receives=5), record("b")]
    assert failed(handler({"Records": records}, None)) == ["a", "t", "b"]
    assert handled == ["s"]
    assert handler.tally == {"done": 1, "returned": 3}
    assert failed(handler({"Records": [record("a", receives=2), record("t", receives=6)]}, None)) == ["a"]
    assert handled == ["s", "t"]


def test_a_message_that_may_kill_the_function_passes_none_of_its_group():
    """One behind another of its group waits, and with it those behind it."""
    handled = []
    handler = aws_lambda.consumer(hold="group")(consumer(max_receives=3)(lambda message: handled.append(message.key)))
    fifo = ARN + ".fifo"
    records = [
        record("a", fifo, "g"),
        record("s", fifo, "g", receives=4),
        record("b", fifo, "g"),
        record("x", fifo, "h"),
    ]
    assert failed(handler({"Records": records}, None)) == ["s", "b"]
    assert handled == ["a", "x"]
    records = [record("x", fifo, "h"), record("s", fifo, "g", receives=5), record("b", fifo, "g", receives=2)]
    assert failed(handler({"Records": records}, None)) == ["x", "b"]
    assert handled == ["a", "x", "s"]


@pytest.mark.parametrize("why", ["breaker", "time", "group"])
def test_what_was_never_touched_is_not_buried_for_its_receives(why):
    """An open breaker, too little time, a failure before it in its group: none of these was an attempt."""
    handled, down = [], True
    fifo = ".fifo" * (why == "group")
    with VirtualClock() as clock:
        breaker = CircuitBreaker(min_calls=1, pause=1e6) if why == "breaker" else False

        @aws_lambda.consumer(hold="group")
        @consumer(max_receives=3, breaker=breaker)
        def handler(message):
            handled.append(message.key)
            if down:
                raise Recoverable if why != "group" or message.key == "head" else AssertionError

        def batch(receives):
            keys = ["a", "b"] if why == "time" else ["head", "a", "b"]
            group = "g" if fifo else None
            counts = {"head": 1, "a": receives, "b": receives}
            records = [record(key, ARN + fifo, group, counts[key]) for key in keys]
            return failed(handler({"Records": records}, Context(1.0) if why == "time" and down else None))

        for receives in range(1, 11):
            assert {"a", "b"} <= set(batch(receives))
        assert not {"a", "b"} & set(handled)
        down = False
        clock.advance(1e8)
        assert batch(11) == []
    assert handler.tally["buried"] == 0
    assert handled[-2:] == ["a", "b"]


def test_a_message_that_is_to_come_again_is_never_buried_for_its_receives():
    """It was done each time."""
    handler = aws_lambda.consumer()(consumer(max_receives=3)(obedient))
    for receives in range(1, 20):
        assert failed(handler({"Records": [record("again", receives=receives)]}, None)) == ["again"]
    assert handler.tally == {"again": 19}


def test_a_value_that_a_handler_returns_is_told_once(caplog):
    """The message is done."""
    handler = aws_lambda.consumer()(obedient)
    for _ in range(3):
        assert failed(handler({"Records": [record("odd")]}, None)) == []
    assert caplog.text.count("returned a value of type int") == 1


def test_the_handler_sees_the_message_as_sent():
    """Body, count, group and attributes, those that are binary in base64."""
    seen = []
    sent = record('{"order": 42}', ARN + ".fifo", "a", receives=3)
    sent["messageAttributes"] = {
        "text": {"stringValue": "ü", "dataType": "String"},
        "bytes": {"binaryValue": base64.b64encode(b"\xff").decode(), "dataType": "Binary"},
    }
    aws_lambda.consumer()(seen.append)({"Records": [sent]}, None)
    (message,) = seen
    assert (message.json(), message.receives, message.group) == ({"order": 42}, 3, "a")
    assert message.attributes == {"text": "ü", "bytes": base64.b64encode(b"\xff").decode()}


def test_events_tell_how_messages_ended():
    """The same events as of any consumer."""
    seen = []
    sink = event_sinks.install(seen.append)
    try:
        aws_lambda.consumer()(obedient)({"Records": [record("silent"), record("permanent")]}, None)
    finally:
        event_sinks.remove(sink)
    endings = [event.ending for event in seen if isinstance(event, abate.events.Worked)]
    assert endings == ["silent", "buried"]
    assert [event.reason for event in seen if isinstance(event, abate.events.Buried)] == ["no address"]


# -- time


def test_it_stops_before_the_functions_time_runs_out():
    """Each message takes ten seconds: three fit before the margin, the rest is given back untouched."""
    with VirtualClock() as clock:
        handler = aws_lambda.consumer(margin=5.0)(lambda message: clock.sleep(10.0))
        records = [record(str(place)) for place in range(6)]
        assert failed(handler({"Records": records}, Context(30.0))) == ["3", "4", "5"]
    assert handler.tally == {"done": 3, "returned": 3}


def test_no_time_at_all_touches_nothing():
    """Everything is given back."""
    with VirtualClock():
        handler = aws_lambda.consumer(margin=5.0)(obedient)
        assert failed(handler({"Records": [record("done")]}, Context(5.0))) == ["done"]


def test_a_handler_has_the_functions_time_as_its_deadline():
    """Policies inside don't retry past it; a coroutine that takes longer is cut off, and comes back."""
    left = []
    with VirtualClock() as clock:
        aws_lambda.consumer(margin=5.0)(lambda message: left.append(abate.remaining()))(
            {"Records": [record("done")]}, Context(30.0)
        )
        assert left == [25.0]

        async def slow(message):
            await clock.asleep(60.0)

        handler = aws_lambda.consumer(margin=5.0)(slow)
        assert failed(handler({"Records": [record("one"), record("two")]}, Context(30.0))) == ["one", "two"]
        handler.close()
        assert clock.now() == 25.0
    assert handler.tally == {"retry": 1, "returned": 1}


def test_each_batch_of_an_async_handler_has_its_own_deadline():
    """Though they share an event loop."""
    left = []

    async def handle(message):
        left.append(abate.remaining())

    with VirtualClock():
        handler = aws_lambda.consumer(margin=5.0)(handle)
        for seconds in (30.0, 60.0):
            handler({"Records": [record("done")]}, Context(seconds))
        handler.close()
    assert left == [25.0, 55.0]


def test_the_consumers_timeout_is_kept_too():
    """Whichever is nearer."""
    left = []
    with VirtualClock():
        handle = consumer(timeout=3.0)(lambda message: left.append(abate.remaining()))
        aws_lambda.consumer()(handle)({"Records": [record("done")]}, Context(30.0))
        aws_lambda.consumer()(handle)({"Records": [record("done")]}, None)
    assert left == [3.0, 3.0]


def test_an_async_handler_keeps_its_event_loop():
    """What it opened for one batch is there for the next."""
    loops = []

    async def handle(message):
        loops.append(asyncio.get_running_loop())

    handler = aws_lambda.consumer()(handle)
    for _ in range(2):
        handler({"Records": [record("x")]}, None)
    handler.close()
    assert loops[0] is loops[1]


# -- the circuit breaker


def test_an_open_breaker_gives_everything_back_at_once():
    """While it is open nothing is touched; then one message is on trial, and closes it."""
    calls = Counter()
    down = True

    def handle(message):
        calls[message.body] += 1
        if down:
            raise ConnectionError

    with VirtualClock() as clock:
        handler = aws_lambda.consumer()(consumer(breaker=CircuitBreaker(min_calls=4, pause=30.0))(handle))
        batch = {"Records": [record(str(place)) for place in range(10)]}
        assert len(failed(handler(batch, None))) == 10
        assert sum(calls.values()) == 4
        assert len(failed(handler(batch, None))) == 10
        assert sum(calls.values()) == 4
        clock.advance(60.0)
        assert len(failed(handler(batch, None))) == 10
        assert sum(calls.values()) == 5
        clock.advance(120.0)
        down = False
        assert failed(handler(batch, None)) == []
        assert sum(calls.values()) == 15


def test_what_an_open_breaker_held_back_is_not_overtaken():
    """It may be taken again before the batch is over: in a FIFO queue that would be out of order."""
    arn, touched = ARN + ".fifo", []

    class Impatient(CircuitBreaker):
        """Open when the second message is to be taken, and not any more when the third is."""

        def allowed(self):
            now = clock.now()
            clock.advance(1.0)
            return 0 if now == 1.0 else 10

    with VirtualClock() as clock:
        handler = aws_lambda.consumer()(consumer(breaker=Impatient())(lambda message: touched.append(message.body)))
        records = [record(body, arn, "a") for body in "xyz"]
        assert failed(handler({"Records": records}, None)) == ["y", "z"]
    assert touched == ["x"]


def test_messages_that_are_bad_themselves_do_not_trip_it():
    """Nothing says that a dependency is down."""
    handler = aws_lambda.consumer()(consumer(breaker=CircuitBreaker(min_calls=4))(obedient))
    records = [record("permanent", key=str(place)) for place in range(10)] + [record("done")]
    assert "done" not in failed(handler({"Records": records}, None))


# -- what it can't read


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (None, "the event must be one of SQS, with a list of Records, not None"),
        ([], "must be one of SQS"),
        ({}, "with a list of Records, not {}"),
        ({"Records": "x"}, "with a list of Records"),
        ({"Records": [5]}, "a record of SQS must have messageId"),
        ({"Records": [{"messageId": "1"}]}, "a record of SQS must have messageId, receiptHandle, body"),
        ({"Records": [record("x") | {"body": None}]}, "each a string"),
        ({"Records": [record("x") | {"eventSource": "aws:sns"}]}, "must be of an SQS queue"),
        ({"Records": [record("x", "orders")]}, "must be of an SQS queue"),
        ({"Records": [record("x"), record("y", ARN + "2")]}, "must be of one queue"),
        ({"Records": [record("x") | {"messageAttributes": {"a": {}}}]}, "an attribute of SQS must have a dataType"),
    ],
)
def test_a_malformed_event_is_a_clear_error_and_nothing_is_touched(event, said):
    """Lambda gives the whole batch back."""
    handler = aws_lambda.consumer()(pytest.fail)
    with pytest.raises(ValueError, match=said):
        handler(event, None)


def test_an_empty_batch_is_fine():
    """There is nothing to report."""
    assert aws_lambda.consumer()(obedient)({"Records": []}, None) == {"batchItemFailures": []}


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"margin": -1}, "margin must be a number at least 0, not -1"), ({"hold": "all"}, "hold must be one of")],
)
def test_bad_settings_are_named(settings, said):
    """When the function is made."""
    with pytest.raises(ValueError, match=said):
        aws_lambda.consumer(**settings)


def test_it_works_without_boto3():
    """As long as nothing is to be said to SQS."""
    code = (
        "import sys; sys.modules['boto3'] = sys.modules['botocore'] = None\n"
        "from abate.clients.aws_lambda import consumer\n"
        "from abate.work.handler_results import PermanentFailure\n"
        "def handle(message): raise PermanentFailure('x')\n"
        f"print(consumer()(handle)({{'Records': [{record('a')!r}]}}, None))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'batchItemFailures': [{'itemIdentifier': 'a'}]}"


# -- with a real queue


def test_a_permanent_failure_goes_to_the_dead_letters_and_counts_as_done(sqs):
    """With its reason, and its attributes as they were."""
    dead = sqs.create()
    url = sqs.create(dead=dead)
    attributes = {"bytes": {"DataType": "Binary", "BinaryValue": b"\xff"}}
    sqs.client.send_message(QueueUrl=url, MessageBody="permanent", MessageAttributes=attributes)
    sqs.client.send_message(QueueUrl=url, MessageBody="done")
    handler = aws_lambda.consumer(dead_letters=None, client=sqs.client)(obedient)
    assert failed(handler(mapped(sqs, url), None)) == []
    (letter,) = sqs.received(dead)
    assert letter["Body"] == "permanent"
    assert letter["MessageAttributes"]["Abate-Reason"]["StringValue"] == "no address"
    assert letter["MessageAttributes"]["bytes"]["BinaryValue"] == b"\xff"


def test_of_a_fifo_queue_the_dead_letter_keeps_its_group_and_the_batch_goes_on(sqs):
    """What has gone holds nothing back."""
    dead = sqs.create(fifo=True)
    url = sqs.create(fifo=True, dead=dead)
    for place, body in enumerate(("permanent", "done")):
        sqs.client.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="a", MessageDeduplicationId=str(place))
    handler = aws_lambda.consumer(dead_letters=dead, client=sqs.client)(obedient)
    assert failed(handler(mapped(sqs, url), None)) == []
    assert handler.tally == {"buried": 1, "done": 1}
    assert [letter["Attributes"]["MessageGroupId"] for letter in sqs.received(dead)] == ["a"]


def test_what_cannot_be_buried_is_reported(sqs, caplog):
    """The dead-letter queue is not there: the queue's redrive policy moves the message in the end."""
    url = sqs.create()
    sqs.client.send_message(QueueUrl=url, MessageBody="permanent")
    handler = aws_lambda.consumer(dead_letters=url + "x", client=sqs.client)(obedient)
    event = mapped(sqs, url)
    seen = []
    sink = event_sinks.install(seen.append)
    try:
        assert failed(handler(event, None)) == [event["Records"][0]["messageId"]]
    finally:
        event_sinks.remove(sink)
    assert "could not be buried, and comes again (permanent): no address" in caplog.text
    assert "is buried" not in caplog.text
    assert [event for event in seen if isinstance(event, abate.events.Buried)] == []
    assert sqs.held(url) == 1


def test_a_delay_changes_the_visibility(sqs):
    """What failed comes after its backoff, with jitter and no earlier than it asked for; buried ones by themselves."""
    url = sqs.create()
    for body in ("recoverable", "error", "again", "permanent", "done"):
        sqs.client.send_message(QueueUrl=url, MessageBody=body)
    handle = consumer(backoff=[2.0])(obedient)
    with sqs.watched("ChangeMessageVisibilityBatch") as seen:
        handler = aws_lambda.consumer(delays=True, client=sqs.client)(handle)
        event = mapped(sqs, url)
        assert len(failed(handler(event, None))) == 4
    (request,) = seen
    handles = {entry["ReceiptHandle"]: entry["VisibilityTimeout"] for entry in request["Entries"]}
    delays = {r["body"]: handles[r["receiptHandle"]] for r in event["Records"] if r["receiptHandle"] in handles}
    assert delays["recoverable"] >= 30
    assert (delays["error"], delays["again"]) == (2, 5)
    assert delays.keys() == {"recoverable", "error", "again"}


def test_what_was_not_touched_is_visible_at_once(sqs):
    """With `delays`, what there was no time for is there for the next invocation."""
    url = sqs.create()
    sqs.client.send_message(QueueUrl=url, MessageBody="done")
    handler = aws_lambda.consumer(delays=True, client=sqs.client, margin=5.0)(obedient)
    assert len(failed(handler(mapped(sqs, url), Context(1.0)))) == 1
    assert eventually(lambda: sqs.received(url))


def test_behind_a_failure_in_a_fifo_queue_all_come_back_in_order(sqs):
    """The second invocation sees the same messages again, in the same order."""
    url = sqs.create(fifo=True)
    for place, body in enumerate(("error/0", "done/1", "done/2")):
        sqs.client.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="a", MessageDeduplicationId=str(place))
    handler = aws_lambda.consumer(delays=True, client=sqs.client)(consumer(backoff=[0.0])(obedient))
    event = mapped(sqs, url)
    assert failed(handler(event, None)) == [r["messageId"] for r in event["Records"]]
    again = eventually(lambda: mapped(sqs, url)["Records"])
    assert [r["body"] for r in again] == ["error/0", "done/1", "done/2"]


def test_a_delay_that_sqs_refuses_is_no_failure_of_the_batch(sqs, caplog):
    """It is logged, and what failed is reported all the same."""
    records = [record("error", sqs.arn(sqs.create()) + "x"), record("done", sqs.arn(sqs.create()) + "x")]
    records[1]["eventSourceARN"] = records[0]["eventSourceARN"]
    handler = aws_lambda.consumer(delays=True, client=sqs.client)(obedient)
    assert failed(handler({"Records": records}, None)) == ["error"]
    assert "no delay but the queue's visibility timeout" in caplog.text


def test_it_makes_its_own_client(sqs, monkeypatch):
    """As boto3 finds the endpoint, with the credentials of the function's role."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", sqs.endpoint)
    dead = sqs.create()
    url = sqs.create()
    sqs.client.send_message(QueueUrl=url, MessageBody="permanent")
    handler = aws_lambda.consumer(dead_letters=dead)(obedient)
    assert failed(handler(mapped(sqs, url), None)) == []
    handler.close()
    assert sqs.held(dead) == 1
