"""Every way to send a request through abate's transports for httpx: both libraries, in a thread, asyncio and trio."""

import asyncio

import httpx
import httpx2
import trio

import abate
import abate.clients.httpx
import abate.clients.httpx2
from abate.clients.httpx_transport import RetryingTransport


class Way:
    """One way: `fetch` sends a request through a client of its own, and sees to it that no connection stays taken."""

    def __init__(self, library, loop):
        self.library = library
        self.ours = getattr(abate.clients, library.__name__)
        self.loop = loop

    def __repr__(self):
        return f"{self.library.__name__}-{self.loop}"

    def run(self, function, *args):
        """Run a coroutine function under the loop."""
        return asyncio.run(function(*args)) if self.loop == "asyncio" else trio.run(function, *args)

    def inner(self, **options):
        """A plain transport of the library's."""
        kind = self.library.HTTPTransport if self.loop == "threads" else self.library.AsyncHTTPTransport
        return kind(verify=False, **options)

    def transport(self, policy, inner=None, **options):
        """The transport under test."""
        kind = self.ours.Transport if self.loop == "threads" else self.ours.AsyncTransport
        return kind(policy, self.inner() if inner is None else inner, **options)

    def fetch(self, policy, url, method="GET", *, inner=None, request=None, client=None, streamed=False, **options):
        """The response to one request, read whole; `streamed` says that the program reads it by itself."""
        transport = self.transport(policy, inner, **options)
        request, client = request or {}, {"timeout": 10.0, **(client or {})}
        if self.loop != "threads":
            return self.run(self._afetch, transport, url, method, request, client, streamed)
        with self.library.Client(transport=transport, **client) as opened:
            try:
                if not streamed:
                    return opened.request(method, url, **request)
                with opened.stream(method, url, **request) as response:
                    response.read()
                return response
            finally:
                assert taken(transport) == []

    async def _afetch(self, transport, url, method, request, client, streamed):
        async with self.library.AsyncClient(transport=transport, **client) as opened:
            try:
                if not streamed:
                    return await opened.request(method, url, **request)
                async with opened.stream(method, url, **request) as response:
                    await response.aread()
                return response
            finally:
                assert taken(transport) == []

    def fail(self, policy, url, method="GET", **options):
        """The error of one request, and its report."""
        try:
            response = self.fetch(policy, url, method, **options)
        except Exception as error:
            return error, abate.report(error)
        raise AssertionError(f"got {response!r}")


def taken(transport):
    """The connections that are not free for others."""
    while isinstance(transport, RetryingTransport):
        transport = transport.inner
    pool = getattr(transport, "_pool", None)
    return [] if pool is None else [each for each in pool.connections if not each.is_idle()]


WAYS = [
    Way(httpx, "threads"),
    Way(httpx, "asyncio"),
    Way(httpx, "trio"),
    Way(httpx2, "threads"),
    Way(httpx2, "asyncio"),
]


def policy(**settings):
    """A policy that doesn't wait, unless told."""
    return abate.Policy(**{"on": abate.http.transient, "backoff": [0.0], "name": "orders", **settings})
