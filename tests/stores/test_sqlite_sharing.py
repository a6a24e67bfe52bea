"""What is SQLite's own where one store serves many: the file, its lock, and what a fork makes of it."""

import os
import sqlite3
import threading
import time

from abate.stores import bells, open_store
from tests.stores.sharing import Thread, forks, in_child, keys, waiting

KIND = "sqlite"


def test_who_waits_does_not_storm_the_file(store, monkeypatch):
    """A look now and then, with jitter, and none by the others who wait."""
    looks, changed = [], store.bells._changed
    monkeypatch.setattr(store.bells, "_changed", lambda: looks.append(threading.get_ident()) or changed())
    monkeypatch.setattr(bells, "SHORTEST_LOOK", 0.1)
    monkeypatch.setattr(bells, "LONGEST_LOOK", 0.2)
    queue, begun = store.queue("orders"), time.monotonic()
    threads = [waiting(store, queue, 1.0) for _ in range(5)]
    assert [thread.answer() for thread in threads] == [[]] * 5
    assert 1 <= len(looks) <= (time.monotonic() - begun) / 0.1


def test_who_finds_the_file_locked_waits_for_it(store, tmp_path):
    """Others can go on reading."""
    queue = store.queue("orders")
    other = sqlite3.connect(tmp_path / "work.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    thread = Thread(queue.add, "a")
    assert queue.receive(wait=0.1) == []
    assert thread.is_alive()
    other.execute("ROLLBACK")
    other.close()
    assert thread.answer() is True


@forks
def test_a_forked_child_opens_its_own_connection(tmp_path, monkeypatch):
    """To the same file, wherever the child goes."""
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///work.db") as store:
        queue, connection = store.queue("orders"), store.file._db
        assert in_child(lambda: store.file._db) == "None"
        assert in_child(lambda: (os.chdir("/"), queue.add("a"))[1]) == "True"
        assert store.file._db is connection
        assert keys(queue.receive(10)) == ["a"]


@forks
def test_what_is_in_memory_stays_the_parents():
    """A child begins with nothing, so that no message is handled twice."""
    with open_store("memory:") as store:
        queue = store.queue("orders")
        queue.add("a")
        assert in_child(lambda: (queue.receive(), queue.add("b"))) == "([], True)"
        assert keys(queue.receive(10)) == ["a"]
