"""What a run is measured by: counts over time, and the figures that are read off them.

* **amplification**: attempts per call: in all, during the trouble, and after it.
* **peaks**: attempts per 100 ms and per second, and how far above the mean that is.
* **recovery**: seconds from the end of the trouble until goodput is at least 90 % of what arrives, for 5 s; infinite
  where that does not happen before the horizon.
* **wasted**: the share of the workers' time that went into requests nobody waited for any more.
* **p50, p99, p999**: of the time that calls take, where one that failed counts as infinite.
* **fairness**: Jain's index of the clients' success rates: 1 where all fare alike.
* **denials**: retries that budget, gate or shelter did not admit.
* **unfinished**: calls that are under way at the horizon. In success and percentiles such a call counts as one that
  failed, if it has been under way for more than 1 s and for longer than half of the successes took: who is that late
  is not just cut off by the end. A younger one counts for nothing there.

A call belongs to the time in which it began, and one of the warm-up counts for nothing.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

from abate.sim.latencies import Latencies
from abate.sim.world import World
from abate.values import Value

WIDTH = 0.1
"""Seconds of one slot of a series."""
PER_SECOND = 10
EDGE = 1e-6
"""What was meant as the edge of slot 3 lies in it, whatever a sum of floats says: a tenth of a microsecond."""
MOST_POINTS = 200_000
"""Attempts that a raster keeps."""
RECOVERED, STEADY = 0.9, 5.0
"""Goodput over arrivals, and for how many seconds, that count as recovered."""
STALE = 1.0
"""Seconds after which a call that is under way at the horizon may count as one that failed."""
REFUSALS = ("budget", "shelter")
"""The reasons of a give-up that are denials: of retries, and of first attempts."""

Series = Sequence[int]


class Load(Value):
    """What one service saw: requests, those it refused as its queue was full (`full`), by chance or by a trigger
    (`errors`) or by its rate limit (`limited`), those it served, and what became of its workers' time; all that after
    the warm-up.
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
        """What it saw after what it had seen `before`.

        >>> Load(requests=9, served=7).since(Load(requests=4, served=4))
        Load(requests=5, served=3, full=0, errors=0, limited=0, expired=0, busy=0.0, wasted=0.0)
        """
        return Load(*(now - then for now, then in zip(self._values(), before._values(), strict=True)))


class Run(Value):
    """One run of a world: what was counted.

    >>> import abate.sim as sim
    >>> run = sim.World(sim.Clients(count=8, arrivals="once"), [sim.Service("api", service_time=0.125)]).run()
    >>> run.calls, run.successes, run.completed
    (8, 8, 1.0)
    """

    world: World
    engine: str
    seed: int
    series: Mapping[str, Series]
    """Calls, attempts and successes in slots of 100 ms, over the whole horizon; and the calls that are unfinished at
    the horizon, by the slots in which they began.
    """
    reasons: Mapping[str, int]
    """Why calls were given up, and how often."""
    latencies: Sequence[float]
    """Seconds that successful calls took, in order of size."""
    loads: Mapping[str, Load]
    completed: float = 0.0
    """The instant of the last result."""
    fairness: float | None = None
    points: Sequence[tuple[float, int]] = ()
    notes: tuple[str, ...] = ()
    """What a reader should know about this run."""

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
        """Calls that began after the warm-up and are under way at the horizon."""
        return sum(self._counted("unfinished"))

    @property
    def _stale(self) -> int:
        """Those of the unfinished that count as failures: the end of the world is not what they lack."""
        usual = percentile(self.latencies, len(self.latencies), 0.5) if self.latencies else 0.0
        latest = slot(max(0.0, self.world.horizon - max(STALE, usual)))
        return sum(self.series["unfinished"][slot(self.world.warmup) : latest])

    def noted(self, note: str) -> Run:
        """The same run, with one more thing that a reader should know.

        >>> import abate.sim as sim
        >>> sim.World(sim.Clients(count=8), [sim.Service("api")]).run().noted("a trial").notes
        ('a trial',)
        """
        fields = dict(zip(self.__match_args__, self._values(), strict=True))
        return Run(**{**fields, "notes": (*self.notes, note)})

    def _counted(self, name: str) -> Series:
        return self.series[name][slot(self.world.warmup) :]

    def measures(self) -> dict[str, float]:
        """Every figure by its name; a figure that makes no sense in this world is not a number.

        >>> import abate.sim as sim
        >>> run = sim.World(sim.Clients(count=8, arrivals="once"), [sim.Service("api", service_time=0.125)]).run()
        >>> run.measures()["amplification"], run.measures()["p50"]
        (1.0, 0.5)
        """
        world, calls, attempts = self.world, self.calls, self.attempts
        judged = len(self.latencies) + self.failures + self._stale
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
        # a world that ends early is not calm for the rest of its horizon
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
        start, end = slot(trouble[0]), math.ceil(trouble[1] * PER_SECOND - 1e-9)  # the slot it ends in is not after it
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


