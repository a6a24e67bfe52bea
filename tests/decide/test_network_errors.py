"""Network errors and timeouts of the real libraries, made on real sockets: which ruling each gets."""

import asyncio
import http.client
import itertools
import socket
import ssl
import urllib.error
import urllib.request

import aiohttp
import anthropic
import botocore.config
import botocore.exceptions
import botocore.session
import httpcore
import httpx
import httpx2
import openai
import pytest
import requests
import urllib3
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.decide import Outcome, Ruling
from abate.decide.http import transient
from abate.decide.network_errors import MAX_CAUSES, is_always_fatal, is_decided_by_type, judge_network_error
from abate.decide.rules import build_rules, classify
from abate.testing import Script
from tests.clients.server import Server, close, close_in_body, reset, say
from tests.decide.network_faults import PlainServer, TlsServer, full, refusing, untrusted

UNREACHED = Ruling.blip(reached=False)
OVERLOAD_UNREACHED = Ruling.overload(reached=False)
FATAL_UNREACHED = Ruling.fatal(reached=False)
BLIP, OVERLOAD = Ruling.blip(), Ruling.overload()

SOON = 0.2
"""The timeout of requests that time out."""
LONG = 30.0
"""The timeout of requests that fail otherwise."""


# -- how each library sends a request


async def send_by_aiohttp(url, timeout):
    limits = aiohttp.ClientTimeout(sock_connect=timeout, sock_read=timeout)
    async with aiohttp.ClientSession(timeout=limits) as session, session.get(url) as response:
        await response.read()


async def send_by_async_httpx(library, url, timeout):
    async with library.AsyncClient(timeout=timeout) as client:
        await client.get(url)


def send_by_httpcore(url, timeout):
    with httpcore.ConnectionPool() as pool:
        pool.request("GET", url, extensions={"timeout": dict.fromkeys(("connect", "read"), timeout)})


def send_by_urllib3(url, timeout, retries=False):
    with urllib3.PoolManager(retries=retries) as pool:
        pool.request("GET", url, timeout=timeout)


def send_by_openai(url, timeout):
    with openai.OpenAI(api_key="x", base_url=url, timeout=timeout, max_retries=0) as client:
        client.models.list()


def send_by_anthropic(url, timeout):
    with anthropic.Anthropic(api_key="x", base_url=url, timeout=timeout, max_retries=0) as client:
        client.models.list()


def send_by_botocore(url, timeout):
    config = botocore.config.Config(
        connect_timeout=timeout, read_timeout=timeout, retries={"total_max_attempts": 1}, signature_version="s3"
    )
    client = botocore.session.get_session().create_client(
        "s3", "eu-north-1", endpoint_url=url, aws_access_key_id="x", aws_secret_access_key="x", config=config
    )
    try:
        client.list_buckets()
    finally:
        client.close()


def send_by_urllib(url, timeout):
    with urllib.request.urlopen(url, timeout=timeout) as response:
        response.read()


SENDERS = {
    "httpx": lambda url, timeout: httpx.get(url, timeout=timeout),
    "httpx2": lambda url, timeout: httpx2.get(url, timeout=timeout),
    "httpx, async": lambda url, timeout: asyncio.run(send_by_async_httpx(httpx, url, timeout)),
    "httpx2, async": lambda url, timeout: asyncio.run(send_by_async_httpx(httpx2, url, timeout)),
    "httpcore": send_by_httpcore,
    "requests": lambda url, timeout: requests.get(url, timeout=timeout),
    "urllib3": send_by_urllib3,
    "urllib3, MaxRetryError": lambda url, timeout: send_by_urllib3(url, timeout, urllib3.Retry(0)),
    "aiohttp": lambda url, timeout: asyncio.run(send_by_aiohttp(url, timeout)),
    "openai": send_by_openai,
    "anthropic": send_by_anthropic,
    "botocore": send_by_botocore,
    "urllib": send_by_urllib,
}
senders_of_bodies = sorted({*SENDERS} - {"botocore"})  # which makes a response of 500 of a body that it cannot read
every_sender = pytest.mark.parametrize("sender", SENDERS)


def error_of(sender, url, timeout=LONG):
    with pytest.raises(Exception) as caught:
        SENDERS[sender](url, timeout)
    return caught.value


# -- the server never saw the request


@every_sender
def test_a_refused_connection_is_a_blip_that_never_reached_the_server(sender):
    """Any request may be repeated, also by a rule on the type of the error."""
    with refusing() as url:
        error = error_of(sender, url)
    assert transient.judge(Outcome(error)) == UNREACHED
    assert build_rules(type(error)).decide(Outcome(error)) == UNREACHED


