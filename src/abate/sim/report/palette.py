"""The colours and markers of pictures, by meaning.

No two of them mean the same thing, and lines differ by their markers too: colour is never the only sign.
"""

from __future__ import annotations

PAPER = "#ffffff"
INK = "#1f2328"
MUTED = "#59636e"
GRID = "#dde1e6"
TROUBLE = "#fbe9c0"
"""While a trigger is active."""
CALLS = "#c4cbd3"
ATTEMPTS = "#d55e01"
GOODPUT = "#0072b3"
DOTS = "#3d7ea6"
NEVER = "#c2452d"
"""In a map: no recovery."""
SCALE = ("#e8f1fa", "#c5dcf0", "#94c0e2", "#5c9dcc", "#2f76ae", "#14507f")
"""In a map: from the shortest recovery to the longest."""
LINES = ("#0072b2", "#d55e00", "#00866a", "#a63d82", "#a77500", "#4d4d4d", "#3b3bbf", "#7f3b12")
"""Of the variants, in their order."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""As matplotlib names them, in the order of `LINES`."""
