"""The picture of services that call services: the requests of each, per case."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from abate.sim.report.labels import case_label, format_tick, one_line
from abate.sim.report.palette import LINES
from abate.sim.report.picture import Key, Panel, Picture
from abate.sim.study import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_SERVICES = 10
"""With more, their names would overlap."""
SHARE = 0.8
"""Share of the space between two services that bars take."""


def fits_service_picture(results: Sequence[Result]) -> bool:
    """Return whether all cases have the same services, more than one, and few enough for bars."""
    names = {tuple(service.name for service in result.case.world.services) for result in results}
    return len(names) == 1 and 2 <= len(*names) <= MAX_SERVICES and len(results) <= len(LINES)


def service_picture(results: Sequence[Result], otherwise: str) -> Picture:
    """Return the picture of the requests of each service; they grow from layer to layer if retries multiply."""
    services = [service.name for service in results[0].case.world.services]
    rows = [[result.measures[f"requests.{name}"].mean for name in services] for result in results]
    cases = [case_label(result.case, otherwise) for result in results]
    said = []
    for case, row in zip(cases, rows, strict=True):
        counts = [f"{one_line(name)} {format_tick(round(count, 1))}" for name, count in zip(services, row, strict=True)]
        said.append(f"{case}: {', '.join(counts)}")
    keys = tuple(Key(case, LINES[place], "area") for place, case in enumerate(cases))
    panel = Panel("", "", f"Requests by service. {'; '.join(said)}.", partial(_draw, services, rows))
    caption = "Requests of each service in a run, on average. If several layers retry, they multiply."
    return Picture("services", "Requests by service", caption, (panel,), keys)


def _draw(services: Sequence[str], rows: Sequence[Sequence[float]], axes: Axes) -> None:
    width = SHARE / len(rows)
    for place, row in enumerate(rows):
        left = [at + (place - len(rows) / 2) * width for at in range(len(services))]
        bars = axes.bar(left, row, width=0.92 * width, align="edge", color=LINES[place], zorder=3)
        if len(services) * len(rows) <= 2 * MAX_SERVICES:
            axes.bar_label(bars, [format_tick(round(count, 1)) for count in row], fontsize=8.0, padding=1.0)
    axes.set_xticks(range(len(services)), [one_line(name, 12) for name in services])
    axes.tick_params(axis="x", length=0)
    axes.grid(False, axis="x")
    axes.margins(y=0.12)
    axes.set_ylabel("requests")
    axes.yaxis.set_major_formatter(format_tick)
