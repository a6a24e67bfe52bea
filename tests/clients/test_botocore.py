"""botocore clients against a real HTTP server that answers as AWS does, or does not answer."""

import contextlib
import json
import socket
import threading

import boto3
import botocore.session
import pytest
from botocore import exceptions

import abate
from abate.clients.botocore import config, transient
from tests.clients.server import Server, close, close_in_body, reset, respond, say

BLIP = abate.Ruling.blip()
OVERLOAD = abate.Ruling.overload()
UNREACHED = abate.Ruling.blip(reached=False)
FATAL = abate.Ruling.fatal()
SAID_NO = abate.Ruling.overload(answered=True)
BROKE = abate.Ruling.blip(answered=True)


def error(code, status=400, *headers):
    """The answer of DynamoDB and SQS to a request that failed."""
    body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "told so"}).encode()
    return respond(status, ("Content-Type", "application/x-amz-json-1.0"), *headers, body=body)


def s3_error(code, status, *headers):
    """The answer of S3 to a request that failed."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>told so</Message></Error>".encode()
    return respond(status, ("Content-Type", "application/xml"), *headers, body=body)


FINE = respond(200, ("Content-Type", "application/x-amz-json-1.0"), body=b'{"TableNames": ["orders"]}')
LOADER = botocore.session.Session().get_component("data_loader")  # reading what a service offers takes a while
KEYS = {
    "region_name": "us-east-1",
    "aws_access_key_id": "id",
    "aws_secret_access_key": "secret",
}


@contextlib.contextmanager
def aws(service, url, **settings):
    """A client of a service at a URL, closed in the end."""
    session = botocore.session.Session()
    session.register_component("data_loader", LOADER)
    client = session.create_client(service, endpoint_url=url, config=config(**settings), **KEYS)
    try:
        yield client
    finally:
        client.close()


def list_tables(url, **settings):
    """Ask DynamoDB for its tables."""
    with aws("dynamodb", url, **settings) as client:
        return client.list_tables()["TableNames"]


def get_object(url, **settings):
    """Read an object from S3."""
    with aws("s3", url, **settings) as client:
        return client.get_object(Bucket="orders", Key="42")["Body"].read()


def ruling(call, *args, **kwargs):
    """The rule's answer to the error that a call ends with."""
    with pytest.raises((exceptions.BotoCoreError, exceptions.ClientError)) as caught:
        call(*args, **kwargs)
    return transient.judge(abate.Outcome(error=caught.value))


# -- answers of a service


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("ThrottlingException", 400, SAID_NO),
        ("Throttling", 400, SAID_NO),
        ("ProvisionedThroughputExceededException", 400, SAID_NO),
        ("RequestLimitExceeded", 400, SAID_NO),
        ("TooManyRequestsException", 400, SAID_NO),
        ("SomethingNobodyKnows", 429, SAID_NO),
        ("SomethingNobodyKnows", 502, BROKE),
        ("SomethingNobodyKnows", 504, OVERLOAD),
        ("InternalServerError", 500, BROKE),
        ("ServiceUnavailable", 503, SAID_NO),
        ("TransactionConflictException", 400, BROKE),
        ("ValidationException", 400, FATAL),
        ("ConditionalCheckFailedException", 400, FATAL),
        ("AccessDeniedException", 400, FATAL),
        ("UnrecognizedClientException", 403, FATAL),
        ("NotImplemented", 501, FATAL),
    ],
)
def test_the_codes_of_json_services(code, status, expected):
    """The code decides, and where it says nothing, the status."""
    with Server(error(code, status)) as server:
        assert ruling(list_tables, server.url) == expected
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("SlowDown", 503, SAID_NO),
        ("RequestTimeout", 400, OVERLOAD),
        ("InternalError", 500, BROKE),
        ("ServiceUnavailable", 503, SAID_NO),
        ("OperationAborted", 409, BROKE),
        ("NoSuchKey", 404, FATAL),
        ("PreconditionFailed", 412, FATAL),
    ],
)
def test_the_codes_of_s3(code, status, expected):
    """A request that S3 waited for too long is a timeout, though its status is 400."""
    with Server(s3_error(code, status)) as server:
        assert ruling(get_object, server.url) == expected
        assert len(server.requests) == 1


def test_an_error_without_a_status_is_fatal():
    """Errors in the middle of an event stream come without one, and so do some in tests."""
    stripped = exceptions.ClientError({"Error": {"Code": "Unheard"}}, "SelectObjectContent")
    assert transient.judge(abate.Outcome(error=stripped)) == FATAL
    throttled = exceptions.EventStreamError({"Error": {"Code": "SlowDown"}}, "SelectObjectContent")
    assert transient.judge(abate.Outcome(error=throttled)) == SAID_NO


