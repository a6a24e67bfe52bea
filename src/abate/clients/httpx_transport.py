"""The transports for httpx and httpx2: one definition for both libraries, which have the same interface.

The client keeps redirects, auth, cookies and streaming; each request that it sends is one call of the policy.
`abate.clients.http_client` describes what all HTTP clients share.

* Reading a body whose connection was closed before a wait raises ``ReadError``.
* The final response is returned unread: a failure in its body is not retried. Server-sent events may be as long apart
  as the request's own read timeout and the deadline around the call allow.
* The timeouts of an attempt are cut to the time until the deadline. After the deadline nothing is sent: the error is
  ``ConnectTimeout``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from abate.call import async_driver, counters, sync_driver
from abate.call.layers import retry_serials
from abate.call.policy import Policy
from abate.clients.client_rules import Library
from abate.clients.headers import ATTEMPT, DEADLINE
from abate.clients.http_client import MIN_TIMEOUT, ClientSettings, HttpRequest, Key
from abate.clients.httpx_bodies import is_event_stream, streams_of
from abate.clients.httpx_call import EXTENSION, STREAM_READ, HttpxCall
from abate.clients.outer_retries import forbid_retry
from abate.clients.stopwatch import Stopwatch, TimeoutSource
from abate.clients.trust import SECRET, Secret
from abate.decide.http import KEY_HEADER
from abate.decide.network_errors import judge_network_error
from abate.decide.responses import REPORT
from abate.errors import LayeredRetryWarning, Report, suggests_settings
from abate.schedule.deadlines import peek_deadline, remaining

CONNECT_EVENTS = {
    "connect_tcp.started": Stopwatch.connect_started,
    "connect_tcp.complete": Stopwatch.connect_done,
    "connect_unix_socket.started": Stopwatch.connect_started,
    "connect_unix_socket.complete": Stopwatch.connect_done,
    "start_tls.started": Stopwatch.connect_started,
    "start_tls.complete": Stopwatch.connect_done,
}
"""What the events of httpx's ``trace`` extension mean, without their prefix "connection", "proxy" or "socks"."""


