"""The files that ``abate sim`` writes: a page, a picture.

They have a recovery map and the hysteresis as well, where a scenario has clients that keep calling and something goes
wrong in it. Both run the scenario many times over. They are left out, and that is said, if they would take longer than
`PATIENCE`, unless they were asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from abate.cli.sim_output import Progress
from abate.cli.terminal import say, seconds
from abate.sim.clients import Clients
from abate.sim.study import Study
from abate.sim.world import World

if TYPE_CHECKING:
    from abate.sim.report import Hysteresis, RecoveryMap

PATIENCE = 60.0
"""Seconds that maps may take that nobody has asked for."""


def write_files(study: Study, options: argparse.Namespace, spent: float) -> bool:
    """Write what was asked for; `spent` are the seconds that the study took. False if its maps were broken off."""
    if options.report is None and options.picture is None:
        return True
    if not any(result.samples for result in study.results):
        say("nothing is drawn: nothing was run")
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
    if not all(map(can_be_mapped, worlds)):
        if options.map:
            say("no recovery map: it needs clients that call again and again, and a trigger, in every case")
        return []
    if not options.map and (needed := spent * surveyed(study)) > PATIENCE:
        say(f"no recovery map: it would take some {seconds(needed)}; --map draws it all the same")
        return []
    drawn: list[RecoveryMap | Hysteresis] = []
    for name, survey in (("recovery map", recovery_map), ("hysteresis", hysteresis)):
        with Progress(f"{study.scenario.name}, {name}") as told:
            found = survey(study.scenario, engine=options.engine, jobs=options.jobs, progress=told)
        drawn.append(found)
        if not found.complete:
            say(f"not complete: the {name} was broken off")
            break
    return drawn


def can_be_mapped(world: World) -> bool:
    """Do clients keep calling, and does something go wrong?"""
    return isinstance(world.clients, Clients) and world.clients.offered > 0 and bool(world.triggers)


def surveyed(study: Study) -> float:
    """How many times as many calls as a study both maps make: at loads of their own, which may be far from its own.

    >>> from abate.sim import Scenario
    >>> from abate.sim.study import run_study
    >>> world = {"run": {"horizon": 30.0}, "clients": {"count": 1}, "services": {"api": {"service_time": 0.1}}}
    >>> round(surveyed(run_study(Scenario("small", "small.toml", world), seeds=1)))
    563
    """
    from abate.sim.report.surveys import HOLD, LENGTHS, LOADS, SEEDS, STEPS, usual_loads

    firsts: dict[str, World] = {}
    made = 0.0
    for result in study.results:
        world = result.case.world
        firsts.setdefault(result.case.variant, world)
        made += world.clients.offered * world.horizon * len(result.samples)
    # all variants are surveyed at the loads of the first
    first = study.results[0].case.world
    mapped, climbed = sum(usual_loads(first, LOADS)), sum(usual_loads(first, STEPS))
    wanted = sum(mapped * len(LENGTHS) * world.horizon + 2 * climbed * HOLD for world in firsts.values())
    return SEEDS * wanted / made
