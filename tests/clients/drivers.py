"""One way to send a request by each of three libraries, so that one test speaks for all of them; bad servers."""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import httpx
import httpx2
import requests
import urllib3

import abate
from abate import event_sinks
from abate.clients.aiohttp import middleware
from abate.clients.requests import Adapter
from abate.clients.urllib3 import PoolManager
from abate.clock import MACHINE
from abate.testing import VirtualClock


def policy(**settings: Any) -> abate.Policy:
    """A policy that retries at once, and adds nothing to the client's own rules."""
    defaults: dict[str, Any] = {
        "on": abate.http.transient,
        "name": "shop",
        "backoff": [0.0],
        "budget": abate.Budget.unlimited(),
    }
    return abate.Policy(**{**defaults, **settings})


@dataclass
class Ask:
    """A request, and what the client is built with. Timeouts are for connecting and for reading."""

    url: str
    method: str = "GET"
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    timeout: tuple[float, float] = (10.0, 10.0)
    stream: bool = False
    auth: tuple[str, str] | None = None
    times: int = 1
    built: dict[str, Any] = field(default_factory=dict)


@dataclass
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]
    report: abate.Report | None = None


class Requests:
    errors = requests.RequestException
    refused = requests.ConnectionError
    connect_timeout = requests.ConnectTimeout
    read_timeout = (requests.ReadTimeout, requests.ConnectionError)
    broken = requests.ConnectionError
    in_body = requests.exceptions.ChunkedEncodingError
    too_many = requests.TooManyRedirects
    tls = requests.exceptions.SSLError
    reads_whole = True

    def fetch(self, ask: Ask, policy: abate.Policy) -> Answer:
        with requests.Session() as session:
            session.trust_env = False
            for scheme in ("http://", "https://"):
                session.mount(scheme, Adapter(policy, pool_maxsize=1, pool_block=True, **ask.built))
            for _ in range(ask.times):
                response = session.request(
                    ask.method,
                    ask.url,
                    data=ask.body,
                    headers=ask.headers,
                    timeout=ask.timeout,
                    stream=ask.stream,
                    auth=ask.auth,
                )
                answer = Answer(response.status_code, response.content, dict(response.headers), abate.report(response))
        return answer


class Urllib3:
    errors = urllib3.exceptions.HTTPError
    refused = urllib3.exceptions.NewConnectionError
    connect_timeout = urllib3.exceptions.ConnectTimeoutError
    read_timeout = urllib3.exceptions.ReadTimeoutError
    broken = urllib3.exceptions.ProtocolError
    in_body = urllib3.exceptions.ProtocolError
    too_many = urllib3.exceptions.MaxRetryError
    tls = urllib3.exceptions.SSLError
    reads_whole = True

    def fetch(self, ask: Ask, policy: abate.Policy) -> Answer:
        headers = dict(ask.headers)
        if ask.auth is not None:
            headers.update(urllib3.make_headers(basic_auth=":".join(ask.auth)))
        with PoolManager(policy, maxsize=1, block=True, **ask.built) as manager:
            for _ in range(ask.times):
                response = manager.request(
                    ask.method,
                    ask.url,
                    body=ask.body,
                    headers=headers,
                    timeout=urllib3.Timeout(connect=ask.timeout[0], read=ask.timeout[1]),
                    preload_content=not ask.stream,
                    pool_timeout=10,
                )
                try:
                    answer = Answer(response.status, response.data, dict(response.headers), abate.report(response))
                finally:
                    response.release_conn()
        return answer


class Aiohttp:
    errors = aiohttp.ClientError
    refused = aiohttp.ClientConnectorError
    connect_timeout = aiohttp.ConnectionTimeoutError
    read_timeout = aiohttp.SocketTimeoutError
    broken = aiohttp.ClientError
    in_body = aiohttp.ClientPayloadError
    too_many = aiohttp.TooManyRedirects
    tls = aiohttp.ClientConnectorSSLError
    reads_whole = False

    def fetch(self, ask: Ask, policy: abate.Policy) -> Answer:
        return asyncio.run(self._fetch(ask, policy))

    async def _fetch(self, ask: Ask, policy: abate.Policy) -> Answer:
        async with aiohttp.ClientSession(
            middlewares=(middleware(policy, **ask.built),),
            connector=aiohttp.TCPConnector(limit=1),
            timeout=aiohttp.ClientTimeout(sock_connect=ask.timeout[0], sock_read=ask.timeout[1]),
            headers=None if ask.auth is None else {"Authorization": basic(*ask.auth)},
        ) as session:
            try:
                for _ in range(ask.times):
                    async with session.request(ask.method, ask.url, data=ask.body, headers=ask.headers) as response:
                        body = await response.read()
                        answer = Answer(response.status, body, dict(response.headers), abate.report(response))
            finally:
                await asyncio.sleep(0)
                assert asyncio.all_tasks() == {asyncio.current_task()}
        return answer


