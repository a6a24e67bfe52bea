"""The clock of a SQLite file: seconds since 1970 that never go back, even if the wall clock is set.

All processes that share a file run on one machine, so they share its clock since boot, which is never set. The file
stores the offset of that clock from 1970 (the origin). The origin is written when the file is first opened after a
boot: from the wall clock, or from the last mark in the file if the wall clock is behind it. So time never goes back,
and the wall clock is not read again until the next boot.
"""

from __future__ import annotations

import os
import time
from sqlite3 import Connection

MARK_INTERVAL = 1.0
"""Seconds between two marks: instants written into the file."""
MAX_INSTANT = 32_503_680_000.0
"""The year 3000."""
BOOT_TIME_GRAIN = 600.0
"""Tolerance in seconds of a boot time that has to be computed."""

MACHINE = "time:[4026531834]"
"""Linux's initial time namespace, which counts from boot; other namespaces add an offset."""

_SINCE_START: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def seconds_since_boot() -> float:
    """Return the seconds since boot; on Linux, including the time of suspension."""
    return time.monotonic() if _SINCE_START is None else time.clock_gettime(_SINCE_START)


def boot_id() -> str:
    """Return an identifier of this boot, and of the time namespace if it is not the initial one."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            this = file.read().strip()
    except OSError:
        return f"about {round((time.time() - seconds_since_boot()) / BOOT_TIME_GRAIN) * BOOT_TIME_GRAIN:.0f}"
    try:
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:  # an older kernel has no time namespaces
        return this
    return this if namespace == MACHINE else f"{this} {namespace}"


def origin(db: Connection) -> float:
    """Return the offset of this file's time from `seconds_since_boot`; needs a write transaction."""
    rows = db.execute("SELECT start, origin, mark FROM instant").fetchall()
    this = boot_id()
    if len(rows) != 1 or not all(_instant(number) for number in rows[0][1:]):
        # another program has written an invalid time: start from the wall clock
        begun = time.time() - seconds_since_boot()
        db.execute("DELETE FROM instant")
        db.execute("INSERT INTO instant VALUES (?, ?, ?)", (this, begun, time.time()))
        return begun
    known, begun, mark = rows[0]
    # a machine restored from a snapshot has the same boot id, but an earlier time than the mark
    if known == this.encode() and seconds_since_boot() + begun >= mark:
        return float(begun)
    begun = max(time.time(), mark) - seconds_since_boot()
    db.execute("UPDATE instant SET start = ?, origin = ?", (this, begun))
    return float(begun)


def _instant(number: object) -> bool:
    """Return whether this is a number of seconds since 1970 before the year 3000."""
    return isinstance(number, float) and abs(number) < MAX_INSTANT


def mark(db: Connection, now: float) -> None:
    """Record `now` in the file, unless a later instant is recorded."""
    db.execute("UPDATE instant SET mark = max(mark, ?)", (now,))
