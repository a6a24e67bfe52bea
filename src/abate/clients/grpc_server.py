"""gRPC servers: interceptors that keep the deadlines of trusted callers, and say when a policy inside has given up.

They do for a server of grpcio or `grpc.aio` what the ASGI and WSGI middleware do for HTTP, with the same settings:

* ``abate-deadline`` and ``abate-attempt`` count for callers that are `trusted`: by a function of the servicer context,
  by the network of the peer, or by a secret that is sent as ``abate-secret``;
* a call that comes too late ends with DEADLINE_EXCEEDED before any work;
* an error of a handler in which a policy has given up has ``abate-exhausted`` in its trailing metadata.

``grpc-timeout``, which any caller may send, is gRPC's own: `grpc.aio` cancels handlers by it, trusted or not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from inspect import isasyncgenfunction
from typing import Any
from urllib.parse import unquote

from abate import clock, proxy_headers
from abate.call.layers import ExhaustedFlag, watch_for_exhausted
from abate.clients.headers import EXHAUSTED
from abate.clients.server_middleware import (
    ABATE_HEADERS,
    MIN_DEADLINE,
    NO_LIMITS,
    SECRET_KEY,
    CallerLimits,
    ServerSettings,
    abate_values,
    caller_timed_out,
)
from abate.clients.trust import UNIX, Trusted
from abate.clock import TimeoutScope
from abate.errors import AttemptTimeout, suggests_settings
from abate.functions import is_coroutine_function
from abate.optional_dependencies import requires_extra
from abate.schedule.deadlines import deadline
from abate.scopes import Scope, Scopes

with requires_extra(by="abate.clients.grpc_server", extra="grpc"):
    import grpc  # type: ignore[import-untyped]
    import grpc.aio  # type: ignore[import-untyped]

__all__ = ["aio_interceptors", "attempt", "interceptors"]

RpcMethod = Callable[[Any, Any], Any]

TIMED_OUT_STATUS = grpc.StatusCode.DEADLINE_EXCEEDED, "the caller's deadline has passed"
EXHAUSTED_PAIR = (EXHAUSTED.lower(), "1")
HANDLER_FACTORIES = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}
"""The kinds of handlers, by whether requests and responses are streams."""

_served: Scopes[Scope] = Scopes("abate_grpc_served")


def attempt() -> int:
    """Return the number of the attempt served here, as a trusted caller gave it; otherwise 1.

    >>> attempt()
    1
    """
    scope = _served.nearest()
    return scope.owner if scope is not None and isinstance(scope.owner, int) else 1


@suggests_settings
def interceptors(*, trusted: Trusted = None, min_deadline: float = MIN_DEADLINE) -> list[grpc.ServerInterceptor]:
    """Return the interceptors for a ``grpc.server``.

    Its handlers run in threads, which cannot be cut off: policies and clients inside keep the deadline, and
    ``abate.remaining()`` returns it. A handler has at least `min_deadline` seconds.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> server = grpc.server(ThreadPoolExecutor(), interceptors=interceptors(trusted=["10.0.0.0/8", "unix"]))
    """
    return [_Interceptor(ServerSettings(trusted, min_deadline))]


@suggests_settings
def aio_interceptors(
    *, trusted: Trusted = None, min_deadline: float = MIN_DEADLINE, cancel: bool = False
) -> list[grpc.aio.ServerInterceptor]:
    """Return the interceptors for a ``grpc.aio.server``.

    With `cancel`, a coroutine that has not begun its response by the deadline of a trusted caller is cancelled. By
    default it finishes: cancelled between two awaits, it would leave half of its work done.

    >>> import asyncio
    >>> async def main():
    ...     return grpc.aio.server(interceptors=aio_interceptors(trusted="10.0.0.0/8"))
    >>> server = asyncio.run(main())
    """
    if not isinstance(cancel, bool):
        raise TypeError(f"cancel must be True or False, not {cancel!r}")
    return [_AioInterceptor(ServerSettings(trusted, min_deadline), cancel)]


# -- shared by threads and asyncio


def _caller_limits(terms: ServerSettings, context: Any) -> tuple[CallerLimits, frozenset[str]]:
    """Return what the caller says, and the metadata keys that the handler must not see."""
    metadata = [(str(key).lower(), value) for key, value in context.invocation_metadata() or ()]
    sent = abate_values((key, value) for key, value in metadata if isinstance(value, str))
    if not sent:
        return NO_LIMITS, frozenset()
    forwarded = not proxy_headers.HEADERS.isdisjoint(key for key, _ in metadata)
    believed = terms.limits_of(sent, context, None if forwarded else peer_address(context.peer()))
    return (NO_LIMITS, ABATE_HEADERS) if believed is None else (believed, frozenset({SECRET_KEY}))


def peer_address(peer: str) -> str | None:
    """Return the address in gRPC's name of a peer; None if there is none that can be read.

    >>> peer_address("ipv4:10.1.2.3:4711"), peer_address("ipv6:%5B::1%5D:4711"), peer_address("unix:")
    ('10.1.2.3', '::1', 'unix')
    """
    kind, _, rest = peer.partition(":")
    if kind.startswith(UNIX):
        return UNIX
    host, colon, _ = unquote(rest).rpartition(":")
    return host.strip("[]") if kind in ("ipv4", "ipv6") and colon else None


@contextmanager
def _call_scope(limits: CallerLimits) -> Generator[ExhaustedFlag]:
    """Apply the caller's deadline and attempt number while a call is served, and watch for policies that give up."""
    scope = _served.enter(Scope(limits.attempt))
    try:
        with nullcontext() if limits.left is None else deadline(limits.left), watch_for_exhausted() as watch:
            yield watch
    finally:
        _served.leave(scope)


