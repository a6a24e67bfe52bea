"""Retries for httpx2: transports for its clients, around a transport that sends.

`httpx_transport` says what they do, `abate.clients.httpx.Transport` describes the settings.
"""

from __future__ import annotations

from abate.clients import httpx_transport
from abate.optional_dependencies import requires_extra

with requires_extra(by="abate.clients.httpx2", extra="httpx2"):
    import httpx2

__all__ = ["AsyncTransport", "Transport"]


class Transport(httpx_transport.SyncTransport, httpx2.BaseTransport):
    """An httpx2 transport that retries by a policy, around `transport` (by default a plain ``HTTPTransport``).

    >>> import abate, httpx2
    >>> answers = iter([503, 200])
    >>> server = httpx2.MockTransport(lambda request: httpx2.Response(next(answers)))
    >>> policy = abate.Policy(on=abate.http.transient, backoff=[0.0], name="orders")
    >>> with httpx2.Client(transport=Transport(policy, server)) as client:
    ...     client.get("http://orders.example/42").status_code
    200
    """

    library = httpx2
    _default_transport = httpx2.HTTPTransport


class AsyncTransport(httpx_transport.AsyncTransport, httpx2.AsyncBaseTransport):
    """The same for ``httpx2.AsyncClient``. A deadline cuts an attempt off wherever it stands.

    >>> import abate, asyncio, httpx2
    >>> answers = iter([503, 200])
    >>> server = httpx2.MockTransport(lambda request: httpx2.Response(next(answers)))
    >>> async def load():
    ...     policy = abate.Policy(on=abate.http.transient, backoff=[0.0], name="orders")
    ...     async with httpx2.AsyncClient(transport=AsyncTransport(policy, server)) as client:
    ...         return (await client.get("http://orders.example/42")).status_code
    >>> asyncio.run(load())
    200
    """

    library = httpx2
    _default_transport = httpx2.AsyncHTTPTransport
