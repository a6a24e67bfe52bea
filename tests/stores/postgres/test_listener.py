"""How those who wait for a message of PostgreSQL are woken, and what they do when they can't be."""

import random
import threading
import time

import pytest

from abate.stores import StoreError, open_store
from abate.stores.postgres import listener, pool
from abate.stores.postgres.session import ConnectFailed, Session
from tests.conformance.postgres_server import connection
from tests.stores.postgres.cluster import sessions
from tests.stores.processes import FOR_EVER, GUARD, Thread, keys, until, waiting

KIND = "postgres"


@pytest.fixture
def patient(monkeypatch):
    """Who waits does not look by itself in the time that a test takes: it has to be woken."""
    monkeypatch.setattr(listener, "POLL_LISTENING", FOR_EVER)


def test_adds_that_race_with_who_begins_to_wait_are_never_missed(url, patient):
    """Either it finds what was added, or it is rung for."""
    with open_store(url) as adding:
        for n in range(15):
            with open_store(url) as store:
                thread = Thread(store.queue("orders").receive, 1, FOR_EVER)
                time.sleep(random.random() * 0.02)
                adding.queue("orders").add(f"key {n}")
                (message,) = thread.answer()
                store.queue("orders").done(message)
                connection().execute(f"DELETE FROM {url.rpartition('=')[2]}.listener")


def test_nothing_is_notified_that_nobody_waits_for(store, url):
    """A notification makes all commits of the server wait for each other."""
    schema = url.rpartition("=")[2]
    listening = connection()
    listening.execute(f"LISTEN {schema}")
    try:
        store.queue("orders").add("a")
        thread = waiting(store, store.queue("others"))
        store.queue("others").add("b")
        thread.answer()
        assert [notice.payload for notice in listening.notifies(timeout=GUARD, stop_after=1)] == ["others"]
    finally:
        listening.execute(f"UNLISTEN {schema}")


def test_one_thread_hears_for_all_and_ends_with_the_store(store, url, patient):
    """Nothing is left open."""
    threads = [waiting(store, store.queue("orders")), waiting(store, store.queue("others"))]
    assert sum(thread.name == "abate-listener" for thread in threading.enumerate()) == 1
    store.close()
    for thread in threads:
        with pytest.raises(StoreError, match="is closed"):
            thread.answer()
    until(lambda: sessions(url) == [])
    assert not any(thread.name == "abate-listener" for thread in threading.enumerate())


def test_who_waits_does_not_storm_the_server(store, monkeypatch):
    """A look when it begins and when it is announced, and then seldom."""
    queue = store.queue("orders")
    waiting(store, queue, 0.2).answer()
    asked, run = [], store.pool.run
    monkeypatch.setattr(store.pool, "run", lambda *args, **options: asked.append(args) or run(*args, **options))
    assert queue.receive(wait=1.0) == []
    assert 1 <= len(asked) <= 3


def test_a_connection_that_was_lost_listens_again(store, url, monkeypatch):
    """Meanwhile who waits looks by itself; nothing is missed."""
    monkeypatch.setattr(listener, "RECONNECT", 0.1)
    queue = store.queue("orders")
    thread = waiting(store, queue)
    (server_process,) = [pid for pid, query in sessions(url) if query.startswith("LISTEN")]
    connection().execute("SELECT pg_terminate_backend(%s)", (server_process,))
    until(lambda: [pid for pid, query in sessions(url) if query.startswith("LISTEN") and pid != server_process])
    queue.add("a")
    assert keys(thread.answer()) == ["a"]


def test_who_can_not_listen_looks_now_and_then(store, url, monkeypatch):
    """Behind a pooler, whose word on the server's process is not the server's: no thread, no notifications."""
    monkeypatch.setattr("abate.stores.postgres.session.Session.process", 0)
    monkeypatch.setattr(listener, "POLL_DEAF", 0.05)
    queue = store.queue("orders")
    thread = Thread(queue.receive, 1, FOR_EVER)
    until(lambda: store.listener.behind_pooler)
    until(lambda: not any(thread.name == "abate-listener" for thread in threading.enumerate()))
    queue.add("a")
    assert keys(thread.answer()) == ["a"]
    assert connection().execute(f"SELECT * FROM {url.rpartition('=')[2]}.listener").fetchall() == []


def test_a_pooler_that_takes_no_options_is_connected_to_without_them(url, monkeypatch):
    """Then it is this process alone that watches the time."""
    asked = []

    class Choosy(Session):
        def __init__(self, conninfo, deadline):
            asked.append(b"statement_timeout" in conninfo)
            if asked[-1]:
                raise ConnectFailed("FATAL: unsupported startup parameter: options")
            super().__init__(conninfo, deadline)

    monkeypatch.setattr(pool, "Session", Choosy)
    with open_store(url) as store:
        assert store.queue("orders").add("a") is True
    assert asked == [True, False]


def test_the_thread_that_listens_ends_when_nobody_waits(store, monkeypatch):
    """A connection that listens has to be read."""
    monkeypatch.setattr(listener, "IDLE", 0.1)
    monkeypatch.setattr(listener, "KEEPALIVE", 0.05)
    assert store.queue("orders").receive(wait=0.3) == []
    until(lambda: not store.listener.listening and store.listener._thread is None)
