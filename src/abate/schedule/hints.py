"""Hints: the wait that a server asks for (`Retry-After`, gRPC's pushback), and the delay that follows from it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from abate import clock

if TYPE_CHECKING:
    from abate.schedule.backoff import Schedule

MAX_HINT = 10.0**9
"""The largest hint, in seconds (thirty years). A longer one is a mistake or an attack, and is no hint."""
MAX_CHARS = 100
"""Characters of a header's value; a longer one is no hint."""
NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
"""Seconds, with a fraction or without; no sign, no exponent."""

NEVER = float("inf")
"""The hint that means not to retry."""

SPREAD = 0.67
"""Retries after a hint are spread over at least this share of the hint, so that clients don't return all at once."""

ROOM = 0.2
"""The share of the time between a hint and the deadline in which no retry begins: an attempt takes time, too."""

CAPPED_RETRY = 10_000
"""A retry number at which every backoff has reached its cap."""


def retry_after(value: str | None, *, now: float | None = None, date: str | None = None) -> float | None:
    """Return the seconds of a ``Retry-After`` header, or None if it cannot be read.

    Both forms of the header are read: seconds (fractions too) and an HTTP date. `now` is the wall clock (seconds since
    1970); `date` is the response's own ``Date`` header; with it, the result is right even if the server's clock is
    wrong. A date that has passed asks for no wait. A wait longer than `MAX_HINT` is no hint.

    >>> retry_after(" 120 "), retry_after("1.5"), retry_after("9" * 18)
    (120.0, 1.5, None)
    >>> retry_after("Fri, 31 Dec 1999 23:59:59 GMT", now=946684789.0)
    10.0
    >>> retry_after("soon") is None
    True
    """
    if value is None or len(value) > MAX_CHARS:
        return None
    text = value.strip()
    if NUMBER.fullmatch(text):
        seconds = float(text)
    else:
        asked = date_to_instant(text)
        if asked is None:
            return None
        sent = None if date is None else date_to_instant(date)
        if sent is None:
            sent = clock.current().wall() if now is None else now
        seconds = max(0.0, asked - sent)
    return seconds if seconds <= MAX_HINT else None


def pushback(value: str | None) -> float | None:
    """Return the seconds of gRPC's ``grpc-retry-pushback-ms``; `NEVER` if it is negative or unreadable.

    >>> pushback("250"), pushback("-1"), pushback(None)
    (0.25, inf, None)
    """
    if value is None:
        return None
    text = value.strip()
    if not (text.isascii() and text.isdigit()):
        return NEVER
    seconds = float(text) / 1000.0
    return seconds if seconds <= MAX_HINT else NEVER


def delay_after_hint(hint: float, plan: Schedule, retry: int, own: float, left: float | None = None) -> float:
    """Return the hint plus the retry's own delay, stretched so that retries spread over `SPREAD` of the hint.

    `left` is the number of seconds until the call's deadline. If a hint ends before it, and its spread does not, the
    retries spread over the time between the two, except for the last part of it (`ROOM`), which is for the attempt.

    >>> from abate.schedule import Backoff
    >>> delay_after_hint(10.0, Backoff(1.0, 30.0), retry=1, own=0.5)
    13.35
    >>> delay_after_hint(10.0, Backoff(1.0, 30.0), retry=1, own=0.5, left=15.0)
    12.0
    """
    longest = own  # without jitter the user's own numbers are used: a function may be undefined for `CAPPED_RETRY`
    if plan.jittered:
        ceiling, spread = plan.ceiling(retry), min(hint * SPREAD, plan.ceiling(CAPPED_RETRY))
        # decorrelated delays that began with an overload may lie above the ceiling of a blip
        longest = max(own, ceiling)
        if spread > ceiling > 0:
            own, longest = min(own, ceiling) / ceiling * spread, spread
    if left is not None:
        available = (left - hint) * (1.0 - ROOM)
        if 0.0 < available < longest:
            own *= available / longest
    return hint + own


def date_to_instant(text: str) -> float | None:
    """Return an HTTP date as seconds since 1970, or None."""
    if len(text) > MAX_CHARS:
        return None
    from email.utils import mktime_tz, parsedate_tz

    parsed = parsedate_tz(text.strip())
    if parsed is None:
        return None
    try:
        return float(mktime_tz(parsed))
    except (OverflowError, ValueError):
        return None
