"""Timeouts that learn are told of the attempts that they cut off, by every HTTP client."""

import asyncio

import aiohttp
import httpx
import pytest
import requests
import urllib3.exceptions
from tests.clients.server import Server, respond

import abate
import abate.clients.aiohttp
import abate.clients.httpx
import abate.clients.requests
import abate.clients.urllib3


class Learning:
    """Timeouts that note what they are told."""

    def __init__(self):
        self.good = []
        self.cut_off = []

    def request(self):
        return 0.1

    def connect(self):
        return 10.0

    def observe(self, seconds):
        self.good.append(seconds)

    def timed_out(self, seconds):
        self.cut_off.append(seconds)


POLICY = abate.Policy(on=abate.http.transient, attempts=1)


def by_httpx(url, timeouts):
    with httpx.Client(transport=abate.clients.httpx.Transport(POLICY, timeouts=timeouts)) as client:
        return client.get(url, timeout=60.0).status_code


def by_async_httpx(url, timeouts):
    async def load():
        transport = abate.clients.httpx.AsyncTransport(POLICY, timeouts=timeouts)
        async with httpx.AsyncClient(transport=transport) as client:
            return (await client.get(url, timeout=60.0)).status_code

    return asyncio.run(load())


def by_requests(url, timeouts):
    with requests.Session() as session:
        session.mount("http://", abate.clients.requests.Adapter(POLICY, timeouts=timeouts))
        return session.get(url, timeout=60.0).status_code


def by_urllib3(url, timeouts):
    with abate.clients.urllib3.PoolManager(POLICY, timeouts=timeouts) as pool:
        return pool.request("GET", url, timeout=60.0).status


def by_aiohttp(url, timeouts):
    async def load():
        middleware = abate.clients.aiohttp.middleware(POLICY, timeouts=timeouts)
        async with aiohttp.ClientSession(middlewares=(middleware,)) as session, session.get(url) as response:
            return response.status

    return asyncio.run(load())


CLIENTS = [by_httpx, by_async_httpx, by_requests, by_urllib3, by_aiohttp]
CUT_OFF = (
    httpx.TimeoutException,
    requests.Timeout,
    requests.ConnectionError,
    urllib3.exceptions.TimeoutError,
    TimeoutError,
)


@pytest.mark.parametrize("load", CLIENTS, ids=lambda load: load.__name__)
def test_an_attempt_that_was_cut_off_is_told_of_as_such(load):
    """A request that never comes back within the learned timeout counts as slow, not as nothing."""
    timeouts = Learning()
    with Server() as server:
        server.script.append(server.hang)
        with pytest.raises(CUT_OFF):
            load(server.url, timeouts)
    assert len(timeouts.cut_off) == 1
    assert timeouts.good == []


@pytest.mark.parametrize("load", CLIENTS, ids=lambda load: load.__name__)
def test_only_good_responses_are_observed(load):
    """A quick 500 says nothing about how long good answers take."""
    timeouts = Learning()
    timeouts.request = lambda: 60.0
    with Server(respond(500), respond(200)) as server:
        assert load(server.url, timeouts) == 500
        assert load(server.url, timeouts) == 200
    assert len(timeouts.good) == 1
    assert timeouts.cut_off == []


@pytest.mark.parametrize("load", CLIENTS, ids=lambda load: load.__name__)
def test_timeouts_that_only_observe_will_do(load):
    """Being told of cut-offs is for those who want it."""

    class Fixed:
        def request(self):
            return 0.1

        def connect(self):
            return 10.0

        def observe(self, seconds):
            pass

    with Server() as server:
        server.script.append(server.hang)
        with pytest.raises(CUT_OFF):
            load(server.url, Fixed())
