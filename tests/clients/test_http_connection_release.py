"""A response that is not the final one is let go before every wait: its connection serves others, in every client."""

import asyncio
import gc
import time
from contextlib import asynccontextmanager
from itertools import cycle

import aiohttp
import httpx
import httpx2
import pytest
import requests
import urllib3

import abate
from abate.call import counters
from abate.clients.aiohttp import middleware
from abate.clients.http_client import DRAIN_SECONDS, drain_timeout
from abate.clients.requests import Adapter
from abate.clients.urllib3 import PoolManager
from abate.errors import AttemptTimeout
from tests.clients.drivers import policy
from tests.clients.httpx_ways import WAYS
from tests.clients.server import Server, close_in_body, open_sockets, respond

SHORT, LONG = b"busy", bytes(100_000)
CHUNK = b"ffff\r\n" + bytes(0xFFFF) + b"\r\n"


def in_chunks(connection):
    """A long body of unknown length."""
    connection.sendall(b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK * 20 + b"0\r\n\r\n")
    return True


def stall(connection):
    """A body that begins and never ends."""
    connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\nx")
    connection.recv(1)
    return False


def late_stall(connection):
    """The same, but the call has little time left when it comes."""
    time.sleep(0.1)
    return stall(connection)


BODIES = {"short": respond(503, body=SHORT), "long": respond(503, body=LONG), "chunked": in_chunks, "stalled": stall}


class Looking:
    """A clock that does not wait: it looks at something instead."""

    def __init__(self, look):
        self.look, self.time, self.looks = look, 1000.0, 0

    def now(self):
        return self.time

    wall = now

    def _passed(self, seconds):
        self.time += seconds
        self.looks += 1

    def sleep(self, seconds):
        self.look()
        self._passed(seconds)

    async def asleep(self, seconds):
        if seconds:
            await self.look()
            self._passed(seconds)

    @asynccontextmanager
    async def within(self, seconds):
        await self.asleep(seconds)
        raise AttemptTimeout(seconds)
        yield


class Httpx:
    """httpx and httpx2, with one connection at most."""

    whole = False

    def __init__(self, way):
        self.way = way
        self.library = way.library
        self.asynchronous = way.loop != "threads"
        self.broken = (way.library.ReadError,)

    def __repr__(self):
        return repr(self.way)

    def inner(self):
        return self.way.inner(limits=self.library.Limits(max_connections=1))

    def fetch(self, settings, url, other=None):
        """Status and body of one request; `settings` makes a policy from a look at the pool."""
        inner = self.inner()
        plain = {"transport": inner, "timeout": self.library.Timeout(60.0, pool=5.0)}
        if self.asynchronous:
            return self.way.run(self._afetch, settings, url, other, plain)
        looker = self.library.Client(**plain)
        transport = self.way.transport(settings(lambda: looker.get(other).raise_for_status()), inner)
        with self.library.Client(**{**plain, "transport": transport}) as client, client.stream("GET", url) as response:
            return response.status_code, response.read()

    async def _afetch(self, settings, url, other, plain):
        looker = self.library.AsyncClient(**plain)

        async def look():
            (await looker.get(other)).raise_for_status()

        transport = self.way.transport(settings(look), plain["transport"])
        async with (
            self.library.AsyncClient(**{**plain, "transport": transport}) as client,
            client.stream("GET", url) as response,
        ):
            return response.status_code, await response.aread()


class Requests:
    broken = (requests.exceptions.ChunkedEncodingError,)
    asynchronous = False

    def __init__(self, whole):
        self.whole = whole

    def __repr__(self):
        return "requests" if self.whole else "requests, streamed"

    def fetch(self, settings, url, other=None):
        def look():
            (pool,) = adapter.poolmanager.pools._container.values()  # its key has settings of TLS in it
            assert pool.urlopen("GET", "/other", pool_timeout=5).status == 200

        adapter = Adapter(settings(look), pool_maxsize=1, pool_block=True)
        with requests.Session() as session:
            session.mount("http://", adapter)
            with session.get(url, stream=not self.whole, timeout=60) as response:
                return response.status_code, response.content


