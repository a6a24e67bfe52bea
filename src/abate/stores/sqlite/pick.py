"""Which items are next: a higher priority first, then those that have been ready for longest; one of eight turns is
for the oldest, whatever its priority.

Turns are counted in the file, as a process may live for one of them only; and only where there is more than one
priority, as otherwise the first is the oldest. Priorities are looked at one after the other, so they should be few.
"""

from __future__ import annotations

from math import inf
from sqlite3 import Connection
from typing import Any

from abate.stores.envelope import LONGEST
from abate.stores.input import LONGEST_KEY
from abate.stores.sqlite.statements import LOWER, OF_PRIORITY, OLDEST
from abate.work.keys import TURNS


def pick(db: Connection, queue: str, most: int, now: float, longest: int) -> list[tuple[Any, ...]]:
    """Up to so many items that are ready, in the order in which they are to be handed out.

    What is longer than a body may be, `longest`, is cut off.
    """
    asked = {
        "queue": queue,
        "now": now,
        "longest": longest,
        "longest_key": LONGEST_KEY,
        "longest_attributes": LONGEST,
    }
    lane = db.execute(LOWER, (queue, inf)).fetchone()
    highest: list[tuple[Any, ...]] = []
    lanes = 0
    while lane is not None and len(highest) < most:
        lanes += 1
        lane_asked = {**asked, "priority": lane[0], "most": most - len(highest)}
        highest += db.execute(OF_PRIORITY, lane_asked).fetchall()
        lane = db.execute(LOWER, (queue, *lane)).fetchone() if lane[0] else None
    if lanes + (lane is not None) < 2:
        return highest
    rows = db.execute("SELECT turns FROM queue WHERE name = ?", (queue,)).fetchall()
    turns = rows[0][0] if rows and rows[0][0] in range(TURNS) else 0  # another program may have written anything
    db.execute("UPDATE queue SET turns = ? WHERE name = ?", ((turns + len(highest)) % TURNS, queue))
    if turns + len(highest) < TURNS:
        return highest
    oldest = [row[:-1] for row in db.execute(OLDEST, {**asked, "most": most})]
    return _in_turn(highest, oldest, turns)


def _in_turn(highest: list[tuple[Any, ...]], oldest: list[tuple[Any, ...]], turns: int) -> list[tuple[Any, ...]]:
    """As many as are in both: at each eighth turn the oldest that is left, else the highest."""
    picked: dict[int, tuple[Any, ...]] = {}
    for turn in range(turns + 1, turns + 1 + len(highest)):
        line = highest if turn % TURNS else oldest
        row = next(row for row in line if row[0] not in picked)
        picked[row[0]] = row
    return list(picked.values())
