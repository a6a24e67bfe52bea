"""Forked children join the fleet on first use, each as a member of its own, and inherit no counts or tokens."""

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
from abate.clock import ever_used
from abate.observe import snapshot
from abate.stores import BudgetTerms, open_store
from abate.stores.fleet import FleetBucket, FleetBudget, FleetShelter
from abate.stores.fleet import background_sync as fleet_sync
from abate.stores.fleet import budget as budget_module
from abate.stores.fleet.sync_requests import ShelterReport
from abate.stores.postgres import store as postgres_store
from abate.stores.redis import connection as redis_connection
from abate.stores.sqlite import shared_limits
from tests.conformance.conftest import SHARED, STORES
from tests.stores.processes import GUARD, forks, in_child, until

pytestmark = [forks, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]


@pytest.fixture
def fast_sync(monkeypatch):
    """Sync many times a second. On a busy machine too, no limit becomes local: local deposits are not reported."""
    monkeypatch.setattr(fleet_sync, "SYNC_INTERVAL", 0.02)
    monkeypatch.setattr(fleet_sync, "MIN_SYNC_INTERVAL", 0.01)
    monkeypatch.setattr(fleet_sync, "REPLY_VALID", GUARD)
    monkeypatch.setattr(budget_module, "FIRST_REPLY_TIMEOUT", GUARD)
    monkeypatch.setattr(postgres_store, "SYNC_TIMEOUT", GUARD)
    monkeypatch.setattr(redis_connection, "SYNC_TIMEOUT", GUARD)


@pytest.fixture(params=SHARED)
def url(request, tmp_path):
    return STORES[request.param](tmp_path)


@pytest.fixture
def shared(url, fast_sync):
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def local(tmp_path, fast_sync):
    with open_store(f"sqlite:///{tmp_path}/fleet.db") as opened:
        yield opened


@pytest.fixture(autouse=True)
def alone():
    """Close stores that earlier tests left open: a forked child could join their fleets."""
    for store in registry.stores.alive():
        store.close()


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name == "abate-fleet-sync"]


def deposits_in_store(store, name="orders"):
    """Return the number of deposits that reached the store."""
    return store.ledger(name, 1.0, 0.0, 1000.0).balance()


def earning_budget(store):
    """Return a budget whose balance is the number of deposits."""
    return store.budget("orders", ratio=1.0, reserve=0.0, window=1000.0)


def decorated(**settings):
    return abate.Policy(name="orders", on=ConnectionError, **settings)(lambda: None)


# ── A child syncs what it does ───────────────────────────────────────────────────────────────────────────


def test_deposits_of_a_child_reach_the_store(shared):
    """A function decorated before the fork deposits once per successful call, which is enough to start the sync."""
    work = decorated(budget=earning_budget(shared))
    for _ in range(7):
        work()

    def child():
        idle = threads()
        for _ in range(100):
            work()
        until(lambda: deposits_in_store(shared) >= 107)
        return idle, len(threads())

    assert in_child(child) == "([], 1)"
    assert deposits_in_store(shared) == 107


def test_a_child_s_shelter_applies_the_fleet_s_hint(shared):
    """A single successful call joins the fleet; a hint that most members report then refuses calls."""
    shelter = shared.shelter("orders")
    work = decorated(shelter=shelter, timeout=5.0)

    def child():
        work()
        before = shared.fleet_sync.rounds
        until(lambda: shelter._answers and shared.fleet_sync.rounds > before)
        for other in ("member-2", "member-3"):
            shared.sync_members(other, [ShelterReport("orders", "probing", 0, 1, 30.0)])
        until(lambda: shelter._dispatchers.main.core.remote_paused_until > time.monotonic() + 1.0)
        with pytest.raises(abate.Refused), abate.deadline(0.5):
            work()
        return "refused"

    assert in_child(child) == "refused"


def test_a_call_that_waits_in_a_child_starts_the_sync(local):
    """After the parent saw an outage, a queued call asks the fleet instead of probing on its own."""
    shelter = local.shelter("orders", patience=60.0)
    work = decorated(shelter=shelter)
    limiter = shelter._dispatchers.main.limiter
    limiter.apply_remote_outage(time.monotonic(), 1)
    limiter.prober.next_probe = time.monotonic() + 60.0

    def child():
        threading.Thread(target=work, daemon=True).start()
        until(lambda: local.fleet_sync.rounds)
        return shelter.waiters, shelter.state

    assert in_child(child) == "(1, 'probing')"


