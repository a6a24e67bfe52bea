"""What a queue of keys costs beside `queue.Queue`, a hand-written coalescing queue, and a bare heap.

make bench
"""

from __future__ import annotations

import gc
import heapq
import random
import statistics
import sys
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

from timing import loop, measure

from abate.work import ShutDown, WorkQueue

ADDS, HOT, PRODUCERS, CONSUMERS = 1_000_000, 1_000, 4, 4
DELAYED = 100_000
LEAD = 2.0
"""Seconds in which all of them are added, before the first is due."""
WAITING = 1_000_000
ROUNDS = 2
LATE_ROUNDS, CALM = 11, 5
"""More: one pause of the machine is most of a run's 99th percentile, and the best run alone hides it. Of all the rounds
those count in which the thread waited least for a core: what others did to the rest is no property of a queue."""
SCHEDULED = Path("/proc/thread-self/schedstat")

Row = tuple[str, float, str, bool]


class Plain:
    """The coalescing queue that one writes by hand: a deque, a set, a condition."""

    def __init__(self) -> None:
        self.keys: deque[Any] = deque()
        self.waiting: set[Any] = set()
        self.changed = threading.Condition()

    def add(self, key: Any) -> None:
        with self.changed:
            if key not in self.waiting:
                self.waiting.add(key)
                self.keys.append(key)
                self.changed.notify()


def ratio(runners: dict[str, Callable[[int], Any]]) -> float:
    """The first over the second, of the minima of one interleaved run."""
    samples = measure(runners, 40)
    mine, theirs = (min(samples[name]) for name in runners)
    return mine / theirs


def cycle() -> float:
    """Add a key, get it, be done with it; over put, get and task_done."""
    ours: WorkQueue[int] = WorkQueue()
    theirs: Queue[int] = Queue()
    return ratio(
        {
            "abate": loop("add(1); get(); done(1)", add=ours.add, get=ours.get, done=ours.done),
            "Queue": loop("put(1); get(); done()", put=theirs.put, get=theirs.get, done=theirs.task_done),
        }
    )


def coalesced() -> float:
    """Add a key that waits already."""
    ours: WorkQueue[int] = WorkQueue()
    theirs = Plain()
    ours.add(1)
    theirs.add(1)
    return ratio({"abate": loop("add(1)", add=ours.add), "plain": loop("add(1)", add=theirs.add)})


