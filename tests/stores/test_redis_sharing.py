"""One store in Redis for many: threads, processes, the children of a fork; and how those who wait are woken."""

import json
import random
import subprocess
import sys
import threading
import time

import pytest
import redis as driver

from abate.stores import Depth, StoreError, open_store
from abate.stores.fleet.offers import Accounts, Demand, Sight
from abate.stores.ledger import Terms
from abate.stores.redis.server import LONGEST_LOOK
from abate.work.source import Back, Done
from tests.conformance import redis_server
from tests.stores.sharing import FOR_EVER, GUARD, Thread, forks, in_child, keys, output, python, until


@pytest.fixture
def url():
    return redis_server.empty_store()


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def admin():
    with driver.Redis.from_url(redis_server.server().url) as client:
        yield client


def commands(admin):
    """How often scripts were called, and bells listened for."""
    stats = admin.info("commandstats")
    return {name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "blpop")}


def waiting(admin, queue, seconds=FOR_EVER):
    """A thread that waits for a message; this returns when the server knows that it waits."""
    before = admin.info("clients")["blocked_clients"]
    thread = Thread(queue.receive, 1, seconds)
    until(lambda: admin.info("clients")["blocked_clients"] > before)
    return thread


# ── Waking ───────────────────────────────────────────────────────────────────────────────────────────────


def test_an_add_wakes_one_who_waits(store, admin):
    """Of its queue, and one for each."""
    orders, others = store.queue("orders"), store.queue("others")
    threads = [waiting(admin, orders), waiting(admin, others), waiting(admin, others)]
    for key in "ab":
        store.queue("others").add(key)
    assert sorted(keys(threads[1].answer()) + keys(threads[2].answer())) == ["a", "b"]
    store.queue("orders").add("c")
    assert keys(threads[0].answer()) == ["c"]


@pytest.mark.parametrize("how", ["back", "again", "redrive", "add for later"])
def test_what_comes_back_wakes_one_who_waits(store, admin, how):
    """Whatever brings it back, at once or a little later."""
    queue = store.queue("orders")
    if how != "add for later":
        queue.add("a")
        (message,) = queue.receive()
    if how == "redrive":
        queue.bury(message, "bad")
    thread = waiting(admin, queue)
    match how:
        case "back":
            queue.back(message, 0.1)
        case "again":
            queue.done(message, again=0.0)
        case "redrive":
            queue.redrive()
        case _:
            queue.add("a", after=0.2)
    assert keys(thread.answer()) == ["a"]


def test_several_that_come_at_once_wake_several(store, admin):
    """One settlement that lets three go, and one watch for three dues."""
    queue = store.queue("orders")
    for key in "abc":
        queue.add(key)
    messages = queue.receive(3)
    threads = [waiting(admin, queue) for _ in range(3)]
    queue.settle([(message, Back(0.0)) for message in messages])
    taken = [message for thread in threads for message in thread.answer()]
    assert sorted(keys(taken)) == ["a", "b", "c"]
    threads = [waiting(admin, queue) for _ in range(3)]
    queue.settle([(message, Back(0.3)) for message in taken])
    assert sorted(key for thread in threads for key in keys(thread.answer())) == ["a", "b", "c"]


def test_a_lease_that_runs_out_wakes_one_who_waited_before_it_began(store, admin):
    """Its holder is silent; one of those who wait has taken over the watch."""
    queue = store.queue("orders", lease=0.5)
    threads = [waiting(admin, queue), waiting(admin, queue)]
    queue.add("a")
    until(lambda: any(not thread.is_alive() for thread in threads))
    assert [keys(thread.answer()) for thread in threads] == [["a"], ["a"]]


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
    thread = waiting(admin, queue)
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
    looks = seconds / (LONGEST_LOOK * 0.5) + 2
    assert after["blpop"] - before["blpop"] <= 5 * looks
    assert after["evalsha"] - before["evalsha"] <= 5 * (looks + 1)


def test_one_who_waits_watches_for_all(store, admin):
    """Ten messages that come due one after the other don't wake twenty who wait each time."""
    queue = store.queue("orders")
    threads = [waiting(admin, queue) for _ in range(20)]
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


def test_closing_wakes_all_who_wait(store, admin):
    """They are told why, and so is who comes later."""
    queue = store.queue("orders")
    threads = [waiting(admin, queue), waiting(admin, queue)]
    store.close()
    for thread in threads:
        with pytest.raises(StoreError, match="is closed"):
            thread.answer()
    with pytest.raises(StoreError, match="is closed"):
        queue.add("a")
    store.close()


# ── Threads and processes ────────────────────────────────────────────────────────────────────────────────


