"""Signing in: a form that sends the token in a body. An address is no place for it, as servers and proxies log these.

* The form is what a browser gets instead of the page while it has no cookie. It works without JavaScript.
* A link may have the token behind ``#``, which browsers don't send: the form's script fills it in and sends the form.
* What is posted has to come from the form itself: ``Sec-Fetch-Site`` says so, or else ``Origin``, which browsers add
  and a foreign page can't write. A program that sends neither is no browser.
* A body is bounded, in bytes and in time.
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
from abate.http_server import PATIENCE

SHORTEST_TOKEN, LONGEST_TOKEN = 16, 1000
LONGEST_BODY = 12 * LONGEST_TOKEN + 100
"""Bytes that are read of what is posted: an escaped character takes up to 12."""
MOST_FIELDS = 10
"""Fields that are read of what is posted; the form has one."""
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
    """Return the form, which says why it is there unless the visitor has only just come."""
    alert = "" if refusal.why == ASK else f'<p role="alert" class="bad">{escape(refusal.why.capitalize())}.</p>'
    return HTMLResponse(_DOCUMENT.replace(_ALERT, alert), refusal.status, headers)


async def posted(headers: Headers, receive: Receive, clock: Clock) -> str | Refusal:
    """Return the token that a form has sent, not yet judged, or why it is no such form."""
    if not _is_own(headers):
        return Refusal(403, FOREIGN)
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        return Refusal(415, NO_FORM)
    try:
        async with clock.within(PATIENCE):
            body = await _body(receive)
    except AttemptTimeout:
        return Refusal(408, "the form did not come in time")
    if isinstance(body, Refusal):
        return body
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=MOST_FIELDS)
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
        if len(body) > LONGEST_BODY:
            return Refusal(413, f"expected at most {LONGEST_BODY} bytes")
        if not message.get("more_body", False):
            return bytes(body)


def _is_own(headers: Headers) -> bool:
    """Was it sent by a page of this place, or by no browser?"""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site in ("same-origin", "none")
    if origin is None:
        return True
    # a proxy may pass on another Host, and then the visitor's in a header that no page can write either
    hosts = {headers.get("host", "").lower(), headers.get("x-forwarded-host", "").lower()} - {""}
    return origin.partition("://")[2].lower() in hosts
