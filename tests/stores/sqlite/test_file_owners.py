"""Whose SQLite file it is: links and files of other users are not used, unless it is said that a store is shared.

These tests make files of other users, and processes that are other users, so they need root.
"""

import os
import sqlite3
import stat
import threading
import warnings

import pytest

from abate.stores import StoreError, open_store

ME, STRANGER = 31_001, 31_002

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can make files of other users"
)


@pytest.fixture
def folder(tmp_path_factory):
    """A directory that all users can reach, as only root can reach pytest's own."""
    import shutil
    import tempfile

    made = tempfile.mkdtemp(prefix="abate-owners-")
    os.chmod(made, 0o755)
    with open_store(f"sqlite:///{made}/first.db") as store:  # another user may not be able to import anything
        store.queue("orders").add("a")
        store.queue("orders").receive()
    for name in os.listdir(made):
        os.unlink(f"{made}/{name}")
    yield made
    shutil.rmtree(made)


def owned(path, mode, user):
    """A directory of a user."""
    os.mkdir(path)
    os.chown(path, user, user)
    os.chmod(path, mode)
    return path


def opened(path, user, query=""):
    """What a process of this user is told when it opens a store, adds a message and receives it; '' where it works."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: those of tests before
        child = os.fork()
    if not child:
        said = "it crashed"
        try:
            os.setgid(user)
            os.setuid(user)
            with open_store(f"sqlite:///{path}{query}") as store:
                store.queue("orders").add("a")
                said = "" if store.queue("orders").receive() else "nothing"
        except StoreError as error:
            said = str(error)
        except BaseException as error:
            said = repr(error)
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as told:
        said = told.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.fixture(params=[ME, 0], ids=["user", "root"])
def me(request):
    return request.param


def test_a_directory_of_ones_own(folder, me):
    """The usual case; the file is readable by its owner alone, and so is what lies beside it."""
    home = owned(f"{folder}/home", 0o755, me)
    assert opened(f"{home}/work.db", me) == ""
    for name in os.listdir(home):
        status = os.stat(f"{home}/{name}")
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, me)


@pytest.mark.parametrize("where", ["file", "folder"])
def test_a_link_of_another_user_is_not_followed(folder, me, where):
    """Neither in place of the file nor of a directory on the way to it; also where the store is shared."""
    home, common = owned(f"{folder}/home", 0o755, me), owned(f"{folder}/common", 0o1777, 0)
    link = f"{common}/link"
    os.symlink(f"{home}/work.db" if where == "file" else home, link)
    path = link if where == "file" else f"{link}/work.db"
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    for query in ("", "?shared=true"):
        said = opened(path, me, query)
        assert f"is reached through {link}, a symbolic link of another user ({STRANGER})" in said, said
    os.chown(link, me, me, follow_symlinks=False)
    assert opened(path, me) == ""
    os.chown(link, 0, 0, follow_symlinks=False)
    assert opened(path, me) in ("", "nothing")


def test_a_link_that_leads_nowhere_makes_no_file_elsewhere(folder, me):
    """One of another user, to where there is nothing yet."""
    home, common = owned(f"{folder}/home", 0o755, me), owned(f"{folder}/common", 0o1777, 0)
    os.symlink(f"{home}/new.db", f"{common}/link")
    os.chown(f"{common}/link", STRANGER, STRANGER, follow_symlinks=False)
    assert "symbolic link of another user" in opened(f"{common}/link", me)
    assert os.listdir(home) == []


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
def test_a_file_that_another_user_has_put_there_is_not_used(folder, me, ending):
    """In a directory that all users may write to, such as /tmp: they could read the file."""
    common = owned(f"{folder}/common", 0o1777, 0)
    if ending:
        assert opened(f"{common}/work.db", me) == ""
    with open(f"{common}/work.db{ending}", "wb"):
        pass
    os.chown(f"{common}/work.db{ending}", STRANGER, STRANGER)
    os.chmod(f"{common}/work.db{ending}", 0o666)
    said = opened(f"{common}/work.db", me)
    assert f"{common}/work.db{ending} was put into {common} by another user ({STRANGER})" in said
    assert "expected a file and a directory that belong to this user, or shared=true in the URL" in said


def test_a_file_that_a_member_of_the_group_has_put_there_is_not_used(folder, me):
    """In a directory of one's own that a group may write to; a file of one's own there is used."""
    common = owned(f"{folder}/common", 0o2775, me)
    assert opened(f"{common}/work.db", me) == ""
    os.chown(f"{common}/work.db", STRANGER, STRANGER)
    os.chmod(f"{common}/work.db", 0o666)
    assert f"was put into {common} by another user ({STRANGER})" in opened(f"{common}/work.db", me)


@pytest.mark.parametrize("ending", ["-wal", "-shm"])
def test_a_log_that_another_user_puts_there_at_the_last_moment_is_not_used(folder, monkeypatch, ending):
    """Between the check of the owners and the opening of the file: SQLite would read messages out of it."""
    common = owned(f"{folder}/common", 0o2775, ME)
    path, connect = f"{common}/work.db", sqlite3.connect
    assert opened(path, ME) == ""
    (checked, checks), (planted, plants) = os.pipe(), os.pipe()

    def connected(*args, **options):
        os.write(checks, b".")
        os.read(planted, 1)
        return connect(*args, **options)

    def plant():
        os.read(checked, 1)
        with open(path + ending, "wb"):
            os.chmod(path + ending, 0o666)
            os.chown(path + ending, STRANGER, STRANGER)
        os.write(plants, b".")

    monkeypatch.setattr(sqlite3, "connect", connected)
    stranger = threading.Thread(target=plant)
    stranger.start()
    said = opened(path, ME)
    os.close(checks)  # ends the stranger, if the store was never opened
    stranger.join()
    for end in (checked, planted, plants):
        os.close(end)
    assert f"{path}{ending} was put into {common} by another user ({STRANGER})" in said


def test_a_hard_link_that_any_user_may_make_is_not_used(folder, me):
    """Another user would choose which of one's files is written to."""
    home, common = owned(f"{folder}/home", 0o755, me), owned(f"{folder}/common", 0o1777, 0)
    assert opened(f"{home}/work.db", me) == ""
    os.link(f"{home}/work.db", f"{common}/work.db")
    assert f"{common}/work.db is a hard link" in opened(f"{common}/work.db", me)


