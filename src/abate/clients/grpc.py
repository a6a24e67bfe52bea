"""Provides gRPC interceptors that retry calls, for channels of `grpc` and of `grpc.aio`.

Every call is classified by its status code:

* UNAVAILABLE is worth another attempt, and so is ABORTED, a conflict;
* RESOURCE_EXHAUSTED and DEADLINE_EXCEEDED mean overload, except for a message over a size limit, which is fatal;
* all other codes are fatal, including UNKNOWN, INTERNAL and CANCELLED.

The server's hint is read from ``grpc-retry-pushback-ms`` (negative or unreadable: stop) and from ``RetryInfo`` in the
status details. The ``timeout`` of a call is the deadline of all its attempts and waits together, as in gRPC. Each
attempt has ``abate-attempt`` and ``abate-deadline`` as metadata, and a repeated one ``grpc-previous-rpc-attempts``. An
error whose trailing metadata has ``abate-exhausted`` is not retried: a service behind the server has retried already.

Unary calls and server streams are retried. A stream is retried until its first message has come; its later errors are
raised unchanged. The requests of client streams cannot be sent twice: such calls pass unchanged.

With ``idempotent=False`` a failure is retried only if it shows that no connection was made. gRPC says this only in the
details of the status. So a server that copies the details of its own failed calls can be mistaken for one that was
never reached, unless it also sends metadata, such as ``abate-exhausted``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from itertools import count, islice
from threading import RLock
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from abate.call.policy import Policy
from abate.clients.headers import ATTEMPT, DEADLINE, EXHAUSTED, request_headers, upstream_gave_up
from abate.clients.trust import SECRET, Secret
from abate.decide.outcome import BLIP, FATAL, LAYER, OVERLOAD, Outcome, Ruling
from abate.decide.rules import Rule
from abate.redact import short_repr
from abate.schedule.deadlines import call_timeout, carry_deadline, cut_to_deadline, deadline_aware
from abate.schedule.hints import pushback

__all__ = ["aio_interceptors", "channel_options", "interceptors", "transient"]

Metadata = tuple[tuple[str, str | bytes], ...]

RULINGS = {
    grpc.StatusCode.UNAVAILABLE: BLIP,
    grpc.StatusCode.ABORTED: BLIP,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OVERLOAD,
    grpc.StatusCode.DEADLINE_EXCEEDED: OVERLOAD,
}

UNREACHED_DETAILS = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
"""The details begin with one of these if grpcio has not reached a server."""

TOO_LARGE = "message larger than max"

PREVIOUS_ATTEMPTS = "grpc-previous-rpc-attempts"
"""The metadata in which gRPC's own retries say how many attempts of a call came before; absent in the first."""

OWN_METADATA = frozenset({ATTEMPT.lower(), DEADLINE.lower(), SECRET.lower(), PREVIOUS_ATTEMPTS})

EXPIRED_TIMEOUT = -1.0
"""The timeout of an attempt after its deadline: with 0, grpcio may still send it."""


class OnGrpcStatus(Rule):
    """Classifies errors of grpcio, sync and async, by their status.

    >>> transient.judge(Outcome(error=grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED))).reason
    'overload'
    """

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        if not isinstance(error, (grpc.Call, grpc.aio.AioRpcError)) or not isinstance(error, grpc.RpcError):
            return None
        trailing = _pairs(error.trailing_metadata())
        if any(
            key == EXHAUSTED.lower() and isinstance(value, str) and upstream_gave_up(value) for key, value in trailing
        ):
            return LAYER
        ruling = RULINGS.get(error.code())
        details = error.details() or ""
        if ruling is None or (ruling is OVERLOAD and TOO_LARGE in details):
            return FATAL
        reached = bool(trailing or error.initial_metadata()) or not details.startswith(UNREACHED_DETAILS)
        return Ruling(True, ruling.reason, _hint(trailing), reached, None, _answered(error, trailing))


transient = OnGrpcStatus()
"""The rule for `on` of a policy whose calls go through gRPC; the interceptors always use it."""


def channel_options() -> list[tuple[str, int]]:
    """Return options for a channel that turn grpcio's own retries off.

    grpcio retries by itself if a service config says so, even one from DNS, and two layers of retries multiply. Pass
    these options to every channel that has interceptors. Interceptors see neither the options nor the service config of
    their channel, so abate can't warn if they are missing.

    >>> channel_options()
    [('grpc.enable_retries', 0)]
    """
    return [("grpc.enable_retries", 0)]


