"""Warm-up of the pools of httpx and SQLAlchemy: what is open at the server, what is kept, what is given back."""

import asyncio
import socket
import threading

import httpx
import pytest
import sqlalchemy
import trio
from sqlalchemy.ext.asyncio import create_async_engine

import abate
from abate.clients.warm import awarm_httpx, awarm_sqlalchemy, warm_httpx, warm_sqlalchemy
from abate.testing import VirtualClock
from tests.clients.server import Server, close, close_in_body, respond
from tests.event_loops import RUNNERS
from tests.greenlets import needs_greenlet

EMPTY = respond(200)
"""What a HEAD is answered with: no body."""


@pytest.fixture(params=RUNNERS)
def run(request):
    """Runs an async function without arguments, under asyncio and under trio."""
    return RUNNERS[request.param]


def settle():
    """Wait for the threads that were left behind."""
    for thread in threading.enumerate():
        if thread.name == "abate warm":
            thread.join(60)


# -- httpx


def test_httpx_has_so_many_connections_open():
    """The server counts them, and the requests that follow open no other."""
    with Server(*[EMPTY] * 5) as server, httpx.Client() as client:
        assert warm_httpx(client, server.url, 5) == 5
        assert server.connections == 5
        assert [request.method for request in server.requests] == ["HEAD"] * 5
        for _ in range(8):
            client.get(server.url)
        assert server.connections == 5


def test_httpx_counts_what_is_open():
    """A server that closes two without an answer has three; any status proves a connection."""
    with Server(close, respond(503), close, EMPTY, EMPTY) as server, httpx.Client() as client:
        assert warm_httpx(client, server.url, 5) == 3


def test_httpx_at_a_server_that_is_not_there():
    """All fail: httpx's own error."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    with httpx.Client() as client, pytest.raises(httpx.ConnectError):
        warm_httpx(client, url, 3)


def test_httpx_reads_the_body_of_a_get():
    """A connection whose answer was not read to its end could not be used again."""
    answers = [respond(200, body=b"healthy" * 100)] * 3
    with Server(*answers) as server, httpx.Client() as client:
        assert warm_httpx(client, server.url, 3, method="GET") == 3
        client.get(server.url)
        assert (server.connections, server.requests[0].method) == (3, "GET")


def test_httpx_that_is_late_is_left_behind():
    """Two never answer: three are open, and can be used."""
    with Server() as server, httpx.Client(timeout=60.0) as client, VirtualClock() as clock:

        def progress(done, n):
            if done == 3:
                clock.advance(30.0)

        server.script.extend([server.hang, server.hang, EMPTY, EMPTY, EMPTY])
        assert warm_httpx(client, server.url, 5, deadline=30.0, progress=progress) == 3


def test_httpx_that_fails_gives_back_what_it_holds():
    """The connections that were open can be used; a pool that leaked them would be at its limit."""

    def progress(done, n):
        if done == n:
            raise LookupError("enough")

    limits = httpx.Limits(max_connections=3)
    with Server(*[EMPTY] * 9) as server, httpx.Client(limits=limits, timeout=20.0) as client:
        for _ in range(3):
            with pytest.raises(LookupError):
                warm_httpx(client, server.url, 3, progress=progress)
        assert client.get(server.url).status_code == 200
        assert server.connections == 3


def test_httpx_that_answers_late_is_given_back():
    """After the deadline, by the thread that was left behind: the pool's only connection can be used again."""
    go = threading.Event()

    def late(connection):
        return go.wait(60) and EMPTY(connection)

    limits = httpx.Limits(max_connections=1)
    with Server(late) as server, httpx.Client(limits=limits, timeout=20.0) as client:
        with pytest.raises(TimeoutError):
            warm_httpx(client, server.url, 1, deadline=0.5)
        go.set()
        settle()
        assert client.get(server.url).status_code == 200
        assert server.connections == 1


def test_async_httpx_has_so_many_connections_open(run):
    """Under asyncio and trio."""

    async def main():
        async with httpx.AsyncClient() as client:
            assert await awarm_httpx(client, server.url, 5) == 5
            assert server.connections == 5
            for _ in range(8):
                await client.get(server.url)
            assert server.connections == 5

    with Server(*[EMPTY] * 5) as server:
        run(main)


