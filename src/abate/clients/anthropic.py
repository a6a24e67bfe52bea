"""Anthropic's SDK with a policy: clients whose every request is retried by it, streams included, and by nothing else.

`client` and `async_client` return the SDK's own clients, with its own retries off. Timeouts are the SDK's: 5 s to
connect, and 10 minutes of silence, which a long answer that is not streamed may take; the policy's `timeout` bounds
all attempts together, up to the first content of a stream.

An ``event: error`` inside a stream that began with 200 (`overloaded_error`, `rate_limit_error`, `api_error`) counts as
the status that it stands for, if it comes before the first content (`abate.clients.stream_errors`). After that the
stream is the SDK's, which raises its own error.

Requests are POSTs without an ``Idempotency-Key``. They are repeated where the API refused them (429, 529) or never saw
them; after a 500, a timeout or a broken connection the answer may have been generated, and paid for. A policy with
``idempotent=True`` repeats those too, as the SDK would.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

from abate.call.policy import Policy
from abate.optional_dependencies import requires_extra

with requires_extra(by="abate.clients.anthropic", extra="anthropic"):
    import anthropic
    import httpx2

    from abate.clients import llm_sdk

__all__ = ["async_client", "client", "default_policy"]

default_policy = llm_sdk.default_policy("anthropic")
"""The policy of clients that are given none: 3 attempts within 10 minutes, by HTTP's table. They share its budget."""

ClientT = TypeVar("ClientT", bound=anthropic.Anthropic)
AsyncClientT = TypeVar("AsyncClientT", bound=anthropic.AsyncAnthropic)


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
) -> anthropic.Anthropic: ...
def client(
    policy: Policy | None = None,
    *,
    client_class: type[anthropic.Anthropic] = anthropic.Anthropic,
    transport: httpx2.BaseTransport | None = None,
    **settings: Any,
) -> anthropic.Anthropic:
    """Return an ``anthropic.Anthropic`` that retries by a policy.

    * `policy`: `default_policy` unless given.
    * `client_class`: another class of the SDK, such as ``anthropic.AnthropicBedrock``.
    * `transport`: what sends, such as ``httpx2.HTTPTransport(proxy=…)``; by default what the SDK would use.
    * `settings`: the SDK's own: ``api_key``, ``base_url``, ``timeout``, …

    >>> import abate.clients.anthropic
    >>> client = abate.clients.anthropic.client(api_key="sk-ant-…", base_url="http://127.0.0.1:1")
    >>> client.max_retries
    0
    """
    policy = default_policy if policy is None else policy
    llm_sdk.check_settings(
        "abate.clients.anthropic", policy, client_class, anthropic.Anthropic, settings, default_policy
    )
    http_client = llm_sdk.retrying_client(anthropic.DefaultHttpxClient, policy, transport)
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
) -> anthropic.AsyncAnthropic: ...
def async_client(
    policy: Policy | None = None,
    *,
    client_class: type[anthropic.AsyncAnthropic] = anthropic.AsyncAnthropic,
    transport: httpx2.AsyncBaseTransport | None = None,
    **settings: Any,
) -> anthropic.AsyncAnthropic:
    """Return an ``anthropic.AsyncAnthropic`` that retries by a policy; the arguments are those of `client`.

    >>> import abate.clients.anthropic
    >>> client = abate.clients.anthropic.async_client(api_key="sk-ant-…", base_url="http://127.0.0.1:1")
    >>> client.max_retries
    0
    """
    policy = default_policy if policy is None else policy
    llm_sdk.check_settings(
        "abate.clients.anthropic", policy, client_class, anthropic.AsyncAnthropic, settings, default_policy
    )
    http_client = llm_sdk.retrying_client(anthropic.DefaultAsyncHttpxClient, policy, transport)
    return client_class(max_retries=0, http_client=http_client, **settings)
