"""HTTP's own rules, with no HTTP library: status, method and headers as plain values.

Every client judges by this one table:

* 408, 425, 429, 500, 502, 503 and 504 are worth another attempt; 408, 429, 503 and 504 mean overload;
* every other status of 400 and above is fatal, 501 and 505 among them;
* GET, HEAD, OPTIONS and TRACE are safe to repeat; any other method needs an ``Idempotency-Key``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abate.decide.outcome import FATAL, Outcome, Ruling
from abate.decide.rules import Rule
from abate.frozen import Frozen
from abate.schedule.hints import retry_after

__all__ = ["judge", "repeatable", "status", "transient", "transient_result"]

RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
OVERLOADED = frozenset({408, 429, 503, 504})
TIMED_OUT = frozenset({408, 504})
"""Statuses of a timeout at the server or a proxy: the request may have been processed or not."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
KEY_HEADER = "Idempotency-Key"

Headers = Mapping[str, str]


def judge(status: int, headers: Headers | None = None, *, safe: bool | None = None) -> Ruling | None:
    """Return the ruling on a response by its status and headers; None below 400.

    `safe` says whether the request may be repeated, where that is known (see `repeatable`).

    >>> judge(503, {"retry-after": "7"})
    Ruling(retry=True, reason='overload', hint=7.0, reached=True, safe=None, answered=True)
    >>> judge(404).retry
    False
    """
    if status < 400:
        return None
    return _retry_ruling(status, headers, safe) if status in RETRYABLE else FATAL


def _retry_ruling(status: int, headers: Headers | None, safe: bool | None) -> Ruling:
    hint = retry_after(header(headers, "Retry-After"), date=header(headers, "Date"))
    return Ruling(True, "overload" if status in OVERLOADED else "blip", hint, True, safe, status not in TIMED_OUT)


def repeatable(method: str, headers: Headers | None = None) -> bool:
    """Return whether a request may be sent twice: its method is safe, or it carries an ``Idempotency-Key``.

    >>> repeatable("GET"), repeatable("POST"), repeatable("POST", {"Idempotency-Key": "8e03978e"})
    (True, False, True)
    """
    return method.upper() in SAFE_METHODS or bool(header(headers, KEY_HEADER))


def header(headers: Headers | None, name: str) -> str | None:
    """Return the value of a header, whose name is not case-sensitive.

    >>> header({"RETRY-AFTER": "3"}, "Retry-After")
    '3'
    """
    if not headers:
        return None
    value: object = headers.get(name)
    if value is None:
        wanted = name.lower()
        value = next((text for key, text in headers.items() if str(key).lower() == wanted), None)
    return None if value is None else str(value)


def status(*codes: int) -> Rule:
    """Retry errors that carry one of these statuses, whatever the table says.

    >>> class Locked(Exception): status_code = 423
    >>> status(423).judge(Outcome(error=Locked())).retry
    True
    """
    for code in codes:
        if isinstance(code, bool) or not isinstance(code, int) or not 400 <= code <= 599:
            raise ValueError(f"status must be a code from 400 to 599, not {code!r}")
    return OnStatus(frozenset(codes))


class OnStatus(Rule):
    """Errors that carry one of `codes`."""

    codes: frozenset[int]

    def judge(self, outcome: Outcome) -> Ruling | None:
        seen = _Response.of(outcome.error)
        if seen is None or seen.status not in self.codes:
            return None
        return _retry_ruling(seen.status, seen.headers, seen.safe)


class OnTransient(Rule):
    """Errors, or results, that carry a status, judged by the table."""

    reads_results: bool

    def judge(self, outcome: Outcome) -> Ruling | None:
        source = outcome.result if self.reads_results and outcome.error is None else outcome.error
        seen = _Response.of(source)
        return None if seen is None else judge(seen.status, seen.headers, safe=seen.safe)


class _Response(Frozen):
    """Status and headers of an error or a response of any HTTP library."""

    status: int
    headers: Headers | None
    safe: bool | None

    @classmethod
    def of(cls, source: object) -> _Response | None:
        response = _read(source, "response")
        carrier = source if response is None else response
        for name in ("status_code", "status", "code"):
            code = _read(carrier, name)
            if isinstance(code, int) and not isinstance(code, bool):
                # the first number is the status; aiohttp warns about further access
                return cls(code, _headers(carrier), _safe(source, carrier)) if 400 <= code <= 599 else None
        return None


def _read(source: object, name: str) -> Any:
    """Return an attribute, or None if it does not exist or raises, as httpx's `request` does when not set."""
    try:
        return getattr(source, name, None)
    except Exception:
        return None


def _headers(carrier: object) -> Headers | None:
    headers = _read(carrier, "headers")
    # http.client.HTTPMessage reads like a mapping without being one
    return headers if hasattr(headers, "get") and hasattr(headers, "items") else None


def _safe(*carriers: object) -> bool | None:
    """Return whether the request of an error may be repeated; None if the error doesn't carry its request."""
    for carrier in carriers:
        for name in ("request", "request_info"):
            request = _read(carrier, name)
            method = _read(request, "method")
            if isinstance(method, str):
                return repeatable(method, _headers(request))
    return None


transient = OnTransient(reads_results=False)
"""Retry errors that carry an HTTP status, by the table: of httpx, requests, aiohttp, urllib, or your own."""

transient_result = OnTransient(reads_results=True)
"""The same for functions that return the response instead of raising."""
