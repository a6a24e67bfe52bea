"""What the clients for the SDKs of OpenAI and Anthropic share: one generator made both, on httpx2.

The HTTP client is the SDK's own, with its pools, proxies of the environment and timeouts; only its transports are
wrapped, twice: by one that turns an error event into a response, and around that by the one that retries.
"""

from __future__ import annotations

from inspect import signature
from typing import Any, TypeVar

import httpx2

from abate.call.policy import Policy
from abate.clients.httpx2 import AsyncTransport, Transport
from abate.clients.stream_errors import AsyncErrorEventTransport, ErrorEventTransport
from abate.decide import http
from abate.errors import unknown

ClientT = TypeVar("ClientT", httpx2.Client, httpx2.AsyncClient)

TIMEOUT = 600.0
"""Seconds for a whole call: the SDKs allow a silent server as much for each attempt, as long answers take minutes."""


def default_policy(name: str) -> Policy:
    """Return the policy of clients that are given none."""
    return Policy(on=http.transient, name=name, timeout=TIMEOUT)


def check_settings(
    module: str, policy: object, client_class: object, base: type, settings: dict[str, Any], default: Policy
) -> None:
    """Refuse settings that would add a second layer of retries, replace the policy's transport, or have no effect."""
    if not isinstance(policy, Policy):
        # not even a short repr: it may be an API key
        raise TypeError(f"policy must be a Policy, not a {type(policy).__name__}: settings of the SDK are keywords")
    if not (isinstance(client_class, type) and issubclass(client_class, base)):
        raise TypeError(f"client_class must be {base.__name__} or a subclass of it, not {client_class!r}")
    known = (*signature(client_class).parameters, "policy", "client_class", "transport")
    for setting in settings:
        if setting not in known:
            raise TypeError(unknown(f"{client_class.__name__} has no setting", setting, known))
    retries = settings.pop("max_retries", 0)
    if retries != 0 or isinstance(retries, bool):
        more = f"{retries + 1}" if isinstance(retries, int) and 0 < retries < 1000 else "3"
        raise TypeError(
            f"max_retries={retries!r} would retry what the policy has given up on: write"
            f" policy={module}.default_policy.replace(max_attempts={more})"
        )
    if settings.pop("http_client", None) is not None:
        raise TypeError(
            "http_client= would replace the transport that retries: write transport=httpx2.HTTPTransport(...), which"
            " the policy's transport is put around (httpx2.AsyncHTTPTransport for async clients)"
        )
    if policy is default and _is_longer(settings.get("timeout", 0.0), TIMEOUT):
        raise ValueError(
            f"timeout={settings['timeout']!r} would have no effect: the default policy ends the call, all attempts"
            f" together, after {TIMEOUT:g} s; write policy={module}.default_policy.replace(timeout=...)"
        )


def _is_longer(timeout: object, seconds: float) -> bool:
    """Return whether a timeout of the SDK's allows a longer silence; None is no timeout at all."""
    if isinstance(timeout, httpx2.Timeout):
        timeout = timeout.read
    return timeout is None or (isinstance(timeout, (int, float)) and timeout > seconds)


def retrying_client(kind: type[ClientT], policy: Policy, transport: Any) -> ClientT:
    """Return an HTTP client of an SDK with a policy around all of its transports."""
    if transport is not None:
        return kind(transport=_wrapped(policy, transport, kind))
    made: Any = kind()
    # httpx2 has no public way to wrap the transports that it chooses by the proxies of the environment
    made._transport = _wrapped(policy, made._transport, kind)
    made._mounts = {
        pattern: None if mounted is None else _wrapped(policy, mounted, kind)
        for pattern, mounted in made._mounts.items()
    }
    client: ClientT = made
    return client


def _wrapped(policy: Policy, inner: Any, kind: type) -> Any:
    if issubclass(kind, httpx2.Client) and isinstance(inner, httpx2.BaseTransport):
        return Transport(policy, ErrorEventTransport(inner))
    if issubclass(kind, httpx2.AsyncClient) and isinstance(inner, httpx2.AsyncBaseTransport):
        return AsyncTransport(policy, AsyncErrorEventTransport(inner))
    wanted = "BaseTransport" if issubclass(kind, httpx2.Client) else "AsyncBaseTransport"
    raise TypeError(f"transport must be an httpx2.{wanted}, not a {type(inner).__name__}")
