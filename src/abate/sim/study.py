"""Many runs of a scenario: every case with every seed, and what that says, with its interval.

Long studies are spread over the machine's cores. Whoever breaks one off gets what was computed so far.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

from abate.errors import whole
from abate.sim.measures import Run, Series
from abate.sim.outlook import outlook
from abate.sim.parts import about_code
from abate.sim.scenario import WITHIN, Case, Scenario
from abate.sim.spread import spread
from abate.values import Value

Progress = Callable[[int, int], object]
"""Told how many runs of how many are done."""

SHORT = 2.0
"""Seconds that are left to compute, below which other processes would only be in the way."""
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t for 95 %, from one degree of freedom on."""
NORMAL = 1.960


class Estimate(Value):
    """A figure over several seeds: its mean, and how far the true mean may lie from it (95 %).

    `never` counts the runs in which it was infinite, such as a recovery that did not happen; the mean is that of the
    others.

    >>> estimate([1.0, 2.0, 3.0])
    Estimate(mean=2.0, within=2.484..., seeds=3, never=0)
    >>> print(estimate([1.0, 2.0, 3.0])); print(estimate([math.inf, math.inf]))
    2 ± 2.5
    never
    """

    mean: float
    within: float
    seeds: int
    never: int = 0

    def __str__(self) -> str:
        if not self.seeds or (math.isnan(self.mean) and not self.never):
            return "-"
        if self.never == self.seeds:
            return "never"
        shown = f"{figure(self.mean)} ± {figure(float(f'{self.within:.2g}'))}" if self.within else figure(self.mean)
        return f"{shown}, never in {self.never} of {self.seeds}" if self.never else shown


def estimate(values: Sequence[float]) -> Estimate:
    """The mean and its interval."""
    finite = [value for value in values if math.isfinite(value)]
    never = sum(map(math.isinf, values))
    if not finite:
        return Estimate(math.inf if never else math.nan, 0.0, len(values), never)
    within = 0.0
    if len(finite) > 1:
        freedom = len(finite) - 1
        within = (STUDENT[freedom - 1] if freedom <= len(STUDENT) else NORMAL + 2.4 / freedom) * (
            statistics.stdev(finite) / math.sqrt(len(finite))
        )
    return Estimate(statistics.fmean(finite), within, len(values), never)


def figure(value: float) -> str:
    """A number for people: four digits, and no more.

    >>> figure(0.023493), figure(1234567.0), figure(12.0)
    ('0.02349', '1,234,567', '12')
    """
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


class Sample(Value):
    """What is kept of one run."""

    seed: int
    engine: str
    measures: Mapping[str, float]
    series: Mapping[str, Series]
    reasons: Mapping[str, int]
    points: Sequence[tuple[float, int]]
    notes: tuple[str, ...]


class Verdict(Value):
    """An assertion, what was seen of its measure, and whether it holds.

    >>> print(Verdict("max_wasted", 0.1, "wasted", estimate([0.5]), holds=False))
    max_wasted = 0.1, and wasted is 0.5
    """

    key: str
    bound: float
    name: str
    seen: Estimate
    holds: bool

    def __str__(self) -> str:
        return f"{self.key} = {self.bound:g}, and {self.name} is {self.seen}"

    def as_json(self) -> dict[str, Any]:
        """For machines, as `Study.as_json` has it.

        >>> Verdict("max_wasted", 0.1, "wasted", estimate([0.5]), holds=False).as_json()["holds"]
        False
        """
        bound = self.bound if math.isfinite(self.bound) else None
        return {"key": self.key, "bound": bound, "measure": self.name, "seen": _plain(self.seen), "holds": self.holds}