class OfOtherKind:
    """A method of the other kind of transport, sync or async: say what to do if a client of that kind asks for it.

    It is no ``__getattr__``: with that, Python would look up all other attributes of a transport more slowly, too.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, transport: Any, owner: type[RetryingTransport]) -> Any:
        wanted, own = "Async" if "_a" in self._name else "", owner.library.__name__
        raise AttributeError(
            f"{owner.__name__!r} object has no attribute {self._name!r}: give {own}.{wanted}Client"
            f" abate.clients.{own}.{wanted}Transport"
        )


class RetryingTransport:
    """The part of all transports that does not wait."""

    library: Any
    """The library that the transport is for: httpx or httpx2."""
    _default_transport: type[Any]
    _send_method: str
    _connect_tracer: Any

    @suggests_settings
    def __init__(
        self,
        policy: Policy | None = None,
        transport: Any = None,
        *,
        idempotency_key: bool = False,
        timeouts: TimeoutSource | None = None,
        secrets: Mapping[str, Secret] | None = None,
        ours: Iterable[str] | None = None,
        key: Key = None,
        mesh_retries: bool = True,
    ) -> None:
        inner = self._default_transport() if transport is None else transport
        self._check_inner(inner)
        self.inner = inner
        # a final response carries its report inside an error, which `HttpxCall.finish` takes off again
        self.settings = ClientSettings(
            Library(self.library.__name__, judge_network_error, _read, _host, _body, _target, _mark),
            policy,
            idempotency_key=idempotency_key,
            timeouts=timeouts,
            secrets=secrets,
            ours=ours,
            key=key,
            mesh_retries=mesh_retries,
            raises="exhausted",
        )
        policy = self.settings.policy
        self.raises_exhausted = policy.raises == "exhausted"
        self.byte_stream: type = self.library.ByteStream
        self.streams = streams_of(self.library)
        self._deposit = policy.budget.deposit
        self._makes_keys = idempotency_key
        self._private = self.settings.private_headers
        self._has_fast_path = (
            policy.plain
            and timeouts is None
            and policy.shelter is None
            and key is None
            and not self._private.secrets
            and mesh_retries
        )
        if getattr(getattr(inner, "_pool", None), "_retries", 0):
            multiply = f"{inner!r} retries as well, and retries multiply: build it with retries=0"
            warnings.warn(multiply, LayeredRetryWarning, stacklevel=3)

    def _check_inner(self, inner: Any) -> None:
        """Raise TypeError for what is no transport of this library."""
        if not callable(getattr(inner, self._send_method, None)):
            raise TypeError(f"transport must have {self._send_method}(), not be {inner!r}")
        own = self.library.__name__
        for other in {"httpx", "httpx2"} - {own}:
            library: Any = sys.modules.get(other) or self.library
            if library.BaseTransport is self.library.BaseTransport:
                continue  # not in use, or an alias
            if isinstance(inner, (library.BaseTransport, library.AsyncBaseTransport)):
                raise TypeError(
                    f"this transport is for {own}, not for a transport of {other}: use abate.clients.{other} for"
                    f" {inner!r}"
                )

    def check_request(self, request: Any) -> None:
        """Raise TypeError for a request of the other library."""
        if not isinstance(request, self.library.Request):
            own, other = self.library.__name__, type(request).__module__.partition(".")[0]
            raise TypeError(
                f"this transport is for {own}, and cannot send a request of {other}: give the client a transport of"
                f" abate.clients.{other}"
            )

    def _takes_fast_path(self, request: Any) -> bool:
        """Return whether the first attempt needs nothing but its number, which is then set."""
        if (
            not self._has_fast_path
            or type(request.stream) is not self.byte_stream
            or EXTENSION in request.extensions
            or (peek_deadline() is not None and remaining() is not None)
            or (self._makes_keys and self.settings.needs_idempotency_key(request.method, request.headers))
        ):
            return False
        headers, host = request.headers, request.url.host
        if DEADLINE in headers or SECRET in headers:
            return False
        ours = self._private.known.get(host)
        if ours or (ours is None and self._private.is_ours(host)):
            headers[ATTEMPT] = "1"
            return True
        return ATTEMPT not in headers

    @contextmanager
    def prepared(self, exchange: HttpxCall) -> Iterator[Any]:
        """Yield the request of one attempt, with its headers and timeouts.

        Where more than the number is set it is a copy: several tasks may send one request at the same time.
        """
        request, settings = exchange.request, self.settings
        timeouts, watch = settings.timeouts, None
        if self._private.is_ours(request.url.host):
            request.headers[ATTEMPT] = str(exchange.attempt)
        if exchange.key is not None or timeouts is not None or remaining() is not None or self._has_foreign(request):
            request = _copy(request)
            settings.set_headers(request.headers, request.url.host, exchange.attempt)
            if exchange.key is not None:
                request.headers[KEY_HEADER] = exchange.key
            request.extensions["timeout"] = self._cut(request.extensions.get("timeout", {}))
            request.extensions[STREAM_READ] = exchange.stream_read
        if timeouts is not None:
            watch = Stopwatch(timeouts, settings.judge_error)
            request.extensions["trace"] = self._connect_tracer(watch, request.extensions.get("trace"))
        exchange.extensions = request.extensions
        with watch or nullcontext():
            yield request
            if watch is not None:
                watch.response_received(exchange.held.status_code)
        if STREAM_READ in request.extensions and is_event_stream(exchange.held):
            request.extensions["timeout"]["read"] = exchange.stream_read

    def _has_foreign(self, request: Any) -> bool:
        """Return whether headers besides the attempt's number must be set on this request, or some removed from it."""
        headers = request.headers
        return (
            bool(self._private.secrets)
            or not self.settings.mesh_retries
            or DEADLINE in headers
            or SECRET in headers
            or (ATTEMPT in headers and not self._private.is_ours(request.url.host))
        )

    def _cut(self, given: Mapping[str, float | None]) -> dict[str, float | None]:
        own, left = self.settings.timeouts, remaining()
        bounds = {} if own is None else {"connect": own.connect(), "read": own.request()}
        cut: dict[str, float | None] = {}
        for phase in ("connect", "read", "write", "pool"):
            known = [seconds for seconds in (given.get(phase), bounds.get(phase), left) if seconds is not None]
            cut[phase] = max(min(known), MIN_TIMEOUT) if known else None
        return cut


