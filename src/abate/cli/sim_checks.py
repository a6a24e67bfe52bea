"""What ``abate sim`` checks before it runs anything: numbers, output files, engines, measures."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from abate.cli.terminal import check_writable
from abate.errors import AbateError, choice, whole
from abate.sim.scenario import Scenario
from abate.sim.scenario_parser import MAX_SEEDS
from abate.sim.study_tables import known_measures
from abate.sim.world import ENGINES

PICTURES = (".png", ".svg")


def check_numbers(options: argparse.Namespace) -> None:
    """Refuse counts below 1, and too many seeds."""
    for name in ("clients", "seeds", "jobs"):
        count = getattr(options, name)
        if count is not None:
            whole(f"--{name}", count, least=1)
    if options.seeds is not None and options.seeds > MAX_SEEDS:
        raise ValueError(f"--seeds must be at most {MAX_SEEDS:,}, not {options.seeds:,}")


def check_outputs(report: str | None, picture: str | None) -> None:
    """Refuse files that can't be written or drawn.

    >>> check_outputs(None, "out.jpg")
    Traceback (most recent call last):
    abate.errors.AbateError: --picture must end in .png or .svg, not 'out.jpg'
    """
    if picture is not None and Path(picture).suffix not in PICTURES:
        raise AbateError(f"--picture must end in {' or '.join(PICTURES)}, not {picture!r}")
    for option, name in (("--report", report), ("--picture", picture)):
        if name is None:
            continue
        check_writable(option, name)
        if importlib.util.find_spec("matplotlib") is None:
            raise AbateError(f"{option} needs matplotlib: pip install 'abate[sim]'")


def check_engines(scenarios: Sequence[Scenario], given: str | None) -> None:
    """Refuse an unknown engine, and the fleet engine without NumPy."""
    if given is not None:
        choice("--engine", given, tuple(ENGINES))
    engines = {given or case.engine for scenario in scenarios for case in scenario.cases()}
    if "fleet" in engines and importlib.util.find_spec("numpy") is None:
        raise AbateError("the fleet engine needs NumPy: pip install 'abate[sim]'")


def check_measures(names: Sequence[str], scenarios: Sequence[Scenario]) -> None:
    """Refuse measures that not all of the scenarios have."""
    for scenario in scenarios:
        known = known_measures([case.world for case in scenario.cases()])
        for name in names:
            if name not in known:
                raise ValueError(f"--measures: {scenario.place} has no {name!r}; it has {', '.join(sorted(known))}")
