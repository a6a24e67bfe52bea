"""Who may read the page, and what a browser may do with it.

* GET and HEAD alone: nothing here changes anything.
* Without a token: only who asks from this machine, by a name of this machine, and not through a proxy. The name is
  checked because a foreign page can have its own name resolve to 127.0.0.1 (DNS rebinding).
* With a token: whoever has it, as ``Authorization: Bearer …``, as ``?token=…``, or as the cookie that the latter is
  answered with. That is no redirect: a strict cookie would not come along on one that began on another site.
* Every answer says what a browser may load (only what comes from here), and that nobody may frame it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from typing import Any, TypeAlias
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
PROXIES = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
LONGEST_TOKEN = 1000

Refusal: TypeAlias = tuple[int, str]


class Guard:
    """Lets those through who may read."""

    def __init__(self, inner: ASGIApp, token: str | None) -> None:
        self._inner = inner
        self._digest = None if token is None else _digest(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        refusal, cookie = self._judge(scope, headers)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer.setdefault(name, value)
                if cookie is not None:
                    answer.append("Set-Cookie", cookie)
            await send(message)

        if refusal is None:
            await self._inner(scope, receive, guarded)
            return
        status, why = refusal
        extra = {405: {"Allow": "GET, HEAD"}, 401: {"WWW-Authenticate": "Bearer"}}.get(status)
        await PlainTextResponse(f"{why}\n", status, extra)(scope, receive, guarded)

    def _judge(self, scope: Scope, headers: Headers) -> tuple[Refusal | None, str | None]:
        """Why it is refused, if it is; the cookie to be set, if one is."""
        if scope["method"] not in ("GET", "HEAD"):
            return (405, "this page can only be read: GET or HEAD"), None
        if self._digest is None:
            return _from_here(scope, headers), None
        name = _cookie_name(self._digest)
        if _same(cookie_parser(headers.get("cookie", "")).get(name), self._digest):
            return None, None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(given.strip()):
            return None, None
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if asked and self._is_token(asked):
            secure = "; Secure" if scope.get("scheme") == "https" else ""
            path = scope.get("root_path", "").rstrip("/") + "/"
            return None, f"{name}={self._digest}; Path={path}; HttpOnly; SameSite=Strict{secure}"
        return (401, "this page needs its token: open it with ?token=... once, or send it as a bearer token"), None

    def _is_token(self, given: str) -> bool:
        return len(given) <= LONGEST_TOKEN and _same(_digest(given), self._digest)


def is_loopback(host: str) -> bool:
    """Is this a name or an address of this very machine, which nobody else can reach?

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "example.com")]
    [True, True, True, False, False]
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address: Any = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _from_here(scope: Scope, headers: Headers) -> Refusal | None:
    peer = (scope.get("client") or ("",))[0]
    if not is_loopback(peer) or any(name in headers for name in PROXIES):
        return 403, "without a token this page answers to its own machine alone"
    if not is_loopback(_host(headers.get("host", ""))):
        return 421, "without a token this page answers to localhost alone, not to another name"
    return None


def _host(field: str) -> str:
    """A Host header without its port."""
    if field.startswith("["):
        return field[1:].partition("]")[0]
    return field.partition(":")[0]


def _digest(token: str) -> str:
    """What stands for a token in a cookie; the token itself may hold what a cookie may not."""
    return hashlib.sha256(b"abate page\0" + token.encode("utf-8", "surrogatepass")).hexdigest()


def _cookie_name(digest: str) -> str:
    # cookies don't tell ports apart: two pages of one machine must not take each other's away
    return f"abate_page_{digest[:8]}"


def _same(one: str | None, other: str | None) -> bool:
    """Are they the same? It takes as long to say no as to say yes."""
    return one is not None and other is not None and hmac.compare_digest(one.encode(), other.encode())