class SyncTransport(RetryingTransport):
    """The transport for threads; `abate.clients.httpx.Transport` describes it."""

    _send_method = "handle_request"
    handle_async_request, __aenter__ = OfOtherKind(), OfOtherKind()

    def _connect_tracer(
        self, watch: Stopwatch, own: Callable[[str, Any], object] | None
    ) -> Callable[[str, Any], object]:
        """Return a trace function that reports connects to the stopwatch and calls the request's own trace."""

        def trace(event: str, info: Any) -> object:
            connect = CONNECT_EVENTS.get(event.partition(".")[2])
            if connect is not None:
                connect(watch)
            return None if own is None else own(event, info)

        return trace

    def handle_request(self, request: Any, counted: bool = False) -> Any:
        """Send a request with retries; `counted` says that the call counters know of it."""
        if counters.wrapper_versions.on and not counted:
            return counters.count_call(self.settings.policy.counter, self.handle_request, request, True)
        since, first_response, failure = retry_serials.last, None, None
        if self._takes_fast_path(request):
            try:
                first_response = self.inner.handle_request(request)
                if first_response.status_code < 400:
                    self._deposit()
                    return first_response
            except Exception as error:
                failure = error
        with HttpxCall(self, request, first_response, failure) as exchange:
            try:
                return sync_driver.drive(
                    exchange.choose_policy(),
                    failure,
                    since,
                    exchange.send,
                    (),
                    {},
                    let_go=exchange.release,
                    make=HttpRequest(request, self.settings).make,
                )
            except BaseException as error:
                if not exchange.gave_up(error):
                    exchange.release(exchange.left(error))
                raise
            finally:
                del failure  # break the cycle: its traceback refers to this frame
        return exchange.finish()

    def close(self) -> None:
        self.inner.close()


class AsyncTransport(RetryingTransport):
    """The transport for asyncio and trio."""

    _send_method = "handle_async_request"
    handle_request, __enter__ = OfOtherKind(), OfOtherKind()

    def _connect_tracer(
        self, watch: Stopwatch, own: Callable[[str, Any], Awaitable[object]] | None
    ) -> Callable[[str, Any], Awaitable[object]]:
        """Return a trace function that reports connects to the stopwatch and calls the request's own trace."""

        async def trace(event: str, info: Any) -> object:
            connect = CONNECT_EVENTS.get(event.partition(".")[2])
            if connect is not None:
                connect(watch)
            return None if own is None else await own(event, info)

        return trace

    async def handle_async_request(self, request: Any, counted: bool = False) -> Any:
        """Send a request with retries; `counted` says that the call counters know of it."""
        if counters.wrapper_versions.on and not counted:
            return await counters.acount_call(self.settings.policy.counter, self.handle_async_request, request, True)
        since, first_response, failure = retry_serials.last, None, None
        if self._takes_fast_path(request):
            try:
                first_response = await self.inner.handle_async_request(request)
                if first_response.status_code < 400:
                    self._deposit()
                    return first_response
            except Exception as error:
                failure = error
        with HttpxCall(self, request, first_response, failure) as exchange:
            try:
                return await async_driver.drive(
                    exchange.choose_policy(),
                    failure,
                    since,
                    exchange.asend,
                    (),
                    {},
                    let_go=exchange.arelease,
                    make=HttpRequest(request, self.settings).make,
                )
            except BaseException as error:
                if not exchange.gave_up(error):
                    await exchange.arelease(exchange.left(error))
                raise
            finally:
                del failure  # break the cycle: its traceback refers to this frame
        return exchange.finish()

    async def aclose(self) -> None:
        await self.inner.aclose()


def _copy(request: Any) -> Any:
    """Return a copy of a request with headers and extensions of its own; httpx's own way leaves the body out."""
    copied = object.__new__(type(request))
    copied.__dict__.update(request.__dict__)
    copied.headers, copied.extensions = request.headers.copy(), dict(request.extensions)
    return copied


def _read(response: Any) -> tuple[int, Mapping[str, str]]:
    """Return the status and the headers of a response."""
    return response.status_code, response.headers


def _body(response: Any) -> bytes | None:
    """Return the body of a response that was read before it is judged."""
    return getattr(response.stream, "decoded", None)


def _target(request: Any) -> tuple[str, str]:
    return request.method, str(request.url)


def _mark(response: Any, report: Report, forbids_retry: bool) -> None:
    response.extensions[REPORT] = report
    if forbids_retry:
        forbid_retry(response.headers)


def _host(request: Any) -> tuple[str, int | None]:
    return request.url.host, request.url.port
