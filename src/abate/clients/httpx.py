"""Retries for httpx, and for httpx2, which has the same interface: transports around another transport.

The client keeps redirects, auth, cookies and streaming; each request that it sends is one call of the policy.

* A response that will be retried is read to its end if that is near, and closed before every wait (backoff or
  shelter), so that its connection serves other calls. If a gate or a shelter then refuses the next attempt, this
  response is returned after all; reading a body of more than 64 KB raises ``ReadError``.
* The final response is returned unread: a failure in its body is not retried.
* The timeouts of an attempt are cut to the time until the deadline. After the deadline nothing is sent: the error is
  ``ConnectTimeout``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from abate.call import async_driver, counters, sync_driver
from abate.call.layers import retry_serials
from abate.call.policy import Policy
from abate.clients.headers import ATTEMPT, DEADLINE, EXHAUSTED
from abate.clients.http_client import MIN_TIMEOUT, ClientSettings, Key, Library
from abate.clients.httpx_request import REPORT, RequestInFlight, discarded_stream
from abate.clients.stopwatch import ErrorRule, Stopwatch, Timeouts
from abate.clients.trust import SECRET, Secret
from abate.decide.http import KEY_HEADER
from abate.decide.outcome import BLIP, OVERLOAD, OVERLOAD_UNREACHED, UNREACHED
from abate.errors import LayeredRetryWarning
from abate.schedule.deadlines import remaining

if TYPE_CHECKING:
    import httpx
else:
    try:
        import httpx
    except ModuleNotFoundError:
        import httpx2 as httpx

__all__ = ["AsyncTransport", "Transport"]

CONNECT_EVENTS = {
    "connect_tcp.started": Stopwatch.connect_started,
    "connect_tcp.complete": Stopwatch.connect_done,
    "connect_unix_socket.started": Stopwatch.connect_started,
    "connect_unix_socket.complete": Stopwatch.connect_done,
    "start_tls.started": Stopwatch.connect_started,
    "start_tls.complete": Stopwatch.connect_done,
}
"""What the events of httpx's ``trace`` extension mean, without their prefix "connection", "proxy" or "socks"."""


