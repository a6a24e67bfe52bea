"""What the tests of databases share: running servers, drivers, and engines."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from tests.clients.databases.drivers import DRIVERS, AsyncAlchemy, Driver
from tests.clients.databases.servers import Server, start_mariadb, start_postgres
from tests.greenlets import REASON, crashes


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_postgres(tmp_path_factory.mktemp("postgres"))
    yield server
    server.stop(signal.SIGINT)


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_mariadb(tmp_path_factory.mktemp("mariadb"))
    yield server
    server.stop(signal.SIGTERM)


@pytest.fixture
def ending_postgres(tmp_path: Path) -> Iterator[Driver]:
    """A server that shuts down as soon as its last session, which is held here, has ended."""
    server = start_postgres(tmp_path)
    try:
        with server.connect() as held:
            server.process.send_signal(signal.SIGTERM)
            while "smart shutdown" not in server.log.read_text():
                assert held.execute("SELECT 1").fetchone() == (1,)
            yield Driver(server, "asyncpg")
    finally:
        server.stop(signal.SIGINT)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is taken, so that no other program takes it, and refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def mariadb_drivers(mariadb: Server) -> list[Driver]:
    """All of them, with an account for each."""
    mariadb.accounts(number=len(DRIVERS["mariadb"]))
    drivers = [Driver(mariadb, name) for name in DRIVERS["mariadb"]]
    return [driver for driver in drivers if not (driver.face is AsyncAlchemy and crashes())]


def working(driver: Driver) -> Driver:
    """The driver, unless it needs greenlet and that crashes."""
    if driver.face is AsyncAlchemy and crashes():
        pytest.skip(REASON)
    return driver


@pytest.fixture(params=DRIVERS["postgres"])
def postgres_driver(request: pytest.FixtureRequest, postgres: Server) -> Driver:
    postgres.accounts()
    return working(Driver(postgres, request.param))


@pytest.fixture(params=DRIVERS["mariadb"])
def mariadb_driver(request: pytest.FixtureRequest, mariadb: Server) -> Driver:
    mariadb.accounts()
    return working(Driver(mariadb, request.param))


@pytest.fixture
def postgres_engine(postgres: Server) -> Iterator[sa.Engine]:
    postgres.accounts()
    engine = sa.create_engine(postgres.url("psycopg"))
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite_engine() -> Iterator[sa.Engine]:
    engine = sa.create_engine("sqlite://")
    yield engine
    engine.dispose()


@pytest.fixture
def in_async_source(postgres):
    """A function that awaits another with an engine, connection, sessionmaker or session for asyncio."""

    if crashes():
        pytest.skip(REASON)

    def run(kind, main):
        async def within():
            engine = create_async_engine(postgres.url("asyncpg"))
            try:
                if kind == "engine":
                    return await main(engine)
                if kind == "sessionmaker":
                    return await main(async_sessionmaker(engine))
                async with engine.connect() if kind == "connection" else AsyncSession(engine) as source:
                    return await main(source)
            finally:
                await engine.dispose()

        postgres.accounts()
        return asyncio.run(asyncio.wait_for(within(), 30))

    return run
