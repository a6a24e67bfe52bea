"""What can be wrong with a database in PostgreSQL: a clear error each, that says what to do, and no password in it."""

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
    """Within it, stores are of the first version: the functions left the planner its choice."""
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


def like(user, password="", rest=""):
    """The URL of another user, or of another place."""
    return database().replace("postgres@", f"{user}{password and ':'}{password}@") + rest


@pytest.fixture
def role():
    """A user that may do nothing but log in, by a password."""
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
    """The error says what was expected, and nobody is asked."""
    with pytest.raises(ValueError) as raised:
        open_store(url)
    assert said in str(raised.value)
    assert "secret" not in "".join(traceback.format_exception(raised.value)).replace(repr(url), "")


def test_a_store_is_called_by_its_place_and_not_by_its_password():
    """In logs and events."""
    address = Address(f"//me:{QUOTED}@db.example:6543/work?schema=jobs&sslmode=require")
    assert str(address) == repr(address) == "postgresql://db.example:6543/work (schema jobs)"
    with open_store(empty_store()) as store:
        assert store.name == str(store.pool.address)
        assert store.name in repr(store)


def test_what_is_not_abates_goes_to_libpq():
    """And what the server says of a password is taken out, should it ever."""
    address = Address(f"//me:{QUOTED}@db.example/work?sslmode=require&options=-c%20work_mem%3D1MB&timeout=2.5")
    told = address.conninfo(limited=True).decode()
    for part in ("sslmode='require'", "-c work_mem=1MB", "statement_timeout=2500", "tcp_user_timeout='2500'"):
        assert part in told
    assert address.without_password(f"bad {SECRET} and {QUOTED}") == "bad *** and ***"


def test_without_the_driver_the_extra_is_named():
    """When the URL is opened, and not before."""
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


# ── Who may ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_wrong_password(role, caplog):
    """It is not shown, nor is the right one."""
    caplog.set_level(logging.DEBUG)
    wrong = "wr0ng-one"
    with pytest.raises(StoreError) as raised:
        open_store(like(role, wrong))
    text = "".join(traceback.format_exception(raised.value))
    assert "rejects this password: check the user and the password in the URL" in text
    for secret in (wrong, SECRET):
        assert secret not in text + caplog.text


def test_no_password(role):
    """The error says where it goes."""
    assert "asks for a password: put one into the URL" in refusal(like(role))


def test_a_user_that_may_make_no_tables(role, url):
    """The error says what to run; when that was run, it works."""
    theirs = like(role, QUOTED, f"?schema={schema_of(url)}")
    said = refusal(theirs)
    assert "does not let user 'clerk' create tables" in said
    statements = said.partition("run: ")[2].partition(" (PostgreSQL")[0]
    connection().execute(statements)
    with open_store(theirs) as store:
        assert store.queue("orders").add("a") is True


def test_a_user_that_may_not_use_the_tables_of_another(role, filled):
    """The error says what to grant."""
    said = refusal(like(role, QUOTED, f"?schema={schema_of(filled)}"))
    assert "GRANT" in said
    assert schema_of(filled) in said


def test_a_user_that_may_not_replace_the_functions_of_another(role, url, older):
    """The error says who is to open the store."""
    name = schema_of(url)
    with older:
        open_store(url).close()
    connection().execute(f"GRANT ALL ON SCHEMA {name} TO clerk; GRANT ALL ON ALL TABLES IN SCHEMA {name} TO clerk")
    said = refusal(like(role, QUOTED, f"?schema={name}"))
    assert f"has the schema '{name}' of an older version, which user 'clerk' may not migrate" in said


# ── Where ────────────────────────────────────────────────────────────────────────────────────────────────


def test_nobody_listens():
    """Is the server up, and the port right?"""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        said = refusal(f"postgresql://me:{QUOTED}@127.0.0.1:{held.getsockname()[1]}/db")
    assert "can't be reached: nothing listens there; is the server up, and the port right?" in said
    assert SECRET not in said


def test_there_is_no_such_host():
    """By its name."""
    assert "can't be found: there is no host of that name" in refusal("postgresql://me@nowhere.invalid/db?timeout=3")


def test_there_is_no_such_database_or_user():
    """Which of them, PostgreSQL says."""
    for url in (database() + "2", like("nobody")):
        assert "does not know this user, or has no database of this name" in refusal(url)


