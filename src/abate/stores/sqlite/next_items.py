"""Select the items that are received next: the highest priority first, then the oldest.

One of eight turns goes to the oldest item, whatever its priority.

Turns are counted in the file, since a process may receive only once; and only if there is more than one priority,
since otherwise the first item is the oldest. Each priority takes one query, so there should be few.
"""

from __future__ import annotations

from math import inf
from sqlite3 import Connection
from typing import Any

from abate.stores.encoding import MAX_ATTRIBUTES_BYTES, MAX_KEY_BYTES
from abate.stores.sqlite.queue_statements import NEXT_LOWER_PRIORITY, OF_PRIORITY, OLDEST
from abate.work.key_queue import FAIRNESS_TURNS


def next_items(db: Connection, queue: str, most: int, now: float, longest: int) -> list[tuple[Any, ...]]:
    """Return up to `most` ready items in the order of delivery; bodies are cut after `longest` + 1 bytes."""
    asked = {
        "queue": queue,
        "now": now,
        "longest": longest,
        "longest_key": MAX_KEY_BYTES,
        "longest_attributes": MAX_ATTRIBUTES_BYTES,
    }
    lane = db.execute(NEXT_LOWER_PRIORITY, (queue, inf)).fetchone()
    highest: list[tuple[Any, ...]] = []
    lanes = 0
    while lane is not None and len(highest) < most:
        lanes += 1
        lane_asked = {**asked, "priority": lane[0], "most": most - len(highest)}
        highest += db.execute(OF_PRIORITY, lane_asked).fetchall()
        lane = db.execute(NEXT_LOWER_PRIORITY, (queue, *lane)).fetchone() if lane[0] else None
    if lanes + (lane is not None) < 2:
        return highest
    rows = db.execute("SELECT turns FROM queue WHERE name = ?", (queue,)).fetchall()
    turns = (
        rows[0][0] if rows and rows[0][0] in range(FAIRNESS_TURNS) else 0
    )  # another program may have written anything
    db.execute("UPDATE queue SET turns = ? WHERE name = ?", ((turns + len(highest)) % FAIRNESS_TURNS, queue))
    if turns + len(highest) < FAIRNESS_TURNS:
        return highest
    oldest = [row[:-1] for row in db.execute(OLDEST, {**asked, "most": most})]
    return _interleave(highest, oldest, turns)


def _interleave(highest: list[tuple[Any, ...]], oldest: list[tuple[Any, ...]], turns: int) -> list[tuple[Any, ...]]:
    """Return as many items as `highest` has: the oldest remaining one at each eighth turn, else the highest."""
    picked: dict[int, tuple[Any, ...]] = {}
    for turn in range(turns + 1, turns + 1 + len(highest)):
        line = highest if turn % FAIRNESS_TURNS else oldest
        row = next(row for row in line if row[0] not in picked)
        picked[row[0]] = row
    return list(picked.values())
