"""One layer retries, with the layers of others above an HTTP client, on real sockets."""

import asyncio
import warnings

import aiohttp
import anthropic
import httpx2
import openai
import pytest
import requests

import abate
import abate.clients.aiohttp
import abate.clients.httpx2
import abate.clients.requests
from abate.clients import outer_retries
from abate.clients.outer_retries import earlier_retries
from tests.clients.drivers import ALL_DRIVERS, Ask, driver_name, policy
from tests.clients.server import Server, close, respond

DRIVERS = pytest.mark.parametrize("driver", ALL_DRIVERS, ids=driver_name)
SETTABLE = pytest.mark.parametrize(
    "driver", [driver for driver in ALL_DRIVERS if driver_name(driver) != "aiohttp"], ids=driver_name
)
"""The headers of aiohttp's responses can't be changed."""
ERROR = b'{"error": {"message": "busy", "type": "overloaded_error"}}'


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    """Each test hears the warnings as if they had never been given."""
    monkeypatch.setattr(outer_retries, "_warned", set())


def ask_openai(url, transport):
    with httpx2.Client(transport=transport, trust_env=False) as http:
        client = openai.OpenAI(api_key="none", base_url=url, http_client=http)
        return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])


def ask_anthropic(url, transport):
    with httpx2.Client(transport=transport, trust_env=False) as http:
        client = anthropic.Anthropic(api_key="none", base_url=url, http_client=http)
        return client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "hello"}])


SDKS = pytest.mark.parametrize("ask", [ask_openai, ask_anthropic])


def always(status, *headers):
    return [respond(status, ("Content-Type", "application/json"), *headers, body=ERROR)] * 30


@SDKS
@pytest.mark.parametrize("settings", [{"idempotent": True}, {}], ids=["idempotent", "by the method"])
@pytest.mark.parametrize("headers", [[("Retry-After", "0")], []], ids=["with a hint", "without"])
def test_a_server_that_always_fails_sees_three_requests(ask, settings, headers):
    """Of abate and an SDK with its own two retries; only one of them retries."""
    transport = abate.clients.httpx2.Transport(policy(**settings))
    with Server(*always(503, *headers)) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore", abate.LayeredRetryWarning)
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as caught:
            ask(server.url, transport)
    assert caught.value.status_code == 503
    assert abate.report(caught.value).policy == "shop"
    assert len(server.requests) == 3


@SDKS
def test_an_sdk_does_not_ask_again_for_a_quota_that_is_used_up(ask):
    """The SDK retries every 429 unless the response says not to."""
    quota = respond(429, ("Content-Type", "application/json"), body=b'{"error": {"code": "insufficient_quota"}}')
    with Server(*[quota] * 30) as server:
        with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)) as caught:
            ask(server.url, abate.clients.httpx2.Transport(policy()))
        assert abate.report(caught.value).reason == "fatal"
    assert len(server.requests) == 1


@SDKS
def test_the_retries_of_an_sdk_take_part_of_the_count(ask):
    """An error has no header to say that abate gave up; the SDK's retries make fewer attempts, and warn once."""
    transport = abate.clients.httpx2.Transport(policy(idempotent=True))
    with (
        Server(*[close] * 30) as server,
        pytest.warns(abate.LayeredRetryWarning, match="max_retries=0") as said,
        pytest.raises((openai.APIConnectionError, anthropic.APIConnectionError)),
    ):
        ask(server.url, transport)
    assert [request.headers["x-stainless-retry-count"] for request in server.requests] == [*"000", *"11", "2"]
    assert len(said) == 1


@SETTABLE
def test_a_response_that_was_given_up_on_says_so(driver):
    """Whether attempts, time or budget ran out."""
    for settings in ({}, {"budget": abate.Budget(ratio=0, reserve=0)}, {"max_hint": 0.0}):
        with Server(*[respond(503, ("Retry-After", "1"), ("x-should-retry", "true"))] * 9) as server:
            answer = driver.fetch(Ask(server.url), policy(max_attempts=1 if not settings else 3, **settings))
        assert answer.headers["x-should-retry"] == ("true" if not settings else "false")
    with Server(*[respond(503)] * 3) as server:
        assert driver.fetch(Ask(server.url), policy()).headers["x-should-retry"] == "false"


def raised_by_requests(url):
    with requests.Session() as session:
        session.mount("http://", abate.clients.requests.Adapter(policy()))
        return session.get(url)


def raised_by_httpx(url):
    with httpx2.Client(transport=abate.clients.httpx2.Transport(policy()), trust_env=False) as client:
        return client.get(url)


def raised_by_aiohttp(url):
    async def run():
        async with aiohttp.ClientSession(middlewares=(abate.clients.aiohttp.middleware(policy()),)) as client:
            return await client.get(url)

    return asyncio.run(run())


