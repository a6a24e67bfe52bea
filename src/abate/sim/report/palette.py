"""The colours of pictures and pages, each with its counterpart for dark screens.

Pictures are drawn in the light ones. A page puts a CSS variable in the place of each, so that pictures follow the
screen. No two mean the same thing, and lines differ by their markers too: colour is never the only sign.
"""

from __future__ import annotations

from abate.values import Value


class Colour(Value):
    """A colour by what it is for, as CSS writes it.

    >>> INK.light, INK.variable
    ('#1f2328', 'var(--ink)')
    """

    name: str
    light: str
    dark: str

    @property
    def variable(self) -> str:
        """Its name in a page."""
        return f"var(--{self.name})"


PAPER = Colour("paper", "#ffffff", "#15181c")
INK = Colour("ink", "#1f2328", "#e6e8eb")
MUTED = Colour("muted", "#59636e", "#9aa4ae")
GRID = Colour("grid", "#dde1e6", "#343a41")
TROUBLE = Colour("trouble", "#fbe9c0", "#463a1b")
"""While a trigger lasts."""
CALLS = Colour("calls", "#c4cbd3", "#4c555f")
ATTEMPTS = Colour("attempts", "#d55e01", "#ff8f45")
GOODPUT = Colour("goodput", "#0072b3", "#5cb8ee")
DOTS = Colour("dots", "#3d7ea6", "#3d7ea6")
"""Dots are a bitmap, which does not follow the screen: this one can be read on both."""
NEVER = Colour("never", "#c2452d", "#c2452d")
"""In a map: what did not recover."""

SCALE = tuple(
    Colour(f"scale-{place}", shade, shade)
    for place, shade in enumerate(("#e8f1fa", "#c5dcf0", "#94c0e2", "#5c9dcc", "#2f76ae", "#14507f"), start=1)
)
"""In a map: from a recovery at once to the longest one. It is the same on every screen, as figures stand in it."""

LINES = (
    Colour("line-1", "#0072b2", "#5cb8ed"),
    Colour("line-2", "#d55e00", "#ff8f44"),
    Colour("line-3", "#00866a", "#35cfa2"),
    Colour("line-4", "#a63d82", "#e39ac8"),
    Colour("line-5", "#a77500", "#e8b93c"),
    Colour("line-6", "#4d4d4d", "#c3c3c3"),
    Colour("line-7", "#3b3bbf", "#a3a3ff"),
    Colour("line-8", "#7f3b12", "#d3a07f"),
)
"""Of the variants, in their order."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""As matplotlib names them, in the same order."""
COLOURS = (PAPER, INK, MUTED, GRID, TROUBLE, CALLS, ATTEMPTS, GOODPUT, DOTS, NEVER, *SCALE, *LINES)


def stylesheet() -> str:
    """The variables of all colours: light ones on paper and on light screens, dark ones on dark screens.

    >>> stylesheet().splitlines()[0][:22]
    ':root{--paper:#ffffff;'
    """
    light = "".join(f"--{colour.name}:{colour.light};" for colour in COLOURS)
    dark = "".join(f"--{colour.name}:{colour.dark};" for colour in COLOURS)
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"
