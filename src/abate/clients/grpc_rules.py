"""How errors of gRPC are classified: by status code, details and metadata.

* UNAVAILABLE is worth another attempt, and so is ABORTED, a conflict;
* RESOURCE_EXHAUSTED and DEADLINE_EXCEEDED mean overload, except for a message over a size limit, which is fatal;
* all other codes are fatal, including UNKNOWN, INTERNAL and CANCELLED;
* a TLS handshake that fails is fatal: a certificate that does not verify, another host's name, a server without TLS.

grpcio reports a failed handshake as UNAVAILABLE, and only the details say what happened. They name the last address
that was tried, so with several addresses others may have failed in another way. If it is the server that refuses,
because it wants a certificate of the client, the details say no more than "Socket closed": such calls are retried.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from abate.clients.headers import EXHAUSTED, upstream_gave_up
from abate.decide.outcome import BLIP, FATAL, LAYER, OVERLOAD, Outcome, Ruling
from abate.decide.rules import Rule
from abate.optional_dependencies import requires_extra
from abate.schedule.hints import MAX_HINT, pushback

with requires_extra(by="abate.clients.grpc", extra="grpc"):
    import grpc  # type: ignore[import-untyped]
    import grpc.aio  # type: ignore[import-untyped]
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

Metadata = tuple[tuple[str, str | bytes], ...]

RULINGS = {
    grpc.StatusCode.UNAVAILABLE: BLIP,
    grpc.StatusCode.ABORTED: BLIP,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OVERLOAD,
    grpc.StatusCode.DEADLINE_EXCEEDED: OVERLOAD,
}

UNREACHED_DETAILS = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
"""The details begin with one of these if grpcio has not reached a server."""

TLS_DETAILS = ("Tls handshake failed (", "Custom verification check failed", "Cannot check peer: ")
"""Such details contain one of these if the TLS handshake failed: because of the protocol or the certificate, the name
in the certificate, or a server that speaks no HTTP/2.
"""

TOO_LARGE = "message larger than max"


class OnGrpcStatus(Rule):
    """Classifies errors of grpcio, sync and async, by their status.

    >>> transient.judge(Outcome(error=grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED))).reason
    'overload'
    """

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        if not isinstance(error, (grpc.Call, grpc.aio.AioRpcError)) or not isinstance(error, grpc.RpcError):
            return None
        trailing = pairs(error.trailing_metadata())
        if any(
            key == EXHAUSTED.lower() and isinstance(value, str) and upstream_gave_up(value) for key, value in trailing
        ):
            return LAYER
        ruling = RULINGS.get(error.code())
        details = error.details() or ""
        if ruling is None or (ruling is OVERLOAD and TOO_LARGE in details):
            return FATAL
        reached = bool(trailing or error.initial_metadata()) or not details.startswith(UNREACHED_DETAILS)
        if not reached and any(text in details for text in TLS_DETAILS):
            return Ruling.fatal(reached=False)
        return Ruling(True, ruling.reason, _hint(trailing), reached, None, _answered(error, trailing))


transient = OnGrpcStatus()
"""The rule for `on` of a policy whose calls go through gRPC; the interceptors always use it."""


def _answered(error: Any, trailing: Metadata) -> bool:
    """Return whether the status came from the server.

    DEADLINE_EXCEEDED may come from either side. UNAVAILABLE without metadata comes from grpcio itself.
    """
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        return bool(trailing or error.initial_metadata())
    return code is not grpc.StatusCode.DEADLINE_EXCEEDED


def _hint(trailing: Metadata) -> float | None:
    """Return the longest requested wait in seconds; infinite if the server asked not to come back."""
    said = dict(trailing)
    asked, details = said.get("grpc-retry-pushback-ms"), said.get("grpc-status-details-bin")
    hints = (
        pushback(asked if isinstance(asked, str) else None),
        _retry_delay(details) if isinstance(details, bytes) else None,
    )
    return max((hint for hint in hints if hint is not None), default=None)


def _retry_delay(status: bytes) -> float | None:
    """Return the seconds of `RetryInfo` in a serialized `google.rpc.Status`; None if it is missing or broken."""
    info = error_details_pb2.RetryInfo()
    try:
        for detail in status_pb2.Status.FromString(status).details:
            if detail.Unpack(info) and info.HasField("retry_delay"):
                seconds = max(0.0, info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
                return seconds if seconds <= MAX_HINT else None
    except DecodeError:
        pass  # broken details are no hint
    return None


def pairs(metadata: Iterable[tuple[str, str | bytes]] | None) -> Metadata:
    """Return metadata as a tuple; None is no metadata."""
    return tuple((key, value) for key, value in metadata or ())