class Urllib3:
    broken = (urllib3.exceptions.ProtocolError,)
    asynchronous = False

    def __init__(self, whole):
        self.whole = whole

    def __repr__(self):
        return "urllib3" if self.whole else "urllib3, streamed"

    def fetch(self, settings, url, other=None):
        def look():
            pool = manager.connection_from_url(url)
            assert pool.urlopen("GET", "/other", redirect=True, pool_timeout=5).status == 200

        with PoolManager(settings(look), maxsize=1, block=True) as manager:
            response = manager.request("GET", url, preload_content=self.whole, timeout=60, pool_timeout=5)
            try:
                return response.status, response.data if self.whole else b"".join(response.stream())
            finally:
                response.close()
                response.release_conn()


class Aiohttp:
    broken = (aiohttp.ClientConnectionError,)
    asynchronous, whole = True, False

    def __repr__(self):
        return "aiohttp"

    def fetch(self, settings, url, other=None):
        return asyncio.run(self._fetch(settings, url, other))

    async def _fetch(self, settings, url, other):
        async def look():
            async with asyncio.timeout(5), looker.get(other) as response:
                assert response.status == 200

        async with (
            aiohttp.TCPConnector(limit=1) as connector,
            aiohttp.ClientSession(connector=connector, connector_owner=False) as looker,
            aiohttp.ClientSession(
                connector=connector, connector_owner=False, middlewares=(middleware(settings(look)),)
            ) as session,
            session.get(url) as response,
        ):
            return response.status, await response.read()


CLIENTS = [*map(Httpx, WAYS), Requests(False), Requests(True), Urllib3(False), Urllib3(True), Aiohttp()]
every_client = pytest.mark.parametrize("client", CLIENTS, ids=repr)


def waits(what):
    """A policy's settings for a wait of this kind, made from a look at the pool; and where the clock is found."""
    clocks = []

    def made(look):
        clock = Looking(look)
        clocks.append(clock)
        settings = {"backoff": [1.0], "clock": clock}
        if what == "hint":
            settings["max_hint"] = 100.0
        elif what == "gate":
            settings["gate"] = abate.ConcurrencyLimit(5)
        elif what == "shelter":
            settings["shelter"] = abate.Shelter(clock=clock, patience=60.0)
        return policy(**settings)

    return made, clocks


WAITS = [
    *[("backoff", body) for body in ("short", "long", "chunked")],
    *[(what, body) for what in ("hint", "gate") for body in ("short", "long")],
    *[("shelter", body) for body in ("short", "long", "stalled")],
]


@pytest.mark.parametrize(
    ("client", "what", "body"),
    # one that reads bodies whole does so as a part of the attempt
    [(client, *wait) for client in CLIENTS for wait in WAITS if not (client.whole and wait[1] == "stalled")],
    ids=repr,
)
def test_a_call_that_waits_holds_no_connection(client, what, body):
    """Whatever it waits for, and however long the body is: another request gets the only connection meanwhile."""
    busy = (
        respond(503, ("Retry-After", "5"), body=SHORT if body == "short" else LONG) if what == "hint" else BODIES[body]
    )
    settings, clocks = waits(what)
    with Server(busy) as server:
        assert client.fetch(settings, server.url + "/mine", server.url + "/other") == (200, b"ok")
    assert [request.path for request in server.requests] == ["/mine", "/other", "/mine"]
    assert clocks[0].looks == 1


@every_client
def test_a_call_that_is_counted_holds_no_connection_either(client):
    """While a sink counts calls, they are made by another way."""
    settings, clocks = waits("backoff")
    counters.wrapper_versions.start_counting()
    try:
        with Server(BODIES["short"]) as server:
            assert client.fetch(settings, server.url + "/mine", server.url + "/other") == (200, b"ok")
    finally:
        counters.wrapper_versions.stop_counting()
    assert clocks[0].looks == 1


@every_client
def test_a_short_response_keeps_its_connection(client):
    """It is read to its end, and the next attempt needs no new connection."""
    settings, _ = waits("backoff")
    with Server(respond(503, body=SHORT)) as server:
        client.fetch(settings, server.url + "/mine", server.url + "/other")
    assert server.connections == 1


class Once(abate.Gate):
    """Admits first attempts only."""

    name = "once"

    def enter(self, retry):
        return self if retry else None


