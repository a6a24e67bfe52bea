"""A Redis that is killed, stopped, flushed or cut off, and workers that are: what is promised, on real processes."""

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import redis as driver

from abate.stores import StoreError, open_store
from abate.work.source import Back, Done
from tests.clients.valkey_server import Valkey
from tests.faults.killing import WORKER, Outcome
from tests.faults.test_killing import SLOW
from tests.stores.sharing import Thread

GUARD = 30.0
LEASE = 0.8
WORKERS = 3
MESSAGES = 250
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def valkey(tmp_path):
    server = Valkey(tmp_path)
    server.start(*DURABLE)
    yield server
    server.kill()


@contextlib.contextmanager
def stopped(pid):
    """A process that stands still for the block; it has stopped when the block begins."""
    os.kill(pid, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def workers_on(url, log):
    log.touch()
    command = [sys.executable, str(WORKER), url, str(log), str(LEASE), "0.01"]
    return lambda: subprocess.Popen(command, stderr=subprocess.DEVNULL)


def within(condition, what):
    end = time.monotonic() + GUARD
    while not condition():
        assert time.monotonic() < end, f"it does not come to this: {what}"
        time.sleep(0.02)


def patiently(call, *args):
    """What a call answers as soon as the store does."""
    end = time.monotonic() + GUARD
    while True:
        try:
            return call(*args)
        except StoreError:
            assert time.monotonic() < end, "the store does not come back"
            time.sleep(0.05)


def left(queue):
    depth = patiently(queue.depth)
    return depth.waiting + depth.leased


# ── Workers ──────────────────────────────────────────────────────────────────────────────────────────────


def test_killed_workers_lose_nothing_and_share_nothing(valkey, tmp_path):
    """One of three is killed every moment: every message is handled, a second time only after its lease ran out, and
    never again once somebody was done with it."""
    log, rng, kills, written = tmp_path / "log", random.Random(7), 0, 0
    with open_store(valkey.url) as store:
        queue = store.queue("work")
        for n in range(MESSAGES):
            queue.add(f"key-{n}")
        start = workers_on(valkey.url, log)
        workers = [start() for _ in range(WORKERS)]
        try:
            end = time.monotonic() + GUARD
            while left(queue):
                assert time.monotonic() < end, f"it does not end: {queue.depth()}"
                time.sleep(rng.uniform(0.02, 0.1))
                if log.stat().st_size > written:  # on a busy machine, let them begin before the next one dies
                    written = log.stat().st_size
                    place = rng.randrange(WORKERS)
                    workers[place].kill()
                    workers[place].wait()
                    workers[place] = start()
                    kills += 1
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    outcome = Outcome(log.read_text().splitlines(), LEASE)
    assert set(outcome.handlings) == {f"key-{n}" for n in range(MESSAGES)}
    assert (outcome.too_early, outcome.after_done) == ([], [])
    assert kills > 3


@pytest.mark.parametrize("meanwhile", ["in hand", "done", "added again"])
def test_a_worker_that_stood_still_past_its_lease_is_refused(valkey, meanwhile):
    """On waking it learns that the message is not its own any more; whoever has it now is not disturbed."""
    with open_store(valkey.url) as store:
        queue = store.queue("work")
        queue.add("a")
        worker = subprocess.Popen(
            [sys.executable, "-c", SLOW, valkey.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            token = int(worker.stdout.readline().split()[1])
            with stopped(worker.pid):
                (message,) = queue.receive(wait=GUARD)
                assert (message.key, message.receives) == ("a", 2)
                assert message.token > token
                if meanwhile != "in hand":
                    queue.done(message)
                if meanwhile == "added again":
                    queue.add("a")
                worker.stdin.write("go on\n")
                worker.stdin.flush()
            assert worker.communicate(timeout=GUARD)[0] == "lost\n"
        finally:
            worker.kill()
            worker.communicate()
        if meanwhile == "in hand":
            queue.done(message)
        depth = queue.depth()
        assert (depth.ready, depth.delayed, depth.leased, depth.dead) == (meanwhile == "added again", 0, 0, 0)


WRONG_CLOCK = """if True:
    import sys
    import abate.clock
    from abate.stores import open_store

    hours = float(sys.argv[2])
    abate.clock.MachineClock.wall = staticmethod(lambda real=abate.clock.MachineClock.wall: real() + hours * 3600.0)
    queue = open_store(sys.argv[1]).queue("work", lease=30.0)
    print(*sorted(message.key for message in queue.receive(10)), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("hours", [-1.0, 1.0])
def test_a_worker_whose_clock_is_an_hour_off_changes_nothing(valkey, hours):
    """The server's clock decides: it takes nothing before its time, and its leases end neither early nor late."""
    with open_store(valkey.url) as store:
        queue = store.queue("work")
        queue.add("now")
        queue.add("later", after=1800.0)
        worker = subprocess.Popen(
            [sys.executable, "-c", WRONG_CLOCK, valkey.url, str(hours)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert worker.stdout.readline() == "now\n"
            depth = queue.depth()
            assert (depth.ready, depth.delayed, depth.leased) == (0, 1, 1)
            assert queue.receive(10) == []
        finally:
            worker.kill()
            worker.communicate()


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
        within(lambda: left(queue) == 0, "all is worked off")
        end.set()
        for thread in threads:
            thread.answer()
        # one whose `done` was carried out while its answer was lost is not known to have been done
        assert len(done) >= 60
        assert done <= {f"key-{n}" for n in range(90)}


def test_a_server_that_stands_still_is_given_up_and_leases_run_out(valkey):
    """While it stands still everything raises StoreError in time; time goes on for leases: what was held longer than
    its lease is somebody else's."""
    with open_store(f"{valkey.url}?timeout=0.3") as store:
        queue = store.queue("work", lease=0.8)
        queue.add("a")
        (held,) = queue.receive()
        waiting = Thread(store.queue("others").receive, 1, GUARD)
        with stopped(valkey.process.pid):
            for call in (lambda: queue.add("b"), lambda: queue.extend([held]), queue.depth, lambda: queue.receive(1)):
                with pytest.raises(StoreError, match=r"did not answer within 0\.3 s"):
                    call()
            with pytest.raises(StoreError, match="did not answer within"):
                store.ledger("x").try_withdraw()
            with pytest.raises(StoreError, match="did not answer within"):
                waiting.answer()
        # what was sent while it stood still is carried out now; a timeout is not a failure
        within(lambda: queue.settle([(held, Back(0.0))]) == [held], "the lease is lost")
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
        assert [message.key for message in waiting.answer()] == ["c"]
        assert list(store.queues()) == ["work"]
        within(lambda: admin.exists("abate:{budget:y}:members"), "the member has come again")
        assert budget.try_withdraw()
        assert not store.courier.degraded


# ── The way to it ────────────────────────────────────────────────────────────────────────────────────────


class Proxy:
    """Passes bytes on to a server, until it is told to cut every connection, or to drop an answer."""

    def __init__(self, port):
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.drops_next_answer = False
        self._pairs = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                return
            self._pairs.append((client, server))
            threading.Thread(target=self._pass, args=(client, server), daemon=True).start()

    def _pass(self, client, server):
        other = {client: server, server: client}
        with contextlib.suppress(OSError, ValueError):
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        raise OSError
                    if self.drops_next_answer and ready is server:
                        self.drops_next_answer = False
                        raise OSError  # the connection is lost with it
                    other[ready].sendall(data)
        client.close()
        server.close()

    def cut(self):
        """End every connection."""
        for client, server in self._pairs:
            for end in (client, server):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def close(self):
        self._server.close()
        self.cut()


@pytest.fixture
def proxy(valkey):
    made = Proxy(valkey.port)
    yield made
    made.close()


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
            within(lambda: admin.info("clients")["connected_clients"] == 1, "it is cut")
        waiting = Thread(store.queue("others").receive, 1, GUARD)
        within(lambda: admin.info("clients")["blocked_clients"] == 1, "it waits")
        proxy.cut()
        store.queue("others").add("b")
        assert [message.key for message in waiting.answer()] == ["b"]
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
            within(lambda: store.courier.degraded, "it is said that the store does not answer")
            assert budget.try_withdraw()
        proxy.cut()
        within(lambda: not store.courier.degraded, "it is healed")
        assert budget.try_withdraw()
