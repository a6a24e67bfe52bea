"""AWS, with botocore and boto3: a rule for their errors, and a configuration with the library's own retries off.

The code of a service's error decides; if it says nothing, the HTTP status does. HTTP's table judges both; a throttled
request counts as 429 whatever its status (most services answer 400, S3 503). The hint is the longer of ``Retry-After``
and ``x-amz-retry-after`` (milliseconds).

Without a response: an endpoint or proxy that could not be connected to has seen nothing, so any operation may be
repeated; a read timeout means overload; a broken connection is a blip, also if it breaks in the TLS handshake. Other
TLS errors, and URLs and schemes that cannot be used, are fatal, and say nothing about the server.

botocore retries by itself, unless a client has the configuration of `config`. An error that it has retried is not
retried again: the reason is ``layer``, and abate warns once.
"""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Iterator, Mapping
from traceback import walk_tb
from typing import Any

from abate.decide import http
from abate.decide.outcome import ANSWERED, BLIP, FATAL, LAYER, OVERLOAD, OVERLOAD_UNREACHED, UNREACHED, Outcome, Ruling
from abate.decide.rules import Rule
from abate.errors import LayeredRetryWarning
from abate.optional_dependencies import requires_extra
from abate.schedule.header_hints import http_hint

with requires_extra(by="abate.clients.botocore", extra="botocore"):
    from botocore import exceptions  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]
    from urllib3.exceptions import LocationValueError  # of which botocore is made

__all__ = ["config", "transient"]

STATUSES = {
    **dict.fromkeys(
        (
            "BandwidthLimitExceeded",
            "EC2ThrottledException",
            "KmsThrottled",
            "LimitExceededException",
            "PriorRequestNotComplete",
            "ProvisionedThroughputExceeded",
            "ProvisionedThroughputExceededException",
            "RequestLimitExceeded",
            "RequestThrottled",
            "RequestThrottledException",
            "SlowDown",
            "ThrottledException",
            "Throttling",
            "ThrottlingException",
            "TooManyRequests",
            "TooManyRequestsException",
        ),
        429,
    ),
    **dict.fromkeys(("RequestTimeout", "RequestTimeoutException"), 408),
    **dict.fromkeys(("InternalError", "InternalFailure", "InternalServerError"), 500),
    **dict.fromkeys(("ServiceUnavailable", "ServiceUnavailableException"), 503),
}
"""The HTTP status that a code stands for, whatever the response's own."""

CONFLICTS = frozenset(
    {
        "ConditionalRequestConflict",
        "OperationAborted",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
"""Codes for a conflict with another request, which will end soon."""


ERRORS = (
    (exceptions.ConnectTimeoutError, OVERLOAD_UNREACHED),
    (exceptions.EndpointConnectionError, UNREACHED),
    (exceptions.ProxyConnectionError, UNREACHED),
    (exceptions.ReadTimeoutError, OVERLOAD),
    (exceptions.HTTPClientError, BLIP),  # includes ConnectionClosedError and ResponseStreamingError
    (exceptions.IncompleteReadError, BLIP),
    (exceptions.BotoCoreError, FATAL),
)
"""Rulings on errors without a response; the first match decides."""

UNUSABLE = Ruling.fatal(reached=False)
"""The ruling on TLS and URLs that fail every time."""

MAX_INNER = 5
"""Errors of one chain that are checked."""


class OnAwsError(Rule):
    """Judges errors of botocore.

    >>> slow_down = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}
    >>> transient.judge(Outcome(error=exceptions.ClientError(slow_down, "PutObject"))).reason
    'overload'
    """

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        if isinstance(error, exceptions.ClientError):
            ruling, retries = _answered(error.response), error.response.get("ResponseMetadata", {}).get("RetryAttempts")
        elif isinstance(error, exceptions.BotoCoreError):
            ruling, retries = _unanswered(error), _retries_before(error)
        else:
            return None
        if not ruling.retry or not isinstance(retries, int) or retries < 1:
            return ruling
        _warn_layered()
        return LAYER


transient = OnAwsError()
"""The rule for `on`: retries by the tables above."""


def config(**settings: Any) -> Config:
    """Return a botocore `Config` with exactly one attempt per operation, for a policy around it to retry.

    It overrides ``AWS_MAX_ATTEMPTS`` and the configuration file.

    >>> config(read_timeout=5.0).retries
    {'total_max_attempts': 1, 'mode': 'standard'}
    """
    if "retries" in settings:
        raise TypeError(f"retries cannot be set, as {settings['retries']!r}: the policy retries, botocore does not")
    return Config(**settings, retries={"total_max_attempts": 1, "mode": "standard"})


def _answered(response: Mapping[str, Any]) -> Ruling:
    """Judge a service's response, as parsed by botocore."""
    metadata: Mapping[str, Any] = response.get("ResponseMetadata", {})
    headers: Mapping[str, str] = metadata.get("HTTPHeaders", {})
    code = response.get("Error", {}).get("Code", "")
    status = metadata.get("HTTPStatusCode")
    ruling = http.judge(STATUSES.get(code) or status or 0, headers) or FATAL
    if code in CONFLICTS:
        ruling = Ruling(True, ANSWERED.reason, http_hint(status or 0, headers), True, None, ANSWERED.answered)
    if not status and ruling.retry:  # an error in the middle of an event stream: the request was taken before it
        ruling = Ruling(True, ruling.reason, ruling.hint, True, ruling.safe, ruling.answered)
    return ruling


def _unanswered(error: Exception) -> Ruling:
    """Judge an error without a response."""
    inner = list(_inner_errors(error))
    if isinstance(error, exceptions.SSLError) or any(isinstance(each, ssl.SSLError) for each in inner):
        closed = any(isinstance(each, (ssl.SSLEOFError, ssl.SSLZeroReturnError)) for each in inner)
        return BLIP if closed else UNUSABLE
    if any(isinstance(each, LocationValueError) for each in inner):
        return UNUSABLE
    return next(ruling for kind, ruling in ERRORS if isinstance(error, kind))


def _inner_errors(error: Exception) -> Iterator[BaseException]:
    """Yield the errors of urllib3 and ssl that an error of botocore was made from."""
    inner = getattr(error, "kwargs", {}).get("error")
    for _ in range(MAX_INNER):
        if not isinstance(inner, BaseException):
            return
        yield inner
        inner = getattr(inner, "original_error", None) or (inner.args[0] if inner.args else None)


def _retries_before(error: Exception) -> object:
    """Return how often botocore has repeated a request without a response: only its own frame knows."""
    for frame, _ in walk_tb(error.__traceback__):
        if frame.f_code.co_name == "_send_request" and frame.f_globals.get("__name__") == "botocore.endpoint":
            attempts = frame.f_locals.get("attempts")
            return attempts - 1 if isinstance(attempts, int) else None
    return None


_warned = False


def _warn_layered() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "botocore has retried an error that a policy of abate retries as well; only botocore's retries count, so"
            " that retries don't multiply: make the client with config=abate.clients.botocore.config()",
            LayeredRetryWarning,
            stacklevel=2,
        )
