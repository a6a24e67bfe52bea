"""What every driver raises on a real server, and the ruling on it."""

import asyncio
import contextlib

import psycopg
import psycopg2
import pymysql
import pytest

from abate import Outcome
from abate.clients.databases import CONFLICT, conflict, connection_lost
from abate.decide.outcome import BLIP, UNREACHED

WITHIN = 30.0
"""Seconds; only to fail instead of hanging."""


def code(error):
    """The driver's own code: an SQLSTATE, or MySQL's number."""
    error = getattr(error, "orig", error)
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return error.args[0] if type(error).__module__.startswith(("pymysql", "MySQLdb", "asyncmy")) else state


def rulings(error):
    outcome = Outcome(error=error)
    return conflict.judge(outcome), connection_lost.judge(outcome)


def play(driver, scene):
    """Run a scene of two sessions; the errors that came out of it."""
    return asyncio.run(asyncio.wait_for(played(driver, scene), WITHIN))


async def played(driver, scene):
    sessions = [await driver.connect(), await driver.connect()]
    try:
        return [error for error in await scene(*sessions) if error is not None]
    finally:
        for session in sessions:
            with contextlib.suppress(Exception):  # one of them may be dead
                await session.rollback()
            with contextlib.suppress(Exception):
                await session.close()


async def error_of(awaitable):
    try:
        await awaitable
    except Exception as error:
        return error


async def deadlock(one, two):
    """Each holds what the other wants."""
    await one.run("UPDATE accounts SET balance = 1 WHERE id = 1")
    await two.run("UPDATE accounts SET balance = 2 WHERE id = 2")
    return await asyncio.gather(
        error_of(one.run("UPDATE accounts SET balance = 1 WHERE id = 2")),
        error_of(two.run("UPDATE accounts SET balance = 2 WHERE id = 1")),
    )


def lock_wait(setting, account=1):
    async def scene(one, two):
        """The second waits for the first's lock, for too long."""
        await one.run(f"UPDATE accounts SET balance = 1 WHERE id = {account}")
        await two.run(setting)
        return [await error_of(two.run(f"UPDATE accounts SET balance = 2 WHERE id = {account}"))]

    return scene


async def nowait(one, two):
    """The second doesn't want to wait for the first's lock at all."""
    await one.run("UPDATE accounts SET balance = 1 WHERE id = 1")
    return [await error_of(two.run("SELECT balance FROM accounts WHERE id = 1 FOR UPDATE NOWAIT"))]


async def write_skew(one, two):
    """Both read what the other one changes: fine for either alone, not for both. The commit says so."""
    for session in (one, two):
        await session.run("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        await session.run("SELECT sum(balance) FROM accounts")
    await one.run("UPDATE accounts SET balance = 0 WHERE id = 1")
    await two.run("UPDATE accounts SET balance = 0 WHERE id = 2")
    await one.commit()
    return [await error_of(two.commit())]


async def lost_update(one, two):
    """Both read under shared locks, and both want to write."""
    for session in (one, two):
        await session.run("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        await session.commit()
        await session.run("SELECT balance FROM accounts WHERE id = 1")
    return await asyncio.gather(
        error_of(one.run("UPDATE accounts SET balance = 1 WHERE id = 1")),
        error_of(two.run("UPDATE accounts SET balance = 2 WHERE id = 1")),
    )


async def old_snapshot(one, two):
    """The second's snapshot is older than the row that it wants to change."""
    await two.run("SET innodb_snapshot_isolation = ON")
    await two.run("SELECT balance FROM accounts WHERE id = 1")
    await one.run("UPDATE accounts SET balance = 1 WHERE id = 1")
    await one.commit()
    return [await error_of(two.run("UPDATE accounts SET balance = 2 WHERE id = 1"))]


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        (deadlock, "40P01"),
        (lock_wait("SET lock_timeout = '50ms'"), "55P03"),
        (nowait, "55P03"),
        (write_skew, "40001"),
    ],
    ids=["deadlock", "lock wait timeout", "NOWAIT", "serialization"],
)
def test_conflicts_in_postgresql_are_conflicts_through_every_driver(postgres_driver, scene, expected):
    """One session fails with the code; the ruling is to retry, and that nothing was committed."""
    (error,) = play(postgres_driver, scene)
    assert code(error) == expected
    assert rulings(error) == (CONFLICT, None)


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        (deadlock, 1213),
        (nowait, 1205),
        (lost_update, 1213),
        (old_snapshot, 1020),
    ],
    ids=["deadlock", "NOWAIT", "serialization", "old snapshot"],
)
def test_conflicts_in_mariadb_are_conflicts_through_every_driver(mariadb_driver, scene, expected):
    """One session fails with the number; the ruling is to retry, and that nothing was committed."""
    (error,) = play(mariadb_driver, scene)
    assert code(error) == expected
    assert rulings(error) == (CONFLICT, None)


