"""httpx: connections and bodies, one request and many at once."""

import asyncio
import random
import time
from collections import Counter

import anyio
import httpx
import httpx2
import pytest
import trio

import abate
from abate.clients.httpx import AsyncTransport
from abate.testing import Recorder, VirtualClock
from tests.clients.httpx_ways import WAYS, policy, taken
from tests.clients.server import Server, close_in_body, reset, reset_in_body, respond

every_way = pytest.mark.parametrize("way", WAYS, ids=repr)
threads = pytest.mark.parametrize("way", [way for way in WAYS if way.loop == "threads"], ids=repr)
tasks = pytest.mark.parametrize("way", [way for way in WAYS if way.loop != "threads"], ids=repr)

BUSY = respond(503, body=b"busy")
LONG = respond(503, body=bytes(100_000))
GUARD = 30.0
"""Seconds; nothing here takes as long, it only keeps a broken test from hanging."""


class Observer:
    """A clock that doesn't wait, and looks at something instead."""

    def __init__(self, look):
        self.look = look
        self.seen = []

    def now(self):
        return 0.0

    def sleep(self, seconds):
        self.seen.append(self.look())

    async def asleep(self, seconds):
        self.sleep(seconds)


# -- connections


@every_way
def test_a_discarded_response_gives_its_connection_back_before_the_wait(way):
    """No other call waits for it meanwhile, and the next attempt finds it again."""
    inner = way.inner()
    clock = Observer(lambda: (len(inner._pool.connections), taken(inner)))
    with Server(BUSY, BUSY) as server:
        assert way.fetch(policy(backoff=[1.0], clock=clock), server.url, inner=inner).status_code == 200
    assert clock.seen == [(1, []), (1, [])]
    assert server.connections == 1


@every_way
def test_a_long_response_is_not_read_to_be_discarded(way):
    """It costs its connection instead."""
    inner = way.inner()
    clock = Observer(lambda: taken(inner))
    with Server(LONG) as server:
        assert way.fetch(policy(backoff=[1.0], clock=clock), server.url, inner=inner).status_code == 200
    assert clock.seen == [[]]
    assert server.connections == 2


@every_way
@pytest.mark.parametrize("broken", [reset_in_body, close_in_body], ids=["reset", "closed"])
def test_a_response_that_breaks_while_it_is_discarded_is_forgotten(way, broken):
    """The next attempt takes another connection."""

    def busy(connection):
        connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 200\r\n\r\n")
        return broken(_Body(connection))

    with Server(busy) as server:
        assert way.fetch(policy(), server.url).status_code == 200
    assert len(server.requests) == 2


class _Body:
    """A connection whose headers have been sent."""

    def __init__(self, connection):
        self._connection = connection

    def sendall(self, data):
        self._connection.sendall(data.partition(b"\r\n\r\n")[2])

    def __getattr__(self, name):
        return getattr(self._connection, name)


@every_way
def test_a_gate_that_refuses_the_retry_leaves_the_response_whole(way):
    """Where there is nothing to wait for, it is held until it is known not to be the final one."""
    gate = abate.TokenBucket(rate=0.001, burst=1)
    with Server(LONG, LONG) as server:
        response = way.fetch(policy(gate=gate), server.url)
    assert len(response.content) == 100_000
    assert response.extensions["abate_report"].reason == "budget"
    with Server(LONG, BUSY) as server:
        assert way.fetch(policy(gate=abate.ConcurrencyLimit(1)), server.url).status_code == 200
    with pytest.raises(abate.Refused):
        way.fetch(policy(gate=gate), server.url)


@every_way
def test_a_rule_that_raises_leaves_no_connection_behind(way):
    """The error is the caller's; `fetch` looks at the pool."""

    def broken(response):
        raise LookupError("a mistake in a rule")

    with Server(LONG) as server, pytest.raises(LookupError):
        way.fetch(policy(on=abate.on_result(broken)), server.url)


@tasks
def test_many_tasks_leave_no_more_connections_than_the_pool_has(way):
    """Forty tasks with retries and resets share a pool of five."""
    limits = way.library.Limits(max_connections=5)
    inner = way.inner(limits=limits)

    async def main(server):
        settings = policy(max_attempts=20, budget=abate.Budget.unlimited())
        async with way.library.AsyncClient(transport=way.ours.AsyncTransport(settings, inner), timeout=30.0) as client:
            async with trio_or_asyncio(way) as start:
                for _ in range(40):
                    start(client.get, server.url)
            assert len(inner._pool.connections) <= 5
            assert taken(inner) == []

    with Server(*[BUSY, reset, respond(200), reset_in_nothing] * 15) as server:
        way.run(main, server)


def reset_in_nothing(connection):
    connection.sendall(b"HTTP/1.1 502 Bad\r\nContent-Length: 9\r\n\r\n")
    return reset(connection)


def trio_or_asyncio(way):
    class Group:
        async def __aenter__(self):
            self.group = trio.open_nursery() if way.loop == "trio" else asyncio.TaskGroup()
            opened = await self.group.__aenter__()
            if way.loop == "trio":
                return opened.start_soon
            return lambda function, *args: opened.create_task(function(*args))

        async def __aexit__(self, *error):
            return await self.group.__aexit__(*error)

    return Group()


# -- bodies


@threads
def test_a_final_response_is_handed_over_unread(way):
    """Good or bad, its body is the caller's to stream."""
    client = way.library.Client(transport=way.ours.Transport(policy(), way.inner()))
    with Server(BUSY, BUSY, LONG, respond(200, body=b"good")) as server, client:
        for size in (100_000, 4):
            with client.stream("GET", server.url) as response:
                assert not response.is_stream_consumed
                assert sum(len(part) for part in response.iter_raw()) == size


