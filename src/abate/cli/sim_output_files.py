"""The files that ``abate sim`` writes: a report, a picture.

If a scenario has clients that keep calling, and triggers, the files have a recovery map and a hysteresis too. These run
the scenario many times; without ``--map`` they are left out, with a message, if they would take longer than `PATIENCE`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from abate.cli.terminal import Progress, format_seconds, say
from abate.sim.model import Clients
from abate.sim.study import Study
from abate.sim.world import World

if TYPE_CHECKING:
    from abate.sim.report import Hysteresis, RecoveryMap

PATIENCE = 60.0
"""Seconds that maps may take without ``--map``."""


def write_files(study: Study, options: argparse.Namespace, spent: float) -> bool:
    """Write the files; `spent` are the seconds that the study took. Return False if the maps were interrupted."""
    if not any(result.samples for result in study.results):
        say("nothing was run: there is nothing to draw")
        return True
    from abate.sim.report import write_picture, write_report

    maps = _maps(study, options, spent) if study.complete else []
    if options.report is not None:
        write_report(study, options.report, surveys=maps)
        say(f"wrote {options.report}")
    if options.picture is not None:
        write_picture(study, options.picture, surveys=maps)
        say(f"wrote {options.picture}")
    return all(found.complete for found in maps)


def _maps(study: Study, options: argparse.Namespace, spent: float) -> Sequence[RecoveryMap | Hysteresis]:
    from abate.sim.report import hysteresis, recovery_map

    worlds = [result.case.world for result in study.results]
    if not all(map(supports_surveys, worlds)):
        if options.map:
            say("no recovery map: it needs clients that call again and again, and a trigger, in every case")
        return []
    if not options.map and (needed := spent * survey_cost_ratio(study)) > PATIENCE:
        say(f"no recovery map: it would take about {format_seconds(needed)}; use --map to draw it")
        return []
    drawn: list[RecoveryMap | Hysteresis] = []
    for name, survey in (("recovery map", recovery_map), ("hysteresis", hysteresis)):
        with Progress(f"{study.scenario.name}, {name}") as told:
            found = survey(study.scenario, engine=options.engine, jobs=options.jobs, progress=told)
        drawn.append(found)
        if not found.complete:
            say(f"not complete: the {name} was interrupted")
            break
    return drawn


def supports_surveys(world: World) -> bool:
    """Return whether clients keep calling, and there are triggers."""
    return isinstance(world.clients, Clients) and world.clients.offered > 0 and bool(world.triggers)


def survey_cost_ratio(study: Study) -> float:
    """Return the ratio of the calls made by both maps, at loads of their own, to the calls made by the study.

    >>> from abate.sim import Scenario
    >>> from abate.sim.study import run_study
    >>> world = {"run": {"horizon": 30.0}, "clients": {"count": 1}, "services": {"api": {"service_time": 0.1}}}
    >>> round(survey_cost_ratio(run_study(Scenario("small", "small.toml", world), seeds=1)))
    563
    """
    from abate.sim.surveys import HOLD, LENGTHS, LOADS, SEEDS, STEPS, default_loads

    firsts: dict[str, World] = {}
    made = 0.0
    for result in study.results:
        world = result.case.world
        firsts.setdefault(result.case.variant, world)
        made += world.clients.offered * world.horizon * len(result.samples)
    # all variants have the loads of the first
    first = study.results[0].case.world
    map_load, hysteresis_load = sum(default_loads(first, LOADS)), sum(default_loads(first, STEPS))
    calls = sum(map_load * len(LENGTHS) * world.horizon + 2 * hysteresis_load * HOLD for world in firsts.values())
    return SEEDS * calls / made
