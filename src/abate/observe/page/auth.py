"""Decide who may read the page, and what a browser may do with it.

* Only GET and HEAD are served, and POST for signing in: the page changes nothing.
* `local_only`: only requests from this machine, by a name of this machine, and without headers of a proxy. The name is
  checked because a foreign page can make its own name resolve to 127.0.0.1 (DNS rebinding). A proxy on this machine
  that adds no header, as nginx by default, looks like a local visitor: hence a token is the rule.
* With a token: anyone who sends it as ``Authorization: Bearer …``, or by the form (see `sign_in`), which sets a cookie.
  A token in a URL is refused, right or wrong. The files that the form needs are public.
* The cookie is derived from the token for one host, port and path, is valid for a week, and opens nothing else. Wrong
  tokens are slowed down (`SignInLimit`); cookies are not, as they can't be guessed.
* Every response limits what a browser may load (files of the page only), and forbids framing.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from abate import proxy_headers
from abate.clock import Clock
from abate.http_server import host_name, is_loopback
from abate.observe.page.sign_in import ASK, IN_ADDRESS, MAX_TOKEN, WRONG, Refusal, form, read_token
from abate.observe.page.sign_in_limit import MAX_WAIT, SignInLimit

CONTENT_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FORM_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY.replace("form-action 'none'", "form-action 'self'"),
    "Referrer-Policy": "same-origin",  # without it browsers send no Origin for the form
}
PUBLIC_PATHS = ("/page.css", "/sign-in.js", "/favicon.svg")
"""Files that the form needs; they say nothing about the program."""
WEEK = 7 * 24 * 3600
"""Seconds that a cookie is valid."""
EXTRA = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": str(int(MAX_WAIT))},
}
"""Headers of refusals, by status."""


class Auth:
    """Passes on the requests that may read the page."""

    def __init__(self, inner: ASGIApp, token: str | None, local_only: bool, clock: Clock) -> None:
        self._inner = inner
        self._token_hash = None if token is None else _token_hash(token)
        self._local_only = local_only
        self._clock = clock
        self._sign_in_limit = SignInLimit()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                fields = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    fields.setdefault(name, value)
            await send(message)

        answer = await self._authorize(scope, headers, receive)
        if isinstance(answer, Refusal):
            answer = self._refused(answer, scope, headers)
        await (answer or self._inner)(scope, receive, guarded)

    async def _authorize(self, scope: Scope, headers: Headers, receive: Receive) -> Response | Refusal | None:
        """Return the refusal, or the response to a form; None if the page may be read."""
        signs_in = self._token_hash is not None and scope["method"] == "POST" and _path(scope) == "/"
        if scope["method"] not in ("GET", "HEAD") and not signs_in:
            return Refusal(405, "this page can only be read: GET or HEAD", form=False)
        refusal = _refuse_remote(scope, headers) if self._local_only else None
        if refusal is not None or self._token_hash is None:
            return refusal
        if "token" in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True):
            return Refusal(400, IN_ADDRESS)
        place = CookieScope(scope, headers)
        if signs_in:
            given = await read_token(headers, receive, self._clock)
            refusal = given if isinstance(given, Refusal) else await self._check_token(scope, given)
            cookie = place.cookie(self._token_hash, self._clock.wall())
            # relative, because a proxy may serve the page under another path
            return refusal or Response(status_code=303, headers={"Location": "./", "Set-Cookie": cookie})
        if _path(scope) in PUBLIC_PATHS:
            return None
        if place.accepts(self._token_hash, headers.get("cookie", ""), self._clock.wall()):
            return None
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        return await self._check_token(scope, bearer.strip()) if kind.lower() == "bearer" else Refusal(401, ASK)

    def _refused(self, refusal: Refusal, scope: Scope, headers: Headers) -> Response:
        """Return the form to a browser that could sign in, and the reason to others."""
        extra = EXTRA.get(refusal.status, {})
        if refusal.status == 405:
            extra = {"Allow": "GET, HEAD" if self._token_hash is None or _path(scope) != "/" else "GET, HEAD, POST"}
        if refusal.form and _path(scope) == "/" and "text/html" in headers.get("accept", ""):
            return form(refusal, {**FORM_HEADERS, **extra})
        return PlainTextResponse(f"{refusal.why}\n", refusal.status, extra)

    async def _check_token(self, scope: Scope, given: str) -> Refusal | None:
        """Check a token after its delay."""
        assert self._token_hash is not None
        peer = (scope.get("client") or ("",))[0]
        wait = self._sign_in_limit.count_try(peer, self._clock.now())
        if wait is None:
            return Refusal(429, "too many wrong tokens came from there: try again in a few seconds")
        if wait:
            self._sign_in_limit.waiting += 1
            try:
                await self._clock.asleep(wait)
            finally:
                self._sign_in_limit.waiting -= 1
        if len(given) > MAX_TOKEN or not hmac.compare_digest(_token_hash(given), self._token_hash):
            return Refusal(401, WRONG)
        self._sign_in_limit.forgive(peer)
        return None


class CookieScope:
    """The URL of the page as the browser sees it, for which cookies are made."""

    def __init__(self, scope: Scope, headers: Headers) -> None:
        # a part of the path may be a parameter of the app's routes, and so anything
        self.path = quote(scope.get("root_path", "").rstrip("/"), safe="/") + "/"
        # a proxy may end TLS; a forged header only yields a cookie that the browser does not send
        self.secure = "https" in (scope.get("scheme"), headers.get("x-forwarded-proto"))
        self._bytes = f"{headers.get('host', '').lower()}\0{self.path}\0{self.secure}".encode("utf-8", "surrogatepass")
        # cookies ignore ports: pages of one machine must not overwrite each other's
        name = f"abate_page_{hashlib.sha256(self._bytes).hexdigest()[:8]}"
        prefix = ("__Host-" if self.path == "/" else "__Secure-") if self.secure else ""
        self.name = prefix + name

    def cookie(self, key: bytes, now: float) -> str:
        """Return the cookie that opens this page, and no other, for a week."""
        until = int(now + WEEK)
        secure = "; Secure" if self.secure else ""
        value = f"{until}-{self._signature(key, until)}"
        return f"{self.name}={value}; Path={self.path}; HttpOnly; SameSite=Strict{secure}"

    def accepts(self, key: bytes, header: str, now: float) -> bool:
        """Return whether a header ``Cookie`` has a valid cookie of this page."""
        # not by `http.cookies`, which takes the square of a value's length
        pairs = (pair.partition("=") for pair in header.split(";"))
        return any(self._is_valid(key, value.strip(), now) for name, _, value in pairs if name.strip() == self.name)

    def _is_valid(self, key: bytes, cookie: str, now: float) -> bool:
        until, _, seal = cookie.partition("-")
        if not (until.isascii() and until.isdigit() and len(until) <= 12):
            return False
        right = hmac.compare_digest(seal.encode("utf-8", "surrogatepass"), self._signature(key, int(until)).encode())
        return right and now < int(until)

    def _signature(self, key: bytes, until: int) -> str:
        return hmac.new(key, b"cookie\0%d\0%b" % (until, self._bytes), hashlib.sha256).hexdigest()


def _path(scope: Scope) -> str:
    """Return the path below the mount point of the page."""
    path: str = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))
    return path or "/"


def _refuse_remote(scope: Scope, headers: Headers) -> Refusal | None:
    peer = (scope.get("client") or ("",))[0]
    if not is_loopback(peer) or any(name in headers for name in proxy_headers.HEADERS):
        return Refusal(403, "this page answers to its own machine alone", form=False)
    if not is_loopback(host_name(headers.get("host", ""))):
        return Refusal(421, "this page answers to localhost alone, not to another name", form=False)
    return None


def _token_hash(token: str) -> bytes:
    """Return a hash of fixed length for a token."""
    return hashlib.sha256(b"abate page\0" + token.encode("utf-8", "surrogatepass")).digest()
