"""Anthropic's SDK: what is particular about it. What both SDKs have in common is in `test_llm_sdk`."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import anthropic
import pytest

import abate
import abate.clients.anthropic
from abate.testing import VirtualClock
from tests.clients.llm_server import BEGINNINGS, CONTENTS, TEXT, LLMServer, error_event, fail, stream
from tests.clients.llm_ways import ASK, policy

MESSAGES = "/v1/messages"
QUESTION = {"model": "m", "max_tokens": 10, "messages": ASK}


def client(server):
    return abate.clients.anthropic.client(policy(), api_key="an-example", base_url=server.url)


def test_an_overload_in_the_end_is_the_sdks_own_error_for_it():
    """Of status 529, from an event inside a stream as from a status."""
    overloaded = stream(error_event(MESSAGES, "overloaded_error"))
    server = LLMServer(fail(529), overloaded, overloaded)
    with server, client(server) as opened, pytest.raises(anthropic.OverloadedError) as raised:
        opened.messages.create(**QUESTION, stream=True)
    assert raised.value.type == "overloaded_error"


def test_the_sdks_helper_for_streams_is_retried_too():
    """Sync and async: `messages.stream`."""
    overloaded = stream(*BEGINNINGS[MESSAGES], error_event(MESSAGES, "overloaded_error"))
    with LLMServer(overloaded) as server:
        with client(server) as opened, opened.messages.stream(**QUESTION) as events:
            assert events.get_final_text() == TEXT
        server.script.append(overloaded)

        async def ask():
            made = abate.clients.anthropic.async_client(policy(), api_key="an-example", base_url=server.url)
            async with made, made.messages.stream(**QUESTION) as events:
                return "".join([text async for text in events.text_stream])

        assert asyncio.run(ask()) == TEXT
    assert len(server.requests) == 4


def test_an_error_after_the_content_has_begun_is_raised_by_the_sdk():
    """With the content that came before it."""
    broken = stream(*BEGINNINGS[MESSAGES], CONTENTS[MESSAGES][0], error_event(MESSAGES, "overloaded_error"))
    with LLMServer(broken) as server, client(server) as opened:
        items = iter(opened.messages.create(**QUESTION, stream=True))
        assert [next(items).type for _ in range(3)] == ["message_start", "content_block_start", "content_block_delta"]
        with pytest.raises(anthropic.APIStatusError) as raised:
            next(items)
    assert raised.value.type == "overloaded_error"
    assert len(server.requests) == 1


def test_the_sdk_still_refuses_answers_that_are_too_long_without_a_stream():
    """Its check depends on its own timeouts, which are left in place."""
    with LLMServer() as server, client(server) as opened, pytest.raises(ValueError, match="Streaming is required"):
        opened.messages.create(**{**QUESTION, "max_tokens": 100_000})
    assert server.requests == []


def test_retries_that_a_request_asks_for_do_not_multiply():
    """`with_options` of the SDK: its retries are told that the policy has given up."""
    with LLMServer(*[fail(529)] * 20) as server, client(server) as opened, pytest.raises(anthropic.OverloadedError):
        opened.with_options(max_retries=5).messages.create(**QUESTION)
    assert len(server.requests) == 3


def test_a_limit_of_tokens_is_waited_for():
    """`anthropic-ratelimit-*-reset` is a hint, where the limit is used up."""
    with VirtualClock(start=1_800_000_000.0) as clock:
        due = datetime.fromtimestamp(clock.now(), UTC) + timedelta(seconds=40)
        limits = [
            ("anthropic-ratelimit-input-tokens-remaining", "0"),
            ("anthropic-ratelimit-input-tokens-reset", due.strftime("%Y-%m-%dT%H:%M:%SZ")),
        ]
        with LLMServer(fail(429, *limits)) as server, client(server) as opened:
            assert opened.messages.create(**QUESTION).content[0].text == TEXT
    assert clock.now() >= 1_800_000_040.0


def test_calls_share_the_budget_of_the_default_policy():
    """However many clients a program makes."""
    with LLMServer() as server:
        made = [abate.clients.anthropic.client(api_key="an-example", base_url=server.url) for _ in range(3)]
        budgets = {each._client._transport.settings.policy.budget for each in made}
    assert budgets == {abate.clients.anthropic.default_policy.budget}


@pytest.mark.parametrize("missing", ["anthropic", "httpx2"])
def test_without_the_sdk_the_error_names_the_extra(missing):
    """As for every client."""
    program = f"import sys; sys.modules[{missing!r}] = None; import abate.clients.anthropic"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert f"abate.clients.anthropic needs {missing}: install abate[anthropic]" in done.stderr
