"""What learning a dependency's latency costs per request, beside the bare arithmetic that any histogram needs.

python benchmarks/latency.py
"""

from __future__ import annotations

import random
import sys
import threading
from array import array
from bisect import bisect
from math import frexp, log
from typing import Any

from timing import loop, measure, table, threaded

from abate.schedule.timeouts import BUCKETS, GROWTH, Timeouts

SECONDS = 0.0123
OBSERVED = 100_000
BORDERS = [GROWTH**place for place in range(-BUCKETS + 1, 1)]


class Locked:
    """A lock and a count, and nothing else."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts = array("I", [0]) * BUCKETS

    def add(self, place: int) -> None:
        with self.lock:
            self.counts[place] += 1


class Unlocked(Locked):
    """The same without the lock."""

    def add(self, place: int) -> None:
        self.counts[place] += 1


def learned() -> Timeouts:
    timeouts, rng = Timeouts(name="bench"), random.Random(1)
    for _ in range(OBSERVED):
        timeouts.observe(rng.lognormvariate(-3.0, 0.5))
        timeouts.observe_connect(rng.lognormvariate(-5.0, 0.5))
    return timeouts


def size(thing: Any, seen: set[int]) -> int:
    """The bytes of an object with slots, and of everything that it alone refers to."""
    if id(thing) in seen or thing is None or isinstance(thing, type) or callable(thing):
        return 0
    seen.add(id(thing))
    slots = [slot for kind in type(thing).__mro__ for slot in getattr(kind, "__slots__", ()) if slot != "__weakref__"]
    return sys.getsizeof(thing) + sum(size(getattr(thing, slot), seen) for slot in slots)


def main() -> int:
    timeouts = learned()
    names = {"x": SECONDS, "log": log, "frexp": frexp, "bisect": bisect, "borders": BORDERS}
    table(
        "One observation",
        measure(
            {
                "math.log": loop("int(log(x) * 25.0)", **names),
                "math.frexp": loop("m, e = frexp(x); int(m * 50.0) + 25 * e", **names),
                "bisect": loop("bisect(borders, x)", **names),
                "count": loop("f(7)", f=Unlocked().add),
                "count, locked": loop("f(7)", f=Locked().add),
                "observe": loop("f(x)", f=timeouts.observe, **names),
            }
        ),
        "math.log",
    )
    table(
        "One observation, by four threads at once",
        measure(
            {
                "count, locked": threaded("f(7)", 4, f=Locked().add),
                "observe": threaded("f(x)", 4, f=timeouts.observe, **names),
            },
            rounds=20,
            milliseconds=20.0,
        ),
        "count, locked",
    )
    table(
        f"One timeout, after {OBSERVED:,} observations",
        measure(
            {
                "sorted(1000)": loop("sorted(values)[999]", values=random.Random(1).sample(range(10**6), 1000)),
                "request": loop("f()", f=timeouts.request),
                "quantile(0.95)": loop("f(0.95)", f=timeouts.quantile),
            }
        ),
        "sorted(1000)",
    )
    print(f"\n{size(timeouts, set()):,} bytes for a dependency")
    return 0


if __name__ == "__main__":
    sys.exit(main())
