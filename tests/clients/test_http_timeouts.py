"""Timeouts that learn are told how long connects and requests took, and what they cut off, by every HTTP client."""

import asyncio
import socket
from contextlib import contextmanager, suppress

import aiohttp
import httpx
import httpx2
import pytest
import requests
import urllib3.exceptions

import abate
import abate.clients.aiohttp
import abate.clients.httpx
import abate.clients.requests
import abate.clients.urllib3
from abate.clients.stopwatch import Stopwatch
from abate.decide.outcome import OVERLOAD
from abate.testing import VirtualClock
from tests.clients.drivers import unreachable, unused_url
from tests.clients.server import Server, close, respond


class Learning:
    """Timeouts that note what they are told."""

    def __init__(self, request=60.0, connect=60.0):
        self.seconds = request, connect
        self.good = []
        self.connects = []
        self.cut_off = []
        self.connects_cut_off = []

    def request(self):
        return self.seconds[0]

    def connect(self):
        return self.seconds[1]

    def observe(self, seconds):
        self.good.append(seconds)

    def observe_connect(self, seconds):
        self.connects.append(seconds)

    def timed_out(self, seconds):
        self.cut_off.append(seconds)

    def connect_timed_out(self, seconds):
        self.connects_cut_off.append(seconds)

    def told(self):
        """How often it was told of what."""
        return {
            name: len(noted)
            for name in ("good", "connects", "cut_off", "connects_cut_off")
            if (noted := getattr(self, name))
        }


class Fixed:
    """Timeouts that want to know no more than they must."""

    def __init__(self, request=60.0, connect=60.0):
        self.seconds = request, connect

    def request(self):
        return self.seconds[0]

    def connect(self):
        return self.seconds[1]

    def observe(self, seconds):
        pass


POLICY = abate.Policy(on=abate.http.transient, max_attempts=1)


def by_httpx(url, timeouts, times=1, library=httpx, **options):
    inner = library.HTTPTransport(verify=False)
    with library.Client(
        transport=getattr(abate.clients, library.__name__).Transport(POLICY, inner, timeouts=timeouts)
    ) as client:
        return [client.get(url, timeout=60.0, **options).status_code for _ in range(times)]


def by_async_httpx(url, timeouts, times=1, library=httpx, **options):
    async def load():
        inner = library.AsyncHTTPTransport(verify=False)
        transport = getattr(abate.clients, library.__name__).AsyncTransport(POLICY, inner, timeouts=timeouts)
        async with library.AsyncClient(transport=transport) as client:
            return [(await client.get(url, timeout=60.0, **options)).status_code for _ in range(times)]

    return asyncio.run(load())


def by_httpx2(url, timeouts, times=1, **options):
    return by_httpx(url, timeouts, times, httpx2, **options)


def by_async_httpx2(url, timeouts, times=1, **options):
    return by_async_httpx(url, timeouts, times, httpx2, **options)


def by_requests(url, timeouts, times=1):
    with requests.Session() as session:
        session.mount(url, abate.clients.requests.Adapter(POLICY, timeouts=timeouts))
        return [session.get(url, timeout=60.0, verify=False).status_code for _ in range(times)]


def by_urllib3(url, timeouts, times=1):
    with abate.clients.urllib3.PoolManager(POLICY, timeouts=timeouts, cert_reqs="CERT_NONE") as pool:
        return [pool.request("GET", url, timeout=60.0).status for _ in range(times)]


def by_aiohttp(url, timeouts, times=1):
    async def load():
        middleware = abate.clients.aiohttp.middleware(POLICY, timeouts=timeouts)
        statuses = []
        async with aiohttp.ClientSession(middlewares=(middleware,)) as session:
            for _ in range(times):
                async with session.get(url, ssl=False) as response:
                    await response.read()
                    statuses.append(response.status)
        return statuses

    return asyncio.run(load())


BY_HTTPX = [by_httpx, by_async_httpx, by_httpx2, by_async_httpx2]
CLIENTS = [*BY_HTTPX, by_requests, by_urllib3, by_aiohttp]
CUT_OFF = (
    httpx.TimeoutException,
    httpx2.TimeoutException,
    requests.Timeout,
    requests.ConnectionError,
    urllib3.exceptions.TimeoutError,
    TimeoutError,
)
UNREACHED = (
    httpx.ConnectError,
    httpx2.ConnectError,
    requests.ConnectionError,
    urllib3.exceptions.NewConnectionError,
    aiohttp.ClientConnectorError,
)
BROKEN = (
    httpx.RemoteProtocolError,
    httpx2.RemoteProtocolError,
    requests.ConnectionError,
    urllib3.exceptions.ProtocolError,
    aiohttp.ServerDisconnectedError,
)

