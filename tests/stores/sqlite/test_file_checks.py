"""A SQLite file that is deleted, replaced or damaged while a process has it open, and who may read a new one."""

import os
import sqlite3
import stat
from urllib.parse import quote

import pytest

from abate.stores import StoreError, open_store
from abate.stores.sqlite import database as files
from abate.work.source import LeaseLost
from tests.stores.processes import forks, in_child, keys, waiting

KIND = "sqlite"
ENDINGS = ("", "-wal", "-shm")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "work.db"


@pytest.fixture
def queue(store):
    return store.queue("orders")


@pytest.fixture(autouse=True)
def look(monkeypatch):
    """Those who read look at the path each time, so that no test has to wait."""
    monkeypatch.setattr(files, "FILE_CHECK_INTERVAL", 0.0)


def remove(path):
    """With its log and the log's index."""
    for ending in ENDINGS:
        path.with_name(path.name + ending).unlink(missing_ok=True)


def backup(path, to):
    """A copy as another program makes it."""
    with sqlite3.connect(path) as source, sqlite3.connect(to) as target:
        source.backup(target)
    source.close()
    target.close()


# ── Deleted ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ending", [ENDINGS, ENDINGS[:1]], ids=["with its log", "alone"])
def test_a_deleted_file_takes_no_message(store, queue, path, ending, monkeypatch):
    """Each operation says that it was deleted, and none makes it again; one that writes looks each time."""
    queue.add("a")
    (message,) = queue.receive()
    monkeypatch.setattr(files, "FILE_CHECK_INTERVAL", 3600.0)
    queue.depth()
    for name in ending:
        path.with_name(path.name + name).unlink(missing_ok=True)
    for call in (lambda: queue.add("b"), lambda: queue.done(message), queue.receive, queue.depth, store.queues):
        with pytest.raises(StoreError, match=r"work\.db was deleted while this process had it open"):
            call()
    assert not path.exists()


def test_a_deleted_file_is_noticed_by_a_waiting_receive(store, queue, path):
    """It would wait for ever."""
    thread = waiting(store, queue)
    remove(path)
    with pytest.raises(StoreError, match="was deleted"):
        thread.answer()


def test_a_file_that_was_moved_away_and_back_is_used_again(queue, path):
    """With what was in it."""
    queue.add("a")
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(StoreError, match="was deleted"):
        queue.add("b")
    path.with_name("elsewhere").rename(path)
    assert queue.add("c")
    assert keys(queue.receive(10)) == ["a", "c"]


@forks
def test_a_file_that_is_deleted_around_a_fork_is_not_made_again(queue, path, monkeypatch):
    """Neither parent nor child had it open at that moment, and both say so."""
    monkeypatch.setattr(files, "FILE_CHECK_INTERVAL", 3600.0)
    queue.add("a")

    def child():
        remove(path)
        return queue.add("b")

    assert "was deleted" in in_child(child)
    with pytest.raises(StoreError, match="was deleted"):
        queue.depth()
    assert not path.exists()


def test_a_store_that_is_opened_again_begins_with_an_empty_file(url, queue, path):
    """That is asked for then; and who had the old one open goes on with the new one."""
    queue.add("a")
    remove(path)
    with open_store(url) as again:
        assert again.queues() == {}
        assert queue.add("b")
        assert keys(again.queue("orders").receive(10)) == ["b"]


# ── Replaced ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_backup_that_was_put_back_is_used(queue, path, caplog):
    """From the next operation on, and it is said once. A lease of before is not mistaken for one of after."""
    queue.add("a")
    backup(path, path.with_name("backup"))
    (before,) = queue.receive()
    queue.add("b")
    remove(path)
    path.with_name("backup").rename(path)
    assert keys(queue.receive(10)) == ["a"]
    with pytest.raises(LeaseLost):
        queue.done(before)
    assert queue.add("c")
    assert [record.message for record in caplog.records] == [f"{path} was replaced: the new file is used from now on"]


def test_who_waits_is_woken_by_what_a_backup_holds(store, queue, path):
    """Without an add."""
    queue.add("a")
    backup(path, path.with_name("backup"))
    queue.done(queue.receive()[0])
    thread = waiting(store, queue)
    remove(path)
    path.with_name("backup").rename(path)
    assert keys(thread.answer()) == ["a"]