def test_threads_never_have_one_message_together_and_lose_none(store):
    """With keys that are added again while they are in hand."""
    queue = store.queue("orders")
    held, wanted, seen, lock = set(), {}, {}, threading.Lock()
    end = threading.Event()

    def produce(place):
        rng = random.Random(place)
        for n in range(60):
            key = f"key {rng.randrange(20)}"
            with lock:
                wanted[f"{key} {place}"] = n
                body = json.dumps({name: n for name, n in wanted.items() if name.startswith(f"{key} ")})
                queue.add(key, body, priority=rng.randrange(3))

    def consume():
        while True:
            messages = queue.receive(2)
            if not messages and end.is_set():
                return
            with lock:
                assert not held & set(keys(messages))
                held.update(keys(messages))
                for message in messages:
                    for name, n in message.json().items():
                        seen[name] = max(n, seen.get(name, 0))
            time.sleep(0)
            with lock:
                held.difference_update(keys(messages))
            assert queue.settle([(message, Done()) for message in messages]) == []

    consumers = [Thread(consume) for _ in range(3)]
    producers = [Thread(produce, place) for place in range(3)]
    for producer in producers:
        producer.answer()
    end.set()
    for consumer in consumers:
        consumer.answer()
    assert seen == wanted
    assert queue.depth() == Depth()


def test_what_another_process_adds_is_noticed(store, admin, url):
    """By one who waits."""
    thread = waiting(admin, store.queue("orders"))
    code = """if True:
        import abate.stores, sys
        with abate.stores.open_store(sys.argv[1]) as store:
            store.queue("orders").add("a")
    """
    output(python(code, url))
    assert keys(thread.answer()) == ["a"]


def test_a_budget_is_shared_by_processes(url):
    """Together they withdraw what there is, and no more."""
    code = """if True:
        import abate.stores, sys
        with abate.stores.open_store(sys.argv[1]) as store:
            budget = store.ledger("nightly", ratio=0.0, reserve=0.05, window=3600.0)
            print(sum(budget.try_withdraw() for _ in range(100)))
    """
    processes = [python(code, url) for _ in range(3)]
    assert sum(int(output(process)[0]) for process in processes) == 180


def test_all_offers_are_one_round_trip(store, admin):
    """However many things a process shares."""
    offers = [Sight("x", "calm", 1, 0, 0.0), *(Accounts(f"b{n}", Terms(), 1, 0, 0, 1) for n in range(20))]
    offers += [Demand(f"c{n}", 1.0) for n in range(20)]
    store.trade("me", offers)  # the scripts are there now
    reads = admin.info("stats")["total_reads_processed"]
    assert len(store.trade("me", offers)) == 41
    assert admin.info("stats")["total_reads_processed"] - reads <= 3  # this one, ours, and one more if it was cut


# ── Fork ─────────────────────────────────────────────────────────────────────────────────────────────────


@forks
def test_a_forked_child_opens_its_own_connections(store, admin):
    """Both work on, and nobody hears an answer that was meant for the other."""
    queue = store.queue("orders")
    queue.add("a")

    def child():
        (message,) = queue.receive()
        queue.add("b")
        queue.done(message)
        return message.key

    idle = waiting(admin, store.queue("others"))
    assert in_child(child) == "a"
    assert in_child(lambda: [queue.add(f"c{n}") for n in range(50)].count(True)) == "50"
    assert len(queue.receive(100)) == 51
    store.queue("others").add("enough")
    assert keys(idle.answer()) == ["enough"]


@forks
def test_a_fork_in_the_middle_of_others_work_disturbs_nobody(store):
    """Threads add while the process forks; children and parent lose nothing, and nothing hangs."""
    queue, end = store.queue("orders"), threading.Event()

    def produce(place):
        n = 0
        while not end.is_set():
            queue.add(f"{place} {n}")
            n += 1
        return n

    producers = [Thread(produce, place) for place in range(2)]
    answers = [in_child(lambda n=n: queue.add(f"child {n}")) for n in range(10)]
    end.set()
    made = sum(producer.answer() for producer in producers)
    assert answers == ["True"] * 10
    assert queue.depth().ready == made + 10


def test_a_child_process_that_dies_leaves_its_lease(url):
    """Until it has run out."""
    code = """if True:
        import abate.stores, os, sys
        queue = abate.stores.open_store(sys.argv[1]).queue("orders", lease=0.5)
        print(*[message.key for message in queue.receive(10)], flush=True)
        os.kill(os.getpid(), 9)
    """
    with open_store(url) as store:
        queue = store.queue("orders")
        queue.add("a")
        worker = subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True)
        assert worker.communicate(timeout=GUARD)[0] == "a\n"
        assert worker.returncode == -9
        (message,) = queue.receive(wait=GUARD)
        assert (message.key, message.receives) == ("a", 2)
