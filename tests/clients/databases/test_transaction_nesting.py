"""clients.sqlalchemy.transaction: never half of a transaction, and who retries when they are nested."""

import asyncio
import contextvars
import warnings

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import abate
from abate import report
from abate.clients.databases import OpenTransaction, open_transaction, retry_on_db_conflict
from abate.clients.sqlalchemy import transaction
from tests.clients.databases.accounts import LOCK_2, balances, conflict_in, set_balance
from tests.greenlets import needs_greenlet

NOW = [0.0]
KINDS = ["engine", "connection", "sessionmaker", "session"]


def test_an_open_connection_is_refused(postgres, postgres_engine):
    """It is inside another transaction, which would be repeated without its beginning."""
    with postgres_engine.connect() as connection:
        set_balance(connection, 7)
        with pytest.raises(RuntimeError, match="in a transaction already"):
            transaction(connection).call(set_balance, 8)
        assert connection.in_transaction()
    assert balances(postgres) == [100, 100]


def test_an_open_session_is_refused(postgres, postgres_engine):
    """The same for sessions."""
    with Session(postgres_engine) as session:
        set_balance(session, 7)
        with pytest.raises(RuntimeError, match="in a transaction already"):
            transaction(session).call(set_balance, 8)
    assert balances(postgres) == [100, 100]


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_open_ones_are_refused_by_asyncio_as_well(in_async_source, kind):
    """And left as they are."""

    async def main(source):
        await source.execute(sa.text("SELECT 1"))
        with pytest.raises(RuntimeError, match="in a transaction already"):
            await transaction(source).call(ask)
        assert source.in_transaction()

    async def ask(handle):
        pass

    in_async_source(kind, main)


@pytest.mark.parametrize("outer", KINDS)
@pytest.mark.parametrize("inner", ["engine", "engine with options", "sessionmaker", "connection", "session"])
def test_one_transaction_of_an_engine_inside_another_is_refused(sqlite_engine, outer, inner):
    """The inner one would be committed by itself, and repeated with the outer one."""
    made = {
        "engine": lambda: sqlite_engine,
        "engine with options": lambda: sqlite_engine.execution_options(logging_token="inner"),
        "sessionmaker": lambda: sessionmaker(sqlite_engine),
        "connection": sqlite_engine.connect,
        "session": lambda: Session(sqlite_engine),
    }
    runs = []
    outside, inside = made[outer](), made[inner]()

    @transaction(inside)
    def within(handle):
        runs.append("inner")

    @transaction(outside)
    def around(handle):
        runs.append("outer")
        within()

    try:
        with pytest.raises(RuntimeError, match="open around this one"):
            around()
        assert runs == ["outer"]
        within()
        assert runs == ["outer", "inner"]
    finally:
        for source in (outside, inside):
            if isinstance(source, (sa.Connection, Session)):
                source.close()


@pytest.mark.parametrize("kind", KINDS)
def test_one_transaction_inside_another_is_refused_by_asyncio_as_well(in_async_source, kind):
    """Also in a task of its own: it shares the context."""

    async def main(source):
        engine = {"engine": source, "connection": getattr(source, "engine", None)}.get(kind)
        engine = source.kw["bind"] if kind == "sessionmaker" else source.bind if kind == "session" else engine

        async def around(handle):
            with pytest.raises(RuntimeError, match="open around this one"):
                await asyncio.create_task(transaction(engine).call(within))
            return "done"

        async def within(handle):
            pytest.fail("it ran")

        assert await transaction(source).call(around) == "done"

    in_async_source(kind, main)


def test_transactions_of_different_engines_may_be_nested(sqlite_engine, postgres_engine):
    """Each is a whole one; this one in that one in this one is not."""
    ours, theirs = transaction(sqlite_engine), transaction(postgres_engine)
    select = sa.text("SELECT 42")

    assert ours.call(lambda one: theirs.call(lambda two: two.scalar(select))) == 42
    with pytest.raises(RuntimeError, match="open around this one"):
        ours.call(lambda one: theirs.call(lambda two: ours.call(lambda three: None)))
    assert open_transaction() is None


def test_sessions_of_several_engines_are_nested_by_their_factory(sqlite_engine, postgres_engine):
    """Where no single engine is known, the sessionmaker stands for it."""
    several = sessionmaker(binds={sa.orm.DeclarativeBase: sqlite_engine})
    assert transaction(several).call(lambda session: 42) == 42
    with pytest.raises(RuntimeError, match="open around this one"):
        transaction(several).call(lambda session: transaction(several).call(lambda inner: None))


@needs_greenlet
def test_asyncio_sessions_without_an_engine_are_taken_as_they_come():
    """They know their engine when they have a statement."""

    async def ask(session):
        return 42

    assert asyncio.run(transaction(async_sessionmaker()).call(ask)) == 42


