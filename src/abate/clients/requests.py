"""Retries for requests: an adapter that is mounted on a session.

Everything else of the session stays as it was: redirects, auth, cookies and hooks are the session's, and each request
that it sends is one call of the policy. Retries of the adapter's own (`max_retries`) are switched off.

* requests' errors are judged by what urllib3 says inside them: a connection that could not be made is a request that
  the server never saw; timeouts are overload; a connection that broke, and an answer that makes no sense, are blips.
  Responses are judged by HTTP's table (`abate.decide.http`).
* A response that is read whole is part of its attempt, and its connection is free again before any wait. A streamed
  one (``stream=True``) is handed over unread: what fails in its body later is not retried.
* A streamed response that is not the final one is read to its end before every wait, if that is near. Otherwise its
  connection is closed, and reading it after all, where the next attempt is refused after the wait, is a
  ``ChunkedEncodingError``.
* A deadline bounds every single read, so that a server which sends byte by byte is cut off in time. After it, nothing
  is sent: the error is a ``ConnectTimeout``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from requests import ConnectTimeout, PreparedRequest, RequestException, Response
from requests.adapters import HTTPAdapter
from requests.utils import rewind_body
from urllib3 import Retry, Timeout
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError

from abate.call.policy import Policy
from abate.clients.exchange import TOO_LATE, Key, Secrets, Timeouts
from abate.clients.trust import Secret
from abate.clients.urllib3 import Sender, bounded, judge, let_go, rewinds, warn_of
from abate.decide.outcome import Ruling


class Adapter(HTTPAdapter):
    """An adapter for ``requests.Session.mount`` that retries by a policy.

    * `policy`: its own `on` is asked first, then the rules for requests' errors and HTTP's table.
    * `idempotency_key`: put an ``Idempotency-Key`` on requests whose method is not safe and which have none, the same
      one on every attempt. Only do so where the server knows what it means.
    * `timeouts`: an object whose ``request()`` and ``connect()`` bound the timeouts further, and whose
      ``observe(seconds)`` is told how long each good response took to come, without connecting. If it has
      ``observe_connect(seconds)``, that is told how long each new connection took to open, TLS included.
    * `secrets`: which hosts are sent which `abate.clients.trust.Secret`, so that services there believe this client:
      ``{"orders.internal": Secret(…), "*.shop.internal": Secret(…)}``. No other host is sent one, wherever redirects
      lead.
    * `key`: ``"host"`` gives each host and port a budget, gate and shelter of its own (see `Policy.keyed`); so does a
      function of the ``PreparedRequest``, for what it answers.
    * everything else goes to ``HTTPAdapter``; `max_retries` is not used, with a warning.

    The last response is returned, or the last error raised, as it is. A body that cannot be replayed (a generator, a
    pipe) is never sent twice.

    >>> import abate, requests
    >>> policy = abate.Policy(on=abate.http.transient, name="orders", backoff=[0.0])
    >>> with requests.Session() as session:
    ...     session.mount("http://", Adapter(policy))
    ...     try:
    ...         session.get("http://127.0.0.1:1/")  # where nobody listens
    ...     except requests.ConnectionError as error:
    ...         print(abate.report(error))
    orders gave up after 3 attempts: attempts
    """

    __attrs__ = [*HTTPAdapter.__attrs__, "_sender"]  # noqa: RUF012  (what is pickled; so is it in requests)

    def __init__(
        self,
        policy: Policy,
        *,
        idempotency_key: bool = False,
        timeouts: Timeouts | None = None,
        secrets: Mapping[str, Secret] | None = None,
        key: Key = None,
        **kwargs: Any,
    ) -> None:
        self._sender = Sender[Response](
            "requests",
            policy,
            _judge,
            _read,
            _let_go,
            _too_late,
            idempotency_key=idempotency_key,
            timeouts=timeouts,
            secrets=Secrets(secrets),
            key=key,
            host=_host,
        )
        warn_of(Retry.from_int(kwargs.pop("max_retries", 0)), stacklevel=3)
        super().__init__(**kwargs)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Make the manager of the connections, which are read within the deadline."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = bounded(self.poolmanager.pool_classes_by_scheme)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        """The same for the connections to a proxy."""
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = bounded(manager.pool_classes_by_scheme)
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
        """Send a request, again where that is worth it."""
        own = request.copy()  # a key belongs to this call, and not to the next one with the same request
        headers: Any = own.headers
        send = super().send
        used = False

        def once(cut: Any) -> Response:
            nonlocal used
            if used and _is_file(own):
                rewind_body(own)
            used = True
            response = send(own, stream, cut, verify, cert, proxies)
            if not stream:
                _load(response)
            return response

        replayable = own.body is None or isinstance(own.body, (bytes, str)) or _is_file(own)
        host = urlsplit(own.url or "").hostname
        return self._sender.send(own.method or "", host, headers, _timeout(timeout), replayable, once, own)


def _too_late(request: PreparedRequest) -> Exception:
    return ConnectTimeout(ConnectTimeoutError(TOO_LATE), request=request)


def _host(request: PreparedRequest) -> tuple[str | None, int | None]:
    parts = urlsplit(request.url or "")
    return parts.hostname, parts.port


def _is_file(request: PreparedRequest) -> bool:
    """Is the body a file that can be rewound to where it was?"""
    return isinstance(request._body_position, int) and rewinds(request.body)


def _timeout(given: Any) -> Timeout:
    if isinstance(given, Timeout):
        return given
    connect, read = given if isinstance(given, tuple) else (given, given)
    return Timeout(connect=connect, read=read)


def _judge(error: Exception) -> Ruling | None:
    """The ruling on an error, by what it was made from."""
    cause: object = error.args[0] if isinstance(error, RequestException) and error.args else None
    if isinstance(cause, MaxRetryError):
        cause = cause.reason
    return judge(cause) if isinstance(cause, Exception) else None


def _read(response: Response) -> tuple[int, Mapping[str, str]]:
    return response.status_code, response.headers


def _let_go(response: Response, seconds: float) -> None:
    let_go(response.raw, seconds)


def _load(response: Response) -> None:
    """Read a response whole; an error carries the response in whose body it came."""
    try:
        response.content  # noqa: B018  (kept by the response)
    except RequestException as error:
        error.response = response
        raise
