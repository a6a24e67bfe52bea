"""ASGI middleware: keeps the deadlines of callers, and sends `Abate-Exhausted` when a policy inside has given up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import ExitStack, suppress
from typing import Any

from abate import clock, proxy_headers
from abate.admit.concurrency import ConcurrencyLimit
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
from abate.logs import Log
from abate.schedule.deadlines import deadline

__all__ = ["Middleware"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

EXHAUSTED_HEADER = (EXHAUSTED.lower().encode(), b"1")
PLAIN_TEXT = (b"content-type", b"text/plain; charset=utf-8")
OURS = b"abate-"
"""The prefix of abate's header names."""
WHOLE = frozenset({"http.response.pathsend"})
"""Messages that contain the rest of a response, besides the last part of a body."""
log = Log("abate.asgi")


class Middleware:
    """Wraps an ASGI application.

    * `trusted`: the callers whose ``Abate-Deadline`` and ``Abate-Attempt`` count: a function of the scope; networks
      such as ``"10.0.0.0/8"`` or ``"unix"`` that contain the peer of the connection; an
      `abate.clients.trust.Secret` that the caller sends; or a list of these, any of which is enough. By
      default no caller is trusted. The application never sees ``Abate-Secret``, and sees the other headers of trusted
      callers only. For WebSockets headers are removed in the same way, but there is no deadline.
    * The deadline of a trusted caller applies to the request until the response is complete: policies and clients
      inside keep it, and ``abate.remaining()`` returns it. A request that comes too late is answered 504 before any
      work.
    * `min_deadline`: seconds that a handler has at least, however little time its caller has left.
    * `cancel`: with True, a handler that has not begun its response by the deadline is cancelled, and the answer is
      504. By default it finishes: cancelled between two awaits, it would leave half of its work done. Use True if all
      handlers can be cancelled at any await. Once a response has begun, nothing is cancelled.
    * `permits`: a request beyond this limit is answered 503 with ``Retry-After``.
    * A failure that a policy inside retried and gave up on is answered with ``Abate-Exhausted``, so that callers do not
      retry it. If the application raises instead of answering, the answer is 500, and the exception is raised on.
    * ``scope["abate.attempt"]`` is the attempt's number; 1 for callers that are not trusted.

    >>> import abate
    >>> async def app(scope, receive, send): ...
    >>> app = Middleware(app, trusted="10.0.0.0/8", permits=abate.ConcurrencyLimit(100), retry_after=2.0)

    In FastAPI and Starlette, ``app.add_middleware(Middleware, trusted="10.0.0.0/8")`` works too. That places it inside
    the framework's handler for `Exception` (and its debug page), whose answer is then replaced by the plain 500 above.
    Wrap the whole app instead if its answer matters to callers.
    """

    @suggests_settings
    def __init__(
        self,
        app: App,
        *,
        trusted: Trusted = None,
        min_deadline: float = MIN_DEADLINE,
        cancel: bool = False,
        permits: ConcurrencyLimit | None = None,
        retry_after: float = 1.0,
    ) -> None:
        if not callable(app):
            raise TypeError(f"app must be an ASGI application, not {app!r}")
        if not isinstance(cancel, bool):
            raise TypeError(f"cancel must be True or False, not {cancel!r}")
        self._app = app
        self._cancel = cancel
        self._warned = False
        self._settings = ServerSettings(trusted, min_deadline, permits, retry_after)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":  # a connection that stays open has no deadline
                self._caller_limits(scope)
            await self._app(scope, receive, send)
            return
        limits = self._caller_limits(scope)
        scope["abate.attempt"] = limits.attempt
        if limits.left is not None and limits.left <= 0.0:
            await _answer(send, 504)
            return
        permits = self._settings.permits
        if permits is not None and not permits.try_acquire():
            await _answer(send, 503, (b"retry-after", self._settings.retry_after.encode()))
            return
        try:
            await self._serve(scope, receive, send, limits.left)
        finally:
            if permits is not None:
                permits.release()

    async def _serve(self, scope: Scope, receive: Receive, send: Send, left: float | None) -> None:
        with watch_for_exhausted() as watch, ExitStack() as bounds:
            response = _Response(send, watch, bounds)
            try:
                await self._run(scope, receive, response, left)
            except Exception:
                if watch.exhausted and not response.begun:
                    await self._answer_error(scope, send)
                raise  # for error trackers and the server, which send nothing as the response has begun
            if response.late:
                await _answer(send, 504)

    async def _run(self, scope: Scope, receive: Receive, response: _Response, left: float | None) -> None:
        if left is None:
            await self._app(scope, receive, response.send)
            return
        response.bounds.enter_context(deadline(left))
        try:
            if self._cancel:
                cut = clock.current().within(left)
                async with cut as response.cut:
                    await self._app(scope, receive, response.send)
                    response.late = not response.begun and not response.cut.lift()
            else:
                await self._app(scope, receive, response.send)
        except AttemptTimeout:
            # the application's own timeout, unless the caller's time is over
            if response.begun or not caller_timed_out(response.cut):
                raise
            response.late = True

    async def _answer_error(self, scope: Scope, send: Send) -> None:
        """Answer in place of the server, or of a handler around this middleware, which would not send the header."""
        handlers = getattr(scope.get("app"), "exception_handlers", None)
        if not self._warned and isinstance(handlers, dict) and (500 in handlers or Exception in handlers):
            self._warned = True
            log.warning(
                "the answer of this app's handler for Exception was replaced by a plain 500 with Abate-Exhausted, as "
                "the middleware is inside of the handler: wrap the whole app instead, app = Middleware(app)"
            )
        with suppress(OSError):  # the client is gone
            await _answer(send, 500, EXHAUSTED_HEADER, PLAIN_TEXT, body=b"Internal Server Error")

    def _caller_limits(self, scope: Scope) -> CallerLimits:
        """Return what the caller says, and remove the headers that the application must not see."""
        if not any(name[:6].lower() == OURS for name, _ in scope["headers"]):
            return NO_LIMITS
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        believed = self._settings.limits_of(abate_values(headers), scope, _peer(scope, {name for name, _ in headers}))
        hidden = ABATE_HEADERS if believed is None else {SECRET_KEY}
        pairs = zip(headers, scope["headers"], strict=True)
        scope["headers"] = [pair for (name, _), pair in pairs if name not in hidden]
        return NO_LIMITS if believed is None else believed


