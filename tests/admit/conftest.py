"""What the tests of gates share: threads that take turns as often as they can, and children of a fork."""

import os
import pickle
import select
import signal
import sys
import threading
import warnings

import pytest

THREADS = 8
PATIENCE = 30.0
"""Seconds after which a child is taken to hang."""


@pytest.fixture
def together():
    """Run a function in eight threads at once, with the shortest turns there are: their results."""
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
def in_child():
    """Fork, run a function in the child, and return what it returned; a child that hangs fails the test."""

    def run(function):
        read, write = os.pipe()
        with warnings.catch_warnings():
            # newer Pythons warn of forks beside threads, which is what is tested here
            warnings.simplefilter("ignore", DeprecationWarning)
            # a tracer (of coverage) may hold a lock of its own in another thread, which the child would wait for
            tracer = sys.gettrace()
            sys.settrace(None)
            child = os.fork()
            if child:
                sys.settrace(tracer)
        if child == 0:
            try:
                os.write(write, pickle.dumps(function()))
            finally:
                os._exit(0)
        os.close(write)
        answered, _, _ = select.select([read], [], [], PATIENCE)
        if not answered:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(read, "rb") as pipe:
            answer = pipe.read() if answered else b""
        assert answer, "the child failed" if answered else "the child hung"
        return pickle.loads(answer)

    return run


@pytest.fixture
def beside():
    """Run a function over and over in a thread of its own until the test ends."""
    over = threading.Event()
    threads = []

    def start(function):
        def loop():
            # coverage takes a lock of its own in threads that it traces, which a child would wait for
            sys.settrace(None)
            while not over.is_set():
                function()

        threads.append(threading.Thread(target=loop))
        threads[-1].start()

    yield start
    over.set()
    for thread in threads:
        thread.join()
