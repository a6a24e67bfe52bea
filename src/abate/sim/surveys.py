"""Surveys run a scenario at many loads, to find where it recovers.

* **The recovery map**: the time to recover, over the load and the length of the trigger.
* **The hysteresis**: goodput while the load rises step by step, and while it falls again. Where the two differ, a
  service that has failed stays down under a load that it could serve.

Both run all variants of the scenario. They need clients that call again and again.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abate.errors import number, whole
from abate.frozen import Frozen
from abate.sim.measures import PER_SECOND, STEADY, slot
from abate.sim.model import Clients, Service
from abate.sim.scenario import Case, Scenario
from abate.sim.study import Estimate, Progress, Result, Study, estimate, run_study
from abate.sim.world import World

LOADS = (0.3, 0.45, 0.6, 0.75, 0.85, 0.95)
"""Default loads of a map: shares of the capacity or the rate limit; without either, of the offered load."""
LENGTHS = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Default lengths of a map: multiples of the trigger's own length, as far as they fit."""
STEPS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
"""Default loads of a hysteresis: shares of the capacity."""
HOLD = 20.0
"""Seconds of each step; the second half is measured."""
SEEDS = 2
MAX_LOADS = 50
"""The most loads or lengths of a survey."""

Cells = tuple[tuple[Estimate, ...], ...]


class RecoveryMap(Frozen):
    """The recovery of each variant: a row per length of the trigger, a column per load (calls per second).

    >>> found = RecoveryMap(loads=(10.0, 20.0), lengths=(5.0,), cells={"": ((estimate([1.5]), estimate([math.inf])),)})
    >>> print(*found.cells[""][0])
    1.5 never
    """

    loads: tuple[float, ...]
    lengths: tuple[float, ...]
    cells: Mapping[str, Cells]
    complete: bool = True


class Hysteresis(Frozen):
    """The goodput of each variant at each load (calls per second): while the load rises, and while it falls.

    >>> found = Hysteresis((10.0,), hold=20.0, up={"": (estimate([10.0]),)}, down={"": (estimate([0.0]),)})
    >>> found.up[""][0].mean, found.down[""][0].mean
    (10.0, 0.0)
    """

    loads: tuple[float, ...]
    hold: float
    up: Mapping[str, tuple[Estimate, ...]]
    down: Mapping[str, tuple[Estimate, ...]]
    complete: bool = True