@every_client
@pytest.mark.parametrize("how", [(), ("Content-Encoding", "gzip")], ids=["plain", "gzip"])
def test_a_short_response_that_is_the_last_one_after_all_is_whole(client, how):
    """Its next attempt was refused after the wait: the caller gets it as if nothing had read it."""
    import gzip

    body = gzip.compress(SHORT) if how else SHORT
    with Server(respond(503, *([how] if how else []), body=body)) as server:
        found = client.fetch(lambda _: policy(backoff=[0.01], gate=Once()), server.url)
    assert found == (503, SHORT)
    assert len(server.requests) == 1


@every_client
@pytest.mark.parametrize("body", ["long", "chunked"])
def test_a_long_response_that_is_the_last_one_after_all_is_never_half_a_one(client, body):
    """Its connection was given up before the wait: to read it is an error of the library's, not an empty body."""
    with Server(BODIES[body]) as server:
        settings = lambda _: policy(backoff=[0.01], gate=Once())  # noqa: E731
        if client.whole:
            assert len(client.fetch(settings, server.url)[1]) >= len(LONG)
        else:
            with pytest.raises(client.broken):
                client.fetch(settings, server.url)
    assert len(server.requests) == 1


@every_client
def test_a_body_that_stalls_does_not_carry_a_call_past_its_deadline(client):
    """The time for reading it is bounded by what the call has left."""
    began = time.monotonic()
    with Server(late_stall, late_stall) as server:
        try:
            status, _ = client.fetch(lambda _: policy(backoff=[0.02], timeout=0.2), server.url)
            assert status == 503
        except Exception as error:
            assert abate.report(error).reason in ("deadline", "attempts")
    assert time.monotonic() - began < 10.0


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
@pytest.mark.parametrize(("timeout", "most"), [(None, DRAIN_SECONDS), (0.1, 0.1)])
def test_httpx_reads_what_it_lets_go_with_a_timeout_that_fits(library, timeout, most):
    """A thread that reads cannot be interrupted: the timeout of each read is half of the time, for that time only."""
    seen = []

    class Body(library.SyncByteStream):
        def __init__(self, request):
            self.extensions = request.extensions

        def __iter__(self):
            seen.append(self.extensions.get("timeout"))
            yield b"busy"

    def answer(request):
        given.append((request.extensions, request.extensions.get("timeout")))
        return library.Response(503 if len(given) == 1 else 200, stream=Body(request))

    for extensions in ({}, {"timeout": {"read": 60.0, "connect": 7.0}}):
        given: list = []
        seen.clear()
        settings = policy(timeout=timeout, clock=Looking(lambda: None), backoff=[0.01])
        request = library.Request("GET", "http://a.example/", extensions=extensions)
        getattr(abate.clients, library.__name__).Transport(settings, library.MockTransport(answer)).handle_request(
            request
        )
        assert 0.0 < seen[0]["read"] <= most / 2 + 1e-9  # differences are rounded
        assert seen[0].get("connect") == (given[0][1] or {}).get("connect")
        for used, before in given:
            assert used.get("timeout") == before


def test_what_is_let_go_is_read_for_a_short_time_and_never_past_the_deadline():
    """A quarter of a second, or what is left."""
    assert [drain_timeout(left) for left in (None, 9.0, 0.1, 0.0, -1.0)] == [
        DRAIN_SECONDS,
        DRAIN_SECONDS,
        0.1,
        0.0,
        0.0,
    ]


@every_client
def test_a_hundred_discarded_responses_leave_nothing_behind(client):
    """No socket, no place in the pool: short ones, long ones, and such that break while they are read."""

    class Bad(Server):
        kinds = cycle([BODIES["short"], BODIES["long"], close_503, in_chunks])

        def pick(self, request):
            return respond(200, body=b"ok") if request.headers["abate-attempt"] == "100" else next(self.kinds)

    gc.collect()
    before = open_sockets()
    with Bad() as server:
        assert client.fetch(lambda _: policy(max_attempts=100), server.url) == (200, b"ok")
        assert len(server.requests) == 100
    due = time.monotonic() + 10.0
    while open_sockets() > before and time.monotonic() < due:
        gc.collect()  # the client's pool, with the connection of the last response, may be part of a cycle
        time.sleep(0.01)
    assert open_sockets() <= before


def close_503(connection):
    """Promise a body, and close in it."""

    class Said:
        def sendall(self, data):
            connection.sendall(data.replace(b"200 OK", b"503 Busy"))

    return close_in_body(Said())
