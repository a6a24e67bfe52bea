"""Errors of stores in PostgreSQL: each says what is wrong and what to do, and contains no password."""

import contextlib
import hashlib
import logging
import signal
import socket
import subprocess
import sys
import traceback

import pytest

from abate.admit.sliding_window import SLOTS
from abate.stores import Depth, StoreError, open_store
from abate.stores.postgres import pool, schema
from abate.stores.postgres.address import Address
from abate.stores.postgres.queue_functions import INDEXED
from abate.testing import VirtualClock
from tests.conformance.postgres_server import connection, database, empty_store, new_store, server

SECRET = "s3cr3t-p@ss/w:rd"
QUOTED = "s3cr3t-p%40ss%2Fw%3Ard"


@pytest.fixture
def url():
    return new_store()


@pytest.fixture
def filled(url):
    """A store with one message, closed."""
    with open_store(url) as store:
        store.queue("orders").add("a", "body")
    return url


@pytest.fixture
def older():
    """A block in which opened stores have the schema and functions of the first version."""
    patch = pytest.MonkeyPatch()

    @contextlib.contextmanager
    def first_version():
        patch.setattr(schema, "STEPS", schema.STEPS[:1])
        functions = (text.replace(INDEXED, "").replace("@.keep_pace(p_queue, p_now)", "0") for text in schema.FUNCTIONS)
        patch.setattr(schema, "FUNCTIONS", tuple(functions))
        yield
        patch.undo()

    return first_version()


def schema_of(url):
    return url.rpartition("schema=")[2]


def refusal(url):
    with pytest.raises(StoreError) as raised:
        open_store(url)
    return str(raised.value)


def url_for(user, password="", rest=""):
    """Return the URL of the test database for another user, with a password and options."""
    return database().replace("postgres@", f"{user}{password and ':'}{password}@") + rest


@pytest.fixture
def role():
    """A user who may only log in, with a password."""
    admin = connection()
    hba = server().log.parent / "data" / "pg_hba.conf"
    before = hba.read_text()
    admin.execute(f"CREATE ROLE clerk LOGIN PASSWORD '{SECRET}'")
    hba.write_text("host all clerk 127.0.0.1/32 scram-sha-256\n" + before)
    admin.execute("SELECT pg_reload_conf()")
    yield "clerk"
    hba.write_text(before)
    admin.execute("SELECT pg_reload_conf()")
    admin.execute("DROP OWNED BY clerk")
    admin.execute("DROP ROLE clerk")


# ── URLs ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql:", "'postgresql:' is followed by two slashes: expected 'postgresql://user:password@host"),
        ("postgres:me:secret@host/db", "'postgres:' is followed by two slashes"),
        ("postgresql://me:secret@[host/db", "this is not a URL of a PostgreSQL database: expected"),
        ("postgresql://me:sec%ZZret@host/db", "this is not a URL of a PostgreSQL database: expected"),
        ("postgresql://me:secret/x@host/db", "in a user or password, write : / ? # @ % as"),
        ("postgresql://me:sec@secret@host/db", "in a user or password, write : / ? # @ % as"),
        ("postgresql://me:?secret=x@host/db", "in a user or password, write : / ? # @ % as"),
        ("postgresql://me:secret@host/db?schema=secret@", "in a user or password, write : / ? # @ % as"),
        ("postgresql://me:secret@host/db?schema=Odd-Name", "schema must be a name of at most 63 small letters"),
        ("postgresql://me:secret@host/db?schema=", "not ''"),
        ("postgresql://me:secret@host/db?schema=pg_mine", "does not begin with a digit or pg_, not 'pg_mine'"),
        ("postgresql://me:secret@host/db?timeout=soon", "timeout must be a number of seconds, not 'soon'"),
        ("postgresql://me:secret@host/db?timeout=0", "timeout must be a number at least 0.1 and at most 3600, not 0.0"),
        ("postgresql://me:secret@host/db?prefix=a", "has the options schema and timeout, and those of libpq, not 'pre"),
    ],
)
def test_a_wrong_url_is_refused_and_no_password_is_shown(url, said):
    """The error says what was expected and contains no password."""
    with pytest.raises(ValueError) as raised:
        open_store(url)
    assert said in str(raised.value)
    assert "secret" not in "".join(traceback.format_exception(raised.value)).replace(repr(url), "")


def test_the_name_of_a_store_contains_no_password():
    """Name and repr have host, port, database and schema."""
    address = Address(f"//me:{QUOTED}@db.example:6543/work?schema=jobs&sslmode=require")
    assert str(address) == repr(address) == "postgresql://db.example:6543/work (schema jobs)"
    with open_store(empty_store()) as store:
        assert store.name == str(store.pool.address)
        assert store.name in repr(store)


