"""How fast a million clients storm: the simulator's engines beside SimPy, on the same model, in one run.

The model: N clients, one call per 10 s each, to a service with a capacity of N/8 per second and a queue of half a
second's worth, which answers 503 from the 20th to the 30th of 60 seconds; full jitter from 0.2 s up to 30 s (from 1 s
after an overload, as abate has it), 6 attempts. A budget is asked for every retry, and refuses none.

Each candidate runs in a process of its own, with a small world first, so that imports are not measured. Seconds are the
processor's, so that a busy machine does not decide; MB are the peak of the whole process.

    python benchmarks/sim.py [--full] [--clients 100000]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

PERIOD, HORIZON = 10.0, 60.0
OUTAGE = (20.0, 30.0)
BASE, CAP, ATTEMPTS = 0.2, 30.0, 6
SERVICE_TIME = 0.01


def shape(clients: int) -> tuple[int, float, int]:
    """Workers, seconds that each request takes, and places in the queue."""
    capacity = clients / 8
    workers = max(1, round(capacity * SERVICE_TIME))
    return workers, workers / capacity, round(capacity / 2)


def ours(engine: str) -> Callable[[int], float]:
    def run(clients: int) -> float:
        import abate
        import abate.sim as sim

        workers, service_time, places = shape(clients)
        world = sim.World(
            clients=sim.Clients(count=clients, rate=1 / PERIOD),
            services=[sim.Service("api", workers=workers, service_time=service_time, queue_limit=places)],
            policy=abate.Policy(
                on=sim.simulated,
                max_attempts=ATTEMPTS,
                backoff=abate.Backoff(BASE, CAP),
                # never empty, but asked each time
                budget=abate.Budget(ratio=0.2, reserve=float(clients)),
            ),
            triggers=[sim.Trigger("error", at=OUTAGE[0], for_=OUTAGE[1] - OUTAGE[0])],
            horizon=HORIZON,
        )
        found = world.run(seed=1, engine=engine)  # type: ignore[arg-type]
        assert found.engine == engine
        return found.measures()["amplification"]

    return run


def simpy(clients: int, stream: bool = False) -> float:
    """The same model in SimPy: a process for each client, or one for all arrivals, as the exact engine has it."""
    import simpy

    workers, service_time, places = shape(clients)
    rng, env = Random(1), simpy.Environment()
    server = simpy.Resource(env, capacity=workers)
    calls, attempts, successes = ([0] * (int(HORIZON) * 10 + 1) for _ in range(3))
    latencies: list[float] = []
    overload_base = 1.0

    def call() -> Any:
        began = env.now
        for attempt in range(1, ATTEMPTS + 1):
            attempts[int(env.now * 10)] += 1
            down = OUTAGE[0] <= env.now < OUTAGE[1]
            if not down and (server.count < workers or len(server.queue) < places):
                with server.request() as turn:
                    yield turn
                    yield env.timeout(service_time)
                successes[int(env.now * 10)] += 1
                latencies.append(env.now - began)
                return
            if attempt < ATTEMPTS:
                yield env.timeout(rng.random() * min(CAP, overload_base * 2.0 ** (attempt - 1)))

    def arrivals(rate: float) -> Any:
        while True:
            yield env.timeout(rng.expovariate(rate))
            calls[int(env.now * 10)] += 1
            env.process(call())

    for _ in range(1 if stream else clients):
        env.process(arrivals(clients / PERIOD if stream else 1 / PERIOD))
    env.run(until=HORIZON)
    latencies.sort()
    return sum(attempts) / sum(calls)


CANDIDATES: dict[str, Callable[[int], float]] = {
    "SimPy": simpy,
    "SimPy, one stream": lambda clients: simpy(clients, stream=True),
    "exact": ours("exact"),
    "fleet": ours("fleet"),
}


def measure(candidate: str, clients: int) -> dict[str, float]:
    """Seconds, MB and amplification of one candidate, in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--only", candidate, "--clients", str(clients)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def alone(candidate: str, clients: int) -> None:
    """Run one candidate here, and say what it took."""
    CANDIDATES[candidate](100_000 if candidate == "fleet" else 1000)  # which has no array form of a small one
    start = time.process_time()
    amplification = CANDIDATES[candidate](clients)
    seconds = time.process_time() - start
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "megabytes": megabytes, "amplification": amplification}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="run SimPy and exact with a million clients too")
    parser.add_argument("--clients", type=int, default=100_000, help="the number that all candidates run with")
    parser.add_argument("--only", choices=CANDIDATES, help="run this one alone, and print JSON")
    asked = parser.parse_args()
    if asked.only:
        alone(asked.only, asked.clients)
        return 0
    base, million = asked.clients, 10 * asked.clients
    runs = [
        ("SimPy", base),
        ("SimPy, one stream", base),
        ("exact", base),
        ("fleet", base),
        ("fleet", million),
        ("fleet", 10 * million),
    ]
    if asked.full:
        runs += [("SimPy", million), ("exact", million)]
    found = {run: measure(*run) for run in runs}
    simpy_seconds = found["SimPy", base]["seconds"] / base
    said = "" if asked.full else f" (beyond {base:,} clients extrapolated in proportion, not measured)"
    print(f"| engine | clients | s | MB | amplification | times SimPy{said} |\n|---|---:|---:|---:|---:|---:|")
    for (candidate, clients), row in sorted(found.items(), key=lambda item: (item[0][1], -item[1]["seconds"])):
        theirs = found.get(("SimPy", clients), {"seconds": simpy_seconds * clients})["seconds"]
        print(
            f"| {candidate} | {clients:,} | {row['seconds']:.2f} | {row['megabytes']:,.0f}"
            f" | {row['amplification']:.4f} | {theirs / row['seconds']:.1f} |"
        )
    most = max(clients for candidate, clients in found if candidate == "fleet")
    apart = found["fleet", most]["amplification"] / found["exact", base]["amplification"] - 1.0
    print(f"\nAmplification of the largest fleet beside exact's, one run each: {apart:+.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