class Result(Value):
    """One case with all its seeds."""

    case: Case
    samples: tuple[Sample, ...]

    @property
    def measures(self) -> dict[str, Estimate]:
        """Every figure over the seeds."""
        names = self.samples[0].measures if self.samples else ()
        return {name: estimate([sample.measures[name] for sample in self.samples]) for name in names}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know, each once."""
        return tuple(dict.fromkeys(note for sample in self.samples for note in sample.notes))

    def series(self, name: str) -> list[float]:
        """A series, as the mean over the seeds."""
        rows = [sample.series[name] for sample in self.samples]
        return [sum(slot) / len(rows) for slot in zip(*rows, strict=True)]

    def broken(self) -> list[str]:
        """What was asserted of this case and does not hold."""
        if not self.samples:
            return [f"{self.case.name or 'the scenario'} was not run"] if self.case.asserted else []
        case = f"{self.case.name}: " if self.case.name else ""
        return [f"{case}{verdict}" for verdict in self.verdicts() if not verdict.holds]

    def verdicts(self) -> list[Verdict]:
        """What was asserted of this case, and what was seen; nothing where it was not run."""
        measures, found = self.measures, []
        for key, bound in self.case.asserted.items() if self.samples else ():
            name = "recovery" if key == WITHIN else key.partition("_")[2]
            seen = measures[name]
            worst = math.inf if seen.never else seen.mean
            holds = worst >= bound if key.startswith("min_") else worst <= bound
            found.append(Verdict(key, bound, name, seen, holds))
        return found


class Study(Value):
    """A scenario that was run.

    >>> from abate.sim.scenario import load_scenario
    >>> study = run_study(load_scenario("herd").changed("clients.count=50"), seeds=2)
    >>> study.complete, len(study.results[0].samples)
    (True, 2)
    """

    scenario: Scenario
    results: tuple[Result, ...]
    complete: bool = True
    """Was nothing broken off?"""

    def broken(self) -> list[str]:
        """Every assertion that does not hold."""
        return [line for result in self.results for line in result.broken()]

    def as_json(self) -> dict[str, Any]:
        """For machines: no infinities and no NaN, which JSON has not; `never` says how often a figure was infinite."""
        return {
            "scenario": self.scenario.name,
            "about": self.scenario.about,
            "complete": self.complete,
            "broken": self.broken(),
            "cases": [
                {
                    "variant": result.case.variant,
                    "settings": dict(result.case.settings),
                    "engine": result.samples[0].engine if result.samples else result.case.engine,
                    "seeds": len(result.samples),
                    "measures": {name: _plain(seen) for name, seen in result.measures.items()},
                    "reasons": _mean_reasons(result.samples),
                    "notes": list(result.notes),
                    "verdicts": [verdict.as_json() for verdict in result.verdicts()],
                    "outlook": [sight.as_json() for sight in outlook(result.case.world)],
                }
                for result in self.results
            ],
        }


def run_study(
    scenario: Scenario,
    seeds: int | None = None,
    engine: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    raster: bool = False,
) -> Study:
    """Run every case of a scenario with every seed, from 0 on; `raster` keeps the attempts of each case's first run.

    `seeds`, `engine` and `jobs` (processes) are what the scenario says, and one per core, unless given.

    >>> from abate.sim.scenario import load_scenario
    >>> run_study(load_scenario("herd"), seeds=0)
    Traceback (most recent call last):
    ValueError: seeds must be a whole number of at least 1, not 0
    """
    for name, given in (("seeds", seeds), ("jobs", jobs)):
        if given is not None:
            whole(name, given, least=1)
    cases = scenario.cases()
    for case in cases:
        with about_code(scenario.place):
            case.world.check_engine(engine or case.engine)
    tasks = [
        (place, seed, engine or case.engine, raster and seed == 0)
        for place, case in enumerate(cases)
        for seed in range(seeds or case.seeds)
    ]
    # every case has had its turn before one has its second
    tasks.sort(key=lambda task: task[1])
    found: list[list[Sample]] = [[] for _ in cases]
    complete = True
    try:
        with (
            about_code(scenario.place),
            closing(_samples(scenario, cases, tasks, jobs or os.cpu_count() or 1)) as samples,
        ):
            for place, sample in samples:
                found[place].append(sample)
                if progress is not None:
                    progress(sum(map(len, found)), len(tasks))
    except KeyboardInterrupt:
        complete = False
    results = [
        Result(case, tuple(sorted(samples, key=lambda sample: sample.seed)))
        for case, samples in zip(cases, found, strict=True)
    ]
    return Study(scenario, tuple(results), complete)


Task = tuple[int, int, str, bool]


def _samples(
    scenario: Scenario, cases: list[Case], tasks: list[Task], jobs: int
) -> Generator[tuple[int, Sample], None, None]:
    """Every sample as it comes, with the place of its case."""
    began = time.monotonic()
    for number, task in enumerate(tasks):
        spent = time.monotonic() - began
        if jobs > 1 and number and spent / number * (len(tasks) - number) > SHORT:
            yield from spread(_build, scenario, tasks[number:], jobs)
            return
        yield task[0], _run(cases, task)


def _build(scenario: Scenario) -> Callable[[Task], tuple[int, Sample]]:
    """In a process that helps: the worlds are built once."""
    cases = scenario.cases()
    return lambda task: (task[0], _run(cases, task))


def _run(cases: Sequence[Case], task: Task) -> Sample:
    place, seed, engine, raster = task
    return _sample(cases[place].world.run(seed, engine, raster))  # type: ignore[arg-type]


def _sample(run: Run) -> Sample:
    return Sample(run.seed, run.engine, run.measures(), run.series, run.reasons, run.points, run.notes)


def _plain(seen: Estimate) -> dict[str, Any]:
    known = math.isfinite(seen.mean)
    return {"mean": seen.mean if known else None, "within": seen.within if known else None, "never": seen.never}


def _mean_reasons(samples: Sequence[Sample]) -> dict[str, float]:
    names = sorted({name for sample in samples for name in sample.reasons})
    return {name: sum(sample.reasons.get(name, 0) for sample in samples) / len(samples) for name in names}
