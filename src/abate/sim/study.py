"""Runs every case of a scenario with every seed, and estimates each measure with a confidence interval.

Long studies use worker processes. An interrupted study returns what was computed so far.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from abate.errors import whole
from abate.frozen import Frozen
from abate.sim import oracle
from abate.sim.measures import Run, Series
from abate.sim.regret import oracle_names, oracle_places, regrets
from abate.sim.scenario import WITHIN, Case, Scenario
from abate.sim.scenario_parser import locate_code_errors
from abate.sim.vulnerable_range import vulnerable_range
from abate.sim.worker_processes import run_in_workers

Progress = Callable[[int, int], object]
"""Called with the number of finished runs, and of all runs, without those of oracles."""

ORACLE = "oracle"
"""The engine of runs of the oracle."""
SHORT = 2.0
"""Seconds of remaining work below which worker processes do not pay."""
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t for 95 %, from one degree of freedom on."""
NORMAL = 1.960


class Estimate(Frozen):
    """A measure over several seeds: its mean, and the half-width of its 95 % confidence interval.

    `never` counts the runs in which it was infinite, such as a recovery that did not happen; the mean is over the
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
        shown = (
            f"{format_number(self.mean)} ± {format_number(float(f'{self.within:.2g}'))}"
            if self.within
            else format_number(self.mean)
        )
        return f"{shown}, never in {self.never} of {self.seeds}" if self.never else shown

    def as_json(self) -> dict[str, Any]:
        """Return it without infinities and NaN, which JSON does not have.

        >>> Estimate(math.inf, 0.0, seeds=2, never=2).as_json()
        {'mean': None, 'within': None, 'never': 2}
        """
        known = math.isfinite(self.mean)
        return {"mean": self.mean if known else None, "within": self.within if known else None, "never": self.never}


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean and its interval."""
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


def format_number(value: float) -> str:
    """Format a number with four digits.

    >>> format_number(0.023493), format_number(1234567.0), format_number(12.0)
    ('0.02349', '1,234,567', '12')
    """
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


class Sample(Frozen):
    """The data of one run that a study keeps."""

    seed: int
    engine: str
    measures: Mapping[str, float]
    series: Mapping[str, Series]
    reasons: Mapping[str, int]
    points: Sequence[tuple[float, int]]
    notes: tuple[str, ...]


class AssertionResult(Frozen):
    """An assertion, the estimate of its measure, and whether it holds.

    >>> print(AssertionResult("max_wasted", 0.1, "wasted", estimate([0.5]), holds=False))
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
        """Return it for `Study.as_json`.

        >>> AssertionResult("max_wasted", 0.1, "wasted", estimate([0.5]), holds=False).as_json()["holds"]
        False
        """
        bound = self.bound if math.isfinite(self.bound) else None
        return {"key": self.key, "bound": bound, "measure": self.name, "seen": self.seen.as_json(), "holds": self.holds}


class Result(Frozen):
    """One case with all its seeds."""

    case: Case
    samples: tuple[Sample, ...]

    @property
    def measures(self) -> dict[str, Estimate]:
        """The estimate of every measure over the seeds."""
        names = self.samples[0].measures if self.samples else ()
        return {name: estimate([sample.measures[name] for sample in self.samples]) for name in names}

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of all runs, each once."""
        return tuple(dict.fromkeys(note for sample in self.samples for note in sample.notes))

    def series(self, name: str) -> list[float]:
        """Return a series as the mean over the seeds."""
        rows = [sample.series[name] for sample in self.samples]
        return [sum(slot) / len(rows) for slot in zip(*rows, strict=True)]

    def broken(self) -> list[str]:
        """Return the assertions of this case that do not hold."""
        if not self.samples:
            return [f"{self.case.name or 'the scenario'} was not run"] if self.case.asserted else []
        case = f"{self.case.name}: " if self.case.name else ""
        return [f"{case}{found}" for found in self.assertion_results() if not found.holds]

    def assertion_results(self) -> list[AssertionResult]:
        """Return the results of this case's assertions; none if it was not run."""
        measures, found = self.measures, []
        for key, bound in self.case.asserted.items() if self.samples else ():
            name = "recovery" if key == WITHIN else key.partition("_")[2]
            seen = measures.get(name) or estimate([])
            worst = math.inf if seen.never else seen.mean
            holds = worst >= bound if key.startswith("min_") else worst <= bound
            found.append(AssertionResult(key, bound, name, seen, holds))
        return found

    def as_json(self) -> dict[str, Any]:
        """Return it for `Study.as_json`."""
        return {
            "variant": self.case.variant,
            "settings": dict(self.case.settings),
            "engine": self.samples[0].engine if self.samples else self.case.engine,
            "seeds": len(self.samples),
            "measures": {name: seen.as_json() for name, seen in self.measures.items()},
            "reasons": _mean_reasons(self.samples),
            "notes": list(self.notes),
        }


