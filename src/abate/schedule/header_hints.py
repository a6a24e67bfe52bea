"""Reads the wait that an HTTP error response asks for, in its headers or in its JSON body.

The first of these that can be read counts:

1. ``retry-after-ms`` (milliseconds), else ``Retry-After`` (seconds, fractions too, or a date); ``x-amz-retry-after``
   (milliseconds) beside it counts if it is longer.
2. Google's ``RetryInfo.retryDelay`` in a JSON body.
3. Rate limits: ``x-ratelimit-*-requests`` and ``-tokens``, ``anthropic-ratelimit-*``, and ``RateLimit`` of the IETF. A
   429 waits for the limit that was exceeded (`_longest_wait`); a 503 or 529 only for one with nothing remaining.

A value that is malformed, negative, or longer than `MAX_HINT` is no hint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from abate import clock
from abate.schedule.hints import MAX_CHARS, MAX_HINT, NUMBER, date_to_instant, retry_after

__all__ = ["error_body", "find_hint", "http_hint", "lower_case"]

MAX_LIST_CHARS = 2000
"""Characters of a ``RateLimit`` header, which lists several limits."""
MAX_BODY = 65_536
"""Bytes of a body; a longer one is not parsed."""
MAX_DETAILS = 100
"""Details of a Google error that are read."""

DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h|d))+", re.ASCII)
DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(\D+)", re.ASCII)
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# possessive, and from the beginning of a word: linear, whatever the header holds
PARAMETER = re.compile(r"(?<!\w)(\w++)\s*+=\s*+(\d++)", re.ASCII)

RETRY_INFO = "google.rpc.RetryInfo"
OPENAI_LIMITS = ("requests", "tokens")
ANTHROPIC_LIMITS = ("requests", "tokens", "input-tokens", "output-tokens")


class _Limit(NamedTuple):
    """One rate limit as a response tells it."""

    by_request: bool
    """Whether each request takes exactly one of it."""
    remaining: float | None
    wait: float | None
    """Seconds until it is restored; None if that is not told."""


def http_hint(
    status: int, headers: Mapping[str, Any] | None, body: object = None, *, now: float | None = None
) -> float | None:
    """Return the seconds that an error response asks its client to wait, or None.

    `now` is the wall clock (seconds since 1970), for dates; the response's own ``Date`` header is preferred to it.

    >>> http_hint(503, {"Retry-After": "2.5"}), http_hint(503, {"Retry-After": "3", "retry-after-ms": "2750"})
    (2.5, 2.75)
    >>> http_hint(429, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m3.5s"})
    63.5
    >>> http_hint(429, None, b'{"error": {"details": [{"@type": "google.rpc.RetryInfo", "retryDelay": "3.5s"}]}}')
    3.5
    >>> http_hint(429, {"Retry-After": "NaN"}) is None
    True
    """
    return find_hint(status, lower_case(headers), body, now)


def find_hint(status: int, known: Mapping[str, str], body: object = None, now: float | None = None) -> float | None:
    """Do the same, given the headers as `lower_case` returns them."""
    asked = _explicit(known, now) if known else None
    if asked is None and body is not None:
        asked = _retry_info(error_body(body))
    if asked is None and status in (429, 503, 529):
        asked = _longest_wait(list(_limits(known, now)), exhausted_only=status != 429)
    return asked


def lower_case(headers: Mapping[str, Any] | None) -> dict[str, str]:
    """Return headers as a dict with names in lower case; values of a repeated name are joined, as HTTP says."""
    known: dict[str, str] = {}
    for name, value in () if headers is None else headers.items():
        if isinstance(value, (str, int, float)):
            name, text = str(name).lower(), value if isinstance(value, str) else _written(value)
            known[name] = f"{known[name]}, {text}" if name in known else text
    return known


def error_body(body: object) -> Mapping[str, Any] | None:
    """Return the JSON object in the body of an error response; None if it has none, or is longer than `MAX_BODY`.

    A list with one object (Gemini's streams) counts as that object.

    >>> error_body(b'[{"error": {"code": 429}}]')
    {'error': {'code': 429}}
    """
    if isinstance(body, (bytes, bytearray, str)):
        if len(body) > MAX_BODY:
            return None
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return None
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    return body if isinstance(body, Mapping) else None


def _explicit(known: Mapping[str, str], now: float | None) -> float | None:
    """Return the wait of the headers whose only purpose is to ask for one."""
    asked = _milliseconds(known.get("retry-after-ms"))
    if asked is None:
        asked = retry_after(known.get("retry-after"), now=now, date=known.get("date"))
    amazon = _milliseconds(known.get("x-amz-retry-after"))
    return asked if amazon is None else max(amazon, asked or 0.0)


def _retry_info(body: Mapping[str, Any] | None) -> float | None:
    """Return the wait in the details of a Google error."""
    error = None if body is None else body.get("error", body)
    details = error.get("details") if isinstance(error, Mapping) else None
    for detail in details[:MAX_DETAILS] if isinstance(details, list) else ():
        kind = detail.get("@type") if isinstance(detail, Mapping) else None
        if isinstance(kind, str) and kind.endswith(RETRY_INFO):
            return _duration(detail.get("retryDelay"))
    return None


def _limits(known: Mapping[str, str], now: float | None) -> Iterator[_Limit]:
    """Yield the rate limits that the headers tell."""
    for unit in OPENAI_LIMITS:
        reset = known.get(f"x-ratelimit-reset-{unit}")
        if reset is not None:
            remaining = _number(known.get(f"x-ratelimit-remaining-{unit}"))
            yield _Limit(unit == "requests", remaining, _duration(reset))
    for unit in ANTHROPIC_LIMITS:
        reset = known.get(f"anthropic-ratelimit-{unit}-reset")
        if reset is not None:
            remaining = _number(known.get(f"anthropic-ratelimit-{unit}-remaining"))
            yield _Limit(unit == "requests", remaining, _seconds_until(reset, known.get("date"), now))
    yield from _ietf_limits(known)


def _ietf_limits(known: Mapping[str, str]) -> Iterator[_Limit]:
    """Yield the limits of the IETF's headers: ``"name";r=0;t=30``; before draft 8, in one header or three."""
    listed = known.get("ratelimit", "")
    if len(listed) <= MAX_LIST_CHARS:
        old = dict(PARAMETER.findall(listed))
        if "remaining" in old:
            yield _Limit(True, _number(old["remaining"]), _duration(old.get("reset")))
        else:
            for item in listed.split(","):
                told = dict(PARAMETER.findall(item))
                if "r" in told:
                    yield _Limit(True, _number(told["r"]), _duration(told.get("t")))
    if "ratelimit-remaining" in known:
        yield _Limit(True, _number(known["ratelimit-remaining"]), _duration(known.get("ratelimit-reset")))


def _longest_wait(limits: list[_Limit], *, exhausted_only: bool) -> float | None:
    """Return the wait for the limits that may have refused the request.

    These are the ones with nothing remaining. If there are none, the request wanted more than remains of something: of
    a limit that doesn't tell what remains, or of one that is not counted by requests, because a request takes exactly
    one of those. The longest of several waits counts: earlier, the same limit would refuse the request again. If a
    limit is exhausted and doesn't tell until when, the others say nothing.
    """
    exhausted = [limit for limit in limits if limit.remaining == 0]
    if not exhausted and not exhausted_only:
        exhausted = [limit for limit in limits if limit.remaining is None or not limit.by_request]
    return max((limit.wait for limit in exhausted if limit.wait is not None), default=None)


def _milliseconds(text: str | None) -> float | None:
    value = _number(text)
    return None if value is None else _bounded(value / 1000.0)


def _duration(text: object) -> float | None:
    """Return the seconds of a duration such as ``1m3.5s`` or ``30``; None for zero, which stands for "not known"."""
    if not isinstance(text, str) or len(text) > MAX_CHARS:
        return None
    text = text.strip()
    seconds = _number(text)
    if seconds is None:
        if DURATION.fullmatch(text) is None:
            return None
        seconds = sum(float(number) * UNITS[unit] for number, unit in DURATION_PART.findall(text))
    return _bounded(seconds) or None


def _seconds_until(text: str, date: str | None, now: float | None) -> float | None:
    """Return the seconds until an RFC 3339 date, by the response's own date if it has one; None if it has passed."""
    if len(text) > MAX_CHARS:
        return None
    from datetime import datetime

    try:
        asked = datetime.fromisoformat(text.strip())
        if asked.tzinfo is None:
            return None
        until = asked.timestamp()
    except (ValueError, OverflowError):
        return None
    sent = None if date is None else date_to_instant(date)
    if sent is None:
        sent = clock.current().wall() if now is None else now
    return _bounded(until - sent) or None


def _number(text: str | None) -> float | None:
    """Return a number that is not negative, or None."""
    if text is None or len(text) > MAX_CHARS:
        return None
    text = text.strip()
    return float(text) if NUMBER.fullmatch(text) else None


def _bounded(seconds: float) -> float | None:
    return seconds if 0.0 <= seconds <= MAX_HINT else None


def _written(value: float) -> str:
    """Return a number as text; an absurd one as no number."""
    return repr(value) if abs(value) <= MAX_HINT * 1000 else ""
