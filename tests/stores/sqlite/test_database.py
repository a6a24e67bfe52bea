"""Files that are not as they should be: a clear error each, and nothing lost."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path

import pytest

from abate.admit.sliding_window import SLOTS
from abate.stores import Depth, StoreError, open_store
from abate.stores.sqlite import schema
from abate.stores.sqlite.database import Database
from abate.testing import VirtualClock
from tests.reentry import Interrupted, guarded, raised_at

NOBODY = 65534


@pytest.fixture
def path(tmp_path):
    return tmp_path / "work.db"


@pytest.fixture
def filled(path):
    """A store with one message, closed."""
    with open_store(f"sqlite:///{path}") as store:
        store.queue("orders").add("a", "body")
    return path


def refusal(path, options="?timeout=0.1"):
    with pytest.raises(StoreError) as raised:
        open_store(f"sqlite:///{path}{options}")
    assert str(path) in str(raised.value)
    return str(raised.value)


def test_what_was_written_is_there_after_it_was_closed(filled):
    """In a new process as in this one."""
    with open_store(f"sqlite:///{filled}") as store:
        (message,) = store.queue("orders").receive()
        assert (message.key, message.body) == ("a", "body")


def test_a_file_that_is_no_database(path):
    """It is left as it is."""
    path.write_bytes(b"Dear diary, " * 1000)
    assert "is not a database of SQLite" in refusal(path)
    assert path.read_bytes() == b"Dear diary, " * 1000


def test_a_corrupt_file(filled):
    """Whether that is seen on opening or at work."""
    size = filled.stat().st_size
    with filled.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * (size - 100))
    with pytest.raises(StoreError, match="is corrupt"), open_store(f"sqlite:///{filled}") as store:
        store.queue("orders").receive()


def test_a_directory(tmp_path):
    """No file can be made there."""
    assert "is a directory: expected a file" in refusal(tmp_path)


def test_a_folder_that_is_not_there(tmp_path):
    """No file can be made there either."""
    assert "can't be opened" in refusal(tmp_path / "nowhere" / "work.db")


def test_a_database_of_another_program(path):
    """Nothing in it is touched."""
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE item (theirs)")
    other.close()
    before = path.read_bytes()
    assert "is the database of another program" in refusal(path)
    assert path.read_bytes() == before


def test_a_file_of_a_newer_schema(filled):
    """An older abate does not guess."""
    with sqlite3.connect(filled) as newer:
        newer.execute(f"PRAGMA user_version = {len(schema.STEPS) + 1}")
    newer.close()
    known = len(schema.STEPS)
    words = f"was written by a newer abate: its schema has version {known + 1}, and this one knows {known} at most"
    assert words in refusal(filled)


def test_a_file_of_an_older_schema_is_migrated_with_what_it_holds(filled, monkeypatch):
    """Step by step, in one transaction."""
    added = ("ALTER TABLE item ADD COLUMN colour TEXT", "UPDATE item SET colour = 'red'")
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, added, ("CREATE TABLE later (x)",)))
    with open_store(f"sqlite:///{filled}") as store:
        assert store.file.read("SELECT colour FROM item") == [(b"red",)]
        assert store.file.read("PRAGMA user_version") == [(len(schema.STEPS),)]
        assert [message.body for message in store.queue("orders").receive()] == ["body"]


@pytest.mark.parametrize("version", range(1, len(schema.STEPS)))
def test_a_file_of_every_older_version_is_brought_to_the_newest(path, version):
    """What was in it is there, and what is new works."""
    with sqlite3.connect(path) as older:
        for statement in (statement for step in schema.STEPS[:version] for statement in step):
            older.execute(statement)
        older.execute(f"PRAGMA user_version = {version}")
        older.execute("INSERT INTO item (queue, key, body) VALUES ('orders', 'a', 'body')")
    older.close()
    with open_store(f"sqlite:///{path}") as store:
        assert [message.body for message in store.queue("orders").receive()] == ["body"]
        assert store.budget("orders").try_withdraw()
        assert store.shelter("orders").state == "calm"


def test_a_migration_that_fails_changes_nothing(filled, monkeypatch):
    """The version before can go on with the file."""
    with monkeypatch.context() as newer:
        newer.setattr(schema, "STEPS", (*schema.STEPS, ("DELETE FROM item", "NOT SQL")))
        refusal(filled)
    with open_store(f"sqlite:///{filled}") as store:
        assert store.queue("orders").depth().ready == 1
        assert store.file.read("PRAGMA user_version") == [(len(schema.STEPS),)]


def test_a_file_that_another_program_has_locked(filled):
    """On opening and at work: it is waited for, as long as the timeout says. Then all is as it was."""
    with open_store(f"sqlite:///{filled}?timeout=0.1") as store:
        other = sqlite3.connect(filled, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert "is locked by another program" in refusal(filled)
        with pytest.raises(StoreError, match="is locked by another program"):
            store.queue("orders").add("b")
        assert store.queue("orders").depth().ready == 1, "a reader waits for no writer"
        other.execute("ROLLBACK")
        other.close()
        assert store.queue("orders").add("b") is True


@pytest.fixture
def common_folder():
    """A folder that every user of the machine can enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def without_rights():
    """Root may write to everything, so these tests run as the user "nobody"."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    yield
    if root:
        os.seteuid(0)


def test_a_file_that_may_only_be_read(common_folder, request):
    """It is said on opening, not at the first add."""
    path = common_folder / "work.db"
    open_store(f"sqlite:///{path}").close()
    path.chmod(0o444)
    request.getfixturevalue("without_rights")
    assert "can't be written to" in refusal(path)


def test_a_file_that_may_not_even_be_read(common_folder, request):
    """It can't be opened."""
    path = common_folder / "work.db"
    open_store(f"sqlite:///{path}").close()
    path.chmod(0o000)
    request.getfixturevalue("without_rights")
    assert "can't be opened" in refusal(path)


