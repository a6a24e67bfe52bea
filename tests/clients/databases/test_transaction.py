"""clients.sqlalchemy.transaction: committed whole or rolled back whole, and repeated whole."""

import inspect

import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

import abate
from abate import report
from abate.clients.databases import retry_on_db_conflict
from abate.clients.sqlalchemy import transaction
from tests.clients.databases.accounts import LOCK_2, balances, conflict_in, set_balance

NOW = [0.0]
IMPATIENT = "SET innodb_lock_wait_timeout = 0"
KINDS = ["engine", "connection", "sessionmaker", "session"]


@pytest.fixture
def mariadb_engine(mariadb):
    """An engine whose connections don't wait for locks: that is a lock wait timeout of no seconds, error 1205."""
    mariadb.accounts()
    engine = sa.create_engine(mariadb.url("pymysql"), connect_args={"init_command": IMPATIENT})
    yield engine
    engine.dispose()


@pytest.fixture(params=KINDS)
def source(request, postgres_engine):
    """Everything that a transaction can be begun with."""
    if request.param == "engine":
        yield postgres_engine
    elif request.param == "connection":
        with postgres_engine.connect() as connection:
            yield connection
    elif request.param == "sessionmaker":
        yield sessionmaker(postgres_engine)
    else:
        with Session(postgres_engine) as session:
            yield session


def test_what_returns_is_committed(postgres, source):
    """With the function's own arguments and result."""

    @transaction(source)
    def change(handle, balance, *, account):
        set_balance(handle, balance, account)
        return "done"

    assert change(7, account=2) == "done"
    assert change(8, account=1) == "done"
    assert balances(postgres) == [8, 7]


def test_what_raises_is_rolled_back_and_not_repeated(postgres, source):
    """An error of the function's own is no conflict."""
    runs = []

    @transaction(source)
    def change(handle):
        runs.append(1)
        set_balance(handle, 7)
        raise LookupError

    with pytest.raises(LookupError):
        change()
    assert (balances(postgres), runs) == ([100, 100], [1])


def test_a_conflict_is_rolled_back_and_the_whole_is_repeated(postgres, source):
    """The first attempt's work is undone before the second begins."""
    runs = []
    holder = conflict_in(postgres)

    @transaction(source, backoff=NOW)
    def change(handle):
        runs.append(handle.execute(sa.text("SELECT balance FROM accounts WHERE id = 1")).scalar())
        set_balance(handle, 7)
        if len(runs) == 2:
            holder.execute("ROLLBACK")
        handle.execute(LOCK_2)

    change()
    holder.close()
    assert (balances(postgres), runs) == ([7, 100], [100, 100])


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_holds_for_asyncio(postgres, in_async_source, kind):
    """Committed, repeated after a conflict, rolled back after an error."""
    runs = []

    async def main(source):
        holder = conflict_in(postgres)

        @transaction(source, backoff=NOW)
        async def change(handle, balance):
            runs.append(balance)
            await handle.execute(sa.text("UPDATE accounts SET balance = :b WHERE id = 1"), {"b": balance})
            if len(runs) == 2:
                holder.execute("ROLLBACK")
            await handle.execute(LOCK_2)
            if balance == 8:
                raise LookupError
            return balance

        assert await change(7) == 7
        holder.close()
        with pytest.raises(LookupError):
            await change(8)
        assert await transaction(source).call(ask, 42) == 42

    async def ask(handle, number):
        return (await handle.execute(sa.text(f"SELECT {number}"))).scalar()

    in_async_source(kind, main)
    assert (balances(postgres), runs) == ([7, 100], [7, 7, 8])