every_client = pytest.mark.parametrize("load", CLIENTS, ids=lambda load: load.__name__)


@contextmanager
def without_tls():
    """A port that accepts connections, and never shakes hands."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"


# -- requests


@every_client
def test_an_attempt_that_was_cut_off_is_told_of_as_such(load):
    """A request that never comes back within the learned timeout counts as slow, not as nothing."""
    timeouts = Learning(request=0.1)
    with Server() as server:
        server.script.append(server.hang)
        with pytest.raises(CUT_OFF):
            load(server.url, timeouts)
    assert timeouts.told() == {"connects": 1, "cut_off": 1}


@every_client
def test_only_good_responses_are_observed(load):
    """A quick 400 or 500 says nothing about how long good answers take; the connection for it does about connects."""
    timeouts = Learning()
    with Server(respond(500), respond(400), respond(200)) as server:
        assert load(server.url, timeouts) == [500]
        assert load(server.url, timeouts) == [400]
        assert timeouts.told() == {"connects": 2}
        assert load(server.url, timeouts) == [200]
    assert timeouts.told() == {"connects": 3, "good": 1}


@pytest.mark.parametrize(("status", "good"), [(200, 1), (304, 1), (399, 1), (400, 0), (404, 0), (429, 0), (503, 0)])
def test_what_is_no_error_is_a_good_response(status, good):
    """Errors of the client's begin with 400, and none of them teaches anything: they are often answered unread."""
    timeouts = Learning()
    with Stopwatch(timeouts, lambda error: None) as watch:
        watch.response_received(status)
    assert len(timeouts.good) == good


@every_client
def test_timeouts_that_only_observe_will_do(load):
    """Being told of connects and of cut-offs is for those who want it."""
    with Server() as server:
        assert load(server.url, Fixed(), times=2) == [200, 200]
        server.script.append(server.hang)
        with pytest.raises(CUT_OFF):
            load(server.url, Fixed(request=0.1))
    with unreachable() as url, pytest.raises(CUT_OFF):
        load(url, Fixed(connect=0.05))


# -- connects


@every_client
def test_a_new_connection_is_observed_once(load):
    """Two requests on one connection are one connect; closed by the server, it is another."""
    timeouts = Learning()
    with Server() as server:
        assert load(server.url, timeouts, times=2) == [200, 200]
    assert server.connections == 1
    assert timeouts.told() == {"connects": 1, "good": 2}
    assert 0.0 < timeouts.connects[0] < 60.0

    timeouts = Learning()
    with Server(*[respond(200, ("Connection", "close"))] * 3) as server:
        assert load(server.url, timeouts, times=3) == [200, 200, 200]
    assert server.connections == 3
    assert timeouts.told() == {"connects": 3, "good": 3}


@every_client
def test_a_connection_that_broke_was_opened_all_the_same(load):
    """What comes of the request doesn't change how long the connect took."""
    timeouts = Learning()
    with Server(close) as server, pytest.raises(BROKEN):
        load(server.url, timeouts)
    assert timeouts.told() == {"connects": 1}


@every_client
def test_a_connect_that_failed_is_not_observed(load):
    """A refusal comes quickly, and says nothing about connects."""
    timeouts = Learning()
    with pytest.raises(UNREACHED):
        load(unused_url(), timeouts)
    assert timeouts.told() == {}


@every_client
def test_a_connect_that_was_cut_off_is_told_of_as_such(load):
    """It counts as slow; and it is the timeout for connects that cut it off, not the one for requests."""
    timeouts = Learning(request=0.01, connect=0.3)
    with unreachable() as url, pytest.raises(CUT_OFF):
        load(url, timeouts)
    assert timeouts.told() == {"connects_cut_off": 1}
    assert timeouts.connects_cut_off[0] > 0.25


@every_client
def test_a_tls_handshake_is_part_of_the_connect(load):
    """The connect timeout bounds it, so what that cuts off is told of as a connect, even if the library says read."""
    timeouts = Learning(connect=0.1)
    with without_tls() as url, pytest.raises(CUT_OFF):
        load(url, timeouts)
    assert timeouts.told() == {"connects_cut_off": 1}


