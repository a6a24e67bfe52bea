"""What a retry decorator costs: abate beside tenacity, stamina, backoff, nopanic and a hand-written wrapper.

make bench
"""

from __future__ import annotations

import asyncio
import compileall
import functools
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLEEP, ASLEEP = time.sleep, asyncio.sleep
time.sleep = lambda seconds: None  # before anything keeps a reference: waiting is not what is measured


async def _no_sleep(delay: float, result: Any = None) -> Any:
    return result


asyncio.sleep = _no_sleep  # type: ignore[assignment]

import backoff  # noqa: E402
import nopanic  # noqa: E402
import stamina  # noqa: E402
import tenacity  # noqa: E402
from timing import loop, measure, paced, table, threaded  # noqa: E402

import abate  # noqa: E402

for name in ("stamina", "backoff"):
    logging.getLogger(name).setLevel(logging.ERROR)


def hand(function: Callable[..., Any]) -> Callable[..., Any]:
    """The wrapper that one writes by hand: three attempts, no wait, no budget."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ValueError:
            pass
        for left in (1, 0):
            try:
                return function(*args, **kwargs)
            except ValueError:
                if not left:
                    raise

    return wrapper


def ahand(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for coroutine functions."""

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except ValueError:
            pass
        for left in (1, 0):
            try:
                return await function(*args, **kwargs)
            except ValueError:
                if not left:
                    raise

    return wrapper


def ours(budget: abate.Budget) -> abate.Policy:
    return abate.Policy(on=ValueError, max_attempts=3, backoff=[0.0], budget=budget)


PEERS: dict[str, Callable[[Any], Any]] = {
    "abate": lambda function: ours(abate.Budget(reserve=1e6))(function),
    "abate, no budget": lambda function: ours(abate.Budget.unlimited())(function),
    "nopanic": lambda function: nopanic.retry(
        attempts=3, on=ValueError, backoff=nopanic.backoff.full_jitter(0.0, 2.0, 0.0)
    )(function),
    "backoff": lambda function: backoff.on_exception(
        backoff.constant, ValueError, max_tries=3, jitter=None, interval=0
    )(function),
    "stamina": lambda function: stamina.retry(
        on=ValueError, attempts=3, timeout=None, wait_initial=0, wait_max=0, wait_jitter=0
    )(function),
    "tenacity": lambda function: tenacity.retry(
        retry=tenacity.retry_if_exception_type(ValueError),
        stop=tenacity.stop_after_attempt(3),
        wait=tenacity.wait_none(),
        reraise=True,
    )(function),
}


def nothing() -> None:
    pass


async def anothing() -> None:
    pass


def two(x: int, k: int | None = None) -> None:
    pass


def failing_twice() -> Callable[[], None]:
    calls = 0

    def flaky() -> None:
        nonlocal calls
        calls += 1
        if calls % 3:
            raise ValueError

    return flaky


def afailing_twice() -> Callable[[], Any]:
    calls = 0

    async def flaky() -> None:
        nonlocal calls
        calls += 1
        if calls % 3:
            raise ValueError

    return flaky


def decorated(make: Callable[[], Any], by_hand: Callable[[Any], Any]) -> dict[str, Any]:
    return {"hand": by_hand(make()), **{name: wrap(make()) for name, wrap in PEERS.items()}}


def calls(
    title: str, statement: str, functions: dict[str, Any], *, awaited: bool = False, per: int = 1
) -> dict[str, float]:
    runners = {name: loop(statement, awaited=awaited, f=function) for name, function in functions.items()}
    runners["empty"] = loop("pass", awaited=awaited)
    samples = measure(runners)
    empty = min(samples.pop("empty"))
    return table(title, samples, "hand", per=per, empty=empty)


