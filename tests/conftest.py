"""For all tests."""

import os
import pickle
import select
import signal
import sys
import warnings

import pytest
from hypothesis import settings

from abate import event_sinks, observe
from abate.clock import ever_used
from abate.observe import default_logging

CHILD_TIMEOUT = 30.0
"""Seconds after which a child process counts as hung."""

# how long an example takes is the machine's business: a timed assertion is a flaky test
settings.register_profile("untimed", deadline=None)
if settings.get_current_profile_name() == "default":
    settings.load_profile("untimed")


def pytest_configure(config):
    """A process that runs tests is measured from its first import, as this variable asks; what tests start is not.

    Calls are logged only in the tests that ask for it (`default_log`).
    """
    observe.disable_logging()
    if not config.getoption("numprocesses", None):  # this one runs tests itself, and starts no others to do so
        os.environ.pop("COVERAGE_PROCESS_START", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the shell has started the tests in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what tests start and interrupt must not inherit that


@pytest.fixture(autouse=True)
def sinks_end_with_their_test():
    """Later tests of this process are not counted by what an earlier one has installed, or left to the collector."""
    before = list(event_sinks.installed)
    yield
    for sink in list(event_sinks.installed):
        if sink not in before:
            event_sinks.remove(sink)


@pytest.fixture(autouse=True)
def calls_take_their_short_ways():
    """Retries take the short way of a program that never switched them off, though earlier tests have done that."""
    ever_used.off = False


@pytest.fixture
def default_log():
    """Log calls without a sink, as a program does unless it switches that off; return a fresh sampler's log."""
    log = default_logging.DefaultLog()
    kept = event_sinks.default_log
    event_sinks.replace_default_log(log)
    observe.enable_logging()
    yield log
    observe.disable_logging()
    event_sinks.replace_default_log(kept)


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
        poller = select.poll()  # select() takes no descriptor beyond 1023
        poller.register(read, select.POLLIN)
        answered = poller.poll(CHILD_TIMEOUT * 1000)
        if not answered:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(read, "rb") as pipe:
            answer = pipe.read() if answered else b""
        assert answer, "the child failed" if answered else "the child hung"
        return pickle.loads(answer)

    return run
