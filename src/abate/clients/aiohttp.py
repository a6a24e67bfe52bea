"""Retries for aiohttp: a client middleware, for ``ClientSession(middlewares=(middleware(policy),))``.

The session keeps redirects, auth and cookies; each request that it sends is one call of the policy. aiohttp's own retry
after a broken connection is stopped before it sends anything. `abate.clients.http_client` describes what all HTTP
clients share.

* Reading a body whose connection was closed before a wait raises ``ClientConnectionError``.
* The final response is returned unread: a failure in its body is not retried.
* A deadline cuts an attempt off with aiohttp's own error. After the deadline nothing is sent: the error is
  ``ConnectionTimeoutError``. aiohttp's `total` timeout bounds all attempts together, and ends the call.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import lru_cache
from typing import Any
from weakref import ref

from abate.optional_dependencies import requires_extra

with requires_extra(by="abate.clients.aiohttp", extra="aiohttp"):
    from aiohttp import (
        BaseConnector,
        ClientConnectorError,
        ClientHandlerType,
        ClientMiddlewareType,
        ClientOSError,
        ClientRequest,
        ClientResponse,
        ClientResponseError,
        ConnectionTimeoutError,
        MultipartWriter,
        ServerDisconnectedError,
        ServerTimeoutError,
        SocketTimeoutError,
        StreamReader,
    )
    from aiohttp.base_protocol import BaseProtocol
    from aiohttp.payload import BytesPayload, IOBasePayload

from abate.call.policy import Policy
from abate.clients.client_rules import Library
from abate.clients.http_client import (
    DEADLINE_PASSED,
    MAX_DRAIN_BYTES,
    ClientSettings,
    Key,
    drain_timeout,
    is_judged_by_body,
    new_idempotency_key,
)
from abate.clients.stopwatch import Stopwatch, TimeoutSource
from abate.clients.trust import Secret
from abate.decide import http
from abate.decide.network_errors import judge_network_error
from abate.errors import AttemptTimeout, Report, RetryExhausted, suggests_settings
from abate.redact import one_line
from abate.schedule.deadlines import deadline_aware, deadline_passed, remaining

__all__ = ["middleware"]

RETRIED_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""The methods that aiohttp sends again by itself."""


