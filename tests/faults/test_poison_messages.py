"""A poison message, which kills every process that handles it: only it becomes a dead letter.

For every store that processes share, with real processes.
"""

import os
import time
import warnings

import pytest

import abate
from abate.stores import open_store
from tests.conformance.conftest import SHARED, STORES

LEASE = 0.3
WORKERS = 4
GUARD = 60.0


def run_worker(url, log, max_receives):
    """Run a consumer in a forked process until nothing is ready or it dies; return whether it died."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads of earlier tests
        child = os.fork()
    if not child:
        written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        in_flight = set()

        def handle(message):
            in_flight.add(message.body)
            if message.body == "poison":
                time.sleep(0.03)
                os.write(written, f"killed {len(in_flight) - 1}\n".encode())
                os._exit(139)  # like a segmentation fault or the OOM killer
            time.sleep(0.1)
            in_flight.discard(message.body)
            os.write(written, f"done {message.body}\n".encode())

        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            queue = open_store(url).queue("work", lease=LEASE)
            abate.consumer(workers=WORKERS, max_receives=max_receives)(handle).run(queue, drain=True)
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 139)
    return code == 139


@pytest.mark.parametrize(("kind", "max_receives"), [("sqlite", 1), *((kind, 3) for kind in SHARED)], ids=str)
def test_a_poison_message_does_not_kill_other_messages(kind, max_receives, tmp_path):
    """Messages in flight beside it are done; after two deaths it is handled alone."""
    url, log = STORES[kind](tmp_path), tmp_path / "log"
    others = [f"message {number}" for number in range(WORKERS - 1)]
    with open_store(url) as store:
        queue = store.queue("work")
        for body in ("poison", *others):
            queue.send(body)
        deaths, end = 0, time.monotonic() + GUARD
        while (depth := queue.depth()).waiting or depth.leased:
            assert time.monotonic() < end
            if depth.ready:
                deaths += run_worker(url, log, max_receives)
            time.sleep(0.05)
        assert [letter.body for letter in queue.dead()] == ["poison"]
        assert queue.dead()[0].kind == "receives"
    lines = log.read_text().split("\n")
    assert {line for line in lines if line.startswith("done")} == {f"done {body}" for body in others}
    in_flight_beside = [int(line.split()[1]) for line in lines if line.startswith("killed")]
    assert len(in_flight_beside) == deaths
    assert deaths <= max_receives + 1
    assert in_flight_beside[0] == len(others), "no message was in flight beside it: the test proves nothing"
    assert in_flight_beside[2:] == [0] * len(in_flight_beside[2:])
