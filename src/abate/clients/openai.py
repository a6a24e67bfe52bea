"""OpenAI's SDK with a policy: clients whose every request is retried by it, streams included, and by nothing else.

`client` and `async_client` return the SDK's own clients, with its own retries off. Timeouts are the SDK's: 5 s to
connect, and 10 minutes of silence, which a long answer that is not streamed may take; the policy's `timeout` bounds
all attempts together, up to the first content of a stream.

An error event inside a stream that began with 200 counts as the status that it stands for, if it comes before the first
content (`abate.clients.stream_errors`). After that the stream is the SDK's, which raises its own error.

Requests are POSTs without an ``Idempotency-Key``. They are repeated where the API refused them (429, overload) or never
saw them; after a 500, a timeout or a broken connection the answer may have been generated, and paid for. A policy with
``idempotent=True`` repeats those too, as the SDK would.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

from abate.call.policy import Policy
from abate.optional_dependencies import requires_extra

with requires_extra(by="abate.clients.openai", extra="openai"):
    import httpx2
    import openai

    from abate.clients import llm_sdk

__all__ = ["async_client", "client", "default_policy"]

default_policy = llm_sdk.default_policy("openai")
"""The policy of clients that are given none: 3 attempts within 10 minutes, by HTTP's table. They share its budget."""

ClientT = TypeVar("ClientT", bound=openai.OpenAI)
AsyncClientT = TypeVar("AsyncClientT", bound=openai.AsyncOpenAI)


@overload
def client(
    policy: Policy | None = None,
    *,
    client_class: type[ClientT],
    transport: httpx2.BaseTransport | None = None,
    **settings: Any,
) -> ClientT: ...
@overload
def client(
    policy: Policy | None = None, *, transport: httpx2.BaseTransport | None = None, **settings: Any
) -> openai.OpenAI: ...
def client(
    policy: Policy | None = None,
    *,
    client_class: type[openai.OpenAI] = openai.OpenAI,
    transport: httpx2.BaseTransport | None = None,
    **settings: Any,
) -> openai.OpenAI:
    """Return an ``openai.OpenAI`` that retries by a policy.

    * `policy`: `default_policy` unless given.
    * `client_class`: another class of the SDK, such as ``openai.AzureOpenAI``.
    * `transport`: what sends, such as ``httpx2.HTTPTransport(proxy=…)``; by default what the SDK would use.
    * `settings`: the SDK's own: ``api_key``, ``base_url``, ``timeout``, …

    >>> import abate.clients.openai
    >>> client = abate.clients.openai.client(api_key="sk-…", base_url="http://127.0.0.1:1/v1")
    >>> client.max_retries
    0
    """
    policy = default_policy if policy is None else policy
    llm_sdk.check_settings("abate.clients.openai", policy, client_class, openai.OpenAI, settings, default_policy)
    http_client = llm_sdk.retrying_client(openai.DefaultHttpxClient, policy, transport)
    return client_class(max_retries=0, http_client=http_client, **settings)


@overload
def async_client(
    policy: Policy | None = None,
    *,
    client_class: type[AsyncClientT],
    transport: httpx2.AsyncBaseTransport | None = None,
    **settings: Any,
) -> AsyncClientT: ...
@overload
def async_client(
    policy: Policy | None = None, *, transport: httpx2.AsyncBaseTransport | None = None, **settings: Any
) -> openai.AsyncOpenAI: ...
def async_client(
    policy: Policy | None = None,
    *,
    client_class: type[openai.AsyncOpenAI] = openai.AsyncOpenAI,
    transport: httpx2.AsyncBaseTransport | None = None,
    **settings: Any,
) -> openai.AsyncOpenAI:
    """Return an ``openai.AsyncOpenAI`` that retries by a policy; the arguments are those of `client`.

    >>> import abate.clients.openai
    >>> client = abate.clients.openai.async_client(api_key="sk-…", base_url="http://127.0.0.1:1/v1")
    >>> client.max_retries
    0
    """
    policy = default_policy if policy is None else policy
    llm_sdk.check_settings("abate.clients.openai", policy, client_class, openai.AsyncOpenAI, settings, default_policy)
    http_client = llm_sdk.retrying_client(openai.DefaultAsyncHttpxClient, policy, transport)
    return client_class(max_retries=0, http_client=http_client, **settings)