class Httpx:
    """httpx or httpx2, in threads. `extensions` are those of the request."""

    reads_whole = False

    def __init__(self, library: Any) -> None:
        self.library = library
        self.name = f"{type(self).__name__.lower()}-{library.__name__}"
        self.errors = library.HTTPError
        self.refused = library.ConnectError
        self.read_timeout = library.ReadTimeout
        self.broken = library.RemoteProtocolError
        self.tls = library.ConnectError

    def settings(self, ask: Ask) -> dict[str, Any]:
        timeout = self.library.Timeout(10.0, connect=ask.timeout[0], read=ask.timeout[1])
        return {"timeout": timeout, "auth": ask.auth, "trust_env": False, "follow_redirects": True}

    def fetch(self, ask: Ask, policy: abate.Policy | None, **request: Any) -> Answer:
        transport = getattr(abate.clients, self.library.__name__).Transport(policy, **ask.built)
        with self.library.Client(transport=transport, **self.settings(ask)) as client:
            for _ in range(ask.times):
                sent = client.build_request(ask.method, ask.url, content=ask.body, headers=ask.headers, **request)
                response = client.send(sent, stream=ask.stream)
                answer = Answer(response.status_code, response.read(), dict(response.headers), abate.report(response))
        return answer


class AsyncHttpx(Httpx):
    """The same with asyncio."""

    def fetch(self, ask: Ask, policy: abate.Policy | None, **request: Any) -> Answer:
        return asyncio.run(self._fetch(ask, policy, request))

    async def _fetch(self, ask: Ask, policy: abate.Policy | None, request: dict[str, Any]) -> Answer:
        transport = getattr(abate.clients, self.library.__name__).AsyncTransport(policy, **ask.built)
        async with self.library.AsyncClient(transport=transport, **self.settings(ask)) as client:
            for _ in range(ask.times):
                sent = client.build_request(ask.method, ask.url, content=ask.body, headers=ask.headers, **request)
                response = await client.send(sent, stream=ask.stream)
                body = await response.aread()
                answer = Answer(response.status_code, body, dict(response.headers), abate.report(response))
        return answer


DRIVERS = (Requests(), Urllib3(), Aiohttp())
HTTPX_DRIVERS = tuple(kind(library) for kind in (Httpx, AsyncHttpx) for library in (httpx, httpx2))
ALL_DRIVERS = (*DRIVERS, *HTTPX_DRIVERS)


def driver_name(driver: Any) -> str:
    """The name of a driver among the parameters of a test."""
    return getattr(driver, "name", type(driver).__name__.lower())


def basic(user: str, password: str) -> str:
    """The header that basic auth sends."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def drip(start: bytes, rest: bytes):
    """Send `start`, and then `rest` one byte at a time, for some seconds."""

    def behave(connection):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(start)
        for byte in rest:
            time.sleep(0.02)
            connection.sendall(bytes([byte]))
        return False

    return behave


@contextmanager
def unreachable():
    """A port that accepts no further connection, and refuses none."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for filler in fillers:
                filler.close()


def unused_url() -> str:
    """A URL at which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


class Stopped(VirtualClock):
    """A clock that stands still until it is advanced; what a server takes is bounded in real time."""

    def within(self, seconds):
        return MACHINE.within(seconds)


@contextmanager
def oversleeping(seconds):
    """Prolong the wait of each retry by `seconds`, as on a busy machine or in a stopped process."""
    with Stopped() as clock:

        def oversleep(event):
            if isinstance(event, abate.events.Retry):
                clock.advance(seconds)

        event_sinks.install(oversleep)
        try:
            yield
        finally:
            event_sinks.remove(oversleep)


class Told:
    """Timeouts that are told what to say, and keep what they are told."""

    def __init__(self, request=10.0, connect=10.0):
        self.seconds = request, connect
        self.observed = []

    def request(self):
        return self.seconds[0]

    def connect(self):
        return self.seconds[1]

    def observe(self, seconds):
        self.observed.append(seconds)