def test_a_decorated_function_inside_passes_its_conflicts_on(postgres, postgres_engine):
    """The transaction is the one around it, and that one is repeated."""
    runs = []
    holder = conflict_in(postgres)

    @retry_on_db_conflict(max_attempts=10, backoff=NOW)
    def lock(connection):
        runs.append("inner")
        connection.execute(LOCK_2)

    @transaction(postgres_engine, max_attempts=2, backoff=NOW)
    def change(connection):
        runs.append("outer")
        if len(runs) > 2:
            holder.execute("ROLLBACK")
        lock(connection)

    change()
    holder.close()
    assert runs == ["outer", "inner"] * 2


def test_a_transaction_inside_a_decorated_function_is_the_only_one_that_retries(postgres, postgres_engine):
    """It is a whole one; when it gives up, the layer around does not start again."""
    runs = []
    holder = conflict_in(postgres)

    @transaction(postgres_engine, max_attempts=2, backoff=NOW, name="inner")
    def change(connection):
        runs.append("inner")
        connection.execute(LOCK_2)

    @retry_on_db_conflict(max_attempts=5, backoff=NOW, name="outer")
    def around():
        runs.append("outer")
        change()

    with warnings.catch_warnings(), pytest.raises(OperationalError) as caught:
        warnings.simplefilter("ignore", abate.LayeredRetryWarning)
        around()
    holder.close()
    assert runs == ["outer", "inner", "inner"]
    assert report(caught.value).reason == "layer"


# -- what it refuses


def test_autocommit_is_refused(postgres, postgres_engine):
    """There is no transaction to repeat, so nothing is run."""
    eager = postgres_engine.execution_options(isolation_level="AUTOCOMMIT")
    for maker in (eager, sessionmaker(eager)):
        with pytest.raises(RuntimeError, match="AUTOCOMMIT"):
            transaction(maker).call(set_balance, 7)
    assert balances(postgres) == [100, 100]


@needs_greenlet
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_autocommit_is_refused_by_asyncio_as_well(postgres, driver):
    """Engines and sessions."""

    async def main():
        engine = create_async_engine(postgres.url(driver), isolation_level="AUTOCOMMIT")
        for maker in (engine, async_sessionmaker(engine)):
            with pytest.raises(RuntimeError, match="AUTOCOMMIT"):
                await transaction(maker).call(never)
        await engine.dispose()

    async def never(handle):
        pytest.fail("it ran")

    asyncio.run(main())


@pytest.mark.parametrize("driver", ["pymysql", "mysqldb"])
def test_mysql_s_autocommit_is_refused(mariadb, driver):
    """Its drivers are asked."""
    engine = sa.create_engine(mariadb.url(driver), isolation_level="AUTOCOMMIT")
    with pytest.raises(RuntimeError, match="AUTOCOMMIT"):
        transaction(engine).call(set_balance, 7)
    engine.dispose()


def test_programs_that_write_begin_themselves_are_not_taken_for_autocommit():
    """SQLAlchemy's own recipe for SQLite: switch the driver's transactions off, and begin them at an event."""
    engine = sa.create_engine("sqlite://", connect_args={"isolation_level": None})
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    assert transaction(engine).call(sa.Connection.scalar, sa.text("SELECT 42")) == 42
    engine.dispose()


@pytest.mark.parametrize("source", ["sqlite://", None, 42])
def test_what_is_no_source_is_refused(source):
    """By name."""
    with pytest.raises(TypeError, match=f"source must be an engine, .*not {source!r}"):
        transaction(source)


def test_functions_of_the_wrong_kind_are_refused(sqlite_engine):
    """A plain function for an asyncio engine, a coroutine function for a plain one, no function, no first argument."""

    async def awaited(connection):
        pass

    with pytest.raises(TypeError, match="Engine runs a plain function"):
        transaction(sqlite_engine)(awaited)
    with pytest.raises(TypeError, match="runs a coroutine function"):
        transaction(async_sessionmaker())(set_balance)
    with pytest.raises(TypeError, match="runs functions, not 42"):
        transaction(sqlite_engine)(42)
    with pytest.raises(TypeError, match="first argument"):
        transaction(sqlite_engine)(lambda: None)
    with pytest.raises(TypeError, match="first argument"):
        transaction(sqlite_engine)(lambda *, connection: None)
    with pytest.raises(ValueError, match="attempts"):
        transaction(sqlite_engine, max_attempts=0)


def test_a_transaction_that_is_left_in_another_context_takes_none_away_there():
    """As a generator may be: it is over where it was entered, and the other context is still in its own."""
    first, here = OpenTransaction(), contextvars.copy_context()
    here.run(first.__enter__)
    with OpenTransaction() as own:
        first.__exit__(None, None, None)
        assert open_transaction() is own
    assert here.run(open_transaction) is None
