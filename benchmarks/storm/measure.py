"""From what arrived at the server and what became of the requests to a row of figures.

Load is always counted at the server. `arrivals` are ``[when, request, attempt, outcome]``, in order; times are seconds
since the scenario began. A figure of None means never, or no call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scenarios import Scenario

Row = dict[str, float | None]
Arrivals = Sequence[Sequence[Any]]

SOON = 1.0
"""An answer within this many seconds is as good as one without an outage."""
STEP = 0.25
"""Seconds of one point of a curve."""


@dataclass
class Request:
    number: int
    due: float
    attempts: int = 0
    done: float = 0.0
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def soon(self) -> bool:
        return self.ok and self.done - self.due <= SOON


def peak(times: Sequence[float], width: float) -> int:
    """The most in any stretch of this width."""
    return max((i + 1 - bisect_left(times, at - width) for i, at in enumerate(times)), default=0)


def percentile(values: Sequence[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None


def share(some: int, of: int) -> float | None:
    """In percent."""
    return 100.0 * some / of if of else None


def latency(requests: Sequence[Request], which: float) -> float | None:
    return percentile([request.done - request.due for request in requests if request.ok], which)


def lost(requests: Sequence[Request]) -> int:
    return sum(not request.ok for request in requests)


def due_within(requests: Sequence[Request], start: float, end: float) -> list[Request]:
    return [request for request in requests if start <= request.due < end]


def count(arrivals: Arrivals, *outcomes: str) -> int:
    return sum(row[3] in outcomes for row in arrivals)


def load(arrivals: Arrivals, requests: Sequence[Request], start: float, end: float) -> float | None:
    """Arrivals for each request that was due in the meantime."""
    due = len(due_within(requests, start, end))
    return sum(start <= row[0] < end for row in arrivals) / due if due else None


def back(requests: Sequence[Request], since: float, until: float) -> float | None:
    """Seconds until, in every later half second, 95 % of the requests are answered soon."""
    bad, at = since, since
    while at + 0.5 <= until:
        mine = due_within(requests, at, at + 0.5)
        if sum(request.soon for request in mine) < 0.95 * len(mine):
            bad = at + 0.5
        at += 0.5
    return None if bad > until - 1.0 else bad - since


def curve(times: Sequence[float], seconds: float) -> list[int]:
    points = [0] * int(seconds / STEP)
    for at in times:
        if 0 <= at < seconds:
            points[int(at / STEP)] += 1
    return points


# -- one function per kind of scenario


def herd(scenario: Scenario, requests: list[Request], arrivals: Arrivals) -> Row:
    return {
        "arrivals": len(arrivals),
        "retries per 50 ms, peak": peak([row[0] for row in arrivals if row[2] > 1], 0.05),
        "shed": count(arrivals, "shed"),
        "gave up": lost(requests),
        "p50 s": latency(requests, 0.5),
        "last done s": max((request.done for request in requests if request.ok), default=None),
    }


def steady(scenario: Scenario, requests: list[Request], arrivals: Arrivals) -> Row:
    start, end = scenario.window
    hit = due_within(requests, start, end)
    after = [row[0] for row in arrivals if row[0] >= end]
    return {
        "load in it": load(arrivals, requests, start, end),
        "peak after": peak(after, STEP) / (scenario.rate * STEP),
        "back s": back(requests, end, scenario.seconds),
        "lost of its requests %": share(lost(hit), len(hit)),
        "lost of all %": share(lost(requests), len(requests)),
        "shed": count(arrivals, "shed"),
        "p99 s": latency(requests, 0.99),
    }


def crowd(scenario: Scenario, requests: list[Request], arrivals: Arrivals) -> Row:
    tail = scenario.seconds - 4.0
    late = [row for row in arrivals if tail <= row[0] < scenario.seconds]
    end = due_within(requests, tail, scenario.seconds)
    return {
        "back s": back(requests, scenario.window[1], scenario.seconds),
        "in time at the end %": share(sum(request.soon for request in end), len(end)),
        "load at the end": load(arrivals, requests, tail, scenario.seconds),
        "served to nobody at the end %": share(count(late, "dead"), count(late, "dead", "served")),
        "lost of all %": share(lost(requests), len(requests)),
        "p99 s": latency(requests, 0.99),
    }


def layers(scenario: Scenario, requests: list[Request], arrivals: Arrivals) -> Row:
    first = requests[0].number
    return {
        "arrivals of the first call": sum(row[1] == first for row in arrivals),
        "arrivals per call": len(arrivals) / len(requests),
    }


def hinted(scenario: Scenario, requests: list[Request], arrivals: Arrivals) -> Row:
    end = scenario.window[1]
    first = {row[1]: row[0] for row in arrivals if row[2] == 1}
    second = {row[1]: row[0] for row in arrivals if row[2] == 2}
    return {
        "arrivals": len(arrivals),
        "too early %": share(sum(at - first[number] < end for number, at in second.items()), len(requests)),
        "per 50 ms, peak after": peak([row[0] for row in arrivals if row[0] >= end], 0.05),
        "shed": count(arrivals, "shed"),
        "gave up": lost(requests),
        "last done s": max((request.done for request in requests if request.ok), default=None),
    }


def rough(scenario: Scenario, requests: list[Request], arrivals: Arrivals) -> Row:
    start, end = scenario.window
    hit = due_within(requests, start, end)
    return {
        "load in it": load(arrivals, requests, start, end),
        "per 250 ms, peak": peak([row[0] for row in arrivals if row[0] >= start], STEP) / (scenario.rate * STEP),
        "lost of its requests %": share(lost(hit), len(hit)),
        "in time %": share(sum(request.soon for request in hit), len(hit)),
        "p50 s": latency(hit, 0.5),
        "p99 s": latency(hit, 0.99),
        "shed": count(arrivals, "shed"),
    }


def less(scenario: Scenario, requests: list[Request], arrivals: Arrivals) -> Row:
    tail = scenario.seconds - 6.0
    late = [row for row in arrivals if tail <= row[0] < scenario.seconds]
    end = due_within(requests, tail, scenario.seconds)
    capacity = scenario.server.capacity / scenario.server.slow[0][2]
    useful = sum(request.ok and tail <= request.done < scenario.seconds for request in requests)
    return {
        "useful at the end, % of capacity": 100.0 * useful / (capacity * (scenario.seconds - tail)),
        "in time at the end %": share(sum(request.soon for request in end), len(end)),
        "lost at the end %": share(lost(end), len(end)),
        "load at the end": load(arrivals, requests, tail, scenario.seconds),
        "served to nobody at the end %": share(count(late, "dead"), count(late, "dead", "served")),
        "p50 s": latency(end, 0.5),
        "p99 s": latency(end, 0.99),
    }


def two(scenario: Scenario, requests: list[Request], arrivals: Arrivals) -> Row:
    """The first dependency is the one that fails; requests of even numbers go there."""
    start, end = scenario.window
    hit = due_within(requests, start, end)
    sick = [request for request in hit if request.number % 2 == 0]
    well = [request for request in hit if request.number % 2]
    calls = [row for row in arrivals if row[1] % 2 == 0]
    return {
        "healthy one: p50 ms": _in_milliseconds(latency(well, 0.5)),
        "p99 ms": _in_milliseconds(latency(well, 0.99)),
        "lost %": share(lost(well), len(well)),
        "failing one: load in it": load(calls, sick, start, end),
        "lost of its requests %": share(lost(sick), len(sick)),
        "p99 s": latency(sick, 0.99),
    }


def quiet(scenario: Scenario, requests: list[Request], arrivals: Arrivals) -> Row:
    start, end = scenario.window
    hit = due_within(requests, start, end)
    served = [row[0] for row in arrivals if row[3] == "served" and row[0] >= end]
    return {
        "load in it": load(arrivals, requests, start, end),
        "lost of its requests %": share(lost(hit), len(hit)),
        "lost of all %": share(lost(requests), len(requests)),
        "end noticed after s": min(served) - end if served else None,
        "p99 s": latency(requests, 0.99),
    }


def _in_milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000.0 * seconds


KINDS: dict[str, Callable[[Scenario, list[Request], Arrivals], Row]] = {
    function.__name__: function for function in (herd, steady, crowd, layers, hinted, rough, less, two, quiet)
}
