"""Guarantees of a store in PostgreSQL when servers and connections fail, with real processes.

A commit that was acknowledged is on the server's disk (fsync and synchronous_commit are on, the default). So after a
crash of the server, added messages are there, settled messages are not redelivered, and no token is used twice.
"""

import os
import signal
import threading
import time

import pytest

from abate.stores import Depth, StoreError, open_store
from abate.stores.postgres import listener
from abate.work.source import LeaseLost
from tests.conformance.postgres_server import empty_store, server
from tests.faults.killed_workers import retry_until_available
from tests.faults.proxy import Proxy
from tests.stores.postgres.cluster import Cluster
from tests.stores.processes import GUARD, Thread, keys, until

LEASE = 1.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("cluster"), fsync="on", synchronous_commit="on")
    yield made
    made.stop()


# ── Servers ──────────────────────────────────────────────────────────────────────────────────────────────


class Traffic:
    """Threads that add and process messages during a fault of the server; records acknowledged operations in order."""

    def __init__(self, url):
        self.store = open_store(url)
        self.queue = self.store.queue("work", lease=LEASE)
        self.added, self.handled, self.done = [], {}, {}
        self.unsure = set()  # keys with an operation that was not acknowledged; it may have been executed
        self.end = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._add, self._work)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        for thread in self._threads:
            thread.join(GUARD)
        self.store.close()

    def _add(self):
        n = 0
        while not self.end.is_set():
            try:
                self.queue.add(f"key-{n}")
                self.added.append(f"key-{n}")
                n += 1
            except StoreError:
                self.unsure.add(f"key-{n}")
                time.sleep(0.01)

    def _work(self):
        while not self.end.is_set():
            try:
                for message in self.queue.receive(5, wait=0.1):
                    self.handled.setdefault(message.key, []).append(message.token)
                    try:
                        self.queue.done(message)
                        self.done.setdefault(message.key, []).append(message.token)
                    except LeaseLost:
                        pass
                    except StoreError:
                        self.unsure.add(message.key)
            except StoreError:
                time.sleep(0.01)


def kill_a_backend(cluster):
    os.kill(cluster.backends()[0], signal.SIGKILL)


def restart(sign):
    def inject(cluster):
        cluster.stop(sign)
        cluster.start()

    return inject


def kill_and_start(cluster):
    cluster.kill()
    cluster.start()


@pytest.mark.parametrize(
    "inject",
    [
        pytest.param(restart(signal.SIGINT), id="a fast restart"),
        pytest.param(restart(signal.SIGQUIT), id="an immediate restart"),
        pytest.param(kill_and_start, id="kill -9 of the postmaster"),
        pytest.param(kill_a_backend, id="kill -9 of a backend"),
    ],
)
def test_acknowledged_operations_survive_a_crash_of_the_server(cluster, inject):
    """After any restart or kill, added messages are handled, settled ones are not redelivered, tokens increase, and
    clients reconnect."""
    url = f"{cluster.url}?schema=faults_{time.monotonic_ns()}"
    with Traffic(url) as traffic:
        until(lambda: len(traffic.done) > 50)
        before, newest = len(traffic.done), max(max(tokens) for tokens in traffic.done.values())
        inject(cluster)
        until(lambda: len(traffic.done) > before + 50)
    with open_store(url) as store:
        queue = store.queue("work")
        while (depth := retry_until_available(queue.depth)).waiting + depth.leased:
            for message in queue.receive(100, wait=2.0):
                traffic.handled.setdefault(message.key, []).append(message.token)
                queue.done(message)
    assert set(traffic.added) <= set(traffic.handled)
    assert len(traffic.unsure) < len(traffic.added) / 2
    for key, tokens in traffic.done.items():
        assert traffic.handled[key] == sorted(traffic.handled[key])
        assert key in traffic.unsure or tokens == traffic.handled[key][-1:]
    assert max(max(tokens) for tokens in traffic.handled.values()) > newest
    every = [token for tokens in traffic.handled.values() for token in tokens]
    assert len(every) == len(set(every))


