"""A session or connection whose open transaction has only read: it is rolled back first; any other is refused."""

import gc
import subprocess
import sys

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, registry, scoped_session, sessionmaker

from abate.clients import sqlalchemy_reads
from abate.clients.sqlalchemy import transaction
from abate.clients.sqlalchemy_reads import is_plain_read
from tests.trust.cost import assert_in_proportion

NOW = [0.0]
mapped = registry()


@mapped.mapped
class Account:
    __table__ = sa.Table(
        "accounts",
        mapped.metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("balance", sa.Integer, nullable=False),
    )


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def engine(request, tmp_path):
    """An engine of each database, with accounts 1 and 2 of 100 each."""
    if request.param == "sqlite":
        engine = sa.create_engine(f"sqlite:///{tmp_path}/accounts.db")
        with engine.begin() as connection:
            mapped.metadata.create_all(connection)
            connection.execute(sa.insert(Account).values([{"id": 1, "balance": 100}, {"id": 2, "balance": 100}]))
    else:
        server = request.getfixturevalue(request.param)
        server.accounts()
        engine = sa.create_engine(server.url("psycopg" if request.param == "postgres" else "pymysql"))
    yield engine
    engine.dispose()


@pytest.fixture(params=["connection", "session", "scoped_session"])
def source(request, engine):
    """What may be in a transaction that SQLAlchemy has begun by itself."""
    if request.param == "connection":
        with engine.connect() as connection:
            yield connection
    elif request.param == "session":
        with Session(engine) as session:
            yield session
    else:
        scoped = scoped_session(sessionmaker(engine))
        yield scoped
        scoped.remove()


def balance(handle, account=1):
    return handle.scalar(sa.select(Account.balance).where(Account.id == account))


def add(handle, amount):
    handle.execute(sa.update(Account).where(Account.id == 1).values(balance=Account.balance + amount))
    return balance(handle)


def deposit(engine, amount):
    """Another transaction, committed."""
    with engine.begin() as connection:
        add(connection, amount)


def refused(run, reason):
    with pytest.raises(RuntimeError, match=f"in a transaction already, which {reason}"):
        run()


# -- only reads


def test_a_transaction_that_has_only_read_is_rolled_back_first(engine, source):
    """The function starts afresh: it sees what was committed since that read."""
    run = transaction(source)
    assert balance(source) == 100
    source.execute(sa.select(sa.func.count()).select_from(Account).where(Account.id.in_([1, 2]))).all()
    here = source() if isinstance(source, scoped_session) else source
    assert here.in_transaction()
    deposit(engine, 1)
    assert run.call(add, 10) == 111
    assert not here.in_transaction()
    assert run.call(balance) == 111


def test_an_attribute_that_is_read_after_the_commit_does_not_stop_the_next_call(engine):
    """Reading an expired attribute begins a transaction by itself."""
    with Session(engine) as session:

        @transaction(session)
        def open_account(session, number):
            account = Account(id=number, balance=0)
            session.add(account)
            return account

        assert open_account(3).balance == 0
        assert session.in_transaction()
        assert open_account(4).balance == 0
        assert session.scalar(sa.select(sa.func.count()).select_from(Account)) == 4


def test_a_conflict_is_repeated_after_reads_of_the_caller(postgres, postgres_engine):
    """Each attempt has a transaction of its own."""
    attempts = []
    with Session(postgres_engine) as session, postgres.connect() as holder:

        @transaction(session, backoff=NOW)
        def change(session):
            attempts.append(1)
            if len(attempts) == 2:
                holder.execute("ROLLBACK")
            session.execute(sa.select(Account).where(Account.id == 2).with_for_update(nowait=True))
            return add(session, 5)

        balance(session)
        holder.execute("BEGIN")
        holder.execute("UPDATE accounts SET balance = 0 WHERE id = 2")
        assert change() == 105
    assert len(attempts) == 2


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_reads_are_rolled_back_by_asyncio_as_well(in_async_source, kind):
    """Sessions and connections."""

    async def main(source):
        run = transaction(source)
        await source.execute(sa.text("SELECT balance FROM accounts"))
        assert source.in_transaction()
        assert await run.call(aadd, 7) == 107
        await source.execute(sa.text("UPDATE accounts SET balance = 0"))
        with pytest.raises(RuntimeError, match="has sent more than plain SELECTs"):
            await run.call(aadd, 7)
        assert (await source.execute(sa.select(Account.balance))).scalars().all() == [0, 0]

    async def aadd(handle, amount):
        await handle.execute(sa.text(f"UPDATE accounts SET balance = balance + {amount} WHERE id = 1"))
        return (await handle.execute(sa.text("SELECT balance FROM accounts WHERE id = 1"))).scalar()

    in_async_source(kind, main)


