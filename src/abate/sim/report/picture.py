"""What a picture is made of: panels that draw themselves, and a key to their colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from abate.sim.report.palette import Colour
from abate.values import Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Sign = Literal["line", "dashed", "dotted", "area", "dot", "o", "s", "^", "D", "v", "P", "X", "*"]


class Key(Value):
    """What a colour stands for, and as what it is drawn: a line, an area, or a line with a marker."""

    label: str
    colour: Colour
    sign: Sign = "line"


class Panel(Value):
    """One pair of axes: its title, a figure or two beside it, what it shows in words, and how it is drawn."""

    title: str
    note: str
    alt: str
    draw: Callable[[Axes], None]


class Picture(Value):
    """Panels that belong together, one key for all of them, and what to see in them."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    keys: tuple[Key, ...] = ()