def test_a_lock_wait_timeout_in_mariadb_is_a_conflict_through_every_driver(mariadb_drivers):
    """The shortest such timeout is a second, so all drivers wait at once, each for an account of its own."""

    async def main():
        setting = "SET innodb_lock_wait_timeout = 1"
        scenes = [played(driver, lock_wait(setting, n)) for n, driver in enumerate(mariadb_drivers, 1)]
        return await asyncio.wait_for(asyncio.gather(*scenes), WITHIN)

    for (error,) in asyncio.run(main()):
        assert code(error) == 1205
        assert rulings(error) == (CONFLICT, None)


QUESTIONS = {
    "postgres": ("SELECT pg_backend_pid()", "SELECT 1 FROM pg_stat_activity WHERE pid = {}"),
    "mariadb": ("SELECT CONNECTION_ID()", "SELECT 1 FROM information_schema.processlist WHERE id = {}"),
}


def killed(driver):
    """A session is ended from outside, and used twice; through SQLAlchemy the second use is a mistake of its own."""
    server = driver.server
    who, alive = QUESTIONS[server.kind]

    async def scene(one, two):
        server.kill(victim := await one.run(who))
        while server.run(alive.format(victim)):
            await asyncio.sleep(0.01)
        uses = 1 if driver.opens is None else 2
        return [await error_of(one.run("SELECT 1")) for _ in range(uses)]

    return scene


def test_a_killed_connection_to_postgresql_may_have_been_heard(postgres_driver):
    """Worth a retry, if it may be repeated."""
    errors = play(postgres_driver, killed(postgres_driver))
    assert [rulings(error) for error in errors] == [(None, BLIP)] * (1 if postgres_driver.opens is None else 2), errors


def test_a_killed_connection_to_mariadb_may_have_been_heard(mariadb_driver):
    """Worth a retry, if it may be repeated."""
    errors = play(mariadb_driver, killed(mariadb_driver))
    assert [rulings(error) for error in errors] == [(None, BLIP)] * (1 if mariadb_driver.opens is None else 2), errors


def refusal(driver, port):
    error = asyncio.run(asyncio.wait_for(error_of(driver.connect(port)), WITHIN))
    assert error is not None
    return error


def test_a_refused_connection_to_postgresql_was_never_heard(postgres_driver, closed_port):
    """Worth a retry, whatever was to be sent."""
    assert rulings(refusal(postgres_driver, closed_port)) == (None, UNREACHED)


def test_a_refused_connection_to_mariadb_was_never_heard(mariadb_driver, closed_port):
    """Worth a retry, whatever was to be sent."""
    assert rulings(refusal(mariadb_driver, closed_port)) == (None, UNREACHED)


