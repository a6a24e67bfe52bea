"""Who may read the page, and what a browser may do with it.

* GET and HEAD alone, and POST for signing in: nothing here changes anything.
* `local_only`: only requests from this machine, by a name of this machine, and not through a proxy that says so. The
  name is checked because a foreign page can have its own name resolve to 127.0.0.1 (DNS rebinding). A proxy on this
  machine that adds no header, as nginx by default, can't be told from a local visitor: hence a token is the rule.
* With a token: whoever has it, as ``Authorization: Bearer …``, or posted by the form (see `sign_in`), which is answered
  with a cookie. In an address it is refused, right or wrong. What the form itself needs is open.
* The cookie is no token: it is made from the token for one host, port and path, holds for a week, and opens nothing
  else. Wrong tokens are slowed down (`Tries`); cookies are not, as they can't be guessed.
* Every answer says what a browser may load (only what comes from here), and that nobody may frame it.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from abate import proxies
from abate.clock import Clock
from abate.http_server import host_name, is_loopback
from abate.observe.page.sign_in import ASK, IN_ADDRESS, LONGEST_TOKEN, WRONG, Refusal, form, posted
from abate.observe.page.tries import LONGEST_WAIT, Tries

POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FORM_HEADERS = {
    "Content-Security-Policy": POLICY.replace("form-action 'none'", "form-action 'self'"),
    "Referrer-Policy": "same-origin",  # or a browser would not say by Origin where the form was sent from
}
OPEN = ("/page.css", "/sign-in.js", "/favicon.svg")
"""What the form needs: files of the package, which tell nothing of the program."""
WEEK = 7 * 24 * 3600
"""Seconds that a cookie holds."""
EXTRA = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": str(int(LONGEST_WAIT))},
}
"""Headers of refusals, by status."""


class Guard:
    """Lets those through who may read."""

    def __init__(self, inner: ASGIApp, token: str | None, local_only: bool, clock: Clock) -> None:
        self._inner = inner
        self._key = None if token is None else _key(token)
        self._local_only = local_only
        self._clock = clock
        self._tries = Tries()

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

        answer = await self._judge(scope, headers, receive)
        if isinstance(answer, Refusal):
            answer = self._refused(answer, scope, headers)
        await (answer or self._inner)(scope, receive, guarded)

    async def _judge(self, scope: Scope, headers: Headers, receive: Receive) -> Response | Refusal | None:
        """Why it is refused, if it is; the answer to a form; None where the page may be read."""
        signs_in = self._key is not None and scope["method"] == "POST" and _path(scope) == "/"
        if scope["method"] not in ("GET", "HEAD") and not signs_in:
            return Refusal(405, "this page can only be read: GET or HEAD", form=False)
        refusal = _from_here(scope, headers) if self._local_only else None
        if refusal is not None or self._key is None:
            return refusal
        if "token" in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True):
            return Refusal(400, IN_ADDRESS)
        place = Place(scope, headers)
        if signs_in:
            given = await posted(headers, receive, self._clock)
            refusal = given if isinstance(given, Refusal) else await self._try(scope, given)
            cookie = place.cookie(self._key, self._clock.wall())
            # relative, as a proxy may know the page by another path
            return refusal or Response(status_code=303, headers={"Location": "./", "Set-Cookie": cookie})
        if _path(scope) in OPEN:
            return None
        if place.holds(self._key, cookie_parser(headers.get("cookie", "")), self._clock.wall()):
            return None
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        return await self._try(scope, bearer.strip()) if kind.lower() == "bearer" else Refusal(401, ASK)

    def _refused(self, refusal: Refusal, scope: Scope, headers: Headers) -> Response:
        """Return the form to a browser that could sign in, and the reason to others."""
        extra = EXTRA.get(refusal.status, {})
        if refusal.status == 405:
            extra = {"Allow": "GET, HEAD" if self._key is None or _path(scope) != "/" else "GET, HEAD, POST"}
        if refusal.form and _path(scope) == "/" and "text/html" in headers.get("accept", ""):
            return form(refusal, {**FORM_HEADERS, **extra})
        return PlainTextResponse(f"{refusal.why}\n", refusal.status, extra)

    async def _try(self, scope: Scope, given: str) -> Refusal | None:
        """Judge a token when its turn has come."""
        assert self._key is not None
        peer = (scope.get("client") or ("",))[0]
        wait = self._tries.turn(peer, self._clock.now())
        if wait is None:
            return Refusal(429, "too many wrong tokens came from there: try again in a few seconds")
        if wait:
            self._tries.waiting += 1
            try:
                await self._clock.asleep(wait)
            finally:
                self._tries.waiting -= 1
        if len(given) > LONGEST_TOKEN or not hmac.compare_digest(_key(given), self._key):
            return Refusal(401, WRONG)
        self._tries.right(peer)
        return None


class Place:
    """Where the page is, as the browser sees it: cookies are made for that."""

    def __init__(self, scope: Scope, headers: Headers) -> None:
        # a part of the path may be a parameter of the app's routes, and so anything
        self.path = quote(scope.get("root_path", "").rstrip("/"), safe="/") + "/"
        # a proxy may end TLS; whoever lies about that only gets a cookie that its browser does not send
        self.secure = "https" in (scope.get("scheme"), headers.get("x-forwarded-proto"))
        self._bytes = f"{headers.get('host', '').lower()}\0{self.path}\0{self.secure}".encode("utf-8", "surrogatepass")
        # cookies don't tell ports apart: pages of one machine must not take each other's away
        name = f"abate_page_{hashlib.sha256(self._bytes).hexdigest()[:8]}"
        prefix = ("__Host-" if self.path == "/" else "__Secure-") if self.secure else ""
        self.name = prefix + name

    def cookie(self, key: bytes, now: float) -> str:
        """Return the cookie that opens this page, and no other, for a week."""
        until = int(now + WEEK)
        secure = "; Secure" if self.secure else ""
        value = f"{until}-{self._seal(key, until)}"
        return f"{self.name}={value}; Path={self.path}; HttpOnly; SameSite=Strict{secure}"

    def holds(self, key: bytes, cookies: dict[str, str], now: float) -> bool:
        """Is the cookie of this page among these, and has it not run out?"""
        until, _, seal = cookies.get(self.name, "").partition("-")
        if not (until.isascii() and until.isdigit() and len(until) <= 12):
            return False
        right = hmac.compare_digest(seal.encode("utf-8", "surrogatepass"), self._seal(key, int(until)).encode())
        return right and now < int(until)

    def _seal(self, key: bytes, until: int) -> str:
        return hmac.new(key, b"cookie\0%d\0%b" % (until, self._bytes), hashlib.sha256).hexdigest()


def _path(scope: Scope) -> str:
    """Return the path below the place where the page is mounted."""
    path: str = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))
    return path or "/"


def _from_here(scope: Scope, headers: Headers) -> Refusal | None:
    peer = (scope.get("client") or ("",))[0]
    if not is_loopback(peer) or any(name in headers for name in proxies.HEADERS):
        return Refusal(403, "this page answers to its own machine alone", form=False)
    if not is_loopback(host_name(headers.get("host", ""))):
        return Refusal(421, "this page answers to localhost alone, not to another name", form=False)
    return None


def _key(token: str) -> bytes:
    """Return what stands for a token: always as long, whatever was given."""
    return hashlib.sha256(b"abate page\0" + token.encode("utf-8", "surrogatepass")).digest()
