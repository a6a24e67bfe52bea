"""A message that kills every process that works on it: it alone ends among the dead letters.

For every store that processes share; the processes are real, and so are their deaths.
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


def life(url, log, max_receives):
    """A process that works until nothing is ready, or until it dies; the answer is whether it died."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: those of tests before
        child = os.fork()
    if not child:
        written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        busy = set()

        def handle(message):
            busy.add(message.body)
            if message.body == "poison":
                time.sleep(0.03)
                os.write(written, f"killed {len(busy) - 1}\n".encode())
                os._exit(139)  # as a segmentation fault, or the kernel that is out of memory
            time.sleep(0.1)
            busy.discard(message.body)
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
def test_a_poison_message_takes_nobody_along(kind, max_receives, tmp_path):
    """Those that were in hand beside it are done; it has company twice at most, and then none."""
    url, log = STORES[kind](tmp_path), tmp_path / "log"
    innocents = [f"message {number}" for number in range(WORKERS - 1)]
    with open_store(url) as store:
        queue = store.queue("work")
        for body in ("poison", *innocents):
            queue.send(body)
        deaths, end = 0, time.monotonic() + GUARD
        while (depth := queue.depth()).waiting or depth.leased:
            assert time.monotonic() < end
            if depth.ready:
                deaths += life(url, log, max_receives)
            time.sleep(0.05)
        assert [letter.body for letter in queue.dead()] == ["poison"]
        assert queue.dead()[0].kind == "receives"
    lines = log.read_text().split("\n")
    assert {line for line in lines if line.startswith("done")} == {f"done {body}" for body in innocents}
    company = [int(line.split()[1]) for line in lines if line.startswith("killed")]
    assert len(company) == deaths
    assert deaths <= max_receives + 1
    assert company[0] == len(innocents), "nobody was in hand beside it: the test shows nothing"
    assert company[2:] == [0] * len(company[2:])
