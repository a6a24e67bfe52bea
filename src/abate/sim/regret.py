"""Regret: how much worse a policy is than the oracle of its world, which knows the future."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from abate.sim import oracle
from abate.sim.measures import REGRETS
from abate.sim.model import Clients
from abate.sim.scenario import Case
from abate.sim.world import World

FLEET = "the oracle takes one event at a time, and the fleet engine is for more clients than that allows"


def oracle_places(cases: Sequence[Case], engine: str | None = None) -> list[int | str]:
    """Return for each case the place of the first case with the same oracle, or why it has none.

    >>> from abate.sim.scenario import load_scenario
    >>> oracle_places(load_scenario("herd").cases())[:3]
    [0, 0, 0]
    """
    first: dict[str, int] = {}
    found: list[int | str] = []
    for place, case in enumerate(cases):
        if reason := FLEET if (engine or case.engine) == "fleet" else oracle.undefined(case.world):
            found.append(reason)
        else:
            found.append(first.setdefault(repr((case.settings, _what_the_oracle_sees(case.world))), place))
    return found


def _what_the_oracle_sees(world: World) -> tuple[object, ...]:
    clients = world.clients
    assert isinstance(clients, Clients)
    one_process = Clients(**{**vars(clients), "processes": 1})
    return one_process, world.services, world.triggers, world.horizon, world.warmup, oracle.time_limits(world)


def oracle_names(cases: Sequence[Case], places: Sequence[int | str]) -> dict[int, str]:
    """Return a name for each oracle, by its place: ``oracle``, or the variants that it belongs to if there are several.

    >>> from abate.sim.scenario import load_scenario
    >>> cases = load_scenario("herd").cases()
    >>> oracle_names(cases, [0, 0, 2, 2])
    {0: 'oracle of none, equal', 2: 'oracle of full, defaults'}
    """
    members: dict[int, list[Case]] = {}
    for case, place in zip(cases, places, strict=False):
        if isinstance(place, int):
            members.setdefault(place, []).append(case)
    settings = [repr(cases[place].settings) for place in members]
    several = len(set(settings)) < len(settings)
    return {
        place: f"oracle of {', '.join(case.variant for case in group)}" if several else "oracle"
        for place, group in members.items()
    }


def regrets(mine: Mapping[str, float], ideal: Mapping[str, float] | None) -> dict[str, float]:
    """Return the regrets of a run: its share of lost calls, its recovery and its p99, minus the oracle's; NaN without.

    >>> regrets({"success": 0.75, "recovery": 3.0, "p99": 9.0}, {"success": 1.0, "recovery": 0.0, "p99": 8.5})
    {'regret': 0.25, 'regret_recovery': 3.0, 'regret_p99': 0.5}
    """
    if ideal is None:
        return dict.fromkeys(REGRETS, math.nan)
    seconds = (mine[name] - ideal[name] for name in ("recovery", "p99"))
    return dict(zip(REGRETS, (ideal["success"] - mine["success"], *seconds), strict=True))
