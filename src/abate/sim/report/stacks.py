"""The picture of services that call services: how many requests reach each of them, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from abate.sim.report.palette import LINES
from abate.sim.report.picture import Key, Panel, Picture
from abate.sim.report.words import named, shown, tick
from abate.sim.study import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SERVICES = 10
"""Beyond which their names would lie upon each other."""
SHARE = 0.8
"""Of the room between two services, what bars take."""


def is_stack(results: Sequence[Result]) -> bool:
    """Do services call services, the same ones in each case, and are the bars few enough to be read?"""
    names = {tuple(service.name for service in result.case.world.services) for result in results}
    return len(names) == 1 and 2 <= len(*names) <= MOST_SERVICES and len(results) <= len(LINES)


def stack_picture(results: Sequence[Result], otherwise: str) -> Picture:
    """Requests that each service sees: where retries multiply, they grow from layer to layer."""
    services = [service.name for service in results[0].case.world.services]
    rows = [[result.measures[f"requests.{name}"].mean for name in services] for result in results]
    cases = [named(result.case, otherwise) for result in results]
    said = []
    for case, row in zip(cases, rows, strict=True):
        counts = [f"{shown(name)} {tick(round(count, 1))}" for name, count in zip(services, row, strict=True)]
        said.append(f"{case}: {', '.join(counts)}")
    keys = tuple(Key(case, LINES[place], "area") for place, case in enumerate(cases))
    panel = Panel("", "", f"Requests by service. {'; '.join(said)}.", partial(_draw, services, rows))
    caption = "Requests that reached each service in a run, on average. Where layers retry each other, they multiply."
    return Picture("stack", "Requests by service", caption, (panel,), keys)


def _draw(services: Sequence[str], rows: Sequence[Sequence[float]], axes: Axes) -> None:
    width = SHARE / len(rows)
    for place, row in enumerate(rows):
        left = [at + (place - len(rows) / 2) * width for at in range(len(services))]
        bars = axes.bar(left, row, width=0.92 * width, align="edge", color=LINES[place].light, zorder=3)
        if len(services) * len(rows) <= 2 * MOST_SERVICES:
            axes.bar_label(bars, [tick(round(count, 1)) for count in row], fontsize=8.0, padding=1.0)
    axes.set_xticks(range(len(services)), [shown(name, 12) for name in services])
    axes.tick_params(axis="x", length=0)
    axes.grid(False, axis="x")
    axes.margins(y=0.12)
    axes.set_ylabel("requests")
    axes.yaxis.set_major_formatter(tick)
