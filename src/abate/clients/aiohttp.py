"""Retries for aiohttp: a client middleware, for ``ClientSession(middlewares=(middleware(policy),))``.

Everything else of the session stays as it was: redirects, auth and cookies are the session's, and each request that it
sends is one call of the policy. The one retry that aiohttp makes by itself, after a connection that broke, is kept
from sending anything.

* aiohttp's errors: a connection that could not be made or had is a request that the server never saw; timeouts are
  overload; a connection that broke, and an answer that makes no sense, are blips. Responses are judged by HTTP's
  table (`abate.decide.http`).
* A response that is not the final one is read to its end, if that is near, before every wait. Otherwise its connection
  is closed, and reading it after all, where the next attempt is refused after the wait, is a
  ``ClientConnectionError``.
* The final response is handed over unread: what fails in its body later is not retried.
* A deadline cuts an attempt off, with aiohttp's own error; after it, nothing is sent, and the error is a
  ``ConnectionTimeoutError``. aiohttp's `total` stands around all attempts: when it is
  over, so is the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any
from weakref import ref

from aiohttp import (
    BaseConnector,
    ClientConnectionError,
    ClientConnectorError,
    ClientHandlerType,
    ClientMiddlewareType,
    ClientOSError,
    ClientPayloadError,
    ClientRequest,
    ClientResponse,
    ClientResponseError,
    ClientSSLError,
    ConnectionTimeoutError,
    MultipartWriter,
    ServerDisconnectedError,
    ServerFingerprintMismatch,
    ServerTimeoutError,
    SocketTimeoutError,
    StreamReader,
)
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError
from aiohttp.payload import BytesPayload, IOBasePayload

from abate.call import tally, tasks
from abate.call.policy import Policy
from abate.clients.exchange import (
    READ_AT_MOST,
    TOO_LATE,
    Key,
    Plan,
    Secrets,
    Stopwatch,
    Timeouts,
    key_of,
    late,
    new_key,
    reading_time,
)
from abate.clients.trust import Secret
from abate.decide import http
from abate.decide.outcome import BLIP, OVERLOAD, UNREACHED, Ruling
from abate.errors import AttemptTimeout, RetryExhausted
from abate.redact import line
from abate.schedule.deadlines import keeps_deadline, remaining

BUSY = Ruling.overload(reached=False)
REPEATED = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""The methods that aiohttp sends again by itself."""


