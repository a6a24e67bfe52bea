"""Pictures over time: the load of each case, and the herd as dots.

All cases have the same axes. Counts are per second, or per 100 ms if a run ends within seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from abate.frozen import Frozen
from abate.sim.measures import MAX_POINTS, PER_SECOND
from abate.sim.model import Service
from abate.sim.report.labels import case_label, format_tick, pluralize, summary, troubles
from abate.sim.report.palette import ATTEMPTS, CALLS, DOTS, GOODPUT, MUTED, TROUBLE
from abate.sim.report.picture import Key, Panel, Picture
from abate.sim.study import Result
from abate.sim.world import World

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PANELS = 12
"""Cases that are drawn; the caption tells if there are more."""
MIN_CLIENTS, MAX_CLIENTS = 10, 5_000
"""Fewer clients are no herd; the dots of more would merge."""
STRETCHES = (1, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""Slots of 100 ms per step."""
MAX_STEPS = 150
IDLE = 0.8
"""A run that ends before this share of its horizon is shown until its end only."""
THIN = 0.006
"""Minimum width of a trigger, as a share of the time axis, so that it is visible."""


class Span(Frozen):
    """The time that is shown, and the slots per step."""

    until: float
    slots: int

    @property
    def unit(self) -> str:
        """The unit of counts."""
        return "per 100 ms" if self.slots == 1 else "per second"

    @property
    def steps(self) -> int:
        """The number of steps."""
        return math.ceil(self.until * PER_SECOND / self.slots - 1e-9)

    def edges(self) -> list[float]:
        """Return the edges of the steps."""
        return [step * self.slots / PER_SECOND for step in range(self.steps + 1)]

    def rates(self, series: Sequence[float]) -> list[float]:
        """Return a series of slots as rates per step.

        >>> Span(2.0, 10).rates([1] * 20), Span(0.2, 1).rates([1] * 20)
        ([10.0, 10.0], [1.0, 1.0])
        """
        per = 1.0 if self.slots == 1 else PER_SECOND / self.slots
        return [
            math.fsum(series[place : place + self.slots]) * per
            for place in range(0, self.steps * self.slots, self.slots)
        ]


def span_of(results: Sequence[Result]) -> Span:
    """Return the span in which something happens in any of the cases."""
    until = 0.0
    for result in results:
        world = result.case.world
        rows = [result.series(name) for name in ("calls", "attempts", "successes")]
        last = max((place for row in rows for place, count in enumerate(row) if count), default=0)
        busy = max((last + 1) / PER_SECOND, *(trigger.at for trigger in world.triggers), 0.0)
        until = max(until, math.ceil(busy * 11) / PER_SECOND if busy < IDLE * world.horizon else world.horizon)
    slots = next((size for size in STRETCHES if until * PER_SECOND / size <= MAX_STEPS), STRETCHES[-1])
    return Span(until, slots)


def load_picture(results: Sequence[Result], otherwise: str) -> Picture:
    """Return the picture of calls, attempts and goodput over time; `otherwise` names a case without a name."""
    drawn = results[:MAX_PANELS]
    span = span_of(drawn)
    rows = [[span.rates(result.series(name)) for name in ("calls", "attempts", "successes")] for result in drawn]
    highest = max((rate for lines in rows for line in lines for rate in line), default=0.0) or 1.0
    panels, limited = [], False
    for result, lines in zip(drawn, rows, strict=True):
        capacity = _capacity(result.case.world) * (1.0 if span.slots > 1 else 1 / PER_SECOND)
        visible = capacity if capacity <= 1.2 * highest else None
        limited = limited or visible is not None
        peaks = [f"{format_tick(round(max(line)))} {word}" for line, word in zip(lines, SERIES, strict=True)]
        trouble = troubles(result.case.world)
        panels.append(
            Panel(
                case_label(result.case, otherwise),
                summary(result),
                f"Load over time of {case_label(result.case, otherwise)}: at most {', '.join(peaks)} {span.unit};"
                f" {summary(result)}.{f' Triggers: {trouble}.' if trouble else ''}",
                partial(_draw_load, span, result.case.world, lines, visible, 1.08 * max(highest, visible or 0.0)),
            )
        )
    keys = [Key(SERIES[0], CALLS, "area"), Key(SERIES[1], ATTEMPTS), Key(SERIES[2], GOODPUT)]
    keys += [Key("capacity", MUTED, "dotted")] if limited else []
    keys += [Key("trigger", TROUBLE, "area")] if any(result.case.world.triggers for result in drawn) else []
    return Picture("load", f"Load over time, {span.unit}", _load_caption(results, drawn), tuple(panels), tuple(keys))


