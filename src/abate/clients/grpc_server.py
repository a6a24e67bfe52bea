"""gRPC servers: interceptors that keep the deadlines of trusted callers, and tell them when retrying is of no use.

They do for a server of grpcio or `grpc.aio` what the ASGI and WSGI middleware do for HTTP, with the same settings:

* ``abate-deadline`` and ``abate-attempt`` count for callers that are `trusted`: by a function of the servicer context,
  by the network of the peer, or by a secret that is sent as ``abate-secret``;
* a call that comes too late ends with DEADLINE_EXCEEDED, before anything was begun;
* an error of a handler in which a policy has retried and given up has ``abate-exhausted`` in its trailing metadata.

``grpc-timeout``, which any caller may send, is gRPC's own: `grpc.aio` cancels handlers by it, trusted or not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from inspect import isasyncgenfunction
from typing import Any
from urllib.parse import unquote

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from abate import clock, proxies
from abate.call.giveup import Watch, watching
from abate.clients.exchange import EXHAUSTED
from abate.clients.services import LEAST, NOTHING, OWN_KEYS, SECRET_KEY, Asked, Terms, over, own
from abate.clients.trust import UNIX, Trusted
from abate.clock import Cut
from abate.errors import AttemptTimeout
from abate.functions import is_coroutine
from abate.schedule.deadlines import deadline
from abate.scopes import Scope, Scopes

Behaviour = Callable[[Any, Any], Any]

LATE = grpc.StatusCode.DEADLINE_EXCEEDED, "the caller's deadline has passed"
EXHAUSTED_PAIR = (EXHAUSTED.lower(), "1")
MAKERS = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}
"""The kinds of handlers, by whether requests and responses are streams."""

_served: Scopes[Scope] = Scopes("abate_grpc_served")


def attempt() -> int:
    """The number of the attempt that is being served here, as a trusted caller gave it; otherwise 1.

    >>> attempt()
    1
    """
    scope = _served.nearest()
    return scope.owner if scope is not None and isinstance(scope.owner, int) else 1


def interceptors(*, trusted: Trusted = None, min_deadline: float = LEAST) -> list[grpc.ServerInterceptor]:
    """The interceptors of a ``grpc.server``.

    Its handlers run in threads, which cannot be cut off: a deadline is kept by the policies and clients inside, and
    ``abate.remaining()`` tells it. `min_deadline` is what a handler has at least, in seconds.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> server = grpc.server(ThreadPoolExecutor(), interceptors=interceptors(trusted=["10.0.0.0/8", "unix"]))
    """
    return [_Interceptor(Terms(trusted, min_deadline))]


def aio_interceptors(
    *, trusted: Trusted = None, min_deadline: float = LEAST, cancel: bool = False
) -> list[grpc.aio.ServerInterceptor]:
    """The same for a ``grpc.aio.server``.

    With `cancel`, a coroutine that has not begun its response by the deadline of a trusted caller is cancelled. By
    default it is left to finish: cancelled between two awaits, it would leave half of its work done.

    >>> import asyncio
    >>> async def main():
    ...     return grpc.aio.server(interceptors=aio_interceptors(trusted="10.0.0.0/8"))
    >>> server = asyncio.run(main())
    """
    if not isinstance(cancel, bool):
        raise TypeError(f"cancel must be True or False, not {cancel!r}")
    return [_AioInterceptor(Terms(trusted, min_deadline), cancel)]


# -- what both have in common


def _asked(terms: Terms, context: Any) -> tuple[Asked, frozenset[str]]:
    """What the metadata of a call asks for, and the keys of those that the handler is not to see."""
    metadata = [(str(key).lower(), value) for key, value in context.invocation_metadata() or ()]
    sent = own((key, value) for key, value in metadata if isinstance(value, str))
    if not sent:
        return NOTHING, frozenset()
    forwarded = not proxies.HEADERS.isdisjoint(key for key, _ in metadata)
    believed = terms.asked(sent, context, None if forwarded else peer_address(context.peer()))
    return (NOTHING, OWN_KEYS) if believed is None else (believed, frozenset({SECRET_KEY}))


def peer_address(peer: str) -> str | None:
    """The address in gRPC's name of a peer; None where there is none that can be read.

    >>> peer_address("ipv4:10.1.2.3:4711"), peer_address("ipv6:%5B::1%5D:4711"), peer_address("unix:")
    ('10.1.2.3', '::1', 'unix')
    """
    kind, _, rest = peer.partition(":")
    if kind.startswith(UNIX):
        return UNIX
    host, colon, _ = unquote(rest).rpartition(":")
    return host.strip("[]") if kind in ("ipv4", "ipv6") and colon else None


@contextmanager
def _serving(asked: Asked) -> Generator[Watch]:
    """What holds while a call is served: its caller's deadline, its number, and a watch for policies that give up."""
    scope = _served.enter(Scope(asked.attempt))
    try:
        with nullcontext() if asked.left is None else deadline(asked.left), watching() as watch:
            yield watch
    finally:
        _served.leave(scope)


