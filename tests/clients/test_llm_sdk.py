"""The SDKs of OpenAI and Anthropic with a policy, on real sockets: what is sent again, and what the program gets."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx2
import pytest

import abate
from abate.testing import Recorder
from tests.clients.llm_server import BEGINNINGS, TEXT, LLMServer, cut_off, fail, stream
from tests.clients.llm_ways import WAYS, policy
from tests.clients.server import close

pytestmark = pytest.mark.parametrize("way", WAYS, ids=repr)

either = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


NOWHERE = SimpleNamespace(url="http://127.0.0.1:1")


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# -- the constructors


@either
def test_an_answer_comes_through(way, streamed):
    """The clients are the SDK's own, with its retries off; one request is made."""
    with LLMServer() as server:
        client = way.client(policy(), server)
        assert type(client) is way.kind
        assert client.max_retries == 0
        assert way.ask(client, stream=streamed) == TEXT
    assert len(server.requests) == 1


def test_the_timeouts_are_short_for_connecting_and_bounded_for_silence(way):
    """They are the SDK's own; the default policy bounds the whole call."""
    client = way.client(None, NOWHERE)
    assert client.timeout.connect == 5.0
    assert client.timeout.read == 600.0
    assert way.api.module.default_policy.timeout == 600.0
    assert way.api.module.default_policy.max_attempts == 3
    assert way.api.module.default_policy.name == way.sdk.__name__


def test_settings_of_the_sdk_are_passed_on(way):
    """So is its timeout."""
    client = way.client(policy(), NOWHERE, timeout=7.0, default_headers={"X-Team": "shop"}, max_retries=0)
    assert client.timeout == 7.0
    assert client.default_headers["X-Team"] == "shop"


@pytest.mark.parametrize("timeout", [1800, 600.5, None, httpx2.Timeout(5.0, read=900.0), httpx2.Timeout(None)])
def test_a_timeout_beyond_the_default_policys_is_refused(way, timeout):
    """It would be cut without a word. With a policy of the program's own it is for the rest of a stream."""
    with pytest.raises(ValueError, match=r"no effect: .* 600 s; write policy=.*default_policy\.replace\(timeout="):
        way.client(None, NOWHERE, timeout=timeout)
    assert way.client(policy(timeout=600.0), NOWHERE, timeout=timeout).timeout == timeout
    assert way.client(None, NOWHERE, timeout=600.0).timeout == 600.0


@pytest.mark.parametrize(("retries", "attempts"), [(5, 6), (1, 2), (None, 3), (-1, 3), (True, 2), ("2", 3)])
def test_retries_of_the_sdk_are_refused(way, retries, attempts):
    """The error says what to write instead."""
    with pytest.raises(TypeError, match=rf"max_retries={retries!r} would retry .*replace\(max_attempts={attempts}\)"):
        way.client(policy(), NOWHERE, max_retries=retries)


def test_an_http_client_is_refused(way):
    """It would replace the transport that retries."""
    with pytest.raises(TypeError, match=r"http_client= would replace .* write transport="):
        way.client(policy(), NOWHERE, http_client=httpx2.Client())


def test_what_is_no_policy_is_refused_and_not_shown(way):
    """It may be an API key."""
    with pytest.raises(TypeError, match="policy must be a Policy, not a str") as refused:
        way.client("sk-secret", NOWHERE)
    assert "sk-secret" not in str(refused.value)


def test_a_class_of_another_kind_is_refused(way):
    """A sync class for an async client, or the other way round."""
    other = way.api.classes[way.sync]
    with pytest.raises(TypeError, match=f"client_class must be {way.kind.__name__} or a subclass"):
        way.client(policy(), NOWHERE, client_class=other)


def test_a_subclass_is_made(way):
    """Such as the one for Azure."""
    kind = type("Ours", (way.kind,), {})
    with LLMServer() as server:
        client = way.client(policy(), server, client_class=kind)
        assert type(client) is kind
        assert way.ask(client) == TEXT


