"""A process that is killed with messages that it received ahead: they are not blamed.

For every store that processes share, with real processes.
"""

import os
import signal
import time
import warnings

import pytest

import abate
from abate.stores import open_store
from tests.conformance.conftest import SHARED, STORES

LEASE = 0.5
GUARD = 60.0


def kill_a_worker(url, log):
    """Run a consumer in a forked process that is killed in the middle of a message, with others received ahead."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads of earlier tests
        child = os.fork()
    if not child:
        try:
            written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            store = open_store(url)
            queue = store.queue("work", lease=LEASE)

            def handle(message):
                os.write(written, f"{message.body}\n".encode())
                while message.body == "fatal":
                    if queue.depth().leased > 2:
                        os.kill(os.getpid(), signal.SIGKILL)
                    time.sleep(0.01)

            abate.consumer(workers=1)(handle).run(queue)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("kind", SHARED)
def test_a_kill_does_not_count_for_messages_that_had_not_begun(kind, tmp_path):
    """None is lost, and their next receive is their first."""
    url, log = STORES[kind](tmp_path), tmp_path / "log"
    bodies = [*map(str, range(50)), "fatal", *map(str, range(50, 80))]
    with open_store(url) as store:
        queue = store.queue("work", lease=LEASE)
        for body in bodies:
            queue.send(body)
        kill_a_worker(url, log)
        begun = set(log.read_text().split())
        untouched, end = {}, time.monotonic() + GUARD
        while len(untouched) < len(bodies) - len(begun):
            assert time.monotonic() < end
            for message in queue.receive(100, wait=LEASE):
                if message.body not in begun:
                    untouched[message.body] = message.receives, message.unanswered
                queue.done(message)
        assert begun | set(untouched) == set(bodies)
        assert set(untouched.values()) == {(1, 0)}
