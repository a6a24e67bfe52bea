"""Strangers at the small HTTP server, by which the page and health are served: on real sockets."""

import asyncio
import contextlib
import gc
import re
import socket
import threading

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate import http_server
from abate.cli.demo.api_client import ApiConnection
from abate.cli.demo.child_processes import Child
from abate.cli.health_server import HealthServer
from abate.observe import page
from abate.work.service import Health
from tests.cli.commands import GUARD, until
from tests.trust.cost import assert_in_proportion


def port_of(address):
    """The port in an address."""
    return int(address.rstrip("/").rpartition(":")[2])


def raw(port, data, host="127.0.0.1"):
    """All that a server sends for these bytes."""
    with socket.create_connection((host, port), timeout=GUARD) as connection, contextlib.suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while more := connection.recv(65536):
            answer += more
        return answer
    return b""


# -- connections


def half_sent(port):
    """A connection that has begun to ask."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=GUARD)
    connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    return connection


def is_closed(connection):
    """Has the other end closed it?"""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_half_sent_requests_are_closed_after_five_seconds():
    """By the page and by health, though a byte comes now and then; the page answers others meanwhile."""
    assert http_server.REQUEST_TIMEOUT == 5.0

    async def closed(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        with contextlib.suppress(OSError):
            while not reader.at_eof():
                writer.write(b"x")
                with contextlib.suppress(TimeoutError):
                    assert await asyncio.wait_for(reader.read(1), 0.2) == b""
        writer.transport.abort()

    async def main():
        with page.serving(port=0) as address:
            async with HealthServer(lambda: Health(True, True), "127.0.0.1", 0) as health, asyncio.timeout(GUARD):
                ports = [port_of(each) for each in (address, health)]
                slow = asyncio.gather(*map(closed, ports))
                async with httpx.AsyncClient() as client:
                    assert (await client.get(address)).status_code == 200
                assert not slow.done()
                await slow

    asyncio.run(main())


class Served:
    """A server of the test's own, in a thread."""

    def __init__(self, handler, **options):
        self.options = {"allows_host": http_server.is_loopback, **options}
        self.handler = handler

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        listens = http_server.listen("127.0.0.1", 0)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # the server's own bounds are what is tried
            listens.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
        self.port = listens.getsockname()[1]
        self.server = http_server.HttpServer(self.handler, **self.options)
        self.run(self.server.start(listens))
        return self

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(GUARD)

    def __exit__(self, *_):
        self.run(self.server.close(0.0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(GUARD)
        self.loop.close()


async def hello(connection):
    await connection.send(200, "text/plain", b"hello")


ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_any_number_of_silent_connections_takes_few_of_the_programs_descriptors():
    """Above a hundred connections the oldest is closed, so that a new request is answered in time."""
    with Served(hello, request_timeout=100 * GUARD) as served, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(half_sent(served.port)) for _ in range(250)]
        assert raw(served.port, ASK).endswith(b"hello")
        until(lambda: sum(not is_closed(each) for each in silent) <= http_server.MAX_CONNECTIONS)
        assert served.server.open <= http_server.MAX_CONNECTIONS
        assert not is_closed(silent[-1])
        assert is_closed(silent[0])


@pytest.mark.parametrize("steps", range(6))
def test_a_connection_that_comes_while_the_server_closes_is_closed(steps):
    """However far asyncio has got with it: no socket is left to the collector, whose warnings are errors."""
    with http_server.listen("127.0.0.1", 0) as listening:

        async def main():
            server = http_server.HttpServer(hello)
            await server.start(listening)
            for client in clients:
                client.connect(listening.getsockname())
            for _ in range(steps):
                await asyncio.sleep(0)
            await server.close(0.0)
            assert server.open == 0

        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(socket.socket()) for _ in range(3)]
            asyncio.run(main())
            gc.collect()


def test_one_who_is_being_answered_is_not_dropped_for_a_newcomer():
    """Where all are being answered, the newcomer is closed at once."""

    async def streams(connection):
        await connection.begin(200, [])
        await connection.write(b"first")
        await connection.wait_closed()

    with Served(streams, max_connections=1) as served:
        with socket.create_connection(("127.0.0.1", served.port), timeout=GUARD) as first:
            first.sendall(ASK)
            until(lambda: b"first" in first.recv(1000))
            assert raw(served.port, ASK) == b""
            assert not is_closed(first)
        until(lambda: served.server.open == 0)
        assert b"first" in raw(served.port, ASK)


