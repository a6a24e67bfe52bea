"""The picture: arrivals at the API per tenth of a second, one panel for each run, on the same scales.

It is SVG, written as text, for the report and the README. Its colours follow the light or dark setting of the screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, log10

from abate.cli.demo.measured_run import DemoRun
from abate.cli.demo.settings import BAR, SERVICE, WORKERS

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP, FOOT = 800, 150, 46, 14, 8, 34, 44
CAPACITY = WORKERS / SERVICE * BAR
"""Requests that the API can serve in a tenth of a second."""
LABELS = {"naive": "naive backoff", "abate": "abate"}
TICKS = 8
"""At most, on an axis."""
STYLE = (
    ".storm{--paper:#fff;--ink:#1f2328;--muted:#59636e;--grid:#dde1e6;--outage:#fbe9c0;--naive:#d55e01;--abate:#0072b3;"
    "background:var(--paper);font:13px system-ui,sans-serif}"
    "@media screen and (prefers-color-scheme:dark){.storm{--paper:#15181c;--ink:#e6e8eb;--muted:#9aa4ae;--grid:#343a41;"
    "--outage:#463a1b;--naive:#ff8f45;--abate:#5cb8ee}}"
    ".storm text{fill:var(--muted)}.storm .title{fill:var(--ink);font-weight:600}"
    ".storm .grid{stroke:var(--grid)}.storm .outage{fill:var(--outage)}"
    ".storm .capacity{stroke:var(--muted);stroke-dasharray:4 4}.storm .step{stroke:var(--ink)}"
    ".storm .naive{fill:var(--naive);stroke:var(--naive)}.storm .abate{fill:var(--abate);stroke:var(--abate)}"
)


def picture(runs: Sequence[DemoRun]) -> str:
    """Return the SVG of one run or more, finished or not."""
    settings = runs[0].settings
    scale = Scale(
        -settings.calm,
        max(2 * settings.outage, *(run.now for run in runs)),
        max(CAPACITY, *(count for run in runs for count in (0, *run.arrivals.values()))),
    )
    height = TOP + len(runs) * (GAP + PANEL) + FOOT
    parts = [part for place, run in enumerate(runs) for part in _panel(run, scale, place)]
    parts += _seconds(scale, height - FOOT)
    summary = "; ".join(f"{LABELS[run.way]}: {_summary(run)}" for run in runs)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="storm" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Arrivals at the API per 100 ms through an outage of {settings.outage:g} s. {summary}.">'
        f"<style>{STYLE}</style>{''.join(parts)}</svg>"
    )


class Scale:
    """Converts seconds and counts to coordinates."""

    def __init__(self, start: float, end: float, most: float) -> None:
        self.start, self.end, self.most = start, end, most

    def x(self, second: float) -> float:
        """Return the distance from the left."""
        return LEFT + (second - self.start) / (self.end - self.start) * (WIDTH - LEFT - RIGHT)

    def up(self, count: float) -> float:
        """Return the height above the floor of a panel."""
        return count / self.most * PANEL


def ticks(start: float, end: float, most: int = TICKS) -> list[float]:
    """Return round numbers from `start` to `end`, evenly spaced.

    >>> ticks(-2.0, 38.0), ticks(0, 350, 4)
    ([0, 5, 10, 15, 20, 25, 30, 35], [0, 100, 200, 300])
    """
    rough = (end - start) / most
    unit = 10 ** (ceil(log10(rough)) - 1)
    step = next(step for step in (unit, 2 * unit, 5 * unit, 10 * unit) if step >= rough)
    return [step * n for n in range(ceil(start / step), int(end // step) + 1)]


def _panel(run: DemoRun, scale: Scale, place: int) -> Iterator[str]:
    floor = TOP + (place + 1) * (GAP + PANEL)
    down, up = scale.x(0.0), scale.x(run.settings.outage)
    yield f'<path class="outage" d="M{down:.1f} {floor}V{floor - PANEL}H{up:.1f}V{floor}"/>'
    yield f'<text class="title" x="{LEFT}" y="{floor - PANEL - 10}">{LABELS[run.way]}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="{floor - PANEL - 10}" text-anchor="end">{_summary(run)}</text>'
    for count in ticks(0, scale.most, 4):
        y = floor - scale.up(count)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{count:g}</text>'
    yield f'<path class="{run.way}" d="{_steps(run, scale, floor)}"/>'
    y = floor - scale.up(CAPACITY)
    yield f'<path class="capacity" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
    if run.recovered is not None:
        x = scale.x(run.settings.outage + run.recovered)
        yield f'<path class="step" d="M{x:.1f} {floor}V{floor - PANEL}"/>'
        side, shift = ("end", -5) if x > WIDTH * 0.7 else ("start", 5)
        yield f'<text x="{x + shift:.1f}" y="{floor - PANEL + 14}" text-anchor="{side}">all in step</text>'


def _steps(run: DemoRun, scale: Scale, floor: float) -> str:
    """Return the outline of the arrivals: one step for each tenth of a second."""
    if not run.arrivals:
        return ""
    steps = [f"M{scale.x(min(run.arrivals) * BAR):.1f} {floor}"]
    for tenth, count in sorted(run.arrivals.items()):
        steps.append(f"V{floor - scale.up(count):.1f}H{scale.x((tenth + 1) * BAR):.1f}")
    return "".join(steps) + f"V{floor}"


def _seconds(scale: Scale, floor: float) -> Iterator[str]:
    for second in ticks(scale.start, scale.end):
        yield f'<text x="{scale.x(second):.1f}" y="{floor + 18}" text-anchor="middle">{second:g}</text>'
    yield (
        f'<text x="{LEFT}" y="{floor + 38}">arrivals per 100 ms; seconds since the disconnect; '
        "shaded: the API answers 503; dashed: its capacity</text>"
    )


def _summary(run: DemoRun) -> str:
    return f"{run.attempts:,} attempts, {run.during:,} of them during the outage; peak after it: {run.peak:,}"