def test_unknown_options_are_passed_to_libpq():
    """Passwords are removed from messages of the server."""
    address = Address(f"//me:{QUOTED}@db.example/work?sslmode=require&options=-c%20work_mem%3D1MB&timeout=2.5")
    conninfo = address.conninfo(limited=True).decode()
    for part in ("sslmode='require'", "-c work_mem=1MB", "statement_timeout=2500", "tcp_user_timeout='2500'"):
        assert part in conninfo
    assert address.without_password(f"bad {SECRET} and {QUOTED}") == "bad *** and ***"


def test_without_the_driver_the_extra_is_named():
    """Opening a PostgreSQL URL without psycopg says what to install."""
    code = """if True:
        import sys
        sys.modules["psycopg"] = None
        import abate
        try:
            abate.open_store("postgresql://host/db")
        except ImportError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "a store in PostgreSQL needs psycopg 3: pip install 'abate[postgres]'\n"


# ── Permissions ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_wrong_password_is_explained(role, caplog):
    """Neither the wrong nor the right password is in the error or the log."""
    caplog.set_level(logging.DEBUG)
    wrong = "wr0ng-one"
    with pytest.raises(StoreError) as raised:
        open_store(url_for(role, wrong))
    text = "".join(traceback.format_exception(raised.value))
    assert "rejects this password: check the user and the password in the URL" in text
    for secret in (wrong, SECRET):
        assert secret not in text + caplog.text


def test_a_missing_password_is_explained(role):
    """The error says to put it into the URL."""
    assert "asks for a password: put one into the URL" in refusal(url_for(role))


def test_a_user_without_the_right_to_create_tables(role, url):
    """The error has the statements to run; after them the store works."""
    clerk_url = url_for(role, QUOTED, f"?schema={schema_of(url)}")
    said = refusal(clerk_url)
    assert "does not let user 'clerk' create tables" in said
    statements = said.partition("run: ")[2].partition(" (PostgreSQL")[0]
    connection().execute(statements)
    with open_store(clerk_url) as store:
        assert store.queue("orders").add("a") is True


def test_a_user_without_rights_on_existing_tables(role, filled):
    """The error says what to grant."""
    said = refusal(url_for(role, QUOTED, f"?schema={schema_of(filled)}"))
    assert "GRANT" in said
    assert schema_of(filled) in said


def test_a_user_without_the_right_to_migrate(role, url, older):
    """The error names the schema and the user."""
    name = schema_of(url)
    with older:
        open_store(url).close()
    connection().execute(f"GRANT ALL ON SCHEMA {name} TO clerk; GRANT ALL ON ALL TABLES IN SCHEMA {name} TO clerk")
    said = refusal(url_for(role, QUOTED, f"?schema={name}"))
    assert f"has the schema '{name}' of an older version, which user 'clerk' may not migrate" in said


# ── Server ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_closed_port_is_explained():
    """The error asks whether the server is up and the port right."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        said = refusal(f"postgresql://me:{QUOTED}@127.0.0.1:{held.getsockname()[1]}/db")
    assert "can't be reached: nothing listens there; is the server up, and the port right?" in said
    assert SECRET not in said


def test_an_unknown_host_is_explained():
    """The error says that the name can't be resolved."""
    assert "can't be found: there is no host of that name" in refusal("postgresql://me@nowhere.invalid/db?timeout=3")


def test_an_unknown_database_or_user_is_explained():
    """Both have the same message."""
    for url in (database() + "2", url_for("nobody")):
        assert "does not know this user, or has no database of this name" in refusal(url)


