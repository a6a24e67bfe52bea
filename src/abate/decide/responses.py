"""Reads HTTP off objects of any library: the status of an error or a response, its headers, loaded body and request.

Nothing here does I/O: a body counts only if the library has loaded it already.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from abate.errors import LayeredRetryWarning, Report
from abate.frozen import Frozen

Headers = Mapping[str, str]

KEY_HEADER = "Idempotency-Key"
EXHAUSTED_HEADER = "abate-exhausted"
REPORT = "abate_report"
"""The attribute in which clients of abate keep the report of a call that was given up, on its last response."""

IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
FINAL_REASONS = frozenset({"unsafe", "hint", "budget", "layer"})
"""Reasons that forbid outer policies to repeat the work, even after a single attempt."""
STATUS_NAMES = ("status_code", "status", "code")
SDK_RETRIES = "x-stainless-retry-count"
"""The header in which SDKs say how many times they have sent a request before."""
MAX_DIGITS = 4
PLAIN_TYPES = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict, set})
"""Types of results that are not responses."""
MAX_VALUE_CHARS = 100
"""Characters of a header's value that are read."""

STREAM_ERRORS = {
    "insufficient_quota": 402,
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "timeout_error": 504,
    "api_error": 500,
    "server_error": 500,
    "internal_error": 500,
}
"""The status that an error event in a stream stands for, by the code or type in its body."""


class FoundResponse(Frozen):
    """What an error or a response says by HTTP."""

    status: int
    headers: Headers | None
    safe: bool | None
    """Whether the request may be repeated; None if the request is not known."""
    body: object = None
    given_up: bool = False
    """Whether a policy inside, or a service behind the server, has retried it already."""

    @classmethod
    def of_error(cls, error: object) -> FoundResponse | None:
        """Return what an error says, by itself or by its ``response``; None without a status from 400 to 599."""
        response = read(error, "response")
        carrier = error if response is None else response
        for name in STATUS_NAMES:
            code = read(carrier, name)
            if isinstance(code, int) and not isinstance(code, bool):
                # the first number is the status; aiohttp warns about further access
                break
        else:
            code = None
        if code is None or code < 400:
            return _of_stream(error, carrier)
        if code > 599:
            return None
        body = read(error, "body")
        return cls(
            code,
            headers_of(carrier),
            safe_to_repeat(error, carrier),
            _loaded_body(carrier) if body is None else body,
            _given_up(carrier) or retried_by_sdk(carrier),
        )

    @classmethod
    def of_result(cls, result: object) -> FoundResponse | None:
        """Return what a result says that looks like an HTTP response with a status from 400 to 599.

        It has a number `status_code` or `status`, and `headers` that are a mapping.
        """
        headers = headers_of(result) if is_error_response(result) else None
        if headers is None:
            return None
        code = read(result, "status_code")
        if not isinstance(code, int):
            code = read(result, "status")
        return cls(code, headers, safe_to_repeat(result), _loaded_body(result), _given_up(result))


def is_error_response(result: object) -> bool:
    """Return whether a result may be an HTTP response with a status from 400 to 599; cheap, and never raises.

    >>> is_error_response("fine"), is_error_response({"status": 503})
    (False, False)
    """
    if type(result) in PLAIN_TYPES:
        return False
    try:
        code = getattr(result, "status_code", None)
        if not isinstance(code, int):
            # an object without headers is not a response, and reading its status may do I/O, as with Celery's results
            code = None if getattr(result, "headers", None) is None else getattr(result, "status", None)
    except Exception:
        return False
    return isinstance(code, int) and 400 <= code <= 599


def _of_stream(error: object, carrier: object) -> FoundResponse | None:
    """Return what an error says that an SDK raised for an error event inside a stream with a good status.

    Its body is that of the event. The headers came before the failure, and are not about it.
    """
    code = _stream_status(read(error, "body"))
    return None if code is None else FoundResponse(code, None, safe_to_repeat(error, carrier))


