"""Searches for the policy with which a world recovers fastest, within a limit of amplification.

* **Ranking**: candidates within the limit come first; then those that recover in more runs; then those that recover
  sooner, to within half a second; then those with more successful calls, then those with fewer attempts.
* **Search**: random candidates are run with a fifth of the seeds, the best fifth of them with all seeds.
* **Common seeds**: every candidate is run with the same seeds, so that differences come from the policies.
* **Check**: the best of many candidates is partly lucky. So the best two are run again, with seeds that the search did
  not use; the difference between them is computed from these runs alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

from abate.admit.budget import Budget
from abate.call.policy import Policy
from abate.errors import choice, number, whole
from abate.frozen import Frozen
from abate.schedule.backoff import JITTERS, Backoff, Jitter
from abate.sim.simulation import single_attempt_policy
from abate.sim.study import Estimate, Progress, estimate
from abate.sim.world import Engine, World

GRAIN = 0.5
"""Seconds; recoveries that differ by less rank equal."""
SHARE = 5
"""One in `SHARE` seeds is used for the first round, and one in `SHARE` candidates reaches the second."""
MIN_FINALISTS = 3
MIN_SEEDS = 5
"""Fewer pairs of runs than this are never a significant difference."""
DIMENSIONS = 6


class Candidate(Frozen):
    """A policy to try: the settings that are searched.

    >>> Candidate(max_attempts=4, cap=5.0)
    Candidate(max_attempts=4, base=0.2, cap=5.0, jitter='full', ratio=0.2, reserve=10.0)
    """

    max_attempts: int = 3
    base: float = 0.2
    cap: float = 30.0
    jitter: Jitter = "full"
    ratio: float = 0.2
    reserve: float = 10.0

    def validate(self) -> None:
        whole("max_attempts", self.max_attempts, least=1)
        Backoff(self.base, self.cap, jitter=self.jitter)
        Budget(self.ratio, self.reserve)

    def world(self, world: World) -> World:
        """Return the world with this policy for its clients.

        >>> from abate.sim import Clients, Service
        >>> Candidate(max_attempts=4).world(World(Clients(10), [Service("api")])).policy.max_attempts
        4
        """
        given: Policy = world.policy or single_attempt_policy()
        factor = given.backoff.factor if isinstance(given.backoff, Backoff) else Backoff().factor
        backoff = Backoff(self.base, self.cap, factor, self.jitter)
        budget = Budget(self.ratio, self.reserve, given.budget.window, given.budget.funded_by, name=given.budget.name)
        policy = given.replace(max_attempts=self.max_attempts, backoff=backoff, budget=budget)
        settings: dict[str, Any] = {name: getattr(world, name) for name in World.__match_args__}
        return World(**{**settings, "policy": policy})


class Bounds(Frozen):
    """The search space: the lowest and highest value of each number, and the jitters.

    >>> Bounds(max_attempts=(2, 4), cap=(5.0, 5.0), jitter=("full",)).max_attempts
    (2, 4)
    >>> Bounds(ratio=(0.5, 0.1))
    Traceback (most recent call last):
    ValueError: ratio must go from low to high, not from 0.5 to 0.1
    """

    max_attempts: tuple[int, int] = (2, 6)
    base: tuple[float, float] = (0.05, 2.0)
    cap: tuple[float, float] = (1.0, 60.0)
    jitter: tuple[Jitter, ...] = ("full", "equal", "decorrelated")
    ratio: tuple[float, float] = (0.0, 0.5)
    reserve: tuple[float, float] = (0.0, 50.0)

    def validate(self) -> None:
        for name in ("max_attempts", "base", "cap", "ratio", "reserve"):
            self.__dict__[name] = _span(name, getattr(self, name))
        if not isinstance(self.jitter, (tuple, list)) or not self.jitter:
            raise ValueError(f"jitter must be a list of some of {', '.join(map(repr, JITTERS))}, not {self.jitter!r}")
        self.__dict__["jitter"] = tuple(choice("jitter", jitter, JITTERS) for jitter in self.jitter)
        if self.cap[1] < self.base[0]:
            raise ValueError(f"cap must reach the lowest base of {self.base[0]:g}, and goes up to {self.cap[1]:g} only")

    def at(self, point: Sequence[float]) -> Candidate:
        """Return the candidate at a point of the unit cube, with values rounded to two digits.

        >>> Bounds().at([0.5] * 6)
        Candidate(max_attempts=4, base=0.32, cap=7.7, jitter='equal', ratio=0.25, reserve=25.0)
        """
        low, high = self.max_attempts
        attempts = min(high, int(low + point[0] * (high - low + 1)))  # a float just below 1 rounds up
        budget = _between(self.ratio, point[4], linear=True) + _between(self.reserve, point[5], linear=True)
        if attempts == 1 or not budget:  # without retries the other settings make no difference
            attempts, point = low, [0.0] * len(point)
        base = min(self.cap[1], _between(self.base, point[1]))
        return Candidate(
            max_attempts=attempts,
            base=base,
            cap=max(base, _between(self.cap, point[2])),
            jitter=self.jitter[int(point[3] * len(self.jitter))],
            ratio=_between(self.ratio, point[4], linear=True),
            reserve=_between(self.reserve, point[5], linear=True),
        )


class TrialRun(NamedTuple):
    """The measures of one run."""

    recovery: float
    amplification: float
    success: float


class Trial(Frozen):
    """A candidate and its runs, one per seed; `limit` is the limit of the search.

    >>> trial = Trial(Candidate(), (TrialRun(4.0, 1.25, 0.9), TrialRun(math.inf, 1.75, 0.9)), limit=1.5)
    >>> trial.fits, trial.recovery.never, trial.amplification.mean
    (True, 1, 1.5)
    """

    candidate: Candidate
    runs: tuple[TrialRun, ...]
    limit: float

    @property
    def recovery(self) -> Estimate:
        """Seconds, over the seeds with which it recovered; `never` counts the others."""
        return estimate([run.recovery for run in self.runs])

    @property
    def amplification(self) -> Estimate:
        """Attempts per call."""
        return estimate([run.amplification for run in self.runs])

    @property
    def success(self) -> Estimate:
        """The share of calls that succeeded."""
        return estimate([run.success for run in self.runs])

    @property
    def fits(self) -> bool:
        """Whether the mean amplification is within the limit."""
        return self.amplification.mean <= self.limit

    @property
    def rank(self) -> tuple[float, ...]:
        """The sort key: lower is better."""
        recovery, amplification = self.recovery, self.amplification.mean
        steps = recovery.mean if math.isinf(recovery.mean) else round(recovery.mean / GRAIN)
        return (0.0 if self.fits else amplification, recovery.never, steps, -self.success.mean, amplification)


class Tuning(Frozen):
    """The result of a search.

    * `trials`: the finalists, best first; after an interrupt, the candidates that were run most often. Of candidates
      with the same figures for every seed, only the first is listed.
    * `best`, `runner_up`: the first two within the limit, run with seeds that the search did not use, so that either
      may exceed the limit slightly (`fits`). None if no candidate is within the limit.
    * `difference`: seconds by which the best recovers sooner than the runner-up, paired by seed. A run that never
      recovers counts as one that recovers at the horizon.
    * `limit`: of amplification. `total_runs`: how many were made.
    * `finished`: False after an interrupt. Then `best` and `runner_up` have the runs of the search.

    >>> Tuning((), None, None, None, limit=1.5, total_runs=0, finished=False).significant
    False
    """

    trials: tuple[Trial, ...]
    best: Trial | None
    runner_up: Trial | None
    difference: Estimate | None
    limit: float
    total_runs: int
    finished: bool

    @property
    def significant(self) -> bool:
        """Whether the best is faster than the runner-up by more than chance explains (95 %)."""
        found = self.difference
        return self.finished and found is not None and found.seeds >= MIN_SEEDS and found.mean > found.within

    @property
    def recovers(self) -> bool:
        """Whether the best recovered in any run."""
        return self.best is not None and self.best.recovery.never < len(self.best.runs)


def tune(
    world: World,
    limit: float,
    bounds: Bounds | None = None,
    *,
    seeds: int = 10,
    samples: int = 60,
    seed: int = 0,
    engine: Engine = "exact",
    progress: Progress | None = None,
) -> Tuning:
    """Search `bounds` for the policy with which `world` recovers fastest within `limit` attempts per call.

    `samples` candidates are tried, the best of them with `seeds` seeds, from `seed` on. The same `seed` gives the same
    result. A KeyboardInterrupt ends the search and returns what was found so far.

    >>> from abate.sim import Clients, Service, Trigger
    >>> world = World(Clients(20), [Service("api")], triggers=[Trigger("error", at=5.0, for_=2.0)], horizon=15.0)
    >>> tuning = tune(world, limit=1.5, seeds=2, samples=6)
    >>> tuning.best.fits, tuning.finished
    (True, True)
    """
    if world.trouble is None:
        raise ValueError("the world has no trigger: there is nothing to recover from")
    if not world.clients.offered:
        raise ValueError("no client calls after the trigger: without such calls there is no recovery to search for")
    limit = number("limit", limit, least=1)
    first, count = whole("seed", seed, least=0), whole("seeds", seeds, least=1)
    candidates = _candidates(bounds or Bounds(), whole("samples", samples, least=1), Random(f"{first}/tune"))
    few, places = math.ceil(count / SHARE), max(MIN_FINALISTS, len(candidates) // SHARE)
    planned = len(candidates) * few + min(places, len(candidates)) * (count - few) + 2 * count
    search = _Search(world, limit, engine, planned, progress)
    fresh, finished = list[Trial](), False
    try:
        search.run(candidates, range(first, first + few))
        finalists = [trial.candidate for trial in search.trials()[:places]]
        search.run(finalists, range(first + few, first + count))
        leaders = [trial.candidate for trial in search.trials() if trial.fits][:2]
        again = range(first + count, first + 2 * count)
        fresh = [Trial(leader, tuple([search.run_once(leader, each) for each in again]), limit) for leader in leaders]
        finished = True
    except KeyboardInterrupt:
        pass
    trials = search.trials()
    best, runner_up, *_ = (*(fresh or [trial for trial in trials if trial.fits]), None, None)
    return Tuning(
        tuple(trials), best, runner_up, _difference(world, best, runner_up), limit, search.runs, finished=finished
    )


class _Search:
    """Runs candidates, and keeps what they measured."""

    def __init__(
        self, world: World, limit: float, engine: Engine, planned: int, progress: Progress | None = None
    ) -> None:
        self._world, self._limit = world, limit
        self._engine: Engine = engine
        self._planned, self._progress = planned, progress
        self._found: dict[Candidate, list[TrialRun]] = {}
        self._seeds = 0  # with which a whole round was run
        self.runs = 0

    def run(self, candidates: Sequence[Candidate], seeds: Iterable[int]) -> None:
        """Run all candidates with each seed before the next seed, so that an interrupt finds all equally far."""
        for seed in seeds:
            for candidate in candidates:
                self._found.setdefault(candidate, []).append(self.run_once(candidate, seed))
            self._seeds += 1

    def run_once(self, candidate: Candidate, seed: int) -> TrialRun:
        """Run one candidate with one seed."""
        found = candidate.world(self._world).run(seed, self._engine).measures()
        self.runs += 1
        if self._progress is not None:
            self._progress(self.runs, self._planned)
        # without calls there are no attempts and no successes
        sent, good = (0.0 if math.isnan(found[name]) else found[name] for name in ("amplification", "success"))
        return TrialRun(found["recovery"], sent, good)

    def trials(self) -> list[Trial]:
        """Return the candidates that were run with the seeds of all completed rounds, best first."""
        seeds = max(1, self._seeds)
        trials = [
            Trial(candidate, tuple(runs[:seeds]), self._limit)
            for candidate, runs in self._found.items()
            if len(runs) >= seeds
        ]
        distinct: dict[tuple[TrialRun, ...], Trial] = {}
        for trial in sorted(trials, key=lambda trial: trial.rank):
            distinct.setdefault(trial.runs, trial)
        return list(distinct.values())


def _candidates(bounds: Bounds, samples: int, rng: Random) -> list[Candidate]:
    """Return distinct candidates: the one with the fewest retries, and random ones."""
    points = [[0.0] * DIMENSIONS, *([rng.random() for _ in range(DIMENSIONS)] for _ in range(samples - 1))]
    return list(dict.fromkeys(map(bounds.at, points)))


def _difference(world: World, best: Trial | None, runner_up: Trial | None) -> Estimate | None:
    if best is None or runner_up is None:
        return None
    assert world.trouble is not None
    left = max(0.0, world.horizon - world.trouble[1])
    pairs = zip(best.runs, runner_up.runs, strict=True)
    return estimate([min(behind.recovery, left) - min(ahead.recovery, left) for ahead, behind in pairs])


def _span(name: str, given: object) -> tuple[float, float]:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ValueError(f"{name} must be two numbers, the lowest and the highest, not {given!r}")
    low, high = (whole(name, end, least=1) if name == "max_attempts" else number(name, end, least=0) for end in given)
    if low > high:
        raise ValueError(f"{name} must go from low to high, not from {low:g} to {high:g}")
    return low, high


def _between(span: tuple[float, float], share: float, linear: bool = False) -> float:
    """Return the value at a share of the way from low to high, by factors unless `linear`, rounded to two digits."""
    low, high = span
    found = low * (high / low) ** share if low and not linear else low + share * (high - low)
    return min(max(low, float(f"{found:.2g}")), high)