def interceptors(
    policy: Policy, *, idempotent: bool = True, secret: Secret | None = None
) -> list[grpc.UnaryUnaryClientInterceptor]:
    """Return the interceptors for a channel whose calls `policy` retries.

    With ``idempotent=False``, or if the policy says so, only calls that reached no server are sent again. A `secret` is
    sent as ``abate-secret``, so that servers that know it trust the other metadata (`abate.clients.grpc_server`).

    A call by ``future()`` returns when it has ended, including retries. A stream is sent at once, and retried while the
    caller waits for its first message; if the policy has a gate or timeouts, it is sent only when the caller waits. The
    timeouts of the policy and of the call apply to the whole stream.

    >>> import abate
    >>> orders = abate.Policy(name="orders", on=transient, max_attempts=2, backoff=[0.0])
    >>> nobody = grpc.insecure_channel("127.0.0.1:1", options=channel_options())
    >>> with grpc.intercept_channel(nobody, *interceptors(orders)) as channel:
    ...     try:
    ...         channel.unary_unary("/shop.Orders/Get")(b"42")
    ...     except grpc.RpcError as error:
    ...         print(error.code(), abate.report(error))
    StatusCode.UNAVAILABLE orders gave up after 2 attempts: attempts
    """
    return [_Interceptor(_grpc_policy(policy, idempotent), _checked_secret(secret))]