def fill(queue):
    """Add until there is no room: the keys that were taken, and what was said of the one that was not."""
    taken = []
    while True:
        try:
            queue.add(f"key {len(taken)}", "x" * 10_000)
        except StoreError as error:
            return taken, str(error)
        taken.append(f"key {len(taken)}")


def check_full(store):
    queue = store.queue("orders")
    taken, said = fill(queue)
    assert "the disk" in said
    assert "nothing was changed" in said
    assert queue.depth().ready == len(taken) > 0
    return queue, taken


def test_a_file_that_may_not_grow(path):
    """What was taken is kept, and room that becomes free is used."""
    with open_store(f"sqlite:///{path}") as store:
        store.file.read("PRAGMA max_page_count = 200")
        queue, taken = check_full(store)
        store.file.read("PRAGMA max_page_count = 204")  # a lease may need a page of an index
        for message in queue.receive(2):
            queue.done(message)
        assert queue.add("one more", "x" * 10_000) is True
        assert len(queue.receive(1000)) == len(taken) - 1


def test_a_full_disk(tmp_path):
    """What was taken is kept, and work goes on when there is room again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("may not mount a small disk")
    try:
        with open_store(f"sqlite:///{disk}/work.db") as store:
            queue, taken = check_full(store)
            subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
            assert sorted(message.key for message in queue.receive(1000)) == sorted(taken)
            assert queue.add("one more") is True
        with open_store(f"sqlite:///{disk}/work.db") as store:
            assert store.queue("orders").depth().leased == len(taken)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# ── What other programs write into it ────────────────────────────────────────────────────────────────────


def test_another_program_may_add_a_message(filled):
    """By SQL alone."""
    with sqlite3.connect(filled) as other:
        other.execute("INSERT INTO item (queue, key, body) VALUES ('orders', 'theirs', 'hello')")
    other.close()
    with open_store(f"sqlite:///{filled}") as store:
        assert [message.key for message in store.queue("orders", capacity=1).receive(10)] == ["theirs", "a"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("body", b"\xff\xfe not text"),
        ("attributes", b"\xff"),
        ("attributes", "no JSON"),
        ("attributes", '["a list"]'),
        ("attributes", '{"a": 1}'),
        ("attributes", "[" * 100_000),
    ],
)
def test_what_can_not_be_read_is_buried_and_blocks_no_other_message(filled, column, value):
    """The bytes are kept as they were; the next message is handed out in its place."""
    with sqlite3.connect(filled) as other:
        for key in ("bad 1", "bad 2"):
            other.execute(f"INSERT INTO item (queue, key, {column}) VALUES ('orders', ?, ?)", (key, value))
    other.close()
    with open_store(f"sqlite:///{filled}") as store:
        queue = store.queue("orders")
        assert [message.key for message in queue.receive()] == ["a"]
        letters = queue.dead()
        assert [(letter.key, letter.kind, letter.receives) for letter in letters] == [
            ("bad 2", "unreadable", 0),
            ("bad 1", "unreadable", 0),
        ]
        kept = value if isinstance(value, bytes) else value.encode()
        assert store.file.read(f"SELECT {column} FROM item WHERE state = 2") == [(kept,), (kept,)]
        if column == "body":
            assert letters[0].body == "\\xff\\xfe not text"
        assert queue.redrive() == 2
        assert queue.receive() == []
        assert queue.depth() == Depth(leased=1, dead=2)


def test_a_key_that_is_not_text_is_buried_too(filled):
    """It is shown as well as it can be."""
    with sqlite3.connect(filled) as other:
        other.execute("INSERT INTO item (queue, key) VALUES ('orders', CAST(x'ff61' AS TEXT))")
    other.close()
    with open_store(f"sqlite:///{filled}") as store:
        queue = store.queue("orders")
        assert [message.key for message in queue.receive(10)] == ["a"]
        assert [letter.key for letter in queue.dead()] == ["\\xffa"]
        assert queue.purge() == 1


def test_a_closed_store_says_so(path):
    """Whatever is asked of it; closing twice is no mistake."""
    store = open_store(f"sqlite:///{path}")
    queue = store.queue("orders")
    store.close()
    store.close()
    for call in (lambda: queue.add("a"), queue.receive, queue.depth, store.queues, store.ledger("a").balance):
        with pytest.raises(StoreError, match="is closed"):
            call()


def test_the_log_and_the_file_do_not_grow_with_what_has_gone_through(path):
    """Room is used again."""
    with open_store(f"sqlite:///{path}") as store:
        queue = store.queue("orders")
        for n in range(1500):
            queue.add(f"key {n}", "x" * 20_000)
            queue.done(queue.receive()[0])
        assert sum(file.stat().st_size for file in path.parent.iterdir()) < 20_000_000


def test_what_left_the_window_takes_no_room(path):
    """A name that is used for ever has a window's slots, and one that is not used any more has none."""
    clock = VirtualClock(start=1000.0)
    with open_store(f"sqlite:///{path}", clock=clock) as store:
        for n in range(500):
            store.ledger(f"only once {n}").deposit()
            store.ledger("often").deposit()
            clock.advance(0.2)
        ((rows,),) = store.file.read("SELECT count(*) FROM slot")
        assert rows <= 2 * (SLOTS + 2)