@every_sender
def test_a_name_that_does_not_resolve_never_reached_the_server(sender):
    """It may be known again soon."""
    assert transient.judge(Outcome(error_of(sender, "http://nobody.invalid/"))) == UNREACHED


@every_sender
def test_a_connect_timeout_is_an_overload_that_never_reached_the_server(sender):
    """Its backlog is full."""
    with full() as url:
        error = error_of(sender, url, SOON)
    if sender == "urllib":  # its error does not tell connecting from sending
        assert transient.judge(Outcome(error)) == OVERLOAD
    else:
        assert transient.judge(Outcome(error)) == OVERLOAD_UNREACHED


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_pool_timeout_is_an_overload_that_never_reached_the_server(library):
    """All connections are in use."""
    with Server() as server, library.Client(limits=library.Limits(max_connections=1)) as client:
        with client.stream("GET", server.url), pytest.raises(library.PoolTimeout) as caught:
            client.post(server.url, timeout=library.Timeout(LONG, pool=0.01))
        assert transient.judge(Outcome(caught.value)) == OVERLOAD_UNREACHED


# -- the server may have seen the request


@every_sender
def test_a_server_that_never_answers_is_overloaded(sender):
    """A read timeout; it is not known whether the request was processed."""
    with Server() as server:
        server.script.append(server.hang)
        ruling = transient.judge(Outcome(error_of(sender, server.url, SOON)))
    assert (ruling.reason, ruling.reached, ruling.answered) == ("overload", True, False)


@pytest.mark.parametrize(
    ("sender", "behaviour"),
    [
        *itertools.product(SENDERS, (close, reset, say(b"garbage\r\n\r\n"))),
        *itertools.product(senders_of_bodies, (close_in_body,)),
    ],
)
def test_a_broken_connection_is_a_blip_that_may_have_reached_the_server(sender, behaviour):
    """Closed, reset, cut off in the body, or an answer that is not HTTP."""
    with Server(behaviour, behaviour, behaviour) as server:
        ruling = transient.judge(Outcome(error_of(sender, server.url)))
    assert (ruling.retry, ruling.reason, ruling.reached, ruling.answered) == (True, "blip", True, False)