class RetryingTransport:
    """The part of both transports that does not wait."""

    _default_transport: type[Any]
    _send_method: str
    _connect_tracer: Any

    def __init__(
        self,
        policy: Policy,
        transport: Any = None,
        *,
        idempotency_key: bool = False,
        timeouts: Timeouts | None = None,
        secrets: Mapping[str, Secret] | None = None,
        key: Key = None,
    ) -> None:
        inner = self._default_transport() if transport is None else transport
        if not callable(getattr(inner, self._send_method, None)):
            raise TypeError(f"transport must have {self._send_method}(), not be {inner!r}")
        self.inner = inner
        self.library = _library(inner)
        # a final response carries its report inside an error, which `RequestInFlight.finish` takes off again
        self.settings = ClientSettings(
            Library(self.library.__name__, _error_rule(self.library), _read, _host),
            policy,
            idempotency_key=idempotency_key,
            timeouts=timeouts,
            secrets=secrets,
            key=key,
            raises="exhausted",
        )
        self.raises_exhausted = policy.raises == "exhausted"
        self.byte_stream: type = self.library.ByteStream
        self.discarded_stream = discarded_stream(self.library)
        self._deposit = policy.budget.deposit
        self._has_fast_path = policy.plain and timeouts is None and policy.shelter is None and key is None
        if getattr(getattr(inner, "_pool", None), "_retries", 0):
            multiply = f"{inner!r} retries as well, and retries multiply: build it with retries=0"
            warnings.warn(multiply, LayeredRetryWarning, stacklevel=2)

    def _takes_fast_path(self, request: httpx.Request) -> bool:
        """Return whether the first attempt needs nothing but its number: no deadline, key, secret or timeouts."""
        return (
            self._has_fast_path
            and remaining() is None
            and not self.settings.needs_idempotency_key(request.method, request.headers)
            and not self._has_extra_headers(request)
        )

    def _has_extra_headers(self, request: httpx.Request) -> bool:
        """Return whether headers besides the attempt's number must be set on this request, or removed from it."""
        headers = request.headers
        return bool(self.settings.secrets.given) or DEADLINE in headers or SECRET in headers

    @contextmanager
    def prepared(self, exchange: RequestInFlight) -> Iterator[None]:
        """Set the headers and timeouts of one attempt, and restore the request after it."""
        request, attempt, key = exchange.request, exchange.attempt, exchange.key
        timeouts, watch = self.settings.timeouts, None
        request.headers[ATTEMPT] = str(attempt)
        kept = request.headers, request.extensions
        if key is not None or timeouts is not None or remaining() is not None or self._has_extra_headers(request):
            request.headers = request.headers.copy()
            self.settings.secrets.set_headers(request.headers, request.url.host, attempt)
            if key is not None:
                request.headers[KEY_HEADER] = key
            request.extensions = {**request.extensions, "timeout": self._cut(request.extensions.get("timeout", {}))}
        if timeouts is not None:
            watch = Stopwatch(timeouts, self.settings.judge_error)
            request.extensions["trace"] = self._connect_tracer(watch, request.extensions.get("trace"))
        exchange.extensions = request.extensions
        try:
            with watch or nullcontext():
                yield
                if watch is not None:
                    watch.response_received(exchange.held.status_code)
        finally:
            request.headers, request.extensions = kept  # the next user of this request needs other values

    def _cut(self, given: Mapping[str, float | None]) -> dict[str, float | None]:
        own, left = self.settings.timeouts, remaining()
        bounds = {} if own is None else {"connect": own.connect(), "read": own.request()}
        cut: dict[str, float | None] = {}
        for phase in ("connect", "read", "write", "pool"):
            known = [seconds for seconds in (given.get(phase), bounds.get(phase), left) if seconds is not None]
            cut[phase] = max(min(known), MIN_TIMEOUT) if known else None
        return cut