class Recorder:
    """Counts while a world runs."""

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
        self.calls, self.attempts, self.successes, self.ended = ([0] * slots for _ in range(4))  # ended: by their begin
        self.latencies: list[float] = []
        self.reasons: Counter[str] = Counter()
        self.completed = 0.0
        self.made = array("Q", bytes(8 * world.clients.count))
        self.succeeded = array("Q", bytes(8 * world.clients.count))
        self.points: list[tuple[float, int]] | None = [] if raster else None

    def call(self, client: int, now: float) -> None:
        """A call begins."""
        self.calls[int(now * PER_SECOND + EDGE)] += 1
        if now >= self._warmup:
            self.made[client] += 1

    def attempt(self, client: int, now: float) -> None:
        """An attempt is sent."""
        self.attempts[int(now * PER_SECOND + EDGE)] += 1
        if self.points is not None and len(self.points) < MOST_POINTS:
            self.points.append((now, client))

    def success(self, client: int, began: float, now: float) -> None:
        """A call has succeeded."""
        self.successes[int(now * PER_SECOND + EDGE)] += 1
        self.ended[int(began * PER_SECOND + EDGE)] += 1
        if began >= self._warmup:
            self.latencies.append(now - began)
            self.succeeded[client] += 1
        self.completed = now

    def failure(self, began: float, now: float, reason: str) -> None:
        """A call was given up."""
        self.ended[int(began * PER_SECOND + EDGE)] += 1
        if began >= self._warmup:
            self.reasons[reason] += 1
        self.completed = now

    def run(self, engine: str, seed: int, loads: Mapping[str, Load], notes: Sequence[str] = ()) -> Run:
        """What was counted, when it is over."""
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
    """The slot of a series that an instant lies in.

    >>> slot(0.3), slot(2.999)
    (3, 29)
    """
    return int(instant * PER_SECOND + EDGE)


def ratio(part: float, whole: float) -> float:
    """A share; not a number where there is nothing to share.

    >>> ratio(1, 4)
    0.25
    """
    return part / whole if whole else math.nan


def mean(latencies: Sequence[float]) -> float:
    """Their mean; not a number where there are none.

    >>> mean([1.0, 2.0])
    1.5
    """
    total = latencies.total if isinstance(latencies, Latencies) else sum(latencies)
    return ratio(total, len(latencies))


def percentile(latencies: Sequence[float], finished: int, share: float) -> float:
    """The time within which this share of the finished calls have succeeded; infinite where fewer have.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 4, 0.5), percentile([1.0], 4, 0.5)
    (2.0, inf)
    """
    if not finished:
        return math.nan
    place = math.ceil(share * finished) - 1
    return latencies[place] if place < len(latencies) else math.inf


def recovery(calls: Series, successes: Series, end: float) -> float:
    """Seconds from `end` until goodput keeps up with what arrives, for `STEADY` seconds.

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
    """Jain's index of fairness: 1 where all are equal, 1/n where one has everything.

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
"""Every figure that `Run.measures` has."""
PER_SERVICE = ("requests", "blocking")
"""And those it has for each service: requests.NAME, blocking.NAME."""
