"""A process that has a SQLite file open and forks: parent, children and others keep their own locks on the file.

Each program runs in a process of its own, forks as real ones do, and writes down the keys whose add was answered.
Afterwards every such key is in the file, and the file is sound.
"""

import os
import sqlite3
import subprocess
import sys
import threading

import pytest

from abate.stores import StoreError, open_store
from abate.stores.sqlite import database as files
from abate.stores.sqlite import file_checks
from abate.stores.sqlite.database import Database
from tests.stores.processes import GUARD, Thread, forks, in_child, keys, output, python

KIND = "sqlite"

START = """if True:
    import os, signal, subprocess, sys, threading, time
    from abate.stores import StoreError, open_store

    url, log = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    store = open_store(url)
    queue = store.queue("orders")

    def add(key):
        queue.add(key, "x" * 300)
        os.write(log, f"{key}\\n".encode())

    add("before")
"""
"""What every program begins with."""


@pytest.fixture
def program(url, tmp_path):
    """Runs a program on the store until it ends: what it printed. Everything that it forked has ended then too."""

    def run(code):
        return output(python(START + code, url, str(tmp_path / "log")))

    return run


def check(url, tmp_path, expected):
    """The file is sound and holds every key whose add was answered; return their number."""
    answered = (tmp_path / "log").read_text().split()
    assert len(answered) == expected
    with open_store(url) as store:
        found = {key for (key,) in store.file.read("SELECT key FROM item")}
        assert found == {key.encode() for key in answered}
        assert store.file.read("PRAGMA integrity_check") == [(b"ok",)]


ENDS = {"_exit": "os._exit(0)", "exit": "sys.exit()", "killed": "os.kill(os.getpid(), signal.SIGKILL)"}


@pytest.mark.parametrize("end", ENDS)
def test_a_daemon_shares_the_file_with_others(program, url, tmp_path, end):
    """After a double fork, and however its parents end: what it adds is seen by others, and the log survives them."""
    printed = program(f"""
    if os.fork() == 0:
        os.setsid()
        if os.fork() > 0:
            {ENDS[end]}
        time.sleep(0.05)  # so that the parents are gone
        other = "from abate.stores import open_store as s; print(s({{!r}}).queue('orders').depth().ready)".format(url)
        for n in range(2):
            add(f"daemon-{{n}}")
            print(subprocess.run([sys.executable, "-c", other], capture_output=True, text=True).stdout, flush=True)
        print(*sorted(name for name in os.listdir(os.path.dirname(sys.argv[2])) if name.startswith("work")))
        sys.exit()
    os.wait()
    {"os._exit(0)" if end == "killed" else ENDS[end]}
    """)
    assert printed == ["2", "3", "work.db", "work.db-shm", "work.db-wal"]
    check(url, tmp_path, 3)


def test_workers_of_a_master_that_opened_the_store(program, url, tmp_path):
    """The master stays, uses the store and forks again; workers end while others begin."""
    program("""
    for n in range(6):
        if os.fork() == 0:
            for i in range(40):
                add(f"worker-{n}-{i}")
                if i % 3 == 0:
                    queue.back(queue.receive()[0])
            sys.exit() if n % 2 else os._exit(0)
        add(f"master-{n}")
        if n == 3:
            store.close()
            store = open_store(url)
            queue = store.queue("orders")
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    """)
    check(url, tmp_path, 1 + 6 * 40 + 6)


def test_processes_of_multiprocessing(program, url, tmp_path):
    """By the start method that forks."""
    program("""
    import multiprocessing
    context = multiprocessing.get_context("fork")
    with context.Pool(3) as pool:
        pool.map(add, [f"pool-{n}" for n in range(100)], chunksize=5)
        add("between")
        pool.close()
        pool.join()
    """)
    check(url, tmp_path, 102)


