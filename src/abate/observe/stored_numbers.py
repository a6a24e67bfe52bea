"""Numbers that come from a store, or from a source of the user's own: a wrong one is left out and named.

Other programs write to a store, too. One bad row (not a number, below 0, beyond all measure, a text) must not keep
everything else from being shown.
"""

from __future__ import annotations

import math
from typing import Any

from abate.values import Value

MOST = 2.0**53
"""Beyond this, browsers and floats don't tell whole numbers apart."""
LONGEST = 40
"""Characters of a wrong number that are shown."""


class Reading(Value):
    """How deep a queue is. A number that its source can't tell, or tells wrongly, is None; `wrong` says what it told.

    >>> from abate.stores import Depth
    >>> reading(Depth(ready=2, age=float("nan")))
    Reading(ready=2, delayed=0, dead=0, age=None, wrong='wrong numbers: age is nan')
    """

    ready: int | None = None
    delayed: int | None = None
    dead: int | None = None
    age: float | None = None
    wrong: str | None = None


def reading(depth: Any) -> Reading:
    """Return what can be shown of a depth, whatever its source has put into it."""
    if depth is None:
        return Reading()
    found: dict[str, Any] = {}
    wrong = []
    for name in ("ready", "delayed", "dead", "age"):
        value = getattr(depth, name, None)
        found[name] = value if is_number(value, least=0.0) else None
        if value is not None and found[name] is None:
            wrong.append(f"{name} is {shown(value)}")
    return Reading(**found, wrong=f"wrong numbers: {', '.join(wrong)}" if wrong else None)


def is_number(value: object, *, least: float = -MOST, infinite: bool = False) -> bool:
    """Is this a number that can be shown?

    >>> [is_number(value) for value in (1, -0.5, "1", True, math.nan, math.inf, 10**400)]
    [True, True, False, False, False, False, False]
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return least <= value <= MOST or (infinite and value == math.inf)


def shown(value: object) -> str:
    """Return a wrong number as text, cut."""
    try:
        text = repr(value)
    except Exception:  # an int too long to be written, a type of the user's
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