class Study(Frozen):
    """The results of a scenario.

    >>> from abate.sim.scenario import load_scenario
    >>> study = run_study(load_scenario("herd").changed("clients.count=50"), seeds=2)
    >>> study.complete, len(study.results[0].samples)
    (True, 2)
    """

    scenario: Scenario
    results: tuple[Result, ...]
    complete: bool = True
    """Whether all runs were made."""
    oracles: tuple[Result, ...] = ()
    """What a scheduler that knows the future reaches, in the worlds for which there is one (`abate.sim.oracle`)."""

    def broken(self) -> list[str]:
        """Return every assertion that does not hold."""
        return [line for result in self.results for line in result.broken()]

    def as_json(self) -> dict[str, Any]:
        """Return the study without infinities and NaN; `never` counts infinite values."""
        return {
            "scenario": self.scenario.name,
            "about": self.scenario.about,
            "complete": self.complete,
            "broken": self.broken(),
            "cases": [
                {
                    **result.as_json(),
                    "assertions": [found.as_json() for found in result.assertion_results()],
                    "vulnerable_range": None
                    if (found := vulnerable_range(result.case.world)) is None
                    else found.as_json(),
                }
                for result in self.results
            ],
            "oracles": [result.as_json() for result in self.oracles],
        }


def run_study(
    scenario: Scenario,
    seeds: int | None = None,
    engine: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    raster: bool = False,
    regret: bool = True,
) -> Study:
    """Run every case of a scenario with the seeds from 0 on; `raster` keeps the attempts of each case's first run.

    `regret`: run the oracle of each world too, and compare the cases with it.

    By default `seeds` and `engine` are those of the scenario, and `jobs` is one process per core.

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
        with locate_code_errors(scenario.place):
            case.world.check_engine(engine or case.engine)
    tasks = [
        (place, seed, engine or case.engine, raster and seed == 0)
        for place, case in enumerate(cases)
        for seed in range(seeds or case.seeds)
    ]
    runs = len(tasks)
    places = oracle_places(cases, engine) if regret else []
    names = oracle_names(cases, places)
    most = seeds or max(case.seeds for case in cases)
    tasks += [(place, seed, ORACLE, False) for place in names for seed in range(most)]
    # by seed, so that an interrupted study has runs of every case
    tasks.sort(key=lambda task: task[1])
    found: list[list[Sample]] = [[] for _ in cases]
    oracles: dict[int, dict[int, Sample]] = {place: {} for place in names}
    complete = True
    try:
        with (
            locate_code_errors(scenario.place),
            closing(_samples(scenario, cases, tasks, jobs or os.cpu_count() or 1)) as samples,
        ):
            for place, sample in samples:
                if sample.engine == ORACLE:
                    oracles[place][sample.seed] = sample
                else:
                    found[place].append(sample)
                if progress is not None:
                    progress(sum(map(len, found)), runs)
    except KeyboardInterrupt:
        complete = False
    for at, which in enumerate(places):
        found[at] = [_compared(sample, which, oracles) for sample in found[at]]
    return Study(
        scenario,
        tuple(_result(case, samples) for case, samples in zip(cases, found, strict=True)),
        complete,
        tuple(_result(_oracle_case(cases[at], name), oracles[at].values()) for at, name in names.items()),
    )


def _result(case: Case, samples: Iterable[Sample]) -> Result:
    return Result(case, tuple(sorted(samples, key=lambda sample: sample.seed)))


def _oracle_case(case: Case, name: str) -> Case:
    return Case(name, case.settings, case.world, "exact", case.seeds, {})


def _compared(sample: Sample, place: int | str, oracles: Mapping[int, Mapping[int, Sample]]) -> Sample:
    """Return a sample with its regrets, or with a note that tells why it has none."""
    notes, ideal = sample.notes, None
    if isinstance(place, str):
        notes = (*notes, f"no regret: {place}")
    else:
        ideal = oracles[place].get(sample.seed)
    measures = {**sample.measures, **regrets(sample.measures, None if ideal is None else ideal.measures)}
    return Sample(sample.seed, sample.engine, measures, sample.series, sample.reasons, sample.points, notes)


Task = tuple[int, int, str, bool]


def _samples(
    scenario: Scenario, cases: Sequence[Case], tasks: list[Task], jobs: int
) -> Generator[tuple[int, Sample], None, None]:
    """Yield each sample with the number of its case, as they are computed."""
    began = time.monotonic()
    for number, task in enumerate(tasks):
        spent = time.monotonic() - began
        if jobs > 1 and number and spent / number * (len(tasks) - number) > SHORT:
            yield from run_in_workers(_build, scenario, tasks[number:], jobs)
            return
        yield task[0], _run(cases, task)


def _build(scenario: Scenario) -> Callable[[Task], tuple[int, Sample]]:
    """Build the worlds once, in a worker process."""
    cases = scenario.cases()
    return lambda task: (task[0], _run(cases, task))


def _run(cases: Sequence[Case], task: Task) -> Sample:
    place, seed, engine, raster = task
    world = cases[place].world
    return _sample(oracle.run(world, seed) if engine == ORACLE else world.run(seed, engine, raster))  # type: ignore[arg-type]


def _sample(run: Run) -> Sample:
    return Sample(run.seed, run.engine, run.measures(), run.series, run.reasons, run.points, run.notes)


def _mean_reasons(samples: Sequence[Sample]) -> dict[str, float]:
    names = sorted({name for sample in samples for name in sample.reasons})
    return {name: sum(sample.reasons.get(name, 0) for sample in samples) / len(samples) for name in names}