def test_one_who_does_not_read_is_dropped(monkeypatch):
    """What it is sent does not pile up, and its place is free again."""
    monkeypatch.setattr(http_server, "WRITE_TIMEOUT", 0.2)
    written = []

    async def floods(connection):
        await connection.begin(200, [])
        while True:
            await connection.write(b"x" * 1_000_000)
            written.append(1)

    with Served(floods) as served, socket.create_connection(("127.0.0.1", served.port), timeout=GUARD) as sleeper:
        sleeper.sendall(ASK)
        until(lambda: bool(written) or served.server.open == 1)
        until(lambda: served.server.open == 0)
        assert len(written) < 100


def test_a_handler_that_fails_is_answered_and_logged(caplog):
    """With 500, and the server goes on."""

    async def breaks(connection):
        raise RuntimeError("broken")

    with Served(breaks) as served:
        for _ in range(2):
            assert raw(served.port, ASK).startswith(b"HTTP/1.1 500 ")
        assert "broken" in caplog.text


# -- foreign bytes

WORDS = rb"""GET|HEAD|POST| |/|/?token=|HTTP/1.1|HTTP/1.0|HTTP/2|Host:|Host: localhost|Host: evil.example|:|%00
|Transfer-Encoding: chunked|Content-Length: 99"""
tokens = st.sampled_from([*WORDS.split(b"|"), b"\r\n", b"\r", b"\0", b"\xff", b"\t", b"x" * 9000, b"\x16\x03\x01\x02"])
foreign = st.one_of(st.binary(max_size=300), st.lists(tokens, max_size=20).map(b"".join))


@given(foreign)
def test_foreign_bytes_are_a_request_or_refused(data):
    """The parser raises nothing else, and what it lets through has the shape of a request."""
    try:
        request = http_server.parse_request(data)
    except http_server.BadRequest as error:
        assert error.status in (400, 431)
    else:
        assert request.path.startswith("/")
        assert request.path.isascii()
        assert not re.search(rb"[\0\r\n]", b"".join(name + value for name, value in request.headers))
        assert (request.header("host") is not None) or request.version == "1.0"


@given(st.text(max_size=40) | st.sampled_from(["[::1", "[::1]:", "::1%1", "localhost:", "१२७.0.0.1", "127.0.0.1\0"]))
def test_any_host_is_a_name_or_none(field):
    """And a name that is of this machine alone is one of a few."""
    name = http_server.host_name(field)
    assert name == "" or name in field
    if http_server.is_loopback(name):
        assert http_server.is_address(name)
        assert name.lower().rstrip(".") == "localhost" or name.startswith("127.") or ":" in name


@pytest.mark.parametrize("piece", [" ", "\t", "a ", "a", ":", "é"])
@pytest.mark.parametrize("before", ["", "X", "X:", "X:a", "Host:", "GET /", "GET / HTTP/1.1\r\nHost: localhost\r\nX:"])
def test_a_request_takes_time_in_proportion(before, piece):
    """The service's own event loop parses it: a long line that ends as no header does must not stop that."""
    first = "" if before.startswith("GET") else "GET / HTTP/1.1\r\n"

    def parse(length):
        head = f"{first}{before}{piece * (length // len(piece))}\x01".encode("latin-1")
        with pytest.raises(http_server.BadRequest):
            http_server.parse_request(head)

    assert_in_proportion(parse, 150)


@pytest.fixture(scope="module")
def any_server():
    """A server that outlives the examples of a test."""
    with Served(hello) as served:
        yield served


@given(data=foreign)
def test_foreign_bytes_neither_stop_nor_hold_up_a_server(any_server, data):
    """Each connection ends, with an answer or without, and the next one is served."""
    answer = raw(any_server.port, data)
    assert answer == b"" or re.match(rb"HTTP/1\.1 (200|400|421|431) ", answer)
    assert raw(any_server.port, ASK).endswith(b"\r\n\r\nhello")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (ASK, 200),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost:80:80\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: localhost@evil.example\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: x\r\n" * 101 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n" + b"x" * 500000, 200),
    ],
)
def test_requests_are_read_as_strictly_as_they_are_meant(any_server, data, status):
    """An answer comes through, also where there was more to read than was asked for."""
    assert raw(any_server.port, data).startswith(b"HTTP/1.1 %d " % status)


# -- bodies


def post(*fields, body=b""):
    """A request with a body."""
    return b"\r\n".join([b"POST / HTTP/1.1", b"Host: localhost", *fields, b"", body])


async def echo(connection):
    await connection.send(200, "text/plain", b"got " + connection.request.body)


