"""Processes that fork with a SQLite file open and are killed: no acknowledged add is lost."""

import random
import sqlite3
import time

import pytest

from abate.stores import open_store
from tests.stores.processes import GUARD, Thread, python, until

FORKING = """if True:
    import os, random, signal, sys, threading, time
    from abate.stores import open_store

    queue = open_store(sys.argv[1]).queue("work")
    log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)
    end = time.monotonic() + float(sys.argv[3])

    def add(name):
        n = 0
        while time.monotonic() < end:
            key = f"{name}-{n}"
            queue.add(key, "x" * 300)
            os.write(log, f"{key}\\n".encode())
            n += 1

    for number in range(2):
        threading.Thread(target=add, args=(f"{os.getpid()}-{number}",), daemon=True).start()
    while time.monotonic() < end:
        time.sleep(0.02)
        if os.fork() == 0:
            if sys.argv[4] == "children":  # SIGALRM ends the process without any cleanup
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.3))
            end = min(end, time.monotonic() + 0.3)
            add(os.getpid())
            sys.exit() if os.getpid() % 2 else os._exit(0)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
"""


@pytest.mark.parametrize("victims", ["parents", "children"])
def test_killed_forking_processes_lose_no_acknowledged_add(tmp_path, victims):
    """Parents or children are killed at random times: each acknowledged add is in the file, which is intact."""
    url, log = f"sqlite:///{tmp_path}/work.db", tmp_path / "log"
    log.touch()
    open_store(url).close()
    ours = []
    for _ in range(2):
        size, seconds = log.stat().st_size, random.uniform(0.2, 0.4)
        parent = python(FORKING, url, str(log), str(GUARD if victims == "parents" else 3 * seconds), victims)
        until(lambda size=size: log.stat().st_size > size)
        ended = Thread(parent.communicate)  # its children have the pipe too, so that they have ended as well
        if victims == "parents":
            time.sleep(seconds)
            parent.kill()
        while ended.is_alive():  # the last process to close the file checkpoints the WAL and deletes it
            with open_store(url) as store:
                ours.append(f"ours-{len(ours)}")
                store.queue("work").add(ours[-1])
            time.sleep(0.005)
        ended.answer()
    acknowledged = {*log.read_text().splitlines(), *ours}
    assert len(acknowledged) > 100
    file = sqlite3.connect(tmp_path / "work.db")
    found = [key for (key,) in file.execute("SELECT key FROM item")]
    assert len(found) == len(set(found))
    assert acknowledged - set(found) == set()
    assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    file.close()
