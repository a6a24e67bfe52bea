"""The parts of a picture: panels, and keys that explain their colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from abate.frozen import Frozen

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Sign = Literal["line", "dashed", "dotted", "area", "dot", "o", "s", "^", "D", "v", "P", "X", "*"]


class Key(Frozen):
    """A legend entry: label, colour and sign."""

    label: str
    colour: str
    sign: Sign = "line"


class Panel(Frozen):
    """One pair of axes: title, note, alternative text, and the function that draws it."""

    title: str
    note: str
    alt: str
    draw: Callable[[Axes], None]


class Picture(Frozen):
    """Panels with common keys and a caption."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    keys: tuple[Key, ...] = ()
