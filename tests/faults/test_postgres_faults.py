"""What a store in PostgreSQL promises when servers and wires fail; with real processes.

What was answered is on the server's disk (fsync and synchronous_commit are on, as they are by default), so that a
crash of the server is no different from that of a worker: what was added is there, what was done does not come again,
and no token is given twice.
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
from tests.faults.killed_workers import patiently
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
    """Threads that add and work off while something happens to the server: what was answered, in order."""

    def __init__(self, url):
        self.store = open_store(url)
        self.queue = self.store.queue("work", lease=LEASE)
        self.added, self.handled, self.done = [], {}, {}
        self.unsure = set()  # keys of which something was not answered, so that it may have been done
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


def crash_of_a_backend(cluster):
    os.kill(cluster.backends()[0], signal.SIGKILL)


def restart(sign):
    def happens(cluster):
        cluster.stop(sign)
        cluster.start()

    return happens


def death(cluster):
    cluster.kill()
    cluster.start()


@pytest.mark.parametrize(
    "happens",
    [
        pytest.param(restart(signal.SIGINT), id="a fast restart"),
        pytest.param(restart(signal.SIGQUIT), id="an immediate restart"),
        pytest.param(death, id="kill -9 of the postmaster"),
        pytest.param(crash_of_a_backend, id="kill -9 of a backend"),
    ],
)
def test_a_server_that_comes_back_has_what_it_answered(cluster, happens):
    """Restarted fast, at once, killed, or one of its processes killed: whatever was added is handled, what was done is
    not handed out again, tokens grow, and those who use it go on by themselves."""
    url = f"{cluster.url}?schema=faults_{time.monotonic_ns()}"
    with Traffic(url) as traffic:
        until(lambda: len(traffic.done) > 50)
        before, newest = len(traffic.done), max(max(tokens) for tokens in traffic.done.values())
        happens(cluster)
        until(lambda: len(traffic.done) > before + 50)
    with open_store(url) as store:
        queue = store.queue("work")
        while (depth := patiently(queue.depth)).waiting + depth.leased:
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


def test_a_server_that_stands_still_holds_up_nobody(cluster):
    """Every operation ends in time with a `StoreError`, on old connections and on new ones; a fleet's budgets go by
    local limits at once and heal by themselves; and a lease that ran out meanwhile is over."""
    url = f"{cluster.url}?schema=still&timeout=0.3"
    with open_store(url) as store:
        queue = store.queue("work", lease=0.5)
        queue.add("a")
        (message,) = queue.receive()
        budget = store.budget("calls", ratio=0.0, reserve=10.0)
        assert budget.try_withdraw()
        until(lambda: store.fleet_sync.rounds > 0)
        others = store.queue("others")
        waiting = Thread(patiently, others.receive, 1, GUARD)
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
            patiently(queue.done, message)
        until(lambda: not store.fleet_sync.degraded)
        others.add("c")
        assert keys(waiting.answer()) == ["c"]
        # those that got no answer may have been carried out
        assert {"a"} <= {message.key for message in queue.receive(10, wait=GUARD)} <= {"a", "b"}


# ── Wires ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def proxy():
    with Proxy(server().port) as between:
        yield between


def through(proxy, url):
    return url.replace(f":{server().port}/", f":{proxy.port}/")


def test_a_cut_between_two_calls_is_not_noticed(proxy):
    """A connection that was found dead has had nothing sent over it: another one is opened, whatever is asked."""
    with open_store(through(proxy, empty_store())) as store:
        queue = store.queue("work")
        for n in range(5):
            assert queue.add(f"key {n}") is True
            proxy.cut()
            time.sleep(0.05)  # so that the end of the connection has arrived
        (message, *_) = queue.receive(5)
        proxy.cut()
        time.sleep(0.05)
        queue.done(message)
        assert queue.depth() == Depth(leased=4)


def test_a_cut_while_one_waits_makes_nobody_miss_anything(proxy, monkeypatch):
    """Who waits listens again."""
    monkeypatch.setattr(listener, "RECONNECT", 0.1)
    url = empty_store()
    with open_store(through(proxy, url)) as store, open_store(url) as other:
        queue = store.queue("work")
        thread = Thread(patiently, queue.receive, 1, GUARD)
        until(lambda: store.listener.listening)
        proxy.cut()
        until(lambda: not store.listener.listening)
        other.queue("work").add("a")
        assert keys(thread.answer()) == ["a"]


def test_a_wire_that_swallows_everything_costs_no_more_than_the_timeout(proxy):
    """Then it is a `StoreError`, that says that it is not known whether anything was done; afterwards all is well."""
    with open_store(through(proxy, empty_store()) + "&timeout=0.5") as store:
        queue = store.queue("work")
        queue.add("a")
        proxy.swallow = True
        for call in (lambda: queue.add("b"), queue.depth):
            with pytest.raises(StoreError, match=r"does not answer within 0\.5 s; it is not known whether"):
                call()
        proxy.swallow = False
        proxy.cut()
        assert queue.depth().ready == 1
        assert queue.add("b") is True


def test_a_statement_that_nobody_waits_for_any_more_is_ended_by_the_server(proxy):
    """So that it does not do later what the caller was told had failed."""
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