def recovery_map(
    scenario: Scenario,
    loads: Sequence[float] | None = None,
    lengths: Sequence[float] | None = None,
    seeds: int = SEEDS,
    engine: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> RecoveryMap:
    """Run a scenario at each of the `loads` with its first trigger as long as each of the `lengths` (seconds).

    Of each swept setting, the first value is used.

    >>> from abate.sim import Scenario
    >>> world = {
    ...     "run": {"horizon": 30.0},
    ...     "clients": {"count": 10},
    ...     "services": {"api": {"service_time": 0.05}},
    ...     "triggers": [{"kind": "error", "at": 5.0, "for": 1.0}],
    ... }
    >>> found = recovery_map(Scenario("small", "small.toml", world), loads=[5.0], lengths=[1.0, 2.0])
    >>> [row[0].never for row in found.cells[""]]
    [0, 0]
    """
    settled = _settled(scenario)
    cases = settled.cases()
    clients = _callers(settled, cases)
    at = _loads("loads", loads, cases[0], LOADS)
    lasting = _lengths(settled, cases, lengths)
    whole("seeds", seeds, least=1)
    rows: list[dict[str, list[Result]]] = []
    complete, runs = True, len(at) * len(cases) * seeds
    for place, length in enumerate(lasting):
        document = copy.deepcopy(settled.document)
        for triggers in _triggers(document):
            triggers[0]["for"] = length
        document["sweep"] = {"clients.rate": [load / clients.count for load in at]}
        step = scenario.replaced(document=document)
        study = run_study(
            step, seeds, engine, jobs, _counted(progress, place * runs, len(lasting) * runs), regret=False
        )
        rows.append(_by_variant(study))
        if not study.complete:
            complete = False
            break
    cells = {
        case.variant: tuple(tuple(_of(result, "recovery") for result in row[case.variant]) for row in rows)
        for case in cases
    }
    return RecoveryMap(at, lasting[: len(rows)], cells, complete)


def hysteresis(
    scenario: Scenario,
    loads: Sequence[float] | None = None,
    hold: float = HOLD,
    seeds: int = SEEDS,
    engine: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Hysteresis:
    """Run a scenario without its triggers while the load rises through all `loads` and falls again, `hold` s each.

    >>> from abate.sim import Scenario
    >>> world = {"clients": {"count": 10}, "services": {"api": {"service_time": 0.05}}}
    >>> found = hysteresis(Scenario("small", "small.toml", world), loads=[4.0, 8.0], hold=10.0)
    >>> found.loads, len(found.up[""]), len(found.down[""])
    ((4.0, 8.0), 2, 2)
    """
    settled = _settled(scenario)
    cases = settled.cases()
    clients = _callers(settled, cases)
    steps = _loads("loads", loads, cases[0], STEPS)
    if len(steps) < 2:
        raise ValueError(f"loads must hold at least two different loads to go up and down, not {len(steps)}")
    number("hold", hold, least=1)
    whole("seeds", seeds, least=1)
    course = [*steps, *reversed(steps)]
    spikes = [
        {"kind": "spike", "at": place * hold, "for": hold, "factor": load / steps[0]}
        for place, load in enumerate(course)
    ]
    for setting in (
        f"run.horizon={len(course) * hold!r}",
        "run.warmup=0.0",
        f"clients.rate={steps[0] / clients.count!r}",
    ):
        settled = settled.changed(setting)
    document = settled.document
    for table in document.get("variants", {}).values():
        table.pop("triggers", None)
    document["triggers"] = spikes
    study = run_study(settled, seeds, engine, jobs, progress, regret=False)
    goodput = {result.case.variant: _goodput(result, len(course), hold) for result in study.results}
    return Hysteresis(
        steps,
        hold,
        {variant: seen[: len(steps)] for variant, seen in goodput.items()},
        {variant: seen[: len(steps) - 1 : -1] for variant, seen in goodput.items()},
        study.complete,
    )


def _goodput(result: Result, steps: int, hold: float) -> tuple[Estimate, ...]:
    """Return the successes per second in the second half of each step."""
    found = []
    for step in range(steps):
        first, last = slot((step + 0.5) * hold), slot((step + 1) * hold)
        seconds = (last - first) / PER_SECOND
        found.append(estimate([sum(sample.series["successes"][first:last]) / seconds for sample in result.samples]))
    return tuple(found)


# -- arguments


def _settled(scenario: Scenario) -> Scenario:
    """Return the scenario with the first value of each swept setting."""
    for path, value in scenario.cases()[0].settings.items():
        scenario = scenario.changed(f"{path}={json.dumps(value)}")
    return scenario


def _callers(scenario: Scenario, cases: Sequence[Case]) -> Clients:
    clients = cases[0].world.clients
    if not isinstance(clients, Clients) or not clients.offered:
        raise ValueError(f"{scenario.place}: a survey changes the load, so it needs clients that call again and again")
    for case in cases:
        if case.world.clients.count != clients.count:
            raise ValueError(
                f"{scenario.place}: a survey needs as many clients in each variant, and {case.name!r} differs"
            )
    return clients


def _loads(name: str, given: Sequence[float] | None, case: Case, shares: Sequence[float]) -> tuple[float, ...]:
    if given is not None:
        return _numbers(name, given)
    return default_loads(case.world, shares)


def default_loads(world: World, shares: Sequence[float]) -> tuple[float, ...]:
    """Return the default loads of a survey: shares of what the called service can serve.

    >>> from abate.sim import Limit
    >>> api = Service("api", workers=50, service_time=0.02, limit=Limit(100.0))
    >>> default_loads(World(Clients(count=60), [api]), (0.3, 0.95))
    (30.0, 95.0)
    """
    entry = world.service(world.entry)
    capacity = entry.capacity if isinstance(entry, Service) else math.inf
    if isinstance(entry, Service) and entry.limit is not None:
        capacity = min(capacity, entry.limit.rate)
    most = capacity if math.isfinite(capacity) else world.clients.offered
    return tuple(float(f"{share * most:.4g}") for share in shares)


def _lengths(scenario: Scenario, cases: Sequence[Case], given: Sequence[float] | None) -> tuple[float, ...]:
    firsts = [(case.world.triggers[0], case.world.horizon) for case in cases if case.world.triggers]
    if not firsts:
        raise ValueError(f"{scenario.place}: a recovery map needs a trigger, and there is none")
    longest = min(horizon - STEADY - trigger.at for trigger, horizon in firsts)
    if given is None:
        usual = firsts[0][0].for_
        found = tuple(float(f"{part * usual:.4g}") for part in LENGTHS if part * usual <= longest)
        return found or (usual,)
    lengths = _numbers("lengths", given)
    if lengths[-1] > longest:
        raise ValueError(
            f"lengths must be at most {longest:g}, not {lengths[-1]:g}: a trigger ends {STEADY:g} s before the horizon"
        )
    return lengths


def _numbers(name: str, given: Sequence[float]) -> tuple[float, ...]:
    found = tuple(sorted({number(f"each of {name}", value, above=0) for value in given}))
    if not 1 <= len(found) <= MAX_LOADS:
        raise ValueError(f"{name} must hold 1 to {MAX_LOADS} numbers, not {len(found)}")
    return found


def _triggers(document: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Yield every list of triggers: the base's, and those of variants."""
    for table in (document, *document.get("variants", {}).values()):
        if table.get("triggers"):
            yield table["triggers"]


def _by_variant(study: Study) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in study.results:
        found.setdefault(result.case.variant, []).append(result)
    return found


def _of(result: Result, measure: str) -> Estimate:
    return result.measures[measure] if result.samples else estimate([])


def _counted(progress: Progress | None, before: int, total: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(before + done, total)
