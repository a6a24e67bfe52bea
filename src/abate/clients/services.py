"""What a service does with the headers of a request, whatever its framework: shared by ASGI, WSGI and gRPC.

What comes from outside may only shorten or stop, and only a trusted caller's headers count (`abate.clients.trust`):

* a deadline of the caller's is kept where it is nearer than the service's own. It gives the handler `min_deadline` at
  least; only a caller that says that its time is over has nothing begun for it;
* a header that cannot be read, or that was sent more than once, is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from abate.admit.permits import Permits
from abate.clients.exchange import ATTEMPT, DEADLINE
from abate.clients.trust import SECRET, Caller, Trust, Trusted
from abate.clock import Cut
from abate.errors import number
from abate.redact import shown
from abate.schedule.deadlines import remaining

LONGEST = 10.0**6
"""Seconds; a deadline further off than this is none."""
MOST_ATTEMPTS = 10**6
"""A caller that claims to have tried more often than this is not believed."""
LEAST = 0.1
"""Seconds that a handler has at least: the default of `min_deadline`."""

ATTEMPT_KEY, DEADLINE_KEY, SECRET_KEY = ATTEMPT.lower(), DEADLINE.lower(), SECRET.lower()
OWN_KEYS = frozenset({ATTEMPT_KEY, DEADLINE_KEY, SECRET_KEY})
"""The headers that are read from requests, in lower case."""


def _whole(text: str | None) -> int | None:
    """A header's number; None for anything else, signs and endless digits included."""
    digits = "" if text is None else text.strip(" \t")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


class Asked:
    """What a request asks for: which attempt it is, and how many seconds its caller has left (None: no bound)."""

    __slots__ = ("attempt", "left")

    def __init__(self, attempt: str | None, deadline: str | None, least: float = 0.0) -> None:
        claimed = _whole(attempt)
        self.attempt = claimed if claimed and claimed <= MOST_ATTEMPTS else 1
        milliseconds = _whole(deadline)
        if milliseconds is None or milliseconds > LONGEST * 1000:
            self.left = None
        else:
            # who has no time left is answered before anything was begun, which harms nothing
            self.left = max(milliseconds / 1000, least) if milliseconds else 0.0


NOTHING = Asked(None, None)
"""What a request asks for that has no headers of abate's, or whose caller is not trusted."""


class Terms:
    """Whose headers a service believes, and how much of them; and how it answers when it is full."""

    __slots__ = ("least", "permits", "retry_after", "trust")

    def __init__(
        self, trusted: Trusted, min_deadline: float, permits: Permits | None = None, retry_after: float = 1.0
    ) -> None:
        if permits is not None and not isinstance(permits, Permits):
            raise TypeError(f"permits must be Permits, not {shown(permits)}")
        self.trust = Trust(trusted)
        self.least = number("min_deadline", min_deadline, least=0)
        self.permits = permits
        self.retry_after = str(round(number("retry_after", retry_after, least=0)))

    def asked(self, sent: Mapping[str, list[str]], request: Any, peer: str | None) -> Asked | None:
        """What a request with these headers asks for; None if its caller is not trusted."""
        if not self.trust.believes(Caller(request, peer, _only(sent, SECRET_KEY))):
            return None
        return Asked(_only(sent, ATTEMPT_KEY), _only(sent, DEADLINE_KEY), self.least)


def over(cut: Cut | None) -> bool:
    """Is the caller's time over? An event loop's clock may be coarser than ours, and cut a handler off before that."""
    return (cut is not None and cut.expired()) or remaining() == 0.0


def own(headers: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The values of abate's headers among these, whose names are in lower case."""
    sent: dict[str, list[str]] = {}
    for name, value in headers:
        if name in OWN_KEYS:
            sent.setdefault(name, []).append(value)
    return sent


def _only(sent: Mapping[str, list[str]], name: str) -> str | None:
    """A header's value; None where it was sent more than once: one of them may be a stranger's."""
    values = sent.get(name, ())
    return values[0] if len(values) == 1 else None
