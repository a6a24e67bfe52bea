"""The WSGI middleware: a service that keeps its callers' deadlines and tells them when retrying is of no use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from abate.admit.permits import Permits
from abate.call.giveup import watching
from abate.clients.exchange import ATTEMPT, DEADLINE, EXHAUSTED
from abate.clients.services import Asked, Terms
from abate.schedule.deadlines import deadline

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class Middleware:
    """Wraps a WSGI application.

    As the ASGI middleware does, but for one thing: a thread cannot be cut off, so the deadline is kept by the
    policies and clients inside, and a request that comes too late is answered with 504.

    >>> import abate
    >>> def app(environ, start_response): ...
    >>> app = Middleware(app, permits=abate.Permits(100), retry_after=2.0)
    """

    def __init__(self, app: App, *, permits: Permits | None = None, retry_after: float = 1.0) -> None:
        if not callable(app):
            raise TypeError(f"app must be a WSGI application, not {app!r}")
        self._app = app
        self._terms = Terms(permits, retry_after)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        asked = Asked(environ.get(_key(ATTEMPT)), environ.get(_key(DEADLINE)))
        environ["abate.attempt"] = asked.attempt
        if asked.left is not None and asked.left <= 0.0:
            return _answer(start_response, "504 Gateway Timeout")
        permits = self._terms.permits
        if permits is not None and not permits.try_acquire():
            return _answer(start_response, "503 Service Unavailable", ("Retry-After", self._terms.retry_after))
        with ExitStack() as stack:
            if permits is not None:
                stack.callback(permits.release)
            watch = stack.enter_context(watching())

            def tell(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
                if watch.exhausted and status[:1] in "45":
                    headers = [*headers, (EXHAUSTED, "1")]
                return start_response(status, headers, *rest)

            if asked.left is not None:
                stack.enter_context(deadline(asked.left))
            body = self._app(environ, tell)
            return _Body(body, stack.pop_all())


class _Body:
    """The response's body, which holds the permit until the server has done with it."""

    def __init__(self, body: Iterable[bytes], held: ExitStack) -> None:
        self._body = body
        self._held = held

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """Called by the server when the response is over, however it ended."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._held.close()


def _key(header: str) -> str:
    return "HTTP_" + header.upper().replace("-", "_")


def _answer(start_response: StartResponse, status: str, *headers: tuple[str, str]) -> list[bytes]:
    start_response(status, [*headers, ("Content-Length", "0")])
    return []
