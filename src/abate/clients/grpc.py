"""Provides gRPC interceptors that retry calls, for channels of `grpc` and of `grpc.aio`.

UNAVAILABLE, ABORTED, RESOURCE_EXHAUSTED and DEADLINE_EXCEEDED are worth another attempt; all other codes are fatal, and
so are a TLS handshake that fails and a message over a size limit (`abate.clients.grpc_rules`).

The server's hint is read from ``grpc-retry-pushback-ms`` (negative or unreadable: stop) and from ``RetryInfo`` in the
status details. The ``timeout`` of a call is the deadline of all its attempts and waits together, as in gRPC. Each
attempt has ``abate-attempt`` and ``abate-deadline`` as metadata, and a repeated one ``grpc-previous-rpc-attempts``. An
error whose trailing metadata has ``abate-exhausted`` is not retried: a service behind the server has retried already.
Attempts that an outer layer made, by ``grpc-previous-rpc-attempts`` in the metadata of the call, count as the policy's.

Unary calls and server streams are retried. A stream is retried until its first message has come; its later errors are
raised unchanged. The requests of client streams cannot be sent twice: such calls pass unchanged.

gRPC does not say whether a call is safe to repeat; by default all are. With ``idempotent=False`` a failure is retried
only if it shows that no connection was made. gRPC says this only in the details of the status. So a server that copies
the details of its own failed calls can be mistaken for one that was never reached, unless it also sends metadata, such
as ``abate-exhausted``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from itertools import count
from typing import Any

from abate.call.policy import Policy
from abate.clients.grpc_rules import Metadata, pairs, transient
from abate.clients.grpc_stream import Messages, Stream
from abate.clients.headers import ATTEMPT, DEADLINE, request_headers
from abate.clients.trust import SECRET, Secret
from abate.errors import AttemptTimeout, LayeredRetryWarning, suggests_settings
from abate.optional_dependencies import requires_extra
from abate.redact import one_line, short_repr
from abate.schedule.deadlines import call_timeout, cut_to_deadline, deadline_aware

with requires_extra(by="abate.clients.grpc", extra="grpc"):
    import grpc  # type: ignore[import-untyped]
    import grpc.aio  # type: ignore[import-untyped]

__all__ = ["aio_interceptors", "channel_options", "interceptors", "transient"]

PREVIOUS_ATTEMPTS = "grpc-previous-rpc-attempts"
"""The metadata in which gRPC's own retries say how many attempts of a call came before; absent in the first."""

OWN_METADATA = frozenset({ATTEMPT.lower(), DEADLINE.lower(), SECRET.lower(), PREVIOUS_ATTEMPTS})

COUNT = re.compile(r"[0-9]{1,4}")
"""The values of that metadata that are read."""

MAX_WARNINGS = 100

EXPIRED_TIMEOUT = -1.0
"""The timeout of an attempt after its deadline: with 0, grpcio may still send it."""


def channel_options() -> list[tuple[str, int]]:
    """Return options for a channel that turn grpcio's own retries off.

    grpcio retries by itself if a service config says so, even one from DNS, and two layers of retries multiply. Pass
    these options to every channel that has interceptors. Interceptors see neither the options nor the service config of
    their channel, nor how often grpcio has repeated an attempt, so abate can't warn if they are missing.

    >>> channel_options()
    [('grpc.enable_retries', 0)]
    """
    return [("grpc.enable_retries", 0)]


