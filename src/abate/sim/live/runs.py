"""Live: the same world on real sockets, its result beside the simulated one.

    clients (this process) ──HTTP over 127.0.0.1──► services (a process of their own) ──HTTP──► services …

Real are the sockets, the timers, the processes, and what the clients are made of: the production driver for tasks, with
its budgets and shelters on the machine's clock. A second takes a second, so the world is made small first (see
`abate.sim.live.scale`), and the world that is simulated beside it is the same small one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextvars import Context
from typing import Any

from abate.errors import AbateError, whole
from abate.sim.clients import Clients
from abate.sim.live.agenda import LiveAgenda
from abate.sim.live.clients import LiveSetting, people
from abate.sim.live.line import Line
from abate.sim.live.process import HostProcess
from abate.sim.live.scale import LONGEST, MOST, small
from abate.sim.measures import Recorder, Run
from abate.sim.parts import about_code
from abate.sim.scenario import Case, Scenario
from abate.sim.study import Estimate, Progress, estimate, figure
from abate.sim.world import Engine, World
from abate.values import Value

LOOK = 0.1
"""Seconds between two looks at whether all is well."""
LEAD = 0.2
"""Seconds before the beginning in which everybody gets ready."""
LATE = 0.05
"""Seconds by which the machine's timers may be late before a reader should know of it."""
TOLERANCE = 0.05
"""The share of a figure that sockets and timers may account for, beside chance."""
LAG = 0.02
"""Seconds that they may account for in a figure that is a time."""
TIMES = ("completed", "recovery", "mean", "p50", "p99", "p999")
COUNTS = ("calls", "attempts", "denials", "unfinished", "peak_100ms", "peak_1s", "peak_after", "requests")
SLIGHT = 0.01
"""What is slight in a share or a ratio, however exactly the simulated runs agree with each other."""


def run_live(
    what: Case | World | Scenario,
    seed: int = 0,
    *,
    most: float = MOST,
    longest: float = LONGEST,
    progress: Progress | None = None,
    raster: bool = False,
) -> Run:
    """Run a world for real, made small enough: at most `most` calls per second, `longest` seconds.

    `progress` is told how many seconds of how many are over. Ctrl-C ends the run with what was measured so far, and a
    note that says so. A scenario must have one case.

    >>> import abate.sim as sim
    >>> world = sim.World(sim.Clients(count=5, arrivals="once"), [sim.Service("api", service_time=0.01)])
    >>> run = run_live(world)
    >>> run.engine, run.calls, run.successes, run.loads["api"].requests
    ('live', 5, 5, 5)
    """
    fitted = small(_world(what), most, longest)
    return _run(fitted.world, whole("seed", seed, least=0), fitted.notes, progress, raster)[0]


class Figure(Value):
    """A measure, as it was live and as it was simulated: mean and interval over the seeds.

    `explained`: is the difference no more than what chance may do to a single run, and `TOLERANCE` for the sockets?

    >>> found = compared("amplification", 1.3, [1.0, 1.1, 1.2])
    >>> round(found.difference, 3), round(found.percent, 1), found.explained
    (0.2, 18.2, True)
    """

    name: str
    live: float
    simulated: Estimate
    difference: float
    percent: float
    explained: bool