def test_who_listens_is_no_server_at_all():
    """One that never says a word: after the timeout it is given up."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        said = refusal(f"postgresql://me@127.0.0.1:{mute.getsockname()[1]}/db?timeout=0.3")
    assert "does not answer within 0.3 s" in said


def test_a_standby_can_only_be_read(url):
    """It is said on opening, not at the first add."""
    said = refusal(f"{url}&options=-c%20default_transaction_read_only%3Don")
    assert "can only be read, as a standby is: connect to the primary" in said


def test_a_server_that_is_too_old(url, monkeypatch):
    """The error says which is needed."""
    monkeypatch.setattr(pool, "MIN_VERSION", 990000)
    assert "expected 99 or newer" in refusal(url)


def test_a_database_that_can_not_hold_all_languages(url):
    """The error says how to make one."""
    connection().execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        assert "has the encoding LATIN1: expected UTF8" in refusal(database().removesuffix("postgres") + "latin")
    finally:
        connection().execute("DROP DATABASE latin WITH (FORCE)")


# ── Versions ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("table", ["item (theirs text)", "store (theirs text)", "store (program text, version int)"])
def test_tables_of_another_program(url, table):
    """Nothing in it is touched."""
    name = schema_of(url)
    connection().execute(f"CREATE SCHEMA {name}; CREATE TABLE {name}.{table}")
    assert f"has tables of another program in the schema '{name}': nothing in it was touched" in refusal(url)
    ((tables,),) = connection().execute(f"SELECT count(*) FROM pg_tables WHERE schemaname = '{name}'")
    assert tables == 1


def test_a_newer_schema(filled):
    """An older abate does not guess."""
    known = len(schema.STEPS)
    connection().execute(f"UPDATE {schema_of(filled)}.store SET version = {known + 1}")
    words = (
        f"was written by a newer abate: the schema '{schema_of(filled)}' has version {known + 1}, and this one knows"
    )
    assert words in refusal(filled)


def test_an_older_schema_is_migrated_with_what_it_holds(filled, monkeypatch):
    """Step by step, in one transaction."""
    added = ("ALTER TABLE @.item ADD COLUMN colour text", "UPDATE @.item SET colour = 'red'")
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, added, ("CREATE TABLE @.later (x text)",)))
    with open_store(filled) as store:
        assert store.pool.run("SELECT colour FROM @.item") == [(b"red",)]
        assert store.pool.run("SELECT version FROM @.store") == [(str(len(schema.STEPS)).encode(),)]
        assert [message.body for message in store.queue("orders").receive()] == ["body"]


def test_a_store_of_the_first_version_gets_the_newest_functions(url, older):
    """With what it holds, while a process of that version goes on."""
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


def test_functions_change_with_a_version_alone():
    """A schema of this version keeps those that it has: if this fails, add a step, where there has been a release since
    the last one, and write down what is new here."""
    digest = hashlib.sha256("".join(schema.FUNCTIONS).encode()).hexdigest()
    assert (len(schema.STEPS), digest[:16]) == (3, "bc83f40ac0ed4107")


def test_a_migration_that_fails_changes_nothing(filled, monkeypatch):
    """The version before can go on with it."""
    with monkeypatch.context() as newer:
        newer.setattr(schema, "STEPS", (*schema.STEPS, ("DELETE FROM @.item", "NOT SQL")))
        refusal(filled)
    with open_store(filled) as store:
        assert store.queue("orders").depth().ready == 1


def test_tables_that_were_dropped_are_made_anew(filled):
    """The next call fails, the one after that finds an empty store."""
    with open_store(filled) as store:
        queue = store.queue("orders")
        connection().execute(f"DROP SCHEMA {schema_of(filled)} CASCADE")
        with pytest.raises(StoreError):
            queue.receive()
        assert queue.receive() == []
        assert queue.add("b") is True


# ── What is in it ────────────────────────────────────────────────────────────────────────────────────────


def test_another_program_may_add_a_message(filled):
    """By SQL alone."""
    name = schema_of(filled)
    connection().execute(f"INSERT INTO {name}.item (queue, key, body) VALUES ('orders', 'theirs', 'hello')")
    connection().execute(f"INSERT INTO {name}.item (queue, key) VALUES ('only theirs', 'a')")
    with open_store(filled) as store:
        assert [message.key for message in store.queue("orders").receive(10)] == ["a", "theirs"]
        assert list(store.queues()) == ["only theirs", "orders"]


def test_what_another_program_puts_before_all_others_is_found_by_the_next_look(url):
    """Once in two seconds one looks from the beginning, and not from where the first one was."""
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
def test_what_can_not_be_read_is_buried_and_blocks_nobody(filled, attributes):
    """It is kept as it was; the next message is handed out in its place."""
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
    """Even those that PostgreSQL can't write: in keys, bodies, attributes, names and reasons."""
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


def test_a_closed_store_says_so(url):
    """Whatever is asked of it; closing twice is no mistake."""
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

class Session:  # a server that answers at once: all the time is that of the pool
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
    """Wherever they come: a process has only a few."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "True True\n", ended.stderr[-3000:]


def test_what_left_the_window_takes_no_room():
    """A name that is used for ever has a window's slots, and one that is not used any more has none."""
    clock = VirtualClock(start=1000.0)
    with open_store(empty_store(), clock=clock) as store:
        for n in range(300):
            store.ledger(f"only once {n}").deposit()
            store.ledger("often").deposit()
            clock.advance(0.2)
        ((rows,),) = store.pool.run("SELECT count(*) FROM @.slot")
        assert int(rows) <= 2 * (SLOTS + 2)
