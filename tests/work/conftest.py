"""Fixtures for the queue tests: threads that wait, and threads that switch as often as possible."""

import sys
import threading
import time

import pytest

HANG_TIMEOUT = 30.0
"""Seconds after which a thread counts as hung."""


class BackgroundCall:
    """A thread that calls a function once; `result` returns or raises its outcome."""

    def __init__(self, function, *args, **kwargs):
        self._result = self._error = None
        self._call = function, args, kwargs
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        function, args, kwargs = self._call
        try:
            self._result = function(*args, **kwargs)
        except Exception as error:
            self._error = error

    def result(self):
        self.thread.join(HANG_TIMEOUT)
        assert not self.thread.is_alive(), "a thread hangs"
        if self._error is not None:
            raise self._error
        return self._result


def poll_until(condition):
    """Let other threads run until the condition holds."""
    end = time.monotonic() + HANG_TIMEOUT
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0)


@pytest.fixture
def start_waiter():
    """Start a thread that waits for a key or for capacity; return once it is in the list of waiters."""

    def start(waiters, function, *args, **kwargs):
        before = len(waiters)
        call = BackgroundCall(function, *args, **kwargs)
        poll_until(lambda: len(waiters) > before)
        return call

    return start


@pytest.fixture
def wait_until():
    """Wait until other threads have made a condition true."""
    return poll_until


@pytest.fixture
def start_thread():
    """Start threads under the shortest switch interval, so that they interleave as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield BackgroundCall
    sys.setswitchinterval(before)