def test_a_server_that_never_replies_is_given_up_after_the_timeout():
    """The error names the timeout."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        said = refusal(f"postgresql://me@127.0.0.1:{mute.getsockname()[1]}/db?timeout=0.3")
    assert "does not answer within 0.3 s" in said


def test_a_standby_is_refused(url):
    """Opening the store fails, not the first add."""
    said = refusal(f"{url}&options=-c%20default_transaction_read_only%3Don")
    assert "can only be read, as a standby is: connect to the primary" in said


def test_an_old_server_is_refused(url, monkeypatch):
    """The error names the oldest supported version."""
    monkeypatch.setattr(pool, "MIN_VERSION", 990000)
    assert "expected 99 or newer" in refusal(url)


def test_a_database_that_is_not_utf8_is_refused(url):
    """The error names the encoding found and the one expected."""
    connection().execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        assert "has the encoding LATIN1: expected UTF8" in refusal(database().removesuffix("postgres") + "latin")
    finally:
        connection().execute("DROP DATABASE latin WITH (FORCE)")


# ── Versions ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("table", ["item (theirs text)", "store (theirs text)", "store (program text, version int)"])
def test_a_schema_with_tables_of_another_program_is_refused(url, table):
    """Nothing in the schema is changed."""
    name = schema_of(url)
    connection().execute(f"CREATE SCHEMA {name}; CREATE TABLE {name}.{table}")
    assert f"has tables of another program in the schema '{name}': nothing in it was touched" in refusal(url)
    ((tables,),) = connection().execute(f"SELECT count(*) FROM pg_tables WHERE schemaname = '{name}'")
    assert tables == 1


def test_a_schema_of_a_newer_version_is_refused(filled):
    """The error names both versions."""
    known = len(schema.STEPS)
    connection().execute(f"UPDATE {schema_of(filled)}.store SET version = {known + 1}")
    expected = (
        f"was written by a newer abate: the schema '{schema_of(filled)}' has version {known + 1}, and this one knows"
    )
    assert expected in refusal(filled)


def test_an_older_schema_is_migrated_with_its_messages(filled, monkeypatch):
    """All steps run in one transaction."""
    added = ("ALTER TABLE @.item ADD COLUMN colour text", "UPDATE @.item SET colour = 'red'")
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, added, ("CREATE TABLE @.later (x text)",)))
    with open_store(filled) as store:
        assert store.pool.run("SELECT colour FROM @.item") == [(b"red",)]
        assert store.pool.run("SELECT version FROM @.store") == [(str(len(schema.STEPS)).encode(),)]
        assert [message.body for message in store.queue("orders").receive()] == ["body"]


def test_a_store_of_the_first_version_gets_the_newest_functions(url, older):
    """Messages are kept, and a process of the first version keeps working."""
    query = "SELECT count(*) FROM pg_proc WHERE pronamespace = %s::regnamespace AND proconfig IS NOT NULL"
    with older:
        first = open_store(url)
        first.queue("orders").add("a", "body")
        assert connection().execute(query, (schema_of(url),)).fetchone() == (0,)
    with first, open_store(url) as store:
        assert connection().execute(query, (schema_of(url),)).fetchone()[0] > 5
        assert store.pool.run("SELECT version FROM @.store") == [(str(len(schema.STEPS)).encode(),)]
        assert [(message.body, message.unanswered) for message in store.queue("orders").receive()] == [("body", 0)]
        assert first.queue("orders").add("b") is True
        assert [message.key for message in store.queue("orders").receive()] == ["b"]


def test_functions_change_only_with_the_schema_version():
    """Functions are replaced only by a migration. If this fails: add a step, unless the last step is unreleased, and
    update the digest."""
    digest = hashlib.sha256("".join(schema.FUNCTIONS).encode()).hexdigest()
    assert (len(schema.STEPS), digest[:16]) == (4, "8c15c536785aa2cf")


def test_a_migration_that_fails_changes_nothing(filled, monkeypatch):
    """The store can still be opened by the previous version."""
    with monkeypatch.context() as newer:
        newer.setattr(schema, "STEPS", (*schema.STEPS, ("DELETE FROM @.item", "NOT SQL")))
        refusal(filled)
    with open_store(filled) as store:
        assert store.queue("orders").depth().ready == 1


def test_dropped_tables_are_created_again(filled):
    """The next call fails; the one after it finds an empty store."""
    with open_store(filled) as store:
        queue = store.queue("orders")
        connection().execute(f"DROP SCHEMA {schema_of(filled)} CASCADE")
        with pytest.raises(StoreError):
            queue.receive()
        assert queue.receive() == []
        assert queue.add("b") is True


# ── Contents ──────────────────────────────────────────────────────────────────────────────────────────────


def test_another_program_can_add_a_message_by_sql(filled):
    """The message is received, and a queue that exists only this way is listed."""
    name = schema_of(filled)
    connection().execute(f"INSERT INTO {name}.item (queue, key, body) VALUES ('orders', 'theirs', 'hello')")
    connection().execute(f"INSERT INTO {name}.item (queue, key) VALUES ('only theirs', 'a')")
    with open_store(filled) as store:
        assert [message.key for message in store.queue("orders").receive(10)] == ["a", "theirs"]
        assert list(store.queues()) == ["only theirs", "orders"]


def test_a_message_inserted_before_the_known_first_one_is_found(url):
    """Every two seconds a receive scans from the beginning instead of from the first known message."""
    clock = VirtualClock(start=1000.0)
    with open_store(url, clock=clock) as store:
        queue = store.queue("orders")
        queue.add("a")
        queue.done(queue.receive()[0])
        queue.add("b", after=60.0)
        assert queue.receive() == []
        connection().execute(f"INSERT INTO {schema_of(url)}.item (queue, key, due) VALUES ('orders', 'early', 1)")
        assert queue.receive() == []
        clock.advance(2.1)
        assert [message.key for message in queue.receive()] == ["early"]


@pytest.mark.parametrize("attributes", ["no JSON", '["a list"]', '{"a": 1}', "[" * 100_000])
def test_unreadable_messages_are_buried_unchanged(filled, attributes):
    """The next readable message is received in their place."""
    name = schema_of(filled)
    for key in ("bad 1", "bad 2"):
        connection().execute(
            f"INSERT INTO {name}.item (queue, key, due, attributes) VALUES ('orders', %s, 1, %s)", (key, attributes)
        )
    with open_store(filled) as store:
        queue = store.queue("orders")
        assert [message.key for message in queue.receive()] == ["a"]
        assert {(letter.key, letter.kind) for letter in queue.dead()} == {
            ("bad 1", "unreadable"),
            ("bad 2", "unreadable"),
        }
        kept = connection().execute(f"SELECT attributes FROM {name}.item WHERE state = 2").fetchall()
        assert kept == [(attributes,), (attributes,)]
        assert queue.depth() == Depth(leased=1, dead=2)


@pytest.mark.parametrize("text", ["\0", "a\0b", "\1", "\1\2", "\1\1\2", "\0\1\2\0", "\2\1"])
def test_every_character_is_kept(text):
    """Characters that PostgreSQL can't store are encoded, in keys, bodies, attributes, names and reasons."""
    with open_store(empty_store()) as store:
        queue = store.queue(text)
        queue.add(text, text, attributes={text: text})
        (message,) = queue.receive()
        assert (message.key, message.body, message.attributes) == (text, text, {text: text})
        queue.bury(message, text, kind=text, trace=text)
        (letter,) = queue.dead()
        assert (letter.key, letter.body, letter.kind, letter.reason, letter.trace) == (text,) * 5
        assert queue.redrive([text]) == 1
        assert list(store.queues()) == [text]
        assert store.ledger(text).try_withdraw()


