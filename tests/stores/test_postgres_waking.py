"""How those who wait for a message of PostgreSQL are woken, and what they do when they can't be."""

import random
import subprocess
import sys
import threading
import time

import pytest

from abate.stores import StoreError, open_store
from abate.stores.postgres import bells, pool
from abate.stores.postgres.session import Session, Unreachable
from tests.conformance.postgres_server import connection, empty_store
from tests.stores.postgres_cluster import FOR_EVER, sessions, waiting
from tests.stores.sharing import GUARD, Thread, keys, until


@pytest.fixture
def url():
    return empty_store()


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def patient(monkeypatch):
    """Who waits does not look by itself in the time that a test takes: it has to be woken."""
    monkeypatch.setattr(bells, "SLOWLY", FOR_EVER)


def test_an_add_wakes_one_who_waits(store, patient):
    """Whichever queue object it came through."""
    first, second = store.queue("orders"), store.queue("others")
    threads = [waiting(store, first), waiting(store, second)]
    store.queue("others").add("b")
    assert keys(threads[1].answer()) == ["b"]
    store.queue("orders").add("a")
    assert keys(threads[0].answer()) == ["a"]


@pytest.mark.parametrize("how", ["back", "again", "redrive", "added meanwhile"])
def test_what_comes_back_wakes_one_who_waits(store, patient, how):
    """Whatever brings it back."""
    queue = store.queue("orders")
    queue.add("a")
    (message,) = queue.receive()
    if how == "redrive":
        queue.bury(message, "bad")
    thread = waiting(store, queue)
    match how:
        case "back":
            queue.back(message, 0.0)
        case "again":
            queue.done(message, again=0.0)
        case "redrive":
            queue.redrive()
        case "added meanwhile":
            queue.add("a")
            queue.done(message)
    assert keys(thread.answer()) == ["a"]


def test_what_becomes_due_wakes_one_who_waits(store, patient):
    """A delayed one, and one whose lease ran out."""
    queue = store.queue("orders", lease=0.3)
    thread = waiting(store, queue)
    queue.add("a", after=0.2)
    assert keys(thread.answer()) == ["a"]
    assert keys(waiting(store, queue).answer()) == ["a"]


def test_what_another_process_adds_wakes_all_who_wait(store, url, patient):
    """One thread hears for all."""
    orders, others = store.queue("orders"), store.queue("others")
    threads = [waiting(store, others), waiting(store, others), waiting(store, orders)]
    code = """if True:
        import abate.stores, sys
        with abate.stores.open_store(sys.argv[1]) as store:
            for name, key in (("others", "a"), ("others", "b"), ("orders", "c")):
                store.queue(name).add(key)
    """
    subprocess.run([sys.executable, "-c", code, url], check=True, timeout=GUARD)
    assert sorted(key for thread in threads for key in keys(thread.answer())) == ["a", "b", "c"]
    assert sum(thread.name == "abate-ears" for thread in threading.enumerate()) == 1


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


def test_closing_wakes_all_who_wait(url, patient):
    """They are told why, and nothing is left open."""
    store = open_store(url)
    queue = store.queue("orders")
    threads = [waiting(store, queue), waiting(store, queue)]
    store.close()
    for thread in threads:
        with pytest.raises(StoreError, match="is closed"):
            thread.answer()
    until(lambda: sessions(url) == [])
    assert not any(thread.name == "abate-ears" for thread in threading.enumerate())


def test_nobody_is_left_in_line(store):
    """What is kept for those who wait goes with them."""
    assert store.queue("orders").receive(wait=0.01) == []
    assert store.bells._lines == {}


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
    monkeypatch.setattr(bells, "AGAIN", 0.1)
    queue = store.queue("orders")
    thread = waiting(store, queue)
    (listener,) = [pid for pid, query in sessions(url) if query.startswith("LISTEN")]
    connection().execute("SELECT pg_terminate_backend(%s)", (listener,))
    until(lambda: [pid for pid, query in sessions(url) if query.startswith("LISTEN") and pid != listener])
    queue.add("a")
    assert keys(thread.answer()) == ["a"]


def test_who_can_not_listen_looks_now_and_then(store, url, monkeypatch):
    """Behind a pooler, whose word on the server's process is not the server's: no thread, no notifications."""
    monkeypatch.setattr("abate.stores.postgres.session.Session.process", 0)
    monkeypatch.setattr(bells, "QUICKLY", 0.05)
    queue = store.queue("orders")
    thread = Thread(queue.receive, 1, FOR_EVER)
    until(lambda: store.ears.deaf)
    until(lambda: not any(thread.name == "abate-ears" for thread in threading.enumerate()))
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
                raise Unreachable("FATAL: unsupported startup parameter: options")
            super().__init__(conninfo, deadline)

    monkeypatch.setattr(pool, "Session", Choosy)
    with open_store(url) as store:
        assert store.queue("orders").add("a") is True
    assert asked == [True, False]


def test_the_thread_that_listens_ends_when_nobody_waits(store, monkeypatch):
    """A connection that listens has to be read."""
    monkeypatch.setattr(bells, "IDLE", 0.1)
    monkeypatch.setattr(bells, "PULSE", 0.05)
    assert store.queue("orders").receive(wait=0.3) == []
    until(lambda: not store.ears.listening and store.ears._thread is None)
