"""What being watched costs a call that succeeds: no sink, and the Prometheus sink, over a wrapper written by hand.

PYTHONPATH=src python benchmarks/observe.py

Without a sink the code of a decorated function has no counts in it, which is checked: there is nothing to measure.
`call` and `acall` read one flag more, and the same calls without it are measured beside them, as "before".
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry
from timing import Samples, loop, measure, table

import abate
from abate import observe
from abate.call import async_driver, sync_driver
from abate.observe.prometheus import PrometheusSink

NOISE = 1.1
"""Two measurements of one thing differ by less than this on a busy machine."""


def nothing() -> None:
    pass


async def anothing() -> None:
    pass


def hand(function: Callable[..., Any]) -> Callable[..., Any]:
    """The wrapper that one writes by hand."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ValueError:
            return function(*args, **kwargs)

    return wrapper


def ahand(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for coroutine functions."""

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except ValueError:
            return await function(*args, **kwargs)

    return wrapper


def policy(kind: type[abate.Policy] = abate.Policy) -> abate.Policy:
    return kind(name="bench", on=ValueError, budget=abate.Budget(reserve=1e6))


class Uncounted(abate.Policy):
    """A policy whose `call` and `acall` are what they were before calls could be counted."""

    __slots__ = ()

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return sync_driver.call(self, function, args, kwargs)

    async def acall(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return await async_driver.call(self, function, args, kwargs)


def counts_nothing() -> bool:
    """Return whether the code of a wrapper without a counting sink contains no counters."""
    names = {name for function in (nothing, anothing) for name in policy()(function).__code__.co_names}
    return names.isdisjoint({"_a_begun", "_a_good", "_a_bad", "_a_counted_drive"})


def ways(kind: type[abate.Policy] = abate.Policy) -> dict[str, tuple[str, bool, dict[str, Any]]]:
    """The ways to make a call: a statement, whether it is awaited, and the names in it."""
    ours = policy(kind)
    return {
        "decorated": ("f()", False, {"f": ours(nothing)}),
        "decorated, async": ("await f()", True, {"f": ours(anothing)}),
        "call": ("f(g)", False, {"f": ours.call, "g": nothing}),
        "acall": ("await f(g)", True, {"f": ours.acall, "g": anothing}),
    }


BASES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "sync": ("f()", False, {"f": hand(nothing)}),
    "async": ("await f()", True, {"f": ahand(anothing)}),
}


def runner(way: tuple[str, bool, dict[str, Any]], sink: PrometheusSink | None = None) -> Callable[[int], Any]:
    """A loop over one way, with the sink installed while it runs."""
    statement, awaited, names = way
    run = loop(statement, awaited=awaited, **names)
    if sink is None:
        return run

    async def awatched(times: int) -> Any:
        observe.install(sink)
        try:
            return await run(times)
        finally:
            observe.remove(sink)

    def watched(times: int) -> Any:
        observe.install(sink)
        try:
            return run(times)
        finally:
            observe.remove(sink)

    return awatched if awaited else watched


def main() -> int:
    sink = PrometheusSink(CollectorRegistry())
    before, now = ways(Uncounted), ways()
    bars: list[tuple[str, float, float]] = []
    for name, way in now.items():
        base = "async" if way[1] else "sync"
        runners = {
            "hand": runner(BASES[base]),
            "no sink": runner(way),
            "sink": runner(way, sink),
            "empty": loop("pass", awaited=way[1]),
        }
        if not name.startswith("decorated"):
            runners["before"] = runner(before[name])
        samples: Samples = measure(runners, rounds=80)
        empty = min(samples.pop("empty"))
        ratios = table(f"Success, {name}", samples, "hand", empty=empty)
        bars.append((f"{name}: sink over no sink", ratios["sink"] / ratios["no sink"], 2.5))
        if "before" in ratios:
            bars.append((f"{name}: no sink over the code before", ratios["no sink"] / ratios["before"], NOISE))
    print(f"\nA wrapper without a counting sink has no counters in its code: {counts_nothing()}")
    print("\nAgainst the bars\n\n| what | measured | bar | |\n|---|---:|---:|---|")
    for what, value, bar in bars:
        print(f"| {what} | {value:.2f} | {bar:g} | {'kept' if value <= bar else 'MISSED'} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
