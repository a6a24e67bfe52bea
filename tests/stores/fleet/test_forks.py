"""Children of a fork: they join the fleet by what they use, as members of their own, and begin with nothing."""

import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import abate
from abate import registry
from abate.observe import snapshot
from abate.stores import BudgetTerms, open_store
from abate.stores.fleet import FleetBucket, FleetBudget, FleetShelter
from abate.stores.fleet import sync as fleet_sync
from abate.stores.fleet.messages import ShelterReport
from abate.stores.sqlite import sync
from tests.conformance.conftest import SHARED, STORES
from tests.stores.processes import forks, in_child, until

pytestmark = [forks, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]


@pytest.fixture
def quick(monkeypatch):
    """Couriers that go many times a second."""
    monkeypatch.setattr(fleet_sync, "SYNC_INTERVAL", 0.02)
    monkeypatch.setattr(fleet_sync, "MIN_SYNC_INTERVAL", 0.01)


@pytest.fixture(params=SHARED)
def url(request, tmp_path):
    return STORES[request.param](tmp_path)


@pytest.fixture
def shared(url, quick):
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def local(tmp_path, quick):
    with open_store(f"sqlite:///{tmp_path}/fleet.db") as opened:
        yield opened


@pytest.fixture(autouse=True)
def alone():
    """Close the stores that earlier tests have left open: a forked child may join their fleets, too."""
    for store in registry.stores.alive():
        store.close()


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name == "abate-fleet-sync"]


def counted(store, name="orders"):
    """The deposits that the store knows of."""
    return store.ledger(name, 1.0, 0.0, 1000.0).balance()


def earning(store):
    """A budget whose balance is the number of deposits."""
    return store.budget("orders", ratio=1.0, reserve=0.0, window=1000.0)


def decorated(**settings):
    return abate.Policy(name="orders", on=ConnectionError, **settings)(lambda: None)


# ── What a child does is carried ─────────────────────────────────────────────────────────────────────────


def test_what_a_child_earns_is_carried(shared):
    """By calls that succeed and nothing else, each counted once, in a function that was decorated before the fork."""
    work = decorated(budget=earning(shared))
    for _ in range(7):
        work()

    def child():
        idle = threads()
        for _ in range(100):
            work()
        until(lambda: counted(shared) >= 107)
        return idle, len(threads())

    assert in_child(child) == "([], 1)"
    assert counted(shared) == 107


def test_a_childs_shelter_hears_of_a_hint(shared):
    """One good call is enough to join; from then on it goes by what most others say."""
    shelter = shared.shelter("orders")
    work = decorated(shelter=shelter, timeout=5.0)

    def child():
        work()
        told = shared.fleet_sync.rounds
        until(lambda: shelter._answers and shared.fleet_sync.rounds > told)
        for other in ("somebody else", "and another"):
            shared.sync_members(other, [ShelterReport("orders", "probing", 0, 1, 30.0)])
        until(lambda: shelter._dispatchers.main._remote_closed_until > time.monotonic() + 1.0)
        with pytest.raises(abate.Refused), abate.deadline(0.01):
            work()
        return "barred"

    assert in_child(child) == "barred"


def test_a_call_that_waits_in_a_child_starts_its_courier(local):
    """Where the parent knew of a storm: what others know by now is worth more than a probe of one's own."""
    shelter = local.shelter("orders", patience=60.0)
    work = decorated(shelter=shelter)
    limiter = shelter._dispatchers.main.limiter
    limiter.apply_remote_outage(time.monotonic(), 1)
    limiter.prober.pause_until = time.monotonic() + 60.0

    def child():
        threading.Thread(target=work, daemon=True).start()
        until(lambda: local.fleet_sync.rounds)
        return shelter.waiters, shelter.state

    assert in_child(child) == "(1, 'probing')"


def test_a_childs_bucket_has_a_part_of_its_own(shared):
    """Parent and child are two members of one rate."""
    bucket = shared.bucket("mails", rate=1000.0, burst=10)

    def child():
        bucket.try_acquire()
        until(lambda: bucket._members == 2 and 0.0 < bucket._part < 0.9)
        return "shared"

    assert in_child(child) == "shared"


def test_a_child_that_uses_nothing_does_not_join(local):
    """It may execute another program, or work on something else: no thread, no connection, no member."""
    things = earning(local), local.shelter("orders"), local.bucket("mails", 10.0)
    here = local.fleet_sync.member
    assert in_child(lambda: (threads(), local.fleet_sync.rounds)) == "([], 0)"
    assert {member.decode() for (member,) in local.file.read("SELECT member FROM member")} == {here}
    del things


def test_a_child_that_reads_its_limits_does_not_join(local):
    """A reader of metrics may run in every child: what it reads is no use of a limit."""
    budget, shelter, bucket = earning(local), local.shelter("orders"), local.bucket("mails", 10.0)
    work = decorated(budget=budget, shelter=shelter)
    work()

    def child():
        read = snapshot(), budget.balance(), budget.share(), repr(budget)
        read += shelter.state, shelter.waiters, shelter.limit, repr(shelter), repr(bucket), bucket.refusal()
        return threads(), local.fleet_sync.rounds, len(read)

    assert in_child(child) == "([], 0, 10)"


