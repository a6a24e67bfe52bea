"""Fixtures for the tests of gates: threads that switch as often as possible."""

import sys
import threading

import pytest

THREADS = 8


@pytest.fixture
def together():
    """Run a function in eight threads at once with the shortest switch interval; return their results."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def run(work):
        start = threading.Barrier(THREADS)
        results = []

        def one(place):
            start.wait()
            results.append(work(place))

        threads = [threading.Thread(target=one, args=(place,)) for place in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == THREADS, "a thread has failed"
        return results

    yield run
    sys.setswitchinterval(before)


@pytest.fixture
def beside():
    """Run a function repeatedly in its own thread until the test ends."""
    over = threading.Event()
    threads = []

    def start(function):
        def loop():
            # coverage takes a lock of its own in threads that it traces, which a forked child would wait for
            sys.settrace(None)
            while not over.is_set():
                function()

        threads.append(threading.Thread(target=loop))
        threads[-1].start()

    yield start
    over.set()
    for thread in threads:
        thread.join()