@tasks
def test_a_final_async_response_is_handed_over_unread(way):
    """The same for tasks."""

    async def main(url):
        async with way.library.AsyncClient(transport=way.ours.AsyncTransport(policy(), way.inner())) as client:
            for size in (100_000, 4):
                async with client.stream("GET", url) as response:
                    assert not response.is_stream_consumed
                    assert sum([len(part) async for part in response.aiter_raw()]) == size

    with Server(BUSY, BUSY, LONG, respond(200, body=b"good")) as server:
        way.run(main, server.url)


@every_way
@pytest.mark.parametrize(
    ("behave", "name"), [(reset_in_body, "ReadError"), (close_in_body, "RemoteProtocolError")], ids=["reset", "closed"]
)
def test_what_fails_in_the_body_is_not_retried(way, behave, name):
    """The caller may have used what came before."""
    with Server(behave) as server:
        error, report = way.fail(policy(), server.url)
    assert isinstance(error, (getattr(way.library, name), way.library.RemoteProtocolError))
    assert report is None
    assert len(server.requests) == 1


@tasks
def test_a_cancelled_request_ends_at_once(way):
    """It is not retried, and leaves no connection behind."""
    inner = way.inner()

    async def main(server):
        async with way.library.AsyncClient(transport=way.ours.AsyncTransport(policy(), inner), timeout=60.0) as client:
            if way.loop == "trio":
                with trio.move_on_after(0.1) as scope:
                    await client.get(server.url)
                assert scope.cancelled_caught
            else:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.get(server.url), 0.1)
            assert taken(inner) == []

    with Server() as server:
        server.script.append(server.hang)
        way.run(main, server)
    assert len(server.requests) <= 1


# -- herds


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_three_hundred_clients_told_to_wait_come_back_spread(library):
    """None earlier than asked for, and at most 20 in any 50 ms."""
    arrivals, chance = [], random.Random(300)

    async def handler(request):
        arrivals.append(clock.now())
        first = request.headers["Abate-Attempt"] == "1"
        return library.Response(503, headers={"Retry-After": "2"}) if first else library.Response(200)

    async def one():
        settings = abate.Policy(on=abate.http.transient, rng=chance)
        transport = getattr(abate.clients, library.__name__).AsyncTransport(settings, library.MockTransport(handler))
        async with library.AsyncClient(transport=transport) as client:
            assert (await client.get("http://a.internal/")).status_code == 200

    async def main():
        await asyncio.gather(*(one() for _ in range(300)))

    with VirtualClock() as clock:
        asyncio.run(main())
    first, back = arrivals[:300], sorted(arrivals[300:])
    assert max(first) == 0.0
    assert len(back) == 300
    assert back[0] >= 2.0
    slots = [int((instant - 2.0) / 0.05) for instant in back]
    assert max(map(slots.count, slots)) <= 20


class Waits(Server):
    """A server that tells every client once to wait for two seconds, and remembers when it did and who came when."""

    def __init__(self):
        super().__init__()
        self.told = {}
        self.back = {}

    def pick(self, request):
        who, arrived = request.path, time.monotonic()
        if who in self.told:
            self.back[who] = arrived
            return respond(200)

        def behave(connection):
            self.told[who] = time.monotonic()  # if this came after sending, a client that is on time could look early
            return respond(429, ("Retry-After", "2"))(connection)

        return behave


def test_three_hundred_clients_on_sockets_told_to_wait_come_back_spread():
    """In real time, on connections of their own: none earlier than asked for, and at most 20 due in any 50 ms.

    That none is early is measured where it counts, at the server. A machine that is busy with other things makes
    clients late, and bunches them; so what is counted in bins is when they are due, by what the policies have
    decided to wait, as if all had been told at the same instant, which is the worst case.
    """
    chance = random.Random(300)

    async def one(number, url):
        settings = abate.Policy(on=abate.http.transient, rng=chance)
        transport = AsyncTransport(settings, httpx.AsyncHTTPTransport(verify=False))
        async with httpx.AsyncClient(transport=transport, timeout=60.0) as client:
            assert (await client.get(f"{url}/{number}")).status_code == 200

    async def main(url):
        await asyncio.gather(*(one(number, url) for number in range(300)))

    with Waits() as server, Recorder() as seen:
        asyncio.run(main(server.url))
    assert len(server.requests) == 600
    assert min(server.back[who] - told for who, told in server.told.items()) >= 2.0
    delays = [event.delay for event in seen.of(abate.events.Retry)]
    assert len(delays) == len(server.back) == 300
    assert min(delays) >= 2.0
    assert max(Counter(int((delay - 2.0) / 0.05) for delay in delays).values()) <= 20


@tasks
@pytest.mark.parametrize("settings", [{"timeout": 0.05}, {"attempt_timeout": 0.05}, {}], ids=str)
def test_a_deadline_does_not_interrupt_what_httpx_must_finish(way, settings):
    """While it takes or closes a connection, it shields itself by anyio: interrupted there, the connection is lost."""
    finished = []

    class Inner(way.library.AsyncBaseTransport):
        async def handle_async_request(self, request):
            with anyio.CancelScope(shield=True):
                while abate.remaining():
                    await anyio.sleep(0.001)
                await anyio.sleep(0.02)
                finished.append(request)
            await anyio.sleep(GUARD)

    async def fetch():
        transport = way.transport(policy(max_attempts=1, **settings), Inner())
        with abate.deadline(None if settings else 0.05):
            async with way.library.AsyncClient(transport=transport) as client:
                await client.get("http://shop.invalid/")

    with pytest.raises(way.library.TimeoutException):
        way.run(fetch)
    assert len(finished) == 1
