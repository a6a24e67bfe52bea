"""What an upstream may send to hold up a program, or to fill its memory: bodies, streams and lists in headers."""

import asyncio
import gzip
import threading
import time
import tracemalloc
import zlib

import aiohttp
import httpx
import httpx2
import pytest
import trio

import abate
from abate.clients import sse
from abate.clients.httpx import AsyncTransport, Transport
from abate.clients.sse_parser import ServerSentEvent
from abate.clients.stream_errors import MAX_HELD_BYTES, ErrorEventTransport, StreamError, read_event
from abate.decide import http
from abate.schedule.header_hints import http_hint
from tests.clients.server import respond
from tests.clients.sse_ways import WAYS, EventServer, every, policy

MEGABYTE = b" " * 1_000_000
COMMENTS = b":\n" * 1_000_000
"""Two megabytes of lines without an event."""
EVENT_STREAM = ("Content-Type", "text/event-stream")


def packed_twice(megabytes):
    """A few hundred bytes that stand for as many megabytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    once = b"".join([packer.compress(MEGABYTE) for _ in range(megabytes)]) + packer.flush()
    return gzip.compress(once)


# -- hints


@pytest.mark.parametrize("piece", ["a", " ", "a ", "r=", "=1", "9"])
@pytest.mark.parametrize("begin", ["", "a"])
def test_a_list_of_limits_takes_time_in_proportion(begin, piece):
    """Eight times the header takes about eight times as long, not sixty-four times."""

    def took(length):
        headers = {"RateLimit": begin * (length // 2) + piece * (length // 2 // len(piece))}
        began = time.process_time()
        http_hint(429, headers)
        return time.process_time() - began

    took(100)
    short = min(took(240) for _ in range(3))
    assert min(took(1920) for _ in range(5)) < 40 * max(short, 0.0001)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_a_parsed_body_of_any_depth_is_judged():
    """An SDK may have parsed what is too deep to be written as text."""
    body = {"error": {"code": nested(50_000), "details": [{"@type": nested(50_000), "retryDelay": "3s"}]}}
    ruling = http.judge(503, {}, body=body)
    assert (ruling.retry, ruling.hint) == (True, None)
    assert http.judge(429, {}, body=body).retry


# -- bodies of errors


@pytest.mark.parametrize("encoding", ["gzip, gzip", "gzip,identity,gzip"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_error_that_is_packed_twice_fills_no_memory(asynchronous, encoding):
    """It is judged by its status, and reaches the caller as it came."""
    body = packed_twice(100)
    assert len(body) < 1000

    def answer(request):
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        return httpx.Response(503, headers=headers, stream=httpx.ByteStream(body))

    async def afetch():
        transport = AsyncTransport(policy(max_attempts=2), httpx.MockTransport(answer))
        async with httpx.AsyncClient(transport=transport) as client, client.stream("GET", "http://up/") as response:
            return b"".join([part async for part in response.aiter_raw()])

    def fetch():
        transport = Transport(policy(max_attempts=2), httpx.MockTransport(answer))
        with httpx.Client(transport=transport) as client, client.stream("GET", "http://up/") as response:
            return b"".join(response.iter_raw())

    tracemalloc.start()
    try:
        assert (asyncio.run(afetch()) if asynchronous else fetch()) == body
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", ["9" * 5000, "0" * 5000, "-1", "2, 2", "²", "x"])
def test_a_length_of_any_digits_is_read(length):
    """Transports other than those of HTTP/1 hand on what they got."""

    def answer(request):
        headers = {"Content-Type": "application/json", "Content-Length": length.encode()}
        return httpx.Response(429, headers=headers, stream=httpx.ByteStream(b"{}"))

    with httpx.Client(transport=Transport(policy(max_attempts=2), httpx.MockTransport(answer))) as client:
        response = client.get("http://up/")
    assert (response.status_code, abate.report(response).attempts) == (429, 2)


# -- streams


@pytest.mark.parametrize("way", [way for way in WAYS if way.sync], ids=repr)
def test_comments_without_end_do_not_outlast_the_timeout_in_threads(way):
    """No read of theirs is silent for long. The other ways are cut off from outside."""
    over = threading.Event()

    def beat(connection):
        connection.sendall(b"HTTP/1.1 200 Told So\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for _ in range(500):
            connection.sendall(b": still here\n\n")
            if over.wait(0.02):
                break
        return False

    with EventServer() as server:
        server.script.append(beat)
        with pytest.raises(way.library.ReadTimeout, match="deadline") as raised:
            way.read(server.url, policy=policy(timeout=0.3))
        over.set()
    assert abate.report(raised.value).reason == "deadline"
    assert len(server.requests) == 1


@pytest.mark.parametrize("way", [way for way in WAYS if not way.sync], ids=repr)
def test_comments_that_come_at_once_leave_other_tasks_their_turn(way):
    """Two thousand bytes are a million lines."""
    turns = 0

    async def read(url):
        nonlocal turns

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await (asyncio.sleep(0) if way.loop == "asyncio" else trio.lowlevel.checkpoint())

        async def events():
            async with way.client() as client:
                async for _ in sse.events(client, "GET", url, policy=policy(max_attempts=1)):
                    raise AssertionError("there is no event")

        if way.loop == "asyncio":
            counting = asyncio.ensure_future(count())
            try:
                await events()
            finally:
                counting.cancel()
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(count)
                try:
                    await events()
                except sse.StreamEnded:
                    nursery.cancel_scope.cancel()

    with EventServer(respond(200, EVENT_STREAM, ("Content-Encoding", "gzip"), body=gzip.compress(COMMENTS))) as server:
        if way.loop == "trio":
            way.run(read, server.url)
        else:
            with pytest.raises(sse.StreamEnded):
                way.run(read, server.url)
    assert turns > len(COMMENTS) // sse.SLICE // 2


@pytest.mark.parametrize("way", [way for way in WAYS if way.library is not aiohttp], ids=repr)
def test_a_stream_that_is_packed_twice_is_no_event_stream(way):
    """httpx decodes at once whatever a piece stands for."""
    with (
        EventServer(respond(200, EVENT_STREAM, ("Content-Encoding", "gzip, gzip"), body=packed_twice(100))) as server,
        pytest.raises(sse.NotAnEventStream, match="more than once"),
    ):
        way.read(server.url, policy=policy())
    assert len(server.requests) == 1


@every
def test_a_packed_stream_is_read(way):
    """Once is fine."""
    body = gzip.compress(b"data: hello\n\n")
    with EventServer(respond(200, EVENT_STREAM, ("Content-Encoding", "gzip"), body=body)) as server:
        assert [event.data for event in way.read(server.url, policy=policy(), count=1)] == ["hello"]


def test_packed_comments_are_not_unpacked_without_end():
    """The beginning of an LLM's stream is held back as long as it is short unpacked, too."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packer.compress(COMMENTS[:200_000]) + packer.flush(zlib.Z_SYNC_FLUSH) for _ in range(50)]
    assert sum(map(len, pieces)) < MAX_HELD_BYTES / 10
    read = []

    class Stream(httpx2.SyncByteStream):
        def __iter__(self):
            for piece in pieces:
                read.append(piece)
                yield piece

    def answer(request):
        headers = dict([EVENT_STREAM, ("Content-Encoding", "gzip")])
        return httpx2.Response(200, headers=headers, stream=Stream())

    transport = ErrorEventTransport(httpx2.MockTransport(answer))
    response = transport.handle_request(httpx2.Request("GET", "http://up/"))
    assert len(read) == 2
    assert list(response.stream) == pieces


@pytest.mark.parametrize("before", ['"type": "error", "m": ', '"error": '])
def test_an_error_event_of_any_depth_is_read(before):
    """Also where it can be parsed, and is one level too deep to be written again."""
    for depth in [*range(850, 1001), 100_000]:
        found = read_event(ServerSentEvent("error", f"{{{before}{'[' * depth}0{']' * depth}}}"))
        assert isinstance(found, StreamError)
        assert found.status == 500
        assert found.body.startswith(b'{"error": ')
