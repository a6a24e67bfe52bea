"""Renders pictures as SVG and PNG. It is the only module that imports matplotlib.

It uses matplotlib's defaults and the settings below, ignores the user's matplotlibrc, and leaves no state behind: it
uses no pyplot. The same pictures give the same bytes.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from abate.sim.report.labels import one_line
from abate.sim.report.palette import GRID, INK, MUTED, PAPER
from abate.sim.report.picture import Key, Picture

WIDTH, ROW, HEAD = 10.0, 2.6, 0.75
"""Inches: the width of a figure, the height of a row of panels, the height of title and keys."""
DPI = 150
COLUMNS = 2
TITLE, LINE = 50, 66
"""Maximum letters above a panel: of the title, and of title and note on one line."""
KEYS, SIGN, LETTER = 0.22, 0.8, 0.085
"""Inches: the height of a line of keys, the width of a key's sign, the width of a letter."""
SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10.0,
    "font.size": 9.0,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9.0,
    "legend.frameon": False,
    "svg.hashsalt": "abate",
    "text.color": INK,
    "text.parse_math": False,  # names with dollars are not formulas
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
}
NOTHING: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "png": {"Software": None},
}
"""No metadata: it would change from day to day."""
GAP = 0.06
"""Inches around a panel and its labels."""
Box = tuple[float, float, float, float]
STROKES: dict[str, Literal["-", "--", ":"]] = {"line": "-", "dashed": "--", "dotted": ":"}


@contextmanager
def _settings() -> Iterator[None]:
    with style.context(["default", SETTINGS]), warnings.catch_warnings():
        # a letter that matplotlib's font lacks is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def render_figure(pictures: Sequence[Picture], kind: str) -> bytes:
    """Return all pictures below each other, as PNG or SVG."""
    heads = [HEAD + KEYS * (math.ceil(len(picture.keys) / _keys_across(picture)) - 1) for picture in pictures]
    rows = [math.ceil(len(picture.panels) / _column_count(picture)) for picture in pictures]
    height = sum(heads) + ROW * sum(rows)
    with _settings():
        figure = Figure(figsize=(WIDTH, height), facecolor=PAPER)
        top = height
        for picture, head, count in zip(pictures, heads, rows, strict=True):
            _entitle(figure, picture, top / height, (top - head) / height)
            _fill(figure, picture, top - head)
            top -= head + ROW * count
        return _saved(figure, kind, dpi=DPI)


def _column_count(picture: Picture) -> int:
    return min(len(picture.panels), COLUMNS)


def _keys_across(picture: Picture) -> int:
    """Return how many keys fit in a line."""
    widest = max((len(key.label) for key in picture.keys), default=1)
    return max(1, min(len(picture.keys), int(WIDTH / (SIGN + LETTER * widest))))


def _entitle(figure: Figure, picture: Picture, top: float, bottom: float) -> None:
    """Draw title and keys between two heights (shares of the figure)."""
    gap = 0.12 / figure.get_figheight()
    figure.text(0.01, top - gap, picture.title, ha="left", va="top", fontsize=12.5, fontweight="bold")
    if picture.keys:
        handles, ncols = [_handle(key) for key in picture.keys], _keys_across(picture)
        figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, bottom), ncols=ncols, borderpad=0.2)


def _fill(figure: Figure, picture: Picture, top: float) -> None:
    """Draw the panels, row by row below this height (inches)."""
    across = _column_count(picture)
    cells: list[tuple[Axes, Box]] = []
    for place, panel in enumerate(picture.panels):
        row, column = divmod(place, across)
        axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        panel.draw(axes)
        title = one_line(panel.title, TITLE)
        above = "\n" if len(title) + len(panel.note) > LINE else ""
        axes.set_title(title + above, loc="left", fontweight="bold")
        axes.set_title(panel.note, loc="right", fontsize=8.0, color=MUTED)
        cells.append((axes, (column * WIDTH / across, top - (row + 1) * ROW, WIDTH / across, ROW)))
    _place(figure, cells)


def _place(figure: Figure, cells: Sequence[tuple[Axes, Box]]) -> None:
    """Place each axes in its cell (left, bottom, width and height in inches), less the space of its labels.

    matplotlib's own layout differs between runs in the sixth digit; this one is rounded.
    """
    width, height = figure.get_size_inches()
    for axes, (left, bottom, across, up) in cells:
        axes.set_position((left / width, bottom / height, across / width, up / height))
    spaces = [_spaces(axes, figure.dpi) for axes, _ in cells]
    west, south, east, north = (max(sides) + GAP for sides in zip(*spaces, strict=True))
    for axes, (left, bottom, across, up) in cells:
        inner = (across - west - east, up - south - north)
        axes.set_position(
            ((left + west) / width, (bottom + south) / height, max(0.1, inner[0]) / width, max(0.1, inner[1]) / height)
        )


def _spaces(axes: Axes, dpi: float) -> tuple[float, float, float, float]:
    """Return the inches of labels outside of the axes: left, below, right, above."""
    box, outer = axes.bbox, axes.get_tightbbox()
    if outer is None:
        return (0.0, 0.0, 0.0, 0.0)
    sides = (box.x0 - outer.x0, box.y0 - outer.y0, min(outer.x1 - box.x1, 0.2 * dpi), outer.y1 - box.y1)
    west, south, east, north = (math.ceil(max(0.0, side) / dpi * 50.0) / 50.0 for side in sides)
    return west, south, east, north


def _handle(key: Key) -> Line2D | Patch:
    if key.sign == "area":
        return Patch(color=key.colour, label=key.label)
    if key.sign in ("line", "dashed", "dotted"):
        return Line2D([], [], color=key.colour, linestyle=STROKES[key.sign], label=key.label)
    if key.sign == "dot":
        return Line2D([], [], color=key.colour, marker=".", linestyle="none", label=key.label)
    return Line2D([], [], color=key.colour, marker=key.sign, markersize=5.0, label=key.label)


def _saved(figure: Figure, kind: str, dpi: float) -> bytes:
    held = io.BytesIO()
    figure.savefig(held, format=kind, dpi=dpi, metadata=NOTHING[kind])
    return held.getvalue()
