"""Where pictures become SVG and PNG: the only place that imports matplotlib.

Its settings are matplotlib's defaults and the few below, whatever the user's own file says, and no state is left
behind: neither pyplot nor a window is involved. Identifiers inside an SVG depend on what is drawn alone.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from xml.etree import ElementTree

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from abate.sim.report.palette import COLOURS, GRID, INK, MUTED, PAPER
from abate.sim.report.picture import Key, Panel, Picture
from abate.sim.report.words import shown

SIZE = (4.2, 2.5)
"""Inches of a panel in a page."""
WIDTH, ROW, HEAD = 10.0, 2.6, 0.75
"""Inches of a figure with all pictures: across, of a row of panels, of what stands above them."""
DPI = 150
COLUMNS = 2
TITLE, LINE = 50, 66
"""Letters that have room above a panel: of its title, and of title and note together."""
KEYS, SIGN, LETTER = 0.22, 0.8, 0.085
"""Inches of a line of keys, of a key's sign and the room around it, and of a letter."""
SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED.light,
    "axes.grid": True,
    "axes.labelcolor": INK.light,
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10.0,
    "font.size": 9.0,
    "grid.color": GRID.light,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9.0,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "abate",
    "text.color": INK.light,
    "text.parse_math": False,  # a name with two dollars in it is no formula
    "xtick.color": MUTED.light,
    "xtick.labelcolor": INK.light,
    "ytick.color": MUTED.light,
    "ytick.labelcolor": INK.light,
}
NOTHING: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "png": {"Software": None},
}
"""What a file says about itself: nothing, as that is not the same from day to day."""
GAP = 0.06
"""Inches around a panel and its labels."""
Box = tuple[float, float, float, float]
STROKES: dict[str, Literal["-", "--", ":"]] = {"line": "-", "dashed": "--", "dotted": ":"}
FONT = re.compile(r"font(?:-family)?: (?:([\d.]+px) )?['\w][^;]*;? ?")
VARIABLES = {colour.light: colour.variable for colour in COLOURS if colour is not PAPER}
HEX = re.compile("|".join(map(re.escape, VARIABLES)))


@contextmanager
def _settings(**more: object) -> Iterator[None]:
    with style.context(["default", {**SETTINGS, **more}]), warnings.catch_warnings():
        # a letter that matplotlib's font has not is drawn by the browser's, or as a box
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def inline_svg(panel: Panel, number: int) -> str:
    """A panel as it stands in a page: in the page's colours, with identifiers that are its own by its number."""
    with _settings():
        figure = Figure(figsize=SIZE)
        figure.patch.set_visible(False)
        axes = figure.subplots()
        axes.patch.set_visible(False)
        panel.draw(axes)
        _place(figure, [(axes, (0.0, 0.0, *SIZE))])
        root = ElementTree.fromstring(_saved(figure, "svg", dpi=200))
    for parent in root.iter():
        # its style would count for the whole page
        for child in [child for child in parent if child.tag.endswith("}style")]:
            parent.remove(child)
    for element in root.iter():
        _settle(element, f"p{number}-")
    width, height = (round(inches * 72) for inches in SIZE)
    root.attrib = {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": panel.alt}
    return ElementTree.tostring(root, encoding="unicode")


def _settle(element: ElementTree.Element, prefix: str) -> None:
    """Make an element of a stand-alone SVG one of a page."""
    element.tag = element.tag.rpartition("}")[2]
    if element.tag != "text":
        element.text = None
    element.tail = None
    found = {}
    for key, value in element.attrib.items():
        name = key.rpartition("}")[2]
        if name == "id":
            value = prefix + value
        elif name == "href" and value.startswith("#"):
            value = f"#{prefix}{value[1:]}"
        elif name == "clip-path":
            value = value.replace("url(#", f"url(#{prefix}")
        elif name == "style":
            value = HEX.sub(lambda hit: VARIABLES[hit[0]], FONT.sub(r"\1", value))
        elif name == "d":
            value = " ".join(value.split())
        found[name] = value
    element.attrib = found


def whole_figure(pictures: Sequence[Picture], kind: str) -> bytes:
    """All pictures below each other, as PNG or SVG."""
    heads = [HEAD + KEYS * (math.ceil(len(picture.keys) / _keys_across(picture)) - 1) for picture in pictures]
    rows = [math.ceil(len(picture.panels) / _across(picture)) for picture in pictures]
    height = sum(heads) + ROW * sum(rows)
    with _settings(**{"svg.fonttype": "path"}):
        figure = Figure(figsize=(WIDTH, height), facecolor=PAPER.light)
        top = height
        for picture, head, count in zip(pictures, heads, rows, strict=True):
            _entitle(figure, picture, top / height, (top - head) / height)
            _fill(figure, picture, top - head)
            top -= head + ROW * count
        return _saved(figure, kind, dpi=DPI)


def _across(picture: Picture) -> int:
    return min(len(picture.panels), COLUMNS)


def _keys_across(picture: Picture) -> int:
    """How many keys have room beside each other."""
    widest = max((len(key.label) for key in picture.keys), default=1)
    return max(1, min(len(picture.keys), int(WIDTH / (SIGN + LETTER * widest))))


def _entitle(figure: Figure, picture: Picture, top: float, bottom: float) -> None:
    """The title and the key, between two heights (shares of the figure)."""
    gap = 0.12 / figure.get_figheight()
    figure.text(0.01, top - gap, picture.title, ha="left", va="top", fontsize=12.5, fontweight="bold")
    if picture.keys:
        handles, ncols = [_handle(key) for key in picture.keys], _keys_across(picture)
        figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, bottom), ncols=ncols, borderpad=0.2)