@pytest.mark.parametrize("get", [raised_by_requests, raised_by_httpx, raised_by_aiohttp])
@pytest.mark.parametrize("on", [Exception, abate.http.transient, lambda error: True], ids=["type", "http", "predicate"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["as it is", "wrapped"])
@pytest.mark.filterwarnings("ignore::abate.LayeredRetryWarning")
def test_a_decorator_does_not_retry_a_response_that_the_client_gave_up_on(get, on, wrapped):
    """Nor the error that is made of it, whatever the decorator retries."""

    @policy(on=on, name="around")
    def load(url):
        try:
            get(url).raise_for_status()
        except Exception as error:
            if wrapped:
                raise ValueError("no orders") from error
            raise

    with Server(*always(503)) as server, pytest.raises(Exception) as caught:
        load(server.url)
    assert len(server.requests) == 3
    if on is not abate.http.transient:  # a ValueError is none of its business
        assert abate.report(caught.value).reason == "layer"


@pytest.mark.parametrize("get", [raised_by_requests, raised_by_httpx, raised_by_aiohttp])
@pytest.mark.filterwarnings("ignore::abate.LayeredRetryWarning")
def test_a_predicate_on_results_does_not_retry_what_the_client_gave_up_on(get):
    """Responses that were sent once are its to retry."""
    load = policy(on=abate.on_result(lambda answer: True), name="around")(get)
    for status, sent in ((503, 3), (404, 3)):
        with Server(*always(status)) as server:
            load(server.url)
        assert len(server.requests) == sent


@pytest.mark.parametrize("get", [raised_by_requests, raised_by_httpx, raised_by_aiohttp])
def test_the_error_of_a_response_tells_its_report(get):
    """However the library makes the error."""
    with Server(*always(503)) as server, pytest.raises(Exception) as caught:
        get(server.url).raise_for_status()
    assert abate.report(caught.value).attempts == 3


@DRIVERS
@pytest.mark.parametrize(("status", "method"), [(404, "GET"), (500, "POST")], ids=["fatal", "unsafe"])
def test_what_was_not_retried_is_left_to_outer_layers(driver, status, method):
    """They may know more: that a 404 is too early, or that their POST is safe to repeat."""
    with Server(respond(status)) as server:
        answer = driver.fetch(Ask(server.url, method=method), policy())
    assert "x-should-retry" not in {name.lower() for name in answer.headers}


@DRIVERS
@pytest.mark.parametrize(
    ("headers", "sent", "advice"),
    [
        ({"x-stainless-retry-count": "1"}, 2, "max_retries=0"),
        ({"amz-sdk-request": "ttl=20260101T000000Z; attempt=3; max=5"}, 1, "total_max_attempts"),
        ({"grpc-previous-rpc-attempts": "2"}, 1, "grpc.enable_retries"),
        ({"X-Stainless-Retry-Count": "9999"}, 1, "max_retries=0"),
    ],
)
def test_a_request_that_is_a_retry_has_fewer_attempts(driver, headers, sent, advice):
    """At least one; with one warning for each kind."""
    with Server(*[respond(503)] * 9) as server, pytest.warns(abate.LayeredRetryWarning) as said:
        for _ in range(2):
            driver.fetch(Ask(server.url, headers=headers), policy())
    assert len(server.requests) == 2 * sent
    assert [advice in str(warning.message) for warning in said] == [True]


@DRIVERS
@pytest.mark.parametrize(
    "headers",
    [
        {"x-stainless-retry-count": "0"},
        {"x-stainless-retry-count": "soon"},
        {"x-stainless-retry-count": "-1"},
        {"x-stainless-retry-count": "9" * 30_000},
        {"amz-sdk-request": "attempt=1; max=5"},
        {"amz-sdk-request": "attempts=4"},
        {"grpc-previous-rpc-attempts": ""},
    ],
    ids=lambda headers: str(headers)[:50],
)
def test_any_other_value_is_no_retry(driver, headers):
    """A first attempt, or nothing that can be read."""
    with Server(*[respond(503)] * 3) as server:
        driver.fetch(Ask(server.url, headers=headers), policy())
    assert len(server.requests) == 3


def test_unlimited_attempts_stay_unlimited():
    """They are bounded by time."""
    server = httpx2.MockTransport(lambda request: httpx2.Response(503 if len(seen) < 5 else 200))
    seen = []
    transport = abate.clients.httpx2.Transport(
        policy(
            max_attempts=None,
            timeout=60.0,
            backoff=abate.Backoff(0.001, jitter="none"),
            before_retry=seen.append,
            on=abate.http.status(503),
        ),
        server,
    )
    with (
        abate.testing.VirtualClock(),
        pytest.warns(abate.LayeredRetryWarning),
        httpx2.Client(transport=transport) as it,
    ):
        assert it.get("http://a.example/", headers={"x-stainless-retry-count": "2"}).status_code == 200


@DRIVERS
def test_a_mesh_is_told_not_to_retry_if_asked(driver):
    """Every attempt says so, unless the request says otherwise."""
    with Server(respond(503)) as server:
        driver.fetch(Ask(server.url, built={"mesh_retries": False}), policy())
        driver.fetch(Ask(server.url, built={"mesh_retries": False}, headers={"x-envoy-max-retries": "2"}), policy())
        driver.fetch(Ask(server.url), policy())
    assert [request.headers.get("x-envoy-max-retries") for request in server.requests] == ["0", "0", "2", None]


def test_a_bad_setting_is_refused():
    """With its name and value."""
    with pytest.raises(TypeError, match="mesh_retries must be True or False, not 0"):
        abate.clients.httpx2.Transport(mesh_retries=0)


def test_bytes_are_read_like_text():
    """As requests allows them."""
    assert earlier_retries({"x-stainless-retry-count": b"1"}) == 0
