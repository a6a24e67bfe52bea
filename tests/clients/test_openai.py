"""OpenAI's SDK: what is particular about it. What both SDKs have in common is in `test_llm_sdk`."""

import asyncio
import gc
import json
import subprocess
import sys
import threading
import warnings

import openai
import pytest
import trio

import abate
import abate.clients.openai
from abate.testing import VirtualClock
from tests.clients.llm_server import ANSWERS, BEGINNINGS, CONTENTS, ENDS, TEXT, LLMServer, fail, stream, typed
from tests.clients.llm_ways import ASK, policy
from tests.clients.server import respond

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"


def client(server, retried=None, **settings):
    return abate.clients.openai.client(
        retried or policy(), api_key="an-example", base_url=f"{server.url}/v1", **settings
    )


def test_azure_is_a_class_to_choose():
    """Sync and async; its own settings are passed on."""
    settings = {"api_key": "an-example", "api_version": "2026-01-01"}
    answer = respond(200, ("Content-Type", "application/json"), body=json.dumps(ANSWERS[CHAT]).encode())
    with LLMServer(fail(429), answer, fail(429), answer) as server:
        settings["azure_endpoint"] = server.url
        with abate.clients.openai.client(policy(), client_class=openai.AzureOpenAI, **settings) as azure:
            assert type(azure) is openai.AzureOpenAI
            assert azure.chat.completions.create(model="m", messages=ASK).choices[0].message.content == TEXT

        async def ask():
            made = abate.clients.openai.async_client(policy(), client_class=openai.AsyncAzureOpenAI, **settings)
            async with made as azure:
                return await azure.chat.completions.create(model="m", messages=ASK)

        assert asyncio.run(ask()).choices[0].message.content == TEXT
    assert {request.path for request in server.requests} == {
        "/openai/deployments/m/chat/completions?api-version=2026-01-01"
    }
    assert len(server.requests) == 4


def test_retries_that_a_request_asks_for_do_not_multiply():
    """`with_options` of the SDK: its retries are told that the policy has given up."""
    with LLMServer(*[fail(429)] * 20) as server, client(server) as opened, pytest.raises(openai.RateLimitError):
        opened.with_options(max_retries=5).chat.completions.create(model="m", messages=ASK)
    assert len(server.requests) == 3


def test_the_sdks_helpers_for_streams_are_retried_too():
    """Of chat completions and of responses."""
    overloaded = stream(*BEGINNINGS[CHAT], 'data: {"error": {"code": "server_is_overloaded"}}\n\n')
    with LLMServer(overloaded) as server, client(server) as opened:
        with opened.chat.completions.stream(model="m", messages=ASK) as events:
            for _ in events:
                pass
        assert events.get_final_completion().choices[0].message.content == TEXT
        server.script.append(stream(*BEGINNINGS[RESPONSES], typed("error", code="rate_limit_exceeded", message="no")))
        with opened.responses.stream(model="m", input="Say hello") as events:
            assert events.get_final_response().output_text == TEXT
    assert len(server.requests) == 4


@pytest.mark.parametrize(("code", "attempts"), [("rate_limit_exceeded", 2), ("server_error", 1)])
def test_a_response_that_failed_before_its_content_is_a_failure(code, attempts):
    """A `response.failed` event whose code another attempt may heal; after a failure of the server, if it is safe."""
    failed = typed("response.failed", sequence_number=2, response={"error": {"code": code, "message": "no"}})
    with LLMServer(stream(*BEGINNINGS[RESPONSES], failed)) as server, client(server) as opened:
        ask = {"model": "m", "input": "Say hello", "stream": True}
        if attempts == 1:
            with pytest.raises(openai.InternalServerError):
                opened.responses.create(**ask)
        else:
            assert "".join(getattr(item, "delta", "") for item in opened.responses.create(**ask)) == TEXT
    assert len(server.requests) == attempts


def test_a_response_that_failed_otherwise_is_a_result():
    """The SDK hands the event to the program."""
    failed = typed("response.failed", sequence_number=2, response={"error": {"code": "invalid_prompt"}})
    with LLMServer(stream(*BEGINNINGS[RESPONSES], failed)) as server, client(server) as opened:
        items = list(opened.responses.create(model="m", input="Say hello", stream=True))
    assert [items[0].type, items[-1].type] == ["response.created", "response.failed"]


def test_waits_in_virtual_time():
    """The clock is the context's, also below an SDK; no hint is cut short."""
    with VirtualClock() as clock, LLMServer(fail(429, ("Retry-After", "150"))) as server, client(server) as opened:
        assert opened.responses.create(model="m", input="Say hello").output_text == TEXT
    assert clock.now() >= 150.0


