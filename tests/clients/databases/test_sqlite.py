"""SQLite's conflicts, on real files, through each of its drivers."""

import asyncio
import sqlite3
from contextlib import closing

import aiosqlite
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from abate import Outcome
from abate.clients.databases import CONFLICT, conflict, connection_lost
from tests.greenlets import needs_greenlet


@pytest.fixture
def path(tmp_path):
    """A database with a row, in WAL mode."""
    path = tmp_path / "accounts.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER)")
        connection.execute("INSERT INTO accounts VALUES (1, 100)")
        connection.commit()
    return path


@pytest.fixture
def holder(path):
    """Another program's connection, without transactions of its driver's own."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def with_sqlite3(path, *steps):
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        for step in steps:
            step() if callable(step) else connection.execute(step).fetchall()


def with_aiosqlite(path, *steps):
    async def main():
        async with aiosqlite.connect(path, timeout=0, isolation_level=None) as connection:
            for step in steps:
                if callable(step):
                    step()
                else:
                    await (await connection.execute(step)).fetchall()

    asyncio.run(main())


def with_sqlalchemy(path, *steps):
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0, "isolation_level": None})
    try:
        with engine.connect() as connection:
            for step in steps:
                step() if callable(step) else connection.exec_driver_sql(step)
    finally:
        engine.dispose()


def with_async_sqlalchemy(path, *steps):
    async def main():
        engine = create_async_engine(
            f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 0, "isolation_level": None}
        )
        try:
            async with engine.connect() as connection:
                for step in steps:
                    if callable(step):
                        step()
                    else:
                        await connection.exec_driver_sql(step)
        finally:
            await engine.dispose()

    asyncio.run(main())


DRIVERS = [
    with_sqlite3,
    with_aiosqlite,
    with_sqlalchemy,
    pytest.param(with_async_sqlalchemy, marks=needs_greenlet),
]


def error_of(driver, path, *steps):
    with pytest.raises((sqlite3.Error, sa.exc.DBAPIError)) as caught:
        driver(path, *steps)
    return caught.value


def code(error):
    return getattr(error, "orig", error).sqlite_errorcode


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_busy_file_is_a_conflict(driver, path, holder):
    """Another connection writes."""
    holder.execute("BEGIN IMMEDIATE")
    error = error_of(driver, path, "BEGIN IMMEDIATE")
    assert code(error) == sqlite3.SQLITE_BUSY
    assert conflict.judge(Outcome(error=error)) == CONFLICT
    assert connection_lost.judge(Outcome(error=error)) is None


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_snapshot_that_is_too_old_is_a_conflict(driver, path, holder):
    """Another connection has written since this transaction read: waiting would not help, starting again does."""
    error = error_of(
        driver,
        path,
        "BEGIN",
        "SELECT balance FROM accounts",
        lambda: holder.execute("UPDATE accounts SET balance = 1"),
        "UPDATE accounts SET balance = 2",
    )
    assert code(error) == sqlite3.SQLITE_BUSY_SNAPSHOT
    assert conflict.judge(Outcome(error=error)) == CONFLICT


def test_a_lock_in_a_shared_cache_is_a_conflict():
    """Two connections of one process share what is in memory."""
    shared = "file:shared?mode=memory&cache=shared"
    with (
        closing(sqlite3.connect(shared, uri=True, isolation_level=None)) as one,
        closing(sqlite3.connect(shared, uri=True, isolation_level=None)) as two,
    ):
        one.execute("CREATE TABLE accounts (id INTEGER)")
        one.execute("BEGIN")
        one.execute("INSERT INTO accounts VALUES (1)")
        with pytest.raises(sqlite3.OperationalError) as caught:
            two.execute("SELECT * FROM accounts")
    assert code(caught.value) == sqlite3.SQLITE_LOCKED_SHAREDCACHE
    assert conflict.judge(Outcome(error=caught.value)) == CONFLICT


def test_a_lock_of_one_s_own_is_no_conflict(path, holder):
    """A table that the same connection still reads from: no other connection can release it."""
    holder.execute("INSERT INTO accounts VALUES (2, 0)")
    reading = holder.execute("SELECT * FROM accounts")
    next(reading)
    with pytest.raises(sqlite3.OperationalError) as caught:
        holder.execute("DROP TABLE accounts")
    reading.close()
    assert code(caught.value) == sqlite3.SQLITE_LOCKED
    assert conflict.judge(Outcome(error=caught.value)) is None


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_duplicate_is_no_conflict(driver, path):
    """The next attempt would fail the same way."""
    error = error_of(driver, path, "INSERT INTO accounts VALUES (1, 0)")
    assert conflict.judge(Outcome(error=error)) is None
    assert connection_lost.judge(Outcome(error=error)) is None
