"""The page as an ASGI app: a document, its script and style, and the stream of events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from weakref import finalize

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from abate import clock as clocks
from abate.clock import Clock
from abate.errors import number, whole
from abate.observe.installing import install, remove
from abate.observe.page.auth import Auth
from abate.observe.page.recent_activity import RecentActivity
from abate.observe.page.sign_in import MAX_TOKEN, MIN_TOKEN
from abate.observe.page.state import PageState
from abate.observe.page.stream import StateStream

ASSETS = {
    "": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
    "sign-in.js": ("sign-in.js", "text/javascript"),
    "charts.js": ("charts.js", "text/javascript"),
    "uPlot.css": ("uPlot.min.css", "text/css"),
    "uPlot.js": ("uPlot.iife.min.js", "text/javascript"),
    "favicon.svg": ("favicon.svg", "image/svg+xml"),
}
"""The file and its type, by the last part of the URL. All URLs are relative, so the app can be mounted."""


def app(
    token: str | None = None,
    *,
    local_only: bool = False,
    every: float = 1.0,
    max_visitors: int = 50,
    patience: float = 15.0,
    clock: Clock | Callable[[], float] | None = None,
) -> Starlette:
    """Return the live page as an ASGI app, to mount in your own app or to serve under asyncio.

    * `token`: opens the page; at least 16 characters.
    * `local_only`: only requests from this machine, by a name of this machine, are answered; then no token is
      needed. Behind a proxy on this machine every request looks local: use a token there.
    * `every`: seconds between two updates.
    * `max_visitors`: browsers served at once; further ones are answered 503.
    * `patience`: seconds after which a browser that does not read is dropped.

    Calls are counted while the app exists. Charts begin when it starts; mounted in another app, at the first visit.
    Open pages do not delay the shutdown of a server: their streams end when it stops listening.

    >>> from starlette.applications import Starlette
    >>> from starlette.routing import Mount
    >>> mine = Starlette(routes=[Mount("/abate", app(token="a long and random secret"))])
    >>> app()
    Traceback (most recent call last):
    ValueError: the page needs a token, as others may reach an app: write app(token=...), or app(local_only=True) if ...
    """
    if not isinstance(local_only, bool):
        raise TypeError(f"local_only must be True or False, not {local_only!r}")
    if token is None and not local_only:
        raise ValueError(
            "the page needs a token, as others may reach an app: write app(token=...), or app(local_only=True) if no "
            "proxy on this machine passes requests on to it"
        )
    _check(token)
    page_clock = clocks.as_clock(clock) or clocks.current()
    recent = RecentActivity(page_clock)
    stream = StateStream(
        PageState(recent, page_clock),
        page_clock,
        number("every", every, least=0.1),
        whole("max_visitors", max_visitors, least=1),
        number("patience", patience, above=0),
    )

    @asynccontextmanager
    async def alive(_: Starlette) -> AsyncIterator[None]:
        stream.start()
        try:
            yield
        finally:
            stream.close()

    site = Starlette(
        routes=[*map(_asset, ASSETS), Route("/events", stream)],
        middleware=[Middleware(Auth, token=token, local_only=local_only, clock=page_clock)],
        lifespan=alive,
    )
    site.state.stream = stream
    install(recent)
    site.state.detach = finalize(site, remove, recent)
    return site


def _asset(address: str) -> Route:
    name, media = ASSETS[address]
    body = files("abate.observe.page").joinpath("assets", name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(body, media_type=media)

    return Route(f"/{address}", answer)


def _check(token: object) -> None:
    """Refuse a token that is invalid or easily guessed."""
    if token is None:
        return
    if not isinstance(token, str):
        raise TypeError(f"token must be a string, or None for this machine alone, not a {type(token).__name__}")
    if not MIN_TOKEN <= len(token.strip()) <= len(token) <= MAX_TOKEN:  # the error does not show the secret
        raise ValueError(
            f"token must have from {MIN_TOKEN} to {MAX_TOKEN} characters, not {len(token.strip())}: "
            "make one with secrets.token_urlsafe()"
        )
