"""Connections that are open before the traffic comes.

The first requests of a fresh process pay for name lookups, handshakes and logins, all at once, and against a server
that has just been restarted too. Here so many connections are opened at the same time, and go back to their pool.

* Connections are held until all of them are open (or failed): or a pool would open one, and hand it out n times.
* One that fails is no reason not to start: what counts is how many are open. When none is, the error is raised.
* What is not open at the deadline is given up: cancelled in async code; in threads, where nothing can be cancelled,
  left alone, and given back to its pool as soon as it is open.
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

T = TypeVar("T")
Progress = Callable[[int, int], object]
"""Told after each connection how many of how many are open or have failed."""


def warm(n: int, connect: Callable[[], object], *, deadline: float = 10.0, progress: Progress | None = None) -> int:
    """Open `n` connections at the same time, by calling `connect` in `n` threads; how many are open.

    `deadline` is in seconds; `connect` runs under it, as an abate deadline that clients inside keep.

    >>> opened = []
    >>> warm(3, lambda: opened.append("connection"), progress=lambda done, n: print(done, "of", n))
    1 of 3
    2 of 3
    3 of 3
    3
    """
    return len(_open(Warmth(n, deadline, progress), connect, _nothing))


async def awarm(
    n: int, connect: Callable[[], Awaitable[object]], *, deadline: float = 10.0, progress: Progress | None = None
) -> int:
    """Open `n` connections at the same time, by calling `connect` in `n` tasks of asyncio or trio; how many are open.

    >>> import asyncio
    >>> asyncio.run(awarm(3, lambda: asyncio.sleep(0.0, "connection")))
    3
    """
    return len(await _aopen(Warmth(n, deadline, progress), connect))


def warm_httpx(
    client: httpx.Client,
    url: httpx.URL | str,
    n: int,
    *,
    method: str = "HEAD",
    deadline: float = 10.0,
    progress: Progress | None = None,
) -> int:
    """Open `n` connections of an httpx client, by as many requests to `url` at the same time; how many are open.

    Whatever the status, an answer proves the connection. The client keeps no more of them than its
    ``max_keepalive_connections`` (20 unless told otherwise), and with HTTP/2 one connection serves them all.

    >>> import httpx
    >>> with httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200))) as client:
    ...     warm_httpx(client, "http://orders/health", 3)
    3
    """

    def connect() -> httpx.Response:
        return client.send(client.build_request(method, url), stream=True)

    def release(response: httpx.Response) -> None:
        try:
            response.read()  # one that was not read to its end would close its connection
        finally:
            response.close()

    return _released(_open(Warmth(n, deadline, progress), connect, release), release)


async def awarm_httpx(
    client: httpx.AsyncClient,
    url: httpx.URL | str,
    n: int,
    *,
    method: str = "HEAD",
    deadline: float = 10.0,
    progress: Progress | None = None,
) -> int:
    """The same as `warm_httpx`, for an async client.

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

    return await _areleased(Warmth(n, deadline, progress), connect, release)


def warm_sqlalchemy(engine: Engine, n: int, *, deadline: float = 10.0, progress: Progress | None = None) -> int:
    """Check `n` connections of an SQLAlchemy engine out at the same time, and return them; how many stay open.

    The pool keeps no more than its ``pool_size``.

    >>> import sqlalchemy, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     engine = sqlalchemy.create_engine(f"sqlite:///{folder}/orders.db", pool_size=3)
    ...     warm_sqlalchemy(engine, 3), engine.pool.checkedin()
    ...     engine.dispose()
    (3, 3)
    """

    def release(connection: Any) -> None:
        connection.close()

    return _kept(engine.pool, _released(_open(Warmth(n, deadline, progress), engine.connect, release), release))