class _Context:
    """A servicer context as a handler sees it. What has to be said about an error must be said before it is sent."""

    def __init__(self, context: Any, watch: Watch, hidden: frozenset[str]) -> None:
        self._context = context
        self._watch = watch
        self._hidden = hidden
        self._trailing: tuple[Any, ...] = ()
        self._failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def invocation_metadata(self) -> Any:
        """Return the metadata of the call, without a secret, and without what counts for trusted callers only."""
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

    def told(self, trailing: Any = None) -> tuple[Any, ...]:
        """The metadata of an error: those given, and that retrying is of no use if a policy has found that out."""
        given = tuple(trailing) if trailing else self._trailing
        if not self._watch.exhausted:
            return given
        return (*(pair for pair in given if pair[0] != EXHAUSTED_PAIR[0]), EXHAUSTED_PAIR)

    def ended(self, failed: bool) -> None:
        """The handler is done, with an error or not."""
        if self._watch.exhausted and (failed or self._failed):
            self._context.set_trailing_metadata(self.told())


def _rebuilt(handler: Any, wrap: Callable[[Behaviour, bool], Behaviour]) -> Any:
    """A method's handler, with its behaviour wrapped."""
    if handler is None:
        return None
    name, make = MAKERS[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(
        wrap(getattr(handler, name), bool(handler.response_streaming)),
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


# -- threads


class _Interceptor(grpc.ServerInterceptor):  # type: ignore[misc]
    """Serves the calls of a server with threads."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        return _rebuilt(continuation(handler_call_details), self.wrap)

    def wrap(self, behaviour: Behaviour, streams: bool) -> Behaviour:
        """A handler that is a plain function."""

        def unary(request: Any, context: Any) -> Any:
            with self._served(context) as own:
                return behaviour(request, own)

        def stream(request: Any, context: Any) -> Iterator[Any]:
            with self._served(context) as own:
                yield from behaviour(request, own)

        return stream if streams else unary

    @contextmanager
    def _served(self, context: Any) -> Generator[_Context]:
        asked, hidden = _asked(self._terms, context)
        if asked.left == 0.0:
            context.abort(*LATE)
        with _serving(asked) as watch:
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

    def __init__(self, terms: Terms, cancel: bool) -> None:
        self._terms = terms
        self._cancel = cancel
        self._threads = _Interceptor(terms)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        return _rebuilt(await continuation(handler_call_details), self._wrap)

    def _wrap(self, behaviour: Behaviour, streams: bool) -> Behaviour:
        if isasyncgenfunction(behaviour):
            return self._generator(behaviour)
        # plain functions are run in threads, by grpc.aio too
        return self._coroutine(behaviour) if is_coroutine(behaviour) else self._threads.wrap(behaviour, streams)

    def _coroutine(self, behaviour: Behaviour) -> Behaviour:
        async def serve(request: Any, context: Any) -> Any:
            asked, hidden = await self._begin(context)
            with _serving(asked) as watch:
                own = _TaskContext(context, watch, hidden)
                try:
                    answer = await self._bounded(own, asked, behaviour(request, own))
                except Exception:
                    own.ended(failed=True)
                    raise
                own.ended(failed=False)
                return answer

        return serve

    def _generator(self, behaviour: Behaviour) -> Behaviour:
        async def serve(request: Any, context: Any) -> AsyncIterator[Any]:
            asked, hidden = await self._begin(context)
            with _serving(asked) as watch:
                own = _TaskContext(context, watch, hidden)
                messages = behaviour(request, own)
                try:
                    yield await self._bounded(own, asked, anext(messages))
                    async for message in messages:
                        yield message
                except StopAsyncIteration:
                    pass  # there was no message at all
                except Exception:
                    own.ended(failed=True)
                    raise
                finally:
                    await messages.aclose()
                own.ended(failed=False)

        return serve

    async def _begin(self, context: Any) -> tuple[Asked, frozenset[str]]:
        asked, hidden = _asked(self._terms, context)
        if asked.left == 0.0:
            await context.abort(*LATE)
        return asked, hidden

    async def _bounded(self, own: _TaskContext, asked: Asked, work: Awaitable[Any]) -> Any:
        """Do the work until a response has begun, within the caller's deadline if handlers may be cut off."""
        try:
            if self._cancel and asked.left is not None:
                cut = clock.current().within(asked.left)
                async with cut as own.cut:
                    return await work
            return await work
        except AttemptTimeout:
            # the handler's own, unless the caller's time is over
            if own.begun or not over(own.cut):
                raise
            await own.abort(*LATE)


class _TaskContext(_Context):
    """The context of a handler that is a coroutine. It knows when the response begins."""

    def __init__(self, context: Any, watch: Watch, hidden: frozenset[str]) -> None:
        super().__init__(context, watch, hidden)
        self.cut: Cut | None = None
        self.begun = False

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        """End the call with an error, which is sent at once."""
        await self._context.abort(code, details, self.told(trailing_metadata))

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
        # a task of the handler's may get here between the cut and its own cancellation
        if self.cut is not None and not self.cut.lift():
            raise AttemptTimeout(0.0)
        self.begun = True