def test_a_file_that_was_replaced_beside_its_old_log_is_refused(queue, path):
    """SQLite would mix the two; the new file is not touched, and is used when the log is gone."""
    backup(path, path.with_name("backup"))
    queue.add("a")
    path.with_name("backup").rename(path)
    before = path.read_bytes()
    for call in (lambda: queue.add("b"), queue.depth):
        with pytest.raises(StoreError, match=r"was replaced, and .*work\.db-wal still belongs to the former file"):
            call()
    assert path.read_bytes() == before
    for ending in ENDINGS[1:]:
        path.with_name(path.name + ending).unlink()
    assert queue.add("c")
    assert keys(queue.receive(10)) == ["c"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "was replaced by an empty file, which was not changed"),
        (b"Dear diary, " * 100, "is not a database of SQLite"),
    ],
)
def test_a_file_that_was_replaced_by_something_else_is_left_as_it_is(queue, path, content, why):
    """An empty one may be a copy that has only begun."""
    queue.add("a")
    remove(path)
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(StoreError, match=why):
            queue.add("b")
    assert path.read_bytes() == content


def test_a_link_that_leads_elsewhere_is_followed(tmp_path):
    """As a deployment may do it."""
    link = tmp_path / "link.db"
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        open_store(f"sqlite:///{tmp_path}/{name}/work.db").close()
    link.symlink_to(tmp_path / "first" / "work.db")
    with open_store(f"sqlite:///{link}") as store:
        queue = store.queue("orders")
        queue.add("a")
        link.unlink()
        link.symlink_to(tmp_path / "second" / "work.db")
        queue.add("b")
        assert keys(queue.receive(10)) == ["b"]


# ── The log ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_deleted_log_is_noticed_and_what_was_in_it_is_kept(queue, path):
    """By a process that is alone with the file: nothing is lost."""
    queue.add("a")
    for ending in ENDINGS[1:]:
        path.with_name(path.name + ending).unlink()
    with pytest.raises(StoreError, match=r"work\.db-wal, the log of .* was deleted or replaced"):
        queue.add("b")
    assert queue.add("c")
    assert keys(queue.receive(10)) == ["a", "c"]


def test_a_damaged_file_is_said_to_be_corrupt(store, queue, path):
    """Cut off while it is open."""
    for n in range(200):
        queue.add(f"key {n}", "x" * 500)
    store.file.read("PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(path, 4096)
    with pytest.raises(StoreError, match=r"work\.db is corrupt"):
        queue.receive(100)


def test_a_folder_that_may_not_be_entered_any_more(queue, path, monkeypatch):
    """It is an error of the store, as everything is."""

    def refused(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.file_checks, "inode", refused)
    with pytest.raises(StoreError, match=r"work\.db can't be reached \(Permission denied\)"):
        queue.add("a")


# ── Who may read it ──────────────────────────────────────────────────────────────────────────────────────


def modes(path):
    return {
        ending: stat.S_IMODE(path.with_name(path.name + ending).stat().st_mode)
        for ending in ENDINGS
        if path.with_name(path.name + ending).exists()
    }


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_new_file_is_its_owners_alone(path):
    """So are the log and its index, whatever the umask."""
    with open_store(f"sqlite:///{path}") as store:
        store.queue("orders").add("a")
        assert modes(path) == dict.fromkeys(ENDINGS, 0o600)


def test_a_new_file_is_made_as_its_owners_alone(path, monkeypatch):
    """There is no moment at which others could open it."""
    monkeypatch.delattr(os, "fchmod")
    before = os.umask(0)
    try:
        open_store(f"sqlite:///{path}").close()
    finally:
        os.umask(before)
    assert modes(path)[""] == 0o600


def test_a_new_file_at_the_end_of_a_link_is_its_owners_alone(path, tmp_path):
    """The link leads to nothing yet."""
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with open_store(f"sqlite:///{link}"):
        assert modes(path) == dict.fromkeys(ENDINGS, 0o600)


@pytest.mark.parametrize("mode", [0o644, 0o660])
def test_a_file_that_is_there_keeps_its_mode(path, mode):
    """Its owner may have wanted others to read it; the log is as the file is."""
    path.touch()
    path.chmod(mode)
    with open_store(f"sqlite:///{path}") as store:
        store.queue("orders").add("a")
        assert modes(path) == dict.fromkeys(ENDINGS, mode)


def test_a_name_with_every_kind_of_character(tmp_path):
    """It is the name of the file as it is."""
    path = tmp_path / "a b?c#d%41é&mode=memory.db"
    with open_store(f"sqlite:///{quote(str(path))}") as store:
        store.queue("orders").add("a")
    assert path.stat().st_size > 0
    assert os.listdir(tmp_path) == [path.name]
