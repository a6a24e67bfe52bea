"""botocore clients against a real HTTP server that answers as AWS does, or does not answer."""

import contextlib
import json
import socket
import threading

import boto3
import botocore.session
import pytest
from botocore import exceptions
from botocore.config import Config

import abate
from abate.clients import botocore as client_module
from abate.clients.botocore import config, transient
from tests.clients.certificates import certificate, server_context
from tests.clients.server import Server, close, close_in_body, reset, respond, say
from tests.decide.network_faults import full

BLIP = abate.Ruling.blip()
OVERLOAD = abate.Ruling.overload()
UNREACHED = abate.Ruling.blip(reached=False)
FATAL = abate.Ruling.fatal()
UNUSABLE = abate.Ruling.fatal(reached=False)
SAID_NO = abate.Ruling.overload(answered=True)
REFUSED = abate.Ruling.overload(answered=True, reached=False)
"""Refused before it was taken: safe to repeat for every operation."""
BROKE = abate.Ruling.blip(answered=True)


MODES = pytest.mark.parametrize("mode", ["legacy", "standard", "adaptive"])
"""Of botocore's own retries, which are off."""


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
        ("ThrottlingException", 400, REFUSED),
        ("Throttling", 400, REFUSED),
        ("ProvisionedThroughputExceededException", 400, REFUSED),
        ("RequestLimitExceeded", 400, REFUSED),
        ("TooManyRequestsException", 400, REFUSED),
        ("SomethingNobodyKnows", 429, REFUSED),
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
        ("SlowDown", 503, REFUSED),
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
        ([("x-amz-retry-after", "9" * 30)], None),
    ],
)
def test_hints_of_the_service(headers, hint):
    """Retry-After, and AWS's own header in milliseconds; the longer counts, and what cannot be read is none."""
    with Server(error("ThrottlingException", 400, *headers)) as server:
        assert ruling(list_tables, server.url) == abate.Ruling.overload(hint, answered=True, reached=False)


@MODES
def test_the_policy_waits_as_long_as_the_service_asks(mode, monkeypatch):
    """Not less, as botocore's own retries may."""
    monkeypatch.setenv("AWS_RETRY_MODE", mode)
    policy = abate.Policy(name="tables", on=transient, backoff=[0.0])
    busy = error("ThrottlingException", 400, ("x-amz-retry-after", "7500"))
    with Server(busy, FINE) as server, abate.testing.VirtualClock() as clock:
        assert policy.call(list_tables, server.url) == ["orders"]
    assert [wait >= 7.5 for wait in clock.waits] == [True]


def test_a_fatal_error_has_no_hint():
    """Headers make nothing retryable."""
    with Server(error("ValidationException", 400, ("x-amz-retry-after", "10"))) as server:
        assert ruling(list_tables, server.url) == FATAL


# -- no answer


def test_a_refused_connection_was_never_reached():
    """If nothing listens on the port, the server never saw the request."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert ruling(list_tables, f"http://127.0.0.1:{taken.getsockname()[1]}") == UNREACHED


def test_a_name_that_does_not_resolve_was_never_reached():
    """Nor was a server without an address."""
    assert ruling(list_tables, "http://no-such-name.invalid") == UNREACHED


def test_a_proxy_that_refuses_was_never_reached():
    """The server never saw what the proxy did not take."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert ruling(list_tables, "http://dynamodb.invalid", proxies={"http": proxy}) == UNREACHED


def test_a_connect_timeout_was_never_reached():
    """A server that takes no more connections is overloaded, and has seen nothing."""
    with full() as url:
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
    """A retry of the read asks for the object again."""
    with Server(close_in_body) as server:
        assert ruling(get_object, server.url) == BLIP


class HandshakeServer:
    """A server on loopback that meets each connection with a function, and counts them."""

    def __init__(self, meet):
        self.connections = 0
        self._meet = meet
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept)

    def __enter__(self):
        self._accepting.start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(30.0)

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with contextlib.suppress(OSError), connection:
                connection.settimeout(30.0)
                self._meet(connection)


def shake_hands_as(directory, pair):
    """Return how a server with this certificate meets a connection."""
    context = server_context(directory, pair)

    def meet(connection):
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(1000)

    return meet


def answer_plainly(connection):
    """Answer a handshake in plain HTTP."""
    connection.recv(1)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def close_in_handshake(connection):
    """Close without a word when the handshake has begun."""
    connection.recv(1000)