@suggests_settings
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
    >>> down = grpc.insecure_channel("127.0.0.1:1", options=channel_options())
    >>> with grpc.intercept_channel(down, *interceptors(orders)) as channel:
    ...     try:
    ...         channel.unary_unary("/shop.Orders/Get")(b"42")
    ...     except grpc.RpcError as error:
    ...         print(error.code(), abate.report(error))
    StatusCode.UNAVAILABLE orders gave up after 2 attempts: attempts
    """
    return [_Interceptor(_grpc_policy(policy, idempotent), _checked_secret(secret))]


@suggests_settings
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

    __slots__ = ("_continuation", "_given", "_make", "_metadata", "_numbers", "_request", "_secret", "previous")

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
        metadata = pairs(given.metadata)  # read once: it may be an iterator
        self._metadata = tuple(pair for pair in metadata if pair[0] not in OWN_METADATA)
        self.previous = _previous_attempts(metadata)
        """Attempts of this call that an outer layer has made."""
        self._numbers = count(1)

    def send(self) -> Any:
        """Send the next attempt. Return its call, or a coroutine that returns it."""
        number = next(self._numbers)
        own = [(name.lower(), value) for name, value in request_headers(number, self._secret).items()]
        previous = self.previous + number - 1
        if previous > 0:
            own.append((PREVIOUS_ATTEMPTS, str(previous)))
        timeout = cut_to_deadline(self._given.timeout)
        if timeout is not None and timeout <= 0:
            timeout = EXPIRED_TIMEOUT
        details = self._make(self._given.method, timeout, (*self._metadata, *own), self._given)
        return self._continuation(details, self._request)


def _previous_attempts(metadata: Metadata) -> int:
    """Return how many attempts of a call an outer layer has made before this one, as its metadata says."""
    values = [value for key, value in metadata if key == PREVIOUS_ATTEMPTS and isinstance(value, str)]
    return max((int(value) for value in values if COUNT.fullmatch(value)), default=0)


class _ChannelPolicy:
    """The policy of a channel. A call that an outer layer repeats has fewer attempts, but at least one."""

    __slots__ = ("_policy", "_reduced")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._reduced: dict[int, Policy] = {}

    def for_call(self, sender: _AttemptSender) -> Policy:
        """Return the policy for a call; all of them share budget, gate and shelter."""
        if not sender.previous:
            return self._policy
        policy = self._policy
        _warn_layered(policy.name)
        bounds = [policy.max_attempts or 1, *policy.max_attempts_by_kind.values()]  # without a bound, time bounds it
        fewer = min(sender.previous, max(bounds) - 1)
        if fewer not in self._reduced:
            self._reduced[fewer] = policy.replace(
                max_attempts=None if policy.max_attempts is None else max(1, policy.max_attempts - fewer),
                max_attempts_by_kind={
                    kind: max(1, bound - fewer) for kind, bound in policy.max_attempts_by_kind.items()
                },
            )
        return self._reduced[fewer]


_warned: set[str] = set()


def _warn_layered(name: str) -> None:
    """Warn once for each policy that a layer around it retries."""
    if name not in _warned and len(_warned) < MAX_WARNINGS:
        _warned.add(name)
        warnings.warn(
            f"{one_line(name) or 'a policy'} retries gRPC calls that a layer around it retries as well"
            f" ({PREVIOUS_ATTEMPTS} is in their metadata): that layer's attempts are subtracted, so that retries don't"
            " multiply; switch its retries off",
            LayeredRetryWarning,
            stacklevel=2,
        )


def _call_deadline(given: Any) -> AbstractContextManager[AbstractContextManager[object]]:
    """Return the deadline of a call with these details: its timeout is that of all attempts together.

    The deadline is within a block that closes it even if a signal handler raises as it ends.
    """
    return nullcontext(nullcontext()) if given.timeout is None else closing(call_timeout(max(0.0, given.timeout)))


# -- sync


class _Interceptor(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Retries the unary calls and server streams of a channel."""

    def __init__(self, policy: Policy, secret: Secret | None) -> None:
        self._policy = _ChannelPolicy(policy)
        self._secret = secret

    def intercept_unary_unary(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        sender = _AttemptSender(_Details, continuation, client_call_details, request, self._secret)
        try:
            with _call_deadline(client_call_details) as bound, bound:
                return self._policy.for_call(sender).call(deadline_aware(lambda: _raise_if_failed(sender.send())))
        except grpc.RpcError as error:
            if not isinstance(error, grpc.Future):
                raise
            return error  # a failed call is its own error: `future()` returns it, other calls raise it

    def intercept_unary_stream(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        sender = _AttemptSender(_Details, continuation, client_call_details, request, self._secret)
        with _call_deadline(client_call_details) as bound, bound:
            return Stream(self._policy.for_call(sender), sender.send)


def _raise_if_failed(call: Any) -> Any:
    """Return the call if it succeeded; otherwise raise its error."""
    error = call.exception() if isinstance(call, grpc.Future) else call
    if isinstance(error, Exception):
        raise error
    return call


# -- asyncio


@contextmanager
def _cut_off_as_grpc_would() -> Iterator[None]:
    """Raise gRPC's own error if the policy's timeouts have cut the last attempt off."""
    try:
        yield
    except AttemptTimeout as error:
        none = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, none, none, "Deadline Exceeded") from error


class _AioUnary(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Retries the unary calls of a channel."""

    def __init__(self, policy: Policy, secret: Secret | None) -> None:
        self._policy = _ChannelPolicy(policy)
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

        with _cut_off_as_grpc_would(), _call_deadline(client_call_details) as bound, bound:
            return await self._policy.for_call(sender).acall(attempt)


class _AioStream(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Retries the server streams of a channel."""

    def __init__(self, policy: Policy, secret: Secret | None) -> None:
        self._policy = _ChannelPolicy(policy)
        self._secret = secret

    async def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> AsyncIterator[Any]:
        sender = _AttemptSender(_aio_details, continuation, client_call_details, request, self._secret)

        @deadline_aware
        async def attempt() -> AsyncIterator[Any]:
            messages = aiter(await sender.send())
            try:
                return Messages([await anext(messages)], messages)
            except StopAsyncIteration:
                return Messages([], messages)

        with _cut_off_as_grpc_would(), _call_deadline(client_call_details) as bound, bound:
            return await self._policy.for_call(sender).acall(attempt)
