"""After the deadline nothing is sent: every HTTP client, on open connections, to a server that counts."""

import asyncio

import aiohttp
import httpx
import httpx2
import pytest
import requests
import trio
import urllib3

import abate
from abate.clients.aiohttp import middleware
from abate.clients.httpx import AsyncTransport, Transport
from abate.clients.requests import Adapter
from abate.clients.urllib3 import PoolManager
from tests.clients.drivers import oversleeping, policy
from tests.clients.server import Server, respond


def by_httpx(library, transport, send):
    with library.Client(transport=transport) as client:
        send(lambda method, url: client.request(method, url).read())


def by_requests(client, send):
    with requests.Session() as session:
        session.mount("http://", client)
        send(lambda method, url: session.request(method, url, data=b"100 EUR"))


def by_urllib3(client, send):
    with client as manager:
        send(lambda method, url: manager.request(method, url, body=b"100 EUR"))


async def by_async_httpx(library, transport, send):
    async with library.AsyncClient(transport=transport) as client:

        async def request(method, url):
            await (await client.request(method, url)).aread()

        await send(request)


async def by_aiohttp(wrapped, send):
    async with aiohttp.ClientSession(middlewares=(wrapped,)) as session:

        async def request(method, url):
            async with session.request(method, url, data=b"100 EUR") as response:
                await response.read()

        await send(request)


CLIENTS = {
    "httpx": (httpx.ConnectTimeout, None, lambda policy, send: by_httpx(httpx, Transport(policy), send)),
    "httpx2": (
        httpx2.ConnectTimeout,
        None,
        lambda policy, send: by_httpx(httpx2, abate.clients.httpx2.Transport(policy), send),
    ),
    "requests": (requests.ConnectTimeout, None, lambda policy, send: by_requests(Adapter(policy), send)),
    "urllib3": (
        urllib3.exceptions.ConnectTimeoutError,
        None,
        lambda policy, send: by_urllib3(PoolManager(policy), send),
    ),
    "httpx-asyncio": (
        httpx.ConnectTimeout,
        asyncio.run,
        lambda policy, send: by_async_httpx(httpx, AsyncTransport(policy), send),
    ),
    "httpx-trio": (
        httpx.ConnectTimeout,
        lambda coroutine: trio.run(lambda: coroutine),
        lambda policy, send: by_async_httpx(httpx, AsyncTransport(policy), send),
    ),
    "httpx2-asyncio": (
        httpx2.ConnectTimeout,
        asyncio.run,
        lambda policy, send: by_async_httpx(httpx2, abate.clients.httpx2.AsyncTransport(policy), send),
    ),
    "aiohttp": (
        aiohttp.ConnectionTimeoutError,
        asyncio.run,
        lambda policy, send: by_aiohttp(middleware(policy), send),
    ),
}
every_client = pytest.mark.parametrize(("late", "run", "client"), CLIENTS.values(), ids=CLIENTS)


def ended(run, client, own, late, method, url, seconds):
    """Open a connection, then send a request within a deadline: the error that it ends with."""
    caught = []

    def send(request):
        request("GET", url)
        with abate.deadline(seconds), pytest.raises(late) as raised:
            request(method, url)
        caught.append(raised.value)

    async def asend(request):
        await request("GET", url)
        with abate.deadline(seconds), pytest.raises(late) as raised:
            await request(method, url)
        caught.append(raised.value)

    if run is None:
        client(own, send)
    else:
        run(client(own, asend))
    return caught[0]


@every_client
@pytest.mark.parametrize("settings", [{}, {"timeout": 30.0}, {"attempt_timeout": 30.0}], ids=str)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_that_begins_after_its_deadline_is_not_sent(late, run, client, settings, method):
    """It ends with the library's own error for a connection that took too long, which carries a report."""
    with Server() as server:
        error = ended(run, client, policy(**settings), late, method, server.url, 0.0)
    assert "nothing was sent: the deadline had passed" in str(error)
    assert abate.report(error) == abate.Report("shop", 1, 0.0, "deadline")
    assert len(server.requests) == 1  # the one that opened the connection


@every_client
@pytest.mark.parametrize("settings", [{}, {"timeout": 30.0}], ids=str)
def test_a_retry_that_has_waited_past_its_deadline_is_not_sent(late, run, client, settings):
    """Whatever held it up: the process was stopped, or the machine was busy."""
    with Server(respond(200), respond(503, body=b"busy")) as server, oversleeping(20.0):
        error = ended(run, client, policy(**settings), late, "GET", server.url, 10.0)
    assert (abate.report(error).attempts, abate.report(error).reason) == (2, "deadline")
    assert len(server.requests) == 2


class Noting(abate.Gate):
    """A gate that admits everything, and notes what it is told of the server."""

    name = "noting"

    def __init__(self):
        self.told = []

    def enter(self, retry):
        return None

    def leave(self, accepted):
        self.told.append(accepted)


@every_client
def test_a_request_that_was_not_sent_is_no_verdict_on_the_server(late, run, client):
    """A gate is told nothing of it that it could count against the server."""
    gate = Noting()
    with Server() as server:
        ended(run, client, policy(gate=gate), late, "POST", server.url, 0.0)
    assert gate.told == [True, None]
