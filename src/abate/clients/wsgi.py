"""The WSGI middleware: a service that keeps its callers' deadlines and tells them when retrying is of no use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from abate import proxies
from abate.admit.permits import Permits
from abate.call.giveup import watching
from abate.clients.exchange import EXHAUSTED
from abate.clients.services import LEAST, NOTHING, OWN_KEYS, SECRET_KEY, Asked, Terms
from abate.clients.trust import UNIX, Trusted
from abate.schedule.deadlines import deadline

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class Middleware:
    """Wraps a WSGI application.

    As the ASGI middleware does, with the same settings (`trusted` is a function of the environ), but for one thing: a
    thread cannot be cut off, so there is no `cancel`. The deadline of a trusted caller is kept by the policies and
    clients inside until the response is closed, and a request that comes too late is answered with 504.

    >>> import abate
    >>> def app(environ, start_response): ...
    >>> app = Middleware(app, trusted="10.0.0.0/8", permits=abate.Permits(100), retry_after=2.0)
    """

    def __init__(
        self,
        app: App,
        *,
        trusted: Trusted = None,
        min_deadline: float = LEAST,
        permits: Permits | None = None,
        retry_after: float = 1.0,
    ) -> None:
        if not callable(app):
            raise TypeError(f"app must be a WSGI application, not {app!r}")
        self._app = app
        self._terms = Terms(trusted, min_deadline, permits, retry_after)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        asked = self._asked(environ)
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
                    headers = [pair for pair in headers if pair[0].lower() != EXHAUSTED.lower()]
                    headers.append((EXHAUSTED, "1"))
                return start_response(status, headers, *rest)

            if asked.left is not None:
                stack.enter_context(deadline(asked.left))
            body = self._app(environ, tell)
            return _Body(body, stack.pop_all())

    def _asked(self, environ: Environ) -> Asked:
        """What a request asks for; what the application is not to see of it is taken out of the environ."""
        found = {name: key for name, key in OWN.items() if key in environ}
        if not found:
            return NOTHING
        # a header that came twice has both values in it, with a comma, and so is none that can be read
        sent = {name: [str(environ[key])] for name, key in found.items()}
        believed = self._terms.asked(sent, environ, _peer(environ))
        for name, key in found.items():
            if believed is None or name == SECRET_KEY:
                del environ[key]
        return NOTHING if believed is None else believed


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


def _peer(environ: Environ) -> str | None:
    """The other end of the connection; None where the address may be one that a header has named."""
    if any(_key(name) in environ for name in proxies.HEADERS):
        return None
    peer = environ.get("REMOTE_ADDR")
    return UNIX if peer == "" else peer  # the peer of a unix socket has no address


def _key(header: str) -> str:
    return "HTTP_" + header.upper().replace("-", "_")


OWN = {name: _key(name) for name in sorted(OWN_KEYS)}


def _answer(start_response: StartResponse, status: str, *headers: tuple[str, str]) -> list[bytes]:
    start_response(status, [*headers, ("Content-Length", "0")])
    return []