SERIES = ("calls", "attempts", "goodput")


def _load_caption(results: Sequence[Result], drawn: Sequence[Result]) -> str:
    words = ["Attempts above calls are retries; goodput below calls means failed calls."]
    several = {troubles(result.case.world) for result in drawn if result.case.world.triggers}
    if len(several) == 1:
        words.append(f"Triggers: {several.pop()}.")
    warmups = {result.case.world.warmup for result in drawn}
    if any(warmups):
        words.append(f"The first {format_tick(max(warmups))} s are not measured.")
    words.append("Lines are means over the seeds.")
    return " ".join(words) + _left_out(results, drawn)


def _left_out(results: Sequence[Result], drawn: Sequence[Result]) -> str:
    return f" The first {len(drawn)} of {len(results)} cases are drawn." if len(results) > len(drawn) else ""


def _capacity(world: World) -> float:
    entry = world.service(world.entry)
    return entry.capacity if isinstance(entry, Service) else math.inf


def _draw_load(
    span: Span, world: World, lines: Sequence[Sequence[float]], capacity: float | None, top: float, axes: Axes
) -> None:
    edges = span.edges()
    calls, attempts, goodput = lines
    axes.stairs(calls, edges, fill=True, color=CALLS, zorder=1.5)
    axes.stairs(attempts, edges, baseline=None, color=ATTEMPTS, linewidth=1.5, zorder=3)
    axes.stairs(goodput, edges, baseline=None, color=GOODPUT, linewidth=1.5, zorder=4)
    if capacity is not None:
        axes.axhline(capacity, color=MUTED, linewidth=1.0, linestyle=":", zorder=2)
    axes.set_ylim(0, top)
    axes.set_ylabel(span.unit)
    _draw_time(span, world, axes)


def _draw_time(span: Span, world: World, axes: Axes) -> None:
    for trigger in world.triggers:
        end = max(trigger.end, trigger.at + THIN * span.until)
        axes.axvspan(trigger.at, min(end, span.until), color=TROUBLE, linewidth=0, zorder=0.5)
    axes.set_xlim(0, span.until)
    axes.set_xlabel("time (s)")
    axes.xaxis.set_major_formatter(format_tick)
    axes.yaxis.set_major_formatter(format_tick)


def has_dots(result: Result) -> bool:
    """Return whether the attempts of the first run were kept, and the number of clients suits a picture."""
    few = MIN_CLIENTS <= result.case.world.clients.count <= MAX_CLIENTS
    return few and bool(result.samples) and bool(result.samples[0].points)


def herd_picture(results: Sequence[Result], otherwise: str) -> Picture:
    """Return the picture with a dot for each attempt of the first run: client over time."""
    drawn = results[:MAX_PANELS]
    span = span_of(drawn)
    most = max(len(result.samples[0].points) for result in drawn)
    panels = []
    for result in drawn:
        name, points = case_label(result.case, otherwise), result.samples[0].points
        draw: Callable[[Axes], None] = partial(_draw_dots, span, result.case.world, points, most)
        of = pluralize(result.case.world.clients.count, "client")
        alt = f"The herd of {name}: {pluralize(len(points), 'attempt')} of {of}, as dots."
        panels.append(Panel(name, pluralize(len(points), "attempt"), alt, draw))
    cut = any(len(result.samples[0].points) >= MAX_POINTS for result in drawn)
    caption = "Each dot is an attempt of the first run. A herd that returns together is a vertical line."
    caption += f" No more than the first {MAX_POINTS:,} attempts are drawn." if cut else ""
    keys = [Key("attempt", DOTS, "dot")]
    keys += [Key("trigger", TROUBLE, "area")] if any(result.case.world.triggers for result in drawn) else []
    return Picture("herd", "The herd", caption + _left_out(results, drawn), tuple(panels), tuple(keys))


def _draw_dots(span: Span, world: World, points: Sequence[tuple[float, int]], most: int, axes: Axes) -> None:
    times, clients = [at for at, _ in points], [client for _, client in points]
    # by the panel with the most dots, so that all are alike
    size, alpha = (2.4, 0.7) if most <= 5_000 else (1.6, 0.5) if most <= 50_000 else (1.0, 0.35)
    # rasterized: 200,000 vector dots would take 20 MB
    axes.plot(
        times,
        clients,
        linestyle="none",
        marker="o",
        markersize=size,
        markeredgewidth=0,
        color=DOTS,
        alpha=alpha,
        rasterized=True,
        zorder=3,
    )
    axes.set_ylim(-0.5, world.clients.count - 0.5)
    axes.set_ylabel("client")
    axes.grid(False)
    _draw_time(span, world, axes)