def test_a_limit_of_tokens_is_waited_for():
    """Rate-limit headers of the API are hints: the limit that is used up says when it is there again."""
    limits = [("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "1m3.5s")]
    with VirtualClock() as clock, LLMServer(fail(429, *limits)) as server, client(server) as opened:
        assert opened.responses.create(model="m", input="Say hello").output_text == TEXT
    assert clock.now() >= 63.5


def test_a_task_that_is_cancelled_leaves_no_connection_taken():
    """Before the first content, while the stream is held back, and after it."""
    begun = BEGINNINGS[RESPONSES]

    async def cancel(server, pieces):
        made = abate.clients.openai.async_client(policy(), api_key="an-example", base_url=f"{server.url}/v1")
        pool = made._client._transport.inner.inner._pool
        async with made:
            seen = []

            async def read():
                async for item in await made.responses.create(model="m", input="Say hello", stream=True):
                    seen.append(item)

            task = asyncio.create_task(read())
            while len(server.requests) == 0 or len(seen) < pieces:
                await asyncio.sleep(0)
            for _ in range(10):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [each for each in pool.connections if not each.is_idle()] == []

    for events, pieces in ((begun, 0), ([*begun, CONTENTS[RESPONSES][0]], 3)):
        with LLMServer() as server:
            server.script.append(stream(*events, then=server.hang))
            asyncio.run(cancel(server, pieces))
        assert len(server.requests) == 1


@pytest.mark.parametrize("pause", [1.3, 0.0])
def test_after_the_first_content_silence_is_the_sdks_to_judge(pause):
    """The policy's timeout, which ends the wait for content, does not cut the read timeout of the rest."""
    answer = [*BEGINNINGS[RESPONSES], CONTENTS[RESPONSES][0]]
    rest = [CONTENTS[RESPONSES][1], *ENDS[RESPONSES]]

    def go_on(connection):
        threading.Event().wait(pause)  # longer than the policy's timeout
        for each in rest:
            connection.sendall(f"{len(each):x}\r\n{each}\r\n".encode())
        connection.sendall(b"0\r\n\r\n")
        return True

    def asks(server):
        with client(server, policy(timeout=1.0)) as opened:
            for _ in range(2):
                items = opened.responses.create(model="m", input="Say hello", stream=True)
                yield "".join(item.delta for item in items if item.type == "response.output_text.delta")

    async def ask(server):
        made = abate.clients.openai.async_client(policy(timeout=1.0), api_key="an-example", base_url=f"{server.url}/v1")
        async with made as opened:
            items = await opened.responses.create(model="m", input="Say hello", stream=True)
            return "".join([item.delta async for item in items if item.type == "response.output_text.delta"])

    with LLMServer(stream(*answer, then=go_on)) as server:
        assert list(asks(server)) == [TEXT, TEXT]
    assert {request.connection for request in server.requests} == {1}
    with LLMServer(stream(*answer, then=go_on)) as server:
        assert asyncio.run(ask(server)) == TEXT


def test_a_deadline_around_the_call_bounds_the_rest_too():
    """It is the program's own, for all that is done inside it."""
    with LLMServer() as server, client(server, policy(timeout=60.0)) as opened:
        server.script.append(stream(*BEGINNINGS[CHAT], CONTENTS[CHAT][0], then=server.hang))
        with abate.deadline(1.0):
            items = opened.chat.completions.create(model="m", messages=ASK, stream=True)
            with pytest.raises(openai.APITimeoutError):
                list(items)


def test_a_stream_without_content_ends_under_a_timeout():
    """Nothing is left to read on."""
    with LLMServer(*[stream(*BEGINNINGS[CHAT])] * 2) as server, client(server, policy(timeout=60.0)) as opened:
        for _ in range(2):
            items = opened.chat.completions.create(model="m", messages=ASK, stream=True)
            assert sum(1 for _ in items) == 1
    assert {request.connection for request in server.requests} == {1}


def test_no_generator_is_abandoned_under_trio():
    """Of httpx's, which trio would warn about: not even at an error event."""
    overloaded = stream(*BEGINNINGS[RESPONSES], typed("error", code="server_is_overloaded"))

    async def ask(server):
        made = abate.clients.openai.async_client(policy(), api_key="an-example", base_url=f"{server.url}/v1")
        async with made as opened:
            items = await opened.responses.create(model="m", input="Say hello", stream=True)
            return [item.type async for item in items]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with LLMServer(overloaded) as server:
            assert trio.run(ask, server)[-1] == "response.completed"
        gc.collect()
    assert [
        str(each.message) for each in caught if "httpx2" in str(each.message) or "httpcore" in str(each.message)
    ] == []


def test_a_long_stream_leaves_its_connection_for_others():
    """It passes through to its end."""
    events = [*BEGINNINGS[RESPONSES], *[CONTENTS[RESPONSES][1] * 20] * 100, *ENDS[RESPONSES]]
    with LLMServer(stream(*events), stream(*events)) as server, client(server) as opened:
        for _ in range(2):
            items = opened.responses.create(model="m", input="Say hello", stream=True)
            assert sum(1 for item in items if item.type == "response.output_text.delta") == 2000
    assert {request.connection for request in server.requests} == {1}


@pytest.mark.parametrize("missing", ["openai", "httpx2"])
def test_without_the_sdk_the_error_names_the_extra(missing):
    """As for every client."""
    program = f"import sys; sys.modules[{missing!r}] = None; import abate.clients.openai"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert f"abate.clients.openai needs {missing}: install abate[openai]" in done.stderr
