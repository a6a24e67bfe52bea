"""Workers that are killed (SIGKILL) while they work off a queue, and what their log says about it.

And processes that stand still, and how to call a store that has to come back.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from abate.stores import StoreError, open_store
from tests.stores.processes import GUARD

WORKER = Path(__file__).with_name("worker.py")
WORKERS = 4


class Outcome:
    """What the log of a run says."""

    def __init__(self, lines, lease):
        self.handlings = defaultdict(list)  # key: token, before, after; in the order of tokens
        accepted = defaultdict(list)
        for line in lines:
            what, key, token, *instants = line.split()
            if what == "begin":
                self.handlings[key].append((int(token), *map(float, instants)))
            elif what == "done":
                accepted[key].append(int(token))
        self.too_early, self.after_done = [], []
        for key, handlings in self.handlings.items():
            handlings.sort()
            for (_, before, _), (_, _, after) in pairwise(handlings):
                # the first lease began after `before`, the second one before `after`
                if after < before + lease:
                    self.too_early.append((key, handlings))
            if len(accepted[key]) > 1 or any(token < handlings[-1][0] for token in accepted[key]):
                self.after_done.append((key, handlings, accepted[key]))
        self.again = sum(len(handlings) - 1 for handlings in self.handlings.values())


def work_off(folder, messages, lease, pause, guard, rng=random, url=None):
    """Add so many messages, and let workers handle them while one after the other is killed.

    The log lies in the folder, and so does the store if no other is named. Returns the outcome, the kills, and the
    seconds that it took.
    """
    url, log = url or f"sqlite:///{folder}/work.db", Path(folder) / "log"
    log.touch()
    command = [sys.executable, str(WORKER), url, str(log), str(lease), str(pause)]
    with open_store(url) as store:
        queue = store.queue("work")
        for n in range(messages):
            queue.add(f"key-{n}")
        workers = [subprocess.Popen(command) for _ in range(WORKERS)]
        begun, kills, written = time.monotonic(), 0, 0
        try:
            while (depth := queue.depth()).waiting + depth.leased:
                assert time.monotonic() < begun + guard, f"it does not end: {depth}"
                time.sleep(rng.uniform(0.05, 0.25))
                lines = log.read_bytes().count(b"\n")
                if lines <= written + messages // 100:
                    continue  # where starting takes long, let them work before the next one dies
                written = lines
                place = kills % WORKERS  # the one that lives the longest: it has had the time to start
                workers[place].kill()
                workers[place].wait()
                kills += 1
                workers[place] = subprocess.Popen(command)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        return Outcome(log.read_text().splitlines(), lease), kills, time.monotonic() - begun


@contextlib.contextmanager
def stopped(pid):
    """A process that stands still for the block; it has stopped when the block begins."""
    os.kill(pid, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def patiently(call, *args):
    """What a call answers as soon as the store does."""
    end = time.monotonic() + GUARD
    while True:
        try:
            return call(*args)
        except StoreError:
            assert time.monotonic() < end, "the store does not come back"
            time.sleep(random.uniform(0.01, 0.05))
