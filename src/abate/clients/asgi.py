"""The ASGI middleware: a service that keeps its callers' deadlines and tells them when retrying is of no use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import ExitStack
from typing import Any

from abate import clock, proxies
from abate.admit.permits import Permits
from abate.call.giveup import Watch, watching
from abate.clients.exchange import EXHAUSTED
from abate.clients.services import LEAST, NOTHING, OWN_KEYS, SECRET_KEY, Asked, Terms, over, own
from abate.clients.trust import UNIX, Trusted
from abate.clock import Cut
from abate.errors import AttemptTimeout
from abate.schedule.deadlines import deadline

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

EXHAUSTED_HEADER = (EXHAUSTED.lower().encode(), b"1")
OURS = b"abate-"
"""How the names of abate's headers begin."""
WHOLE = frozenset({"http.response.pathsend"})
"""The messages that bring the rest of a response at once, besides a body that says so."""


class Middleware:
    """Wraps an ASGI application.

    * `trusted`: which callers' ``Abate-Deadline`` and ``Abate-Attempt`` count. A function of the scope; networks, such
      as ``"10.0.0.0/8"`` or ``"unix"``, that the peer of the connection is in; an `abate.clients.trust.Secret` that
      the caller sends; or a list of these, any of which is enough. None by default, and then these headers are
      ignored. The application sees no ``Abate-Secret``, and of a caller that is not trusted none of the others; so
      it is for WebSockets too, which have no deadline otherwise.
    * A trusted caller's deadline becomes that of the request: policies and clients inside keep it, and
      ``abate.remaining()`` tells it, until the response is complete. A request that comes too late is answered with
      504, before anything was begun.
    * `min_deadline`: seconds that a handler has at least, however little its caller has left.
    * `cancel`: with True, a handler that has not begun its response by then is cancelled and answered for with 504.
      By default it is left to finish: cancelled between two awaits, it would leave half of its work done. Say True if
      all handlers can be cut off at any await. Once a response has begun, nothing is cancelled.
    * With `permits`, a request that finds them all held is answered with 503 and ``Retry-After``.
    * A failure that a policy inside has given up on is answered with ``Abate-Exhausted``, so that callers don't
      retry it once more.
    * The attempt's number is ``scope["abate.attempt"]``; 1 for callers that are not trusted.

    >>> import abate
    >>> async def app(scope, receive, send): ...
    >>> app = Middleware(app, trusted="10.0.0.0/8", permits=abate.Permits(100), retry_after=2.0)
    """

    def __init__(
        self,
        app: App,
        *,
        trusted: Trusted = None,
        min_deadline: float = LEAST,
        cancel: bool = False,
        permits: Permits | None = None,
        retry_after: float = 1.0,
    ) -> None:
        if not callable(app):
            raise TypeError(f"app must be an ASGI application, not {app!r}")
        if not isinstance(cancel, bool):
            raise TypeError(f"cancel must be True or False, not {cancel!r}")
        self._app = app
        self._cancel = cancel
        self._terms = Terms(trusted, min_deadline, permits, retry_after)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":  # a deadline is none of a connection that stays open
                self._asked(scope)
            await self._app(scope, receive, send)
            return
        permits = self._terms.permits
        if permits is not None and not permits.try_acquire():
            await _answer(send, 503, (b"retry-after", self._terms.retry_after.encode()))
            return
        try:
            await self._serve(scope, receive, send)
        finally:
            if permits is not None:
                permits.release()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = self._asked(scope)
        scope["abate.attempt"] = asked.attempt
        left = asked.left
        if left is not None and left <= 0.0:
            await _answer(send, 504)
            return
        with watching() as watch, ExitStack() as bounds:
            response = _Response(send, watch, bounds)
            if left is None:
                await self._app(scope, receive, response.send)
                return
            bounds.enter_context(deadline(left))
            try:
                if self._cancel:
                    cut = clock.current().within(left)
                    async with cut as response.cut:
                        await self._app(scope, receive, response.send)
                        response.late = not response.begun and not response.cut.lift()
                else:
                    await self._app(scope, receive, response.send)
            except AttemptTimeout:
                # the application's own, unless the caller's time is over
                if response.begun or not over(response.cut):
                    raise
                response.late = True
            if response.late:
                await _answer(send, 504)

    def _asked(self, scope: Scope) -> Asked:
        """What a request asks for; what the application is not to see of it is taken out of the scope."""
        if not any(name[:6].lower() == OURS for name, _ in scope["headers"]):
            return NOTHING
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        believed = self._terms.asked(own(headers), scope, _peer(scope, {name for name, _ in headers}))
        hidden = OWN_KEYS if believed is None else {SECRET_KEY}
        pairs = zip(headers, scope["headers"], strict=True)
        scope["headers"] = [pair for (name, _), pair in pairs if name not in hidden]
        return NOTHING if believed is None else believed


class _Response:
    """The application's response on its way out. It ends what bounds the handler: see `send`."""

    __slots__ = ("_bounds", "_send", "_watch", "begun", "cut", "late")

    def __init__(self, send: Send, watch: Watch, bounds: ExitStack) -> None:
        self._send = send
        self._watch = watch
        self._bounds = bounds
        self.cut: Cut | None = None
        self.begun = False
        self.late = False
        """The handler was cut off before its response began: the answer is 504, whatever else it sends."""

    async def send(self, message: Message) -> None:
        """Pass a message on.

        With the first one, the handler can't be cut off any more; with the last one, the caller's deadline ends, as
        what a framework does afterwards in the background is no business of the caller's.
        """
        if message["type"] == "http.response.start":
            # a task of the application's may get here between the cut and its own cancellation
            self.late = self.cut is not None and not self.cut.lift()
            self.begun = not self.late
            if self._watch.exhausted and message["status"] >= 400:
                given = [pair for pair in message.get("headers", ()) if pair[0].lower() != EXHAUSTED_HEADER[0]]
                message = {**message, "headers": [*given, EXHAUSTED_HEADER]}
        if self.late:
            return
        await self._send(message)
        if message["type"] in WHOLE or (
            message["type"] == "http.response.body" and not message.get("more_body", False)
        ):
            self._bounds.close()


def _peer(scope: Scope, headers: set[str]) -> str | None:
    """The other end of the connection; None where the address may be one that a header has named."""
    if not proxies.HEADERS.isdisjoint(headers):
        return None
    client, server = scope.get("client"), scope.get("server")
    if client is None:
        return UNIX if server is None or server[1] is None else None
    return client[0] if client[1] else None


async def _answer(send: Send, status: int, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