@pytest.mark.parametrize("raises", [False, True])
def test_a_signal_handler_that_raises_leaves_nothing_locked(path, raises):
    """A soft time limit, or an interrupt that the program survives: wherever it comes, all threads can go on.

    Also while the exception, with the frames that it came through, is kept.
    """
    kept = []

    def write(db):
        db.execute("INSERT INTO names (name) VALUES ('x')")
        if raises:
            raise ValueError

    def operation():
        try:
            file.transaction(write)
        except ValueError:
            pass
        except Interrupted as error:
            kept[:] = [error]
            raise

    file, point = Database(str(path), "NORMAL", 0.0), 0
    file.transaction(lambda db: db.execute("CREATE TABLE names (name)"))
    other = sqlite3.connect(path, timeout=0.0, isolation_level=None)
    while raised_at(point := point + 1, operation, where=""):
        other.execute("BEGIN IMMEDIATE")
        other.execute("COMMIT")
        guarded(lambda: file.transaction(lambda db: db.execute("DELETE FROM names")))
    assert point > 10
    other.close()
    file.close()


def test_a_store_that_was_closed_runs_no_code_when_it_is_freed(tmp_path):
    """What a signal handler raises in a finalizer is lost, be it a soft time limit or Ctrl-C."""
    file, called = Database(f"{tmp_path}/work.db", "FULL", 5.0), []
    file.close()
    freed = weakref.ref(file)
    sys.setprofile(lambda frame, event, arg: called.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        del file
    finally:
        sys.setprofile(None)
    assert freed() is None
    assert called == []


def test_a_store_that_is_dropped_closes_its_connection(tmp_path):
    """At once, and without the warning that Python has for connections that were left open."""
    file = Database(f"{tmp_path}/work.db", "FULL", 5.0)
    db = file._db
    del file
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        db.execute("SELECT 1")
