"""How a service uses the headers of a request, in any framework: shared by ASGI, WSGI and gRPC.

Headers can only shorten or stop work, and only those of a trusted caller count (`abate.clients.trust`):

* the caller's deadline applies if it is nearer than the service's own. A handler has at least `min_deadline` seconds,
  but nothing is begun for a caller whose time is over;
* a header that cannot be parsed, or that was sent more than once, is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from abate.admit.concurrency import ConcurrencyLimit
from abate.clients.headers import ATTEMPT, DEADLINE
from abate.clients.trust import SECRET, Caller, Trust, Trusted
from abate.clock import TimeoutScope
from abate.errors import number
from abate.redact import short_repr
from abate.schedule.deadlines import remaining

MAX_DEADLINE = 10.0**6
"""Seconds; a deadline further off than this is ignored."""
MAX_ATTEMPT = 10**6
"""A higher attempt number is not believed."""
MIN_DEADLINE = 0.1
"""The default of `min_deadline`: seconds that a handler has at least."""

ATTEMPT_KEY, DEADLINE_KEY, SECRET_KEY = ATTEMPT.lower(), DEADLINE.lower(), SECRET.lower()
ABATE_HEADERS = frozenset({ATTEMPT_KEY, DEADLINE_KEY, SECRET_KEY})
"""The headers that are read from requests, in lower case."""


def _parse_number(text: str | None) -> int | None:
    """Return a header's number; None for anything else, including signs and very long numbers."""
    digits = "" if text is None else text.strip(" \t")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


class CallerLimits:
    """What a caller says: which attempt this is, and how many seconds it has left (None: no bound)."""

    __slots__ = ("attempt", "left")

    def __init__(self, attempt: str | None, deadline: str | None, least: float = 0.0) -> None:
        claimed = _parse_number(attempt)
        self.attempt = claimed if claimed and claimed <= MAX_ATTEMPT else 1
        milliseconds = _parse_number(deadline)
        if milliseconds is None or milliseconds > MAX_DEADLINE * 1000:
            self.left = None
        else:
            # a caller with no time left is answered at once: nothing was begun, so nothing is lost
            self.left = max(milliseconds / 1000, least) if milliseconds else 0.0


NO_LIMITS = CallerLimits(None, None)
"""The limits of a request without abate's headers, or of a caller that is not trusted."""


class ServerSettings:
    """Which callers a service trusts, how short their deadlines may be, and how it answers when it is full."""

    __slots__ = ("least", "permits", "retry_after", "trust")

    def __init__(
        self, trusted: Trusted, min_deadline: float, permits: ConcurrencyLimit | None = None, retry_after: float = 1.0
    ) -> None:
        if permits is not None and not isinstance(permits, ConcurrencyLimit):
            raise TypeError(f"permits must be ConcurrencyLimit, not {short_repr(permits)}")
        self.trust = Trust(trusted)
        self.least = number("min_deadline", min_deadline, least=0)
        self.permits = permits
        self.retry_after = str(round(number("retry_after", retry_after, least=0)))

    def limits_of(self, sent: Mapping[str, list[str]], request: Any, peer: str | None) -> CallerLimits | None:
        """Return what a request with these headers says; None if its caller is not trusted."""
        if not self.trust.believes(Caller(request, peer, _single_value(sent, SECRET_KEY))):
            return None
        return CallerLimits(_single_value(sent, ATTEMPT_KEY), _single_value(sent, DEADLINE_KEY), self.least)


def caller_timed_out(cut: TimeoutScope | None) -> bool:
    """Return whether the caller's time is over; an event loop's coarser clock may have cut a handler off earlier."""
    return (cut is not None and cut.expired()) or remaining() == 0.0


def abate_values(headers: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the values of abate's headers; `headers` have lower-case names."""
    sent: dict[str, list[str]] = {}
    for name, value in headers:
        if name in ABATE_HEADERS:
            sent.setdefault(name, []).append(value)
    return sent


def _single_value(sent: Mapping[str, list[str]], name: str) -> str | None:
    """Return a header's value; None if it was sent more than once, as one of them may be a stranger's."""
    values = sent.get(name, ())
    return values[0] if len(values) == 1 else None