def test_a_frozen_server_blocks_no_caller(cluster):
    """Every operation raises `StoreError` after the timeout, on open and new connections.

    Budgets use local limits until the server is back. A lease that expired meanwhile is lost.
    """
    url = f"{cluster.url}?schema=frozen&timeout=0.3"
    with open_store(url) as store:
        queue = store.queue("work", lease=0.5)
        queue.add("a")
        (message,) = queue.receive()
        budget = store.budget("calls", ratio=0.0, reserve=10.0)
        assert budget.try_withdraw()
        until(lambda: store.fleet_sync.rounds > 0)
        others = store.queue("others")
        waiting = Thread(retry_until_available, others.receive, 1, GUARD)
        until(lambda: store.listener.listening)
        with cluster.frozen():
            for call in (
                lambda: queue.add("b"),
                queue.receive,
                lambda: queue.extend([message]),
                lambda: queue.done(message),
                queue.depth,
                lambda: open_store(url),
                lambda: store.sync_members("me", []),
            ):
                with pytest.raises(StoreError, match=r"does not answer within 0\.3 s"):
                    call()
            until(lambda: store.fleet_sync.degraded)
            assert budget.try_withdraw()
        with pytest.raises(LeaseLost):
            retry_until_available(queue.done, message)
        until(lambda: not store.fleet_sync.degraded)
        others.add("c")
        assert keys(waiting.answer()) == ["c"]
        # an add without a reply may have been executed
        assert {"a"} <= {message.key for message in queue.receive(10, wait=GUARD)} <= {"a", "b"}


# ── Connections ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def proxy():
    with Proxy(server().port) as between:
        yield between


def through(proxy, url):
    return url.replace(f":{server().port}/", f":{proxy.port}/")


def test_a_connection_lost_between_calls_is_replaced(proxy):
    """Nothing was sent over a connection that is found closed, so that every operation can use a new one."""
    with open_store(through(proxy, empty_store())) as store:
        queue = store.queue("work")
        for n in range(5):
            assert queue.add(f"key {n}") is True
            proxy.cut()
            time.sleep(0.05)  # until the client's socket has received the close
        (message, *_) = queue.receive(5)
        proxy.cut()
        time.sleep(0.05)
        queue.done(message)
        assert queue.depth() == Depth(leased=4)


def test_a_waiting_receive_listens_again_after_a_disconnect(proxy, monkeypatch):
    """A message that is added while the listener is disconnected is received."""
    monkeypatch.setattr(listener, "RECONNECT", 0.1)
    url = empty_store()
    with open_store(through(proxy, url)) as store, open_store(url) as other:
        queue = store.queue("work")
        thread = Thread(retry_until_available, queue.receive, 1, GUARD)
        until(lambda: store.listener.listening)
        proxy.cut()
        until(lambda: not store.listener.listening)
        other.queue("work").add("a")
        assert keys(thread.answer()) == ["a"]


def test_a_silent_connection_costs_at_most_the_timeout(proxy):
    """`StoreError` then says that the outcome is unknown; the store works again after the fault."""
    with open_store(through(proxy, empty_store()) + "&timeout=0.5") as store:
        queue = store.queue("work")
        queue.add("a")
        proxy.discard_all = True
        for call in (lambda: queue.add("b"), queue.depth):
            with pytest.raises(StoreError, match=r"does not answer within 0\.5 s; it is not known whether"):
                call()
        proxy.discard_all = False
        proxy.cut()
        assert queue.depth().ready == 1
        assert queue.add("b") is True


def test_the_server_cancels_a_statement_after_the_timeout(proxy):
    """It is not executed after the caller has got an error."""
    url = empty_store()
    with open_store(through(proxy, url) + "&timeout=0.5") as store, server().connect() as admin:
        queue = store.queue("work")
        queue.add("a")
        schema = url.rpartition("=")[2]
        with admin.transaction():
            admin.execute(f"LOCK TABLE {schema}.item IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(StoreError):
                queue.add("b")
            until(lambda: not server().run("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
        assert queue.depth().ready == 1
