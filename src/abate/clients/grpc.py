"""gRPC: interceptors that retry calls, for grpcio's own channels and for those of `grpc.aio`.

Every call is judged by one table of status codes:

* UNAVAILABLE is worth another attempt, and so is ABORTED, a conflict;
* RESOURCE_EXHAUSTED and DEADLINE_EXCEEDED mean overload; but a message over a size limit is too large every time;
* everything else is fatal: UNKNOWN and INTERNAL, and CANCELLED, which passes at once.

The server's hint is read from ``grpc-retry-pushback-ms`` (negative or unreadable: stop) and from ``RetryInfo`` in the
status details. Each attempt's ``timeout`` is cut to what remains until the deadline, and ``abate-attempt`` and
``abate-deadline`` go along as metadata. An error whose trailing metadata has ``abate-exhausted`` is not retried: a
service behind it has done so.

Unary calls and server streams are retried, a stream until its first message has come; after that its errors are
raised as they are. The requests of client streams cannot be sent twice: such calls pass untouched.

With ``idempotent=False`` only those failures are retried which show that no connection was made. gRPC tells this in the
details of the status alone, so a server that passes on the details of its own failed calls word for word can be
mistaken for one that was never reached, unless it sends metadata as well, such as ``abate-exhausted``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import copy_context
from itertools import count, islice
from threading import RLock
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from abate.call.policy import Policy
from abate.clients.exchange import ATTEMPT, DEADLINE, EXHAUSTED, gave_up, travelling, within
from abate.clients.trust import SECRET, Secret
from abate.decide.outcome import BLIP, FATAL, LAYER, OVERLOAD, Outcome, Ruling
from abate.decide.rules import Rule
from abate.redact import shown
from abate.schedule.deadlines import carry_deadline, keeps_deadline
from abate.schedule.hints import pushback

Metadata = tuple[tuple[str, str | bytes], ...]

RULINGS = {
    grpc.StatusCode.UNAVAILABLE: BLIP,
    grpc.StatusCode.ABORTED: BLIP,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OVERLOAD,
    grpc.StatusCode.DEADLINE_EXCEEDED: OVERLOAD,
}

NEVER_CONNECTED = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
"""How the details begin where grpcio itself says that it has not reached any server."""

TOO_LARGE = "message larger than max"

OWN_KEYS = frozenset({ATTEMPT.lower(), DEADLINE.lower(), SECRET.lower()})

EXPIRED = -1.0
"""The timeout of an attempt for which no time is left: with 0, grpcio may still send it."""


class OnStatus(Rule):
    """Errors of grpcio, sync and async, judged by their status.

    >>> transient.judge(Outcome(error=grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED))).reason
    'overload'
    """

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        if not isinstance(error, (grpc.Call, grpc.aio.AioRpcError)) or not isinstance(error, grpc.RpcError):
            return None
        trailing = _pairs(error.trailing_metadata())
        if any(key == EXHAUSTED.lower() and isinstance(value, str) and gave_up(value) for key, value in trailing):
            return LAYER
        ruling = RULINGS.get(error.code())
        details = error.details() or ""
        if ruling is None or (ruling is OVERLOAD and TOO_LARGE in details):
            return FATAL
        reached = bool(trailing or error.initial_metadata()) or not details.startswith(NEVER_CONNECTED)
        return Ruling(True, ruling.reason, _hint(trailing), reached, None, _answered(error, trailing))


transient = OnStatus()
"""The rule for `on` of a policy whose calls go through gRPC; the interceptors ask it in any case."""


def channel_options() -> list[tuple[str, int]]:
    """The options of a channel whose calls are retried by abate: they turn grpcio's own retries off.

    grpcio retries by itself where a service config says so, one that comes by DNS among them, and the two multiply.
    Interceptors see neither the options of their channel nor its service config, so nothing can warn of that: give
    these options to every channel that has interceptors.

    >>> channel_options()
    [('grpc.enable_retries', 0)]
    """
    return [("grpc.enable_retries", 0)]


def interceptors(
    policy: Policy, *, idempotent: bool = True, secret: Secret | None = None
) -> list[grpc.UnaryUnaryClientInterceptor]:
    """The interceptors of a channel whose calls are retried by `policy`.

    With ``idempotent=False``, or where the policy says so, only calls that reached no server are sent again. A `secret`
    goes along as ``abate-secret``, so that servers which know it believe the rest (`abate.clients.grpc_server`).

    A call by ``future()`` returns when it is over, retries and all. A stream is sent at once, and its retries are made
    while its first message is waited for; where the policy has a gate or timeouts, it is sent then. A timeout, the
    policy's and the call's own, bounds the whole stream.

    >>> import abate
    >>> orders = abate.Policy(name="orders", on=transient, attempts=2, backoff=[0.0])
    >>> nobody = grpc.insecure_channel("127.0.0.1:1", options=channel_options())
    >>> with grpc.intercept_channel(nobody, *interceptors(orders)) as channel:
    ...     try:
    ...         channel.unary_unary("/shop.Orders/Get")(b"42")
    ...     except grpc.RpcError as error:
    ...         print(error.code(), abate.report(error))
    StatusCode.UNAVAILABLE orders gave up after 2 attempts: attempts
    """
    return [_Interceptor(_fitted(policy, idempotent), _known(secret))]


def aio_interceptors(
    policy: Policy, *, idempotent: bool = True, secret: Secret | None = None
) -> list[grpc.aio.ClientInterceptor]:
    """The same for a channel of `grpc.aio`.

    Such a stream is sent at once; what else is asked of it is answered once its first message has come.

    >>> import abate, asyncio
    >>> orders = abate.Policy(name="orders", on=transient, attempts=2, backoff=[0.0])
    >>> async def get():
    ...     retried = aio_interceptors(orders)
    ...     async with grpc.aio.insecure_channel("127.0.0.1:1", channel_options(), interceptors=retried) as channel:
    ...         try:
    ...             await channel.unary_unary("/shop.Orders/Get")(b"42")
    ...         except grpc.RpcError as error:
    ...             print(error.code(), abate.report(error))
    >>> asyncio.run(get())
    StatusCode.UNAVAILABLE orders gave up after 2 attempts: attempts
    """
    fitted, known = _fitted(policy, idempotent), _known(secret)
    return [_AioUnary(fitted, known), _AioStream(fitted, known)]  # grpc.aio takes only one role of each object


def _fitted(policy: Policy, idempotent: bool) -> Policy:
    if not isinstance(policy, Policy):
        raise TypeError(f"policy must be a Policy, not {shown(policy)}")
    if not isinstance(idempotent, bool):
        raise TypeError(f"idempotent must be True or False, not {shown(idempotent)}")
    return policy.also(transient).replace(idempotent=idempotent and policy.idempotent is not False)


def _known(secret: Secret | None) -> Secret | None:
    if secret is not None and not isinstance(secret, Secret):
        raise TypeError(f"secret must be a Secret, not a {type(secret).__name__}")
    return secret


# -- what the server said


def _answered(error: Any, trailing: Metadata) -> bool:
    """Is the status the server's own? That a deadline is over is noticed on both sides; grpcio says by itself that
    no server is there, without metadata.
    """
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        return bool(trailing or error.initial_metadata())
    return code is not grpc.StatusCode.DEADLINE_EXCEEDED


def _hint(trailing: Metadata) -> float | None:
    """The longest wait that was asked for, in seconds; infinite where the server asked not to come back."""
    said = dict(trailing)
    asked, details = said.get("grpc-retry-pushback-ms"), said.get("grpc-status-details-bin")
    hints = (
        pushback(asked if isinstance(asked, str) else None),
        _retry_delay(details) if isinstance(details, bytes) else None,
    )
    return max((hint for hint in hints if hint is not None), default=None)


def _retry_delay(status: bytes) -> float | None:
    """The seconds that `RetryInfo` in a serialized `google.rpc.Status` asks for; None without, or if it is broken."""
    info = error_details_pb2.RetryInfo()
    try:
        for detail in status_pb2.Status.FromString(status).details:
            if detail.Unpack(info) and info.HasField("retry_delay"):
                return float(max(0.0, info.retry_delay.seconds + info.retry_delay.nanos / 1e9))
    except DecodeError:
        pass  # broken details are no hint
    return None


def _pairs(metadata: Iterable[tuple[str, str | bytes]] | None) -> Metadata:
    return tuple((key, value) for key, value in metadata or ())


# -- what is sent


class _Details(grpc.ClientCallDetails):  # type: ignore[misc]
    """The details of one attempt, in the form that sync continuations take."""

    def __init__(self, method: str, timeout: float | None, metadata: Metadata, given: Any) -> None:
        self.method = method
        self.timeout = timeout
        self.metadata = metadata
        self.credentials = given.credentials
        self.wait_for_ready = given.wait_for_ready
        self.compression = given.compression


def _aio_details(method: str, timeout: float | None, metadata: Metadata, given: Any) -> grpc.aio.ClientCallDetails:
    sent = grpc.aio.Metadata(*metadata)
    return grpc.aio.ClientCallDetails(method, timeout, sent, given.credentials, given.wait_for_ready)


class _Sender:
    """Sends the attempts of one call: each with its number, and within the time that is left."""

    __slots__ = ("_continuation", "_given", "_make", "_metadata", "_numbers", "_request", "_secret")

    def __init__(
        self,
        make: Callable[..., Any],
        continuation: Callable[..., Any],
        given: Any,
        request: Any,
        secret: Secret | None,
    ) -> None:
        self._make = make
        self._secret = secret
        self._continuation = continuation
        self._given = given
        self._request = request
        # read once: what the caller gave may be an iterator
        self._metadata = tuple(pair for pair in _pairs(given.metadata) if pair[0] not in OWN_KEYS)
        self._numbers = count(1)

    def send(self) -> Any:
        """Send the next attempt: a call, or the coroutine of one."""
        own = ((name.lower(), value) for name, value in travelling(next(self._numbers), self._secret).items())
        timeout = within(self._given.timeout)
        if timeout is not None and timeout <= 0:
            timeout = EXPIRED
        details = self._make(self._given.method, timeout, (*self._metadata, *own), self._given)
        return self._continuation(details, self._request)


# -- sync


class _Interceptor(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Retries the unary calls and server streams of a channel."""

    def __init__(self, policy: Policy, secret: Secret | None) -> None:
        self._policy = policy
        self._secret = secret

    def intercept_unary_unary(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        sender = _Sender(_Details, continuation, client_call_details, request, self._secret)
        try:
            return self._policy.call(keeps_deadline(lambda: _ended(sender.send())))
        except grpc.RpcError as error:
            if not isinstance(error, grpc.Future):
                raise
            return error  # a failed call is its own error: this way `future()` hands it out, and others raise it

    def intercept_unary_stream(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        sender = _Sender(_Details, continuation, client_call_details, request, self._secret)
        return _Stream(self._policy, sender)


def _ended(call: Any) -> Any:
    """The call, when it has ended well; otherwise its error is raised."""
    error = call.exception() if isinstance(call, grpc.Future) else call
    if isinstance(error, Exception):
        raise error
    return call


class _Stream(grpc.Call):  # type: ignore[misc]
    """A server stream: what it is asked is answered by the attempt that brought the first message."""

    def __init__(self, policy: Policy, sender: _Sender) -> None:
        self._sender = sender
        # whichever thread reads, and whenever: the context and the deadline are those of the caller
        self._context = copy_context()
        self._make = carry_deadline(policy.call)
        self._lock = RLock()
        self._opening = self._open = self._cancelled = False
        self._failure: Exception | None = None
        self._first: deque[Any] = deque()
        self._call: Any = None
        self._begun: Any = None
        if policy.gate is None and not policy.bounded:
            self._begun = self._send()

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Any:
        self._wait()
        if self._failure is not None:
            raise self._failure
        try:
            return self._first.popleft()
        except IndexError:
            return next(self._call)

    def _wait(self) -> None:
        """Have the first message, the end or the error of the stream."""
        for _ in iter(self._lock.acquire, None):  # a `with` statement may be interrupted before it has begun
            try:
                if self._opening:
                    raise RuntimeError("a signal handler can't wait for a stream that its own thread is waiting for")
                if not self._open:
                    try:
                        self._opening = True
                        self._context.run(self._make, self._attempt)
                    except Exception as error:
                        self._failure = error
                    finally:
                        self._opening = False
                    self._open = True
            finally:
                self._lock.release()
            break

    @keeps_deadline
    def _attempt(self) -> None:
        call, self._begun = self._begun or self._send(), None
        self._first = deque(islice(call, 1))  # not that of an attempt which a signal handler has broken off

    def _send(self) -> Any:
        self._call = self._sender.send()
        if self._cancelled:
            self._call.cancel()
        return self._call

    def _answering(self) -> Any:
        """The call that answers for this one."""
        self._wait()
        if self._call is None:  # it was not sent at all
            assert self._failure is not None
            raise self._failure
        return self._call

    def cancel(self) -> bool:
        self._cancelled = True  # before the look at the attempt: the next one looks at this
        return True if self._call is None else bool(self._call.cancel())

    def is_active(self) -> bool:
        return not self._open or bool(self._answering().is_active())

    def time_remaining(self) -> Any:
        return self._answering().time_remaining()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return bool(self._answering().add_callback(callback))

    def initial_metadata(self) -> Any:
        return self._answering().initial_metadata()

    def trailing_metadata(self) -> Any:
        return self._answering().trailing_metadata()

    def code(self) -> Any:
        return self._answering().code()

    def details(self) -> Any:
        return self._answering().details()


# -- asyncio


class _AioUnary(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Retries the unary calls of a channel."""

    def __init__(self, policy: Policy, secret: Secret | None) -> None:
        self._policy = policy
        self._secret = secret

    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> grpc.aio.UnaryUnaryCall:
        sender = _Sender(_aio_details, continuation, client_call_details, request, self._secret)

        @keeps_deadline
        async def attempt() -> grpc.aio.UnaryUnaryCall:
            call = await sender.send()
            await call
            return call

        return await self._policy.acall(attempt)


class _AioStream(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Retries the server streams of a channel."""

    def __init__(self, policy: Policy, secret: Secret | None) -> None:
        self._policy = policy
        self._secret = secret

    async def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> AsyncIterator[Any]:
        sender = _Sender(_aio_details, continuation, client_call_details, request, self._secret)

        @keeps_deadline
        async def attempt() -> AsyncIterator[Any]:
            messages = aiter(await sender.send())
            try:
                return _Messages([await anext(messages)], messages)
            except StopAsyncIteration:
                return _Messages([], messages)

        return await self._policy.acall(attempt)


class _Messages:
    """The messages of a stream, the first of which has been read already."""

    def __init__(self, first: list[Any], rest: AsyncIterator[Any]) -> None:
        self._first = first
        self._rest = rest

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return self._first.pop() if self._first else await anext(self._rest)
