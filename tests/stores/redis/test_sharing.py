"""Waiting receives and fleet syncs of many processes on one Redis, and the commands that they cost the server."""

import time

import pytest

from abate.stores import StoreError, open_store
from abate.stores.budget import BudgetTerms
from abate.stores.fleet import FleetBudget, FleetSync
from abate.stores.fleet.sync_requests import BucketRequest, BudgetRequest, ShelterReport
from abate.stores.redis import queue as queue_module
from abate.stores.redis import scripts
from abate.stores.redis.connection import MAX_BLOCK
from tests.conformance import redis_server
from tests.stores.processes import GUARD, Thread, keys, python, until, waiting

KIND = "redis"


def commands(admin):
    """Return how often scripts were called and how often a client blocked in BLPOP."""
    stats = admin.info("commandstats")
    return {name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "blpop")}


def test_the_watch_of_a_killed_process_is_taken_over(store, admin, url):
    """Another waiter receives the message soon after it is due."""
    queue = store.queue("orders")
    queue.add("a", after=0.3)
    admin.hset(
        f"{url.partition('prefix=')[2]}:{{queue:orders}}:meta", mapping={"watch": time.time(), "watcher": "dead"}
    )
    assert keys(queue.receive(wait=GUARD)) == ["a"]


def test_a_lost_wakeup_is_made_up_by_polling(store, admin, url, monkeypatch):
    """A message that was added without a wake-up is found by the next poll of a waiter."""
    monkeypatch.setattr(queue_module, "MAX_BLOCK", 0.5)
    queue = store.queue("orders")
    thread = waiting(store, queue)
    base = f"{url.partition('prefix=')[2]}:{{queue:orders}}"
    pipeline = admin.pipeline(transaction=True)
    pipeline.hset(f"{base}:item", mapping={"ra": "w 000000000000001 0 0 0 0", "ca": "\nbody"})
    pipeline.zadd(f"{base}:line", {"000000000000001a": 0})
    pipeline.execute()
    assert keys(thread.answer()) == ["a"]


def test_waiting_receives_send_few_commands(store, admin):
    """Five receives that wait for a message due in an hour send a few commands per second each."""
    queue = store.queue("orders")
    queue.add("far", after=3600.0)
    before, seconds = commands(admin), 1.0
    threads = [Thread(queue.receive, 1, seconds) for _ in range(5)]
    assert [thread.answer() for thread in threads] == [[]] * 5
    after = commands(admin)
    polls = seconds / (MAX_BLOCK * 0.5) + 2
    assert after["blpop"] - before["blpop"] <= 5 * polls
    assert after["evalsha"] - before["evalsha"] <= 5 * (polls + 1)


def test_a_wake_up_costs_the_waiting_client_no_round_trip(store, admin):
    """Its next receive is at the server already."""
    queue = store.queue("orders")
    thread = waiting(store, queue)
    queue.add("later", after=3600.0)  # connects, and loads the script
    before = admin.info("stats")["total_reads_processed"]
    queue.add("a")
    assert keys(thread.answer()) == ["a"]
    assert admin.info("stats")["total_reads_processed"] - before == 2  # of the add, and of these statistics


@pytest.mark.parametrize("seconds", [2.0, GUARD])
def test_a_client_that_is_woken_for_nothing_waits_on(store, admin, url, seconds):
    """And is still the one that watches for delayed messages."""
    queue = store.queue("orders")
    thread = waiting(store, queue, seconds)
    admin.rpush(f"{url.partition('prefix=')[2]}:{{queue:orders}}:bell", "")
    until(lambda: not admin.exists(f"{url.partition('prefix=')[2]}:{{queue:orders}}:bell"))
    queue.add("a", after=0.1)
    assert keys(thread.answer()) == ["a"]


def test_a_list_that_another_program_has_replaced_is_an_error_of_one_call(store, admin, url):
    """The reply of the receive that was sent with it does not become that of the next call."""
    queue, bell = store.queue("orders"), f"{url.partition('prefix=')[2]}:{{queue:orders}}:bell"
    queue.add("later", after=60.0)
    admin.set(bell, "")
    store.server.call(scripts.DEPTH, queue._keys, ("",))
    with pytest.raises(StoreError):
        store.server.listen([bell], 0.01, scripts.DEPTH, queue._keys, ("",))
    admin.delete(bell)
    assert store.server.listen([bell], 0.01, scripts.DEPTH, queue._keys, ("",)) == [0, 1, 0, 0, b""]


