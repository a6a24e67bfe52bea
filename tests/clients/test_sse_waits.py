"""Server-sent events on real sockets: how long a reader waits, before it reconnects and for what comes."""

import asyncio
import threading

import aiohttp
import httpx
import httpx2
import pytest

import abate
import abate.clients.httpx
import abate.clients.httpx2
from abate.clients.sse import StreamEnded
from abate.testing import Recorder, VirtualClock
from tests.clients.llm_server import stream
from tests.clients.server import respond
from tests.clients.sse_ways import WAYS, EventServer, Way, every, numbered, policy, texts


def hints(events):
    return [event.hint for event in events if isinstance(event, abate.events.Retry)]


@every
def test_retry_is_the_shortest_delay(way):
    """It counts as the server's hint, for every failure after it, until there is another."""
    with (
        Recorder() as events,
        EventServer(
            stream("retry: 20\n\n", *numbered(1)),
            respond(503),
            stream(*numbered(2)),
            stream("retry: 30\n", *numbered(3)),
        ) as server,
    ):
        way.read(server.url, policy=policy())
    assert hints(events) == [0.02, 0.02, 0.02, 0.03]
    assert all(event.delay >= event.hint for event in events if isinstance(event, abate.events.Retry))
    assert len(server.requests) == 5


def test_retry_counts_with_an_event_that_a_rule_refuses():
    """Though that event, and what came with it, was not handed out."""
    refused = abate.on_result(lambda event: event.data == "overloaded")
    refusal = stream("retry: 20\nid: 1\ndata: overloaded\n\n" + numbered(2)[0])
    with Recorder() as events, EventServer(refusal, stream(*numbered(3))) as server:
        found = WAYS[0].read(server.url, policy=policy(on=(abate.http.transient, refused)))
    assert texts(found) == ["event 3"]
    assert server.last_ids == [None, None, "3"]
    assert hints(events) == [0.02, 0.02]


@every
def test_a_longer_hint_of_the_server_wins(way):
    """50 ms against `retry: 20`."""
    with (
        Recorder() as events,
        EventServer(stream("retry: 20\n\n", *numbered(1)), respond(503, ("Retry-After-Ms", "50"))) as server,
    ):
        way.read(server.url, policy=policy())
    assert hints(events) == [0.02, 0.05]


@every
def test_a_retry_beyond_the_patience_of_the_policy_ends_the_stream(way):
    """Nothing sleeps for thirty years."""
    server = EventServer(stream("retry: 999999999999\n\n", *numbered(1)))
    with server, pytest.raises(StreamEnded) as raised:
        way.read(server.url, policy=policy())
    assert abate.report(raised.value).reason == "hint"


@pytest.mark.parametrize("way", [way for way in WAYS if way.sync], ids=repr)
def test_waits_in_virtual_time(way):
    """In threads, where the clock does not wait for sockets."""
    with VirtualClock() as clock, EventServer(stream("retry: 20000\n\n", *numbered(1))) as server:
        way.read(server.url, policy=policy())
    assert clock.now() >= 20.0


@every
def test_silence_ends_a_connection(way):
    """The next one goes on after the last event."""
    with EventServer() as server:
        server.script += [stream(*numbered(1), then=server.hang), stream(*numbered(2))]
        assert texts(way.read(server.url, policy=policy(), idle=0.3)) == ["event 1", "event 2"]
    assert server.last_ids == [None, "1", "2"]


@every
def test_silence_before_the_first_event_is_bounded_as_well(way):
    """By the same error as any other of the client's."""
    errors = (httpx.ReadTimeout, httpx2.ReadTimeout, aiohttp.ServerTimeoutError)
    with EventServer() as server:
        server.script += [server.hang, stream(": hello\n\n", then=server.hang), server.hang]
        with pytest.raises(errors) as raised:
            way.read(server.url, policy=policy(), idle=0.1)
    assert abate.report(raised.value).attempts == 3


@pytest.mark.parametrize("way", [Way(httpx, "threads"), Way(httpx2, "asyncio")], ids=repr)
def test_the_timeout_of_a_policy_below_ends_with_the_headers(way):
    """A transport that retries cuts the timeouts of its attempts, but not the silence between events after them."""

    def pause(connection):
        threading.Event().wait(1.3)  # longer than the transport's policy allows for a call
        data = numbered(2)[0].encode()
        connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n0\r\n\r\n")
        return True

    module = {httpx: abate.clients.httpx, httpx2: abate.clients.httpx2}[way.library]
    transport = (module.Transport if way.sync else module.AsyncTransport)(policy(timeout=1.0))
    with EventServer(stream(numbered(1)[0], then=pause)) as server:
        found = way.read(server.url, policy=policy(max_attempts=1), count=2, client={"transport": transport})
    assert texts(found) == ["event 1", "event 2"]
    assert len(server.requests) == 1


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2], WAYS[5]], ids=repr)
def test_comments_are_no_silence(way):
    """That is what they are for: four of them within a time that would be too long for one silence."""
    over = threading.Event()

    def beat(connection):
        for _ in range(4):
            over.wait(0.3)
            connection.sendall(b"5\r\n: hi\n\r\n")
        data = numbered(1)[0].encode()
        connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n0\r\n\r\n")
        return True

    with EventServer(stream(": begin\n", then=beat)) as server:
        assert texts(way.read(server.url, policy=policy(max_attempts=1), idle=1.0, count=1)) == ["event 1"]
    assert len(server.requests) == 1


@every
def test_the_timeout_of_the_policy_bounds_the_wait_for_an_event(way):
    """Though comments come."""
    with EventServer() as server:
        server.script.append(stream(": hello\n\n", then=server.hang))
        errors = (httpx.ReadTimeout, httpx2.ReadTimeout, abate.AttemptTimeout)
        with pytest.raises(errors) as raised:
            way.read(server.url, policy=policy(timeout=0.2))
    assert abate.report(raised.value).reason == "deadline"


@every
def test_an_outer_deadline_bounds_it_as_well(way):
    """As every wait of abate's."""

    def read():
        with abate.deadline(0.2):
            return way.read(server.url, policy=policy(timeout=60.0))

    with EventServer() as server:
        server.script.append(server.hang)
        with pytest.raises((httpx.ReadTimeout, httpx2.ReadTimeout, abate.AttemptTimeout)) as raised:
            read()
    assert abate.report(raised.value).reason == "deadline"


def test_a_task_that_is_cancelled_ends_at_once():
    """Nothing is reconnected, and the connection is closed."""
    left = threading.Event()

    def wait_for_end(connection):
        connection.settimeout(10.0)
        assert connection.recv(1) == b""
        left.set()
        return False

    async def cancel(way, url):
        seen = []
        task = asyncio.create_task(way._aread(url, None, seen, "GET", {}, {"policy": policy()}))
        while not seen:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for way in (Way(httpx, "asyncio"), Way(aiohttp, "asyncio")):
        left.clear()
        with EventServer(stream(*numbered(1), then=wait_for_end)) as server:
            asyncio.run(cancel(way, server.url))
            assert left.wait(10.0)
        assert len(server.requests) == 1
