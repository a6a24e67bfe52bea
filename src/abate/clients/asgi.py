"""The ASGI middleware: a service that keeps its callers' deadlines and tells them when retrying is of no use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from abate import clock
from abate.admit.permits import Permits
from abate.call.giveup import watching
from abate.clients.exchange import ATTEMPT, DEADLINE, EXHAUSTED
from abate.clients.services import Asked, Terms
from abate.errors import AttemptTimeout
from abate.schedule.deadlines import deadline

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

EXHAUSTED_HEADER = (EXHAUSTED.lower().encode(), b"1")


class Middleware:
    """Wraps an ASGI application.

    * ``Abate-Deadline`` becomes the deadline of the request: policies and clients inside keep it, and work that runs
      past it is cut off and answered with 504, as is a request that comes too late.
    * With `permits`, a request that finds them all held is answered with 503 and ``Retry-After``.
    * A failure that a policy inside has given up on is answered with ``Abate-Exhausted``, so that callers don't
      retry it once more.
    * The attempt's number is ``scope["abate.attempt"]``.

    >>> import abate
    >>> async def app(scope, receive, send): ...
    >>> app = Middleware(app, permits=abate.Permits(100), retry_after=2.0)
    """

    def __init__(self, app: App, *, permits: Permits | None = None, retry_after: float = 1.0) -> None:
        if not callable(app):
            raise TypeError(f"app must be an ASGI application, not {app!r}")
        self._app = app
        self._terms = Terms(permits, retry_after)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
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
        asked = Asked(_header(scope, ATTEMPT), _header(scope, DEADLINE))
        scope["abate.attempt"] = asked.attempt
        if asked.left is not None and asked.left <= 0.0:
            await _answer(send, 504)
            return
        with watching() as watch:
            started = False

            async def tell(message: Message) -> None:
                nonlocal started
                if message["type"] == "http.response.start":
                    started = True
                    if watch.exhausted and message["status"] >= 400:
                        message["headers"] = [*message.get("headers", ()), EXHAUSTED_HEADER]
                await send(message)

            if asked.left is None:
                await self._app(scope, receive, tell)
                return
            try:
                with deadline(asked.left):
                    async with clock.current().within(asked.left):
                        await self._app(scope, receive, tell)
            except AttemptTimeout:
                if started:  # too late for another answer: let the server break the connection off
                    raise
                await _answer(send, 504)


def _header(scope: Scope, name: str) -> str | None:
    wanted = name.lower().encode()
    return next((value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted), None)


async def _answer(send: Send, status: int, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
