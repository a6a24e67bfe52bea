"""A Redis that is killed, stopped, flushed or cut off: what is promised, on real processes."""

import threading
import time

import pytest
import redis as driver

from abate.stores import StoreError, open_store
from abate.work.source import Back, Done
from tests.clients.valkey_server import Valkey
from tests.faults.killed_workers import patiently, stopped
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
    depth = patiently(queue.depth)
    return depth.waiting + depth.leased


# ── The server ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_killed_server_that_writes_always_comes_back_with_all(valkey):
    """With appendfsync always: what was answered is there after kill -9, leases and tokens included; callers get
    StoreError while it is gone, and need nothing but to call again."""
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
        assert patiently(queue.extend, held) == []
        depth = queue.depth()
        assert (depth.ready, depth.leased) == (39, 1)
        queue.done(held[0])
        (message,) = queue.receive(1)
        assert message.token > settled[-1].token


def test_workers_live_through_restarts_of_the_server(valkey):
    """Whoever adds or works calls again after StoreError: nothing that was added is lost, and nothing hangs."""
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
            patiently(queue.add, f"key-{n}")
            if n % 30 == 29:
                valkey.kill()
                valkey.start(*DURABLE)
        until(lambda: left(queue) == 0)
        end.set()
        for thread in threads:
            thread.answer()
        # one whose `done` was carried out while its answer was lost is not known to have been done
        assert len(done) >= 60
        assert done <= {f"key-{n}" for n in range(90)}


def test_a_server_that_stands_still_is_given_up_and_leases_run_out(valkey):
    """While it stands still everything raises StoreError in time; time goes on for leases: what was held longer than
    its lease is somebody else's."""
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
        # what was sent while it stood still is carried out now; a timeout is not a failure
        until(lambda: queue.settle([(held, Back(0.0))]) == [held])
        tokens = {}
        while "a" not in tokens:
            tokens |= {message.key: message.token for message in queue.receive(10, GUARD)}
        assert tokens["a"] > held.token


def test_a_flush_crashes_nobody(valkey):
    """The queues are gone, that is what was asked for. Leases are lost, budgets count from zero, members come back by
    themselves, and what is added from then on is worked on."""
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


# ── The way to it ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def proxy(valkey):
    with Proxy(valkey.port) as between:
        yield between


def test_cut_connections_are_made_anew(valkey, proxy):
    """One that was cut while nobody used it is not even noticed; who waited on one goes on waiting."""
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


def test_an_answer_that_was_lost_is_no_success_and_no_loss(valkey, proxy):
    """What was sent may have been carried out: it is not sent again by itself, unless it does the same twice. Nothing
    is lost: a message whose handing out got lost comes when its lease has run out."""
    with open_store(f"redis://127.0.0.1:{proxy.port}?timeout=2") as store, open_store(valkey.url) as direct:
        queue, there = store.queue("work", lease=0.5), direct.queue("work")
        assert queue.receive(1) == []  # the server knows the script from now on
        queue.add("a")
        proxy.drops_next_answer = True
        with pytest.raises(StoreError):
            queue.receive(1)
        assert there.depth().leased == 1
        queue.depth()  # over a new connection, whose own greetings are over by this
        proxy.drops_next_answer = True
        with pytest.raises(StoreError):
            queue.add("b")
        assert there.add("b") is False, "it had been added"
        queue.depth()
        proxy.drops_next_answer = True
        assert queue.depth().ready >= 1
        assert not proxy.drops_next_answer
        assert sorted(found.key for _ in "ab" for found in queue.receive(1, GUARD)) == ["a", "b"]


def test_a_fleet_that_is_cut_off_goes_by_itself_and_heals(valkey, proxy):
    """The courier gives up within a second; calls never wait for it; when the way is free again limits are shared."""
    with open_store(f"redis://127.0.0.1:{proxy.port}") as store:
        budget = store.budget("x", ratio=0.0, reserve=10.0)
        with stopped(valkey.process.pid):
            until(lambda: store.fleet_sync.degraded)
            assert budget.try_withdraw()
        proxy.cut()
        until(lambda: not store.fleet_sync.degraded)
        assert budget.try_withdraw()