@pytest.mark.parametrize(
    ("headers", "hint"),
    [
        ([("Retry-After", "2")], 2.0),
        ([("x-amz-retry-after", "1500")], 1.5),
        ([("Retry-After", "2"), ("x-amz-retry-after", "1500")], 2.0),
        ([("x-amz-retry-after", "soon")], None),
        ([("x-amz-retry-after", "-5")], None),
    ],
)
def test_hints_of_the_service(headers, hint):
    """Retry-After, and AWS's own header in milliseconds; the longer counts, and what cannot be read is none."""
    with Server(error("ThrottlingException", 400, *headers)) as server:
        assert ruling(list_tables, server.url) == abate.Ruling.overload(hint, answered=True)


def test_a_fatal_error_has_no_hint():
    """Headers make nothing retryable."""
    with Server(error("ValidationException", 400, ("x-amz-retry-after", "10"))) as server:
        assert ruling(list_tables, server.url) == FATAL


# -- no answer


def test_a_refused_connection_was_never_reached():
    """Where nobody listens, nobody saw the request."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert ruling(list_tables, f"http://127.0.0.1:{taken.getsockname()[1]}") == UNREACHED


def test_a_name_that_does_not_resolve_was_never_reached():
    """Nor was a server without an address."""
    assert ruling(list_tables, "http://no-such-name.invalid") == UNREACHED


def test_a_proxy_that_refuses_was_never_reached():
    """What the proxy did not take, nobody saw."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert ruling(list_tables, "http://dynamodb.invalid", proxies={"http": proxy}) == UNREACHED


def test_a_connect_timeout_was_never_reached():
    """A server that takes no more connections is overloaded, and has seen nothing."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        assert ruling(list_tables, url, connect_timeout=0.2) == abate.Ruling.overload(reached=False)


def test_a_read_timeout_is_an_overload():
    """The service may have seen the request, and has too much to do."""
    with Server() as server:
        server.script.append(server.hang)
        assert ruling(list_tables, server.url, read_timeout=0.2) == OVERLOAD
        assert len(server.requests) == 1


@pytest.mark.parametrize("behaviour", [close, reset, say(b"nonsense\r\n\r\n")], ids=["closed", "reset", "garbage"])
def test_a_connection_that_breaks_is_a_blip(behaviour):
    """The service may have seen the request."""
    with Server(behaviour) as server:
        assert ruling(list_tables, server.url) == BLIP
        assert len(server.requests) == 1


def test_a_body_that_breaks_off_is_a_blip():
    """Whoever retries the reading asks for the object again."""
    with Server(close_in_body) as server:
        assert ruling(get_object, server.url) == BLIP


def test_tls_that_fails_is_fatal():
    """A server that speaks no TLS speaks none the next time."""

    def answer_plainly():
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=answer_plainly)
        answering.start()
        assert ruling(list_tables, f"https://127.0.0.1:{listener.getsockname()[1]}") == FATAL
        answering.join(30.0)


def test_mistakes_are_fatal():
    """What botocore refuses by itself is refused every time; what is not botocore's is left to other rules."""
    with Server() as server, aws("s3", server.url) as client:
        assert ruling(client.get_object, Bucket="orders") == FATAL
        assert server.requests == []
    assert transient.judge(abate.Outcome(error=OSError())) is None


# -- with a policy, and without the library's own retries


def test_a_policy_retries_what_passes():
    """Three requests for three attempts: nothing else retries."""
    policy = abate.Policy(name="tables", on=transient, backoff=[0.0])
    with Server(error("ThrottlingException"), reset, FINE) as server:
        assert policy.call(list_tables, server.url) == ["orders"]
        assert len(server.requests) == 3


def test_an_operation_that_must_not_be_repeated_is_not():
    """botocore's own error comes out, with the report of the policy."""
    policy = abate.Policy(name="tables", on=transient, idempotent=False)
    with Server(error("InternalServerError", 500)) as server, pytest.raises(exceptions.ClientError) as caught:
        policy.call(list_tables, server.url)
    assert abate.report(caught.value).reason == "unsafe"


@pytest.mark.parametrize("behaviour", [error("InternalServerError", 500), error("ThrottlingException"), reset])
@pytest.mark.parametrize("mode", [None, "legacy", "adaptive"])
def test_one_request_for_each_call(behaviour, mode, monkeypatch):
    """Whatever the environment asks for, botocore makes one attempt."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "4")
    if mode is not None:
        monkeypatch.setenv("AWS_RETRY_MODE", mode)
    with Server(*[behaviour] * 5) as server:
        ruling(list_tables, server.url)
        assert len(server.requests) == 1


def test_boto3_makes_one_request_as_well():
    """The configuration serves boto3's clients and resources."""
    with Server(*[s3_error("InternalError", 500)] * 5) as server:
        session = boto3.Session(**KEYS)
        store = session.resource("s3", endpoint_url=server.url, config=config(s3={"addressing_style": "path"}))
        assert ruling(store.Object("orders", "42").get) == BROKE
        store.meta.client.close()
        assert len(server.requests) == 1


def test_the_settings_of_a_configuration_are_kept():
    """Everything but the retries is the caller's."""
    assert config(read_timeout=5.0, max_pool_connections=3).max_pool_connections == 3
    with pytest.raises(TypeError, match=r"retries cannot be set, as \{'mode': 'adaptive'\}"):
        config(retries={"mode": "adaptive"})