@suggests_settings
def middleware(
    policy: Policy | None = None,
    *,
    idempotency_key: bool = False,
    timeouts: TimeoutSource | None = None,
    secrets: Mapping[str, Secret] | None = None,
    ours: Iterable[str] | None = None,
    key: Key = None,
    mesh_retries: bool = True,
) -> ClientMiddlewareType:
    """Return a client middleware that retries by a policy.

    `policy`, `idempotency_key`, `timeouts`, `secrets`, `ours`, `key`, `mesh_retries`: as for every HTTP client, see
    `abate.clients.http_client.ClientSettings`. A function given as `key` is called with the ``ClientRequest``.

    The last response is returned, or the last error raised, unchanged. A body that cannot be replayed (a generator, a
    pipe) is sent once.

    >>> import abate, aiohttp, asyncio
    >>> policy = abate.Policy(on=abate.http.transient, name="orders", backoff=[0.0])
    >>> async def load():
    ...     async with aiohttp.ClientSession(middlewares=(middleware(policy),)) as session:
    ...         await session.get("http://127.0.0.1:1/")  # nothing listens there
    >>> try:
    ...     asyncio.run(load())
    ... except aiohttp.ClientConnectorError as error:
    ...     print(abate.report(error))
    orders gave up after 3 attempts: attempts
    """
    settings = ClientSettings(
        Library("aiohttp", judge_network_error, _read, _host, _body, _target, _mark),
        policy,
        idempotency_key=idempotency_key,
        timeouts=timeouts,
        secrets=secrets,
        ours=ours,
        key=key,
        mesh_retries=mesh_retries,
    )

    async def retrying(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        _refuse_second_retry(request)
        if settings.needs_idempotency_key(request.method, request.headers):
            request.headers[http.KEY_HEADER] = new_idempotency_key()
        return await _RequestInFlight(request, handler, settings).run()

    return retrying


class _RequestInFlight:
    """One request: the number of its attempts, and the last response, which may yet be discarded."""

    __slots__ = ("attempts", "handler", "held", "policy", "request", "scope", "settings", "timeouts", "watch", "whole")

    def __init__(self, request: Any, handler: ClientHandlerType, settings: ClientSettings) -> None:
        self.request = request
        self.handler = handler
        self.settings = settings
        self.timeouts = settings.timeouts
        self.policy = settings.policy_for(
            request, request.method, request.headers, replayable=_replayable(request.body)
        )
        self.attempts = 0
        self.held: ClientResponse | None = None

    async def run(self) -> ClientResponse:
        """Send the request, again if the policy says so."""
        try:
            return await self.settings.adrive(self.policy, self.request, self.attempt, self.release)
        except RetryExhausted:
            raise  # it carries the response
        except AttemptTimeout as error:
            raise self.timed_out() from error
        except (ClientOSError, ServerDisconnectedError) as error:
            _note_give_up(self.request, error)
            raise
        except BaseException as error:
            if self.held is not None:
                self.held.close()  # the call did not end by the policy's decision
            if isinstance(error, _TotalTimeout):
                raise error.error from None
            raise

    @deadline_aware
    async def attempt(self) -> ClientResponse:
        """Make one attempt."""
        self.request.response = None
        await self.release(remaining())
        if self.attempts:
            await self.request.close()  # a writer of the last attempt must end before the body is written again
        self.attempts += 1
        if deadline_passed():
            raise ConnectionTimeoutError(DEADLINE_PASSED)
        self.settings.set_headers(self.request.headers, self.request.url.host, self.attempts)
        if self.timeouts is None:
            self.held = await self.send()
            return await self.with_error(self.held)
        _watch_connects(self.request.session.connector)
        token = _current_request.set(self)
        try:
            with Stopwatch(self.timeouts, judge_network_error) as self.watch:
                self.held = await self.send()
                self.watch.response_received(self.held.status)
        finally:
            _current_request.reset(token)
        return await self.with_error(self.held)

    async def with_error(self, response: ClientResponse) -> ClientResponse:
        """Return the response; read the body of an error that is to be judged by it."""
        small_error = response.status >= 400 and (response.content_length or 0) <= MAX_DRAIN_BYTES
        if small_error and is_judged_by_body(self.policy, response, *_read(response), self.attempts):
            await _load(response, drain_timeout(remaining()))
            self.check_total()
        return response

    async def send(self) -> ClientResponse:
        """Send the request within the time that is left."""
        # a policy with timeouts cuts attempts off by itself, at the same instant
        self.scope = asyncio.timeout(None if self.policy.bounded else remaining())
        self.whole = self.scope.when()
        try:
            async with self.scope:
                self.bound_request()
                return await self.handler(self.request)
        except TimeoutError as error:
            if self.scope.expired():
                raise self.timed_out() from error
            self.check_total(error)
            raise

    def check_total(self, error: TimeoutError | None = None) -> None:
        """End the call if aiohttp's `total` timeout has passed: it interrupts only what waits at that moment."""
        if getattr(getattr(self.request, "_timer", None), "_cancelled", False):
            raise _TotalTimeout(error or TimeoutError()) from None

    def bound_request(self) -> None:
        """Give the attempt the time of a request, from now on."""
        if self.timeouts is not None:
            due = asyncio.get_running_loop().time() + self.timeouts.request()
            self.scope.reschedule(due if self.whole is None else min(due, self.whole))

    @asynccontextmanager
    async def connecting(self) -> AsyncIterator[None]:
        """Bound the opening of a connection by its own timeout; the request has all its time after it."""
        assert self.timeouts is not None
        self.scope.reschedule(self.whole)
        self.watch.connect_started()
        async with asyncio.timeout(self.timeouts.connect()):
            yield
        self.watch.connect_done()
        self.bound_request()

    def timed_out(self) -> ServerTimeoutError:
        """Return the error that aiohttp would raise for an attempt that was cut off."""
        if self.request.response is None:  # it exists as soon as anything is sent
            return ConnectionTimeoutError(f"Connection timeout to host {one_line(str(self.request.url))}")
        return SocketTimeoutError("Timeout on reading data from socket")

    async def release(self, left: float | None) -> None:
        """Discard the last response. If its body ends soon, the connection is reused and the body kept.

        Otherwise the response is closed. `left` is the number of seconds until the call's deadline.
        """
        response, self.held = self.held, None
        if response is None:
            return
        body: bytes | None = None
        try:
            if (response.content_length or 0) <= MAX_DRAIN_BYTES:
                with suppress(Exception):  # a connection that fails here is closed below
                    async with asyncio.timeout(drain_timeout(left)):
                        body = await _drain(response.content)
        finally:
            if body is None:
                response.close()
            elif body:
                response.content = _stream_of(body)
        self.check_total()


async def _drain(content: StreamReader) -> bytes | None:
    """Read a body; return None if it is longer than `MAX_DRAIN_BYTES`."""
    body = bytearray()
    while part := await content.readany():
        body += part
        if len(body) > MAX_DRAIN_BYTES:
            return None
    return bytes(body)


async def _load(response: ClientResponse, seconds: float) -> None:
    """Read the body of an error, if it ends within these seconds; the response keeps it."""
    content, body, done = response.content, bytearray(), False
    try:
        async with asyncio.timeout(seconds):
            while len(body) <= MAX_DRAIN_BYTES and not done:
                part = await content.readany()
                body += part
                done = not part
    except Exception:
        pass  # code that reads the rest meets the same failure
    finally:
        if done:
            response.content = _stream_of(bytes(body))
            response.loaded_error = bytes(body)  # type: ignore[attr-defined]
        elif body:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                content.unread_data(bytes(body))


def _stream_of(body: bytes) -> StreamReader:
    """Return a finished stream with this body."""
    loop = asyncio.get_running_loop()
    stream = StreamReader(BaseProtocol(loop), MAX_DRAIN_BYTES, loop=loop)
    stream.feed_data(body)
    stream.feed_eof()
    return stream


_current_request: ContextVar[_RequestInFlight | None] = ContextVar("abate_aiohttp_exchange", default=None)


def _watch_connects(connector: BaseConnector | None) -> None:
    """Make a connector report the connections that it opens to the attempts that need them.

    aiohttp reports them to the traces of a session only, which are set before the middlewares of a request run.
    """
    if connector is None or "_create_connection" in vars(connector):
        return
    weakly = ref(connector)  # in a cycle it would be freed late, and warn late that it is still open

    async def create(request: Any, *args: Any, **kwargs: Any) -> Any:
        own: Any = weakly()
        exchange = _current_request.get()
        if exchange is not None and exchange.request is not request:
            exchange = None  # the request of another middleware
        async with nullcontext() if exchange is None else exchange.connecting():
            return await type(own)._create_connection(own, request, *args, **kwargs)

    connector._create_connection = create  # type: ignore[assignment, method-assign]


class _TotalTimeout(BaseException):
    """aiohttp's `total` timeout ended the call: not an attempt to judge, like a cancellation."""

    def __init__(self, error: TimeoutError) -> None:
        self.error = error


# After an error of these kinds aiohttp calls the middlewares once more for the same request, and can't be told not to.
# The timer is the only object that both calls share.
_last_give_up: ContextVar[tuple[object, Exception] | None] = ContextVar("abate_aiohttp_given_up", default=None)


def _note_give_up(request: Any, error: Exception) -> None:
    if request.method in RETRIED_METHODS and not isinstance(error, ClientConnectorError):
        _last_give_up.set((getattr(request, "_timer", None), error))


def _refuse_second_retry(request: Any) -> None:
    """Raise the error that the policy gave up on if aiohttp now retries it by itself."""
    last = _last_give_up.get()
    if last is None:
        return
    _last_give_up.set(None)
    timer, error = last
    if timer is not None and timer is getattr(request, "_timer", None):
        try:
            raise error
        finally:
            del last, error  # break the cycle: its traceback refers to this frame


def _read(response: ClientResponse) -> tuple[int, Mapping[str, str]]:
    """Return status and headers of a response; the values of a repeated header are joined by commas."""
    headers = response.headers
    if response.status < 400:
        return response.status, headers
    return response.status, {name: ", ".join(headers.getall(name)) for name in headers}


def _body(response: ClientResponse) -> bytes | None:
    """Return the body of a response that was read before it is judged."""
    return getattr(response, "loaded_error", None)


def _target(request: ClientRequest) -> tuple[str, str]:
    return request.method, str(request.url)


def _mark(response: ClientResponse, report: Report, forbids_retry: bool) -> None:
    """Put a report on a response that is given up on; its headers can't be changed."""
    response.abate_report = report  # type: ignore[attr-defined]
    if not issubclass(type(response), ClientResponse):
        return  # a test's own
    # a method of the class: as an attribute it would hold the response, whose connection would be freed late
    response.__class__ = _given_up_class(type(response))  # type: ignore[arg-type]


@lru_cache(maxsize=10)
def _given_up_class(kind: type[ClientResponse]) -> type[ClientResponse]:
    """Return the class of responses that were given up on: the errors that they raise carry their report."""

    def raise_for_status(self: Any) -> None:
        try:
            kind.raise_for_status(self)
        except ClientResponseError as error:
            error.abate_report = self.abate_report  # type: ignore[attr-defined]
            raise

    return type(kind.__name__, (kind,), {"raise_for_status": raise_for_status})


def _host(request: ClientRequest) -> tuple[str | None, int | None]:
    return request.url.host, request.url.port


def _replayable(body: Any) -> bool:
    """Return whether a body can be sent twice."""
    if isinstance(body, (bytes, BytesPayload)):
        return True
    if isinstance(body, MultipartWriter):
        return all(_replayable(part) for part, _, _ in body)
    # aiohttp has `consumed` since the version that leaves files open after they were sent
    return isinstance(body, IOBasePayload) and hasattr(body, "consumed") and bool(body._value.seekable())
