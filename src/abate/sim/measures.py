"""The measures of a run, computed from counts over time.

* **amplification**: attempts per call: in all, during the triggers, and after them.
* **peaks**: attempts per 100 ms and per second, and their ratio to the mean.
* **recovery**: seconds from the end of the triggers until goodput is at least 90 % of the arrivals for 5 s; infinite if
  that does not happen before the horizon.
* **wasted**: the share of the workers' time spent on requests that had timed out.
* **p50, p99, p999**: of the duration of calls; a failed call counts as infinite.
* **fairness**: Jain's index of the clients' success rates: 1 if all are equal.
* **denials**: calls that ended because budget, gate or shelter did not admit an attempt.
* **unfinished**: calls in progress at the horizon. In success and percentiles such a call counts as failed if it has
  lasted more than 1 s and longer than the median success; otherwise it is left out.

A call belongs to the instant at which it began. Calls that begin in the warm-up are not measured.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

from abate.frozen import Frozen
from abate.sim.latency_histogram import LatencyHistogram
from abate.sim.world import World

WIDTH = 0.1
"""Seconds of one slot of a series."""
PER_SECOND = 10
EDGE = 1e-6
"""A tenth of a microsecond, so that rounding errors do not put the edge of slot 3 into slot 2."""
MAX_POINTS = 200_000
"""Attempts that a raster keeps."""
RECOVERED, STEADY = 0.9, 5.0
"""Goodput over arrivals, and for how many seconds, that count as recovered."""
OVERDUE_AFTER = 1.0
"""Seconds after which an unfinished call may count as failed."""
REFUSALS = ("budget", "shelter")
"""The reasons of give-ups that are denials."""

Series = Sequence[int]


class Load(Frozen):
    """The counts of one service after the warm-up: requests, those refused because the queue was full (`full`), by
    trigger or error rate (`errors`) or by the rate limit (`limited`), those served, and seconds of its workers.
    """

    requests: int
    served: int = 0
    full: int = 0
    errors: int = 0
    limited: int = 0
    expired: int = 0
    busy: float = 0.0
    wasted: float = 0.0

    def since(self, before: Load) -> Load:
        """Return the counts since `before`.

        >>> Load(requests=9, served=7).since(Load(requests=4, served=4))
        Load(requests=5, served=3, full=0, errors=0, limited=0, expired=0, busy=0.0, wasted=0.0)
        """
        return Load(*(now - then for now, then in zip(self._values(), before._values(), strict=True)))


class Run(Frozen):
    """One run of a world, and its counts.

    >>> import abate.sim as sim
    >>> run = sim.World(sim.Clients(count=8, arrivals="once"), [sim.Service("api", service_time=0.125)]).run()
    >>> run.calls, run.successes, run.completed
    (8, 8, 1.0)
    """

    world: World
    engine: str
    seed: int
    series: Mapping[str, Series]
    """Calls, attempts and successes in slots of 100 ms, over the whole horizon; unfinished calls by the slot in which
    they began.
    """
    reasons: Mapping[str, int]
    """The number of give-ups by reason."""
    latencies: Sequence[float]
    """Seconds that successful calls took, in ascending order."""
    loads: Mapping[str, Load]
    completed: float = 0.0
    """The instant of the last result."""
    fairness: float | None = None
    points: Sequence[tuple[float, int]] = ()
    notes: tuple[str, ...] = ()
    """Remarks for the reader of a report."""

    @property
    def calls(self) -> int:
        """Calls that began after the warm-up."""
        return sum(self._counted("calls"))

    @property
    def attempts(self) -> int:
        """Attempts after the warm-up."""
        return sum(self._counted("attempts"))

    @property
    def successes(self) -> int:
        """Calls that succeeded after the warm-up."""
        return sum(self._counted("successes"))

    @property
    def failures(self) -> int:
        """Calls that failed."""
        return sum(self.reasons.values())

    @property
    def unfinished(self) -> int:
        """Calls that began after the warm-up and are in progress at the horizon."""
        return sum(self._counted("unfinished"))

    @property
    def _overdue_calls(self) -> int:
        """Unfinished calls that count as failed."""
        usual = percentile(self.latencies, len(self.latencies), 0.5) if self.latencies else 0.0
        latest = slot(max(0.0, self.world.horizon - max(OVERDUE_AFTER, usual)))
        return sum(self.series["unfinished"][slot(self.world.warmup) : latest])

    def noted(self, note: str) -> Run:
        """Return the same run with one more note.

        >>> import abate.sim as sim
        >>> sim.World(sim.Clients(count=8), [sim.Service("api")]).run().noted("a trial").notes
        ('a trial',)
        """
        fields = dict(zip(self.__match_args__, self._values(), strict=True))
        return Run(**{**fields, "notes": (*self.notes, note)})

    def _counted(self, name: str) -> Series:
        return self.series[name][slot(self.world.warmup) :]

    def measures(self) -> dict[str, float]:
        """Return every measure by its name; NaN where it does not apply.

        >>> import abate.sim as sim
        >>> run = sim.World(sim.Clients(count=8, arrivals="once"), [sim.Service("api", service_time=0.125)]).run()
        >>> run.measures()["amplification"], run.measures()["p50"]
        (1.0, 0.5)
        """
        world, calls, attempts = self.world, self.calls, self.attempts
        judged = len(self.latencies) + self.failures + self._overdue_calls
        found = {
            "calls": float(calls),
            "attempts": float(attempts),
            "amplification": ratio(attempts, calls),
            "success": ratio(len(self.latencies), judged),
            "unfinished": float(self.unfinished),
            "goodput": self.successes / (world.horizon - world.warmup),
            "completed": self.completed,
            "denials": float(sum(self.reasons.get(reason, 0) for reason in REFUSALS)),
            "fairness": math.nan if self.fairness is None else self.fairness,
            "mean": mean(self.latencies),
        }
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
            found[name] = percentile(self.latencies, judged, share)
        found |= self._peaks() | self._phases() | self._work()
        return found

    def _peaks(self) -> dict[str, float]:
        tenths = self._counted("attempts")
        seconds = [sum(tenths[place : place + PER_SECOND]) for place in range(0, len(tenths), PER_SECOND)]
        # the mean is over the time with attempts, not over the idle rest of the horizon
        last = max((place for place, count in enumerate(tenths) if count), default=0) + 1
        mean, mean_1s = sum(tenths) / last, sum(tenths) / math.ceil(last / PER_SECOND)
        return {
            "peak_100ms": float(max(tenths, default=0)),
            "peak_1s": float(max(seconds, default=0)),
            "peak_to_mean_100ms": ratio(max(tenths, default=0), mean),
            "peak_to_mean_1s": ratio(max(seconds, default=0), mean_1s),
        }

    def _phases(self) -> dict[str, float]:
        names = ("amplification_during", "amplification_after", "peak_after", "recovery")
        trouble = self.world.trouble
        if trouble is None:
            return dict.fromkeys(names, math.nan)
        start, end = (
            slot(trouble[0]),
            math.ceil(trouble[1] * PER_SECOND - 1e-9),
        )  # the slot in which it ends counts as during
        calls, attempts, successes = (self.series[name] for name in ("calls", "attempts", "successes"))
        return {
            "amplification_during": ratio(sum(attempts[start:end]), sum(calls[start:end])),
            "amplification_after": ratio(sum(attempts[end:]), sum(calls[end:])),
            "peak_after": float(max(attempts[end:], default=0)),
            "recovery": recovery(calls, successes, trouble[1]),
        }

    def _work(self) -> dict[str, float]:
        busy = sum(load.busy for load in self.loads.values())
        found = {"wasted": ratio(sum(load.wasted for load in self.loads.values()), busy)}
        for name, load in self.loads.items():
            found[f"requests.{name}"] = float(load.requests)
            found[f"blocking.{name}"] = ratio(load.full, load.requests)
        return found


class RunRecorder:
    """Counts what happens while a world runs. The exact engine's fast path writes its series directly."""

    __slots__ = (
        "_last",
        "_warmup",
        "_world",
        "attempts",
        "began",
        "calls",
        "completed",
        "ended",
        "latencies",
        "made",
        "points",
        "reasons",
        "succeeded",
        "successes",
    )

    def __init__(self, world: World, raster: bool = False) -> None:
        slots = slot(world.horizon) + 1
        self._world = world
        self._warmup = world.warmup
        self._last = slots - 1
        self.calls, self.attempts, self.successes, self.ended = (
            [0] * slots for _ in range(4)
        )  # ended: by the slot in which they began
        self.latencies: list[float] = []
        self.reasons: Counter[str] = Counter()
        self.completed = 0.0
        self.made = array("Q", bytes(8 * world.clients.count))
        self.succeeded = array("Q", bytes(8 * world.clients.count))
        self.points: list[tuple[float, int]] | None = [] if raster else None

    def call(self, client: int, now: float) -> None:
        """Count the begin of a call."""
        self.calls[int(now * PER_SECOND + EDGE)] += 1
        if now >= self._warmup:
            self.made[client] += 1

    def attempt(self, client: int, now: float) -> None:
        """Count an attempt."""
        self.attempts[int(now * PER_SECOND + EDGE)] += 1
        if self.points is not None and len(self.points) < MAX_POINTS:
            self.points.append((now, client))

    def success(self, client: int, began: float, now: float) -> None:
        """Count a success."""
        self.successes[int(now * PER_SECOND + EDGE)] += 1
        self.ended[int(began * PER_SECOND + EDGE)] += 1
        if began >= self._warmup:
            self.latencies.append(now - began)
            self.succeeded[client] += 1
        self.completed = now

    def failure(self, began: float, now: float, reason: str) -> None:
        """Count a give-up."""
        self.ended[int(began * PER_SECOND + EDGE)] += 1
        if began >= self._warmup:
            self.reasons[reason] += 1
        self.completed = now

    def run(self, engine: str, seed: int, loads: Mapping[str, Load], notes: Sequence[str] = ()) -> Run:
        """Return the run, at its end."""
        self.latencies.sort()
        return Run(
            world=self._world,
            engine=engine,
            seed=seed,
            series={
                "calls": self.calls,
                "attempts": self.attempts,
                "successes": self.successes,
                "unfinished": [calls - ended for calls, ended in zip(self.calls, self.ended, strict=True)],
            },
            reasons=dict(self.reasons),
            latencies=self.latencies,
            loads=dict(loads),
            completed=self.completed,
            fairness=self._fairness(),
            points=self.points or (),
            notes=tuple(notes),
        )

    def _fairness(self) -> float | None:
        return jain([good / made for good, made in zip(self.succeeded, self.made, strict=True) if made])


