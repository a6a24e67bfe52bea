"""Rules for HTTP on responses that are returned, and on the errors of SDKs: with the real libraries."""

import asyncio
import json
import re
import types

import aiohttp
import anthropic
import httpx
import httpx2
import openai
import pytest
import requests
import urllib3

import abate
from abate.decide import Outcome, Ruling
from abate.decide.http import status, transient
from abate.decide.outcome import LAYER
from abate.decide.responses import is_error_response
from abate.errors import Report
from abate.testing import Recorder, Script, VirtualClock
from tests.clients.server import Server, respond

FAST = [0.0]


@pytest.fixture(autouse=True)
def no_waiting():
    """Backoffs and hints take no time."""
    with VirtualClock() as clock:
        yield clock


def get_by_requests(server):
    return requests.get(server.url, timeout=30.0)


def get_by_urllib3(server):
    with urllib3.PoolManager(retries=False) as pool:
        return pool.request("GET", server.url, timeout=30.0)


def get_by_httpx(server):
    return httpx.get(server.url, timeout=30.0)


def get_by_httpx2(server):
    return httpx2.get(server.url, timeout=30.0)


GETTERS = [get_by_requests, get_by_urllib3, get_by_httpx, get_by_httpx2]
every_getter = pytest.mark.parametrize("get", GETTERS)


def status_of(response):
    return getattr(response, "status_code", None) or response.status


# -- the ways to use a policy


def decorated(policy, function):
    return policy(function)()


def called(policy, function):
    return policy.call(function)


def in_block(policy, function):
    for attempt in policy.attempts():
        with attempt:
            answer = attempt.result = function()
    return answer


def in_task(policy, function):
    async def call():
        return function()

    return asyncio.run(policy(call)())


def awaited(policy, function):
    async def call():
        return function()

    return asyncio.run(policy.acall(call))


def through_a_plain_function(policy, function):
    """As a decorator that hides a coroutine function does."""

    async def call():
        return function()

    @policy
    def hidden():
        return call()

    return asyncio.run(hidden())


WAYS = [decorated, called, in_block, in_task, awaited, through_a_plain_function]
every_way = pytest.mark.parametrize("way", WAYS)


# -- responses that are returned


@every_getter
@every_way
def test_a_response_that_is_returned_is_retried_as_an_error_would_be(way, get):
    """A 503 with a hint, then a 500, then the answer: in every way to call, with every library."""
    with Server(respond(503, ("Retry-After", "7")), respond(500), respond(200)) as server, Recorder() as events:
        response = way(abate.Policy(on=transient, backoff=FAST), lambda: get(server))
        assert (status_of(response), len(server.requests)) == (200, 3)
    retries = [event for event in events if isinstance(event, abate.events.Retry)]
    assert [(event.reason, event.hint) for event in retries] == [("overload", 7.0), ("blip", None)]


@every_getter
@every_way
def test_a_response_that_is_not_worth_a_retry_is_a_result(way, get):
    """A 404 is sent once, returned as it is, and no failure."""
    with Server(respond(404)) as server, Recorder() as events:
        assert status_of(way(abate.Policy(on=transient, backoff=FAST), lambda: get(server))) == 404
        assert len(server.requests) == 1
    assert list(events) == []


@every_way
def test_the_last_response_is_returned_when_the_attempts_run_out(way):
    """As it is, for the caller to look at."""
    with Server(*[respond(503)] * 3) as server:
        assert way(abate.Policy(on=transient, backoff=FAST), lambda: get_by_httpx(server)).status_code == 503
        assert len(server.requests) == 3


@every_way
def test_chosen_statuses_are_retried_when_they_are_returned(way):
    """`status`, in `on`, in `widen`, and in `unless`."""
    with Server(respond(404), respond(404), respond(200)) as server:
        assert way(abate.Policy(on=status(404), backoff=FAST), lambda: get_by_httpx(server)).status_code == 200
    with Server(respond(404), respond(503), respond(200)) as server:
        wide = abate.widen(transient, by=status(404), seconds=60.0)
        assert way(abate.Policy(on=wide, backoff=FAST), lambda: get_by_httpx(server)).status_code == 200
    with Server(respond(500), respond(503), respond(200)) as server:
        policy = abate.Policy(on=transient, unless=status(503), backoff=FAST)
        assert way(policy, lambda: get_by_httpx(server)).status_code == 503


