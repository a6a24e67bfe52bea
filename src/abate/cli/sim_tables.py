"""The tables that ``abate sim`` prints.

* A case is a row, and a measure is a column; a scenario with one case has its measures in rows.
* Two scenarios are subtracted seed by seed: both had the same arrivals, so that what they share cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from abate.cli.terminal import INTERVAL, escape, table
from abate.sim.scenario import Case
from abate.sim.study import Estimate, Result, Study, estimate, format_number
from abate.sim.study_tables import default_measures, heading, note_lines, vulnerable_lines

MINUS = "−"  # noqa: RUF001  (a hyphen would read as part of the names)


def print_studies(studies: Sequence[Study], measures: Sequence[str] | None) -> None:
    """Print the table, and below it vulnerable ranges, notes and assertions."""
    results = [result for study in studies for result in study.results]
    if not any(result.samples for result in results):
        return
    shown = list(measures or default_measures(results))
    for study in studies:
        print(_caption(study))
    print()
    print(study_table(studies[0], shown) if len(studies) == 1 else comparison_table(studies, shown))
    below = []
    for study in studies:
        name = "" if len(studies) == 1 else f"{study.scenario.name}: "
        below += [f"{name}{line}" for line in vulnerable_lines(study.results)]
    below += [f"note: {line}" for line in note_lines(results)]
    if all(study.complete for study in studies):
        below += _assertions([found.holds for result in results for found in result.assertion_results()])
    if below:
        print()
        print("\n".join(map(escape, below)))


def _assertions(holds: Sequence[bool]) -> list[str]:
    if not holds:
        return []
    if len(holds) == 1:
        return ["1 assertion holds" if holds[0] else "1 assertion does not hold"]
    count = sum(holds)
    return [f"all {count} assertions hold" if count == len(holds) else f"{count} of {len(holds)} assertions hold"]


def _caption(study: Study) -> str:
    counts = sorted({len(result.samples) for result in study.results})
    seeds = _counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {_counted(counts[-1], 'seed')}"
    engines = sorted({sample.engine for result in study.results for sample in result.samples}) or ["no"]
    cases = _counted(len(study.results), "case")
    return escape(f"{study.scenario.name}: {cases}, {seeds}, {' and '.join(engines)} engine; mean ± 95 % interval")


def _counted(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


# -- one study


def study_table(study: Study, measures: Sequence[str]) -> str:
    """Return the table of a study."""
    shown = [*study.results, *study.oracles]
    cells = [[_cell(result, name) for name in measures] for result in shown]
    if len(study.results) == 1 and not labelled([study.results[0].case])[0]:
        rows = [[heading(name), *found] for name, *found in zip(measures, *cells, strict=True)]
        return table(["measure", "mean", *(result.case.variant for result in study.oracles)], rows, figures_from=1)
    labels, named = labelled([result.case for result in shown])
    rows = [[*label, *row] for label, row in zip(named, cells, strict=True)]
    return table([*labels, *map(heading, measures)], rows, figures_from=len(labels))


def labelled(cases: Sequence[Case]) -> tuple[list[str], list[list[str]]]:
    """Return the headings of the case labels, and a row of labels for each case."""
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
    """Return the table of several studies, with cases of the same name together, and their differences."""
    names = study_names(studies)
    first, rows = studies[0], []
    for result in first.results:
        rows.append([names[0], result.case.name or "-", *(_cell(result, name) for name in measures)])
        for study, name in zip(studies[1:], names[1:], strict=True):
            other = counterpart(study, result, first)
            if other is None:
                continue
            rows.append([name, other.case.name or "-", *(_cell(other, measure) for measure in measures)])
            differences = [str(difference(result, other, measure)) for measure in measures]
            rows.append([f"  {name} {MINUS} {names[0]}", "", *differences])
    for study, name in zip(studies[1:], names[1:], strict=True):
        met = [counterpart(study, result, first) for result in first.results]
        rows += [
            [name, result.case.name or "-", *(_cell(result, measure) for measure in measures)]
            for result in study.results
            if not any(result is other for other in met)
        ]
    return table(["scenario", "case", *map(heading, measures)], rows, figures_from=2)


def study_names(studies: Sequence[Study]) -> list[str]:
    """Return the names of the studies, or their files if two names are the same."""
    names = [study.scenario.name for study in studies]
    return names if len(set(names)) == len(names) else [study.scenario.place for study in studies]


def counterpart(study: Study, result: Result, of: Study) -> Result | None:
    """Return the case of another study to compare with: the one of the same name, or the only one."""
    if len(study.results) == len(of.results) == 1:
        return study.results[0]
    return next((other for other in study.results if other.case.name == result.case.name), None)


class Difference(Estimate):
    """The difference of a measure between two cases, paired by seed; `never` counts pairs without one.

    >>> print(Difference(0.5, 0.1, seeds=10)); print(Difference(2.0, 0.5, seeds=10, never=4))
    +0.5 ± 0.1
    +2 ± 0.5, in 6 of 10
    """

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "-"
        sign = MINUS if self.mean < 0 else "+" if self.mean > 0 else ""
        within = f"{INTERVAL}{format_number(float(f'{self.within:.2g}'))}" if self.within else ""
        pairs = f", in {self.seeds - self.never} of {self.seeds}" if self.never else ""
        return f"{sign}{format_number(abs(self.mean))}{within}{pairs}"


def difference(one: Result, other: Result, measure: str) -> Difference:
    """Return the second minus the first, over the common seeds in which both are finite."""
    mine = {sample.seed: sample.measures.get(measure, math.nan) for sample in one.samples}
    pairs = [
        (mine[sample.seed], sample.measures.get(measure, math.nan)) for sample in other.samples if sample.seed in mine
    ]
    finite = [theirs - ours for ours, theirs in pairs if math.isfinite(ours) and math.isfinite(theirs)]
    seen = estimate(finite)
    return Difference(seen.mean, seen.within, len(pairs), len(pairs) - len(finite))


def comparison_json(studies: Sequence[Study]) -> dict[str, Any]:
    """Return several studies and their differences as JSON."""
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