class _Context:
    """A servicer context as a handler sees it. Metadata of an error must be set before the error is sent."""

    def __init__(self, context: Any, watch: ExhaustedFlag, hidden: frozenset[str]) -> None:
        self._context = context
        self._exhausted_flag = watch
        self._hidden = hidden
        self._trailing: tuple[Any, ...] = ()
        self._failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def invocation_metadata(self) -> Any:
        """Return the metadata of the call, without the secret, and without what counts for trusted callers only."""
        sent = self._context.invocation_metadata()
        return tuple(pair for pair in sent if pair[0].lower() not in self._hidden) if self._hidden else sent

    def set_code(self, code: Any) -> None:
        """Set the status of the call."""
        self._failed = code not in (0, grpc.StatusCode.OK)
        self._context.set_code(code)

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Set the metadata that follow the response."""
        self._trailing = tuple(trailing_metadata or ())
        self._context.set_trailing_metadata(trailing_metadata)

    def error_metadata(self, trailing: Any = None) -> tuple[Any, ...]:
        """Return the metadata of an error: the given ones, and ``abate-exhausted`` if a policy has given up."""
        given = tuple(trailing) if trailing else self._trailing
        if not self._exhausted_flag.exhausted:
            return given
        return (*(pair for pair in given if pair[0] != EXHAUSTED_PAIR[0]), EXHAUSTED_PAIR)

    def ended(self, failed: bool) -> None:
        """Note that the handler has ended, with an error or not."""
        if self._exhausted_flag.exhausted and (failed or self._failed):
            self._context.set_trailing_metadata(self.error_metadata())


def _wrap_handler(handler: Any, wrap: Callable[[RpcMethod, bool], RpcMethod]) -> Any:
    """Return a method's handler with its function wrapped."""
    if handler is None:
        return None
    name, make = HANDLER_FACTORIES[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(
        wrap(getattr(handler, name), bool(handler.response_streaming)),
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


# -- threads


class _Interceptor(grpc.ServerInterceptor):  # type: ignore[misc]
    """Serves the calls of a server with threads."""

    def __init__(self, terms: ServerSettings) -> None:
        self._settings = terms

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        return _wrap_handler(continuation(handler_call_details), self.wrap)

    def wrap(self, behaviour: RpcMethod, streams: bool) -> RpcMethod:
        """Wrap a handler that is a plain function."""

        def unary(request: Any, context: Any) -> Any:
            with self._served(context) as own:
                return behaviour(request, own)

        def stream(request: Any, context: Any) -> Iterator[Any]:
            with self._served(context) as own:
                yield from behaviour(request, own)

        return stream if streams else unary

    @contextmanager
    def _served(self, context: Any) -> Generator[_Context]:
        limits, hidden = _caller_limits(self._settings, context)
        if limits.left == 0.0:
            context.abort(*TIMED_OUT_STATUS)
        with _call_scope(limits) as watch:
            own = _ThreadContext(context, watch, hidden)
            try:
                yield own
            except Exception:
                own.ended(failed=True)
                raise
            own.ended(failed=False)


class _ThreadContext(_Context):
    """The context of a handler that runs in a thread."""

    def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        """End the call with an error, which a server of `grpc.aio` sends at once."""
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        self.ended(failed=True)
        self._context.abort(code, details)

    def abort_with_status(self, status: Any) -> None:
        """End the call with an error and its metadata."""
        self.abort(status.code, status.details, status.trailing_metadata)


# -- asyncio


class _AioInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Serves the calls of a server of `grpc.aio`."""

    def __init__(self, terms: ServerSettings, cancel: bool) -> None:
        self._settings = terms
        self._cancel = cancel
        self._threads = _Interceptor(terms)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        return _wrap_handler(await continuation(handler_call_details), self._wrap)

    def _wrap(self, behaviour: RpcMethod, streams: bool) -> RpcMethod:
        if isasyncgenfunction(behaviour):
            return self._generator(behaviour)
        # grpc.aio runs plain functions in threads, too
        return (
            self._coroutine(behaviour) if is_coroutine_function(behaviour) else self._threads.wrap(behaviour, streams)
        )

    def _coroutine(self, behaviour: RpcMethod) -> RpcMethod:
        async def serve(request: Any, context: Any) -> Any:
            limits, hidden = await self._begin(context)
            with _call_scope(limits) as watch:
                own = _TaskContext(context, watch, hidden)
                try:
                    answer = await self._bounded(own, limits, behaviour(request, own))
                except Exception:
                    own.ended(failed=True)
                    raise
                own.ended(failed=False)
                return answer

        return serve

    def _generator(self, behaviour: RpcMethod) -> RpcMethod:
        async def serve(request: Any, context: Any) -> AsyncIterator[Any]:
            limits, hidden = await self._begin(context)
            with _call_scope(limits) as watch:
                own = _TaskContext(context, watch, hidden)
                messages = behaviour(request, own)
                try:
                    yield await self._bounded(own, limits, anext(messages))
                    async for message in messages:
                        yield message
                except StopAsyncIteration:
                    pass  # there was no message
                except Exception:
                    own.ended(failed=True)
                    raise
                finally:
                    await messages.aclose()
                own.ended(failed=False)

        return serve

    async def _begin(self, context: Any) -> tuple[CallerLimits, frozenset[str]]:
        limits, hidden = _caller_limits(self._settings, context)
        if limits.left == 0.0:
            await context.abort(*TIMED_OUT_STATUS)
        return limits, hidden

    async def _bounded(self, own: _TaskContext, limits: CallerLimits, work: Awaitable[Any]) -> Any:
        """Run the handler until its response begins, within the caller's deadline if handlers may be cancelled."""
        try:
            if self._cancel and limits.left is not None:
                cut = clock.current().within(limits.left)
                async with cut as own.cut:
                    return await work
            return await work
        except AttemptTimeout:
            # the handler's own timeout, unless the caller's time is over
            if own.begun or not caller_timed_out(own.cut):
                raise
            await own.abort(*TIMED_OUT_STATUS)


class _TaskContext(_Context):
    """The context of a handler that is a coroutine. It notes when the response begins."""

    def __init__(self, context: Any, watch: ExhaustedFlag, hidden: frozenset[str]) -> None:
        super().__init__(context, watch, hidden)
        self.cut: TimeoutScope | None = None
        self.begun = False

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        """End the call with an error, which is sent at once."""
        await self._context.abort(code, details, self.error_metadata(trailing_metadata))

    async def abort_with_status(self, status: Any) -> None:
        """End the call with an error and its metadata."""
        await self.abort(status.code, status.details, status.trailing_metadata)

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Begin the response."""
        self._begin()
        await self._context.send_initial_metadata(metadata)

    async def write(self, message: Any) -> None:
        """Send a message."""
        self._begin()
        await self._context.write(message)

    def _begin(self) -> None:
        # a task of the handler may get here between the cut and its own cancellation
        if self.cut is not None and not self.cut.lift():
            raise AttemptTimeout(0.0)
        self.begun = True