@MODES
@pytest.mark.parametrize("case", ["not trusted", "for another host", "plain HTTP", "proxy not trusted"])
def test_tls_that_fails_is_fatal_and_says_nothing_about_the_server(mode, case, tmp_path, monkeypatch):
    """The next attempt would fail the same way; no shelter closes."""
    monkeypatch.setenv("AWS_RETRY_MODE", mode)
    pair = certificate("other.example" if case == "for another host" else "localhost")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(pair[1] if case == "for another host" else certificate()[1])
    monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))
    meet = answer_plainly if case == "plain HTTP" else shake_hands_as(tmp_path, pair)
    policy = abate.Policy(name="tables", on=transient, backoff=[0.0], shelter=abate.Shelter(name="tables"))
    with HandshakeServer(meet) as server, pytest.raises(exceptions.BotoCoreError) as caught:
        settings = {}
        url = own = f"https://localhost:{server.port}"
        if case.startswith("proxy"):
            url, settings = "https://dynamodb.invalid", {"proxies": {"https": own}}
        policy.call(list_tables, url, **settings)
    assert transient.judge(abate.Outcome(error=caught.value)) == UNUSABLE
    assert abate.report(caught.value).reason == "fatal"
    assert server.connections == 1
    assert policy.shelter.state == "calm"


def test_a_handshake_that_breaks_off_is_a_blip():
    """A load balancer that restarts does that."""
    with HandshakeServer(close_in_handshake) as server:
        assert ruling(list_tables, f"https://localhost:{server.port}") == BLIP


@MODES
def test_a_scheme_that_is_not_supported_is_fatal(mode, monkeypatch):
    """botocore takes it, and urllib3 refuses it."""
    monkeypatch.setenv("AWS_RETRY_MODE", mode)
    assert ruling(list_tables, "ftp://127.0.0.1:1") == UNUSABLE


@pytest.mark.parametrize("url", ["http://[bad", "http://127.0.0.1:99999", "https://", "nonsense"])
def test_a_url_that_is_invalid_is_fatal(url):
    """It is Python's or botocore's ValueError, which no rule retries."""
    policy = abate.Policy(name="tables", on=transient, backoff=[0.0])
    with pytest.raises(ValueError) as caught:
        policy.call(list_tables, url)
    assert abate.report(caught.value).reason == "fatal"


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


@pytest.fixture
def own_retries(monkeypatch):
    """Clients that retry by themselves, as botocore's do by default: three attempts, but without waiting for long."""
    monkeypatch.setattr(client_module, "_warned", False)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda self, context: 0.0)
    monkeypatch.setattr("botocore.retryhandler.delay_exponential", lambda *args, **kwargs: 0.0)

    def ask(url, mode):
        session = botocore.session.Session()
        session.register_component("data_loader", LOADER)
        retries = {"mode": mode, "total_max_attempts": 3}
        client = session.create_client("dynamodb", endpoint_url=url, config=Config(retries=retries), **KEYS)
        with contextlib.closing(client):
            return client.list_tables()["TableNames"]

    return ask


@MODES
def test_what_botocore_has_retried_is_not_retried_again(mode, own_retries):
    """Three requests, not nine, and one warning that names the remedy."""
    policy = abate.Policy(name="tables", on=transient, backoff=[0.0])
    with Server(*[error("InternalServerError", 500)] * 9) as server:
        with (
            pytest.warns(abate.LayeredRetryWarning, match=r"botocore\.config\(\)") as warned,
            pytest.raises(exceptions.ClientError) as caught,
        ):
            policy.call(own_retries, server.url, mode)
        assert len(server.requests) == 3
        assert (abate.report(caught.value).attempts, abate.report(caught.value).reason) == (1, "layer")
        with pytest.raises(exceptions.ClientError):
            policy.call(own_retries, server.url, mode)
    assert len(warned) == 1


@MODES
@pytest.mark.filterwarnings("ignore::abate.LayeredRetryWarning")
def test_what_botocore_has_retried_without_a_response_is_not_retried_again(mode, own_retries):
    """Its errors do not say so, but the frame that raised them does."""
    policy = abate.Policy(name="tables", on=transient, backoff=[0.0])
    with Server(*[reset] * 9) as server:
        with pytest.raises(exceptions.BotoCoreError) as caught:
            policy.call(own_retries, server.url, mode)
        assert (server.connections, abate.report(caught.value).reason) == (3, "layer")


@MODES
def test_what_botocore_has_tried_once_is_retried(mode, own_retries):
    """A failure that botocore does not repeat is the policy's; a fatal one is not retried."""
    policy = abate.Policy(name="tables", on=transient, backoff=[0.0])
    with Server(error("TransactionConflictException"), FINE) as server:
        assert policy.call(own_retries, server.url, mode) == ["orders"]
    with Server(error("ValidationException")) as server, pytest.raises(exceptions.ClientError) as caught:
        policy.call(own_retries, server.url, mode)
    assert abate.report(caught.value).reason == "fatal"


def test_the_settings_of_a_configuration_are_kept():
    """Everything but the retries is the caller's."""
    assert config(read_timeout=5.0, max_pool_connections=3).max_pool_connections == 3
    with pytest.raises(TypeError, match=r"retries cannot be set, as \{'mode': 'adaptive'\}"):
        config(retries={"mode": "adaptive"})