def test_a_transport_is_used(way):
    """The policy is put around it."""
    sent = []

    class Sync(httpx2.HTTPTransport):
        def handle_request(self, request):
            sent.append(request.url.path)
            return super().handle_request(request)

    class Async(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request):
            sent.append(request.url.path)
            return await super().handle_async_request(request)

    with LLMServer(fail(429)) as server:
        assert way.ask(way.client(policy(), server, transport=Sync() if way.sync else Async())) == TEXT
    assert sent == [way.path] * 2


@pytest.mark.parametrize("transport", ["http://proxy", 1, object()])
def test_what_is_no_transport_is_refused(way, transport):
    """Of the kind that the client needs."""
    with pytest.raises(TypeError, match="transport must be an httpx2"):
        way.client(policy(), NOWHERE, transport=transport)


def test_a_transport_of_the_other_kind_is_refused(way):
    """A sync one for an async client, or the other way round."""
    with pytest.raises(TypeError, match="transport must be an httpx2"):
        way.client(policy(), NOWHERE, transport=httpx2.AsyncHTTPTransport() if way.sync else httpx2.HTTPTransport())


def test_a_proxy_of_the_environment_is_used_with_the_policy(way, monkeypatch):
    """As by the SDK's own client."""
    with LLMServer(fail(429)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        proxied = []
        answer = proxy.pick

        def pick(request):
            proxied.append(request.path)
            request.path = way.path
            return answer(request)

        proxy.pick = pick
        base = "http://llm.example" + ("" if way.path == "/v1/messages" else "/v1")
        assert way.ask(way.client(policy(), proxy, base_url=base)) == TEXT
    assert proxied == [f"http://llm.example{way.path}"] * 2


# -- what is sent again


@either
@pytest.mark.parametrize("status", [429, 529])
def test_what_the_api_refused_is_sent_again(way, status, streamed):
    """A POST too: it was not taken."""
    with LLMServer(fail(status), fail(status)) as server:
        assert way.ask(way.client(policy(), server), stream=streamed) == TEXT
    assert len(server.requests) == 3
    assert server.bodies[0] == server.bodies[2]


@either
def test_a_503_with_a_hint_is_sent_again(way, streamed):
    """The API refused it for a while."""
    with LLMServer(fail(503, ("Retry-After", "0"))) as server:
        assert way.ask(way.client(policy(), server), stream=streamed) == TEXT
    assert len(server.requests) == 2


@either
@pytest.mark.parametrize("failure", [fail(500), fail(502), fail(504), close, cut_off()], ids=range(5))
def test_what_may_have_been_processed_is_not_sent_again(way, failure, streamed):
    """An answer may have been generated, and paid for."""
    with LLMServer(failure) as server:
        if failure is not close:
            way.error(way.client(policy(), server), stream=streamed)
        else:
            way.error(way.client(policy(), server), way.sdk.APIConnectionError, stream=streamed)
    assert len(server.requests) == 1


@pytest.mark.parametrize("failure", [fail(500), fail(503), close, cut_off()], ids=range(4))
def test_it_is_sent_again_if_the_policy_says_so(way, failure):
    """With ``idempotent=True``, as the SDK would: also a stream that broke off before its first content."""
    with LLMServer(failure) as server:
        assert way.ask(way.client(policy(idempotent=True), server), stream=True) == TEXT
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_a_request_that_is_wrong_is_not_sent_again(way, status):
    """The program gets the SDK's own error."""
    with LLMServer(fail(status, kind="invalid_request_error")) as server:
        error = way.error(way.client(policy(idempotent=True), server), way.sdk.APIStatusError)
    assert error.status_code == status
    assert len(server.requests) == 1


@either
def test_an_empty_account_is_not_asked_again(way, streamed):
    """A 429 with `insufficient_quota` does not heal."""
    with LLMServer(fail(429, kind="insufficient_quota", code="insufficient_quota")) as server:
        error = way.error(way.client(policy(), server), way.sdk.RateLimitError, stream=streamed)
    assert "insufficient_quota" in str(error)
    assert len(server.requests) == 1


def test_the_hint_in_milliseconds_is_kept(way):
    """The delay of the retry is never shorter."""
    with Recorder() as events, LLMServer(fail(429, ("retry-after-ms", "25"), ("Retry-After", "1"))) as server:
        assert way.ask(way.client(policy(), server)) == TEXT
    (retry,) = [event for event in events if isinstance(event, abate.events.Retry)]
    assert retry.hint == 0.025
    assert retry.delay >= 0.025


def test_a_hint_beyond_the_deadline_ends_the_call(way):
    """Nothing waits for an hour that is not there."""
    with LLMServer(fail(429, ("Retry-After", "60"))) as server:
        error = way.error(way.client(policy(timeout=30.0), server), way.sdk.RateLimitError)
    assert error.response.extensions["abate_report"].reason == "hint"
    assert len(server.requests) == 1


@either
def test_a_server_that_always_fails_sees_three_requests(way, streamed):
    """The last error is the SDK's own, with the report on its response."""
    with LLMServer(*[fail(503, ("Retry-After", "0"))] * 20) as server:
        error = way.error(way.client(policy(), server), way.sdk.APIStatusError, stream=streamed)
    assert error.status_code == 503
    assert error.response.extensions["abate_report"] == abate.Report("llm", 3, 0.0, "attempts")
    assert len(server.requests) == 3


@pytest.mark.filterwarnings("ignore::abate.LayeredRetryWarning")
def test_it_sees_three_requests_from_an_sdk_with_its_own_retries(way):
    """The transport tells the SDK that it has given up."""
    from abate.clients.httpx2 import AsyncTransport, Transport

    if way.sync:
        http_client = httpx2.Client(transport=Transport(policy(), httpx2.HTTPTransport()))
    else:
        http_client = httpx2.AsyncClient(transport=AsyncTransport(policy(), httpx2.AsyncHTTPTransport()))
    with LLMServer(*[fail(503, ("Retry-After", "0"))] * 20) as server:
        error = way.error(way.plain(server, http_client=http_client, max_retries=2), way.sdk.APIStatusError)
    assert error.status_code == 503
    assert len(server.requests) == 3


# -- networks


def test_a_refused_connection_is_tried_again(way):
    """Nothing was sent."""
    unused = SimpleNamespace(url=f"http://127.0.0.1:{unused_port()}")
    error = way.error(way.client(policy(), unused), way.sdk.APIConnectionError)
    assert abate.report(error.__cause__).attempts == 3


@either
def test_a_server_that_hangs_is_given_up_after_the_timeout(way, streamed):
    """Silence is bounded by the read timeout; the answer may have been generated."""
    with LLMServer() as server:
        server.script.append(server.hang)
        timeout = httpx2.Timeout(10.0, read=0.1)
        way.error(way.client(policy(), server, timeout=timeout), way.sdk.APITimeoutError, stream=streamed)
    assert len(server.requests) == 1


@pytest.mark.parametrize("begun", [False, True])
def test_the_deadline_bounds_all_attempts(way, begun):
    """Of a stream until its first content."""
    with LLMServer() as server:
        server.script.append(stream(*BEGINNINGS[way.path], then=server.hang) if begun else server.hang)
        error = way.error(way.client(policy(timeout=0.2), server), way.sdk.APITimeoutError, stream=True)
    assert abate.report(error.__cause__).reason == "deadline"
    assert len(server.requests) == 1


def test_twenty_at_once_are_all_answered(way):
    """Half of them at the second attempt."""
    with LLMServer(*[fail(429)] * 10) as server:
        client = way.client(policy(max_attempts=11), server)
        if way.sync:
            with client, ThreadPoolExecutor(20) as pool:
                answers = list(pool.map(lambda _: way.read(client, True), range(20)))
        else:

            async def ask_all():
                async with client:
                    return await asyncio.gather(*(way.aread(client, True) for _ in range(20)))

            answers = asyncio.run(ask_all())
    assert answers == [TEXT] * 20
    assert len(server.requests) == 30
