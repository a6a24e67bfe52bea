"""Retries for requests: an adapter to mount on a session.

The session keeps redirects, auth, cookies and hooks; each request that it sends is one call of the policy. The
adapter's own retries (`max_retries`) are switched off.

`abate.clients.http_client` describes what all HTTP clients share. Errors are judged by the urllib3 error inside them.

* A response that is read whole is part of its attempt, and its connection is free before any wait. A streamed response
  (``stream=True``) is returned unread: a failure in its body is not retried.
* Reading a body whose connection was closed before a wait raises ``ChunkedEncodingError``.
* A deadline bounds every single read, so that a server that sends byte by byte is cut off in time. After the deadline
  nothing is sent: the error is ``ConnectTimeout``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from abate.optional_dependencies import requires_extra

with requires_extra(by="abate.clients.requests", extra="requests"):
    from requests import ConnectTimeout, PreparedRequest, RequestException, Response
    from requests.adapters import HTTPAdapter
    from requests.utils import rewind_body
    from urllib3 import Retry, Timeout
    from urllib3.exceptions import ConnectTimeoutError

from abate.call.policy import Policy
from abate.clients.client_rules import Library
from abate.clients.http_client import DEADLINE_PASSED, Key, is_rewindable
from abate.clients.stopwatch import TimeoutSource
from abate.clients.trust import Secret
from abate.clients.urllib3 import warn_about_retries
from abate.clients.urllib3_sender import Sender, loaded_error, mark, release, with_deadlines
from abate.decide.network_errors import judge_network_error
from abate.errors import suggests_settings

__all__ = ["Adapter"]


class Adapter(HTTPAdapter):
    """An adapter for ``requests.Session.mount`` that retries by a policy.

    * `policy`, `idempotency_key`, `timeouts`, `secrets`, `ours`, `key`, `mesh_retries`: as for every HTTP client, see
      `abate.clients.http_client.ClientSettings`. A function given as `key` is called with the ``PreparedRequest``.
    * All other arguments go to ``HTTPAdapter``; `max_retries` is not used, with a warning.

    The last response is returned, or the last error raised, unchanged. A body that cannot be replayed (a generator, a
    pipe) is sent once.

    >>> import abate, requests
    >>> policy = abate.Policy(on=abate.http.transient, name="orders", backoff=[0.0])
    >>> with requests.Session() as session:
    ...     session.mount("http://", Adapter(policy))
    ...     try:
    ...         session.get("http://127.0.0.1:1/")  # nothing listens there
    ...     except requests.ConnectionError as error:
    ...         print(abate.report(error))
    orders gave up after 3 attempts: attempts
    """

    __attrs__ = [*HTTPAdapter.__attrs__, "_sender"]  # noqa: RUF012  (what is pickled, as in requests)

    @suggests_settings
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
        self._sender = Sender[Response](
            Library("requests", judge_network_error, _read, _host, _body, _target, mark),
            _release,
            _deadline_error,
            policy,
            idempotency_key=idempotency_key,
            timeouts=timeouts,
            secrets=secrets,
            ours=ours,
            key=key,
            mesh_retries=mesh_retries,
        )
        warn_about_retries(Retry.from_int(kwargs.pop("max_retries", 0)), stacklevel=4)
        super().__init__(**kwargs)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Make the pool manager, with connections that read within the deadline."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = with_deadlines(self.poolmanager.pool_classes_by_scheme)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        """Return the pool manager for a proxy, with connections that read within the deadline."""
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = with_deadlines(manager.pool_classes_by_scheme)
        return manager

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> Response:
        """Send a request with retries."""
        own = request.copy()  # an idempotency key belongs to this call, not to the next call with the same request
        headers: Any = own.headers
        send = super().send
        used = False

        def send_once(cut: Any) -> Response:
            nonlocal used
            if used and _is_file(own):
                rewind_body(own)
            used = True
            response = send(own, stream, cut, verify, cert, proxies)
            if not stream:
                _read_body(response)
            return response

        replayable = own.body is None or isinstance(own.body, (bytes, str)) or _is_file(own)
        host = urlsplit(own.url or "").hostname
        return self._sender.send(own, own.method or "", host, headers, _timeout(timeout), replayable, send_once)


def _deadline_error(request: PreparedRequest) -> Exception:
    return ConnectTimeout(ConnectTimeoutError(DEADLINE_PASSED), request=request)


def _host(request: PreparedRequest) -> tuple[str | None, int | None]:
    parts = urlsplit(request.url or "")
    return parts.hostname, parts.port


def _is_file(request: PreparedRequest) -> bool:
    """Return whether the body is a file that can be rewound to its first position."""
    return isinstance(request._body_position, int) and is_rewindable(request.body)


def _timeout(given: Any) -> Timeout:
    if isinstance(given, Timeout):
        return given
    connect, read = given if isinstance(given, tuple) else (given, given)
    return Timeout(connect=connect, read=read)


def _read(response: Response) -> tuple[int, Mapping[str, str]]:
    return response.status_code, response.headers


def _body(response: Response) -> bytes | None:
    content = response._content
    return content if isinstance(content, bytes) else loaded_error(response.raw)


def _target(request: PreparedRequest) -> tuple[str, str]:
    return request.method or "", request.url or ""


def _release(response: Response, seconds: float) -> None:
    release(response.raw, seconds)


def _read_body(response: Response) -> None:
    """Read a response whole; an error on the way carries the response."""
    try:
        response.content  # noqa: B018  (kept by the response)
    except RequestException as error:
        error.response = response
        raise