def test_a_response_of_aiohttp_is_retried():
    """Inside its session, as such code is written."""

    async def load(server):
        async with aiohttp.ClientSession() as session:

            @abate.retry(on=transient, backoff=FAST)
            async def get():
                response = await session.get(server.url)
                await response.read()
                return response

            return (await get()).status

    with Server(respond(503), respond(502), respond(200)) as server:
        assert asyncio.run(load(server)) == 200
        assert len(server.requests) == 3


@pytest.mark.parametrize("library", [httpx, httpx2, requests])
@pytest.mark.parametrize(("code", "attempts"), [(429, 2), (500, 1)])
def test_the_request_of_a_returned_response_says_whether_it_may_be_repeated(library, code, attempts):
    """A POST is repeated only if the server refused it before taking it."""
    with Server(respond(code)) as server:
        policy = abate.Policy(on=transient, backoff=FAST)
        response = policy.call(library.post, server.url, timeout=30.0)
        assert (response.status_code, len(server.requests)) == (200 if attempts == 2 else code, attempts)


@pytest.mark.parametrize("library", [httpx, httpx2, requests])
def test_a_body_that_is_loaded_is_read(library):
    """A quota that is used up is fatal, by the body of the response."""
    body = json.dumps({"error": {"code": "insufficient_quota"}}).encode()
    with Server(respond(429, body=body)) as server:
        response = abate.Policy(on=transient, backoff=FAST).call(library.get, server.url, timeout=30.0)
        assert (response.status_code, len(server.requests)) == (429, 1)


def test_a_body_that_is_not_loaded_is_left_alone():
    """Judging a streamed response reads nothing of it."""
    with Server(respond(503, body=b"busy")) as server, requests.get(server.url, stream=True, timeout=30.0) as response:
        assert transient.judge(Outcome(result=response)).retry
        assert response.raw.tell() == 0
    with Server(respond(503, body=b"busy")) as server, httpx.stream("GET", server.url, timeout=30.0) as response:
        assert transient.judge(Outcome(result=response)).retry
        assert response.read() == b"busy"


# -- what is no response


class Unreadable:
    @property
    def status_code(self):
        raise RuntimeError("not yet")


@pytest.mark.parametrize(
    "result",
    [
        *(
            None,
            "503",
            503,
            {"status": 503, "headers": {}},
            [503],
            (503,),
            b"503",
            object(),
            Unreadable(),
            ValueError(),
        ),
        types.SimpleNamespace(status_code=503),
        types.SimpleNamespace(status=503, headers=None),
        types.SimpleNamespace(status=503, headers="Retry-After: 1"),
        types.SimpleNamespace(code=503, headers={}),
        types.SimpleNamespace(status_code="503", headers={}),
        types.SimpleNamespace(status_code=True, headers={}),
        types.SimpleNamespace(status_code=200, headers={}),
        types.SimpleNamespace(status_code=600, headers={}),
        types.SimpleNamespace(response=httpx.Response(503)),
    ],
    ids=lambda result: re.sub(r" at 0x[0-9a-f]+", "", repr(result)),
)
def test_other_results_are_left_alone(result):
    """An HTTP response has a number as its status, and headers; nothing else is judged."""
    assert transient.judge(Outcome(result=result)) is None
    assert status(503).judge(Outcome(result=result)) is None
    assert abate.Policy(on=transient).call(Script(result)) is result if not isinstance(result, ValueError) else True


def test_a_policy_for_http_still_takes_the_fast_way():
    """A result that is no response costs a look at its type: no machine is made for it."""
    assert abate.Policy(on=transient).plain
    assert abate.Policy(on=(TimeoutError, transient), unless=status(503)).plain
    assert not abate.Policy(on=(transient, abate.on_result(lambda result: False))).plain
    assert not is_error_response(httpx.Response(200))


def test_a_rule_that_fails_on_a_response_is_shown():
    """The user's own mistake is raised, not hidden behind the response."""

    def broken(error):
        raise ZeroDivisionError

    policy = abate.Policy(on=transient, unless=abate.on_result(broken))
    for way in WAYS:
        with pytest.raises(ZeroDivisionError):
            way(policy, lambda: httpx.Response(503))