class HotKeys:
    """Threads that add a few keys very often, and threads that handle them, with either queue."""

    def __init__(self) -> None:
        self.wanted = [[0] * HOT for _ in range(PRODUCERS)]
        self.seen = [[0] * HOT for _ in range(PRODUCERS)]
        self.handled = [0] * CONSUMERS
        self.ready = threading.Barrier(PRODUCERS + CONSUMERS + 1)

    def produce(self, place: int, add: Callable[[int], object]) -> None:
        mine, rng = self.wanted[place], random.Random(place)
        choices = [rng.randrange(HOT) for _ in range(ADDS // PRODUCERS)]
        self.ready.wait()
        for n, key in enumerate(choices, 1):
            mine[key] = n
            add(key)

    def handle(self, place: int, key: int) -> None:
        for seen, wanted in zip(self.seen, self.wanted, strict=True):
            seen[key] = max(seen[key], wanted[key])
        self.handled[place] += 1

    def consume_plain(self, place: int, plain: Queue[int | None]) -> None:
        self.ready.wait()
        while (key := plain.get()) is not None:
            self.handle(place, key)
            plain.task_done()

    def consume_ours(self, place: int, keys: WorkQueue[int]) -> None:
        self.ready.wait()
        with suppress(ShutDown):
            while True:
                key = keys.get()
                self.handle(place, key)
                keys.done(key)


def hot(ours: bool) -> tuple[float, int, bool]:
    """Seconds for a million adds of a thousand keys, how many were handled, and whether one was lost."""
    run = HotKeys()
    keys: WorkQueue[int] = WorkQueue()
    plain: Queue[int | None] = Queue()
    add = keys.add if ours else plain.put
    consume = partial(run.consume_ours, keys=keys) if ours else partial(run.consume_plain, plain=plain)
    producers = [threading.Thread(target=run.produce, args=(place, add)) for place in range(PRODUCERS)]
    consumers = [threading.Thread(target=consume, args=(place,)) for place in range(CONSUMERS)]
    for thread in (*producers, *consumers):
        thread.start()
    run.ready.wait()
    start = time.perf_counter()
    for thread in producers:
        thread.join()
    if ours:
        keys.drain()
    else:
        for _ in consumers:
            plain.put(None)
    for thread in consumers:
        thread.join()
    return time.perf_counter() - start, sum(run.handled), run.seen != run.wanted


def kept_waiting() -> float:
    """Seconds for which this thread has waited for a core since it began; 0 where the machine does not tell."""
    return int(SCHEDULED.read_text().split()[1]) / 1e9 if SCHEDULED.exists() else 0.0


def late(ours: bool) -> tuple[float, float]:
    """Of a run with keys that are due within a second: the seconds for which it was kept waiting for a core, and the
    99th percentile of the seconds by which they come too late.
    """
    rng = random.Random(1)
    delays = [rng.random() for _ in range(DELAYED)]
    lateness = []
    gc.collect()
    gc.disable()
    # all are due within the second that begins when the last of them is in
    start = time.monotonic() + LEAD
    if ours:
        keys: WorkQueue[int] = WorkQueue()
        for n, delay in enumerate(delays):
            keys.add_after(n, start + delay - time.monotonic())
        before = kept_waiting()
        for _ in range(DELAYED):
            key = keys.get()
            lateness.append(time.monotonic() - start - delays[key])
            keys.done(key)
    else:
        heap: list[tuple[float, int]] = []
        for n, delay in enumerate(delays):
            heapq.heappush(heap, (start + delay, n))
        before = kept_waiting()
        while heap:
            due, _ = heap[0]
            pause = due - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            heapq.heappop(heap)
            lateness.append(time.monotonic() - due)
    gc.enable()
    return kept_waiting() - before, statistics.quantiles(lateness, n=100)[98]


def memory() -> float:
    """Bytes for each of a million keys that wait, the keys themselves not counted."""
    numbers = list(range(WAITING))
    keys: WorkQueue[int] = WorkQueue()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for n in numbers:
        keys.add(n)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return held / WAITING


def main() -> int:
    rows: list[Row] = []

    def bar(what: str, measured: float, most: float) -> None:
        rows.append((what, measured, f"{most:g}", measured <= most))

    bar("add, get, done over `queue.Queue`", cycle(), 0.75)
    bar("adding a key that waits over deque, set and Condition", coalesced(), 0.25)
    runs: dict[bool, list[tuple[float, int, bool]]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for ours in random.sample([True, False], 2):
            runs[ours].append(hot(ours))
    bar("1,000,000 adds of 1,000 hot keys over `queue.Queue`", min(runs[True])[0] / min(runs[False])[0], 1.0)
    bar("of those, share that was handled, worst run", max(run[1] for run in runs[True]) / ADDS, 0.2)
    bar("of those, runs in which a key was lost", sum(run[2] for run in runs[True]), 0)
    lates: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for _ in range(LATE_ROUNDS):
        for ours in random.sample([True, False], 2):
            lates[ours].append(late(ours))
    best, calm = (
        {ours: of(p99 for _, p99 in sorted(runs)[:CALM]) for ours, runs in lates.items()}
        for of in (min, statistics.median)
    )
    bar("100,000 delayed keys, p99 lateness over a bare heap, best", best[True] / best[False], 3.0)
    bar(f"the same, medians of the {CALM} calmest rounds", calm[True] / calm[False], 3.0)
    bar("1,000,000 waiting keys, bytes each", memory(), 400)
    print("\n| what | measured | bar | |\n|---|---:|---:|---|")
    for what, measured, most, kept in rows:
        print(f"| {what} | {measured:.2f} | {most} | {'kept' if kept else 'missed'} |")
    for ours, name in ((True, "abate"), (False, "bare heap")):
        rounds = (f"{1e3 * p99:.2f} ({1e3 * delay:.0f})" for delay, p99 in sorted(lates[ours]))
        print(f"\np99 lateness of {name}, ms (kept waiting for a core, ms):", *rounds)
    print(f"\nhot keys, s: abate {min(runs[True])[0]:.2f}, queue.Queue {min(runs[False])[0]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