def test_every_operation_of_a_closed_store_raises(url):
    """The error says that the store is closed; closing twice is allowed."""
    store = open_store(url)
    queue = store.queue("orders")
    store.close()
    store.close()
    for call in (
        lambda: queue.add("a"),
        queue.receive,
        lambda: queue.receive(wait=1.0),
        queue.depth,
        store.queues,
        store.ledger("a").balance,
    ):
        with pytest.raises(StoreError, match="is closed"):
            call()


INTERRUPTED = """
import signal, time
from abate.stores.postgres.address import Address
from abate.stores.postgres.pool import MAX_CONNECTIONS, Pool

class Interrupted(Exception): pass

class Session:  # a server that replies at once, so that signals arrive inside the pool
    used = float("inf")
    def run(self, statement, params, deadline): return []
    def broken(self): return False
    def close(self): pass

class Quick(Pool):
    def connect(self, deadline): return Session()
    def _migrate(self, session, deadline): pass

def handler(*_):
    if armed: raise Interrupted

armed = False
signal.signal(signal.SIGALRM, handler)
pool = Quick(Address("//127.0.0.1/postgres"))
end, interruptions = time.monotonic() + 1.0, 0
while time.monotonic() < end:
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, 0.0001)
        while True: pool.run("SELECT 1", limit=1.0)
    except Interrupted:
        interruptions += 1
    armed = False
print(pool._free.qsize() == MAX_CONNECTIONS, interruptions > 100)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")
def test_no_connection_is_lost_to_signal_handlers_that_raise():
    """After hundreds of interruptions the pool can still open all of its connections."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "True True\n", ended.stderr[-3000:]


def test_slots_outside_the_window_are_deleted():
    """A budget in use keeps one window of slots, and an unused one keeps none."""
    clock = VirtualClock(start=1000.0)
    with open_store(empty_store(), clock=clock) as store:
        for n in range(300):
            store.ledger(f"only once {n}").deposit()
            store.ledger("often").deposit()
            clock.advance(0.2)
        ((rows,),) = store.pool.run("SELECT count(*) FROM @.slot")
        assert int(rows) <= 2 * (SLOTS + 2)