async def awarm_sqlalchemy(
    engine: AsyncEngine, n: int, *, deadline: float = 10.0, progress: Progress | None = None
) -> int:
    """The same as `warm_sqlalchemy`, for an async engine.

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

    return _kept(engine.pool, await _areleased(Warmth(n, deadline, progress), connect, release))


class Warmth:
    """How far the warming up is."""

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
        """One connection is open, or has failed."""
        self.done += 1
        if error is None:
            self.opened.append(connection)
        elif self._error is None:
            self._error = error
        if self._progress is not None:
            self._progress(self.done, self.n)

    def result(self) -> list[Any]:
        """What is open; where nothing is, the first error."""
        if self.n and not self.opened:
            raise self._error or TimeoutError(f"none of {self.n} connections was open after {self.seconds:g} s")
        return self.opened


def _open(warmth: Warmth, connect: Callable[[], T], release: Callable[[T], object]) -> list[T]:
    """Call `connect` in threads; what is open when time is up, or when all have ended."""
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
            release(connection)  # type: ignore[arg-type]  # nobody waits for it any more

    try:
        for _ in range(warmth.n):
            Thread(target=copy_context().run, args=(attempt,), name="abate warm", daemon=True).start()
        while warmth.done < warmth.n:
            warmth.ended(*ended.get(timeout=max(0.0, due - clock.now())))
    except Empty:
        pass
    except BaseException:
        _released(warmth.opened, release)
        raise
    finally:
        with lock:
            late = True
        while not ended.empty():
            connection, failure = ended.get()
            if failure is None:
                release(connection)  # type: ignore[arg-type]
    return warmth.result()


def _released(connections: list[T], release: Callable[[T], object]) -> int:
    """Give every connection back; how many could be."""
    kept = 0
    for connection in connections:
        try:
            release(connection)
        except Exception:
            continue  # it broke in the meantime, and is not open
        kept += 1
    return kept


async def _aopen(warmth: Warmth, connect: Callable[[], Awaitable[T]]) -> list[T]:
    """Call `connect` in tasks; what is open when time is up, or when all have ended."""
    broken: list[BaseException] = []

    async def attempt() -> None:
        connection, failure = None, None
        try:
            connection = await connect()
        except Exception as error:
            failure = error
        try:
            warmth.ended(connection, failure)
        except Exception as error:  # of the progress function
            broken.append(error)

    try:
        with deadlines.deadline(warmth.seconds):
            cut = clocks.current().within(warmth.seconds)
            async with cut:
                await _together(attempt, warmth.n)
    except AttemptTimeout:
        pass
    if broken:
        raise broken[0]
    return warmth.result()


async def _areleased(
    warmth: Warmth, connect: Callable[[], Awaitable[T]], release: Callable[[T], Awaitable[None]]
) -> int:
    """Open connections in tasks, and give them back, also when this is cancelled; how many could be."""
    try:
        await _aopen(warmth, connect)
    except BaseException:
        if clocks.in_trio():  # where whatever is awaited after a cancellation is cancelled as well
            with sys.modules["trio"].move_on_after(warmth.seconds, shield=True):
                await _aclosed(warmth.opened, release)
        else:
            await _aclosed(warmth.opened, release)
        raise
    return await _aclosed(warmth.opened, release)


async def _aclosed(connections: list[T], release: Callable[[T], Awaitable[None]]) -> int:
    kept = 0
    for connection in connections:
        try:
            await release(connection)
        except Exception:
            continue  # it broke in the meantime, and is not open
        kept += 1
    return kept


async def _together(attempt: Callable[[], Any], n: int) -> None:
    """Run the attempt `n` times at once, in whichever loop this is."""
    if clocks.in_trio():
        async with sys.modules["trio"].open_nursery() as nursery:
            for _ in range(n):
                nursery.start_soon(attempt)
        return
    import asyncio

    async with asyncio.TaskGroup() as group:
        for _ in range(n):
            group.create_task(attempt())


def _kept(pool: Any, returned: int) -> int:
    """How many of the returned connections the pool has kept, where it can tell."""
    idle = getattr(pool, "checkedin", None)
    return returned if idle is None else min(returned, int(idle()))


def _nothing(connection: object) -> None:
    """A connection of the user's own is the user's to keep."""
