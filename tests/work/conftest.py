"""What the tests of queues share: threads that wait, and threads that take turns as often as they can."""

import sys
import threading
import time

import pytest

PATIENCE = 30.0
"""Seconds after which a thread is taken to hang."""


class Worker:
    """A thread that calls a function once: what it returned, or raised."""

    def __init__(self, function, *args, **kwargs):
        self.result = self.error = None
        self._call = function, args, kwargs
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        function, args, kwargs = self._call
        try:
            self.result = function(*args, **kwargs)
        except Exception as error:
            self.error = error

    def answer(self):
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "a thread hangs"
        if self.error is not None:
            raise self.error
        return self.result


def until(condition):
    """Let other threads run until something is so."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it does not come to this"
        time.sleep(0)


@pytest.fixture
def in_line():
    """Start a thread, and return when it stands in line with so many others, for a key or for room."""

    def start(line, function, *args, **kwargs):
        before = len(line)
        worker = Worker(function, *args, **kwargs)
        until(lambda: len(line) > before)
        return worker

    return start


@pytest.fixture
def settled():
    """Wait until a condition of other threads holds."""
    return until


@pytest.fixture
def short_turns():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield Worker
    sys.setswitchinterval(before)
