"""The Lua scripts of a store in Redis: one for each operation, sent once and called by their digest from then on.

A script runs as a whole or not at all, and what it wrote is what is replicated (effects, not the script). Each does a
bounded amount of work: `BATCH` messages at most, and nothing that grows with the number of keys in the server.
The rules' numbers are written into the scripts from where Python has them, so that they are stated once.
"""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from typing import Final

from abate.admit.window import MOST, SLOTS
from abate.stores.envelope import LONGEST
from abate.stores.fleet import offers, rules, weather
from abate.stores.input import HIGHEST, LONGEST_SHOWN
from abate.work.keys import TURNS

BATCH: Final = 100
"""Messages in one call of a script."""
LANES: Final = 100
"""Priorities that are looked at in one turn; those below are taken by age."""
LATE: Final = 0.5
"""Seconds by which one who watches for a message's instant may be late before another takes its place."""
KEPT_FOR: Final = 600
"""Seconds for which what a fleet shares is kept after it has lost its meaning."""

LONGEST_KEPT: Final = 366 * 24 * 3600
"""Seconds for which a budget's counts are kept at most, whatever instants another program wrote into them."""

FOLDER = files("abate.stores.redis").joinpath("lua")


class Script:
    """The text of a script, of several files, and its digest."""

    __slots__ = ("digest", "name", "text")

    def __init__(self, *parts: str, **numbers: float) -> None:
        self.name = parts[-1]
        stated = "".join(f"local {name} = {number!r}\n" for name, number in numbers.items())
        self.text = stated + "\n".join(FOLDER.joinpath(f"{part}.lua").read_text("utf-8") for part in parts)
        self.digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


def _of_queue(name: str, **numbers: float) -> Script:
    return Script("clock", "queue", name, HIGHEST=HIGHEST, LATE=LATE, BATCH=BATCH, **numbers)


ADD = _of_queue("add")
CANCEL = _of_queue("cancel")
RECEIVE = _of_queue("receive", TURNS=TURNS, LANES=LANES)
EXTEND = _of_queue("extend")
SETTLE = _of_queue("settle")
LETTERS = _of_queue("letters", LONGEST=LONGEST + LONGEST_SHOWN + 2)
EXHUME = _of_queue("exhume")
DEPTH = _of_queue("depth")

COUNTING = {"SLOTS": SLOTS, "MOST": MOST, "KEPT_FOR": KEPT_FOR, "LONGEST": LONGEST_KEPT}
BALANCE = Script("clock", "counts", "balance", **COUNTING)
EXCHANGE = Script("clock", "counts", "exchange", **COUNTING)
TOKENS = Script("clock", "counts", "members", "tokens", GONE=offers.GONE, **COUNTING)
SHARE = Script("clock", "share", GONE=offers.GONE, KEPT=rules.KEPT, IDLE=rules.IDLE, KEPT_FOR=KEPT_FOR)
FORECAST = Script(
    "clock",
    "members",
    "weather",
    "forecast",
    GONE=offers.GONE,
    KEPT_FOR=KEPT_FOR,
    LATELY=weather.LATELY,
    TURN=weather.TURN,
    FIRST=weather.FIRST,
    EIGHTH=weather.EIGHTH,
    GROWTH=weather.GROWTH,
    EVERY=weather.EVERY,
    GENTLY=weather.GENTLY,
    SHED=weather.SHED,
    PLENTY=weather.PLENTY,
    STALE=weather.STALE,
    LONGEST=weather.LONGEST,
)