@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
def test_a_link_beside_the_file_is_refused(folder, me, ending):
    """SQLite would write through it."""
    home = owned(f"{folder}/home", 0o755, me)
    assert opened(f"{home}/work.db", me) == ""
    os.symlink(f"{folder}/elsewhere", f"{home}/work.db{ending}")
    os.chown(f"{home}/work.db{ending}", me, me, follow_symlinks=False)
    assert f"{home}/work.db{ending} is not a regular file" in opened(f"{home}/work.db", me)
    assert not os.path.exists(f"{folder}/elsewhere")


def test_what_is_no_regular_file_is_refused(folder, me):
    """A pipe, for example."""
    home = owned(f"{folder}/home", 0o755, me)
    os.mkfifo(f"{home}/work.db")
    os.chown(f"{home}/work.db", me, me)
    assert "is not a regular file" in opened(f"{home}/work.db", me)


def test_a_directory_where_any_user_may_replace_the_file_is_refused(folder, me):
    """A directory that all users may write to, without the sticky bit, unless the store is shared."""
    common = owned(f"{folder}/common", 0o777, me)
    assert f"lies in {common}, where every user may replace it" in opened(f"{common}/work.db", me)
    assert opened(f"{common}/work.db", me, "?shared=true") == ""


def test_a_directory_of_another_user_is_refused(folder):
    """Its owner could replace the file at any time; root is let in, and so is who says that the store is shared."""
    theirs = owned(f"{folder}/theirs", 0o775, STRANGER)
    os.chown(theirs, STRANGER, ME)
    path = f"{theirs}/work.db"
    assert f"lies in {theirs}, a directory of another user ({STRANGER})" in opened(path, ME)
    assert opened(path, ME, "?shared=true") == ""
    assert opened(path, 0) in ("", "nothing")


def test_links_in_a_circle(folder, me):
    """A clear error."""
    home = owned(f"{folder}/home", 0o755, me)
    os.symlink(f"{home}/b", f"{home}/a")
    os.symlink(f"{home}/a", f"{home}/b")
    assert opened(f"{home}/a/work.db", me) == f"{home}/a/work.db is reached through more than 40 symbolic links"


def test_odd_options_are_refused():
    """With what was expected."""
    with pytest.raises(ValueError, match="shared must be one of 'true', 'false', not 'maybe'"):
        open_store("sqlite:///work.db?shared=maybe")