# -- anything else is refused, and left as it is


def test_a_transaction_that_has_written_is_refused_and_kept(source):
    """The caller can still commit it."""
    run = transaction(source)
    add(source, 1)
    refused(lambda: run.call(add, 10), "has sent more than plain SELECTs")
    assert balance(source) == 101
    source.commit()
    assert run.call(balance) == 101


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE accounts SET balance = 7",
        "SELECT balance FROM accounts FOR UPDATE",
        "SELECT set_config('abate.tenant', '7', true)",
        "SELECT pg_advisory_xact_lock(7)",
        "WITH gone AS (DELETE FROM accounts RETURNING id) SELECT id FROM gone",
        "SELECT 1; UPDATE accounts SET balance = 7",
        "SAVEPOINT one",
    ],
)
def test_statements_that_may_do_more_than_read_are_refused(postgres_engine, statement):
    """Rows, locks and settings would be lost by a rollback."""
    with postgres_engine.connect() as connection:
        run = transaction(connection)
        balance(connection)
        connection.exec_driver_sql(statement)
        balance(connection)
        refused(lambda: run.call(balance), "has sent more than plain SELECTs")
        assert connection.in_transaction()


def test_objects_that_were_flushed_are_refused(engine):
    """They are no longer new or dirty, but their rows are not committed."""
    with Session(engine) as session:
        run = transaction(session)
        session.get(Account, 1).balance = 7
        session.flush()
        assert not session.dirty
        refused(lambda: run.call(balance), "has sent more than plain SELECTs")
        session.commit()
        assert run.call(balance) == 7


@pytest.mark.parametrize(
    "change",
    [
        lambda session: session.add(Account(id=3, balance=0)),
        lambda session: setattr(session.get(Account, 1), "balance", 7),
        lambda session: session.delete(session.get(Account, 1)),
    ],
    ids=["new", "dirty", "deleted"],
)
def test_objects_that_are_not_flushed_yet_are_refused(engine, change):
    """A rollback would forget them."""
    with Session(engine) as session:
        run = transaction(session)
        change(session)
        refused(lambda: run.call(balance), "has new, changed or deleted objects")
        assert session.new or session.dirty or session.deleted


def test_transactions_that_were_begun_explicitly_are_refused(engine):
    """They end where they were begun."""
    with Session(engine) as session, engine.connect() as connection:
        with session.begin():
            refused(lambda: transaction(session).call(balance), "belongs to a `with` block")
        session.begin()
        refused(lambda: transaction(session).call(balance), "was begun explicitly")
        with connection.begin():
            refused(lambda: transaction(connection).call(balance), "belongs to a `with` block")


def test_a_connections_transaction_that_was_begun_explicitly_is_refused(engine):
    """Its end is the program's, also where a session is bound to the connection."""
    with engine.connect() as connection:
        run = transaction(connection)
        begun = connection.begin()
        balance(connection)
        refused(lambda: run.call(balance), "was begun explicitly")
        with Session(connection) as session:
            inner = transaction(session)
            balance(session)
            refused(lambda: inner.call(balance), "was begun explicitly")
        begun.rollback()
        balance(connection)
        assert run.call(add, 5) == 105


def test_savepoints_are_refused(engine):
    """The program still needs it, to return to it."""
    with Session(engine) as session:
        run = transaction(session)
        balance(session)
        session.begin_nested()
        refused(lambda: run.call(balance), "has a savepoint")


def test_a_transaction_that_is_older_than_the_decorator_is_refused(source):
    """It is not known what it has sent; the next one is."""
    balance(source)
    run = transaction(source)
    refused(lambda: run.call(balance), "began before")
    source.rollback()
    balance(source)
    assert run.call(balance) == 100