class Transport(RetryingTransport, httpx.BaseTransport):
    """An httpx transport that retries by a policy, around `transport` (by default a plain ``HTTPTransport``).

    * `policy`, `idempotency_key`, `timeouts`, `secrets`, `key`: as for every HTTP client, see
      `abate.clients.http_client.ClientSettings`. A function given as `key` is called with the ``Request``.
    * `transport`: what sends. With one of httpx2's, this transport is for ``httpx2.Client``.

    A body that cannot be replayed (a generator) is sent once. A response that was given up on has its `Report` in
    ``response.extensions["abate_report"]``; `abate.report` returns that of an error. A deadline cuts httpx's timeouts,
    which apply to each read: in threads, a server that sends byte after byte is not interrupted.

    >>> import abate, httpx
    >>> answers = iter([503, 200])
    >>> server = httpx.MockTransport(lambda request: httpx.Response(next(answers)))
    >>> policy = abate.Policy(on=abate.http.transient, backoff=[0.0], name="orders")
    >>> with httpx.Client(transport=Transport(policy, server)) as client:
    ...     client.get("http://orders.example/42").status_code
    200
    """

    _default_transport = httpx.HTTPTransport
    _send_method = "handle_request"

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

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request with retries."""
        if counters.wrapper_versions.on:
            return counters.count_call(self.settings.policy.counter, self._handle, request)
        return self._handle(request)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        replayable = type(request.stream) is self.byte_stream or _is_replayable(request.stream)
        since, first_response, failure = retry_serials.last, None, None
        if self._takes_fast_path(request):
            request.headers[ATTEMPT] = "1"
            try:
                first_response = self.inner.handle_request(request)
                if first_response.status_code < 400:
                    self._deposit()
                    return first_response  # type: ignore[no-any-return]
            except Exception as error:
                failure = error
        with RequestInFlight(self, request, replayable, first_response, failure) as exchange:
            try:
                response = sync_driver.drive(
                    exchange.policy, failure, since, exchange.send, (), {}, let_go=exchange.pause
                )
                return exchange.finish(response)  # type: ignore[no-any-return]
            except BaseException as error:
                if not exchange.gave_up(error):
                    exchange.release(exchange.left(error))
                raise
            finally:
                del failure  # break the cycle: its traceback refers to this frame
        return exchange.finish()  # type: ignore[no-any-return]

    def close(self) -> None:
        self.inner.close()


class AsyncTransport(RetryingTransport, httpx.AsyncBaseTransport):
    """Do the same for ``httpx.AsyncClient``, under asyncio and trio; a deadline cuts off the attempt under way.

    >>> import abate, asyncio, httpx
    >>> answers = iter([503, 200])
    >>> server = httpx.MockTransport(lambda request: httpx.Response(next(answers)))
    >>> async def load():
    ...     policy = abate.Policy(on=abate.http.transient, backoff=[0.0], name="orders")
    ...     async with httpx.AsyncClient(transport=AsyncTransport(policy, server)) as client:
    ...         return (await client.get("http://orders.example/42")).status_code
    >>> asyncio.run(load())
    200
    """

    _default_transport = httpx.AsyncHTTPTransport
    _send_method = "handle_async_request"

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

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request with retries."""
        if counters.wrapper_versions.on:
            return await counters.acount_call(self.settings.policy.counter, self._handle, request)
        return await self._handle(request)

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        replayable = type(request.stream) is self.byte_stream or _is_replayable(request.stream)
        since, first_response, failure = retry_serials.last, None, None
        if self._takes_fast_path(request):
            request.headers[ATTEMPT] = "1"
            try:
                first_response = await self.inner.handle_async_request(request)
                if first_response.status_code < 400:
                    self._deposit()
                    return first_response  # type: ignore[no-any-return]
            except Exception as error:
                failure = error
        with RequestInFlight(self, request, replayable, first_response, failure) as exchange:
            try:
                response = await async_driver.drive(
                    exchange.policy, failure, since, exchange.asend, (), {}, let_go=exchange.apause
                )
                return exchange.finish(response)  # type: ignore[no-any-return]
            except BaseException as error:
                if not exchange.gave_up(error):
                    await exchange.arelease(exchange.left(error))
                raise
            finally:
                del failure  # break the cycle: its traceback refers to this frame
        return exchange.finish()  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        await self.inner.aclose()


def _library(inner: Any) -> Any:
    """Return the library of a transport, httpx or httpx2: each has its own errors and types."""
    if isinstance(inner, RetryingTransport):
        return inner.library
    roots = {kind.__module__.partition(".")[0] for kind in type(inner).__mro__}
    return sys.modules["httpx2"] if "httpx2" in roots else httpx


def _error_rule(library: Any) -> ErrorRule:
    """Return the rule for a library's errors; it has no ruling on other errors."""
    rulings = {
        (library.ConnectError,): UNREACHED,
        (library.ConnectTimeout, library.PoolTimeout): OVERLOAD_UNREACHED,
        (library.TimeoutException,): OVERLOAD,
        (library.ReadError, library.WriteError, library.RemoteProtocolError): BLIP,
    }
    return lambda error: next((ruling for kinds, ruling in rulings.items() if isinstance(error, kinds)), None)


def _read(response: Any) -> tuple[int, Mapping[str, str]]:
    """Return status and headers of a response, marked as exhausted if an inner transport of abate gave up on it."""
    inner = response.extensions.get(REPORT)
    layered = inner is not None and inner.reason != "fatal"
    return response.status_code, {EXHAUSTED: "1"} if layered else response.headers


def _host(request: Any) -> tuple[str, int | None]:
    return request.url.host, request.url.port


def _is_replayable(stream: Any) -> bool:
    """Return whether this body can be sent again: a multipart form rewinds its files if they are seekable."""
    if type(stream).__name__ != "MultipartStream":
        return False
    files = (field.file for field in stream.fields if hasattr(field, "file"))
    return all(isinstance(file, (bytes, str)) or getattr(file, "seekable", bool)() for file in files)
