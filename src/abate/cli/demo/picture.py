"""The picture: what arrives at the API per tenth of a second, one panel for each way, on the same scales.

It is SVG, drawn with nothing but strings, so that it is the same everywhere: in the live page, the report and the
README. Its colours follow the screen. All texts in it are our own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, log10

from abate.cli.demo.passage import Passage
from abate.cli.demo.scenario import BAR, SERVICE, WORKERS

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP, FOOT = 800, 150, 46, 14, 8, 34, 44
CAPACITY = WORKERS / SERVICE * BAR
"""Requests that the API can serve in a tenth of a second."""
LABELS = {"naive": "naive backoff", "abate": "abate"}
TICKS = 8
"""At most so many on an axis."""
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


def picture(passages: Sequence[Passage]) -> str:
    """The SVG of one passage or more, finished or not."""
    scenario = passages[0].scenario
    scale = Scale(
        -scenario.calm,
        max(2 * scenario.outage, *(passage.now for passage in passages)),
        max(CAPACITY, *(count for passage in passages for count in (0, *passage.arrivals.values()))),
    )
    height = TOP + len(passages) * (GAP + PANEL) + FOOT
    parts = [part for place, passage in enumerate(passages) for part in _panel(passage, scale, place)]
    parts += _seconds(scale, height - FOOT)
    told = "; ".join(f"{LABELS[passage.way]}: {_told(passage)}" for passage in passages)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="storm" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Arrivals at the API per 100 ms through an outage of {scenario.outage:g} s. {told}.">'
        f"<style>{STYLE}</style>{''.join(parts)}</svg>"
    )


class Scale:
    """Where a second and a count are drawn."""

    def __init__(self, start: float, end: float, most: float) -> None:
        self.start, self.end, self.most = start, end, most

    def x(self, second: float) -> float:
        """From the left."""
        return LEFT + (second - self.start) / (self.end - self.start) * (WIDTH - LEFT - RIGHT)

    def up(self, count: float) -> float:
        """Above the floor of a panel."""
        return count / self.most * PANEL


def ticks(start: float, end: float, most: int = TICKS) -> list[float]:
    """Round numbers from `start` to `end`, evenly spaced.

    >>> ticks(-2.0, 38.0), ticks(0, 350, 4)
    ([0, 5, 10, 15, 20, 25, 30, 35], [0, 100, 200, 300])
    """
    rough = (end - start) / most
    unit = 10 ** (ceil(log10(rough)) - 1)
    step = next(step for step in (unit, 2 * unit, 5 * unit, 10 * unit) if step >= rough)
    return [step * n for n in range(ceil(start / step), int(end // step) + 1)]


def _panel(passage: Passage, scale: Scale, place: int) -> Iterator[str]:
    floor = TOP + (place + 1) * (GAP + PANEL)
    down, up = scale.x(0.0), scale.x(passage.scenario.outage)
    yield f'<path class="outage" d="M{down:.1f} {floor}V{floor - PANEL}H{up:.1f}V{floor}"/>'
    yield f'<text class="title" x="{LEFT}" y="{floor - PANEL - 10}">{LABELS[passage.way]}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="{floor - PANEL - 10}" text-anchor="end">{_told(passage)}</text>'
    for count in ticks(0, scale.most, 4):
        y = floor - scale.up(count)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{count:g}</text>'
    yield f'<path class="{passage.way}" d="{_steps(passage, scale, floor)}"/>'
    y = floor - scale.up(CAPACITY)
    yield f'<path class="capacity" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
    if passage.recovered is not None:
        x = scale.x(passage.scenario.outage + passage.recovered)
        yield f'<path class="step" d="M{x:.1f} {floor}V{floor - PANEL}"/>'
        side, shift = ("end", -5) if x > WIDTH * 0.7 else ("start", 5)
        yield f'<text x="{x + shift:.1f}" y="{floor - PANEL + 14}" text-anchor="{side}">all in step</text>'


def _steps(passage: Passage, scale: Scale, floor: float) -> str:
    """The outline of what arrived: one step for each tenth of a second."""
    if not passage.arrivals:
        return ""
    steps = [f"M{scale.x(min(passage.arrivals) * BAR):.1f} {floor}"]
    for tenth, count in sorted(passage.arrivals.items()):
        steps.append(f"V{floor - scale.up(count):.1f}H{scale.x((tenth + 1) * BAR):.1f}")
    return "".join(steps) + f"V{floor}"


def _seconds(scale: Scale, floor: float) -> Iterator[str]:
    for second in ticks(scale.start, scale.end):
        yield f'<text x="{scale.x(second):.1f}" y="{floor + 18}" text-anchor="middle">{second:g}</text>'
    yield (
        f'<text x="{LEFT}" y="{floor + 38}">arrivals per 100 ms; seconds from the sneeze on; '
        "shaded: it answers 503; dashed: what it can serve</text>"
    )


def _told(passage: Passage) -> str:
    return (
        f"{passage.attempts:,} attempts, {passage.during:,} of them during the outage; peak after it: {passage.peak:,}"
    )