def _fill(figure: Figure, picture: Picture, top: float) -> None:
    """The panels, row by row below this height (inches)."""
    across = _across(picture)
    cells: list[tuple[Axes, Box]] = []
    for place, panel in enumerate(picture.panels):
        row, column = divmod(place, across)
        axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        panel.draw(axes)
        title = shown(panel.title, TITLE)
        above = "\n" if len(title) + len(panel.note) > LINE else ""
        axes.set_title(title + above, loc="left", fontweight="bold")
        axes.set_title(panel.note, loc="right", fontsize=8.0, color=MUTED.light)
        cells.append((axes, (column * WIDTH / across, top - (row + 1) * ROW, WIDTH / across, ROW)))
    _place(figure, cells)


def _place(figure: Figure, cells: Sequence[tuple[Axes, Box]]) -> None:
    """Give each axes its cell (left, bottom, width and height in inches), less what their labels take.

    matplotlib's own layout differs from run to run by what can be seen in the sixth digit; this one is rounded.
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
    """Inches that labels take outside of the axes: left, below, right, above. A title may be wider than its axes."""
    box, outer = axes.bbox, axes.get_tightbbox()
    if outer is None:
        return (0.0, 0.0, 0.0, 0.0)
    sides = (box.x0 - outer.x0, box.y0 - outer.y0, min(outer.x1 - box.x1, 0.2 * dpi), outer.y1 - box.y1)
    west, south, east, north = (math.ceil(max(0.0, side) / dpi * 50.0) / 50.0 for side in sides)
    return west, south, east, north


def _handle(key: Key) -> Line2D | Patch:
    if key.sign == "area":
        return Patch(color=key.colour.light, label=key.label)
    if key.sign in ("line", "dashed", "dotted"):
        return Line2D([], [], color=key.colour.light, linestyle=STROKES[key.sign], label=key.label)
    if key.sign == "dot":
        return Line2D([], [], color=key.colour.light, marker=".", linestyle="none", label=key.label)
    return Line2D([], [], color=key.colour.light, marker=key.sign, markersize=5.0, label=key.label)


def _saved(figure: Figure, kind: str, dpi: float) -> bytes:
    held = io.BytesIO()
    figure.savefig(held, format=kind, dpi=dpi, metadata=NOTHING[kind])
    return held.getvalue()
