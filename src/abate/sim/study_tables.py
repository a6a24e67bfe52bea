"""What a table of a study shows, in the terminal and in reports: which measures, their headings, the lines below."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from abate.sim.measures import MEASURES, PER_SERVICE, REGRETS
from abate.sim.model import Clients, Row
from abate.sim.study import Estimate, Result, format_number
from abate.sim.vulnerable_range import VulnerableRange, vulnerable_range
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
    "regret_recovery": "s",
    "regret_p99": "s",
}
"""The other measures are counts, shares and ratios."""


def heading(measure: str) -> str:
    """Return a measure with its unit.

    >>> heading("recovery"), heading("amplification")
    ('recovery (s)', 'amplification')
    """
    unit = UNITS.get(measure)
    return measure if unit is None else f"{measure} ({unit})"


# -- which measures


def known_measures(worlds: Sequence[World]) -> set[str]:
    """Return every measure that runs of these worlds have."""
    services = {service.name for world in worlds for service in world.services}
    return {*MEASURES, *REGRETS, *(f"{kind}.{name}" for kind in PER_SERVICE for name in services)}


def default_measures(results: Sequence[Result]) -> list[str]:
    """Return the measures to show unless others are chosen: those that apply to the worlds and are not empty."""
    worlds = [result.case.world for result in results]
    found = [name for name, applies in DEFAULT_MEASURES.items() if any(map(applies, worlds))]
    bottom = dict.fromkeys(name for world in worlds for name in _bottom_services(world))
    found += [f"requests.{name}" for name in bottom]
    seen = [result.measures for result in results]
    return [name for name in found if any(_has_content(name, measures[name]) for measures in seen if name in measures)]


def _bottom_services(world: World) -> list[str]:
    """Return the services that no client calls and that call no service."""
    return [service.name for service in world.services if not service.calls and service.name != world.entry]


def _any(_: World) -> bool:
    return True


def _is_once(world: World) -> bool:
    return isinstance(world.clients, Clients) and world.clients.arrivals == "once"


def _is_periodic(world: World) -> bool:
    return isinstance(world.clients, Clients) and world.clients.arrivals == "periodic"


def _has_triggers(world: World) -> bool:
    return bool(world.triggers)


def _can_recover(world: World) -> bool:
    return bool(world.triggers) and world.clients.offered > 0


def _has_no_row(world: World) -> bool:
    return not any(isinstance(service, Row) for service in world.services)


DEFAULT_MEASURES: dict[str, Callable[[World], bool]] = {
    "attempts": _is_once,
    "amplification": _has_no_row,
    "success": _has_no_row,
    "regret": _any,
    "recovery": _can_recover,
    "peak_after": _has_triggers,
    "peak_to_mean_1s": _is_periodic,
    "completed": _is_once,
    "p50": lambda world: not _is_once(world) and not _has_triggers(world),
    "p99": _has_no_row,
    "wasted": _any,
    "denials": _any,
}
"""With the worlds to which they apply."""
HIDDEN_IF_ZERO = ("wasted", "denials")


def _has_content(name: str, seen: Estimate) -> bool:
    return bool(seen.never) or (not math.isnan(seen.mean) and (seen.mean != 0 or name not in HIDDEN_IF_ZERO))


# -- the lines below a table


def vulnerable_lines(results: Sequence[Result]) -> list[str]:
    """Return the vulnerable ranges, each sentence once; a sentence that is not of all cases names the variants."""
    groups: dict[tuple[str, str], list[tuple[Result, VulnerableRange]]] = {}
    for result in results:
        if (found := vulnerable_range(result.case.world)) is not None:
            groups.setdefault((found.sentence, format_number(found.capacity)), []).append((result, found))
    lines = []
    for (sentence, capacity), members in groups.items():
        least, most = (format_number(pick(found.offered for _, found in members)) for pick in (min, max))
        offered = least if least == most else f"{least} to {most}"
        whose = _variants([result for result, _ in members], results)
        lines.append(f"{whose}{sentence} (capacity {capacity}, offered {offered})")
    return lines


def note_lines(results: Sequence[Result]) -> list[str]:
    """Return the notes of the runs, each once; a note that is not of all cases names the variants."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        for note in result.notes:
            groups.setdefault(note, []).append(result)
    return [f"{_variants(members, results)}{note}" for note, members in groups.items()]


def _variants(members: Sequence[Result], results: Sequence[Result]) -> str:
    if len(members) == len(results):
        return ""
    return f"{', '.join(dict.fromkeys(result.case.variant or result.case.name for result in members))}: "