def test_forks_while_threads_are_in_transactions(program, url, tmp_path):
    """From another thread than theirs; threads go on in the parent, and children begin anew."""
    program("""
    def steadily(name):
        for n in range(100):
            add(f"{name}-{n}")
    threads = [threading.Thread(target=steadily, args=(f"thread-{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    children = []
    for n in range(10):
        pid = os.fork()
        if pid == 0:
            add(f"child-{n}")
            os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    for thread in threads:
        thread.join()
    """)
    check(url, tmp_path, 1 + 300 + 10)


def test_threads_that_fork_at_once(program, url, tmp_path):
    """Each lets go of what it held: none of them waits for ever, nor does the store."""
    program("""
    def fork(n):
        for i in range(5):
            pid = os.fork()
            if pid == 0:
                add(f"child-{n}-{i}")
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
    threads = [threading.Thread(target=fork, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    add("after")
    """)
    check(url, tmp_path, 22)


def test_a_signal_handler_that_forks_inside_a_transaction(program, url, tmp_path):
    """The child must not go on with it, even if it returns there, and can't use the file; the parent can, at once."""
    printed = program("""
    def fork(*_):
        global pid
        pid = os.fork()

    signal.signal(signal.SIGUSR1, fork)
    began = time.monotonic()

    def write(db):
        db.execute("INSERT INTO item (queue, key) VALUES ('orders', 'inside')")
        os.kill(os.getpid(), signal.SIGUSR1)
        db.execute("INSERT INTO item (queue, key) VALUES ('orders', 'too')")

    try:
        store.file.transaction(write)
        os.write(log, b"inside\\ntoo\\n")
    except StoreError as error:
        assert pid == 0
        assert "was forked in the middle of this transaction" in str(error), error
        for attempt in (lambda: queue.add("b"), lambda: queue.depth(), lambda: open_store(url)):
            try:
                attempt()
            except StoreError as error:
                assert "can't be used in this process" in str(error), error
            else:
                os._exit(2)
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0
    print(time.monotonic() - began < 4.0)
    add("after")
    """)
    assert printed == ["True"]
    check(url, tmp_path, 4)


@forks
def test_a_transaction_that_hangs_does_not_hold_up_a_fork_for_ever(store, monkeypatch):
    """The child can't use the file, and says so; the parent's transaction is not disturbed."""
    monkeypatch.setattr(files, "FORK_WAIT", 0.05)
    queue, inside, over = store.queue("orders"), threading.Event(), threading.Event()

    def hang(db):
        db.execute("INSERT INTO item (queue, key) VALUES ('orders', 'slow')")
        inside.set()
        over.wait(GUARD)

    thread = Thread(store.file.transaction, hang)
    inside.wait(GUARD)
    assert "can't be used in this process" in in_child(lambda: queue.add("a"))
    assert "can't be used in this process" in in_child(lambda: in_child(lambda: queue.add("a")))
    over.set()
    thread.answer()
    assert in_child(lambda: queue.add("b")) == "True"
    assert keys(queue.receive(10)) == ["slow", "b"]


@forks
def test_a_connection_of_the_programs_own_bars_the_child(store, tmp_path):
    """SQLite in the child takes its locks to be held: that is noticed, and over when it is closed before the fork."""
    queue = store.queue("orders")
    own = sqlite3.connect(tmp_path / "work.db")
    own.execute("SELECT count(*) FROM item").fetchall()
    assert "can't be used in this process" in in_child(lambda: queue.add("a"))
    assert queue.add("b"), "the parent has its locks"
    own.close()
    assert in_child(lambda: queue.add("c")) == "True"
    assert keys(queue.receive(10)) == ["b", "c"]


@forks
def test_a_fork_without_hooks_before_it_bars_the_child(store, monkeypatch):
    """As programs in C make it: the connection is still open, and is neither used nor closed."""
    queue = store.queue("orders")
    with monkeypatch.context() as without:
        without.setattr(Database, "before_fork", lambda self: None)
        assert "can't be used in this process" in in_child(lambda: queue.add("a"))
    assert queue.add("b")
    assert in_child(lambda: queue.add("c")) == "True"


