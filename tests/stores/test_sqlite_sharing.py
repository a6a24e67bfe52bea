"""One store for many: threads, processes, and the children of a fork."""

import os
import random
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from abate.stores import Depth, StoreError, bells, open_store
from abate.work.source import Done
from tests.stores.sharing import FOR_EVER, GUARD, Thread, forks, in_child, keys, output, python, until


@pytest.fixture(params=["memory:", "file"])
def store(request, tmp_path):
    url = request.param if request.param == "memory:" else f"sqlite:///{tmp_path}/work.db"
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/work.db"


def waiting(store, queue, seconds=FOR_EVER):
    """A thread that waits for a message; this returns when it stands in line."""
    line = store.bells._lines.get(queue.name)
    before = line.waiters if line else 0
    thread = Thread(queue.receive, 1, seconds)
    until(lambda: queue.name in store.bells._lines and store.bells._lines[queue.name].waiters > before)
    return thread


# ── Threads ──────────────────────────────────────────────────────────────────────────────────────────────


def test_threads_never_have_one_message_together_and_lose_none(store):
    """With turns as short as can be, and keys that are added again while they are in hand."""
    queue = store.queue("orders")
    held, wanted, seen, lock = set(), {}, {}, threading.Lock()
    end = threading.Event()

    def produce(place):
        rng = random.Random(place)
        for n in range(100):
            key = f"key {rng.randrange(20)}"
            with lock:
                wanted[key, place] = n
                body = repr({p: n for (k, p), n in wanted.items() if k == key})
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
                    for place, n in eval(message.body).items():
                        seen[message.key, place] = max(n, seen.get((message.key, place), 0))
            time.sleep(0)
            with lock:
                held.difference_update(keys(messages))
            assert queue.settle([(message, Done()) for message in messages]) == []

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        consumers = [Thread(consume) for _ in range(4)]
        producers = [Thread(produce, place) for place in range(4)]
        for producer in producers:
            producer.answer()
        end.set()
        for consumer in consumers:
            consumer.answer()
    finally:
        sys.setswitchinterval(before)
    assert seen == wanted
    assert queue.depth() == Depth()


def test_an_add_wakes_one_who_waits(store):
    """Without a look at the file, and whichever queue object it came through."""
    first, second = store.queue("orders"), store.queue("others")
    threads = [waiting(store, first), waiting(store, second)]
    store.queue("others").add("b")
    assert keys(threads[1].answer()) == ["b"]
    store.queue("orders").add("a")
    assert keys(threads[0].answer()) == ["a"]


@pytest.mark.parametrize("how", ["back", "again", "redrive"])
def test_what_comes_back_wakes_one_who_waits(store, how):
    """Whatever brings it back."""
    queue = store.queue("orders")
    queue.add("a")
    (message,) = queue.receive()
    if how == "redrive":
        queue.bury(message, "bad")
    thread = waiting(store, queue)
    match how:
        case "back":
            queue.back(message, 0.0)
        case "again":
            queue.done(message, again=0.0)
        case "redrive":
            queue.redrive()
    assert keys(thread.answer()) == ["a"]


def test_who_stays_looks_after_the_time_when_others_leave(store):
    """A delayed message is not forgotten because the one who was told of it has gone."""
    queue = store.queue("orders")
    threads = [waiting(store, queue, 0.2), waiting(store, queue), waiting(store, queue)]
    for key in "ab":
        queue.add(key, after=0.4)
    assert threads[0].answer() == []
    assert sorted(keys(threads[1].answer()) + keys(threads[2].answer())) == ["a", "b"]


def test_closing_wakes_all_who_wait(store):
    """They are told why."""
    queue = store.queue("orders")
    threads = [waiting(store, queue), waiting(store, queue)]
    store.close()
    for thread in threads:
        with pytest.raises(StoreError, match="is closed"):
            thread.answer()


def test_nobody_is_left_in_line(store):
    """What is kept for those who wait goes with them."""
    queue = store.queue("orders")
    assert queue.receive(wait=0.01) == []
    assert store.bells._lines == {}


# ── Processes ────────────────────────────────────────────────────────────────────────────────────────────