class _Response:
    """Passes the application's response on, and ends its bounds: see `send`."""

    __slots__ = ("_exhausted_flag", "_send", "begun", "bounds", "cut", "late")

    def __init__(self, send: Send, watch: ExhaustedFlag, bounds: ExitStack) -> None:
        self._send = send
        self._exhausted_flag = watch
        self.bounds = bounds
        self.cut: TimeoutScope | None = None
        self.begun = False
        self.late = False
        """The handler was cut off before its response began: the answer is 504, whatever it sends."""

    async def send(self, message: Message) -> None:
        """Pass a message on.

        From the first message on, the handler can't be cancelled. The last message ends the caller's deadline, which
        does not apply to what a framework does afterwards in the background.
        """
        if message["type"] == "http.response.start":
            # a task of the application may get here between the cut and its own cancellation
            self.late = self.cut is not None and not self.cut.lift()
            self.begun = not self.late
            if self._exhausted_flag.exhausted and message["status"] >= 400:
                given = [pair for pair in message.get("headers", ()) if pair[0].lower() != EXHAUSTED_HEADER[0]]
                message = {**message, "headers": [*given, EXHAUSTED_HEADER]}
        if self.late:
            return
        await self._send(message)
        if message["type"] in WHOLE or (
            message["type"] == "http.response.body" and not message.get("more_body", False)
        ):
            self.bounds.close()


def _peer(scope: Scope, headers: set[str]) -> str | None:
    """Return the peer's address; None if a proxy's header may have replaced it."""
    if not proxy_headers.HEADERS.isdisjoint(headers):
        return None
    client, server = scope.get("client"), scope.get("server")
    if client is None:
        return UNIX if server is None or server[1] is None else None
    return client[0] if client[1] else None


async def _answer(send: Send, status: int, *headers: tuple[bytes, bytes], body: bytes = b"") -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
