"""The wait that a server asked for, in seconds: `Retry-After` and gRPC's pushback."""

from __future__ import annotations

from abate import clock

LONGEST = 10.0**9
"""Seconds; a hint of more than thirty years is taken as this much. It stops the call either way."""

STOP = float("inf")
"""The hint that means: do not come back."""


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