def test_the_first_call_of_a_child_starts_the_sync(local, monkeypatch):
    """Also if the parent was calm, and its wrappers asked nobody."""
    monkeypatch.setattr(ever_used, "virtual", False)
    shelter = local.shelter("orders")
    work = decorated(shelter=shelter)
    dispatcher, now = shelter.dispatcher(), time.monotonic()
    permit = dispatcher.try_enter(now, now, None, True)
    dispatcher.answered(permit, now + 1000.0, "orders")  # quiet for long enough, and no sample is due
    assert shelter.calm

    def child():
        work()
        until(lambda: local.fleet_sync.rounds)
        return len(threads())

    assert in_child(child) == "1"


def test_a_child_s_bucket_has_a_part_of_its_own(shared):
    """Parent and child are two members that share one rate."""
    bucket = shared.bucket("mails", rate=1000.0, burst=10)

    def child():
        bucket.try_acquire()
        until(lambda: bucket._members == 2 and 0.0 < bucket._share < 0.9)
        return "shared"

    assert in_child(child) == "shared"


def test_a_child_that_uses_no_limit_does_not_join(local):
    """It may exec another program: it has no thread, no sync and no member row."""
    things = earning_budget(local), local.shelter("orders"), local.bucket("mails", 10.0)
    here = local.fleet_sync.member
    assert in_child(lambda: (threads(), local.fleet_sync.rounds)) == "([], 0)"
    assert {member.decode() for (member,) in local.file.read("SELECT member FROM member")} == {here}
    del things


def test_reading_limits_in_a_child_does_not_join(local):
    """A metrics reader may run in every child: reading is no use of a limit."""
    budget, shelter, bucket = earning_budget(local), local.shelter("orders"), local.bucket("mails", 10.0)
    work = decorated(budget=budget, shelter=shelter)
    work()

    def child():
        read = snapshot(), budget.balance(), budget.share(), repr(budget)
        read += shelter.state, shelter.waiters, shelter.limit, repr(shelter), repr(bucket), bucket.refusal()
        return threads(), local.fleet_sync.rounds, len(read)

    assert in_child(child) == "([], 0, 10)"


@pytest.mark.parametrize("used", [False, True], ids=["unused between", "used between"])
def test_a_grandchild_joins(shared, used):
    """Daemons fork twice and workers fork workers: each counts its own deposits."""
    work = decorated(budget=earning_budget(shared))
    work()

    def child():
        if used:
            work()
            until(lambda: deposits_in_store(shared) == 2)
        return in_child(grandchild)

    def grandchild():
        for _ in range(10):
            work()
        until(lambda: deposits_in_store(shared) == 11 + used)
        return len(threads())

    assert in_child(child) == "1"
    assert deposits_in_store(shared) == 11 + used


def test_forks_during_syncs_lose_and_repeat_no_deposit(shared, monkeypatch):
    """While the parent's thread syncs nearly all the time, parent and children count every deposit once."""
    monkeypatch.setattr(fleet_sync, "SYNC_INTERVAL", 0.0005)
    work = decorated(budget=earning_budget(shared))

    def child():
        before = deposits_in_store(shared)
        work()
        until(lambda: deposits_in_store(shared) > before)
        shared.close()
        return "synced"

    for _ in range(8):
        work()
        assert in_child(child) == "synced"
    until(lambda: deposits_in_store(shared) >= 16)
    assert deposits_in_store(shared) == 16


def test_a_child_forked_while_the_store_hangs_can_sync(local):
    """The child does not wait for the sync that the parent's thread is stuck in."""
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
        until(lambda: deposits_in_store(local) == 1)
        return "synced"

    try:
        assert in_child(child) == "synced"
    finally:
        answer.set()
        budget._fleet_sync.close()


# ── A child inherits nothing ─────────────────────────────────────────────────────────────────────────────


def test_a_child_does_not_report_its_parent_s_counts(manual_sync, local):
    """Deposits, answers and demand that are not synced yet stay with the parent."""
    one = fleet_sync.FleetSync(local, "fleet")
    budget = FleetBudget(one, "orders", BudgetTerms(1.0, 0.0, 1000.0))
    shelter = FleetShelter(one, "orders", rng=random.Random(1))
    bucket = FleetBucket(one, "mails", 1000.0, 10)
    work = decorated(budget=budget, shelter=shelter)
    for _ in range(5):
        work()
    bucket.try_acquire(5)

    def reported():
        budget_request, report, bucket_request = (
            budget.request(0.0),
            shelter.request(0.0),
            bucket.request(time.monotonic()),
        )
        return budget_request.earned, report.answered, bucket_request.wanted > 0

    def child():
        inherited = reported()
        work()
        return inherited, reported()

    assert in_child(child) == "((0, 0, False), (1, 1, False))"
    assert reported() == (5, 5, True)


