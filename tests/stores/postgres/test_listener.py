"""How receives that wait for a message in PostgreSQL are woken, and how they poll without notifications."""

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
    """Make the polling interval so long that a waiting receive has to be notified, and its announcement as long."""
    monkeypatch.setattr(listener, "POLL_LISTENING", FOR_EVER)
    monkeypatch.setattr(listener, "ANNOUNCE_SECONDS", FOR_EVER)


def test_an_add_that_races_with_the_start_of_a_wait_is_not_missed(url, patient):
    """The receive finds the message, or it is notified."""
    with open_store(url) as adding:
        for n in range(15):
            with open_store(url) as store:
                thread = Thread(store.queue("orders").receive, 1, FOR_EVER)
                time.sleep(random.random() * 0.02)
                adding.queue("orders").add(f"key {n}")
                (message,) = thread.answer()
                store.queue("orders").done(message)
                connection().execute(f"DELETE FROM {url.rpartition('=')[2]}.listener")


def test_only_queues_with_waiters_are_notified(store, url):
    """A notification serializes all commits of the server."""
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


def test_one_listener_thread_serves_all_queues_and_ends_with_the_store(store, url, patient):
    """Closing the store closes its sessions."""
    threads = [waiting(store, store.queue("orders")), waiting(store, store.queue("others"))]
    assert sum(thread.name == "abate-listener" for thread in threading.enumerate()) == 1
    store.close()
    for thread in threads:
        with pytest.raises(StoreError, match="is closed"):
            thread.answer()
    until(lambda: sessions(url) == [])
    assert not any(thread.name == "abate-listener" for thread in threading.enumerate())


def test_a_waiting_receive_sends_few_statements(store, monkeypatch):
    """It polls when it starts and once it is announced, then rarely."""
    queue = store.queue("orders")
    waiting(store, queue, 0.2).answer()
    statements, run = [], store.pool.run
    monkeypatch.setattr(store.pool, "run", lambda *args, **options: statements.append(args) or run(*args, **options))
    assert queue.receive(wait=1.0) == []
    assert 1 <= len(statements) <= 3


def test_a_lost_listener_connection_is_opened_again(store, url, monkeypatch):
    """A message added afterwards wakes the waiting receive."""
    monkeypatch.setattr(listener, "RECONNECT", 0.1)
    queue = store.queue("orders")
    thread = waiting(store, queue)
    (server_process,) = [pid for pid, query in sessions(url) if query.startswith("LISTEN")]
    connection().execute("SELECT pg_terminate_backend(%s)", (server_process,))
    until(lambda: [pid for pid, query in sessions(url) if query.startswith("LISTEN") and pid != server_process])
    queue.add("a")
    assert keys(thread.answer()) == ["a"]


def test_behind_a_pooler_receives_poll(store, url, monkeypatch):
    """There is no listener thread and no notification."""
    monkeypatch.setattr("abate.stores.postgres.session.Session.process", 0)
    monkeypatch.setattr(listener, "POLL_DEAF", 0.05)
    queue = store.queue("orders")
    thread = Thread(queue.receive, 1, FOR_EVER)
    until(lambda: store.listener.behind_pooler)
    until(lambda: not any(thread.name == "abate-listener" for thread in threading.enumerate()))
    queue.add("a")
    assert keys(thread.answer()) == ["a"]
    assert connection().execute(f"SELECT * FROM {url.rpartition('=')[2]}.listener").fetchall() == []


def test_a_pooler_that_rejects_options_is_connected_to_without_them(url, monkeypatch):
    """The second attempt leaves the statement timeout out."""
    attempts = []

    class Choosy(Session):
        def __init__(self, conninfo, deadline):
            attempts.append(b"statement_timeout" in conninfo)
            if attempts[-1]:
                raise ConnectFailed("FATAL: unsupported startup parameter: options")
            super().__init__(conninfo, deadline)

    monkeypatch.setattr(pool, "Session", Choosy)
    with open_store(url) as store:
        assert store.queue("orders").add("a") is True
    assert attempts == [True, False]


def test_an_idle_listener_thread_ends(store, monkeypatch):
    """Its connection is closed, because a connection that listens has to be read."""
    monkeypatch.setattr(listener, "IDLE", 0.1)
    monkeypatch.setattr(listener, "KEEPALIVE", 0.05)
    assert store.queue("orders").receive(wait=0.3) == []
    until(lambda: not store.listener.listening and store.listener._thread is None)