@pytest.mark.parametrize("used", [False, True], ids=["unused between", "used between"])
def test_a_child_of_a_child_joins(shared, used):
    """As daemons fork twice, and workers fork workers: each counts for itself."""
    work = decorated(budget=earning(shared))
    work()

    def child():
        if used:
            work()
            until(lambda: counted(shared) == 2)
        return in_child(grandchild)

    def grandchild():
        for _ in range(10):
            work()
        until(lambda: counted(shared) == 11 + used)
        return len(threads())

    assert in_child(child) == "1"
    assert counted(shared) == 11 + used


def test_forks_in_the_middle_of_journeys_disturb_neither(shared, monkeypatch):
    """The courier's thread is on its way nearly all the time: children and parent count everything, once."""
    monkeypatch.setattr(fleet_sync, "SYNC_INTERVAL", 0.0005)
    work = decorated(budget=earning(shared))

    def child():
        before = counted(shared)
        work()
        until(lambda: counted(shared) > before)
        shared.close()
        return "carried"

    for _ in range(8):
        work()
        assert in_child(child) == "carried"
    until(lambda: counted(shared) >= 16)
    assert counted(shared) == 16


def test_a_fork_while_the_store_hangs_leaves_the_child_free(local):
    """What the parent's courier waits for is not the child's."""
    arrived, answer, parent = threading.Event(), threading.Event(), os.getpid()

    class Hanging:
        def sync_members(self, member, requests):
            if os.getpid() == parent and threading.current_thread() is not threading.main_thread():
                arrived.set()
                answer.wait(30.0)
            return local.sync_members(member, requests)

    budget = FleetBudget(fleet_sync.FleetSync(Hanging(), "hanging"), "orders", BudgetTerms(1.0, 0.0, 1000.0))
    assert arrived.wait(30.0)

    def child():
        budget.deposit()
        until(lambda: counted(local) == 1)
        return "carried"

    try:
        assert in_child(child) == "carried"
    finally:
        answer.set()
        budget._fleet_sync.close()


# ── A child begins with nothing ──────────────────────────────────────────────────────────────────────────


def test_what_the_parent_has_counted_is_not_offered_by_the_child(still, local):
    """Deposits, answers and demands that no journey has carried yet are the parent's; it offers them itself."""
    one = fleet_sync.FleetSync(local, "fleet")
    budget = FleetBudget(one, "orders", BudgetTerms(1.0, 0.0, 1000.0))
    shelter = FleetShelter(one, "orders", rng=random.Random(1))
    bucket = FleetBucket(one, "mails", 1000.0, 10)
    work = decorated(budget=budget, shelter=shelter)
    for _ in range(5):
        work()
    bucket.try_acquire(5)

    def offered():
        accounts, sight, demand = budget.request(0.0), shelter.request(0.0), bucket.request(time.monotonic())
        return accounts.earned, sight.answered, demand.wanted > 0

    def child():
        inherited = offered()
        work()
        return inherited, offered()

    assert in_child(child) == "((0, 0, False), (1, 1, False))"
    assert offered() == (5, 5, True)


def test_many_deposits_in_a_run_are_the_parents_too(still, local):
    """A busy slot's deposits that nobody has looked at yet, and those to come in the child."""
    budget = FleetBudget(fleet_sync.FleetSync(local, "fleet"), "orders", BudgetTerms(1.0, 0.0, 1000.0))
    work = decorated(budget=budget)
    budget.states.main._batch_target = 100  # as after a busy slot
    for _ in range(50):
        work()

    def child():
        for _ in range(20):
            work()
        return budget.request(0.0).earned

    assert in_child(child) == "20"
    assert budget.request(0.0).earned == 50


def test_without_the_store_a_child_does_not_spend_what_its_parent_earned(fleet_sync, flaky):
    """Each of many children would spend it again."""
    budget = FleetBudget(fleet_sync(), "orders", BudgetTerms(1.0, 0.0, 1000.0))
    for _ in range(50):
        budget.deposit()
    flaky.error = ConnectionError("gone")

    def child():
        budget.deposit()
        budget._fleet_sync.sync_once()
        return budget.balance()

    assert in_child(child) == "1.0"
    budget._fleet_sync.sync_once()
    assert budget.balance() == 50.0


def test_a_child_waits_for_its_first_news_however_late_it_begins(still, local, monkeypatch):
    """A second from the first use, not from the fork: until then no reserve, and after it on its own."""
    monkeypatch.setattr("abate.stores.fleet.budget.FIRST_REPLY_TIMEOUT", 0.05)
    monkeypatch.setattr("abate.stores.fleet.bucket.FIRST_REPLY_TIMEOUT", 0.05)
    one = fleet_sync.FleetSync(local, "fleet")
    budget, bucket = FleetBudget(one, "orders", BudgetTerms(0.0, 1.0, 10.0)), FleetBucket(one, "mails", 100.0, 10)

    def child():
        time.sleep(0.06)
        first = budget.try_withdraw(), bucket.try_acquire(), bucket.rate
        time.sleep(0.06)
        return first, (budget.try_withdraw(), bucket.try_acquire(), bucket.rate)

    assert in_child(child) == "((False, True, 10.0), (True, True, 100.0))"


