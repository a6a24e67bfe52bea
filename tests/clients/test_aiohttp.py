"""What is aiohttp's own under a policy, against a real server."""

import asyncio
import io

import aiohttp
import pytest

import abate
from abate.clients.aiohttp import middleware
from abate.testing import Recorder
from tests.clients.drivers import policy
from tests.clients.server import Server, close, respond

LONG = b"x" * 5_000_000
ALWAYS = policy(idempotent=True)


def session(policy, *others, timeout=None, **built):
    return aiohttp.ClientSession(
        middlewares=(middleware(policy, **built), *others),
        connector=aiohttp.TCPConnector(limit=1),
        timeout=timeout or aiohttp.ClientTimeout(sock_connect=10, sock_read=10),
    )


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_the_retry_of_its_own_sends_nothing(method):
    """aiohttp repeats some methods once after a broken connection: not after the policy has given up."""

    async def run(url):
        async with session(ALWAYS) as client:
            with pytest.raises(aiohttp.ServerDisconnectedError) as caught:
                await client.request(method, url)
            return abate.report(caught.value)

    with Server(*[close] * 9) as server:
        assert asyncio.run(run(server.url)).attempts == 3
    assert len(server.requests) == 3


def test_the_next_request_is_a_new_call():
    """An error that was given up on says nothing about the request after it, in the same task."""

    async def run(url):
        async with session(policy()) as client:
            for _ in range(2):
                with pytest.raises(aiohttp.ServerDisconnectedError):
                    await client.get(url)
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await client.post(url)
            async with client.get(url) as response:
                return response.status

    with Server(*[close] * 7) as server:
        assert asyncio.run(run(server.url)) == 200
    assert len(server.requests) == 8


@pytest.mark.parametrize("on", [TimeoutError, abate.http.transient], ids=["TimeoutError", "transient"])
def test_total_stands_around_all_attempts(on):
    """When aiohttp's total is over, so is the call, whatever the policy retries."""

    async def run(server):
        async with session(policy(on=on), timeout=aiohttp.ClientTimeout(total=0.2)) as client:
            with pytest.raises(TimeoutError):
                await client.get(server.url)

    with Server() as server:
        server.script.extend([server.hang] * 9)
        asyncio.run(run(server))
    assert len(server.requests) == 1


@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
def test_total_ends_a_call_that_reads_the_body_of_an_error(kind):
    """Before it is judged, or while it is discarded: the wait after it is not slept through."""

    async def run(server):
        async with session(policy(), timeout=aiohttp.ClientTimeout(total=0.1)) as client:
            async with asyncio.timeout(10) as bound:
                with pytest.raises(TimeoutError):
                    await client.get(server.url)
        assert not bound.expired()

    def stall(connection):
        head = f"HTTP/1.1 503 Busy\r\nContent-Type: {kind}\r\nRetry-After: 60\r\nContent-Length: 9\r\n\r\n"
        connection.sendall(head.encode())
        return server.hang(connection)

    with Server() as server:
        server.script.append(stall)
        asyncio.run(run(server))
    assert len(server.requests) == 1


def test_total_ends_a_wait():
    """A backoff that is longer than the total is not slept through."""

    async def run(server):
        async with session(policy(backoff=[60.0]), timeout=aiohttp.ClientTimeout(total=0.2)) as client:
            with pytest.raises(TimeoutError):
                await client.get(server.url)

    with Server(respond(503)) as server:
        asyncio.run(run(server))
    assert len(server.requests) == 1


def test_a_cancelled_wait_frees_the_connection():
    """A task that is cancelled while it holds a bad response gives the one connection back."""

    async def run(server):
        async with session(policy(backoff=[60.0])) as client:
            with Recorder() as events:
                task = asyncio.create_task(client.get(server.url))
                while not any(isinstance(event, abate.events.Retry) for event in events):
                    await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            async with asyncio.timeout(10), client.get(server.url) as response:
                return await response.text()

    with Server(respond(503, body=LONG)) as server:
        assert asyncio.run(run(server)) == "ok"


def sent(body, *behaviours):
    """The bodies that the server gets."""

    async def run(url):
        async with session(ALWAYS) as client:
            try:
                async with client.put(url, **body()):
                    pass
            except aiohttp.ClientError:
                pass

    with Server(*(behaviours or (respond(503), close))) as server:
        asyncio.run(run(server.url))
    return [request.body for request in server.requests]


def test_json_is_sent_again():
    """A JSON body is the same on every attempt."""
    assert sent(lambda: {"json": {"order": 42}}) == [b'{"order": 42}'] * 3


def test_a_form_is_sent_again():
    """So is a form."""
    assert sent(lambda: {"data": {"order": "42"}}) == [b"order=42"] * 3


def multipart(part):
    form = aiohttp.FormData()
    form.add_field("name", "order")
    form.add_field("file", part, filename="order", content_type="text/plain")
    return {"data": form}


def test_a_multipart_form_is_sent_again():
    """A form with a file is replayed with the whole of it."""
    bodies = sent(lambda: multipart(io.BytesIO(b"order 42")))
    assert len(bodies) == 3
    assert bodies[0] == bodies[1] == bodies[2]
    assert b"order 42" in bodies[0]


def test_a_multipart_form_with_a_generator_is_never_sent_twice():
    """One part that can be read only once is enough."""

    async def pieces():
        yield b"order 42"

    assert len(sent(lambda: multipart(pieces()))) == 1


def test_a_file_that_is_half_sent_is_sent_again_whole(tmp_path):
    """A server that answers before it has read the body: what writes it has ended before it is written again."""
    (tmp_path / "order").write_bytes(LONG)
    bodies = []

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if b"Abate-Attempt: 1\r\n" in head:
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            while await reader.read(100_000):
                pass
        else:
            bodies.append(await reader.readexactly(len(LONG)))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def run():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, session(ALWAYS) as client:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with (tmp_path / "order").open("rb") as file:
                async with client.put(url, data=file) as response:
                    return response.status

    assert asyncio.run(run()) == 200
    assert bodies == [LONG]


def test_a_status_that_a_middleware_raises_is_judged_by_the_table():
    """A middleware inside that raises for bad responses takes nothing away from the policy."""

    async def raising(request, handler):
        response = await handler(request)
        response.raise_for_status()
        return response

    async def run(url):
        async with session(policy(), raising) as client, client.get(url) as response:
            return response.status

    with Server(respond(503)) as server:
        assert asyncio.run(run(server.url)) == 200
    with Server(respond(404)) as server, pytest.raises(aiohttp.ClientResponseError) as caught:
        asyncio.run(run(server.url))
    assert abate.report(caught.value).reason == "fatal"


def test_a_middleware_s_own_timeout_is_the_policy_s_to_judge():
    """A plain TimeoutError that is not the total's is put to the rules."""
    left = [TimeoutError(), TimeoutError()]

    async def failing(request, handler):
        if left:
            raise left.pop()
        return await handler(request)

    async def run(url):
        async with session(policy(on=TimeoutError), failing) as client, client.get(url) as response:
            return response.status

    with Server() as server:
        assert asyncio.run(run(server.url)) == 200


def test_one_middleware_serves_many_tasks():
    """Calls at the same time keep their attempts apart."""

    async def run(url):
        async with aiohttp.ClientSession(middlewares=(middleware(policy(max_attempts=200)),)) as client:

            async def get():
                async with client.get(url) as response:
                    return response.status

            return await asyncio.gather(*[get() for _ in range(50)])

    with Server(*[respond(503), close] * 25) as server:
        assert asyncio.run(run(server.url)) == [200] * 50
    assert len(server.requests) == 100