def _stream_status(body: object) -> int | None:
    """Return the status that the body of an error event stands for; None if it doesn't say."""
    if body is None:
        return None
    from abate.schedule.header_hints import error_body  # when there is a body to read, not when abate is imported

    found = error_body(body)
    if found is None:
        return None
    inner = found.get("error")
    error = inner if isinstance(inner, Mapping) else found
    for value in (error.get("code"), error.get("type")):
        if isinstance(value, str) and value in STREAM_ERRORS:
            return STREAM_ERRORS[value]
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return None


def headers_of(carrier: object) -> Headers | None:
    """Return the headers of a response, a request or an error; None if they are not a mapping."""
    headers = read(carrier, "headers")
    # http.client.HTTPMessage reads like a mapping without being one
    return headers if hasattr(headers, "get") and hasattr(headers, "items") else None


def safe_to_repeat(*carriers: object) -> bool | None:
    """Return whether the request of an error or a response may be repeated; None if they don't have it."""
    for carrier in carriers:
        for name in ("request", "request_info"):
            request = read(carrier, name)
            method = read(request, "method")
            if isinstance(method, str):
                return repeatable(method, headers_of(request))
    return None


def repeatable(method: str, headers: Headers | None = None) -> bool:
    """Return whether a request may be sent twice: its method is idempotent, or it has an ``Idempotency-Key``.

    >>> repeatable("GET"), repeatable("POST"), repeatable("POST", {"Idempotency-Key": "8e03978e"})
    (True, False, True)
    """
    if method.upper() in IDEMPOTENT_METHODS:
        return True
    key = header(headers, KEY_HEADER)
    return key is not None and bool(key.strip())


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


def read(source: object, name: str) -> Any:
    """Return an attribute, or None if it does not exist or raises, as httpx's `request` does when not set."""
    try:
        return getattr(source, name, None)
    except Exception:
        return None


def _loaded_body(response: object) -> bytes | None:
    """Return a response's body if it was loaded: httpx and requests keep it in ``_content``, others in ``_body``."""
    for name in ("_content", "_body"):
        body = read(response, name)
        if isinstance(body, bytes):
            return body
    return None


def _given_up(carrier: object) -> bool:
    """Return whether a response was given up on by a policy inside, or says so of a service behind the server."""
    report = report_on(carrier)
    if report is not None and report.reason != "fatal":
        return forbids_repeating(report)
    value = header(headers_of(carrier), EXHAUSTED_HEADER)
    return value is not None and any(part.strip() == "1" for part in value[:MAX_VALUE_CHARS].split(","))


def retried_by_sdk(carrier: object) -> bool:
    """Return whether the request of an error, or of its response, is a retry by an SDK, and warn once if it is.

    SDKs made by Stainless, such as those of OpenAI and Anthropic, retry unless they are built with ``max_retries=0``.
    This is for policies around an SDK. A client below the SDK sees its retries as those of an outer layer.
    """
    value = header(headers_of(read(carrier, "request")), SDK_RETRIES)
    if value is None or not value.isdecimal() or len(value) > MAX_DIGITS or int(value) == 0:
        return False
    if SDK_RETRIES not in _warned:
        _warned.add(SDK_RETRIES)
        warnings.warn(
            "the SDK has retried an error that a policy retries as well; only the SDK's retries count, so that retries"
            " don't multiply: build its client with max_retries=0",
            LayeredRetryWarning,
            stacklevel=2,
        )
    return True


_warned: set[str] = set()
"""The kinds of layers that have been warned of."""


def report_on(carrier: object) -> Report | None:
    """Return the report that a client left on a response; or on an error, where that has no response."""
    extensions = read(carrier, "extensions")
    found = extensions.get(REPORT) if isinstance(extensions, Mapping) else None
    if found is None:
        found = read(carrier, REPORT)
    return found if isinstance(found, Report) else None


def forbids_repeating(report: Report) -> bool:
    """Return whether outer policies must not repeat the work that this report is about.

    >>> forbids_repeating(Report("orders", 3, 1.0, "attempts")), forbids_repeating(Report("orders", 1, 0.0, "attempts"))
    (True, False)
    """
    return report.reason != "fatal" and (report.attempts > 1 or report.reason in FINAL_REASONS)
