"""WSGI middleware: keeps the deadlines of callers, and sends `Abate-Exhausted` when a policy inside has given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from abate import proxy_headers
from abate.admit.concurrency import ConcurrencyLimit
from abate.call.layers import watch_for_exhausted
from abate.clients.headers import EXHAUSTED
from abate.clients.server_middleware import (
    ABATE_HEADERS,
    MIN_DEADLINE,
    NO_LIMITS,
    SECRET_KEY,
    CallerLimits,
    ServerSettings,
)
from abate.clients.trust import UNIX, Trusted
from abate.errors import suggests_settings
from abate.schedule.deadlines import deadline

__all__ = ["Middleware"]

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class Middleware:
    """Wraps a WSGI application.

    Works like the ASGI middleware, with the same settings (`trusted` is a function of the environ), but without
    `cancel`, because a thread cannot be cut off. Policies and clients inside keep the deadline of a trusted caller
    until the response is closed. A request that comes too late is answered 504.

    >>> import abate
    >>> def app(environ, start_response): ...
    >>> app = Middleware(app, trusted="10.0.0.0/8", permits=abate.ConcurrencyLimit(100), retry_after=2.0)
    """

    @suggests_settings
    def __init__(
        self,
        app: App,
        *,
        trusted: Trusted = None,
        min_deadline: float = MIN_DEADLINE,
        permits: ConcurrencyLimit | None = None,
        retry_after: float = 1.0,
    ) -> None:
        if not callable(app):
            raise TypeError(f"app must be a WSGI application, not {app!r}")
        self._app = app
        self._settings = ServerSettings(trusted, min_deadline, permits, retry_after)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        limits = self._caller_limits(environ)
        environ["abate.attempt"] = limits.attempt
        if limits.left is not None and limits.left <= 0.0:
            return _answer(start_response, "504 Gateway Timeout")
        permits = self._settings.permits
        if permits is not None and not permits.try_acquire():
            return _answer(start_response, "503 Service Unavailable", ("Retry-After", self._settings.retry_after))
        with ExitStack() as stack:
            if permits is not None:
                stack.callback(permits.release)
            watch = stack.enter_context(watch_for_exhausted())

            def tell(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
                if watch.exhausted and status[:1] in "45":
                    headers = [pair for pair in headers if pair[0].lower() != EXHAUSTED.lower()]
                    headers.append((EXHAUSTED, "1"))
                return start_response(status, headers, *rest)

            if limits.left is not None:
                bound = deadline(limits.left)
                stack.callback(bound.close)  # even if a signal handler raises as it ends
                stack.enter_context(bound)
            body = self._app(environ, tell)
            return _Body(body, stack.pop_all())

    def _caller_limits(self, environ: Environ) -> CallerLimits:
        """Return what the caller says, and remove the headers that the application must not see."""
        found = {name: key for name, key in OWN.items() if key in environ}
        if not found:
            return NO_LIMITS
        # a repeated header has both values, joined by a comma, and is not a valid number
        sent = {name: [str(environ[key])] for name, key in found.items()}
        believed = self._settings.limits_of(sent, environ, _peer(environ))
        for name, key in found.items():
            if believed is None or name == SECRET_KEY:
                del environ[key]
        return NO_LIMITS if believed is None else believed


class _Body:
    """The response's body, which holds the permit until the server closes it."""

    def __init__(self, body: Iterable[bytes], held: ExitStack) -> None:
        self._body = body
        self._held = held

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """Close the body and release the permit; the server calls this however the response ended."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._held.close()


def _peer(environ: Environ) -> str | None:
    """Return the peer's address; None if a proxy's header may have replaced it."""
    if any(_key(name) in environ for name in proxy_headers.HEADERS):
        return None
    peer = environ.get("REMOTE_ADDR")
    return UNIX if peer == "" else peer  # the peer of a unix socket has no address


def _key(header: str) -> str:
    return "HTTP_" + header.upper().replace("-", "_")


OWN = {name: _key(name) for name in sorted(ABATE_HEADERS)}


def _answer(start_response: StartResponse, status: str, *headers: tuple[str, str]) -> list[bytes]:
    start_response(status, [*headers, ("Content-Length", "0")])
    return []
