"""Pictures of surveys: the recovery map and the hysteresis, one panel per variant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from abate.sim.report.labels import format_tick, one_line
from abate.sim.report.palette import ATTEMPTS, CALLS, GOODPUT, MUTED, NEVER, SCALE
from abate.sim.report.picture import Key, Panel, Picture
from abate.sim.study import Estimate
from abate.sim.surveys import Cells, Hysteresis, RecoveryMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DARK = 3
"""The first shade on which text is white."""


def map_picture(found: RecoveryMap, otherwise: str) -> Picture:
    """Return the picture of a recovery map: seconds in each cell, and a colour for never."""
    longest = max(
        (seen.mean for cells in found.cells.values() for row in cells for seen in row if math.isfinite(seen.mean)),
        default=0.0,
    )
    panels = []
    for variant, cells in found.cells.items():
        name = one_line(variant or otherwise)
        seen = [one for row in cells for one in row if one.seeds]
        stuck = sum(one.never > 0 for one in seen)
        note = f"stays down in {stuck} of {len(seen)} cells" if stuck else "recovers everywhere"
        panels.append(
            Panel(name, note, f"Recovery map of {name}: {note}.", partial(_draw_map, found, cells, longest or 1.0))
        )
    keys = (
        Key("at once", SCALE[0], "area"),
        Key(f"after {format_tick(round(longest, 1))} s", SCALE[-1], "area"),
        Key("never, in some or all runs", NEVER, "area"),
    )
    caption = "Seconds from the end of the trigger until goodput is back."
    title = "Recovery over load and length of the trigger"
    return Picture("recovery-map", title, caption + _part(found), tuple(panels), keys)


def _part(found: RecoveryMap | Hysteresis) -> str:
    return "" if found.complete else " Interrupted: not complete."


def _draw_map(found: RecoveryMap, cells: Cells, longest: float, axes: Axes) -> None:
    for row, line in enumerate(cells):
        for column, seen in enumerate(line):
            fill, ink, text = _cell(seen, longest)
            axes.bar(column, 1, width=1, bottom=row, align="edge", color=fill, edgecolor="#ffffff", linewidth=1.0)
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=ink, fontsize=8.0)
    axes.set_xlim(0, len(found.loads))
    axes.set_ylim(0, len(found.lengths))
    axes.set_xticks([place + 0.5 for place in range(len(found.loads))], [format_tick(load) for load in found.loads])
    axes.set_yticks(
        [place + 0.5 for place in range(len(found.lengths))], [format_tick(length) for length in found.lengths]
    )
    axes.set_xlabel("load (calls per second)")
    axes.set_ylabel("length (s)")
    axes.tick_params(length=0)
    axes.grid(False)


def _cell(seen: Estimate, longest: float) -> tuple[str, str, str]:
    """Return the colour of a cell, that of its text, and the text."""
    if seen.never:
        return NEVER, "#ffffff", "never" if seen.never == seen.seeds else f"{seen.never} of {seen.seeds}"
    if math.isnan(seen.mean):
        return CALLS, "#000000", "–"
    shade = min(len(SCALE) - 1, int(seen.mean / longest * len(SCALE)))
    ink = "#ffffff" if shade >= DARK else "#000000"
    return SCALE[shade], ink, f"{seen.mean:.2g}" if seen.mean < 10 else format_tick(round(seen.mean))


def hysteresis_picture(found: Hysteresis, otherwise: str) -> Picture:
    """Return the picture of a hysteresis: goodput against load, rising and falling."""
    highest = max((seen.mean for line in found.up.values() for seen in line if math.isfinite(seen.mean)), default=1.0)
    top = 1.15 * max(highest, found.loads[-1])
    panels = []
    for variant, up in found.up.items():
        name, down = one_line(variant or otherwise), found.down[variant]
        lost = max((one.mean - other.mean, load) for load, one, other in zip(found.loads, up, down, strict=True))
        note = "the same up and down"
        if lost[0] > 0.1 * lost[1]:
            note = (
                f"at {format_tick(lost[1])} per second: {format_tick(round(up[found.loads.index(lost[1])].mean))} up, "
                + (f"{format_tick(round(down[found.loads.index(lost[1])].mean))} down")
            )
        panels.append(
            Panel(name, note, f"Hysteresis of {name}: {note}.", partial(_draw_hysteresis, found.loads, up, down, top))
        )
    keys = (
        Key("load rises", GOODPUT, "^"),
        Key("load falls", ATTEMPTS, "v"),
        Key("all calls succeed", MUTED, "dotted"),
    )
    caption = (
        f"Goodput at each load, held for {format_tick(found.hold)} s. Where the falling curve is below the rising one,"
        " the service stays down under a load that it could serve."
    )
    return Picture("hysteresis", "Hysteresis: goodput against load", caption + _part(found), tuple(panels), keys)


def _draw_hysteresis(
    loads: Sequence[float], up: Sequence[Estimate], down: Sequence[Estimate], top: float, axes: Axes
) -> None:
    axes.plot([0, loads[-1]], [0, loads[-1]], color=MUTED, linestyle=":", linewidth=1.0, zorder=2)
    for line, colour, marker, stroke in ((up, GOODPUT, "^", "-"), (down, ATTEMPTS, "v", "--")):
        axes.plot(
            loads,
            [seen.mean for seen in line],
            color=colour,
            linestyle=stroke,
            marker=marker,
            markersize=4.5,
            linewidth=1.5,
            zorder=3,
            clip_on=False,
        )
    axes.set_xlim(0, 1.05 * loads[-1])
    axes.set_ylim(0, top)
    axes.set_xlabel("load (calls per second)")
    axes.set_ylabel("goodput (per second)")
    axes.xaxis.set_major_formatter(format_tick)
    axes.yaxis.set_major_formatter(format_tick)
