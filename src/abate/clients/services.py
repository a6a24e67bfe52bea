"""What a service does with the headers of a request, whatever its framework: shared by the ASGI and WSGI middleware.

What comes from outside may only shorten or stop: a deadline of the caller's is kept where it is nearer than the
service's own, and one that cannot be read is ignored.
"""

from __future__ import annotations

from abate.admit.permits import Permits
from abate.errors import number

LONGEST = 10.0**6
"""Seconds; a deadline further off than this is none."""


class Terms:
    """How a middleware answers when it is full, and how much of a caller's deadline it believes."""

    __slots__ = ("permits", "retry_after")

    def __init__(self, permits: Permits | None, retry_after: float) -> None:
        if permits is not None and not isinstance(permits, Permits):
            raise TypeError(f"permits must be Permits, not {permits!r}")
        self.permits = permits
        self.retry_after = str(round(number("retry_after", retry_after, least=0)))


class Asked:
    """What a request said: which attempt it is, and how many seconds its caller has left (None: no bound)."""

    __slots__ = ("attempt", "left")

    def __init__(self, attempt: str | None, deadline: str | None) -> None:
        self.attempt = _whole(attempt) or 1
        milliseconds = _whole(deadline)
        self.left = None if milliseconds is None or milliseconds > LONGEST * 1000 else milliseconds / 1000


def _whole(text: str | None) -> int | None:
    """A header's number; None for anything else, signs and endless digits included."""
    digits = "" if text is None else text.strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
