"""What ``abate sim`` prints: figures with their intervals in columns, and which figures a scenario is read by.

* A case is a row, and a measure is a column; a scenario with one case has its measures in rows.
* Unless told otherwise, a table has the measures that say something: recovery where something goes wrong, denials
  where there were any.
* Two scenarios are subtracted seed by seed: the same arrivals met both, so what they share cancels out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from abate.cli.terminal import plain
from abate.sim.clients import Clients
from abate.sim.measures import MEASURES, PER_SERVICE
from abate.sim.scenario import Case, Scenario
from abate.sim.services import Row
from abate.sim.study import Estimate, Result, Study, estimate, figure
from abate.sim.world import World

UNITS = {
    "goodput": "/s",
    "recovery": "s",
    "completed": "s",
    "peak_100ms": "/100 ms",
    "peak_1s": "/s",
    "peak_after": "/100 ms",
    "mean": "s",
    "p50": "s",
    "p99": "s",
    "p999": "s",
}
"""Of those that have one; the others are counts, shares and ratios."""
INTERVAL = " ± "
MEAN = re.compile(f"{INTERVAL}|, ")
"""Where the mean of a figure ends: what follows is its interval, or how often it never was."""
MINUS = "−"  # noqa: RUF001  (a hyphen would read as part of the names)


def columns(labels: Sequence[str], figures: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of labels and then figures, each under its heading; figures stand with their ± below each other.

    >>> print(columns(["variant"], ["p50 (s)"], [["none", "12.5 ± 0.1"], ["full", "7 ± 0.05"], ["all", "never"]]))
    variant  p50 (s)
    none      12.5 ± 0.1
    full         7 ± 0.05
    all      never
    """
    heads = [*map(plain, labels), *map(plain, figures)]
    printed = [[plain(cell) for cell in row] for row in rows]
    for column in range(len(labels), len(heads)):
        means = [MEAN.split(row[column], maxsplit=1)[0] for row in printed]
        width = max(map(len, means), default=0)
        for row, mean in zip(printed, means, strict=True):
            row[column] = mean.rjust(width) + row[column].removeprefix(mean)
    widths = [max(len(row[column]) for row in (heads, *printed)) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *printed)
    )


def heading(measure: str) -> str:
    """A measure with its unit.

    >>> heading("recovery"), heading("amplification")
    ('recovery (s)', 'amplification')
    """
    unit = UNITS.get(measure)
    return measure if unit is None else f"{measure} ({unit})"


# -- which measures


def check_measures(names: Sequence[str], scenarios: Sequence[Scenario]) -> None:
    """Refuse measures that not all of the scenarios have."""
    for scenario in scenarios:
        known = known_measures([case.world for case in scenario.cases()])
        for name in names:
            if name not in known:
                raise ValueError(f"--measures: {scenario.place} has no {name!r}; it has {', '.join(sorted(known))}")


def known_measures(worlds: Sequence[World]) -> set[str]:
    """Every measure that runs of these worlds have."""
    services = {service.name for world in worlds for service in world.services}
    return {*MEASURES, *(f"{kind}.{name}" for kind in PER_SERVICE for name in services)}


def telling(results: Sequence[Result]) -> list[str]:
    """The measures by which these cases are told apart: those that make sense in their worlds, and say something."""
    seen = [result.measures for result in results]
    found = of_interest([result.case.world for result in results])
    return [name for name in found if any(_says_something(name, figures[name]) for figures in seen if name in figures)]


def of_interest(worlds: Sequence[World]) -> list[str]:
    """The measures that make sense in these worlds."""
    found = [name for name, wanted in TELLING.items() if any(map(wanted, worlds))]
    return found + [f"requests.{name}" for name in dict.fromkeys(name for world in worlds for name in deepest(world))]


def deepest(world: World) -> list[str]:
    """The services at the bottom of a stack, which no client calls and which call nobody."""
    return [service.name for service in world.services if not service.calls and service.name != world.entry]


def _any(_: World) -> bool:
    return True


def _is_once(world: World) -> bool:
    return isinstance(world.clients, Clients) and world.clients.arrivals == "once"


def _is_periodic(world: World) -> bool:
    return isinstance(world.clients, Clients) and world.clients.arrivals == "periodic"


def _is_troubled(world: World) -> bool:
    return bool(world.triggers)


def _can_recover(world: World) -> bool:
    """Does something go wrong, and something arrive after it?"""
    return bool(world.triggers) and world.clients.offered > 0


def _has_row(world: World) -> bool:
    return any(isinstance(service, Row) for service in world.services)


TELLING: dict[str, Callable[[World], bool]] = {
    "attempts": _is_once,
    "amplification": lambda world: not _has_row(world),
    "success": lambda world: not _has_row(world),
    "recovery": _can_recover,
    "peak_after": _is_troubled,
    "peak_to_mean_1s": _is_periodic,
    "completed": _is_once,
    "p50": lambda world: not _is_once(world) and not _is_troubled(world),
    "p99": lambda world: not _has_row(world),
    "wasted": _any,
    "denials": _any,
}
"""The measures of a table that nobody has chosen, and in which worlds they are of interest."""
IF_ANY = ("wasted", "denials")
"""Those that say nothing as long as they are 0."""


