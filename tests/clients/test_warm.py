"""Warm-up: connections that are open, on the server's side too, before the first request."""

import asyncio
import socket
import threading

import httpx
import pytest
import sqlalchemy
import trio
from sqlalchemy.ext.asyncio import create_async_engine
from tests.clients.server import Server, close, close_in_body, respond

import abate
from abate.clients.warm import awarm, awarm_httpx, awarm_sqlalchemy, warm, warm_httpx, warm_sqlalchemy
from abate.testing import VirtualClock

EMPTY = respond(200)
"""What a HEAD is answered with: no body."""
RUNNERS = {"asyncio": lambda main: asyncio.run(main()), "trio": trio.run}


@pytest.fixture(params=RUNNERS)
def run(request):
    """Runs an async function without arguments, under asyncio and under trio."""
    return RUNNERS[request.param]


async def sleep(seconds):
    await abate.clock.current().asleep(seconds)


def settle():
    """Wait for the threads that were left behind."""
    for thread in threading.enumerate():
        if thread.name == "abate warm":
            thread.join(60)


# -- threads


def test_connections_are_opened_at_the_same_time():
    """Each waits until all have begun."""
    barrier, seen = threading.Barrier(5), []
    opened = warm(5, lambda: barrier.wait(60), progress=lambda done, n: seen.append((done, n)))
    assert opened == 5
    assert seen == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_connections_that_fail_are_counted_out():
    """They are progress, and not open."""
    ends, seen, lock = [OSError(), "open", OSError(), "open"], [], threading.Lock()

    def connect():
        with lock:
            end = ends.pop()
        if isinstance(end, OSError):
            raise end
        return end

    assert warm(4, connect, progress=lambda done, n: seen.append(done)) == 2
    assert seen == [1, 2, 3, 4]


def test_when_all_fail_the_first_error_is_raised():
    """As it is."""
    errors = [ConnectionRefusedError("one")]

    def connect():
        raise errors[0]

    with pytest.raises(ConnectionRefusedError) as caught:
        warm(3, connect)
    assert caught.value is errors[0]


def test_what_is_not_open_at_the_deadline_is_not_waited_for():
    """The others are open; where none is, that is a timeout."""
    over, ends, lock = threading.Event(), [False, True, True], threading.Lock()

    def connect():
        with lock:
            quick = ends.pop()
        if not quick:
            over.wait(60)

    assert warm(3, connect, deadline=1.0) == 2
    with pytest.raises(TimeoutError, match=r"none of 2 connections was open after 0\.01 s"):
        warm(2, lambda: over.wait(60), deadline=0.01)
    over.set()


def test_connecting_has_a_deadline_that_clients_keep():
    """The one given, or the caller's if that is nearer."""
    left = []
    with abate.deadline(3.0):
        warm(2, lambda: left.append(abate.remaining()), deadline=60.0)
    warm(2, lambda: left.append(abate.remaining()), deadline=50.0)
    assert all(seconds <= 3.0 for seconds in left[:2])
    assert all(3.0 < seconds <= 50.0 for seconds in left[2:])


def test_a_progress_function_that_raises_ends_it():
    """It is the caller's own."""

    def progress(done, n):
        raise LookupError("progress")

    with pytest.raises(LookupError):
        warm(3, lambda: None, progress=progress)


@pytest.mark.parametrize(
    ("n", "settings", "error", "message"),
    [
        (-1, {}, ValueError, "n must be a whole number of at least 0, not -1"),
        (1.5, {}, TypeError, "n must be a whole number"),
        (1, {"deadline": 0.0}, ValueError, "deadline must be a number above 0, not 0.0"),
        (1, {"progress": 7}, TypeError, "progress must be a function of two numbers, not 7"),
    ],
)
def test_arguments_that_cannot_be_are_named(n, settings, error, message):
    """Before anything is opened."""
    with pytest.raises(error, match=message):
        warm(n, lambda: None, **settings)
    with pytest.raises(error, match=message):
        asyncio.run(awarm(n, lambda: sleep(0.0), **settings))


# -- tasks


def test_tasks_open_at_the_same_time(run):
    """A second each is a second in all."""
    seen = []

    async def main():
        assert await awarm(5, lambda: sleep(1.0), progress=lambda done, n: seen.append((done, n))) == 5
        assert abate.clock.current().now() == 1.0

    with VirtualClock():
        run(main)
    assert seen == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_tasks_that_fail_are_counted_out_unless_all_do(run):
    """And then the first error is raised, in no group."""
    ends = [OSError(), None, OSError()]

    async def connect():
        end = ends.pop()
        if end is not None:
            raise end

    async def fail():
        raise ConnectionRefusedError("all")

    async def main():
        assert await awarm(3, connect) == 1
        with pytest.raises(ConnectionRefusedError, match="all"):
            await awarm(3, fail)

    run(main)


def test_tasks_that_are_late_are_cancelled(run):
    """None is left; where none was open, that is a timeout."""
    delays, gone = [60.0, 1.0, 2.0], []

    async def connect():
        delay = delays.pop()
        try:
            await sleep(delay)
        finally:
            gone.append(delay)

    async def main():
        assert await awarm(3, connect) == 2
        assert gone == [2.0, 1.0, 60.0] or gone == [1.0, 2.0, 60.0]
        assert abate.clock.current().now() == 10.0
        with pytest.raises(TimeoutError, match="none of 2 connections was open after 3 s"):
            await awarm(2, lambda: sleep(60.0), deadline=3.0)

    with VirtualClock():
        run(main)


def test_an_async_progress_function_that_raises_ends_it(run):
    """With its own error, in no group."""

    def progress(done, n):
        raise LookupError("progress")

    async def main():
        with pytest.raises(LookupError):
            await awarm(3, lambda: sleep(0.0), progress=progress)

    run(main)


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
    with Server() as server, httpx.Client(timeout=5.0) as client:
        server.script.extend([server.hang, server.hang, EMPTY, EMPTY, EMPTY])
        assert warm_httpx(client, server.url, 5, deadline=1.0) == 3


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
            assert await awarm_httpx(client, server.url, 5, deadline=1.0) == 3

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
            assert (await client.get(server.url)).status_code == 200
            assert server.connections == 3

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
    """The pool hands out no more than 15: who waits for the 16th gets one when the others are back, and returns it."""
    assert warm_sqlalchemy(engine, 16, deadline=1.0) == 5
    settle()
    assert engine.pool.checkedout() == 0


def test_sqlalchemy_gives_connections_back_when_it_fails(engine):
    """Here by a progress function that raises."""

    def progress(done, n):
        if done == 3:
            raise LookupError("enough")

    with pytest.raises(LookupError):
        warm_sqlalchemy(engine, 5, progress=progress)
    settle()
    assert engine.pool.checkedout() == 0


def test_sqlalchemy_at_a_database_that_is_not_there(tmp_path):
    """All fail: SQLAlchemy's own error."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/none/orders.db")
    with pytest.raises(sqlalchemy.exc.OperationalError):
        warm_sqlalchemy(engine, 3)
    engine.dispose()


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
