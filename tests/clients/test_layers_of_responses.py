"""One layer retries, also where the outer policy gets the error of a bad status, on real sockets."""

import asyncio
import warnings

import aiohttp
import anthropic
import httpx
import openai
import pytest
import requests

import abate
import abate.clients.aiohttp
import abate.clients.httpx
import abate.clients.requests
from abate.decide import responses
from tests.clients.drivers import policy, unused_url
from tests.clients.server import Server, respond

BUSY = respond(503, ("Content-Type", "application/json"), body=b'{"error": {"message": "busy"}}')


def by_httpx(url, inner):
    with httpx.Client(transport=abate.clients.httpx.Transport(inner), trust_env=False) as client:
        client.get(url).raise_for_status()


def by_requests(url, inner):
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", abate.clients.requests.Adapter(inner))
        session.get(url).raise_for_status()


def by_aiohttp(url, inner):
    async def get():
        middlewares = (abate.clients.aiohttp.middleware(inner),)
        async with aiohttp.ClientSession(middlewares=middlewares, raise_for_status=True) as session:
            await session.get(url)

    asyncio.run(get())


LIBRARIES = {
    by_httpx: httpx.HTTPStatusError,
    by_requests: requests.HTTPError,
    by_aiohttp: aiohttp.ClientResponseError,
}
each_library = pytest.mark.parametrize("get", LIBRARIES, ids=lambda get: get.__name__)


def count(on, work, settings):
    """Let a policy call `work` on a server that is always busy; return the report and the number of requests."""
    with Server(*[BUSY] * 20) as server:
        try:
            policy(on=on, **settings).call(work, server.url)
        except Exception as error:
            return abate.report(error), len(server.requests)
    raise AssertionError("nothing failed")


@each_library
@pytest.mark.parametrize("by_type", [True, False], ids=["by type", "by any error"])
def test_a_bad_status_is_retried_by_the_client_only(get, by_type):
    """The outer policy names the error of `raise_for_status`, which is not the error that the client gave up on."""
    name = f"outer of {get.__name__} {by_type}"  # each pair is warned of once
    with pytest.warns(abate.LayeredRetryWarning, match="wraps inner"):
        report, sent = count(
            LIBRARIES[get] if by_type else Exception, lambda url: get(url, policy(name="inner")), {"name": name}
        )
    assert (report.reason, report.inner.policy) == ("layer", "inner")
    assert sent == 3


@each_library
def test_a_bad_status_is_retried_by_the_client_only_by_the_table_too(get):
    """`abate.http.transient` knows the response, and aiohttp's error, which has none."""
    report, sent = count(abate.http.transient, lambda url: get(url, policy(name="inner")), {})
    assert (report.reason, sent) == ("layer", 3)


@each_library
def test_a_bad_status_of_a_single_attempt_is_retried_outside(get):
    """Nothing multiplies."""
    report, sent = count(LIBRARIES[get], lambda url: get(url, policy(name="inner", max_attempts=1)), {})
    assert (report.reason, sent) == ("attempts", 3)


@each_library
def test_the_error_of_a_bad_status_has_the_report(get):
    """Of the call that the client gave up on."""
    with Server(*[BUSY] * 3) as server, pytest.raises(LIBRARIES[get]) as caught:
        get(server.url, policy(name="inner"))
    assert abate.report(caught.value).policy == "inner"


def by_openai(url, retries):
    with openai.OpenAI(api_key="none", base_url=url, max_retries=retries) as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])


def by_anthropic(url, retries):
    with anthropic.Anthropic(api_key="none", base_url=url, max_retries=retries) as client:
        client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "hello"}])


each_sdk = pytest.mark.parametrize("ask", [by_openai, by_anthropic], ids=lambda ask: ask.__name__)


@pytest.fixture
def nothing_said(monkeypatch):
    """Each test hears the warnings as if they had never been given."""
    monkeypatch.setattr(responses, "_warned", set())


@each_sdk
@pytest.mark.usefixtures("nothing_said")
def test_what_an_sdk_has_retried_is_not_retried_again(ask):
    """As an SDK does by default; one warning says how to let the policy retry instead."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        report, sent = count(abate.http.transient, lambda url: ask(url, 1), {"idempotent": True})
        assert (report.reason, report.attempts, sent) == ("layer", 1, 2)
        count(abate.http.transient, lambda url: ask(url, 1), {"idempotent": True})
    assert ["max_retries=0" in str(each.message) for each in heard] == [True]


@each_sdk
def test_an_sdk_that_does_not_retry_is_retried(ask):
    """With `max_retries=0` the policy makes all attempts."""
    report, sent = count(abate.http.transient, lambda url: ask(url, 0), {"idempotent": True})
    assert (report.reason, sent) == ("attempts", 3)


@each_sdk
@pytest.mark.usefixtures("nothing_said")
def test_a_connection_that_an_sdk_has_tried_again_is_not_tried_more(ask):
    """The error has no response, but the request."""
    with pytest.warns(abate.LayeredRetryWarning), pytest.raises(Exception, match=r"[Cc]onnection") as caught:
        policy().call(ask, unused_url(), 1)
    assert abate.report(caught.value).reason == "layer"


@pytest.mark.parametrize("value", ["0", "many", "-1", "9" * 400, ""])
def test_a_count_that_is_no_retry(value):
    """Whatever a header says, it is read or ignored."""
    request = httpx.Request("POST", "http://api.example", headers={"x-stainless-retry-count": value})
    error = httpx.HTTPStatusError("busy", request=request, response=httpx.Response(429, request=request))
    assert abate.http.transient.judge(abate.Outcome(error)).retry