@every_client
def test_the_connect_timeout_is_learned(load):
    """A handful of connections, and it is far from the ceiling."""
    timeouts = abate.Timeouts(false_rate=0.5, ceiling=10.0)
    with Server(*[respond(200, ("Connection", "close"))] * 5) as server:
        assert timeouts.connect() == 10.0
        load(server.url, timeouts, times=5)
    assert timeouts.connect() < 5.0


def test_waiting_for_a_free_connection_is_no_connect():
    """aiohttp calls both by one name; a timeout that was learned from connects must not cut off the wait."""
    timeouts = Learning()

    async def main(server):
        middleware = abate.clients.aiohttp.middleware(POLICY, timeouts=timeouts)
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(middlewares=(middleware,), connector=connector) as session:
            holder = await session.get(server.url)
            timeouts.seconds = 60.0, 0.001
            waiting = asyncio.create_task(session.get(server.url))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await holder.read()
            assert await (await waiting).read() == b"ok"

            holder = await session.get(server.url)
            timeouts.seconds = 0.05, 60.0  # it is the one for requests that does
            with pytest.raises(aiohttp.ConnectionTimeoutError):
                await session.get(server.url)
            holder.close()

    with Server(*[respond(200, body=bytes(1_000_000)), respond(200, body=b"ok")] * 2) as server:
        asyncio.run(main(server))
    assert timeouts.told() == {"connects": 1, "good": 3, "cut_off": 1}


def test_requests_of_other_middlewares_are_not_this_one_s():
    """A connection that another middleware opens for itself is none that this request needed."""
    timeouts = Learning()

    async def main(url, other):
        async def asks_elsewhere(request, handler):
            async with request.session.get(other, middlewares=()) as response:
                await response.read()
            return await handler(request)

        middlewares = (abate.clients.aiohttp.middleware(POLICY, timeouts=timeouts), asks_elsewhere)
        async with aiohttp.ClientSession(middlewares=middlewares) as session, session.get(url) as response:
            await response.read()

    with Server() as server, Server() as other:
        asyncio.run(main(server.url, other.url))
    assert (server.connections, other.connections) == (1, 1)
    assert timeouts.told() == {"connects": 1, "good": 1}


@pytest.mark.parametrize("load", BY_HTTPX, ids=lambda load: load.__name__)
def test_a_trace_of_the_user_s_own_is_still_called(load):
    """httpx has one trace function for each request; both are served."""
    seen, timeouts = [], Learning()

    def note(event, info):
        seen.append(event)

    async def anote(event, info):
        seen.append(event)

    with Server() as server:
        load(server.url, timeouts, extensions={"trace": anote if "async" in load.__name__ else note})
    assert seen[:2] == ["connection.connect_tcp.started", "connection.connect_tcp.complete"]
    assert "http11.receive_response_body.complete" in seen
    assert timeouts.told() == {"connects": 1, "good": 1}


# -- what is measured


def test_a_connect_is_not_part_of_the_request():
    """The steps of a connect add up, and what the attempt took besides is the request's."""
    timeouts = Learning()
    with VirtualClock() as clock, Stopwatch(timeouts, lambda error: None) as watch:
        clock.advance(0.5)
        for seconds in (1.0, 2.0):
            watch.connect_started()
            clock.advance(seconds)
            watch.connect_done()
        clock.advance(4.0)
        watch.response_received(200)
    assert (timeouts.connects, timeouts.good) == ([3.0], [4.5])


@pytest.mark.parametrize(
    ("finished", "told"), [(True, {"connects": 1, "cut_off": 1}), (False, {"connects_cut_off": 1})]
)
def test_what_was_under_way_is_what_was_cut_off(finished, told):
    """The connect with all its steps, or the request."""
    timeouts = Learning()
    with VirtualClock() as clock, suppress(TimeoutError), Stopwatch(timeouts, lambda error: OVERLOAD) as watch:
        for last in (False, True):
            watch.connect_started()
            clock.advance(1.0)
            if finished or not last:
                watch.connect_done()
        clock.advance(4.0)
        raise TimeoutError
    assert timeouts.told() == told
    assert timeouts.cut_off == ([4.0] if finished else [])
    assert timeouts.connects_cut_off == ([] if finished else [6.0])