def aio_interceptors(
    policy: Policy, *, idempotent: bool = True, secret: Secret | None = None
) -> list[grpc.aio.ClientInterceptor]:
    """Return the interceptors for a channel of `grpc.aio`.

    A stream is sent at once. Its status and metadata are available once its first message has come.

    >>> import abate, asyncio
    >>> orders = abate.Policy(name="orders", on=transient, max_attempts=2, backoff=[0.0])
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
    fitted, known = _grpc_policy(policy, idempotent), _checked_secret(secret)
    return [_AioUnary(fitted, known), _AioStream(fitted, known)]  # grpc.aio uses only one role of each object


def _grpc_policy(policy: Policy, idempotent: bool) -> Policy:
    if not isinstance(policy, Policy):
        raise TypeError(f"policy must be a Policy, not {short_repr(policy)}")
    if not isinstance(idempotent, bool):
        raise TypeError(f"idempotent must be True or False, not {short_repr(idempotent)}")
    return policy.also(transient).replace(idempotent=idempotent and policy.idempotent is not False)


def _checked_secret(secret: Secret | None) -> Secret | None:
    if secret is not None and not isinstance(secret, Secret):
        raise TypeError(f"secret must be a Secret, not a {type(secret).__name__}")
    return secret


# -- reading the server's answer


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
                return float(max(0.0, info.retry_delay.seconds + info.retry_delay.nanos / 1e9))
    except DecodeError:
        pass  # broken details are no hint
    return None


def _pairs(metadata: Iterable[tuple[str, str | bytes]] | None) -> Metadata:
    return tuple((key, value) for key, value in metadata or ())


# -- sending


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


class _AttemptSender:
    """Sends the attempts of one call, each with its number and a timeout of at most the time until the deadline."""

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
        # read once: it may be an iterator
        self._metadata = tuple(pair for pair in _pairs(given.metadata) if pair[0] not in OWN_METADATA)
        self._numbers = count(1)

    def send(self) -> Any:
        """Send the next attempt. Return its call, or a coroutine that returns it."""
        number = next(self._numbers)
        own = [(name.lower(), value) for name, value in request_headers(number, self._secret).items()]
        if number > 1:
            own.append((PREVIOUS_ATTEMPTS, str(number - 1)))
        timeout = cut_to_deadline(self._given.timeout)
        if timeout is not None and timeout <= 0:
            timeout = EXPIRED_TIMEOUT
        details = self._make(self._given.method, timeout, (*self._metadata, *own), self._given)
        return self._continuation(details, self._request)


def _call_deadline(given: Any) -> AbstractContextManager[object]:
    """Return the deadline of a call with these details: its timeout is that of all attempts together."""
    return nullcontext() if given.timeout is None else call_timeout(max(0.0, given.timeout))


# -- sync


class _Interceptor(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Retries the unary calls and server streams of a channel."""

    def __init__(self, policy: Policy, secret: Secret | None) -> None:
        self._policy = policy
        self._secret = secret

    def intercept_unary_unary(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        sender = _AttemptSender(_Details, continuation, client_call_details, request, self._secret)
        try:
            with _call_deadline(client_call_details):
                return self._policy.call(deadline_aware(lambda: _raise_if_failed(sender.send())))
        except grpc.RpcError as error:
            if not isinstance(error, grpc.Future):
                raise
            return error  # a failed call is its own error: `future()` returns it, other calls raise it

    def intercept_unary_stream(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        sender = _AttemptSender(_Details, continuation, client_call_details, request, self._secret)
        with _call_deadline(client_call_details):
            return _Stream(self._policy, sender)


def _raise_if_failed(call: Any) -> Any:
    """Return the call if it succeeded; otherwise raise its error."""
    error = call.exception() if isinstance(call, grpc.Future) else call
    if isinstance(error, Exception):
        raise error
    return call


class _Stream(grpc.Call):  # type: ignore[misc]
    """A server stream. Its status and metadata are those of the attempt that brought the first message."""

    def __init__(self, policy: Policy, sender: _AttemptSender) -> None:
        self._sender = sender
        # any thread may read the stream, with the context and the deadline of the thread that made the call
        self._context = copy_context()
        self._make = carry_deadline(policy.call)
        self._lock = RLock()
        self._opening = self._open = self._cancelled = False
        self._failure: Exception | None = None
        self._first: deque[Any] = deque()
        self._call: Any = None
        self._sent_early: Any = None
        if policy.gate is None and not policy.bounded:
            self._sent_early = self._send()

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
        """Wait for the first message, the end or the error of the stream."""
        for _ in iter(self._lock.acquire, None):  # a signal handler may interrupt a `with` statement before its body
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

    @deadline_aware
    def _attempt(self) -> None:
        call, self._sent_early = self._sent_early or self._send(), None
        self._first = deque(islice(call, 1))  # replaces the message of an attempt that a signal handler interrupted

    def _send(self) -> Any:
        self._call = self._sender.send()
        if self._cancelled:
            self._call.cancel()
        return self._call

    def _final_call(self) -> Any:
        """Return the call of the last attempt; raise the error if no attempt was sent."""
        self._wait()
        if self._call is None:  # nothing was sent
            assert self._failure is not None
            raise self._failure
        return self._call

    def cancel(self) -> bool:
        self._cancelled = True  # before the attempt is read: the next attempt checks this
        return True if self._call is None else bool(self._call.cancel())

    def is_active(self) -> bool:
        return not self._open or bool(self._final_call().is_active())

    def time_remaining(self) -> Any:
        return self._final_call().time_remaining()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return bool(self._final_call().add_callback(callback))

    def initial_metadata(self) -> Any:
        return self._final_call().initial_metadata()

    def trailing_metadata(self) -> Any:
        return self._final_call().trailing_metadata()

    def code(self) -> Any:
        return self._final_call().code()

    def details(self) -> Any:
        return self._final_call().details()


# -- asyncio


class _AioUnary(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Retries the unary calls of a channel."""

    def __init__(self, policy: Policy, secret: Secret | None) -> None:
        self._policy = policy
        self._secret = secret

    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> grpc.aio.UnaryUnaryCall:
        sender = _AttemptSender(_aio_details, continuation, client_call_details, request, self._secret)

        @deadline_aware
        async def attempt() -> grpc.aio.UnaryUnaryCall:
            call = await sender.send()
            await call
            return call

        with _call_deadline(client_call_details):
            return await self._policy.acall(attempt)


class _AioStream(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Retries the server streams of a channel."""

    def __init__(self, policy: Policy, secret: Secret | None) -> None:
        self._policy = policy
        self._secret = secret

    async def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> AsyncIterator[Any]:
        sender = _AttemptSender(_aio_details, continuation, client_call_details, request, self._secret)

        @deadline_aware
        async def attempt() -> AsyncIterator[Any]:
            messages = aiter(await sender.send())
            try:
                return _Messages([await anext(messages)], messages)
            except StopAsyncIteration:
                return _Messages([], messages)

        with _call_deadline(client_call_details):
            return await self._policy.acall(attempt)


class _Messages:
    """The messages of a stream whose first message was read already."""

    def __init__(self, first: list[Any], rest: AsyncIterator[Any]) -> None:
        self._first = first
        self._rest = rest

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return self._first.pop() if self._first else await anext(self._rest)
