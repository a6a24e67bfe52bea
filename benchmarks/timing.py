"""Fair timing on a small shared machine: every round runs every candidate once, in a fresh random order.

Read ratios. `best` is the ratio of the minima, `paired` the median of the ratios within one round; where the two
disagree by much, the machine was busy: run again. Each candidate's loop is compiled by itself, because CPython
specialises code per call site, and in a shared loop candidates would slow each other down.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import repeat
from typing import Any

LOOP = """
{async_}def run(times):
    start = clock()
    for _ in repeat(None, times):
        {statement}
    return clock() - start
"""

Runner = Callable[[int], Any]
Samples = dict[str, list[float]]


def loop(statement: str, *, awaited: bool = False, **names: Any) -> Runner:
    """A function of n that runs the statement n times and returns the nanoseconds that took."""
    names |= {"repeat": repeat, "clock": time.perf_counter_ns}
    exec(LOOP.format(async_="async " if awaited else "", statement=statement), names)
    runner: Runner = names["run"]
    return runner


def threaded(statement: str, threads: int, **names: Any) -> Runner:
    """The same by several threads at once: n runs in all, timed by the wall clock."""
    loops = [loop(statement, **names) for _ in range(threads)]

    def run(times: int) -> float:
        share = max(1, times // threads)
        barrier = threading.Barrier(threads)
        began: list[int] = []
        ended: list[int] = []

        def body(runner: Runner) -> None:
            barrier.wait()
            began.append(time.perf_counter_ns())
            runner(share)
            ended.append(time.perf_counter_ns())

        workers = [threading.Thread(target=body, args=(runner,)) for runner in loops]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return (max(ended) - min(began)) * times / (share * threads)

    return run


PACED = """
def run(times, pause):
    took = []
    for _ in repeat(None, times):
        wait(pause)
        start = clock()
        {statement}
        took.append(clock() - start)
    return took
"""
MAX_SPIN = 0.0003
"""Shorter pauses are spent in a loop: a sleep would be longer."""


def _wait(sleep: Callable[[float], None], pause: float) -> None:
    if pause > MAX_SPIN:
        sleep(pause)
        return
    end = time.perf_counter() + pause
    while time.perf_counter() < end:
        pass


def paced(statement: str, sleep: Callable[[float], None], **names: Any) -> Callable[[int, float], list[int]]:
    """A function of n and seconds that runs the statement n times with that pause before each, and times each run."""
    names |= {"repeat": repeat, "clock": time.perf_counter_ns, "wait": partial(_wait, sleep)}
    exec(PACED.format(statement=statement), names)
    run: Callable[[int, float], list[int]] = names["run"]
    return run


async def _measure(runners: dict[str, Callable[[int], Awaitable[float]]], rounds: int, milliseconds: float) -> Samples:
    times = {}
    for name, runner in runners.items():
        n = 1
        while min([await runner(n) for _ in range(3)]) < milliseconds * 1e6 / 8:
            n *= 4
        times[name] = n * 4
    samples: Samples = {name: [] for name in runners}
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        for name in random.sample(list(runners), len(runners)):
            samples[name].append(await runners[name](times[name]) / times[name])
    gc.unfreeze()
    return samples


def measure(runners: dict[str, Runner], rounds: int = 60, milliseconds: float = 2.0) -> Samples:
    """Nanoseconds per run of each candidate, one sample per round."""

    def waited(runner: Runner) -> Callable[[int], Awaitable[float]]:
        async def run(times: int) -> float:
            taken = runner(times)
            return await taken if asyncio.iscoroutine(taken) else taken

        return run

    return asyncio.run(_measure({name: waited(runner) for name, runner in runners.items()}, rounds, milliseconds))


def table(title: str, samples: Samples, base: str, per: int = 1, empty: float = 0.0) -> dict[str, float]:
    """Print one table, and return each candidate's best ratio to `base`; `empty` is the cost of the bare loop."""
    low = {name: min(values) - empty for name, values in samples.items()}
    print(f"\n{title}\n\n| candidate | ns | best | paired |\n|---|---:|---:|---:|")
    for name in sorted(low, key=low.__getitem__):
        paired = statistics.median(
            (mine - empty) / (theirs - empty) for mine, theirs in zip(samples[name], samples[base], strict=True)
        )
        print(f"| {name} | {low[name] / per:,.0f} | {low[name] / low[base]:.2f} | {paired:.2f} |")
    return {name: value / low[base] for name, value in low.items()}