# -- one layer retries


def report(reason, attempts=3):
    return Report("inner", attempts, 0.0, reason)


@pytest.mark.parametrize(
    "given_up",
    [
        httpx.Response(503, extensions={"abate_report": report("attempts")}),
        httpx.Response(503, extensions={"abate_report": report("unsafe", 1)}),
        httpx.Response(404, extensions={"abate_report": report("deadline")}),
        httpx.Response(503, headers={"Abate-Exhausted": "1"}),
        httpx2.Response(503, headers={"abate-exhausted": "1, 1"}),
        types.SimpleNamespace(status=503, headers={"Abate-Exhausted": "1"}),
        types.SimpleNamespace(status=503, headers={}, abate_report=report("budget")),
    ],
    ids=repr,
)
@every_way
def test_a_response_that_an_inner_policy_gave_up_on_is_not_retried(way, given_up):
    """Nor one that a service behind the server has retried; also if an error carries it."""
    script = Script(given_up, given_up)
    with Recorder() as events:
        assert way(abate.Policy(on=(transient, status(404))), script) is given_up
    assert [event.reason for event in events if isinstance(event, abate.events.GaveUp)] == ["layer"]
    error = Exception()
    error.response = given_up
    assert transient.judge(Outcome(error)) == LAYER


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(503, extensions={"abate_report": report("fatal")}),
        httpx.Response(503, extensions={"abate_report": report("attempts", 1)}),
        httpx.Response(503, extensions={"abate_report": "attempts"}),
        httpx.Response(503, headers={"Abate-Exhausted": "0"}),
    ],
    ids=repr,
)
def test_a_response_that_was_not_retried_inside_is_retried(response):
    """Nothing multiplies if the inner policy made one attempt, or did not think it worth another."""
    assert abate.Policy(on=transient, backoff=FAST).call(Script(response, "fine")) == "fine"


# -- errors of the SDKs


def openai_client(server):
    return openai.OpenAI(api_key="x", base_url=server.url, max_retries=0, timeout=30.0)


def anthropic_client(server):
    return anthropic.Anthropic(api_key="x", base_url=server.url, max_retries=0, timeout=30.0)


MESSAGES = [{"role": "user", "content": "Hello"}]


def ask_openai(server, stream=False):
    with openai_client(server) as client:
        answer = client.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
        return list(answer) if stream else answer


def ask_anthropic(server, stream=False):
    with anthropic_client(server) as client:
        answer = client.messages.create(model="m", max_tokens=5, messages=MESSAGES, stream=stream)
        return list(answer) if stream else answer


every_sdk = pytest.mark.parametrize("ask", [ask_openai, ask_anthropic])


def json_response(code, body, *headers):
    return respond(code, ("Content-Type", "application/json"), *headers, body=json.dumps(body).encode())


def error_of(ask, behaviour, **settings):
    with Server(behaviour) as server, pytest.raises(Exception) as caught:
        ask(server, **settings)
    return caught.value


@every_sdk
@pytest.mark.parametrize(
    ("code", "headers", "ruling"),
    [
        (429, (("retry-after-ms", "250"),), Ruling(True, "overload", 0.25, False, False, True)),
        (429, (), Ruling(True, "overload", None, False, False, True)),
        (529, (), Ruling(True, "overload", None, False, False, True)),
        (503, (("Retry-After", "2"),), Ruling(True, "overload", 2.0, False, False, True)),
        (503, (), Ruling(True, "overload", None, True, False, True)),
        (500, (), Ruling(True, "blip", None, True, False, True)),
        (409, (("x-should-retry", "true"),), Ruling(True, "blip", None, True, False, True)),
        (409, (), Ruling.fatal()),
        (503, (("x-should-retry", "false"),), Ruling.fatal()),
        (400, (), Ruling.fatal()),
    ],
)
def test_the_status_errors_of_sdks_are_read(ask, code, headers, ruling):
    """Every call is a POST without a key: repeated only if the server refused it."""
    assert transient.judge(Outcome(error_of(ask, json_response(code, {"error": {}}, *headers)))) == ruling


