"""Workers that die, stand still or have a wrong clock: nothing is lost, and nothing is in two hands.

For every store that processes share.
"""

import pytest

from abate.stores import open_store
from tests.conformance.conftest import SHARED, STORES
from tests.faults.killed_workers import stopped, work_off
from tests.stores.processes import GUARD, keys, output, python, tell

LEASE = 1.0
MESSAGES = {"sqlite": 1000, "redis": 250, "postgres": 250}
PAUSE = {"sqlite": 0.01, "redis": 0.02, "postgres": 0.02}
"""Seconds that a worker takes for a message at most; so long that there is time for some kills."""


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
    """Starts a program on the store, that ends with the test at the latest."""
    started = []

    def program(code, *args):
        started.append(python(code, url, *args))
        return started[-1]

    yield program
    for process in started:
        process.kill()
        process.communicate()


def test_killed_workers_lose_nothing_and_share_nothing(kind, url, tmp_path):
    """Four workers, one killed every moment: every message is handled, a second time only after its lease ran out,
    and never again once somebody was done with it."""
    many = MESSAGES[kind]
    outcome, kills, _ = work_off(tmp_path, many, LEASE, PAUSE[kind], guard=2 * GUARD, url=url)
    assert set(outcome.handlings) == {f"key-{n}" for n in range(many)}
    assert outcome.too_early == []
    assert outcome.after_done == []
    assert kills > 5
    assert outcome.again > 0, "no worker was killed with a message in hand: the test shows nothing"


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


@pytest.mark.parametrize("meanwhile", ["in hand", "done", "added again"])
def test_a_worker_that_stood_still_past_its_lease_is_refused(queue, start, meanwhile):
    """On waking it learns that the message is not its own any more; whoever has it now is not disturbed."""
    queue.add("a")
    worker = start(SLOW)
    token = int(worker.stdout.readline().split()[1])
    with stopped(worker.pid):
        (message,) = queue.receive(wait=GUARD)
        assert (message.key, message.receives) == ("a", 2)
        assert message.token > token
        if meanwhile != "in hand":
            queue.done(message)
        if meanwhile == "added again":
            queue.add("a")
        tell(worker, "go on")
    assert output(worker) == ["lost"]
    if meanwhile == "in hand":
        queue.done(message)
    left = queue.depth()
    assert (left.ready, left.delayed, left.leased, left.dead) == (meanwhile == "added again", 0, 0, 0)


OFF_BY = """if True:
    import sys, time
    machine = time.time
    time.time = lambda: machine() + float(sys.argv[2])
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


@pytest.mark.parametrize("off", ["3600", "-3600"])
def test_a_worker_whose_clock_is_wrong_changes_nothing(queue, start, off):
    """Leases and delays are the server's, or the machine's since its start: an hour ahead or behind, a worker takes
    nothing before its time, its messages are neither early nor late, and its lease is neither over nor endless."""
    queue.add("a")
    queue.add("much later", after=1800.0)
    worker = start(OFF_BY, off)
    said = worker.stdout.readline()
    assert said.startswith("a ")
    assert "ready=1, delayed=2, leased=1, dead=0" in said
    assert said.endswith("True\n")
    assert keys(queue.receive(10)) == ["now"]
    tell(worker, "go on")
    assert output(worker) == ["done"]
    depth = queue.depth()
    assert (depth.ready, depth.delayed, depth.leased) == (0, 2, 1)