def middleware(
    policy: Policy,
    *,
    idempotency_key: bool = False,
    timeouts: Timeouts | None = None,
    secrets: Mapping[str, Secret] | None = None,
    key: Key = None,
) -> ClientMiddlewareType:
    """A client middleware that retries by a policy.

    * `policy`: its own `on` is asked first, then the rules for aiohttp's errors and HTTP's table.
    * `idempotency_key`: put an ``Idempotency-Key`` on requests whose method is not safe and which have none, the same
      one on every attempt. Only do so where the server knows what it means.
    * `timeouts`: an object whose ``request()`` and ``connect()`` bound the wait for a response and for a new
      connection, and whose ``observe(seconds)`` is told how long each good response took to come, without connecting.
      If it has ``observe_connect(seconds)``, that is told how long each new connection took to open, TLS included.
    * `secrets`: which hosts are sent which `abate.clients.trust.Secret`, so that services there believe this client:
      ``{"orders.internal": Secret(…), "*.shop.internal": Secret(…)}``. No other host is sent one, wherever redirects
      lead.
    * `key`: ``"host"`` gives each host and port a budget, gate and shelter of its own (see `Policy.keyed`); so does a
      function of the request, for what it answers.

    The last response is returned, or the last error raised, as it is. A body that cannot be replayed (a generator, a
    pipe) is never sent twice.

    >>> import abate, aiohttp, asyncio
    >>> policy = abate.Policy(on=abate.http.transient, name="orders", backoff=[0.0])
    >>> async def load():
    ...     async with aiohttp.ClientSession(middlewares=(middleware(policy),)) as session:
    ...         await session.get("http://127.0.0.1:1/")  # where nobody listens
    >>> try:
    ...     asyncio.run(load())
    ... except aiohttp.ClientConnectorError as error:
    ...     print(abate.report(error))
    orders gave up after 3 attempts: attempts
    """
    if not isinstance(idempotency_key, bool):
        raise TypeError(f"idempotency_key must be True or False, not {idempotency_key!r}")
    if timeouts is not None and not all(
        callable(getattr(timeouts, name, None)) for name in ("request", "connect", "observe")
    ):
        raise TypeError(f"timeouts must have request(), connect() and observe(), not be {timeouts!r}")
    if isinstance(policy, Policy) and not policy.name:
        policy = policy.replace(name="aiohttp")
    plan, sent, own_key = Plan(policy, _judge, _read), Secrets(secrets), key_of(key, _host)

    async def retrying(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        _raise_again(request)
        if idempotency_key and not http.repeatable(request.method, request.headers):
            request.headers[http.KEY_HEADER] = new_key()
        fitting = plan.for_request(
            request.method, request.headers, replayable=_replayable(request.body), key=own_key(request)
        )
        exchange = _Exchange(request, handler, fitting, timeouts, sent)
        if tally.watch.on:
            return await tally.acounted(plan.policy.tally, exchange.run)
        return await exchange.run()

    return retrying


class _Exchange:
    """One request on its way: the number of its attempt, and the response that may yet be discarded."""

    __slots__ = ("attempts", "handler", "held", "policy", "request", "scope", "secrets", "timeouts", "watch", "whole")

    def __init__(
        self, request: Any, handler: ClientHandlerType, policy: Policy, timeouts: Timeouts | None, secrets: Secrets
    ) -> None:
        self.request = request
        self.handler = handler
        self.policy = policy
        self.timeouts = timeouts
        self.secrets = secrets
        self.attempts = 0
        self.held: ClientResponse | None = None

    async def run(self) -> ClientResponse:
        """Make the call."""
        try:
            return await tasks.drive(self.policy, None, 0, self.attempt, (), {}, let_go=self.let_go)
        except RetryExhausted:
            raise  # it carries the response
        except AttemptTimeout as error:
            raise self.timed_out() from error
        except (ClientOSError, ServerDisconnectedError) as error:
            _remember(self.request, error)
            raise
        except _TotalOver as over:
            raise over.error from None
        except BaseException:
            if self.held is not None:
                self.held.close()  # something else than the policy ended the call
            raise

    @keeps_deadline
    async def attempt(self) -> ClientResponse:
        """Make one attempt."""
        self.request.response = None
        await self.let_go(remaining())
        if self.attempts:
            await self.request.close()  # what still writes the body must have ended before it is written again
        self.attempts += 1
        if late():
            raise ConnectionTimeoutError(TOO_LATE)
        self.secrets.outfit(self.request.headers, self.request.url.host, self.attempts)
        if self.timeouts is None:
            self.held = await self.send()
            return self.held
        _watch_connects(self.request.session.connector)
        token = _on_the_way.set(self)
        try:
            with Stopwatch(self.timeouts, _judge) as self.watch:
                self.held = await self.send()
                self.watch.answered(self.held.status)
        finally:
            _on_the_way.reset(token)
        return self.held

    async def send(self) -> ClientResponse:
        """Send the request, within what time it is allowed."""
        # where the policy has timeouts, it cuts attempts off by itself, and at the same instant
        self.scope = asyncio.timeout(None if self.policy.bounded else remaining())
        self.whole = self.scope.when()
        try:
            async with self.scope:
                self.bound_request()
                return await self.handler(self.request)
        except TimeoutError as error:
            if self.scope.expired():
                raise self.timed_out() from error
            if getattr(getattr(self.request, "_timer", None), "_cancelled", False):
                raise _TotalOver(error) from None
            raise

    def bound_request(self) -> None:
        """From now on the attempt may take as long as a request."""
        if self.timeouts is not None:
            due = asyncio.get_running_loop().time() + self.timeouts.request()
            self.scope.reschedule(due if self.whole is None else min(due, self.whole))

    @asynccontextmanager
    async def connecting(self) -> AsyncIterator[None]:
        """While a connection is opened: that has a timeout of its own, and the request has all its time after it."""
        assert self.timeouts is not None
        self.scope.reschedule(self.whole)
        self.watch.connecting()
        async with asyncio.timeout(self.timeouts.connect()):
            yield
        self.watch.connected()
        self.bound_request()

    def timed_out(self) -> ServerTimeoutError:
        """The error for an attempt that was cut off, as aiohttp would raise it."""
        if self.request.response is None:  # it is there as soon as anything is sent
            return ConnectionTimeoutError(f"Connection timeout to host {line(str(self.request.url))}")
        return SocketTimeoutError("Timeout on reading data from socket")

    async def let_go(self, left: float | None) -> None:
        """Have done with the response that is held: its connection serves others, if the body ends soon.

        Then the body is kept, for who gets the response after all; otherwise the response is closed. `left` are the
        seconds until the call's deadline.
        """
        response, self.held = self.held, None
        if response is None:
            return
        body: bytes | None = None
        try:
            if (response.content_length or 0) <= READ_AT_MOST:
                with suppress(Exception):  # the connection is gone, and so is the response
                    async with asyncio.timeout(reading_time(left)):
                        body = await _read_whole(response.content)
        finally:
            if body is None:
                response.close()
            elif body:
                response.content = _stream_of(body)


async def _read_whole(content: StreamReader) -> bytes | None:
    """Read a body; None if its end is not near."""
    body = bytearray()
    while part := await content.readany():
        body += part
        if len(body) > READ_AT_MOST:
            return None
    return bytes(body)


def _stream_of(body: bytes) -> StreamReader:
    """A stream that has come to its end, with all of a body in it."""
    loop = asyncio.get_running_loop()
    stream = StreamReader(BaseProtocol(loop), READ_AT_MOST, loop=loop)
    stream.feed_data(body)
    stream.feed_eof()
    return stream


_on_the_way: ContextVar[_Exchange | None] = ContextVar("abate_aiohttp_exchange", default=None)


def _watch_connects(connector: BaseConnector | None) -> None:
    """Have a connector show the connections that it opens to the attempts that need them.

    aiohttp shows them to the traces of a session only, and those of a request are set before its middlewares run.
    """
    if connector is None or "_create_connection" in vars(connector):
        return
    weakly = ref(connector)  # a connector that holds itself would be freed late, and not warn in time of being open

    async def create(request: Any, *args: Any, **kwargs: Any) -> Any:
        own: Any = weakly()
        exchange = _on_the_way.get()
        if exchange is not None and exchange.request is not request:
            exchange = None  # another middleware sends a request of its own meanwhile
        async with nullcontext() if exchange is None else exchange.connecting():
            return await type(own)._create_connection(own, request, *args, **kwargs)

    connector._create_connection = create  # type: ignore[assignment, method-assign]


class _TotalOver(BaseException):
    """aiohttp's `total` is over: as with a cancellation, there is nothing to decide about it."""

    def __init__(self, error: TimeoutError) -> None:
        self.error = error


# After an error of these kinds aiohttp calls the middlewares once more, for the same request: there is no switch for
# that. The timer is the one thing that both have in common.
_given_up: ContextVar[tuple[object, Exception] | None] = ContextVar("abate_aiohttp_given_up", default=None)


def _remember(request: Any, error: Exception) -> None:
    if request.method in REPEATED and not isinstance(error, ClientConnectorError):
        _given_up.set((getattr(request, "_timer", None), error))


def _raise_again(request: Any) -> None:
    """Raise the error that the policy has just given up on, if this is aiohttp's own retry."""
    last = _given_up.get()
    if last is None:
        return
    _given_up.set(None)
    timer, error = last
    if timer is not None and timer is getattr(request, "_timer", None):
        try:
            raise error
        finally:
            del last, error  # its traceback holds this frame: don't hold it back


def _judge(error: Exception) -> Ruling | None:
    """The ruling on an error of aiohttp's."""
    if isinstance(error, (ClientSSLError, ServerFingerprintMismatch)):
        return None
    if isinstance(error, ClientConnectorError):
        return UNREACHED
    if isinstance(error, ServerTimeoutError):
        return BUSY if isinstance(error, ConnectionTimeoutError) else OVERLOAD
    if isinstance(error, ClientResponseError):
        # garbage is reported as a response of 400 that nobody sent
        garbage = isinstance(error.__cause__, HttpProcessingError)
        return BLIP if garbage else http.judge(error.status, error.headers)
    return BLIP if isinstance(error, (ClientConnectionError, ClientPayloadError)) else None


def _read(response: ClientResponse) -> tuple[int, Mapping[str, str]]:
    """Status and headers of a response; a header that came twice is one with both values, as HTTP has it."""
    headers = response.headers
    if response.status < 400:
        return response.status, headers
    return response.status, {name: ", ".join(headers.getall(name)) for name in headers}


def _host(request: ClientRequest) -> tuple[str | None, int | None]:
    return request.url.host, request.url.port


def _replayable(body: Any) -> bool:
    """Can a body be sent twice?"""
    if isinstance(body, (bytes, BytesPayload)):
        return True
    if isinstance(body, MultipartWriter):
        return all(_replayable(part) for part, _, _ in body)
    # aiohttp tells whether a payload is used up since it leaves files open after they were sent
    return isinstance(body, IOBasePayload) and hasattr(body, "consumed") and bool(body._value.seekable())