def paced_calls() -> float:
    """The nanoseconds that a call costs over the bare function at a steady rate, from 10 to a million per second.

    Each candidate has seconds of its own at each rate, as a budget learns the rate of its calls; every fourth call is
    one of the bare function, so that both meet the same machine. Returns the most.
    """
    print("\nSuccess at a steady rate, over the bare function: median ns (and its own)\n")
    print("| calls/s | bare | hand | abate | abate, balance off by |\n|---:|---:|---:|---:|---:|")
    most = 0.0
    for rate in (10, 100, 1_000, 10_000, 100_000, 1_000_000):
        budget = abate.Budget(reserve=0, ratio=1.0)
        over, bare = {}, 0.0
        for name, f in {"hand": hand(nothing), "abate": ours(budget)(nothing)}.items():
            mine, theirs = paced("f()", SLEEP, f=f), paced("f()", SLEEP, f=nothing)
            seconds = 3.0 if rate < 100 else 1.0
            found: list[int] = []
            plain: list[int] = []
            calls, end = 0, time.perf_counter() + seconds
            block = max(1, rate // 50)
            while time.perf_counter() < end:
                found += mine(block, 1 / rate)
                plain += theirs(max(1, block // 4), 1 / rate)
                calls += block
            bare = statistics.median(plain)
            over[name] = statistics.median(found[len(found) // 4 :]) - bare
        off = budget.balance() / calls - 1.0
        print(f"| {rate:,} | {bare:,.0f} | {over['hand']:,.0f} | {over['abate']:,.0f} | {off:+.2%} |")
        most = max(most, over["abate"])
    return most


def imports() -> float:
    """Milliseconds that `import abate` takes in a fresh interpreter, bytecode compiled; the median of many."""
    compileall.compile_dir(Path(abate.__file__).parent, quiet=1)
    code = "import time; t = time.perf_counter_ns(); import {}; print(time.perf_counter_ns() - t)"
    print("\nImport in a fresh interpreter, bytecode compiled\n\n| module | ms |\n|---|---:|")
    found = 0.0
    for module in ("abate", "tenacity", "stamina", "backoff", "nopanic", "asyncio"):
        took = [
            int(subprocess.run([sys.executable, "-c", code.format(module)], capture_output=True, check=True).stdout)
            for _ in range(15)
        ]
        milliseconds = statistics.median(took) / 1e6
        print(f"| {module} | {milliseconds:.1f} |")
        if module == "abate":
            found = milliseconds
    return found


def main() -> int:
    sync = calls("Success, f()", "f()", decorated(lambda: nothing, hand))
    calls("Success, f(1, k=2)", "f(1, k=2)", decorated(lambda: two, hand))
    asynchronous = calls("Success, await f()", "await f()", decorated(lambda: anothing, ahand), awaited=True)
    threads = table(
        "Success, 8 threads on one function",
        measure({name: threaded("f()", 8, f=f) for name, f in decorated(lambda: nothing, hand).items()}, 30, 12.0),
        "hand",
    )
    failing = calls("Two failures, then success, per attempt", "f()", decorated(failing_twice, hand), per=3)
    afailing = calls(
        "Two failures, then success, per attempt, await",
        "await f()",
        decorated(afailing_twice, ahand),
        awaited=True,
        per=3,
    )
    slowest = paced_calls()
    imported = imports()
    bars = [
        ("success over hand-written, sync", sync["abate"], 1.5),
        ("success over hand-written, async", asynchronous["abate"], 1.3),
        ("success over hand-written, 8 threads", threads["abate"], 1.5),
        ("success at a steady rate over the bare function, ns", slowest, 200),
        ("tenacity over abate, at least", sync["tenacity"] / sync["abate"], -100),
        ("stamina over abate, at least", sync["stamina"] / sync["abate"], -100),
        ("nopanic over abate, at least", sync["nopanic"] / sync["abate"], -2.5),
        ("failing path over hand-written, sync", failing["abate"], 3.0),
        ("failing path over hand-written, async", afailing["abate"], 3.0),
        ("import, ms", imported, 18.0),
    ]
    print("\nAgainst the bars\n\n| what | measured | bar | |\n|---|---:|---:|---|")
    for what, value, bar in bars:
        kept = value <= bar if bar > 0 else value >= -bar
        print(f"| {what} | {value:.2f} | {abs(bar):g} | {'kept' if kept else 'MISSED'} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