def test_async_httpx_that_is_late_is_cancelled(run):
    """Two never answer: three are open."""

    async def main():
        async with httpx.AsyncClient() as client:
            assert await awarm_httpx(client, server.url, 5, deadline=3.0) == 3

    with Server() as server:
        server.script.extend([server.hang, server.hang, EMPTY, EMPTY, EMPTY])
        run(main)


def test_async_httpx_that_fails_gives_back_what_it_holds(run):
    """The connections that were open can be used; a pool that leaked them would be at its limit."""

    def progress(done, n):
        if done == n:
            raise LookupError("enough")

    async def main():
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=3), timeout=5.0) as client:
            for _ in range(3):
                with pytest.raises(LookupError):
                    await awarm_httpx(client, server.url, 3, progress=progress)
            assert server.connections == 3
            assert (await client.get(server.url)).status_code == 200

    with Server(*[EMPTY] * 9) as server:
        run(main)


def test_async_httpx_that_is_cancelled_gives_back_what_it_holds(run):
    """One never answers, the caller leaves: the two that were open are given back."""

    async def cancelled_at(done, opening):
        if abate.clock.in_trio():
            with trio.CancelScope() as scope:
                await opening(lambda now, n: now == done and scope.cancel())
        else:
            task = asyncio.create_task(opening(lambda now, n: now == done and task.cancel()))
            with pytest.raises(asyncio.CancelledError):
                await task

    async def main():
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=3), timeout=20.0) as client:
            await cancelled_at(2, lambda progress: awarm_httpx(client, server.url, 3, deadline=60.0, progress=progress))
            server.script.clear()  # the third may have been cancelled before the server had read it
            assert (await client.get(server.url)).status_code == 200
            assert server.connections <= 3

    with Server() as server:
        server.script.extend([EMPTY, EMPTY, server.hang])
        run(main)


def test_a_connection_that_breaks_while_it_is_held_is_not_open(run):
    """The answer's head came, its body never will: that is seen when it is given back."""

    async def main():
        async with httpx.AsyncClient() as client:
            assert await awarm_httpx(client, server.url, 2, method="GET") == 1

    with Server(close_in_body) as server:
        run(main)
    with Server(close_in_body) as server, httpx.Client() as client:
        assert warm_httpx(client, server.url, 2, method="GET") == 1


# -- SQLAlchemy


@pytest.fixture
def engine(tmp_path):
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/orders.db", poolclass=sqlalchemy.QueuePool, pool_size=5)
    yield engine
    engine.dispose()


def test_sqlalchemy_has_so_many_connections_in_its_pool(engine):
    """All opened, none handed out twice, and what follows opens no other."""
    opened = []
    sqlalchemy.event.listen(engine, "connect", lambda connection, record: opened.append(connection))
    assert warm_sqlalchemy(engine, 5) == 5
    assert (len(opened), engine.pool.checkedin(), engine.pool.checkedout()) == (5, 5, 0)
    with engine.connect() as connection:
        assert connection.scalar(sqlalchemy.text("select 1")) == 1
    assert len(opened) == 5


def test_sqlalchemy_says_how_many_the_pool_keeps(engine):
    """Ten are opened for a moment, five stay."""
    assert warm_sqlalchemy(engine, 10) == 5


def test_sqlalchemy_gives_late_connections_back(engine):
    """The pool has 15 connections at most: the 16th call gets one when others are returned, and returns it too."""
    assert warm_sqlalchemy(engine, 16, deadline=1.0) == 5
    settle()
    assert engine.pool.checkedout() == 0


def test_sqlalchemy_at_a_database_that_is_not_there(tmp_path):
    """All fail: SQLAlchemy's own error."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/none/orders.db")
    with pytest.raises(sqlalchemy.exc.OperationalError):
        warm_sqlalchemy(engine, 3)
    engine.dispose()


@needs_greenlet
def test_async_sqlalchemy_has_so_many_connections_in_its_pool(tmp_path):
    """All opened, none handed out twice."""

    async def main():
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/orders.db", pool_size=5)
        assert await awarm_sqlalchemy(engine, 5) == 5
        assert (engine.pool.checkedin(), engine.pool.checkedout()) == (5, 0)
        assert await awarm_sqlalchemy(engine, 7) == 5
        await engine.dispose()

    asyncio.run(main())


def test_a_pool_that_does_not_count_is_believed(tmp_path):
    """A NullPool keeps nothing, and cannot say so."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/orders.db", poolclass=sqlalchemy.NullPool)
    assert (warm_sqlalchemy(engine, 3), warm_sqlalchemy(engine, 0)) == (3, 0)