@pytest.mark.parametrize("sender", [name for name in senders_of_bodies if "urllib3" not in name])
def test_a_body_that_stalls_is_an_overload(sender):
    """A read timeout in the middle of the body, however the library wraps it; urllib3 alone would leak its socket."""

    def stall(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789")
        return server.hang(connection)

    with Server() as server:
        server.script.extend([stall, stall, stall])
        ruling = transient.judge(Outcome(error_of(sender, server.url, SOON)))
    assert (ruling.reason, ruling.reached, ruling.answered) == ("overload", True, False)


@pytest.mark.parametrize("library", [httpx, httpx2, requests])
@pytest.mark.parametrize(("method", "safe"), [("GET", True), ("PUT", True), ("POST", False)])
def test_a_post_that_was_cut_off_is_unsafe(library, method, safe):
    """Where the error carries its request, the method says whether it may be repeated."""
    with Server(close) as server, pytest.raises(Exception) as caught:
        library.request(method, server.url, timeout=LONG)
    assert transient.judge(Outcome(caught.value)) == Ruling(True, "blip", safe=safe)


# -- what another attempt would meet again


@every_sender
def test_a_certificate_that_is_not_trusted_is_fatal_and_says_nothing_about_the_server(sender, tmp_path):
    """Not retried, and a shelter neither closes nor takes it for an answer."""
    with TlsServer(untrusted(tmp_path)) as server:
        error = error_of(sender, server.url)
    assert transient.judge(Outcome(error)) == FATAL_UNREACHED
    assert build_rules(type(error)).decide(Outcome(error)).taken is not True
    shelter = abate.Shelter(patience=1.0)
    policy = abate.Policy(on=transient, shelter=shelter, backoff=[0.0])
    for _ in range(5):
        with pytest.raises(type(error)):
            policy.call(Script(error))
    assert abate.report(error).reason == "fatal"
    assert shelter.state == "calm"


@every_sender
def test_a_server_without_tls_is_fatal(sender):
    """It speaks HTTP where HTTPS is wanted, and will do so again."""
    with PlainServer(b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        error = error_of(sender, server.url)
    assert transient.judge(Outcome(error)) == FATAL_UNREACHED


@pytest.mark.parametrize("sender", sorted({*SENDERS} - {"botocore"}))  # it does not tell which TLS error it was
def test_a_connection_that_was_closed_in_the_handshake_is_a_blip(sender):
    """A TLS error too, and a network error: the proxy before the server may have been restarted."""
    with PlainServer() as server:
        ruling = transient.judge(Outcome(error_of(sender, server.url)))
    assert (ruling.retry, ruling.reason) == (True, "blip")


@pytest.mark.parametrize(
    ("sender", "url"),
    [
        *itertools.product(
            ("httpx", "httpx2", "httpx, async", "requests", "urllib3", "aiohttp"), ("ftpx://127.0.0.1/",)
        ),
        *itertools.product(("openai", "anthropic", "httpcore"), ("ftpx://127.0.0.1/",)),
        *itertools.product(("httpx", "httpx2", "requests", "urllib3", "aiohttp", "openai"), ("http://[::1/",)),
        *itertools.product(("httpx", "httpx2", "requests", "aiohttp"), ("/orders",)),
        ("urllib", "ftpx://127.0.0.1/"),
        ("urllib", "http:///orders"),
    ],
)
def test_a_url_that_cannot_be_used_is_fatal_and_says_nothing_about_the_server(sender, url):
    """An unsupported scheme, no scheme, or no URL at all."""
    error = error_of(sender, url)
    assert transient.judge(Outcome(error)) == FATAL_UNREACHED
    wrapped = openai.APIConnectionError | anthropic.APIConnectionError | urllib.error.URLError
    assert is_always_fatal(type(error)) or isinstance(error, wrapped)


@pytest.mark.parametrize(
    ("sender", "url"),
    [
        *itertools.product(("httpx", "httpx2", "openai"), ("http://127.0.0.1:65536/",)),
        *itertools.product(("httpx, async", "httpx2, async"), ("http://shop..example/", f"http://{'a' * 64}.example/")),
        *itertools.product(("httpx", "httpx2", "httpx, async", "httpx2, async", "openai"), ("http://[shop",)),
        *itertools.product(("httpx", "httpx2", "aiohttp"), ("http://the shop/",)),
        ("httpx", "http://127.0.0.1:-1/"),
        ("aiohttp", "http://[::zz]/"),
    ],
)
def test_a_url_that_a_library_tries_though_no_server_has_it_is_fatal(sender, url):
    """It reports that the name is not found, or connects to another port; the request in the error tells."""
    error = error_of(sender, url)
    assert transient.judge(Outcome(error)) == FATAL_UNREACHED
    assert not is_always_fatal(type(error))


@pytest.mark.parametrize(
    "url",
    [
        "http://nowhere.invalid/",
        "http://a_b.invalid/",
        "http://[::1%25no]:9/",
        "http://[::1]:0/",
        f"http://%2Frun%2F{'x' * 20}/",
    ],
)
def test_a_host_that_is_not_found_is_a_network_error(url):
    """Names with an underscore, addresses with a zone, and paths of sockets are hosts."""
    assert transient.judge(Outcome(error_of("httpx", url))) == UNREACHED


# -- Python's own errors


@pytest.mark.parametrize(
    ("error", "ruling"),
    [
        (ConnectionRefusedError(), UNREACHED),
        (socket.gaierror(socket.EAI_AGAIN, "again"), UNREACHED),
        (ConnectionResetError(), BLIP),
        (BrokenPipeError(), BLIP),
        (TimeoutError(), OVERLOAD),
        (http.client.RemoteDisconnected(), BLIP),
        (http.client.IncompleteRead(b""), BLIP),
        (ssl.SSLEOFError(), BLIP),
        (ssl.SSLCertVerificationError(), FATAL_UNREACHED),
        (FileNotFoundError(), None),
        (OSError(), None),
        (ValueError(), None),
        (Exception(), None),
    ],
    ids=repr,
)
def test_errors_of_python_itself(error, ruling):
    """Of sockets, TLS and http.client; anything else is no network error, and a blip to a rule on its type."""
    assert judge_network_error(error) == ruling
    assert transient.judge(Outcome(error)) == ruling
    assert classify(error) == (BLIP if ruling is None else ruling if ruling.retry else UNREACHED)


# -- rules on types


def connect_error(cause=None):
    error = httpx.ConnectError("failed")
    error.__cause__ = cause
    return error


def test_a_rule_on_a_type_is_not_asked_once_for_all_where_the_cause_decides():
    """A refused connection does not make the next certificate retryable, nor the other way round."""
    rules = build_rules(httpx.HTTPError)
    untrusted_error, refused = connect_error(ssl.SSLCertVerificationError()), connect_error(ConnectionRefusedError())
    for _ in range(2):
        assert rules.decide(Outcome(untrusted_error)) == FATAL_UNREACHED
        assert rules.decide(Outcome(refused)) == UNREACHED
    assert httpx.ConnectError not in rules.rulings_by_type
    assert rules.decide(Outcome(httpx.ReadTimeout("late"))) == OVERLOAD
    assert rules.rulings_by_type[httpx.ReadTimeout] == OVERLOAD


def test_a_rule_that_names_what_is_fatal_retries_it():
    """A rule that names the very type decides; the server is still not reached."""
    assert build_rules(ssl.SSLCertVerificationError).decide(Outcome(ssl.SSLCertVerificationError())) == UNREACHED
    assert build_rules(OSError).decide(Outcome(ssl.SSLCertVerificationError())) == FATAL_UNREACHED
    assert build_rules(lambda error: True).decide(Outcome(ssl.SSLCertVerificationError())) == UNREACHED


# -- errors inside errors


class APITimeoutError(Exception):
    """As SDKs for APIs call theirs, whichever they are."""


class APIConnectionError(Exception):
    """The same."""


def raised_from(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "ruling"),
    [
        (raised_from(APITimeoutError(), httpx.ConnectTimeout("late")), OVERLOAD_UNREACHED),
        (raised_from(APITimeoutError(), httpx.ReadTimeout("late")), OVERLOAD),
        (raised_from(APITimeoutError(), ValueError()), OVERLOAD),
        (APITimeoutError(), OVERLOAD),
        (raised_from(APIConnectionError(), httpx.UnsupportedProtocol("ftpx")), FATAL_UNREACHED),
        (raised_from(APIConnectionError(), connect_error(ssl.SSLCertVerificationError())), FATAL_UNREACHED),
        (raised_from(APIConnectionError(), connect_error(ConnectionRefusedError())), UNREACHED),
        (APIConnectionError(), BLIP),
        (raised_from(APIConnectionError(), KeyError()), BLIP),
        (raised_from(ValueError(), httpx.ReadTimeout("late")), None),
    ],
    ids=repr,
)
def test_the_errors_of_sdks_are_judged_by_what_they_were_raised_from(error, ruling):
    """By the names that they have in common; an error of any other name says what it is by itself."""
    assert judge_network_error(error) == ruling


def test_a_fallback_is_not_judged_by_what_it_is_a_fallback_for():
    """An error that was being handled when this one was raised is not inside it."""
    try:
        try:
            raise connect_error(ssl.SSLCertVerificationError())
        except httpx.ConnectError:
            raise connect_error(ConnectionRefusedError())  # noqa: B904  (of another host)
    except httpx.ConnectError as error:
        assert judge_network_error(error) == UNREACHED


def test_a_chain_in_a_circle_ends():
    """So does one that is very long."""
    one, other = APIConnectionError(), APIConnectionError()
    one.__cause__, other.__cause__ = other, one
    assert judge_network_error(one) == BLIP
    long = ssl.SSLCertVerificationError()
    for _ in range(MAX_CAUSES + 5):
        long = raised_from(APIConnectionError(), long)
    assert judge_network_error(long) == BLIP


class Evasive(APIConnectionError):
    """Nothing can be read from it."""

    def __getattribute__(self, name):
        if name in ("reason", "request", "response", "status_code", "body"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


def test_an_error_that_cannot_be_read_has_a_ruling_too():
    """Attributes that raise are as good as missing."""
    assert transient.judge(Outcome(Evasive())) == BLIP


@given(st.recursive(st.just(None), lambda inner: st.tuples(st.sampled_from(["cause", "reason", "args"]), inner, inner)))
def test_errors_of_any_shape_have_a_ruling_or_none(tree):
    """However they are nested."""

    def build(node):
        if node is None:
            return ssl.SSLError(1, "broken")
        way, one, other = node
        error = APIConnectionError(build(other)) if way == "args" else APIConnectionError()
        if way == "reason":
            error.reason = build(other)
        return raised_from(error, build(one))

    assert judge_network_error(build(tree)) == BLIP


def test_types_without_limit_are_not_cached_without_limit():
    """A program that makes exception classes all the time does not fill the memory."""
    from abate.decide import network_errors

    for number in range(network_errors.MAX_TYPES + 100):
        assert judge_network_error(type(f"Error{number}", (ConnectionResetError,), {})()) == BLIP
    assert len(network_errors._meanings) <= network_errors.MAX_TYPES
    assert len(network_errors._rulings) <= network_errors.MAX_TYPES
    assert is_decided_by_type(type("Another", (TimeoutError,), {}))
