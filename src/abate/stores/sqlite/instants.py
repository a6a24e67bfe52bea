"""The time in a SQLite file: seconds since 1970 that go on with the machine, whatever happens to its wall clock.

All processes that share a file run on one machine, whose clock since its last start is the same for all of them and is
never set. The file says how far that clock is behind 1970. This is written down when the file is first opened after a
start of the machine: from the wall clock, or from the last instant in the file if the wall clock is behind it. So no
instant comes twice, and until the next start the wall clock is not read again.
"""

from __future__ import annotations

import os
import time
from sqlite3 import Connection

MARK = 1.0
"""Seconds between two instants that are written into the file."""
LATEST = 32_503_680_000.0
"""The year 3000."""
GRAIN = 600.0
"""Seconds by which the instant of the machine's start, where it has to be computed, may be off."""

MACHINE = "time:[4026531834]"
"""The namespace in which Linux counts from the start of the machine; in others it adds an offset."""

_SINCE_START: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed() -> float:
    """Return the seconds since the machine started; on Linux, with those for which it slept."""
    return time.monotonic() if _SINCE_START is None else time.clock_gettime(_SINCE_START)


def start() -> str:
    """Return what tells this start of the machine from others, and from a container that counts from another one."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            this = file.read().strip()
    except OSError:
        return f"about {round((time.time() - elapsed()) / GRAIN) * GRAIN:.0f}"
    try:
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:  # an older kernel has none
        return this
    return this if namespace == MACHINE else f"{this} {namespace}"


def origin(db: Connection) -> float:
    """Return what to add to `elapsed` for the time in this file; needs a transaction that may write."""
    rows = db.execute("SELECT start, origin, mark FROM instant").fetchall()
    this = start()
    if len(rows) != 1 or not all(_instant(number) for number in rows[0][1:]):
        # what another program wrote there is no time: it begins anew
        begun = time.time() - elapsed()
        db.execute("DELETE FROM instant")
        db.execute("INSERT INTO instant VALUES (?, ?, ?)", (this, begun, time.time()))
        return begun
    known, begun, mark = rows[0]
    # a machine that was put back to a snapshot of itself is the same, at an earlier instant
    if known == this.encode() and elapsed() + begun >= mark:
        return float(begun)
    begun = max(time.time(), mark) - elapsed()
    db.execute("UPDATE instant SET start = ?, origin = ?", (this, begun))
    return float(begun)


def _instant(number: object) -> bool:
    """Is this a number of seconds since 1970, of this millennium or before?"""
    return isinstance(number, float) and abs(number) < LATEST


def mark(db: Connection, now: float) -> None:
    """Write down that it has been this late in the file."""
    db.execute("UPDATE instant SET mark = max(mark, ?)", (now,))
