"""What a budget costs that eight processes share, and how well it keeps to its terms; with its store, and without.

python benchmarks/fleet.py [URL ...]      # by default a SQLite file and a Valkey; every URL must name an empty store
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from timing import loop, measure

import abate
from tests.clients.valkey_server import Valkey

PROCESSES = 8
CALLS = 100_000
FAILING = 0.3
SECONDS = 12.0
RATIO, RESERVE, WINDOW = 0.2, 10.0, 10.0
TICK = 0.01


class Down(Exception):
    """The failure."""


def member(url: str, seed: int) -> dict[str, Any]:
    """One process: its part of the calls, spread over the seconds, and what came of them."""
    rng = random.Random(seed)
    store = abate.open_store(url)
    budget = store.budget("fleet", RATIO, RESERVE, WINDOW)
    policy = abate.Policy(on=Down, max_attempts=3, backoff=[0.0], budget=budget)
    attempts = 0

    @policy
    def call() -> None:
        nonlocal attempts
        attempts += 1
        if rng.random() < FAILING:
            raise Down

    calls, successes, slowest = CALLS // PROCESSES, 0, 0.0
    took: list[float] = []
    began, rounds = time.monotonic(), store.fleet_sync.rounds
    for number in range(calls):
        ahead = began + SECONDS * number / calls - time.monotonic()
        if ahead > TICK:
            time.sleep(ahead)
        start = time.perf_counter()
        try:
            call()
            successes += 1
        except Down:
            pass
        took.append(time.perf_counter() - start)
        slowest = max(slowest, took[-1])
    seconds = time.monotonic() - began
    return {
        "calls": calls,
        "successes": successes,
        "retries": attempts - calls,
        "rounds": store.fleet_sync.rounds - rounds,
        "seconds": seconds,
        "p99": statistics.quantiles(took, n=100)[-1],
        "slowest": slowest,
    }


def together(url: str, store: Valkey | None = None) -> list[dict[str, Any]]:
    """All of them at once, each in a process of its own; a store that is given is frozen after a third of the time."""
    processes = [
        subprocess.Popen([sys.executable, __file__, "--member", url, str(seed)], stdout=subprocess.PIPE, text=True)
        for seed in range(PROCESSES)
    ]
    if store is None:
        return [json.loads(process.communicate()[0]) for process in processes]
    time.sleep(SECONDS / 3)
    with store.stopped():
        return [json.loads(process.communicate()[0]) for process in processes]


def allowance(rows: list[dict[str, Any]], reserves: float = 1.0) -> float:
    """Return what one budget allows in some seconds, with a number of reserves."""
    seconds = max(row["seconds"] for row in rows)
    return RATIO * sum(row["successes"] for row in rows) + reserves * RESERVE * (WINDOW + seconds)


def success_path(url: str) -> float:
    """A call that succeeds, with a budget of the fleet over one of its own."""

    def plain(budget: abate.Budget) -> Any:
        @abate.Policy(on=Down, budget=budget)
        def call() -> None: ...

        return call

    store = abate.open_store(url)
    candidates = {
        "own": loop("f()", f=plain(abate.Budget(RATIO, RESERVE, WINDOW))),
        "fleet": loop("f()", f=plain(store.budget("speed", RATIO, RESERVE, WINDOW))),
    }
    samples = measure(candidates)
    store.close()
    return min(samples["fleet"]) / min(samples["own"])


def report(name: str, url: str) -> None:
    """One store's table."""
    rows = together(url)
    retries = sum(row["retries"] for row in rows)
    trips = sum(row["rounds"] for row in rows)
    often = max(row["rounds"] / row["seconds"] for row in rows)
    print(f"\n{name}: {PROCESSES} processes, {CALLS:,} calls, {FAILING:.0%} fail\n")
    print(f"round trips per second and process    {often:8.2f}   (bar 2)")
    print(f"round trips per 1,000 calls           {1000 * trips / CALLS:8.2f}")
    print(f"retries over one budget's allowance   {retries / allowance(rows):8.1%}   (bar 105 %)")
    print(f"success path over a budget of its own {success_path(url):8.2f}   (bar 1.1)")
    print(f"a call, worst p99 of a process, ms    {p99(rows):8.3f}")


def p99(rows: list[dict[str, Any]]) -> float:
    """Milliseconds of a call, in the process that has the worst."""
    return 1000 * max(float(row["p99"]) for row in rows)


def report_frozen() -> None:
    """What happens when the store stands still for two thirds of the time."""
    with tempfile.TemporaryDirectory() as folder:
        valkey = Valkey(folder).start()
        try:
            healthy, frozen = together(f"{valkey.url}/0?prefix=a"), together(f"{valkey.url}/0?prefix=b", valkey)
        finally:
            valkey.kill()
    allowed = allowance(frozen, reserves=2.0)
    retries = sum(row["retries"] for row in frozen)
    print("\nredis, frozen for two thirds of the time\n")
    print(f"retries over the allowance and the parts of one reserve   {retries / allowed:8.1%}   (bar 100 %)")
    print(f"a call, worst p99, ms: with it {p99(healthy):.3f}, without {p99(frozen):.3f}   (bar: 5 more)")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--member"]:
        print(json.dumps(member(sys.argv[2], int(sys.argv[3]))))
    elif sys.argv[1:]:
        for url in sys.argv[1:]:
            report(url.partition(":")[0], url)
    else:
        with tempfile.TemporaryDirectory() as folder:
            report("sqlite", f"sqlite:///{folder}/fleet.db")
            valkey = Valkey(folder).start()
            try:
                report("redis", f"{valkey.url}/0")
            finally:
                valkey.kill()
        report_frozen()
