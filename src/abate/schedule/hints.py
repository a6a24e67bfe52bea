"""The wait that a server asked for, in seconds: `Retry-After` and gRPC's pushback; and how to come back after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from abate import clock

if TYPE_CHECKING:
    from abate.schedule.backoff import Schedule

LONGEST = 10.0**9
"""Seconds; a hint of more than thirty years is taken as this much. It stops the call either way."""

STOP = float("inf")
"""The hint that means: do not come back."""

SPREAD = 0.9
"""Hinted clients come back over at least this share of the hint, or they come as a second herd."""

FAR = 10_000
"""The number of a retry at which every backoff has reached its cap."""


def retry_after(value: str | None, *, now: float | None = None, date: str | None = None) -> float | None:
    """Seconds asked for by a ``Retry-After`` header, or None where it cannot be read.

    Both forms of the header are read: seconds and an HTTP date. `now` is the wall clock (seconds since 1970);
    `date` is the response's own ``Date`` header: given that, a server whose clock is off is still understood.
    A date that has passed asks for no wait.

    >>> retry_after(" 120 ")
    120.0
    >>> retry_after("Fri, 31 Dec 1999 23:59:59 GMT", now=946684789.0)
    10.0
    >>> retry_after("soon") is None
    True
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST)  # too many digits make it infinite, never an error
    asked = _instant(text)
    if asked is None:
        return None
    sent = _instant(date.strip()) if date is not None else None
    if sent is None:
        sent = clock.current().wall() if now is None else now
    return min(max(0.0, asked - sent), LONGEST)


def pushback(value: str | None) -> float | None:
    """Seconds asked for by gRPC's ``grpc-retry-pushback-ms``; `STOP` where it is negative or unreadable.

    >>> pushback("250"), pushback("-1"), pushback(None)
    (0.25, inf, None)
    """
    if value is None:
        return None
    text = value.strip()
    if not (text.isascii() and text.isdigit()):
        return STOP
    seconds = float(text) / 1000.0
    return seconds if seconds <= LONGEST else STOP


def after_hint(hint: float, plan: Schedule, retry: int, own: float) -> float:
    """The hint, with the retry's own delay on top, spread over enough of the hint.

    >>> from abate.schedule import Backoff
    >>> after_hint(10.0, Backoff(1.0, 30.0), retry=1, own=0.5)
    14.5
    """
    if not plan.jittered:  # the user's own numbers are taken as they are, and a function is not asked about FAR
        return hint + own
    ceiling, spread = plan.ceiling(retry), min(hint * SPREAD, plan.ceiling(FAR))
    # decorrelated delays that began with an overload may lie above the ceiling of a blip
    return hint + (min(own, ceiling) / ceiling * spread if spread > ceiling > 0 else own)


def _instant(text: str) -> float | None:
    """Seconds since 1970 of an HTTP date, or None."""
    from email.utils import mktime_tz, parsedate_tz

    parsed = parsedate_tz(text)
    if parsed is None:
        return None
    try:
        return float(mktime_tz(parsed))
    except (OverflowError, ValueError):
        return None
