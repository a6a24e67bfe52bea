"""Every way to ask an LLM through an SDK: chat completions, responses and messages, in a thread and under asyncio."""

from __future__ import annotations

import asyncio

import anthropic
import openai
import pytest

import abate
import abate.clients.anthropic
import abate.clients.openai

ASK = [{"role": "user", "content": "Say hello"}]


class Chat:
    path = "/v1/chat/completions"
    sdk, module = openai, abate.clients.openai
    classes = (openai.OpenAI, openai.AsyncOpenAI)

    def create(self, client, **options):
        return client.chat.completions.create(model="m", messages=ASK, **options)

    def text(self, answer):
        return answer.choices[0].message.content

    def piece(self, item):
        return (item.choices[0].delta.content or "") if item.choices else ""


class Responses(Chat):
    path = "/v1/responses"

    def create(self, client, **options):
        return client.responses.create(model="m", input="Say hello", **options)

    def text(self, answer):
        return answer.output_text

    def piece(self, item):
        return item.delta if item.type == "response.output_text.delta" else ""


class Messages:
    path = "/v1/messages"
    sdk, module = anthropic, abate.clients.anthropic
    classes = (anthropic.Anthropic, anthropic.AsyncAnthropic)

    def create(self, client, **options):
        return client.messages.create(model="m", max_tokens=10, messages=ASK, **options)

    def text(self, answer):
        return answer.content[0].text

    def piece(self, item):
        return item.delta.text if item.type == "content_block_delta" else ""


class Way:
    """One way to ask."""

    def __init__(self, api, loop):
        self.api = api
        self.loop = loop
        self.sdk, self.path = api.sdk, api.path
        self.sync = loop == "threads"
        self.kind = api.classes[not self.sync]

    def __repr__(self):
        return f"{type(self.api).__name__.lower()}-{self.loop}"

    def settings(self, server, **options):
        """What an SDK's client needs to talk to a server."""
        base = server.url if self.sdk is anthropic else f"{server.url}/v1"
        return {"api_key": "an-example", "base_url": base, **options}

    def client(self, policy, server, **options):
        """A client from abate's constructor."""
        make = self.api.module.client if self.sync else self.api.module.async_client
        return make(policy, **self.settings(server, **options))

    def plain(self, server, **options):
        """A client of the SDK's own, with its own retries off unless asked for."""
        return self.kind(**{"max_retries": 0, **self.settings(server, **options)})

    def ask(self, client, *, stream=False, **options):
        """The text of one answer, from a client that is closed after it."""
        if self.sync:
            with client:
                return self.read(client, stream, options)
        return asyncio.run(self._ask(client, stream, options))

    async def _ask(self, client, stream, options):
        async with client:
            return await self.aread(client, stream, options)

    def read(self, client, stream=False, options=None):
        answer = self.api.create(client, stream=stream, **(options or {}))
        return "".join(map(self.api.piece, answer)) if stream else self.api.text(answer)

    async def aread(self, client, stream=False, options=None):
        answer = await self.api.create(client, stream=stream, **(options or {}))
        if not stream:
            return self.api.text(answer)
        return "".join([self.api.piece(item) async for item in answer])

    def error(self, client, kind=None, **options):
        """The error of one question."""
        with pytest.raises(kind or self.sdk.APIError) as raised:
            self.ask(client, **options)
        return raised.value


WAYS = [Way(api, loop) for api in (Chat(), Responses(), Messages()) for loop in ("threads", "asyncio")]


def policy(**settings):
    """A policy that doesn't wait, unless told."""
    return abate.Policy(**{"on": abate.http.transient, "backoff": [0.0], "name": "llm", **settings})
