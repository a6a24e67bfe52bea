"""Searches for the policy that recovers fastest from a world's trouble, within a limit of amplification.

The rules:

* **The order**: who keeps the limit comes before who does not; then who recovers in more of the runs; then who recovers
  sooner, to within half a second; then more calls that succeed, then fewer attempts.
* **The search** starts from points that fill the space evenly. All are run with a few seeds, the better third with
  more, the best of these with all (successive halving); then the same around the best one, three times, ever closer.
* **Common chance**: every candidate meets the same seeds, so that two of them differ by what they are.
* **How sure**: who comes first of many was lucky as well. So the best and the runner-up meet each other once more, with
  seeds that had no part in the search, and what is said of the two rests on these alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from abate.admit.budget import Budget
from abate.call.policy import Policy
from abate.errors import choice, number, whole
from abate.schedule.backoff import JITTERS, Backoff, Jitter
from abate.sim.binding import once
from abate.sim.points import around, even
from abate.sim.study import Estimate, Progress, estimate
from abate.sim.world import Engine, World
from abate.values import Value

GRAIN = 0.5
"""Seconds; recoveries that differ by less are as good as each other."""
KEPT = 3
"""Of so many candidates one goes on to the next round, and at least so many do."""
ROUNDS = (0.2, 0.1, 0.05)
"""How far around the best one is looked, as a share of the bounds."""
NEIGHBOURS = 8
RESAMPLES = 2000
FEWEST = 5
"""Pairs of runs, below which nothing is sure: drawing from so few tells nothing of those that were not seen."""


class Candidate(Value):
    """A policy to be tried: what is searched for, and nothing else.

    >>> Candidate(attempts=4, cap=5.0)
    Candidate(attempts=4, base=0.2, cap=5.0, jitter='full', ratio=0.2, reserve=10.0)
    """

    attempts: int = 3
    base: float = 0.2
    cap: float = 30.0
    jitter: Jitter = "full"
    ratio: float = 0.2
    reserve: float = 10.0

    def checked(self) -> None:
        whole("attempts", self.attempts, least=1)
        Backoff(self.base, self.cap, jitter=self.jitter)
        Budget(self.ratio, self.reserve)

    def world(self, world: World) -> World:
        """The same world, whose clients go by this policy.

        >>> from abate.sim import Clients, Service
        >>> Candidate(attempts=4).world(World(Clients(10), [Service("api")])).policy.max_attempts
        4
        """
        given: Policy = world.policy or once()
        factor = given.backoff.factor if isinstance(given.backoff, Backoff) else Backoff.factor
        backoff = Backoff(self.base, self.cap, factor, self.jitter)
        budget = Budget(self.ratio, self.reserve, given.budget.window, given.budget.funded_by, name=given.budget.name)
        policy = given.replace(attempts=self.attempts, backoff=backoff, budget=budget)
        settings: dict[str, Any] = {name: getattr(world, name) for name in World.__match_args__}
        return World(**{**settings, "policy": policy})


class Bounds(Value):
    """Where to search: the lowest and the highest of each number, and the jitters.

    >>> Bounds(attempts=(2, 4), cap=(5.0, 5.0), jitter=("full",)).attempts
    (2, 4)
    >>> Bounds(ratio=(0.5, 0.1))
    Traceback (most recent call last):
    ValueError: ratio must go from low to high, not from 0.5 to 0.1
    """

    attempts: tuple[int, int] = (2, 6)
    base: tuple[float, float] = (0.05, 2.0)
    cap: tuple[float, float] = (1.0, 60.0)
    jitter: tuple[Jitter, ...] = ("full", "equal", "decorrelated")
    ratio: tuple[float, float] = (0.0, 0.5)
    reserve: tuple[float, float] = (0.0, 50.0)

    def checked(self) -> None:
        for name in ("attempts", "base", "cap", "ratio", "reserve"):
            self.__dict__[name] = _span(name, getattr(self, name))
        if not isinstance(self.jitter, (tuple, list)) or not self.jitter:
            raise ValueError(f"jitter must be a list of some of {', '.join(map(repr, JITTERS))}, not {self.jitter!r}")
        self.__dict__["jitter"] = tuple(choice("jitter", jitter, JITTERS) for jitter in self.jitter)
        if self.cap[1] < self.base[0]:
            raise ValueError(f"cap must reach the lowest base of {self.base[0]:g}, and goes up to {self.cap[1]:g} only")

    def at(self, point: Sequence[float]) -> Candidate:
        """The candidate at a point of the unit cube, in numbers that people would write.

        >>> Bounds().at([0.5] * 6)
        Candidate(attempts=4, base=0.32, cap=7.7, jitter='equal', ratio=0.25, reserve=25.0)
        """
        fewest, most = self.attempts
        attempts = min(most, int(fewest + point[0] * (most - fewest + 1)))  # just below 1 is rounded up
        paid = _between(self.ratio, point[4], even=True) + _between(self.reserve, point[5], even=True)
        if attempts == 1 or not paid:  # without retries, nothing else makes a difference
            attempts, point = fewest, [0.0] * len(point)
        base = min(self.cap[1], _between(self.base, point[1]))
        return Candidate(
            attempts=attempts,
            base=base,
            cap=max(base, _between(self.cap, point[2])),
            jitter=self.jitter[int(point[3] * len(self.jitter))],
            ratio=_between(self.ratio, point[4], even=True),
            reserve=_between(self.reserve, point[5], even=True),
        )


class Seen(NamedTuple):
    """What one run showed of a candidate."""

    recovery: float
    amplification: float
    success: float


class Trial(Value):
    """A candidate and what was seen of it, one entry per seed; `limit` is that of the search.

    >>> trial = Trial(Candidate(), (Seen(4.0, 1.25, 0.9), Seen(math.inf, 1.75, 0.9)), limit=1.5)
    >>> trial.fits, trial.recovery.never, trial.amplification.mean
    (True, 1, 1.5)
    """

    candidate: Candidate
    seen: tuple[Seen, ...]
    limit: float

    @property
    def recovery(self) -> Estimate:
        """Seconds, over the seeds with which it recovered; `never` counts the others."""
        return estimate([seen.recovery for seen in self.seen])

    @property
    def amplification(self) -> Estimate:
        """Attempts per call."""
        return estimate([seen.amplification for seen in self.seen])

    @property
    def success(self) -> Estimate:
        """The share of calls that succeeded."""
        return estimate([seen.success for seen in self.seen])

    @property
    def fits(self) -> bool:
        """Does it keep the limit, on average?"""
        return self.amplification.mean <= self.limit

    @property
    def figures(self) -> tuple[int, float, float, float]:
        """How often it never recovered, how soon it did, attempts per call, and failures: each the less the better."""
        recovery = self.recovery
        return recovery.never, recovery.mean, self.amplification.mean, 1.0 - self.success.mean

    @property
    def rank(self) -> tuple[float, ...]:
        """The less, the better."""
        never, recovery, amplification, failures = self.figures
        steps = recovery if math.isinf(recovery) else round(recovery / GRAIN)
        return (0.0 if self.fits else amplification, never, steps, failures, amplification)

    def beats(self, other: Trial) -> bool:
        """Is it as good in every respect, and better in one? Recovery, amplification and success are what counts."""
        mine, others = self.figures, other.figures
        pairs = [(mine[:2], others[:2]), (mine[2:3], others[2:3]), (mine[3:], others[3:])]
        return all(one <= two for one, two in pairs) and any(one < two for one, two in pairs)


class Tuning(Value):
    """What a search has found.

    * `front`: the trials that no other beats in recovery, amplification and success at once, best first; of those that
      fared alike with every seed, one. Some may exceed the limit (`fits` tells): they show what it costs.
    * `best`, `runner_up`: the first two that fit and did not fare alike, seen with seeds that had no part in the search
      (so that either may exceed the limit by a hair after all: `fits` tells); None where none fits.
    * `wins`: the share of these seeds with which the best recovers sooner than the runner-up; a tie counts half. Not a
      number where there is no runner-up.
    * `lead`: by how many seconds sooner, on average, and the 95 % interval of that (bootstrap): mean, low, high. A run
      that never recovers counts as if it had at the horizon, so a lead over such is at least this large.
    * `limit`: of amplification. `seeds`: how many each trial of the front was seen with. `runs`: made in all.
    * `finished`: False if it was broken off. Then `best` and `runner_up` are seen with the seeds of the search.

    >>> Tuning((), None, None, math.nan, (math.nan,) * 3, limit=1.5, seeds=0, runs=0, finished=False).sure
    False
    """

    front: tuple[Trial, ...]
    best: Trial | None
    runner_up: Trial | None
    wins: float
    lead: tuple[float, float, float]
    limit: float
    seeds: int
    runs: int
    finished: bool

    @property
    def sure(self) -> bool:
        """Is the best one faster than the runner-up, beyond what chance explains? Not if broken off, or seldom seen."""
        return self.finished and self.best is not None and len(self.best.seen) >= FEWEST and self.lead[1] > 0.0

    @property
    def recovers(self) -> bool:
        """Did the best one ever recover? Where it did not, there is nothing to recommend."""
        return self.best is not None and self.best.recovery.never < len(self.best.seen)


def tune(
    world: World,
    limit: float,
    bounds: Bounds | None = None,
    *,
    seeds: int = 10,
    samples: int = 36,
    seed: int = 0,
    engine: Engine = "exact",
    progress: Progress | None = None,
) -> Tuning:
    """Search `bounds` for the policy with which `world` recovers fastest at `limit` attempts per call.

    `samples` candidates are tried at first, the best with `seeds` seeds, from `seed` on. The same `seed` gives the same
    result. Whoever breaks it off (KeyboardInterrupt) gets what was found so far.

    >>> from abate.sim import Clients, Service, Trigger
    >>> world = World(Clients(20), [Service("api")], triggers=[Trigger("error", at=5.0, for_=2.0)], horizon=15.0)
    >>> tuning = tune(world, limit=1.5, seeds=2, samples=6)
    >>> tuning.best.fits, tuning.finished
    (True, True)
    """
    if world.trouble is None:
        raise ValueError("the world has no trigger: there is nothing to recover from")
    if not world.clients.offered:
        raise ValueError("nobody calls again after the trouble: without such calls there is no recovery to search for")
    limit = number("limit", limit, least=1)
    first, count = whole("seed", seed, least=0), whole("seeds", seeds, least=1)
    search = Search(world, limit, bounds or Bounds(), range(first, first + count), engine, progress)
    return search.run(whole("samples", samples, least=1))


class Search:
    """One search: what was seen of whom so far."""

    def __init__(
        self, world: World, limit: float, bounds: Bounds, seeds: range, engine: Engine, progress: Progress | None
    ) -> None:
        self._world, self._limit, self._bounds = world, limit, bounds
        self._seeds, self._progress = seeds, progress
        self._engine: Engine = engine
        self._rng = Random(f"{seeds.start}/tune")
        # with how many seeds each round of a halving is seen
        self._steps = sorted({0, math.ceil(len(seeds) / KEPT**2), math.ceil(len(seeds) / KEPT), len(seeds)})
        self._points: dict[Candidate, tuple[float, ...]] = {}
        self._seen: dict[Candidate, list[Seen]] = {}
        self._settled = 0  # seeds with which a whole round was seen
        self._runs = self._done = self._planned = 0

    def run(self, samples: int) -> Tuning:
        """Search, as far as one is let."""
        self._planned = self._cost(samples) + len(ROUNDS) * self._cost(NEIGHBOURS) + 2 * len(self._seeds)
        fresh, finished = list[Trial](), False
        try:
            self._halve(even(samples, self._rng))
            for width in ROUNDS:
                self._halve(around(self._points[self._trials()[0].candidate], NEIGHBOURS, width, self._rng))
            first = [trial.candidate for trial in self._trials() if trial.fits][:2]
            fresh = [self._afresh(candidate) for candidate in first]
            finished = True
        except KeyboardInterrupt:
            pass
        return self._found(fresh, finished)

    def _cost(self, size: int) -> int:
        """Runs that a halving of so many candidates takes at most."""
        cost = 0
        for before, step in pairwise(self._steps):
            cost += size * (step - before)
            size = _places(size)
        return cost

    def _halve(self, points: list[tuple[float, ...]]) -> None:
        end = self._done + self._cost(len(points))
        for point in points:
            self._points.setdefault(self._bounds.at(point), point)
        pool = list(dict.fromkeys(map(self._bounds.at, points)))
        for before, step in pairwise(self._steps):
            if before:
                pool = self._going_on(pool, before)
            for place in range(before, step):
                # each has had its turn before one has its next, so that who breaks off finds all of them equally far
                for candidate in pool:
                    seen = self._seen.setdefault(candidate, [])
                    if len(seen) == place:
                        seen.append(self._run(candidate, self._seeds[place]))
                self._settled = max(self._settled, place + 1)
        self._done = end  # what had been tried before needed no run

    def _going_on(self, pool: list[Candidate], seeds: int) -> list[Candidate]:
        """Those who are worth more seeds: half of them for their rank, then those whom nobody beats."""
        trials = sorted((self._trial(candidate, seeds) for candidate in pool), key=lambda trial: trial.rank)
        places = _places(len(pool))
        order = dict.fromkeys(trial.candidate for trial in (*trials[: (places + 1) // 2], *_front(trials), *trials))
        return list(order)[:places]

    def _run(self, candidate: Candidate, seed: int) -> Seen:
        found = candidate.world(self._world).run(seed, self._engine).measures()
        self._runs += 1
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._planned)
        # where nobody called, nothing was sent and nothing succeeded
        sent, good = (0.0 if math.isnan(found[name]) else found[name] for name in ("amplification", "success"))
        return Seen(found["recovery"], sent, good)

    def _trial(self, candidate: Candidate, seeds: int) -> Trial:
        return Trial(candidate, tuple(self._seen[candidate][:seeds]), self._limit)

    def _trials(self) -> list[Trial]:
        """What was seen with as many seeds as a whole round was, best first; of those that fared alike, one."""
        seeds = max(1, self._settled)
        trials = [self._trial(candidate, seeds) for candidate, seen in self._seen.items() if len(seen) >= seeds]
        found: dict[tuple[Seen, ...], Trial] = {}
        for trial in sorted(trials, key=lambda trial: trial.rank):
            found.setdefault(trial.seen, trial)
        return list(found.values())

    def _afresh(self, candidate: Candidate) -> Trial:
        """The candidate with seeds that had no part in the search."""
        seeds = range(self._seeds.stop, self._seeds.stop + len(self._seeds))
        return Trial(candidate, tuple([self._run(candidate, seed) for seed in seeds]), self._limit)

    def _found(self, fresh: list[Trial], finished: bool) -> Tuning:
        trials = self._trials()
        best, runner_up, *_ = (*(fresh or [trial for trial in trials if trial.fits]), None, None)
        wins, lead = math.nan, (math.nan, math.nan, math.nan)
        if best is not None and runner_up is not None:
            assert self._world.trouble is not None
            left = max(0.0, self._world.horizon - self._world.trouble[1])
            pairs = zip(best.seen, runner_up.seen, strict=True)
            leads = [min(behind.recovery, left) - min(ahead.recovery, left) for ahead, behind in pairs]
            wins = statistics.fmean([0.5 if not each else float(each > 0.0) for each in leads])
            lead = _interval(leads, Random(f"{self._seeds.start}/lead"))
        front, seeds = tuple(_front(trials)), len(trials[0].seen) if trials else 0
        return Tuning(front, best, runner_up, wins, lead, self._limit, seeds, self._runs, finished)


def _places(size: int) -> int:
    """How many of so many go on to the next round of a halving."""
    return min(size, max(KEPT, size // KEPT))


def _front(trials: list[Trial]) -> list[Trial]:
    return [trial for trial in trials if not any(other.beats(trial) for other in trials)]


def _interval(values: Sequence[float], rng: Random) -> tuple[float, float, float]:
    """The mean, and between which two it lies with 95 %, as drawing from the values themselves tells."""
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return statistics.fmean(values), means[RESAMPLES // 40], means[-1 - RESAMPLES // 40]


def _span(name: str, given: object) -> tuple[float, float]:
    """The lowest and the highest."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ValueError(f"{name} must be two numbers, the lowest and the highest, not {given!r}")
    low, high = (whole(name, end, least=1) if name == "attempts" else number(name, end, least=0) for end in given)
    if low > high:
        raise ValueError(f"{name} must go from low to high, not from {low:g} to {high:g}")
    return low, high


def _between(span: tuple[float, float], share: float, even: bool = False) -> float:
    """So far up from low to high, evenly or by factors, in two digits."""
    low, high = span
    found = low * (high / low) ** share if low and not even else low + share * (high - low)
    return min(max(low, float(f"{found:.2g}")), high)
