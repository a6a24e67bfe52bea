"""Retries for urllib3: a ``PoolManager`` whose requests are calls of a policy.

The manager follows redirects; each hop is one call. urllib3's own retries are switched off.
`abate.clients.http_client` describes what all HTTP clients share.

* A response that is read whole (``preload_content=True``, the default) is part of its attempt, and its connection is
  free before any wait. A streamed response is returned unread: a failure in its body is not retried.
* Reading a body whose connection was closed before a wait raises ``ProtocolError``.
* A deadline bounds every single read, so that a server that sends byte by byte is cut off in time. After the deadline
  nothing is sent: the error is ``ConnectTimeoutError``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from abate.optional_dependencies import requires_extra

with requires_extra(by="abate.clients.urllib3", extra="urllib3"):
    import urllib3
    from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPHeaderDict, HTTPSConnectionPool, Retry, Timeout
    from urllib3.exceptions import ConnectTimeoutError, HTTPError
    from urllib3.poolmanager import PoolKey

from abate.call.policy import Policy
from abate.clients.client_rules import Library
from abate.clients.http_client import DEADLINE_PASSED, Key, is_rewindable
from abate.clients.stopwatch import TimeoutSource
from abate.clients.trust import Secret
from abate.clients.urllib3_sender import Sender, loaded_error, mark, release, with_deadlines
from abate.decide.network_errors import judge_network_error
from abate.errors import LayeredRetryWarning, unknown

__all__ = ["PoolManager"]

OWN_SETTINGS = ("policy", "idempotency_key", "timeouts", "secrets", "ours", "key", "mesh_retries")
POOL_SETTINGS = ("num_pools", "headers", "strict", *(field.removeprefix("key_") for field in PoolKey._fields))
"""The settings that urllib3 takes."""


class PoolManager(urllib3.PoolManager):
    """A urllib3 ``PoolManager`` that retries by a policy.

    * `policy`, `idempotency_key`, `timeouts`, `secrets`, `ours`, `key`, `mesh_retries`: as for every HTTP client, see
      `abate.clients.http_client.ClientSettings`. A function given as `key` is called with the URL.
    * All other arguments go to urllib3. Of `retries` only the limits for redirects are used, with a warning.

    The last response is returned unchanged; the last error is urllib3's own, without a ``MaxRetryError`` around it.
    A body that cannot be replayed (a generator, a pipe) is sent once. A pool that is taken out of the manager and
    follows redirects by itself does not use the policy.

    >>> import abate, urllib3
    >>> policy = abate.Policy(on=abate.http.transient, name="orders", backoff=[0.0])
    >>> with PoolManager(policy) as http:
    ...     try:
    ...         http.request("GET", "http://127.0.0.1:1/")  # nothing listens there
    ...     except urllib3.exceptions.NewConnectionError as error:
    ...         print(abate.report(error))
    orders gave up after 3 attempts: attempts
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        idempotency_key: bool = False,
        timeouts: TimeoutSource | None = None,
        secrets: Mapping[str, Secret] | None = None,
        ours: Iterable[str] | None = None,
        key: Key = None,
        mesh_retries: bool = True,
        **kwargs: Any,
    ) -> None:
        self._sender: Sender[BaseHTTPResponse] = Sender(
            Library("urllib3", judge_network_error, _read, _host, _body, _target, mark),
            release,
            _deadline_error,
            policy,
            idempotency_key=idempotency_key,
            timeouts=timeouts,
            secrets=secrets,
            ours=ours,
            key=partial(_key_of_url, key) if callable(key) else key,
            mesh_retries=mesh_retries,
        )
        for setting in kwargs:  # urllib3 itself says so at the first request
            if setting not in POOL_SETTINGS:
                raise TypeError(unknown("PoolManager has no setting", setting, (*OWN_SETTINGS, *POOL_SETTINGS)))
        if (retries := kwargs.get("retries")) is not None:
            warn_about_retries(retries if isinstance(retries, Retry) else Retry.from_int(retries), stacklevel=3)
        super().__init__(**kwargs)
        self.pool_classes_by_scheme = with_deadlines({"http": _Pool, "https": _HTTPSPool})

    def connection_from_pool_key(self, pool_key: Any, request_context: dict[str, Any]) -> HTTPConnectionPool:
        """Return the pool for a host, which sends by the policy."""
        pool = super().connection_from_pool_key(pool_key, request_context)
        assert isinstance(pool, _Pool)
        pool.sender = self._sender
        return pool

    def urlopen(  # type: ignore[override]
        self, method: str, url: str, redirect: bool = True, **kw: Any
    ) -> BaseHTTPResponse:
        """Send a request with retries, and follow redirects."""
        if (retries := kw.get("retries")) is not None:
            given = retries if isinstance(retries, Retry) else Retry.from_int(retries, redirect=redirect)
            if not given.history:  # with a history it is the manager's own count of redirects, not the user's setting
                warn_about_retries(given, stacklevel=4)
        return super().urlopen(method, url, redirect, **kw)