def slot(instant: float) -> int:
    """Return the slot of a series for an instant.

    >>> slot(0.3), slot(2.999)
    (3, 29)
    """
    return int(instant * PER_SECOND + EDGE)


def ratio(part: float, whole: float) -> float:
    """Return a ratio; NaN if the whole is 0.

    >>> ratio(1, 4)
    0.25
    """
    return part / whole if whole else math.nan


def mean(latencies: Sequence[float]) -> float:
    """Return the mean; NaN of an empty sequence.

    >>> mean([1.0, 2.0])
    1.5
    """
    total = latencies.total if isinstance(latencies, LatencyHistogram) else sum(latencies)
    return ratio(total, len(latencies))


def percentile(latencies: Sequence[float], finished: int, share: float) -> float:
    """Return the time within which this share of the finished calls succeeded; infinite if fewer did.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 4, 0.5), percentile([1.0], 4, 0.5)
    (2.0, inf)
    """
    if not finished:
        return math.nan
    place = math.ceil(share * finished) - 1
    return latencies[place] if place < len(latencies) else math.inf


def recovery(calls: Series, successes: Series, end: float) -> float:
    """Return the seconds from `end` until goodput keeps up with arrivals for `STEADY` seconds.

    >>> recovery([10] * 200, [0] * 100 + [10] * 100, end=5.0)
    4.5
    """
    first, width = slot(end), round(STEADY * PER_SECOND)
    arrived = sum(calls[first : first + width])
    good = sum(successes[first : first + width])
    for place in range(first, len(calls) - width):
        if arrived and good >= RECOVERED * arrived:
            return max(0.0, place / PER_SECOND - end)
        arrived += calls[place + width] - calls[place]
        good += successes[place + width] - successes[place]
    return math.inf


def jain(rates: Sequence[float]) -> float | None:
    """Return Jain's fairness index: 1 if all are equal, 1/n if one has everything.

    >>> jain([1.0, 1.0]), jain([1.0, 0.0]), jain([])
    (1.0, 0.5, None)
    """
    squares = math.fsum(rate * rate for rate in rates)
    return math.fsum(rates) ** 2 / (len(rates) * squares) if squares else (None if not rates else 1.0)


MEASURES = (
    "calls",
    "attempts",
    "amplification",
    "amplification_during",
    "amplification_after",
    "success",
    "unfinished",
    "goodput",
    "recovery",
    "completed",
    "peak_100ms",
    "peak_1s",
    "peak_after",
    "peak_to_mean_100ms",
    "peak_to_mean_1s",
    "denials",
    "wasted",
    "mean",
    "p50",
    "p99",
    "p999",
    "fairness",
)
"""The measures of every run."""
REGRETS = ("regret", "regret_recovery", "regret_p99")
"""The measures of a study that compare a run with the oracle's (`abate.sim.regret`); NaN without one."""
PER_SERVICE = ("requests", "blocking")
"""The measures of each service: requests.NAME, blocking.NAME."""
