"""What the live page costs the server: 200 policies and 50 queues that change each second, and one browser that reads.

    python benchmarks/page.py               # a minute of real time, and ten minutes of virtual time
    python benchmarks/page.py --seconds 10

CPU is that of the page's thread, and beside it that of the whole process, which makes the traffic. Memory is what
Python holds after each minute of virtual time, the traffic going on.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import subprocess
import sys
import threading
import time
import tracemalloc
import urllib.request

import abate
from abate import event_sinks, events
from abate.observe import install, page, remove
from abate.observe.page.recent_activity import RecentActivity
from abate.observe.page.state import PageState

POLICIES, QUEUES = 200, 50
CALLS = 5
"""Calls of each policy in a second, and keys of each queue."""
BAR = 5.0
"""Per cent of one core."""
chance = random.Random(8)


class World:
    """Policies and queues that are busy."""

    def __init__(self) -> None:
        self.policies = [
            abate.Policy(
                name=f"policy-{n}", on=OSError, max_attempts=2, backoff=[0.0], shelter=abate.Shelter(name=f"s-{n}")
            )
            for n in range(POLICIES)
        ]
        self.queues = [abate.controller(name=f"queue-{n}")(_nothing) for n in range(QUEUES)]

    def busy(self) -> None:
        """One second's worth of calls and keys."""
        for policy in self.policies:
            for _ in range(CALLS):
                policy.call(_nothing, 0)
            event_sinks.emit(events.Retry(policy.name, 1, chance.random(), "overload", None, OSError("down")))
        for queue in self.queues:
            for _ in range(CALLS):
                key = f"key/{chance.randrange(100_000)}"
                queue.add(key, after=1e6) if queue.waiting() < 100 else queue.discard(key)
                error = OSError("down") if chance.random() < 0.2 else None
                ending = "done" if error is None else "retry"
                event_sinks.emit(events.Worked(queue.name, key, ending, 0.01, 1 if error is None else 2, error))


def _nothing(_: object) -> None: ...


def cpu(seconds: float) -> tuple[float, float]:
    """Per cent of one core while one browser reads: the page's thread, and the whole process with its traffic."""
    world = World()
    with page.serving(port=0) as where:
        reader = subprocess.Popen([sys.executable, __file__, "--read", where])
        try:
            time.sleep(2.0)
            (thread,) = (each for each in threading.enumerate() if each.name == "abate-page")
            own = time.pthread_getcpuclockid(thread.ident or 0)
            began, page_used, used = time.monotonic(), time.clock_gettime(own), time.process_time()
            while time.monotonic() < began + seconds:
                world.busy()
                time.sleep(1.0)
            took = (time.monotonic() - began) / 100.0
            return (time.clock_gettime(own) - page_used) / took, (time.process_time() - used) / took
        finally:
            reader.kill()
            reader.wait()


def memory(minutes: int) -> list[int]:
    """Bytes that Python holds after each minute of virtual time."""
    held = []
    with abate.testing.VirtualClock(start=1e9) as clock:
        world, recent = World(), install(RecentActivity(clock))
        board = PageState(recent, clock)
        tracemalloc.start()
        try:
            for _ in range(minutes):
                for _ in range(60):
                    world.busy()
                    board.refresh()
                    board.frame()
                    clock.advance(1.0)
                board.history()
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
            remove(recent)
    return held


def read(where: str) -> None:
    """What a browser does, without the drawing."""
    with urllib.request.urlopen(f"{where}events") as stream:
        for _ in stream:
            pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        threading.Thread(target=read, args=(options.read,), daemon=True).start()
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(0.5)
        sys.exit()
    print(f"{POLICIES} policies, {QUEUES} queues, one browser")
    own, whole = cpu(options.seconds)
    print(f"CPU    {own:.2f} % of one core (bar: {BAR:g} %); {whole:.2f} % with the traffic itself")
    held = memory(options.minutes)
    print("memory", "  ".join(f"{size / 1e6:.2f}" for size in held), "MB after each minute of virtual time")