class SentRequest:
    """What a policy's `before_retry` gets as ``retry.request``: it may change the headers of the next attempt."""

    __slots__ = ("headers", "method", "url")

    def __init__(self, method: str, url: str, headers: HTTPHeaderDict) -> None:
        self.method = method
        self.url = url
        self.headers = headers


class _Pool(HTTPConnectionPool):
    """A pool that sends each hop of the manager's by the policy."""

    sender: Sender[BaseHTTPResponse] | None = None

    def urlopen(  # type: ignore[override]
        self,
        method: str,
        url: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        retries: Retry | bool | int | None = None,
        redirect: bool = True,
        assert_same_host: bool = True,
        **kw: Any,
    ) -> BaseHTTPResponse:
        send = super().urlopen
        if redirect or self.sender is None:
            return send(method, url, body, headers, retries, redirect, assert_same_host, **kw)
        if not isinstance(retries, Retry):
            retries = Retry.from_int(retries, redirect=redirect, default=self.retries)
        own = HTTPHeaderDict(self.headers if headers is None else headers)
        timeout = self._get_timeout(kw.pop("timeout", Timeout.DEFAULT_TIMEOUT))
        whole = kw.pop("preload_content", True)
        replayable, kw["body_pos"] = _replayable(body, kw.get("body_pos"))

        def send_once(cut: Timeout) -> BaseHTTPResponse:
            response = send(
                method, url, body, own, False, False, assert_same_host, timeout=cut, preload_content=False, **kw
            )
            response.retries = retries  # the manager counts redirects by it
            if whole:
                _read_body(response)
            return response

        request = SentRequest(method, f"{self.scheme}://{self._authority()}{url}", own)
        return self.sender.send(request, method, self.host, own, timeout, replayable, send_once)

    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


class _HTTPSPool(_Pool, HTTPSConnectionPool):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Do the same over TLS."""


def _deadline_error(request: object) -> Exception:
    return ConnectTimeoutError(DEADLINE_PASSED)


def _host(request: SentRequest) -> tuple[str | None, int | None]:
    parts = urlsplit(request.url)
    return parts.hostname, parts.port


def _key_of_url(key: Callable[[str], Hashable], request: SentRequest) -> Hashable:
    return key(request.url)


def _target(request: SentRequest) -> tuple[str, str]:
    return request.method, request.url


def _body(response: BaseHTTPResponse) -> bytes | None:
    body: bytes | None = getattr(response, "_body", None)
    return loaded_error(response) if body is None else body


def warn_about_retries(retry: Retry, stacklevel: int) -> None:
    """Warn if urllib3 is asked to retry by itself; limits for redirects alone are fine."""
    counts = (retry.connect, retry.read, retry.status, retry.other)
    allowed = [retry.total if count is None else count for count in counts]
    # False means none
    if (retry.total is None or retry.total > 0) and any(count is None or count > 0 for count in allowed):
        warnings.warn(
            f"{retry!r} would multiply with the retries of the policy, and is not used: leave it out,"
            " or let it limit nothing but redirects",
            LayeredRetryWarning,
            stacklevel=stacklevel,
        )


def _replayable(body: Any, position: Any) -> tuple[bool, Any]:
    """Return whether a body can be sent twice, and from which position if it is a file."""
    if body is None or isinstance(body, (bytes, bytearray, memoryview, str, list, tuple)):
        return True, position
    if not is_rewindable(body):
        return False, position
    return True, body.tell() if position is None else position


def _read(response: BaseHTTPResponse) -> tuple[int, Mapping[str, str]]:
    """Return status and headers of a response; the values of a repeated header are joined by commas."""
    headers = response.headers
    return response.status, headers if response.status < 400 else {name: headers[name] for name in headers}


def _read_body(response: BaseHTTPResponse) -> None:
    """Read a response whole; an error on the way carries the response."""
    try:
        response.data  # noqa: B018  (kept by the response)
    except HTTPError as error:
        error.response = response  # type: ignore[attr-defined]
        raise