@pytest.mark.parametrize("connect", [psycopg.connect, psycopg2.connect], ids=["psycopg", "psycopg2"])
@pytest.mark.parametrize("host", ["no-such-host.invalid", "/no/such/directory"], ids=["name", "socket"])
def test_a_server_of_postgresql_that_is_not_there_was_never_heard(connect, host):
    """A name that does not resolve, and a socket file that is gone while the server is down."""
    with pytest.raises(Exception) as caught:
        connect(host=host, user="postgres")
    assert rulings(caught.value) == (None, UNREACHED)


def test_a_server_that_is_shutting_down_has_not_heard(ending_postgres):
    """PostgreSQL says so with a code of its own, before there is a session."""
    error = refusal(ending_postgres, ending_postgres.server.port)
    assert code(error) == "57P03"
    assert rulings(error) == (None, UNREACHED)


async def mistakes(one, two):
    """A duplicate, a missing table, a typing error, a broken rule: the next attempt would fail the same way."""
    errors = []
    for statement in (
        "INSERT INTO accounts VALUES (1, 0)",
        "SELECT * FROM nowhere",
        "SELEC 1",
        "INSERT INTO accounts VALUES (9, NULL)",
    ):
        errors.append(await error_of(one.run(statement)))
        await one.rollback()
    return errors


def test_other_errors_of_postgresql_are_neither(postgres_driver):
    """Nothing to say about mistakes."""
    assert [rulings(error) for error in play(postgres_driver, mistakes)] == [(None, None)] * 4


def test_other_errors_of_mariadb_are_neither(mariadb_driver):
    """Nothing to say about mistakes."""
    assert [rulings(error) for error in play(mariadb_driver, mistakes)] == [(None, None)] * 4


@pytest.mark.parametrize("connect", [psycopg.connect, psycopg2.connect], ids=["psycopg", "psycopg2"])
def test_a_stranger_is_not_a_lost_connection(postgres, connect):
    """A role that does not exist: the same error type as a refused connection, and no code either."""
    with pytest.raises((psycopg.OperationalError, psycopg2.OperationalError)) as caught:
        connect(host="127.0.0.1", port=postgres.port, user="stranger")
    assert rulings(caught.value) == (None, None)


def test_a_wrong_password_is_not_a_lost_connection(mariadb):
    """MySQL has a number for it."""
    with pytest.raises(pymysql.err.OperationalError) as caught:
        pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root", password="wrong")
    assert rulings(caught.value) == (None, None)


def test_numbers_of_others_are_not_mysql_s():
    """An error of another library with one of MySQL's numbers in front."""
    assert rulings(ValueError(1213)) == rulings(OSError(2013, "")) == (None, None)


def test_no_error_is_no_conflict():
    """A result is nothing for these rules."""
    assert rulings(None) == (None, None)


def test_an_error_raised_from_a_conflict_is_one(postgres):
    """An application wraps what the driver raised; also around itself, which ends."""
    try:
        try:
            raise psycopg.errors.DeadlockDetected
        except psycopg.Error as error:
            raise LookupError("no order") from error
    except LookupError as error:
        wrapped = error
    assert rulings(wrapped) == (CONFLICT, None)
    loop = LookupError()
    loop.__cause__ = LookupError()
    loop.__cause__.__cause__ = loop
    assert rulings(loop) == (None, None)


def test_an_error_raised_after_a_conflict_is_not_one():
    """It was handled, and something else went wrong."""
    try:
        try:
            raise psycopg.errors.DeadlockDetected
        except psycopg.Error:
            raise LookupError("no order")  # noqa: B904
    except LookupError as error:
        assert rulings(error) == (None, None)


@pytest.mark.parametrize(
    "text", ["connection socket closed", "the connection is lost", "server closed the connection unexpectedly"]
)
def test_what_drivers_say_without_a_code_of_a_connection_that_broke(text):
    """Which of these it is depends on who notices first, so not every run meets all of them."""
    ruling = connection_lost.judge(Outcome(error=psycopg.OperationalError(text)))
    assert (ruling.retry, ruling.reached) == (True, True)