BARE_FORK = """if True:
    import ctypes, os, sys
    from abate.stores import open_store
    store = open_store(sys.argv[1])
    queue = store.queue("orders")
    queue.add("a")
    if ctypes.PyDLL(None).fork() == 0:
        try:
            queue.add("b")
        except Exception as error:
            print(error, flush=True)
        store.close()
        del queue, store
        os._exit(0)
    os.wait()
    print(queue.add("c"), [message.key for message in queue.receive(10)])
"""


@forks
def test_a_fork_without_any_hooks_bars_the_child(url):
    """As libraries in C make it: the child notices by itself, and lets the parent's connection be."""
    said = subprocess.run([sys.executable, "-c", BARE_FORK, url], capture_output=True, text=True, check=True).stdout
    refusal, parent = said.splitlines()
    assert "can't be used in this process" in refusal
    assert parent == "True ['a', 'c']"


@forks
def test_a_store_opened_twice_is_closed_twice(store, url):
    """Both connections are to one file."""
    with open_store(url) as second:
        assert in_child(lambda: (store.queue("a").add("1"), second.queue("a").add("2"))) == "(True, True)"
        assert second.queue("a").depth().ready == 2


@forks
def test_parent_and_child_each_open_their_own(tmp_path, monkeypatch):
    """When they need it, and wherever the child goes."""
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///work.db") as store:
        queue = store.queue("orders")
        assert in_child(lambda: store.file._db) == "None"
        assert store.file._db is None
        assert in_child(lambda: (os.chdir("/"), queue.add("a"))[1]) == "True"
        assert keys(queue.receive(10)) == ["a"]


@forks
def test_who_waits_in_the_parent_is_woken_by_the_child(store):
    """The parent's new connection knows nothing of what the one before it has seen."""
    queue = store.queue("orders")
    thread = Thread(queue.receive, 1, GUARD)
    assert in_child(lambda: queue.add("a")) == "True"
    assert keys(thread.answer()) == ["a"]


@forks
def test_what_is_in_memory_stays_the_parents():
    """In a child its queues raise, as no other process would see an add; its limits begin anew."""
    with open_store("memory:") as store:
        queue = store.queue("orders")
        queue.add("a")
        for attempt in (lambda: queue.add("b"), queue.receive, queue.depth, store.queues, store.queue("other").depth):
            assert "belong to the process that opened the store" in in_child(attempt)
        assert in_child(lambda: store.ledger("calls").try_withdraw()) == "True"
        assert in_child(lambda: open_store("memory:").queue("orders").add("c")) == "True"
        assert keys(queue.receive(10)) == ["a"]


def test_closing_lets_a_write_finish(store, url):
    """A store that is closed while another thread writes: what was written is there."""
    inside, over = threading.Event(), threading.Event()

    def write(db):
        inside.set()
        over.wait(GUARD)
        db.execute("INSERT INTO item (queue, key) VALUES ('orders', 'a')")

    writing = Thread(store.file.transaction, write)
    inside.wait(GUARD)
    closing = Thread(store.close)
    closing.join(0.05)
    assert closing.is_alive(), "it does not wait for the write"
    over.set()
    writing.answer()
    closing.answer()
    with pytest.raises(StoreError, match="is closed"):
        store.queue("orders").add("b")
    with open_store(url) as again:
        assert keys(again.queue("orders").receive(10)) == ["a"]


def test_a_fork_closes_the_file_whatever_other_threads_have_used_it_for(url):
    """Nothing that they have made keeps it open, or the child would have to refuse it."""
    with open_store(url) as store:
        queue, ended = store.queue("orders"), threading.Event()

        def work():
            while not ended.is_set():
                queue.add("key")
                queue.depth()

        threads = [Thread(work) for _ in range(2)]
        left = 0
        for _ in range(50):
            queue.add("mine")
            store.file.before_fork()
            left += store.file._open_file.file in file_checks.open_inodes()
            store.file.after_fork_in_parent()
        ended.set()
        for thread in threads:
            thread.answer()
    assert left == 0