def test_a_child_of_a_closed_store_is_on_its_own_at_once(local):
    """There is nothing to join."""
    budget, shelter = local.budget("orders", ratio=0.0, reserve=1.0, window=10.0), local.shelter("orders")
    work = decorated(budget=budget, shelter=shelter)
    local.close()
    assert in_child(lambda: (work(), budget.try_withdraw(), threads())) == "(None, True, [])"


def test_a_child_that_closes_the_store_before_it_has_used_it_is_on_its_own(local):
    """It hands in nothing, and what is the parent's stays with it."""
    budget = local.budget("orders", ratio=0.0, reserve=1.0, window=10.0)
    held = len(budget._tokens)
    assert in_child(lambda: (local.close(), budget.try_withdraw(), threads())) == "(None, True, [])"
    assert len(budget._tokens) == held
    assert local.ledger("orders", 0.0, 1.0, 10.0).balance() == 10.0 - held


def test_a_child_whose_thread_cannot_be_started_makes_its_calls(local, monkeypatch, caplog):
    """It says so once, is on its own, and joins when there is a thread for it."""
    work = decorated(budget=earning(local), shelter=local.shelter("orders"))

    def none(self):
        raise RuntimeError("can't start new thread")

    def child():
        with monkeypatch.context() as poor:
            poor.setattr(threading.Thread, "start", none)
            for _ in range(5):
                work()
            without = threads(), caplog.text.count("no thread can be started")
        work()
        until(lambda: counted(local) >= 6)
        return without, len(threads())

    assert in_child(child) == "(([], 1), 1)"


def test_what_a_child_was_given_returns_when_it_ends(local, monkeypatch):
    """It is counted as a member until it has stayed away for a while; a child that was killed, too."""
    monkeypatch.setattr(sync, "MEMBER_TIMEOUT", 0.3)
    budget = local.budget("orders", ratio=0.0, reserve=4.0, window=10.0)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        while True:
            budget.try_withdraw()
            if budget._members == 2:
                os.write(writing, b"joined")
            time.sleep(0.01)
    try:
        os.read(reading, 6)
        until(lambda: budget._members == 2)
        os.kill(child, signal.SIGKILL)
    finally:
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
    until(lambda: budget._members == 1)


# ── Servers that fork ────────────────────────────────────────────────────────────────────────────────────


def test_the_workers_of_a_prefork_server_share_one_budget(shared):
    """Loaded before the fork, four workers on one socket: every request that was answered has earned, once."""
    work = decorated(budget=earning(shared))
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)

    def worker():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        try:
            while True:
                client, _ = listening.accept()
                with client:
                    work()
                    client.sendall(str(os.getpid()).encode())
        finally:
            shared.close()
            os._exit(0)

    workers = []
    for _ in range(4):
        pid = os.fork()
        if not pid:
            worker()
        workers.append(pid)
    served = {}
    try:
        while len(served) < 4 or sum(served.values()) < 100:
            with socket.create_connection(listening.getsockname(), timeout=30.0) as client:
                pid = int(client.recv(100))
            served[pid] = served.get(pid, 0) + 1
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        for pid in workers:
            os.waitpid(pid, 0)
        listening.close()
    assert set(served) == set(workers)
    assert counted(shared) == sum(served.values())


APP = """
    import abate
    from abate.stores.fleet import sync
    sync.SYNC_INTERVAL = 0.02
    store = abate.open_store({url!r})
    work = abate.Policy(name="orders", on=ConnectionError,
                        budget=store.budget("orders", ratio=1.0, reserve=0.0, window=1000.0))(lambda: None)
    before = store.fleet_sync.member
    def serve(n):
        for _ in range(10):
            work()
        store.close()
        return store.fleet_sync.member
"""
MAIN = """
    import multiprocessing, app
    if __name__ == "__main__":
        context = multiprocessing.get_context({method!r})
        if {method!r} == "forkserver":
            context.set_forkserver_preload(["app"])
        with context.Pool(3, maxtasksperchild=1) as pool:
            members = set(pool.map(app.serve, range(3), chunksize=1))
        assert len(members) == 3 and app.before not in members, members
        print(app.store.ledger("orders", 1.0, 0.0, 1000.0).balance())
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_processes_of_multiprocessing_are_members(tmp_path, method):
    """Forked by the program, or by a server that has loaded it; what they earned is handed in when they close."""
    url = f"sqlite:///{tmp_path}/fleet.db"
    (tmp_path / "app.py").write_text(textwrap.dedent(APP.format(url=url)))
    (tmp_path / "main.py").write_text(textwrap.dedent(MAIN.format(method=method)))
    here = {**os.environ, "PYTHONPATH": str(Path(abate.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env=here, capture_output=True, text=True, timeout=60.0
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 30
