"""One layer retries, also where the other layers are not abate's: SDKs above an HTTP client, and a mesh below it.

* A request that is itself a retry of an SDK says so in a header. `earlier_retries` reads it and warns once per kind of
  SDK; these retries are taken off the policy's attempts.
* A response that a client gave up on carries ``x-should-retry: false``, which the SDKs made by Stainless (OpenAI,
  Anthropic and others) follow; so does one that says that a quota is used up.
* ``x-envoy-max-retries: 0`` on a request switches the retries of Envoy and of the meshes built on it off.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple

from abate.decide.http import header
from abate.errors import LayeredRetryWarning, Report

SHOULD_RETRY = "x-should-retry"
MESH_RETRIES = "x-envoy-max-retries"


class OuterLayer(NamedTuple):
    """A kind of software that retries above a client: how its requests count, and how its retries are switched off."""

    header: str
    pattern: re.Pattern[str]
    counts_from: int
    """The number of the first attempt."""
    name: str
    switch_off: str


OUTER_LAYERS = (
    OuterLayer(
        "x-stainless-retry-count",
        re.compile(r"([0-9]{1,4})"),
        0,
        "the SDK",
        "build its client with max_retries=0",
    ),
    OuterLayer(
        "amz-sdk-request",
        re.compile(r"(?:.*; *)?attempt=([0-9]{1,4})(?:;.*)?"),
        1,
        "the AWS SDK",
        "give it Config(retries={'total_max_attempts': 1})",
    ),
    OuterLayer(
        "grpc-previous-rpc-attempts",
        re.compile(r"([0-9]{1,4})"),
        0,
        "gRPC",
        "switch it off with the channel option grpc.enable_retries=0",
    ),
)
MAX_HEADER_CHARS = 200
"""A longer value counts as no retry."""

REASONS_FOR_ALL_LAYERS = frozenset({"hint", "budget", "shelter", "deadline", "layer"})
"""Reasons for which outer layers should not retry either, even after a single attempt."""

_warned: set[str] = set()


def earlier_retries(headers: Mapping[str, str]) -> int:
    """Return how many times an outer layer has sent this request before, and warn about it once per kind of layer.

    >>> earlier_retries({"x-stainless-retry-count": "0"}), earlier_retries({"amz-sdk-request": "attempt=1; max=3"})
    (0, 0)
    """
    for layer in OUTER_LAYERS:
        value = header(headers, layer.header)
        found = None if value is None or len(value) > MAX_HEADER_CHARS else layer.pattern.fullmatch(value.strip())
        if found is not None:
            retries = int(found[1]) - layer.counts_from
            if retries > 0:
                _warn(layer)
                return retries
    return 0


def _warn(layer: OuterLayer) -> None:
    if layer.header not in _warned:
        _warned.add(layer.header)
        warnings.warn(
            f"{layer.name} retries requests that abate retries as well ({layer.header}), and retries multiply:"
            f" {layer.switch_off}",
            LayeredRetryWarning,
            stacklevel=2,
        )


def tells_outer_layers(report: Report, reduced: bool) -> bool:
    """Return whether to tell outer layers not to retry this call.

    They are not told if the reason need not hold for them: the failure is fatal by this policy, the method is not
    idempotent, the body can't be sent again, or the policy makes one attempt only. `reduced` says that the policy makes
    fewer attempts because the outer layer has made some already.
    """
    if report.reason == "fatal":
        return False
    return report.attempts > 1 or report.reason in REASONS_FOR_ALL_LAYERS or (report.reason == "attempts" and reduced)


def forbid_retry(headers: MutableMapping[str, str]) -> None:
    """Tell SDKs that read this response not to retry the request."""
    headers[SHOULD_RETRY] = "false"
