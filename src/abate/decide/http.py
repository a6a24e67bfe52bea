"""HTTP's own rules, with no HTTP library: status, method, headers and body as plain values.

Every client judges by this one table:

========================================  ===========================================================================
408, 425, 429, 5xx but 501 and 505        worth another attempt
any other status of 400 and above         fatal
``x-should-retry: true`` or ``false``     decides instead of the status; a 409 is retried only with it
429 with ``insufficient_quota`` in JSON   fatal: a quota that is used up stays so
408, 429, 503, 504, 529                   overload: a longer backoff; any other retry is for a blip
========================================  ===========================================================================

Safe to repeat are GET, HEAD, OPTIONS, TRACE, PUT and DELETE, what has an ``Idempotency-Key``, and for every method what
the server refused before taking it: 429, 529, and 503 with a hint. The hint is read by `abate.schedule.header_hints`.

`transient` also covers errors without a status: see `abate.decide.network_errors`.
"""

from __future__ import annotations

from collections.abc import Mapping

from abate.decide.network_errors import BUILTIN_ERRORS, judge_network_error
from abate.decide.outcome import FATAL, LAYER, Outcome, Ruling
from abate.decide.request_settings import request
from abate.decide.responses import KEY_HEADER as KEY_HEADER
from abate.decide.responses import FoundResponse, Headers, read, repeatable, retried_by_sdk, safe_to_repeat
from abate.decide.responses import header as header
from abate.decide.rules import Rule
from abate.schedule.header_hints import error_body, find_hint, lower_case

__all__ = ["judge", "repeatable", "request", "status", "transient", "transient_result"]

RETRYABLE = frozenset({408, 425, 429, *range(500, 600)} - {501, 505})
OVERLOADED = frozenset({408, 429, 503, 504, 529})
TIMED_OUT = frozenset({408, 504})
"""Statuses of a timeout at the server or a proxy: the request may have been processed or not."""
REFUSED = frozenset({429, 529})
"""Statuses of a request that the server refused before taking it; a 503 says so by a hint."""


def judge(
    status: int, headers: Headers | None = None, *, safe: bool | None = None, body: object = None
) -> Ruling | None:
    """Return the ruling on a response by its status, headers and body; None below 400.

    `safe` says whether the request may be repeated, where that is known (see `repeatable`). `body` is the JSON body, as
    bytes, text or parsed, if it has been loaded.

    >>> judge(503, {"retry-after": "7"})
    Ruling(retry=True, reason='overload', hint=7.0, reached=False, safe=None, answered=True)
    >>> judge(404).retry, judge(404, {"x-should-retry": "true"}).retry
    (False, True)
    >>> judge(429, body='{"error": {"code": "insufficient_quota"}}').retry
    False
    """
    if status < 400:
        return None
    known = lower_case(headers)
    told = known.get("x-should-retry", "").strip().lower()
    if told == "false" or (told != "true" and status not in RETRYABLE):
        return FATAL
    parsed = None if body is None else error_body(body)
    if is_out_of_quota(status, parsed):
        return FATAL
    return _retry_ruling(status, known, safe, parsed)


def _retry_ruling(status: int, known: Mapping[str, str], safe: bool | None, body: object) -> Ruling:
    """Return the ruling to retry, given the headers as `lower_case` returns them."""
    hint = find_hint(status, known, body)
    refused = status in REFUSED or (status == 503 and hint is not None)
    reason = "overload" if status in OVERLOADED else "blip"
    return Ruling(True, reason, hint, not refused, safe, status not in TIMED_OUT)


def is_out_of_quota(status: int, body: object) -> bool:
    """Return whether a response says that a quota is used up, so that no layer should ask again.

    >>> is_out_of_quota(429, b'{"error": {"type": "insufficient_quota"}}'), is_out_of_quota(429, None)
    (True, False)
    """
    found = error_body(body) if status == 429 else None
    if found is None:
        return False
    inner = found.get("error")
    error = inner if isinstance(inner, Mapping) else found
    return "insufficient_quota" in (error.get("code"), error.get("type"))


def status(*codes: int) -> Rule:
    """Retry errors and responses that carry one of these statuses, whatever the table says.

    >>> class Locked(Exception): status_code = 423
    >>> status(423).judge(Outcome(error=Locked())).retry
    True
    """
    if not codes:
        raise TypeError("status needs the codes to retry, as in abate.http.status(404, 423)")
    for code in codes:
        if isinstance(code, bool) or not isinstance(code, int) or not 400 <= code <= 599:
            raise ValueError(f"status must be a code from 400 to 599, not {code!r}")
    return OnStatus(frozenset(codes))


class OnStatus(Rule):
    """Errors and responses that carry one of `codes`."""

    codes: frozenset[int]

    reads_responses = True

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        found = FoundResponse.of_result(outcome.result) if error is None else FoundResponse.of_error(error)
        if found is None or found.status not in self.codes:
            return None
        if found.given_up:
            return LAYER
        return _retry_ruling(found.status, lower_case(found.headers), found.safe, found.body)


class OnTransient(Rule):
    """Errors and responses that carry a status, by the table, and network errors.

    A response that is not worth another attempt is a result like any other.
    """

    reads_responses = True

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        if error is None:
            ruling = _judge_found(FoundResponse.of_result(outcome.result))
            return None if ruling is FATAL else ruling
        network = judge_network_error(error)
        if type(error) in BUILTIN_ERRORS and not error.__dict__:
            return network  # it carries no response and no request
        if network is None or read(error, "response") is not None:  # the status of a response says more than its end
            found = FoundResponse.of_error(error)
            if found is not None or network is None:
                return _judge_found(found)
        if network.retry and retried_by_sdk(error):
            return LAYER
        safe = safe_to_repeat(error) if network.retry and network.reached else None
        return network if safe is None else Ruling(True, network.reason, network.hint, True, safe, network.answered)


def _judge_found(found: FoundResponse | None) -> Ruling | None:
    if found is None:
        return None
    return LAYER if found.given_up else judge(found.status, found.headers, safe=found.safe, body=found.body)


transient = OnTransient()
"""Retry what HTTP's table calls worth another attempt, on errors or returned responses of any library; and network
errors and timeouts of httpx, requests, urllib3, aiohttp, and SDKs that use them."""

transient_result = transient
"""The same rule, under the name it had for functions that return the response instead of raising."""
