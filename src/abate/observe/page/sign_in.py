"""Sign in by a form that sends the token in a body, because servers and proxies log URLs.

* A browser without a cookie gets the form in place of the page. It works without JavaScript.
* A link may have the token behind ``#``, which browsers do not send: the form's script fills it in and submits.
* A post must come from the form itself: ``Sec-Fetch-Site`` or else ``Origin`` proves it, which browsers add and a
  foreign page can't forge. A client that sends neither is not a browser.
* The body is bounded, in bytes and in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import NamedTuple
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse
from starlette.types import Receive

from abate.clock import Clock
from abate.errors import AttemptTimeout
from abate.http_server import REQUEST_TIMEOUT

MIN_TOKEN, MAX_TOKEN = 16, 1000
MAX_BODY = 12 * MAX_TOKEN + 100
"""Bytes that are read of a posted form: an escaped character takes up to 12."""
MAX_FIELDS = 10
"""Fields that are read of a posted form, which has one."""
ASK = "this page needs its token: sign in with a browser, or send it as a bearer token"
WRONG = "that is not the token of this page"
IN_ADDRESS = (
    "a token in the address is refused, as servers and proxies write addresses to their logs: take another token, as "
    "this one may be there now, and sign in by the form, by a link with #token=... or with a bearer token"
)
FOREIGN = "that came from another page: sign in here"
NO_FORM = "expected a form with the field token"
_DOCUMENT = files("abate.observe.page").joinpath("assets", "sign-in.html").read_text("utf-8")
_ALERT = "<!-- why -->"


class Refusal(NamedTuple):
    """Why a request is refused; `form` says whether signing in would help."""

    status: int
    why: str
    form: bool = True


def form(refusal: Refusal, headers: Mapping[str, str]) -> HTMLResponse:
    """Return the form, with the reason unless this is the first visit."""
    alert = "" if refusal.why == ASK else f'<p role="alert" class="bad">{escape(refusal.why.capitalize())}.</p>'
    return HTMLResponse(_DOCUMENT.replace(_ALERT, alert), refusal.status, headers)


async def read_token(headers: Headers, receive: Receive, clock: Clock) -> str | Refusal:
    """Return the token that a form has sent, not yet checked, or why the post is refused."""
    if not _is_own(headers):
        return Refusal(403, FOREIGN)
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        return Refusal(415, NO_FORM)
    try:
        async with clock.within(REQUEST_TIMEOUT):
            body = await _body(receive)
    except AttemptTimeout:
        return Refusal(408, "the form did not come in time")
    if isinstance(body, Refusal):
        return body
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=MAX_FIELDS)
    except ValueError:
        return Refusal(400, NO_FORM)
    return fields["token"][0] if "token" in fields else Refusal(400, NO_FORM)


async def _body(receive: Receive) -> bytes | Refusal:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return Refusal(400, "the form did not come whole")
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            return Refusal(413, f"expected at most {MAX_BODY} bytes")
        if not message.get("more_body", False):
            return bytes(body)


def _is_own(headers: Headers) -> bool:
    """Return whether a page of this site sent the form, or a client that is not a browser."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site in ("same-origin", "none")
    if origin is None:
        return True
    # a proxy may pass on another Host, and the visitor's in a header that no page can write either
    hosts = {headers.get("host", "").lower(), headers.get("x-forwarded-host", "").lower()} - {""}
    return origin.partition("://")[2].lower() in hosts