def test_a_script_that_the_server_has_forgotten_is_sent_with_the_next_call(store, admin):
    """A restart empties the cache of scripts."""
    queue = store.queue("orders")
    admin.script_flush()
    assert store.server.listen(["nothing"], 0.01, scripts.DEPTH, queue._keys, ("",)) is None
    assert queue.depth().ready == 0


def test_only_one_waiter_watches_the_due_time(store, admin):
    """Ten messages that become due one after another do not wake twenty waiters each time."""
    queue = store.queue("orders")
    threads = [waiting(store, queue) for _ in range(20)]
    before = commands(admin)
    for n in range(10):
        queue.add(f"key {n}", after=0.3 + n * 0.02)
    until(lambda: sum(not thread.is_alive() for thread in threads) == 10)
    calls = commands(admin)["evalsha"] - before["evalsha"]
    for n in range(10):
        queue.add(f"more {n}")
    assert sorted(len(thread.answer()) for thread in threads) == [1] * 20
    assert calls < 100, "each due message should wake one or two waiters"


@pytest.mark.parametrize("seconds", [0.05, 0.3])
def test_a_receive_that_times_out_returns_nothing(store, seconds):
    """Another process can take over the watch afterwards."""
    queue = store.queue("orders")
    queue.add("far", after=3600.0)
    assert queue.receive(wait=seconds) == []
    with open_store(redis_server.server().url + "/0?prefix=" + store.server.address.prefix) as other:
        assert other.queue("orders").receive(wait=0.01) == []


def test_all_sync_requests_are_one_round_trip(store, admin):
    """The number of round trips does not depend on the number of requests."""
    requests = [
        ShelterReport("x", "calm", 1, 0, 0.0),
        *(BudgetRequest(f"b{n}", BudgetTerms(), 1, 0, 0, 1) for n in range(20)),
    ]
    requests += [BucketRequest(f"c{n}", 1.0) for n in range(20)]
    store.sync_members("me", requests)  # loads the scripts
    reads = admin.info("stats")["total_reads_processed"]
    assert len(store.sync_members("me", requests)) == 41
    assert admin.info("stats")["total_reads_processed"] - reads <= 3  # INFO, the pipeline, and a split of it


@pytest.mark.parametrize("others", [0, 2])
def test_a_name_whose_keys_belong_to_another_program_is_not_shared(store, admin, caplog, others):
    """The other names are shared; one log line says which name uses local limits."""
    taken, _ = store.names.budget_keys("taken")
    admin.set(taken, "foreign")
    fleet_sync = FleetSync(store, "fleet")
    fleet_sync.start = lambda: True  # the test calls sync_once itself
    budgets = [FleetBudget(fleet_sync, name, BudgetTerms()) for name in ("taken", *(f"b{n}" for n in range(others)))]
    fleet_sync.sync_once()
    fleet_sync.sync_once()
    assert [budget._valid_until > 0.0 for budget in budgets] == [False, *[True] * others]
    assert not fleet_sync.degraded
    (said,) = caplog.records
    assert "fleet can't share 'taken': each process applies its own local limits to it" in said.message
    assert "has keys of another program under the prefix" in said.message
    admin.delete(taken)
    fleet_sync.sync_once()
    assert all(budget._valid_until > 0.0 for budget in budgets)
    assert not fleet_sync._unshareable
    fleet_sync.close()


def test_a_message_of_a_killed_process_is_received_again(store, url):
    """It is received when the lease has expired."""
    code = """if True:
        import abate.stores, os, sys
        queue = abate.stores.open_store(sys.argv[1]).queue("orders", lease=0.5)
        print(*[message.key for message in queue.receive(10)], flush=True)
        os.kill(os.getpid(), 9)
    """
    queue = store.queue("orders")
    queue.add("a")
    worker = python(code, url)
    assert worker.communicate(timeout=GUARD)[0] == "a\n"
    assert worker.returncode == -9
    (message,) = queue.receive(wait=GUARD)
    assert (message.key, message.receives) == ("a", 2)