def test_batched_deposits_stay_with_the_parent(manual_sync, local):
    """A child does not report deposits that the parent's busy window slot has not flushed yet."""
    budget = FleetBudget(fleet_sync.FleetSync(local, "fleet"), "orders", BudgetTerms(1.0, 0.0, 1000.0))
    work = decorated(budget=budget)
    budget.states.main.batch_target = 100  # as after a busy slot
    for _ in range(50):
        work()

    def child():
        for _ in range(20):
            work()
        return budget.request(0.0).earned

    assert in_child(child) == "20"
    assert budget.request(0.0).earned == 50


def test_without_the_store_a_child_does_not_spend_its_parent_s_earnings(fleet_sync, flaky):
    """Otherwise each of many children would spend them again."""
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


def test_a_child_s_first_reply_timeout_starts_at_first_use(manual_sync, local, monkeypatch):
    """Not at the fork: until the timeout it has no reserve, afterwards the local limits."""
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


def test_a_child_of_a_closed_store_uses_local_limits_at_once(local):
    """It starts no sync thread."""
    budget, shelter = local.budget("orders", ratio=0.0, reserve=1.0, window=10.0), local.shelter("orders")
    work = decorated(budget=budget, shelter=shelter)
    local.close()
    assert in_child(lambda: (work(), budget.try_withdraw(), threads())) == "(None, True, [])"


def test_a_child_that_closes_an_unused_store_uses_local_limits(local):
    """It returns no tokens, and the parent keeps its own."""
    budget = local.budget("orders", ratio=0.0, reserve=1.0, window=10.0)
    held = budget.balance()
    assert in_child(lambda: (local.close(), budget.try_withdraw(), threads())) == "(None, True, [])"
    assert budget.balance() == held
    assert local.ledger("orders", 0.0, 1.0, 10.0).balance() == 10.0 - held


def test_a_child_that_closes_the_store_before_its_first_sync_reports_its_deposits(local, monkeypatch):
    """Its sync thread was started, but has not run yet."""
    work = decorated(budget=earning_budget(local))

    def child():
        monkeypatch.setattr(threading.Thread, "start", lambda self: None)
        work()
        local.close()

    in_child(child)
    assert deposits_in_store(local) == 1


def test_a_child_without_a_sync_thread_makes_its_calls(local, monkeypatch, caplog):
    """It logs the failure once, uses local limits, and joins when a thread can be started."""
    work = decorated(budget=earning_budget(local), shelter=local.shelter("orders"))

    def none(self):
        raise RuntimeError("can't start new thread")

    def child():
        with monkeypatch.context() as poor:
            poor.setattr(threading.Thread, "start", none)
            for _ in range(5):
                work()
            without = threads(), caplog.text.count("no thread can be started")
        work()
        until(lambda: deposits_in_store(local) >= 6)
        return without, len(threads())

    assert in_child(child) == "(([], 1), 1)"


def test_a_killed_child_leaves_the_fleet(local, monkeypatch):
    """It counts as a member until MEMBER_TIMEOUT after its last sync."""
    monkeypatch.setattr(shared_limits, "MEMBER_TIMEOUT", 0.3)
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
    """Four workers forked after loading: each answered request deposits once."""
    work = decorated(budget=earning_budget(shared))
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
    assert deposits_in_store(shared) == sum(served.values())


APP = """
    import abate
    from abate.stores.fleet import background_sync
    background_sync.SYNC_INTERVAL = 0.02
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
def test_multiprocessing_workers_are_members(tmp_path, method):
    """With fork and forkserver; their deposits reach the store when they close it."""
    url = f"sqlite:///{tmp_path}/fleet.db"
    (tmp_path / "app.py").write_text(textwrap.dedent(APP.format(url=url)))
    (tmp_path / "main.py").write_text(textwrap.dedent(MAIN.format(method=method)))
    here = {**os.environ, "PYTHONPATH": str(Path(abate.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env=here, capture_output=True, text=True, timeout=60.0
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 30