@pytest.mark.parametrize("kind", ["connection", "session", "scoped_session"])
def test_what_takes_the_place_of_a_dropped_one_is_watched_too(kind):
    """SQLAlchemy knows listeners by addresses, and a new session may have the address of an old one."""
    engine = sa.create_engine("sqlite://")
    for _ in range(50):
        if kind == "connection":
            source = engine.connect()
        elif kind == "session":
            source = Session(engine)
        else:
            source = scoped_session(sessionmaker(engine))
        run = transaction(source)
        source.scalar(sa.text("SELECT 1"))
        assert run.call(lambda handle: handle.scalar(sa.text("SELECT 2"))) == 2
        source.close()
        del source, run


def test_a_session_on_a_connection_that_was_given_to_it_is_refused(engine):
    """What that connection has sent before would be rolled back too."""
    with engine.connect() as connection:
        add(connection, 1)
        with Session(connection) as session:
            run = transaction(session)
            balance(session)
            refused(lambda: run.call(balance), "began before")
        connection.commit()
        assert balance(connection) == 101


def test_a_nested_transaction_is_refused_before_anything_is_rolled_back(engine):
    """The session inside keeps its reads."""
    with Session(engine) as session:
        run = transaction(session)

        def around(connection):
            balance(session)
            with pytest.raises(RuntimeError, match="open around this one"):
                run.call(balance)
            assert session.in_transaction()

        transaction(engine).call(around)


# -- statements


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        " \n select a.id, count(*) AS n FROM a JOIN (SELECT 1) AS b ON (a.id = b.id) WHERE a.x IN (1, 2) GROUP BY (id)",
        "SELECT CAST(x AS NUMERIC(10, 2)), coalesce(y, 0) FROM a WHERE EXISTS (SELECT 1) LIMIT 1;",
        "SELECT id FROM a WHERE name = %(name_1)s AND (x = ? OR y = $1::INTEGER)",
    ],
)
def test_plain_reads(statement):
    """SELECTs with nothing but keywords and functions that only compute."""
    assert is_plain_read(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "INSERT INTO a VALUES (1)",
        "WITH b AS (SELECT 1) SELECT * FROM b",
        "PRAGMA user_version = 3",
        "SELECT nextval('numbers')",
        'SELECT "pay" (1)',
        "SELECT `pay`(1)",
        "SELECT [pay](1)",
        "SELECT public.pay(1)",
        "SELECT shop.count(1)",
        "SELECT * FROM a WITH (UPDLOCK)",
        "SELECT * FROM a (UPDLOCK)",
        "SELECT 1 INTO OUTFILE 'a'",
        "SELECT * FROM a LOCK IN SHARE MODE",
        "SELECT 1 /*! INTO OUTFILE 'a' */",
        "SELECT 1; DELETE FROM a",
        "SELECT nextval -- a comment\n('numbers')",
        "SELECT nextval --and\n('numbers')",
        "SELECT pay # a comment\n(1)",
    ],
)
def test_statements_that_are_no_plain_reads(statement):
    """Whatever writes, locks, or calls a function that is not known."""
    assert not is_plain_read(statement)


@pytest.mark.parametrize("piece", ["x", "#", "--", ";", "; ", "# a\n", '"', "x ", "\n"])
def test_a_statement_takes_time_in_proportion(piece):
    """A program may write a literal of megabytes into it."""
    assert_in_proportion(lambda length: is_plain_read(f"SELECT '{piece * length}'"), 1000)


def test_nothing_is_kept_of_transactions_that_are_over(tmp_path):
    """A session that lives long has many of them."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/empty.db")
    with Session(engine) as session:
        run = transaction(session)
        for _ in range(50):
            session.scalar(sa.text("SELECT 1"))
            run.call(lambda session: session.scalar(sa.text("SELECT 1")))
    gc.collect()
    assert len(sqlalchemy_reads._only_reads) <= 1
    assert len(sqlalchemy_reads._connections) <= 1
    engine.dispose()


def test_without_greenlet_everything_but_asyncio_works():
    """SQLAlchemy 2.1 is installed without it, and cannot import its asyncio module then."""
    program = """
import sys
sys.modules["greenlet"] = None
import sqlalchemy as sa
from abate.clients.sqlalchemy import transaction
engine = sa.create_engine("sqlite://")
print(transaction(engine).call(sa.Connection.scalar, sa.text("SELECT 42")))
try:
    transaction(42)
except TypeError as error:
    print(error)
print("sqlalchemy.ext.asyncio" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    said = "source must be an engine, connection, sessionmaker or session, not 42"
    assert done.stdout.splitlines() == ["42", said, "False"], done.stderr
