"""Workers that die, and workers that stand still: nothing is lost, and nothing is in two hands."""

import signal
import subprocess
import sys

import pytest

from abate.stores import open_store
from tests.faults.killing import work_off

GUARD = 60.0
MESSAGES = 1000
LEASE = 1.0


def test_killed_workers_lose_nothing_and_share_nothing(tmp_path):
    """Four workers, one killed every moment: every message is handled, a second time only after its lease ran out,
    and never again once somebody was done with it."""
    outcome, kills, _ = work_off(tmp_path, MESSAGES, LEASE, pause=0.01, guard=GUARD)
    assert set(outcome.handlings) == {f"key-{n}" for n in range(MESSAGES)}
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
def test_a_worker_that_stood_still_past_its_lease_is_refused(tmp_path, meanwhile):
    """On waking it learns that the message is not its own any more; whoever has it now is not disturbed."""
    url = f"sqlite:///{tmp_path}/work.db"
    with open_store(url) as store:
        queue = store.queue("work")
        queue.add("a")
        worker = subprocess.Popen(
            [sys.executable, "-c", SLOW, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            token = int(worker.stdout.readline().split()[1])
            worker.send_signal(signal.SIGSTOP)
            (message,) = queue.receive(wait=30.0)
            assert (message.key, message.receives) == ("a", 2)
            assert message.token > token
            if meanwhile != "in hand":
                queue.done(message)
            if meanwhile == "added again":
                queue.add("a")
            worker.stdin.write("go on\n")
            worker.stdin.flush()
            worker.send_signal(signal.SIGCONT)
            assert worker.communicate(timeout=GUARD)[0] == "lost\n"
        finally:
            worker.send_signal(signal.SIGCONT)
            worker.kill()
            worker.communicate()
        if meanwhile == "in hand":
            queue.done(message)
        left = queue.depth()
        assert (left.ready, left.delayed, left.leased, left.dead) == (meanwhile == "added again", 0, 0, 0)
