"""What is the own of Redis where one store serves many: watches and bells, and what they cost the server."""

import time

import pytest

from abate.stores import open_store
from abate.stores.budget import BudgetTerms
from abate.stores.fleet import FleetBudget, FleetSync
from abate.stores.fleet.messages import BucketRequest, BudgetRequest, ShelterReport
from abate.stores.redis.connection import MAX_BLOCK
from tests.conformance import redis_server
from tests.stores.processes import GUARD, Thread, keys, python, until, waiting

KIND = "redis"


def commands(admin):
    """How often scripts were called, and bells listened for."""
    stats = admin.info("commandstats")
    return {name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "blpop")}


def test_a_watch_that_nobody_keeps_is_taken_over(store, admin, url):
    """Whoever watched was killed: others come for what is due, a little later."""
    queue = store.queue("orders")
    queue.add("a", after=0.3)
    admin.hset(
        f"{url.partition('prefix=')[2]}:{{queue:orders}}:meta", mapping={"watch": time.time(), "watcher": "dead"}
    )
    assert keys(queue.receive(wait=GUARD)) == ["a"]


def test_a_bell_that_nobody_heard_is_made_up_for(store, admin, url):
    """Whoever was woken was killed before it looked: the others look now and then."""
    queue = store.queue("orders")
    thread = waiting(store, queue)
    base = f"{url.partition('prefix=')[2]}:{{queue:orders}}"
    pipeline = admin.pipeline(transaction=True)
    pipeline.hset(f"{base}:item", mapping={"ra": "w 000000000000001 0 0 0 0", "ca": "\nbody"})
    pipeline.zadd(f"{base}:line", {"000000000000001a": 0})
    pipeline.execute()
    assert keys(thread.answer()) == ["a"]


def test_who_waits_does_not_storm_the_server(store, admin):
    """Five who wait for something far away ask the server a few times each, in as many seconds."""
    queue = store.queue("orders")
    queue.add("far", after=3600.0)
    before, seconds = commands(admin), 1.0
    threads = [Thread(queue.receive, 1, seconds) for _ in range(5)]
    assert [thread.answer() for thread in threads] == [[]] * 5
    after = commands(admin)
    looks = seconds / (MAX_BLOCK * 0.5) + 2
    assert after["blpop"] - before["blpop"] <= 5 * looks
    assert after["evalsha"] - before["evalsha"] <= 5 * (looks + 1)


def test_one_who_waits_watches_for_all(store, admin):
    """Ten messages that come due one after the other don't wake twenty who wait each time."""
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
    assert calls < 100, "each of the ten dues should wake one or two"


@pytest.mark.parametrize("seconds", [0.05, 0.3])
def test_who_waits_in_vain_returns(store, seconds):
    """With nothing; and leaves the watch to others."""
    queue = store.queue("orders")
    queue.add("far", after=3600.0)
    assert queue.receive(wait=seconds) == []
    with open_store(redis_server.server().url + "/0?prefix=" + store.server.address.prefix) as other:
        assert other.queue("orders").receive(wait=0.01) == []


def test_all_offers_are_one_round_trip(store, admin):
    """However many things a process shares."""
    offers = [
        ShelterReport("x", "calm", 1, 0, 0.0),
        *(BudgetRequest(f"b{n}", BudgetTerms(), 1, 0, 0, 1) for n in range(20)),
    ]
    offers += [BucketRequest(f"c{n}", 1.0) for n in range(20)]
    store.sync_members("me", offers)  # the scripts are there now
    reads = admin.info("stats")["total_reads_processed"]
    assert len(store.sync_members("me", offers)) == 41
    assert admin.info("stats")["total_reads_processed"] - reads <= 3  # this one, ours, and one more if it was cut


@pytest.mark.parametrize("others", [0, 2])
def test_a_name_whose_keys_are_taken_is_not_shared_and_the_others_are(store, admin, caplog, others):
    """Another program's key says nothing against the store: it is said once which name goes by its own limits."""
    taken, _ = store.names.budget_keys("taken")
    admin.set(taken, "somebody's")
    fleet_sync = FleetSync(store, "fleet")
    fleet_sync.start = lambda: True  # it travels when the test says so
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


def test_a_child_process_that_dies_leaves_its_lease(store, url):
    """Until it has run out."""
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