class Beside(Value):
    """One case of a scenario, live and simulated; without figures where it was broken off."""

    case: Case
    world: World
    """What was run, which is smaller than what the scenario says."""
    run: Run
    figures: tuple[Figure, ...]
    complete: bool = True
    """Was nothing broken off?"""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know."""
        return self.run.notes


def compare_live(
    scenario: Scenario,
    seeds: int | None = None,
    *,
    seed: int = 0,
    most: float = MOST,
    longest: float = LONGEST,
    progress: Progress | None = None,
) -> list[Beside]:
    """Run every case of a scenario live, once, and simulate the same small world with every seed.

    `progress` is told how many seconds of how many are over. Ctrl-C ends it with what was measured so far;
    the last case is not complete then.

    >>> document = {"clients": {"count": 5, "arrivals": "once"}, "services": {"api": {"service_time": 0.05}}}
    >>> [beside] = compare_live(Scenario("few", "few.toml", document), seeds=2)
    >>> print(table(beside, ["attempts", "success"]))
    measure   live  simulated  difference
    attempts  5     5          +0 (+0.0 %)
    success   1     1          +0 (+0.0 %)
    """
    whole("seed", seed, least=0)
    if seeds is not None:
        whole("seeds", seeds, least=1)
    cases = scenario.cases()
    fitted = [small(case.world, most, longest) for case in cases]  # what can't be run is refused before anything is
    total = sum(math.ceil(each.world.horizon) for each in fitted)
    found: list[Beside] = []
    spent = 0
    for case, each in zip(cases, fitted, strict=True):
        told = None if progress is None else _Shifted(progress, spent, total)
        run, complete = _run(each.world, seed, each.notes, told, raster=False)
        figures: tuple[Figure, ...] = ()
        try:
            if complete:
                with about_code(scenario.place):
                    figures = _figures(run, _simulated(case, each.world, seeds or case.seeds))
        except KeyboardInterrupt:
            complete = False
        found.append(Beside(case, each.world, run, figures, complete))
        if not complete:
            break
        spent += math.ceil(each.world.horizon)
    return found


def compared(name: str, live: float, simulated: Sequence[float]) -> Figure:
    """A figure of one live run beside the same figure of simulated ones."""
    seen = estimate(simulated)
    if math.isinf(live) or math.isnan(live) or not math.isfinite(seen.mean):
        alike = (math.isnan(live) and math.isnan(seen.mean)) or (math.isinf(live) and seen.never > 0)
        difference = 0.0 if alike else live - seen.mean
        return Figure(name, live, seen, difference, math.nan, alike)
    difference = live - seen.mean
    # what a further run may differ from the mean by: the interval of the mean, and the spread of one run around it
    chance = seen.within * math.sqrt(len(simulated) - seen.never + 1)
    allowed = max(chance, _slight(name, live, seen.mean)) + TOLERANCE * abs(seen.mean) + (LAG if name in TIMES else 0.0)
    percent = 100.0 * difference / seen.mean if seen.mean else (0.0 if not difference else math.nan)
    return Figure(name, live, seen, difference, percent, abs(difference) <= allowed)


def _slight(name: str, live: float, mean: float) -> float:
    """A difference that is none, though all simulated runs were alike, or there was one alone."""
    if name in TIMES:
        return 0.0  # the lag is allowed for in any case
    # whatever happens by chance and is counted varies by the root of how often it happens
    return 2.0 * math.sqrt(max(live, mean)) if name.partition(".")[0] in COUNTS else SLIGHT


def table(beside: Beside, names: Sequence[str] | None = None) -> str:
    """The figures as a table for people; all of those that make sense in this world, unless some are named."""
    rows = [("measure", "live", "simulated", "difference", "")]
    for found in beside.figures:
        if (found.name in names) if names is not None else not math.isnan(found.live):
            rows.append(_row(found))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(found: Figure) -> tuple[str, str, str, str, str]:
    live = "never" if math.isinf(found.live) else "-" if math.isnan(found.live) else figure(found.live)
    known = math.isfinite(found.difference) and not math.isinf(found.live)
    share = f" ({found.percent:+.1f} %)" if known and math.isfinite(found.percent) else ""
    difference = f"{found.difference:+.3g}{share}" if known else "-"
    return found.name, live, str(found.simulated), difference, "" if found.explained else "more than chance"


# -- running it


def _run(world: World, seed: int, notes: Sequence[str], progress: Progress | None, raster: bool) -> tuple[Run, bool]:
    """The run, and whether it was not broken off."""
    if asyncio._get_running_loop() is not None:
        raise AbateError("a live run has an event loop of its own: in async code, use asyncio.to_thread")
    try:
        with HostProcess(world, seed) as host:
            # in a context of its own: the deadlines and clocks around whoever runs this are not the clients'
            setting, complete = Context().run(asyncio.run, _live(world, seed, host, progress, raster))
            loads, late = host.end()
    except KeyboardInterrupt:  # before it began, or a second time
        return Recorder(world).run("live", seed, {}, [*notes, "broken off before anything was measured"]), False
    late = max(late, setting.late)
    if late > LATE:
        setting.notes.append(f"this machine was up to {late * 1000:.0f} ms late: read shorter times with care")
    return setting.recorder.run("live", seed, loads, [*notes, *setting.notes]), complete


async def _live(
    world: World, seed: int, host: HostProcess, progress: Progress | None, raster: bool
) -> tuple[LiveSetting, bool]:
    loop = asyncio.get_running_loop()
    broken: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: broken.append(context))
    line = Line(world.service(world.entry), host.ports[world.entry], world.tells_layers)
    await line.pool.warm(min(world.clients.count, round(MOST)))
    agenda = LiveAgenda(loop, loop.time() + LEAD)
    host.begin(agenda.epoch)
    setting = LiveSetting(world, seed, raster, agenda, line)
    try:
        complete = await _until_over(setting, host, broken, progress)
    finally:
        setting.late = agenda.late
        await setting.end()
    return setting, complete


async def _until_over(
    setting: LiveSetting, host: HostProcess, broken: list[dict[str, Any]], progress: Progress | None
) -> bool:
    """Let the world go on until its horizon; the answer is False where it was broken off."""
    agenda, horizon = setting.agenda, setting.world.horizon
    crowd = people(setting)
    try:
        while (now := agenda.now()) < horizon and not (crowd is not None and crowd.done):
            host.check()
            if broken:
                raise broken[0].get("exception") or RuntimeError(broken[0]["message"])
            if progress is not None and now >= 1.0:
                progress(int(now), math.ceil(horizon))
            await asyncio.sleep(min(LOOK, horizon - now))
    except asyncio.CancelledError:  # Ctrl-C: what was measured is worth having
        setting.notes.append(f"broken off after {agenda.now():.1f} s of {horizon:g} s")
        return False
    return True


# -- the simulated side


def _simulated(case: Case, world: World, seeds: int) -> list[Run]:
    # so small a world needs no arrays; and what cannot be simulated is not found out after a minute of waiting
    code = isinstance(world.clients, Clients) and world.clients.code
    engine: Engine = "coroutine" if code or case.engine == "coroutine" else "exact"
    return [world.run(seed, engine) for seed in range(seeds)]


def _figures(run: Run, simulated: Sequence[Run]) -> tuple[Figure, ...]:
    theirs = [each.measures() for each in simulated]
    return tuple(compared(name, live, [each[name] for each in theirs]) for name, live in run.measures().items())


class _Shifted:
    """Tells the progress of one run as a part of several."""

    def __init__(self, progress: Progress, before: int, total: int) -> None:
        self._progress = progress
        self._before = before
        self._total = total

    def __call__(self, done: int, _: int) -> None:
        self._progress(self._before + done, self._total)


def _world(what: Case | World | Scenario) -> World:
    if isinstance(what, Scenario):
        cases = what.cases()
        if len(cases) != 1:
            names = ", ".join(repr(case.name) for case in cases)
            raise ValueError(f"a live run is of one case, and {what.name!r} has {len(cases)}: {names}")
        return cases[0].world
    if isinstance(what, (Case, World)):
        return what.world if isinstance(what, Case) else what
    raise TypeError(f"a live run is of a Case, a World or a Scenario with one case, not {what!r}")
