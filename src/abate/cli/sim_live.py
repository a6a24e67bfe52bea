"""``abate sim SCENARIO --live``: every case once on real sockets, beside the same small world simulated."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from abate.cli.sim import BROKEN_OFF
from abate.cli.sim_output import Progress
from abate.cli.sim_tables import of_interest
from abate.cli.terminal import plain, say
from abate.sim.live import TOLERANCE, Beside, Figure, compare_live, table
from abate.sim.scenario import Scenario

ALWAYS = ("calls", "attempts")
"""Measures that a table has beside those of interest: they tell how large the live run was."""


def run_beside(scenario: Scenario, options: argparse.Namespace) -> int:
    """Run it live, print both sides and their differences; the exit code."""
    chosen = scenario if options.engine is None else scenario.changed(f"run.engine={options.engine}")
    with Progress(f"{scenario.name}, live", "seconds") as told:
        found = compare_live(chosen, options.seeds, progress=told)
    if options.json:
        print(json.dumps([as_json(beside) for beside in found], indent=2))
    else:
        print("\n\n".join(text(scenario, beside, options.measures) for beside in found))
    if not all(beside.complete for beside in found):
        say(f"not complete: broken off in case {len(found)} of {len(scenario.cases())}")
        return BROKEN_OFF
    return 0


def text(scenario: Scenario, beside: Beside, measures: list[str] | None) -> str:
    """One case for people: the table, and below it what a reader should know."""
    name = f"{scenario.name}, {beside.case.name}" if beside.case.name else scenario.name
    lines = [f"{plain(name)}: once on real sockets, simulated mean ± 95 % interval"]
    if beside.figures:
        names = measures or list(dict.fromkeys([*ALWAYS, *of_interest([beside.world])]))
        shown = [found for found in beside.figures if found.name in names]
        strange = sum(not found.explained for found in shown)
        told = (
            "no difference is" if not strange else "one difference is" if strange == 1 else f"{strange} differences are"
        )
        lines += ["", table(beside, names), "", f"{told} more than chance and {TOLERANCE:.0%} for the sockets explain"]
    return "\n".join([*lines, *(plain(f"note: {note}") for note in notes(beside))])


def notes(beside: Beside) -> list[str]:
    """What a reader should know of a case."""
    asserted = len(beside.case.asserted)
    if not asserted:
        return list(beside.notes)
    which = "the assertion of this case is" if asserted == 1 else f"the {asserted} assertions of this case are"
    return [*beside.notes, f"{which} not checked: this is one run, of a world that may be smaller"]


def as_json(beside: Beside) -> dict[str, Any]:
    """One case for machines, without infinities and NaN."""
    return {
        "case": beside.case.name,
        "complete": beside.complete,
        "notes": notes(beside),
        "figures": {found.name: _figure(found) for found in beside.figures},
    }


def _figure(found: Figure) -> dict[str, Any]:
    simulated = found.simulated
    return {
        "live": _finite(found.live),
        "simulated": {
            "mean": _finite(simulated.mean),
            "within": _finite(simulated.within),
            "never": simulated.never,
        },
        "difference": _finite(found.difference),
        "percent": _finite(found.percent),
        "explained": found.explained,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
