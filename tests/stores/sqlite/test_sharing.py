"""What is SQLite's own where one store serves many: the file, and its lock."""

import sqlite3
import threading
import time

from abate.stores import message_waits
from tests.stores.processes import Thread, waiting

KIND = "sqlite"


def test_waiting_receives_do_not_storm_the_file(store, monkeypatch):
    """One of them polls now and then, with jitter, and the others do not."""
    looks, changed = [], store.wakeups._changed
    monkeypatch.setattr(store.wakeups, "_changed", lambda: looks.append(threading.get_ident()) or changed())
    monkeypatch.setattr(message_waits, "MIN_POLL", 0.1)
    monkeypatch.setattr(message_waits, "MAX_POLL", 0.2)
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
