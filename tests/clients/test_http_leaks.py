"""Ten thousand requests that are retried leave nothing behind, whichever HTTP client sends them."""

import contextlib
import sys
import threading
import time

import pytest

from tests.clients.drivers import DRIVERS, Ask, policy
from tests.clients.httpx_ways import WAYS, taken
from tests.clients.server import Server, open_sockets, respond

CALLS, RETRIES = 1_000, 10
"""What could be left behind is a response that is discarded, or something of the call. Ten thousand calls with one
retry each take twice as long, and discard no more."""
REQUESTS = CALLS * (1 + RETRIES)
EACH_LIBRARY = [way for way in WAYS if way.loop != "trio"]

BUSY, GOOD = respond(503, body=b"busy"), respond(200, body=b"ok")


class Busy(Server):
    """A server that answers with 503 until it is asked for the last time."""

    def pick(self, request):
        return GOOD if request.headers["abate-attempt"] == str(1 + RETRIES) else BUSY


def settings():
    return policy(max_attempts=1 + RETRIES)


@contextlib.contextmanager
def unmeasured():
    """Nothing of the block is measured for coverage, which takes longer than all the requests and shows nothing new."""
    tracer, of_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
        threading.settrace(of_threads)
        sys.settrace(tracer)


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: type(driver).__name__.lower())
def test_retries_leave_no_connection_and_no_socket_behind(driver):
    """All go through one connection, and with the client it is gone."""
    before = open_sockets()
    with unmeasured(), Busy() as server:
        driver.fetch(Ask(server.url, times=CALLS), settings())
    assert (len(server.requests), server.connections) == (REQUESTS, 1)
    becomes(before)


@pytest.mark.parametrize("way", EACH_LIBRARY, ids=repr)
def test_retries_by_httpx_leave_no_connection_and_no_socket_behind(way):
    """The same; and the pool has the one connection, free for others, while the client is open."""
    before = open_sockets()
    # where the machine stands still for a while, nothing is closed for being idle, nor given up
    inner = way.inner(limits=way.library.Limits(keepalive_expiry=None))
    transport = way.transport(settings(), inner)

    def pool():
        return len(inner._pool.connections), taken(inner)

    def send(url):
        with way.library.Client(transport=transport, timeout=60.0) as client:
            assert all(client.get(url).status_code == 200 for _ in range(CALLS))
            assert pool() == (1, [])

    async def asend(url):
        async with way.library.AsyncClient(transport=transport, timeout=60.0) as client:
            for _ in range(CALLS):
                assert (await client.get(url)).status_code == 200
            assert pool() == (1, [])

    with unmeasured(), Busy() as server:
        if way.loop == "threads":
            send(server.url)
        else:
            way.run(asend, server.url)
    assert (len(server.requests), server.connections) == (REQUESTS, 1)
    becomes(before)


def becomes(sockets):
    """Wait until no more sockets are open than these: the server's threads end when they find theirs closed."""
    due = time.monotonic() + 10.0
    while open_sockets() > sockets and time.monotonic() < due:
        time.sleep(0.01)
    assert open_sockets() <= sockets
