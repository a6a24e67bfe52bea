"""Check numbers that come from a store or from a user's own source: a wrong one is left out and named.

Other programs write to stores, too. One bad row (NaN, negative, huge, a text) must not hide everything else.
"""

from __future__ import annotations

import math
from typing import Any

from abate.frozen import Frozen

MAX_EXACT = 2.0**53
"""Floats and browsers cannot represent all whole numbers beyond this."""
MAX_SHOWN = 40
"""Characters of a wrong number that are shown."""


class CheckedDepth(Frozen):
    """The depth of a queue. A number that its source does not know, or gets wrong, is None; `wrong` shows what it said.

    >>> from abate.stores import Depth
    >>> check_depth(Depth(ready=2, age=float("nan")))
    CheckedDepth(ready=2, delayed=0, dead=0, age=None, wrong='wrong numbers: age is nan')
    """

    ready: int | None = None
    delayed: int | None = None
    dead: int | None = None
    age: float | None = None
    wrong: str | None = None


def check_depth(depth: Any) -> CheckedDepth:
    """Return the valid parts of a depth."""
    if depth is None:
        return CheckedDepth()
    found: dict[str, Any] = {}
    wrong = []
    for name in ("ready", "delayed", "dead", "age"):
        value = getattr(depth, name, None)
        found[name] = value if is_number(value, least=0.0) else None
        if value is not None and found[name] is None:
            wrong.append(f"{name} is {show_number(value)}")
    return CheckedDepth(**found, wrong=f"wrong numbers: {', '.join(wrong)}" if wrong else None)


def is_number(value: object, *, least: float = -MAX_EXACT, infinite: bool = False) -> bool:
    """Return whether this is a number that can be shown.

    >>> [is_number(value) for value in (1, -0.5, "1", True, math.nan, math.inf, 10**400)]
    [True, True, False, False, False, False, False]
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return least <= value <= MAX_EXACT or (infinite and value == math.inf)


def show_number(value: object) -> str:
    """Return a wrong number as text, cut."""
    try:
        text = repr(value)
    except Exception:  # an int too long to write, or a type of the user's
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"
