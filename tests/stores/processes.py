"""Threads, forked children and programs for tests of shared stores; none of them can hang a test."""

import gc
import os
import subprocess
import sys
import threading
import time

import pytest

from tests.conformance import redis_server

GUARD = 30.0
"""Seconds after which a test fails because something hangs."""


class Thread(threading.Thread):
    """A thread that calls a function once; `answer` returns its result or raises its error."""

    def __init__(self, function, *args):
        super().__init__(daemon=True)
        self._function, self._args = function, args
        self._result = self._error = None
        self.start()

    def run(self):
        try:
            self._result = self._function(*self._args)
        except Exception as error:
            self._error = error

    def answer(self):
        self.join(GUARD)
        assert not self.is_alive(), "a thread hangs"
        if self._error is not None:
            raise self._error
        return self._result


FOR_EVER = 3600.0


def until(condition):
    end = time.monotonic() + GUARD
    while not condition():
        assert time.monotonic() < end, "the condition never became true"
        time.sleep(0.001)


def keys(messages):
    return [message.key for message in messages]


def waiting(store, queue, seconds=FOR_EVER):
    """Start a thread that waits for a message; return when every add, by any process, will wake it."""
    before = count_waiters(store, queue)
    thread = Thread(queue.receive, 1, seconds)
    until(lambda: count_waiters(store, queue) > before)
    if hasattr(store, "listener"):
        until(lambda: queue.name in store.listener._announced)
    elif hasattr(store, "file") and store.file.path is not None:
        until(lambda: store.wakeups._poller is not None)
    return thread


def count_waiters(store, queue):
    """Return how many threads wait for a queue; in Redis, for all queues together, as the server reports it."""
    if not hasattr(store, "wakeups"):
        return redis_server.connection().info("clients")["blocked_clients"]
    waiters = store.wakeups._wait_lists.get(queue.name)
    return waiters.members if waiters else 0


def python(code, *args):
    """Start a Python process that runs the code."""
    command = [sys.executable, "-c", code, *args]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def tell(process, line):
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def output(process):
    out, _ = process.communicate(timeout=GUARD)
    assert process.returncode == 0
    return out.split()


forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def in_child(function):
    """Call a function in a forked child, and return its result or its error as text."""
    gc.collect()  # otherwise the child may finalize calls of earlier tests and so use their stores
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(writing, str(function()).encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return answer
