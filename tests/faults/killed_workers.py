"""Helpers for fault tests: workers that are killed (SIGKILL) while they process a queue, and the analysis of their log.

Also stops processes, and retries calls to a store that is temporarily unavailable.
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
    """The violations and redeliveries that the log of a run shows."""

    def __init__(self, log_lines, lease):
        self.handlings = defaultdict(list)  # key: (token, before, after), sorted by token
        accepted = defaultdict(list)
        for line in log_lines:
            event, key, token, *instants = line.split()
            if event == "begin":
                self.handlings[key].append((int(token), *map(float, instants)))
            elif event == "done":
                accepted[key].append(int(token))
        self.too_early, self.after_done = [], []
        for key, handlings in self.handlings.items():
            handlings.sort()
            for (_, before, _), (_, _, after) in pairwise(handlings):
                # the first lease started after its `before`, the second one before its `after`
                if after < before + lease:
                    self.too_early.append((key, handlings))
            if len(accepted[key]) > 1 or any(token < handlings[-1][0] for token in accepted[key]):
                self.after_done.append((key, handlings, accepted[key]))
        self.redelivered = sum(len(handlings) - 1 for handlings in self.handlings.values())


def process_while_killing(folder, messages, lease, pause, guard, rng=random, url=None):
    """Add `messages` messages, and let workers handle them while they are killed in turn.

    The log is in `folder`, and so is the store unless `url` is given. Returns the outcome, the number of kills, and the
    seconds taken.
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
                assert time.monotonic() < begun + guard, f"the queue is not empty in time: {depth}"
                time.sleep(rng.uniform(0.05, 0.25))
                lines = log.read_bytes().count(b"\n")
                if lines <= written + messages // 100:
                    continue  # on a slow machine, let the workers make progress before the next kill
                written = lines
                oldest = kills % WORKERS  # it has had the most time to start
                workers[oldest].kill()
                workers[oldest].wait()
                kills += 1
                workers[oldest] = subprocess.Popen(command)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        return Outcome(log.read_text().splitlines(), lease), kills, time.monotonic() - begun


@contextlib.contextmanager
def stopped(pid):
    """Stop a process for the duration of the block; it has stopped when the block begins."""
    os.kill(pid, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def retry_until_available(call, *args):
    """Call a function again after each `StoreError`, and return its first result."""
    end = time.monotonic() + GUARD
    while True:
        try:
            return call(*args)
        except StoreError:
            assert time.monotonic() < end, "the store is still unavailable"
            time.sleep(random.uniform(0.01, 0.05))
