"""Guarantees of a store in Redis when the server is killed, stopped, flushed or disconnected, with real processes."""

import threading
import time

import pytest
import redis as driver

from abate.stores import StoreError, open_store
from abate.work.source import Back, Done
from tests.clients.valkey_server import Valkey
from tests.faults.killed_workers import retry_until_available, stopped
from tests.faults.proxy import Proxy
from tests.stores.processes import GUARD, Thread, keys, until

LEASE = 0.8
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def valkey(tmp_path):
    server = Valkey(tmp_path)
    server.start(*DURABLE)
    yield server
    server.kill()


def left(queue):
    depth = retry_until_available(queue.depth)
    return depth.waiting + depth.leased


# ── The server ───────────────────────────────────────────────────────────────────────────────────────────


def test_with_fsync_always_acknowledged_operations_survive_a_kill(valkey):
    """Messages, leases and tokens are there after kill -9; callers get `StoreError` meanwhile, and can call again."""
    with open_store(f"{valkey.url}?timeout=2") as store:
        queue = store.queue("work", lease=60.0)
        for n in range(50):
            queue.add(f"key-{n}", str(n))
        held, settled = queue.receive(1), queue.receive(10)
        assert queue.settle([(message, Done()) for message in settled]) == []
        valkey.kill()
        with pytest.raises(StoreError, match="nothing listens there"):
            queue.add("b")
        valkey.start(*DURABLE)
        assert retry_until_available(queue.extend, held) == []
        depth = queue.depth()
        assert (depth.ready, depth.leased) == (39, 1)
        queue.done(held[0])
        (message,) = queue.receive(1)
        assert message.token > settled[-1].token


def test_workers_survive_restarts_of_the_server(valkey):
    """With a retry after `StoreError`, no added message is lost, and no call hangs."""
    with open_store(f"{valkey.url}?timeout=2") as store:
        queue = store.queue("work", lease=LEASE)
        done, end = set(), threading.Event()

        def work():
            while not end.is_set():
                try:
                    messages = queue.receive(5, 0.2)
                    lost = queue.settle([(message, Done()) for message in messages])
                    done.update(message.key for message in messages if message not in lost)
                except StoreError:
                    time.sleep(0.05)

        threads = [Thread(work) for _ in range(2)]
        for n in range(90):
            retry_until_available(queue.add, f"key-{n}")
            if n % 30 == 29:
                valkey.kill()
                valkey.start(*DURABLE)
        until(lambda: left(queue) == 0)
        end.set()
        for thread in threads:
            thread.answer()
        # a `done` that was executed and whose reply was lost is not counted
        assert len(done) >= 60
        assert done <= {f"key-{n}" for n in range(90)}


def test_a_stopped_server_times_out_and_leases_expire(valkey):
    """Every operation raises `StoreError` after the timeout; leases expire meanwhile, and messages are redelivered."""
    with open_store(f"{valkey.url}?timeout=1") as store:
        queue = store.queue("work", lease=3.0)
        queue.add("a")
        (held,) = queue.receive()
        waiting = Thread(store.queue("others").receive, 1, GUARD)
        with stopped(valkey.process.pid):
            for call in (lambda: queue.add("b"), lambda: queue.extend([held]), queue.depth, lambda: queue.receive(1)):
                with pytest.raises(StoreError, match=r"did not answer within 1 s"):
                    call()
            with pytest.raises(StoreError, match="did not answer within"):
                store.ledger("x").try_withdraw()
            with pytest.raises(StoreError, match="did not answer within"):
                waiting.answer()
        # requests that were sent while it was stopped are executed now: a timeout is not a failure
        until(lambda: queue.settle([(held, Back(0.0))]) == [held])
        tokens = {}
        while "a" not in tokens:
            tokens |= {message.key: message.token for message in queue.receive(10, GUARD)}
        assert tokens["a"] > held.token


def test_clients_recover_after_a_flush(valkey):
    """Queues are empty and leases lost; budgets start from zero, members register again, and new messages are
    delivered."""
    with open_store(valkey.url) as store, driver.Redis.from_url(valkey.url) as admin:
        queue, ledger = store.queue("work"), store.ledger("x", ratio=0.0, reserve=0.1)
        budget = store.budget("y", ratio=0.0, reserve=1.0)
        queue.add("a")
        queue.add("b")
        (held,) = queue.receive()
        assert ledger.try_withdraw()
        assert not ledger.try_withdraw()
        admin.flushall()
        admin.script_flush()
        assert queue.extend([held]) == [held]
        assert queue.settle([(held, Done())]) == [held]
        assert queue.receive(10) == []
        assert ledger.try_withdraw()
        waiting = Thread(queue.receive, 1, GUARD)
        queue.add("c")
        assert keys(waiting.answer()) == ["c"]
        assert list(store.queues()) == ["work"]
        until(lambda: admin.exists("abate:{budget:y}:members"))
        assert budget.try_withdraw()
        assert not store.fleet_sync.degraded


# ── The connection ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def proxy(valkey):
    with Proxy(valkey.port) as between:
        yield between


def test_lost_connections_are_replaced(valkey, proxy):
    """A call finds a new connection after an idle one was closed; a waiting receive continues to wait."""
    with (
        open_store(f"redis://127.0.0.1:{proxy.port}?timeout=2") as store,
        driver.Redis.from_url(valkey.url) as admin,
    ):
        queue = store.queue("work")
        for n in range(5):
            assert queue.add(f"key-{n}") is True
            proxy.cut()
            until(lambda: admin.info("clients")["connected_clients"] == 1)
        waiting = Thread(store.queue("others").receive, 1, GUARD)
        until(lambda: admin.info("clients")["blocked_clients"] == 1)
        proxy.cut()
        store.queue("others").add("b")
        assert keys(waiting.answer()) == ["b"]
        assert len(queue.receive(10)) == 5


def test_a_lost_reply_raises_and_loses_no_message(valkey, proxy):
    """A request that may have been executed is retried only if it is idempotent; a message whose receive reply was lost
    is redelivered after its lease."""
    with open_store(f"redis://127.0.0.1:{proxy.port}?timeout=2") as store, open_store(valkey.url) as direct:
        queue, there = store.queue("work", lease=0.5), direct.queue("work")
        assert queue.receive(1) == []  # loads the script
        queue.add("a")
        proxy.drop_next_reply = True
        with pytest.raises(StoreError):
            queue.receive(1)
        assert there.depth().leased == 1
        queue.depth()  # opens a new connection, so that the next reply is not one of its handshake
        proxy.drop_next_reply = True
        with pytest.raises(StoreError):
            queue.add("b")
        assert there.add("b") is False, "the add was executed"
        queue.depth()
        proxy.drop_next_reply = True
        assert queue.depth().ready >= 1
        assert not proxy.drop_next_reply
        assert sorted(found.key for _ in "ab" for found in queue.receive(1, GUARD)) == ["a", "b"]


def test_a_disconnected_fleet_uses_local_limits_and_recovers(valkey, proxy):
    """The sync is degraded while the server is stopped, calls don't wait for it, and it resumes afterwards."""
    with open_store(f"redis://127.0.0.1:{proxy.port}") as store:
        budget = store.budget("x", ratio=0.0, reserve=10.0)
        with stopped(valkey.process.pid):
            until(lambda: store.fleet_sync.degraded)
            assert budget.try_withdraw()
        proxy.cut()
        until(lambda: not store.fleet_sync.degraded)
        assert budget.try_withdraw()
