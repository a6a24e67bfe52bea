"""Opens connections of a pool before traffic comes.

The first requests of a new process all need name lookups, handshakes and logins at the same time, often from a server
that was just restarted too. These functions open several connections at the same time and return them to their pool.

* Connections are held until all are open or have failed. Otherwise a pool would open one and hand it out n times.
* Some connections may fail: the result is how many are open. If none is open, the first error is raised.
* Connections that are not open at the deadline are given up. Async ones are cancelled. Threads can't be cancelled, so
  their connections are returned to the pool when they open.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from abate import clock as clocks
from abate.errors import AttemptTimeout, number, whole
from abate.schedule import deadlines

if TYPE_CHECKING:
    import httpx
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["awarm", "awarm_httpx", "awarm_sqlalchemy", "warm", "warm_httpx", "warm_sqlalchemy"]

T = TypeVar("T")
Progress = Callable[[int, int], object]
"""Called after each connection with the number that opened or failed, and the total."""


def warm(n: int, connect: Callable[[], object], *, deadline: float = 10.0, progress: Progress | None = None) -> int:
    """Open `n` connections at the same time, by calling `connect` in `n` threads; return how many are open.

    `deadline` is in seconds. `connect` runs under it as an abate deadline, which clients inside respect.

    >>> opened = []
    >>> warm(3, lambda: opened.append("connection"), progress=lambda done, n: print(done, "of", n))
    1 of 3
    2 of 3
    3 of 3
    3
    """
    return len(_open_all(WarmUp(n, deadline, progress), connect, _keep_open))


async def awarm(
    n: int, connect: Callable[[], Awaitable[object]], *, deadline: float = 10.0, progress: Progress | None = None
) -> int:
    """Open `n` connections at once, by calling `connect` in `n` tasks of asyncio or trio; return how many are open.

    >>> import asyncio
    >>> asyncio.run(awarm(3, lambda: asyncio.sleep(0.0, "connection")))
    3
    """
    return len(await _aopen_all(WarmUp(n, deadline, progress), connect))


def warm_httpx(
    client: httpx.Client,
    url: httpx.URL | str,
    n: int,
    *,
    method: str = "HEAD",
    deadline: float = 10.0,
    progress: Progress | None = None,
) -> int:
    """Open `n` connections of an httpx client, by concurrent requests to `url`; return how many are open.

    A response with any status counts as open. The client keeps at most ``max_keepalive_connections`` (20 by default),
    and with HTTP/2 one connection serves all requests.

    >>> import httpx
    >>> with httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200))) as client:
    ...     warm_httpx(client, "http://orders/health", 3)
    3
    """

    def connect() -> httpx.Response:
        return client.send(client.build_request(method, url), stream=True)

    def release(response: httpx.Response) -> None:
        try:
            response.read()  # closing a response that was not read completely would close the connection
        finally:
            response.close()

    return _release_all(_open_all(WarmUp(n, deadline, progress), connect, release), release)


async def awarm_httpx(
    client: httpx.AsyncClient,
    url: httpx.URL | str,
    n: int,
    *,
    method: str = "HEAD",
    deadline: float = 10.0,
    progress: Progress | None = None,
) -> int:
    """Do the same as `warm_httpx` for an async client.

    >>> import asyncio, httpx
    >>> async def main():
    ...     async with httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200))) as client:
    ...         return await awarm_httpx(client, "http://orders/health", 3)
    >>> asyncio.run(main())
    3
    """

    async def connect() -> httpx.Response:
        return await client.send(client.build_request(method, url), stream=True)

    async def release(response: httpx.Response) -> None:
        try:
            await response.aread()
        finally:
            await response.aclose()

    return await _aopen_and_release(WarmUp(n, deadline, progress), connect, release)


def warm_sqlalchemy(engine: Engine, n: int, *, deadline: float = 10.0, progress: Progress | None = None) -> int:
    """Check out `n` connections of an SQLAlchemy engine at the same time, and return them; return how many stay open.

    The pool keeps at most its ``pool_size``.

    >>> import sqlalchemy, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     engine = sqlalchemy.create_engine(f"sqlite:///{folder}/orders.db", pool_size=3)
    ...     warm_sqlalchemy(engine, 3), engine.pool.checkedin()
    ...     engine.dispose()
    (3, 3)
    """

    def release(connection: Any) -> None:
        connection.close()

    return _idle_in_pool(
        engine.pool, _release_all(_open_all(WarmUp(n, deadline, progress), engine.connect, release), release)
    )


async def awarm_sqlalchemy(
    engine: AsyncEngine, n: int, *, deadline: float = 10.0, progress: Progress | None = None
) -> int:
    """Do the same as `warm_sqlalchemy` for an async engine.

    >>> import asyncio, tempfile
    >>> from sqlalchemy.ext.asyncio import create_async_engine
    >>> async def main(folder):
    ...     engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/orders.db", pool_size=3)
    ...     print(await awarm_sqlalchemy(engine, 3))
    ...     await engine.dispose()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(main(folder))
    3
    """

    async def connect() -> Any:
        return await engine.connect()

    async def release(connection: Any) -> None:
        await connection.close()

    return _idle_in_pool(engine.pool, await _aopen_and_release(WarmUp(n, deadline, progress), connect, release))


class WarmUp:
    """The state of one warm-up: its open connections, its progress and its first error."""

    def __init__(self, n: int, deadline: float, progress: Progress | None) -> None:
        self.n = whole("n", n, least=0)
        self.seconds = number("deadline", deadline, above=0)
        if progress is not None and not callable(progress):
            raise TypeError(f"progress must be a function of two numbers, not {progress!r}")
        self._progress = progress
        self._error: Exception | None = None
        self.opened: list[Any] = []
        self.done = 0

    def ended(self, connection: Any, error: Exception | None) -> None:
        """Record that a connection is open or has failed."""
        self.done += 1
        if error is None:
            self.opened.append(connection)
        elif self._error is None:
            self._error = error
        if self._progress is not None:
            self._progress(self.done, self.n)

    def result(self) -> list[Any]:
        """Return the open connections, or raise the first error if there are none."""
        if self.n and not self.opened:
            raise self._error or TimeoutError(f"none of {self.n} connections was open after {self.seconds:g} s")
        return self.opened


def _open_all(warmth: WarmUp, connect: Callable[[], T], release: Callable[[T], object]) -> list[T]:
    """Call `connect` in threads. Return the connections that are open at the deadline, or once all have ended."""
    clock = clocks.current()
    due = clock.now() + warmth.seconds
    ended: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()
    lock, late = Lock(), False

    def attempt() -> None:
        connection, failure = None, None
        try:
            with deadlines.deadline(warmth.seconds):
                connection = connect()
        except Exception as error:
            failure = error
        with lock:
            if not late:
                ended.put((connection, failure))
                return
        if failure is None:
            release(connection)  # type: ignore[arg-type]  # it opened after the deadline

    try:
        for _ in range(warmth.n):
            Thread(target=copy_context().run, args=(attempt,), name="abate warm", daemon=True).start()
        while warmth.done < warmth.n:
            warmth.ended(*ended.get(timeout=max(0.0, due - clock.now())))
    except Empty:
        pass
    except BaseException:
        _release_all(warmth.opened, release)
        raise
    finally:
        with lock:
            late = True
        while not ended.empty():
            connection, failure = ended.get()
            if failure is None:
                release(connection)  # type: ignore[arg-type]
    return warmth.result()


def _release_all(connections: list[T], release: Callable[[T], object]) -> int:
    """Return every connection to its pool; return the number of successes."""
    kept = 0
    for connection in connections:
        try:
            release(connection)
        except Exception:
            continue  # it broke meanwhile, and is not open
        kept += 1
    return kept


async def _aopen_all(warmth: WarmUp, connect: Callable[[], Awaitable[T]]) -> list[T]:
    """Call `connect` in tasks. Return the connections that are open at the deadline, or once all have ended."""
    broken: list[BaseException] = []

    async def attempt() -> None:
        connection, failure = None, None
        try:
            connection = await connect()
        except Exception as error:
            failure = error
        try:
            warmth.ended(connection, failure)
        except Exception as error:  # from the progress function
            broken.append(error)

    try:
        with deadlines.deadline(warmth.seconds):
            cut = clocks.current().within(warmth.seconds)
            async with cut:
                await _run_concurrently(attempt, warmth.n)
    except AttemptTimeout:
        pass
    if broken:
        raise broken[0]
    return warmth.result()


async def _aopen_and_release(
    warmth: WarmUp, connect: Callable[[], Awaitable[T]], release: Callable[[T], Awaitable[None]]
) -> int:
    """Open connections in tasks, and release them, even on cancellation. Return the number of successes."""
    try:
        await _aopen_all(warmth, connect)
    except BaseException:
        if clocks.in_trio():  # trio cancels everything awaited after a cancellation
            with sys.modules["trio"].move_on_after(warmth.seconds, shield=True):
                await _arelease_all(warmth.opened, release)
        else:
            await _arelease_all(warmth.opened, release)
        raise
    return await _arelease_all(warmth.opened, release)


async def _arelease_all(connections: list[T], release: Callable[[T], Awaitable[None]]) -> int:
    kept = 0
    for connection in connections:
        try:
            await release(connection)
        except Exception:
            continue  # it broke meanwhile, and is not open
        kept += 1
    return kept


async def _run_concurrently(attempt: Callable[[], Any], n: int) -> None:
    """Run the attempt `n` times concurrently, in asyncio or trio."""
    if clocks.in_trio():
        async with sys.modules["trio"].open_nursery() as nursery:
            for _ in range(n):
                nursery.start_soon(attempt)
        return
    import asyncio

    async with asyncio.TaskGroup() as group:
        for _ in range(n):
            group.create_task(attempt())


def _idle_in_pool(pool: Any, returned: int) -> int:
    """Return how many of the returned connections the pool has kept, or `returned` if the pool does not count them."""
    idle = getattr(pool, "checkedin", None)
    return returned if idle is None else min(returned, int(idle()))


def _keep_open(connection: object) -> None:
    """Do nothing: a connection that the caller opened stays open."""