@pytest.fixture(scope="module")
def reader():
    """A server that reads bodies of up to ten bytes."""
    with Served(echo, max_body=10) as served:
        yield served


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (post(b"Content-Length: 5", body=b"hello"), 200, b"got hello"),
        (post(b"Content-Length: 0"), 200, b"got "),
        (post(b"Content-Length: 5", body=b"hello, and more"), 200, b"got hello"),
        (post(b"Content-Length: 11", body=b"x" * 11), 413, b"at most 10 bytes\n"),
        (post(b"Content-Length: 99999999999999999999", body=b"x"), 400, b"as a number\n"),
        (post(b"Content-Length: -1"), 400, b"as a number\n"),
        (post(b"Content-Length: +1", body=b"x"), 400, b"as a number\n"),
        (post(), 411, b"one Content-Length\n"),
        (post(b"Content-Length: 1", b"Content-Length: 2", body=b"xx"), 411, b"one Content-Length\n"),
        (post(b"Content-Length: 1", b"Transfer-Encoding: chunked", body=b"x"), 411, b"one Content-Length\n"),
        (post(b"Content-Length: 5", body=b"hello").replace(b"POST", b"GET"), 200, b"got "),
    ],
)
def test_the_body_of_a_post_is_read_where_it_is_wanted_and_bounded(reader, data, status, body):
    """By the one length that it has; of other methods, none is."""
    answer = raw(reader.port, data)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.endswith(body)


def test_a_server_that_wants_no_bodies_reads_none():
    """As health."""
    with Served(echo) as served:
        assert raw(served.port, post(b"Content-Length: 5", body=b"hello")).endswith(b"got ")


@given(data=foreign)
def test_foreign_bytes_neither_stop_nor_hold_up_a_server_that_reads_bodies(reader, data):
    """A body that does not come whole is no request."""
    answer = raw(reader.port, data)
    assert answer == b"" or re.match(rb"HTTP/1\.1 (200|400|411|413|421|431) ", answer)
    assert raw(reader.port, ASK).endswith(b"\r\n\r\ngot ")


def test_half_sent_bodies_make_room_as_half_sent_requests_do():
    """A visitor is answered, though strangers hold all places with forms that they do not complete."""
    with page.serving(port=0, token="a secret of some length") as address, contextlib.ExitStack() as stack:
        half = []
        for _ in range(150):
            connection = socket.create_connection(("127.0.0.1", port_of(address)), timeout=GUARD)
            half.append(stack.enter_context(connection))
            connection.sendall(post(b"Content-Length: 20", body=b"token="))
        assert httpx.get(address, timeout=GUARD).status_code == 401
        assert is_closed(half[0])
        for connection in half:
            connection.settimeout(GUARD)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""


# -- health


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:80", 200),
        ("10.0.0.7", 421),
        ("evil.example", 421),
        ("127.0.0.1%evil.example", 421),
    ],
)
def test_health_on_loopback_answers_to_its_names_alone(host, status):
    """A foreign page that has its name resolve to this machine is refused."""

    async def main():
        async with HealthServer(lambda: Health(True, True), "127.0.0.1", 0) as health, httpx.AsyncClient() as client:
            answer = await client.get(f"{health}healthz", headers={"Host": host})
            assert answer.status_code == status

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("10.0.0.7:8081", 503),
        ("[fd00::7]:8081", 503),
        ("localhost", 503),
        ("evil.example", 421),
        ("10.0.0.7%evil.example", 421),
        ("", 421),
    ],
)
def test_health_beyond_loopback_answers_probes_by_address_and_tells_no_details(host, status):
    """A kubelet asks for the pod's address; a name could be a foreign page's. What fails is not told to strangers."""
    health = Health(live=True, ready=False, failing="redis://:hush@db")

    async def main():
        async with HealthServer(lambda: health, "0.0.0.0", 0) as address, httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{port_of(address)}/readyz", headers={"Host": host})
            assert answer.status_code == status
            assert "hush" not in answer.text
            if status == 503:
                assert answer.json() == {"live": True, "ready": False}

    asyncio.run(main())


def test_the_demos_api_answers_its_controllers_alone():
    """A request under another name is dropped without an answer."""

    async def main():
        child = await Child.start("abate.cli.demo.api_process", {"calm": GUARD, "outage": 1.0})
        try:
            port = await child.receive()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /objects/7 HTTP/1.1\r\nHost: evil.example\r\n\r\n")
            with contextlib.suppress(OSError):
                assert await asyncio.wait_for(reader.read(100), GUARD) == b""
            writer.transport.abort()
            assert await ApiConnection(port, lambda: None).ask("GET /objects/7") == "0"
        finally:
            await child.end()

    asyncio.run(main())
