"""AWS, with botocore and boto3: a rule for their errors, and a configuration with the library's own retries off.

The code of a service's error decides; if it says nothing, the HTTP status does. HTTP's table judges both; a throttled
request counts as 429 whatever its status (most services answer 400, S3 503). The hint is the longer of ``Retry-After``
and ``x-amz-retry-after`` (milliseconds).

Without a response: an endpoint or proxy that could not be connected to has seen nothing, so any operation may be
repeated; a read timeout means overload; a broken connection is a blip. TLS errors are fatal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abate.decide import http
from abate.decide.outcome import ANSWERED, BLIP, FATAL, OVERLOAD, OVERLOAD_UNREACHED, UNREACHED, Outcome, Ruling
from abate.decide.rules import Rule
from abate.optional_dependencies import requires_extra
from abate.schedule.hints import MAX_HINT

with requires_extra(by="abate.clients.botocore", extra="botocore"):
    from botocore import exceptions  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]

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


class OnAwsError(Rule):
    """Judges errors of botocore.

    >>> slow_down = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}
    >>> transient.judge(Outcome(error=exceptions.ClientError(slow_down, "PutObject"))).reason
    'overload'
    """

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        if isinstance(error, exceptions.ClientError):
            return _answered(error.response)
        return next((ruling for kind, ruling in ERRORS if isinstance(error, kind)), None)


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
    ruling = http.judge(STATUSES.get(code) or metadata.get("HTTPStatusCode") or 0, headers) or FATAL
    if code in CONFLICTS:
        ruling = ANSWERED
    own = _milliseconds(http.header(headers, "x-amz-retry-after"))
    if not ruling.retry or own is None:
        return ruling
    return Ruling(True, ruling.reason, max(own, ruling.hint or 0.0), answered=True)


def _milliseconds(value: str | None) -> float | None:
    """Return milliseconds as seconds; None if they cannot be parsed."""
    if value is None or not (value.isascii() and value.isdigit()):
        return None
    return min(float(value) / 1000.0, MAX_HINT)