def test_what_another_process_adds_is_noticed(url):
    """By all who wait; one of them looks at the file for all, whichever queue it waits for."""
    with open_store(url) as store:
        orders, others = store.queue("orders"), store.queue("others")
        looking = waiting(store, orders)
        until(lambda: store.bells._looking)
        threads = [waiting(store, others), waiting(store, others)]
        code = """if True:
            import abate.stores, sys
            with abate.stores.open_store(sys.argv[1]) as store:
                for name, key in (("others", "a"), ("others", "b")):
                    store.queue(name).add(key)
        """
        output(python(code, url))
        assert sorted(key for thread in threads for key in keys(thread.answer())) == ["a", "b"]
        orders.add("c")
        assert keys(looking.answer()) == ["c"]


def test_who_waits_does_not_storm_the_file(url, monkeypatch):
    """A look now and then, with jitter, and none by the others who wait."""
    looks = []
    with open_store(url) as store:
        changed = store.bells._changed
        monkeypatch.setattr(store.bells, "_changed", lambda: looks.append(threading.get_ident()) or changed())
        monkeypatch.setattr(bells, "SHORTEST_LOOK", 0.1)
        monkeypatch.setattr(bells, "LONGEST_LOOK", 0.2)
        queue, begun = store.queue("orders"), time.monotonic()
        threads = [waiting(store, queue, 1.0) for _ in range(5)]
        assert [thread.answer() for thread in threads] == [[]] * 5
    assert 1 <= len(looks) <= (time.monotonic() - begun) / 0.1


def test_processes_that_open_a_new_file_together_all_get_it(url):
    """One makes it, the others find it."""
    code = """if True:
        import abate.stores, sys
        sys.stdin.readline()
        with abate.stores.open_store(sys.argv[1]) as store:
            store.queue("orders").add(sys.argv[2])
    """
    processes = [
        subprocess.Popen([sys.executable, "-c", code, url, str(n)], stdin=subprocess.PIPE, text=True) for n in range(6)
    ]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=GUARD)
        assert process.returncode == 0
    with open_store(url) as store:
        assert store.queue("orders").depth().ready == 6


def test_who_finds_the_file_locked_waits_for_it(url, tmp_path):
    """Others can go on reading."""
    with open_store(url) as store:
        queue = store.queue("orders")
        other = sqlite3.connect(tmp_path / "work.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        thread = Thread(queue.add, "a")
        assert queue.receive(wait=0.1) == []
        assert thread.is_alive()
        other.execute("ROLLBACK")
        other.close()
        assert thread.answer() is True


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


# ── Fork ─────────────────────────────────────────────────────────────────────────────────────────────────


@forks
def test_a_forked_child_opens_its_own_connection(tmp_path, monkeypatch):
    """Both work on, with the same file, wherever the child goes."""
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///work.db") as store:
        queue = store.queue("orders")
        queue.add("a")

        def child():
            (message,) = queue.receive()
            queue.add("b")
            queue.done(message)
            return message.key

        connection = store.file._db
        assert in_child(child) == "a"
        assert in_child(lambda: store.file._db) == "None"
        assert in_child(lambda: (os.chdir("/"), queue.add("c"))[1]) == "True"
        assert store.file._db is connection
        assert keys(queue.receive(10)) == ["b", "c"]


@forks
def test_what_is_in_memory_stays_the_parents(tmp_path):
    """A child begins with nothing, so that no message is handled twice."""
    with open_store("memory:") as store:
        queue = store.queue("orders")
        queue.add("a")
        assert in_child(lambda: (queue.receive(), queue.add("b"))) == "([], True)"
        assert keys(queue.receive(10)) == ["a"]


@forks
def test_a_fork_in_the_middle_of_others_work_disturbs_nobody(url):
    """Threads add and wait while the process forks; children and parent lose nothing, and nothing hangs."""
    with open_store(url) as store:
        queue, end = store.queue("orders"), threading.Event()

        def produce(place):
            n = 0
            while not end.is_set():
                queue.add(f"{place} {n}")
                n += 1
            return n

        producers = [Thread(produce, place) for place in range(2)]
        idle = waiting(store, store.queue("others"))
        answers = [in_child(lambda n=n: queue.add(f"child {n}")) for n in range(20)]
        end.set()
        made = sum(producer.answer() for producer in producers)
        store.queue("others").add("enough")
        idle.answer()
        assert answers == ["True"] * 20
        assert queue.depth().ready == made + 20
        assert store.file.read("PRAGMA integrity_check") == [(b"ok",)]
