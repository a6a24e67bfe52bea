"""Retries for httpx: transports for its clients, around a transport that sends.

`httpx_transport` says what they do. With httpx2 alone installed they are for httpx2; `abate.clients.httpx2` has those
for httpx2 in any case.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from abate.clients import httpx_transport
from abate.optional_dependencies import requires_extra

with requires_extra(by="abate.clients.httpx", extra="httpx"):
    if TYPE_CHECKING or find_spec("httpx") is not None or find_spec("httpx2") is None:
        import httpx
    else:
        import httpx2 as httpx

__all__ = ["AsyncTransport", "Transport"]


class Transport(httpx_transport.SyncTransport, httpx.BaseTransport):
    """An httpx transport that retries by a policy, around `transport` (by default a plain ``HTTPTransport``).

    * `policy`, `idempotency_key`, `timeouts`, `secrets`, `ours`, `key`, `mesh_retries`: as for every HTTP client, see
      `abate.clients.http_client.ClientSettings`. A function given as `key` is called with the ``Request``.
    * `transport`: what sends.

    A body that cannot be replayed (a generator) is sent once. `abate.report` returns the `Report` of an error, and that
    of a response that was given up on. A request may say itself whether it may be repeated:
    ``extensions={"abate": {"idempotent": True}}``. A deadline cuts httpx's timeouts, which apply to each read: in
    threads, a server that sends byte after byte is not interrupted.

    >>> import abate, httpx
    >>> answers = iter([503, 200])
    >>> server = httpx.MockTransport(lambda request: httpx.Response(next(answers)))
    >>> policy = abate.Policy(on=abate.http.transient, backoff=[0.0], name="orders")
    >>> with httpx.Client(transport=Transport(policy, server)) as client:
    ...     client.get("http://orders.example/42").status_code
    200
    """

    library = httpx
    _default_transport = httpx.HTTPTransport


class AsyncTransport(httpx_transport.AsyncTransport, httpx.AsyncBaseTransport):
    """The same for ``httpx.AsyncClient``, under asyncio or trio. A deadline cuts an attempt off wherever it stands.

    >>> import abate, asyncio, httpx
    >>> answers = iter([503, 200])
    >>> server = httpx.MockTransport(lambda request: httpx.Response(next(answers)))
    >>> async def load():
    ...     policy = abate.Policy(on=abate.http.transient, backoff=[0.0], name="orders")
    ...     async with httpx.AsyncClient(transport=AsyncTransport(policy, server)) as client:
    ...         return (await client.get("http://orders.example/42")).status_code
    >>> asyncio.run(load())
    200
    """

    library = httpx
    _default_transport = httpx.AsyncHTTPTransport
