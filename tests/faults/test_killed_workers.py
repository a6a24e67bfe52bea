"""Workers that are killed, stopped or have a wrong clock: no message is lost, and none has two lease holders.

For every store that processes share.
"""

import pytest

from abate.stores import open_store
from tests.conformance.conftest import SHARED, STORES
from tests.faults.killed_workers import process_while_killing, stopped
from tests.stores.processes import GUARD, keys, output, python, tell

LEASE = 1.0
MESSAGES = {"sqlite": 1000, "redis": 250, "postgres": 250}
PAUSE = {"sqlite": 0.01, "redis": 0.02, "postgres": 0.02}
"""The most seconds that a worker takes per message; long enough for several kills during a run."""


@pytest.fixture(params=SHARED)
def kind(request):
    return request.param


@pytest.fixture
def url(kind, tmp_path):
    return STORES[kind](tmp_path)


@pytest.fixture
def queue(url):
    with open_store(url) as store:
        yield store.queue("work")


@pytest.fixture
def start(url):
    """Return a function that starts a program on the store; the programs are killed after the test."""
    started = []

    def program(code, *args):
        started.append(python(code, url, *args))
        return started[-1]

    yield program
    for process in started:
        process.kill()
        process.communicate()


def test_killed_workers_lose_no_message_and_no_lease_overlaps(kind, url, tmp_path):
    """Each message is handled; it is redelivered only after its lease expired, and not after a `done` was accepted."""
    count = MESSAGES[kind]
    outcome, kills, _ = process_while_killing(tmp_path, count, LEASE, PAUSE[kind], guard=2 * GUARD, url=url)
    assert set(outcome.handlings) == {f"key-{n}" for n in range(count)}
    assert outcome.too_early == []
    assert outcome.after_done == []
    assert kills > 5
    assert outcome.redelivered > 0, "no worker was killed while it held a message: the test proves nothing"


SLOW = """if True:
    import sys
    from abate.stores import open_store
    from abate.work.source import LeaseLost

    queue = open_store(sys.argv[1]).queue("work", lease=0.5)
    (message,) = queue.receive(wait=30.0)
    print("got", message.token, flush=True)
    sys.stdin.readline()
    try:
        queue.done(message)
        print("done")
    except LeaseLost:
        print("lost")
"""


@pytest.mark.parametrize("meanwhile", ["leased", "done", "added again"])
def test_done_after_the_lease_expired_is_refused(queue, start, meanwhile):
    """A worker that was stopped past its lease gets `LeaseLost`; the new lease is not affected."""
    queue.add("a")
    worker = start(SLOW)
    token = int(worker.stdout.readline().split()[1])
    with stopped(worker.pid):
        (message,) = queue.receive(wait=GUARD)
        assert (message.key, message.receives) == ("a", 2)
        assert message.token > token
        if meanwhile != "leased":
            queue.done(message)
        if meanwhile == "added again":
            queue.add("a")
        tell(worker, "go on")
    assert output(worker) == ["lost"]
    if meanwhile == "leased":
        queue.done(message)
    left = queue.depth()
    assert (left.ready, left.delayed, left.leased, left.dead) == (meanwhile == "added again", 0, 0, 0)


WRONG_CLOCK = """if True:
    import sys, time
    correct = time.time
    time.time = lambda: correct() + float(sys.argv[2])
    from abate.stores import open_store

    queue = open_store(sys.argv[1]).queue("work", lease=600.0)
    (message,) = queue.receive(10)
    queue.add("later", after=600.0)
    queue.add("now")
    print(message.key, queue.depth(), queue.depth().age < 60, flush=True)
    sys.stdin.readline()
    queue.done(message)
    print("done")
"""


@pytest.mark.parametrize("offset", ["3600", "-3600"])
def test_a_wrong_clock_of_a_worker_does_not_affect_leases_and_delays(queue, start, offset):
    """Leases and delays use the server's clock, or the machine's monotonic one, not `time.time` of the worker.

    A worker whose clock is an hour ahead or behind receives no delayed message early, and its own delays and leases
    last as long as configured.
    """
    queue.add("a")
    queue.add("much later", after=1800.0)
    worker = start(WRONG_CLOCK, offset)
    printed = worker.stdout.readline()
    assert printed.startswith("a ")
    assert "ready=1, delayed=2, leased=1, dead=0" in printed
    assert printed.endswith("True\n")
    assert keys(queue.receive(10)) == ["now"]
    tell(worker, "go on")
    assert output(worker) == ["done"]
    depth = queue.depth()
    assert (depth.ready, depth.delayed, depth.leased) == (0, 2, 1)