def test_a_serialization_failure_at_the_commit_is_repeated(postgres, postgres_engine):
    """The commit is part of what is repeated."""
    runs, ends = [], []
    strict = postgres_engine.execution_options(isolation_level="SERIALIZABLE")
    total = sa.text("SELECT sum(balance) FROM accounts")

    @transaction(strict, backoff=NOW)
    def change(connection):
        runs.append(connection.scalar(total))
        if len(runs) == 1:
            with strict.begin() as other:  # another transaction beside ours
                other.scalar(total)
                set_balance(other, 0, account=1)
                set_balance(connection, runs[-1], account=2)
        else:
            set_balance(connection, runs[-1], account=2)
        ends.append("nothing failed yet")

    with abate.testing.Recorder() as events:
        change()
    (retry,) = events.of(abate.events.Retry)
    assert retry.error.orig.sqlstate == "40001"
    assert ends == ["nothing failed yet"] * 2
    assert (balances(postgres), runs) == ([0, 100], [200, 100])


# -- MySQL's lock wait timeout


def test_after_a_lock_wait_timeout_mysql_s_transaction_is_still_open(mariadb, mariadb_engine):
    """Why there has to be a rollback: committing after error 1205 persists what came before it."""
    with mariadb_engine.connect() as holder, mariadb_engine.connect() as connection:
        set_balance(holder, 0, account=2)
        set_balance(connection, 7, account=1)
        connection.exec_driver_sql("SET innodb_lock_wait_timeout = 1")
        with pytest.raises(OperationalError, match="timeout exceeded") as caught:
            set_balance(connection, 7, account=2)
        assert caught.value.orig.args[0] == 1205
        connection.commit()
    assert balances(mariadb) == [7, 100]


def test_after_a_lock_wait_timeout_the_transaction_is_rolled_back(mariadb, mariadb_engine):
    """Nothing of the attempts that failed is left, whether the last one fails or not."""
    runs = []

    @transaction(mariadb_engine, max_attempts=2, backoff=NOW)
    def change(connection):
        runs.append(connection.execute(sa.text("SELECT balance FROM accounts WHERE id = 1")).scalar())
        set_balance(connection, 7, account=1)
        set_balance(connection, 7, account=2)

    with mariadb_engine.connect() as holder:
        set_balance(holder, 0, account=2)
        with pytest.raises(OperationalError) as caught:
            change()
    assert caught.value.orig.args[0] == 1205
    assert report(caught.value).reason == "attempts"
    assert (balances(mariadb), runs) == ([100, 100], [100, 100])


def test_a_decorated_function_that_leaves_by_with_is_rolled_back_too(mariadb, mariadb_engine):
    """retry_on_db_conflict without SQLAlchemy's help: the driver's own block rolls back what 1205 left open."""
    connection = mariadb.connect()
    connection.autocommit(False)

    @retry_on_db_conflict(max_attempts=2, backoff=NOW)
    def change():
        connection.begin()
        try:
            with connection.cursor() as cursor:
                cursor.execute(IMPATIENT)
                cursor.execute("UPDATE accounts SET balance = 7 WHERE id = 1")
                cursor.execute("UPDATE accounts SET balance = 7 WHERE id = 2")
            connection.commit()
        finally:
            connection.rollback()

    with mariadb_engine.connect() as holder:
        set_balance(holder, 0, account=2)
        with pytest.raises(pymysql.err.OperationalError):
            change()
    connection.close()
    assert balances(mariadb) == [100, 100]


# -- as a function


def test_an_integrity_error_is_raised_at_once(postgres, postgres_engine):
    """The next attempt would fail the same way."""
    with pytest.raises(IntegrityError) as caught:
        transaction(postgres_engine).call(sa.Connection.execute, sa.text("INSERT INTO accounts VALUES (1, 0)"))
    assert report(caught.value).attempts == 1
    assert isinstance(caught.value, DBAPIError)


def test_the_decorated_function_shows_what_its_caller_gives(sqlite_engine):
    """Its signature is without the connection, its name is kept, and names the policy."""

    def deposit(connection: sa.Connection, amount: int = 1) -> int:
        """Pay in."""
        return amount

    decorated = transaction(sqlite_engine)(deposit)
    assert str(inspect.signature(decorated)) == "(amount: int = 1) -> int"
    assert (decorated.__name__, decorated.__doc__, decorated()) == ("deposit", "Pay in.", 1)
    assert transaction(sqlite_engine)(lambda *args: len(args))(1, 2) == 3