def _says_something(name: str, seen: Estimate) -> bool:
    return bool(seen.never) or (not math.isnan(seen.mean) and (seen.mean != 0 or name not in IF_ANY))


# -- one study


def study_table(study: Study, measures: Sequence[str]) -> str:
    """The cases of a study with their figures."""
    labels, named = labelled([result.case for result in study.results])
    cells = [[_cell(result, name) for name in measures] for result in study.results]
    if len(cells) == 1 and not labels:
        rows = [[heading(name), cell] for name, cell in zip(measures, cells[0], strict=True)]
        return columns(["measure"], ["mean"], rows)
    heads = [heading(name) for name in measures]
    return columns(labels, heads, [[*label, *row] for label, row in zip(named, cells, strict=True)])


def labelled(cases: Sequence[Case]) -> tuple[list[str], list[list[str]]]:
    """What tells the cases of a scenario apart: the headings, and a row of labels for each case."""
    paths = list(dict.fromkeys(path for case in cases for path in case.settings))
    short = [path.rpartition(".")[2] for path in paths]
    heads = short if len(set(short)) == len(short) else paths
    variants = any(case.variant for case in cases)
    rows = [
        [*([case.variant or "-"] if variants else []), *(str(case.settings.get(path, "-")) for path in paths)]
        for case in cases
    ]
    return (["variant"] if variants else []) + heads, rows


def _cell(result: Result, name: str) -> str:
    return str(result.measures[name]) if result.samples and name in result.measures else "-"


# -- several studies side by side


def comparison_table(studies: Sequence[Study], measures: Sequence[str]) -> str:
    """The cases of several studies, those of the same name together, each pair with its difference."""
    names = study_names(studies)
    first, rows = studies[0], []
    for result in first.results:
        rows.append([names[0], result.case.name or "-", *(_cell(result, name) for name in measures)])
        for study, name in zip(studies[1:], names[1:], strict=True):
            other = counterpart(study, result, first)
            if other is None:
                continue
            rows.append([name, other.case.name or "-", *(_cell(other, measure) for measure in measures)])
            apart = [str(difference(result, other, measure)) for measure in measures]
            rows.append([f"  {name} {MINUS} {names[0]}", "", *apart])
    for study, name in zip(studies[1:], names[1:], strict=True):
        met = [counterpart(study, result, first) for result in first.results]
        rows += [
            [name, result.case.name or "-", *(_cell(result, measure) for measure in measures)]
            for result in study.results
            if not any(result is other for other in met)
        ]
    return columns(["scenario", "case"], [heading(name) for name in measures], rows)


def study_names(studies: Sequence[Study]) -> list[str]:
    """What to call studies side by side: by their names, or by their files where names are the same."""
    names = [study.scenario.name for study in studies]
    return names if len(set(names)) == len(names) else [study.scenario.place for study in studies]


def counterpart(study: Study, result: Result, of: Study) -> Result | None:
    """The case of another study that a case is compared with: the one of its name, or the only one there is."""
    if len(study.results) == len(of.results) == 1:
        return study.results[0]
    return next((other for other in study.results if other.case.name == result.case.name), None)


class Difference(Estimate):
    """How much larger a figure is in the second of two cases, seed by seed; `never` counts the pairs without one.

    >>> print(Difference(0.5, 0.1, seeds=10)); print(Difference(2.0, 0.5, seeds=10, never=4))
    +0.5 ± 0.1
    +2 ± 0.5, in 6 of 10
    """

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "-"
        sign = MINUS if self.mean < 0 else "+" if self.mean > 0 else ""
        within = f"{INTERVAL}{figure(float(f'{self.within:.2g}'))}" if self.within else ""
        pairs = f", in {self.seeds - self.never} of {self.seeds}" if self.never else ""
        return f"{sign}{figure(abs(self.mean))}{within}{pairs}"


def difference(one: Result, other: Result, measure: str) -> Difference:
    """The second less the first, over the seeds that both have and in which both are finite."""
    mine = {sample.seed: sample.measures.get(measure, math.nan) for sample in one.samples}
    pairs = [
        (mine[sample.seed], sample.measures.get(measure, math.nan)) for sample in other.samples if sample.seed in mine
    ]
    finite = [theirs - ours for ours, theirs in pairs if math.isfinite(ours) and math.isfinite(theirs)]
    seen = estimate(finite)
    return Difference(seen.mean, seen.within, len(pairs), len(pairs) - len(finite))


def comparison_json(studies: Sequence[Study]) -> dict[str, Any]:
    """Several studies and their differences, for machines."""
    names, first = study_names(studies), studies[0]
    differences = []
    for study, name in zip(studies[1:], names[1:], strict=True):
        for result in first.results:
            other = counterpart(study, result, first)
            if other is None or not result.samples or not other.samples:
                continue
            shared = [measure for measure in result.measures if measure in other.measures]
            figures = {measure: difference(result, other, measure) for measure in shared}
            differences.append(
                {
                    "of": name,
                    "from": names[0],
                    "case": result.case.name,
                    "measures": {
                        measure: {"mean": seen.mean, "within": seen.within, "pairs": seen.seeds - seen.never}
                        for measure, seen in figures.items()
                        if math.isfinite(seen.mean)
                    },
                }
            )
    return {"studies": [study.as_json() for study in studies], "differences": differences}