def test_the_limits_of_openai_are_the_hint():
    """The tokens are used up for 1.5 seconds, the requests are not."""
    limits = (
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-reset-requests", "1m0s"),
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "1.5s"),
    )
    error = error_of(ask_openai, json_response(429, {"error": {"type": "tokens"}}, *limits))
    assert transient.judge(Outcome(error)).hint == 1.5


def test_a_quota_of_openai_that_is_used_up_is_fatal():
    """The SDK unwraps the body: its code is found anyway."""
    body = {"error": {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": None}}
    assert transient.judge(Outcome(error_of(ask_openai, json_response(429, body)))) == Ruling.fatal()


def event_stream(*events):
    body = "".join(
        f"event: {name}\ndata: {json.dumps(data)}\n\n" if name else f"data: {data}\n\n" for name, data in events
    )
    return respond(200, ("Content-Type", "text/event-stream"), body=body.encode())


@pytest.mark.parametrize(
    ("kind", "ruling"),
    [
        ("overloaded_error", Ruling(True, "overload", None, False, False, True)),
        ("rate_limit_error", Ruling(True, "overload", None, False, False, True)),
        ("api_error", Ruling(True, "blip", None, True, False, True)),
        ("timeout_error", Ruling(True, "overload", None, True, False)),
        ("invalid_request_error", None),
    ],
)
def test_an_error_event_in_a_stream_of_anthropic_is_judged_by_its_type(kind, ruling):
    """The response itself was a 200."""
    event = {"type": "error", "error": {"type": kind, "message": "sorry"}}
    error = error_of(ask_anthropic, event_stream(("error", event)), stream=True)
    assert error.response.status_code == 200
    assert transient.judge(Outcome(error)) == ruling


@pytest.mark.parametrize(
    ("body", "ruling"),
    [
        ({"type": "server_error", "code": None}, Ruling(True, "blip", None, True, False, True)),
        ({"type": "tokens", "code": "rate_limit_exceeded"}, Ruling(True, "overload", None, False, False, True)),
        ({"type": None, "code": "insufficient_quota"}, Ruling.fatal()),
        ({"code": 503}, Ruling(True, "overload", None, True, False, True)),  # as gateways write it
        ({"type": "invalid_request_error", "code": None}, None),
    ],
)
def test_an_error_chunk_in_a_stream_of_openai_is_judged_by_its_code_or_type(body, ruling):
    """It is raised as an error without a status."""
    error = error_of(ask_openai, event_stream(("", json.dumps({"error": body | {"message": "sorry"}}))), stream=True)
    assert type(error) is openai.APIError
    assert transient.judge(Outcome(error)) == ruling


def test_an_error_of_a_stream_whose_body_is_a_page_is_not_judged():
    """A proxy has written it: it has no code."""
    error = openai.APIError("sorry", httpx.Request("POST", "http://localhost"), body="<html>down</html>")
    assert transient.judge(Outcome(error)) is None


def test_a_stream_that_was_overloaded_is_asked_for_again():
    """By a policy on the function that reads it, until the first item was handed out."""
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "sorry"}}
    good = {"type": "message_stop"}

    @abate.retry(on=transient, backoff=FAST)
    def chat(server):
        with anthropic_client(server) as client:
            yield from client.messages.create(model="m", max_tokens=5, messages=MESSAGES, stream=True)

    with Server(event_stream(("error", overloaded)), event_stream(("message_stop", good))) as server:
        assert [event.type for event in chat(server)] == ["message_stop"]
        assert len(server.requests) == 2


@every_sdk
def test_a_call_of_an_sdk_is_retried(ask):
    """A 429 and a 529 on a POST, then the answer."""
    answer = {"id": "1", "object": "x", "type": "message", "choices": [], "content": []}
    with Server(json_response(429, {}), json_response(529, {}), json_response(200, answer)) as server:
        assert abate.Policy(on=transient, backoff=FAST).call(ask, server).id == "1"
        assert len(server.requests) == 3


def test_the_status_of_what_is_no_response_is_not_read():
    """Where a property asks a database, as the state of a job does, each good result would cost a query."""

    class Job:
        asked = 0

        @property
        def status(self):
            Job.asked += 1
            return 503

    assert not is_error_response(Job())
    assert Job.asked == 0
