"""Pictures of a swept number: one line per variant, with the confidence interval as a band.

The measures depend on the world: attempts and the time of the last result if each client calls once; success and load
if the error rate is swept; otherwise amplification, success and recovery.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from abate.frozen import Frozen
from abate.sim.model import Clients
from abate.sim.report.labels import axis, format_tick, one_line
from abate.sim.report.palette import LINES, MARKERS
from abate.sim.report.picture import Key, Panel, Picture, Sign
from abate.sim.scenario import Case
from abate.sim.study import Estimate, Result, format_number
from abate.sim.world import World

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAR_ALONG, FAR_APART = 50.0, 10.0
"""Ratios above which an axis is logarithmic: of the swept values, of the lines."""


class SweepLine(Frozen):
    """The results of one variant, in the order of the swept number."""

    label: str
    results: tuple[tuple[float, Result], ...]

    def points(self, measure: str) -> list[tuple[float, Estimate]]:
        """Return the estimates of a measure."""
        return [(x, result.measures[measure]) for x, result in self.results]


def swept_number(cases: Sequence[Case]) -> str | None:
    """Return the setting for the x axis: the first with several numbers, or None.

    >>> from abate.sim.scenario import load_scenario
    >>> print(swept_number(load_scenario("herd").cases()))
    None
    """
    for path in dict.fromkeys(path for case in cases for path in case.settings):
        values = {case.settings.get(path) for case in cases}
        if len(values) > 1 and all(map(_is_number, values)):
            return path
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def sweep_picture(results: Sequence[Result], path: str) -> Picture:
    """Return the picture of the main measures against the swept number."""
    lines = _lines(results, path)
    drawn = lines[: len(LINES) * len(STROKES)]
    panels, names = [], []
    for measure in _measures(path, results[0].case.world):
        if all(math.isnan(seen.mean) for line in drawn for _, seen in line.points(measure)):
            continue
        ends = ", ".join(f"{line.label or 'all'} {line.points(measure)[-1][1]}" for line in drawn)
        last = format_number(max(line.results[-1][0] for line in drawn))
        alt = f"{axis(measure).capitalize()} against {axis(path)}. At {last}: {ends}."
        names.append(measure)
        panels.append(Panel("", "", alt, partial(_draw, drawn, measure, path)))
    keys = [
        Key(line.label, LINES[place % len(LINES)], _marker(place)) for place, line in enumerate(drawn) if line.label
    ]
    caption = "Means over the seeds; the band is the 95 % confidence interval."
    if any(seen.never for line in drawn for _, seen in line.points("recovery")):
        caption += " A cross at the upper edge: it never recovers in some runs."
    if len(lines) > len(drawn):
        caption += f" The first {len(drawn)} of {len(lines)} lines are drawn."
    return Picture(
        "sweep", f"{' and '.join(names).capitalize()} against {axis(path)}", caption, tuple(panels), tuple(keys)
    )


STROKES = ("-", "--", ":")


def _marker(place: int) -> Sign:
    return cast(Sign, MARKERS[place % len(MARKERS)])


def _measures(path: str, world: World) -> tuple[str, ...]:
    if isinstance(world.clients, Clients) and world.clients.arrivals == "once":
        return ("attempts", "completed")
    if path.endswith(".error_rate"):
        return ("success", "amplification")
    return ("amplification", "success", "recovery") if world.triggers else ("amplification", "success", "p99")


def _lines(results: Sequence[Result], path: str) -> list[SweepLine]:
    found: dict[str, list[tuple[float, Result]]] = {}
    for result in results:
        case = result.case
        others = [f"{key.rpartition('.')[2]}={value}" for key, value in case.settings.items() if key != path]
        label = one_line(" ".join([*([case.variant] if case.variant else []), *others]))
        found.setdefault(label, []).append((float(case.settings[path]), result))
    return [SweepLine(label, tuple(sorted(points, key=lambda point: point[0]))) for label, points in found.items()]


def _draw(lines: Sequence[SweepLine], measure: str, path: str, axes: Axes) -> None:
    rows = [line.points(measure) for line in lines]
    for place, points in enumerate(rows):
        colour = LINES[place % len(LINES)]
        values = [seen.mean if math.isfinite(seen.mean) else math.nan for _, seen in points]
        where = [x for x, _ in points]
        axes.plot(
            where,
            values,
            color=colour,
            linestyle=STROKES[place // len(LINES)],
            marker=_marker(place),
            markersize=4.5,
            linewidth=1.5,
            zorder=3,
        )
        low = [value - seen.within for value, (_, seen) in zip(values, points, strict=True)]
        high = [value + seen.within for value, (_, seen) in zip(values, points, strict=True)]
        axes.fill_between(where, low, high, color=colour, alpha=0.2, linewidth=0, zorder=2)
        never = [x for x, seen in points if seen.never]
        edge = axes.get_xaxis_transform()
        for cross in axes.plot(never, [1.0] * len(never), "x", color=colour, transform=edge, clip_on=False, zorder=5):
            cross.set_in_layout(False)  # it lies on the edge, outside of the layout
    _scale(rows, measure, axes)
    axes.set_xlabel(axis(path))
    axes.set_ylabel(axis(measure))
    axes.xaxis.set_major_formatter(format_tick)
    axes.yaxis.set_major_formatter(format_tick)


def _scale(rows: Sequence[Sequence[tuple[float, Estimate]]], measure: str, axes: Axes) -> None:
    """Set the scales: logarithmic for large ratios, otherwise from 0."""
    places: dict[float, list[float]] = {}
    for points in rows:
        for x, seen in points:
            places.setdefault(x, []).append(seen.mean)
    if min(places) > 0 and max(places) / min(places) > FAR_ALONG:
        axes.set_xscale("log")
    finite = [[value for value in values if math.isfinite(value)] for values in places.values()]
    if all(value > 0 for values in finite for value in values) and any(
        max(values) / min(values) > FAR_APART for values in finite if values
    ):
        axes.set_yscale("log")
    elif measure == "success":
        axes.set_ylim(0, 1.03)
    else:
        axes.set_ylim(bottom=0)
