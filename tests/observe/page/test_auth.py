"""Access to the live page, and the headers that restrict what a browser does with it."""

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import abate
from abate import event_sinks
from abate.http_server import is_loopback
from abate.observe import page

TOKEN = "a long; odd, secret ü"


async def _request(app, path="/", method="GET", client="127.0.0.1", **options):
    transport = httpx.ASGITransport(app, client=(client, 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as browser:
        return await browser.request(method, path, **options)


def request(app, path="/", **options):
    """Return the app's response to one request."""
    return asyncio.run(_request(app, path, **options))


OPEN = ["/page.css", "/sign-in.js", "/favicon.svg"]
"""Files that the sign-in form needs."""
ADDRESSES = ["/", "/page.js", "/charts.js", "/uPlot.js", "/uPlot.css", *OPEN]


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_file_is_served_with_security_headers(address):
    """The headers allow neither resources from elsewhere nor framing."""
    answer = request(page.app(local_only=True), address)
    assert answer.status_code == 200
    assert answer.content
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_document_has_no_inline_code_and_no_foreign_resources():
    """It loads files beside it, by relative URLs."""
    text = request(page.app(local_only=True)).text
    assert "://" not in text
    assert " style=" not in text
    assert "onclick" not in text
    assert all(part.startswith(" src=") for part in text.split("<script")[1:])
    assert 'src="/' not in text
    assert 'href="/' not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_page_is_read_only(method):
    """Other methods are refused, except POST at the page's own path if there is a token."""
    open_page, guarded = page.app(local_only=True), page.app(token=TOKEN)
    for app, path in ((open_page, "/"), (open_page, "/events"), (guarded, "/events"), (guarded, "/page.css")):
        answer = request(app, path, method=method)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    if method != "POST":
        answer = request(guarded, method=method)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")


def test_an_unknown_path_has_the_security_headers_too():
    """The response is a 404."""
    answer = request(page.app(local_only=True), "/../secret")
    assert answer.status_code == 404
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, 200),
        ({"client": "::1"}, 200),
        ({"client": "::ffff:127.0.0.1"}, 200),
        ({"headers": {"Host": "127.0.0.1:8321"}}, 200),
        ({"headers": {"Host": "[::1]:8321"}}, 200),
        ({"headers": {"Host": "evil.example"}}, 421),
        ({"headers": {"Host": "localhost.evil.example:80"}}, 421),
        ({"headers": {"Host": ""}}, 421),
        ({"client": "192.0.2.7"}, 403),
        ({"client": ""}, 403),
        ({"headers": {"X-Forwarded-For": "127.0.0.1"}}, 403),
        ({"headers": {"Forwarded": "for=192.0.2.7"}}, 403),
    ],
)
def test_without_a_token_only_loopback_clients_may_read(options, status):
    """The client, the Host and the lack of proxy headers are checked, against DNS rebinding."""
    assert request(page.app(local_only=True), **options).status_code == status


def test_with_a_token_every_request_needs_it():
    """The page and its stream answer 401 without it."""
    app = page.app(token=TOKEN)
    for address in (*ADDRESSES, "/events"):
        assert request(app, address).status_code == (200 if address in OPEN else 401)
    assert request(app, method="POST", data={"token": "wrong"}).status_code == 401
    assert request(app, method="POST", data={"token": "x" * 5000}).status_code == 401
    assert request(app, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert request(app, headers={"Cookie": "abate_page_00000000=0"}).status_code == 401


def test_signing_in_sets_a_cookie():
    """The cookie is HttpOnly and SameSite, is not the token, and opens this page only."""
    app, other = page.app(token=TOKEN), page.app(token="another long secret")
    answer = request(app, method="POST", data={"token": TOKEN}, client="192.0.2.7", headers={"Host": "shop.example"})
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/;" in cookie
    assert "Secure" not in cookie
    assert "secret" not in cookie
    pair = cookie.partition(";")[0]
    here = {"Cookie": pair, "Host": "shop.example"}
    assert request(app, headers=here).status_code == 200
    assert "set-cookie" not in request(app, headers=here).headers
    assert request(other, headers=here).status_code == 401


def test_a_token_may_be_sent_as_a_header():
    """Programs don't keep cookies."""
    answer = request(page.app(token=TOKEN[:16]), headers={"Authorization": f"bearer {TOKEN[:16]}"})
    assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)


def test_a_mounted_page_limits_the_cookie_to_its_path():
    """The cookie's path is the one under which the user's app mounts the page."""
    mine = Starlette(routes=[Mount("/ops/abate", page.app(token=TOKEN))])
    answer = request(mine, "/ops/abate/", method="POST", data={"token": TOKEN})
    assert (answer.status_code, "Path=/ops/abate/;" in answer.headers["set-cookie"]) == (303, True)
    assert request(mine, "/ops/abate", method="POST", data={"token": TOKEN}).status_code == 307


def test_a_websocket_is_refused():
    """The page has no websocket."""
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(page.app(local_only=True)({"type": "websocket", "path": "/", "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"token": ""}, ValueError),
        ({"token": "  "}, ValueError),
        ({"token": 5}, TypeError),
        ({"local_only": "yes"}, TypeError),
        ({"local_only": True, "every": 0}, ValueError),
        ({"local_only": True, "max_visitors": 0}, ValueError),
        ({"local_only": True, "patience": -1}, ValueError),
        ({"local_only": True, "clock": 3}, TypeError),
    ],
)
def test_bad_settings_are_refused(settings, error):
    """The constructor raises, and no sink stays installed."""
    before = event_sinks.installed
    with pytest.raises(error):
        page.app(**settings)
    assert event_sinks.installed == before


def test_the_error_about_a_bad_token_does_not_contain_it():
    """The token is a secret."""
    with pytest.raises(ValueError) as caught:
        page.app(token="hush" * 1000)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "shop.example"])
def test_other_addresses_than_loopback_need_a_token(host):
    """The page can't be exposed by accident."""
    assert not is_loopback(host)
    with pytest.raises(ValueError, match="token"), page.serving(host, 0):
        pass


# -- signing in

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def sign_in(app, headers=(), content=None, **options):
    """Send the sign-in form, and return the response."""
    body = {"data": {"token": TOKEN}} if content is None else {"content": content}
    return request(app, method="POST", headers=dict(headers), **body, **options)


def test_a_browser_gets_a_form_and_a_program_gets_plain_text():
    """Only the page's own path has the form, which can be sent only to it and sends its Origin."""
    app = page.app(token=TOKEN)
    answer = request(app, headers=HTML)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert '<form class="card sign-in" method="post" action="./">' in answer.text
    assert "form-action 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["x-frame-options"] == "DENY"
    assert 'role="alert"' not in answer.text
    assert all(part.startswith(" src=") for part in answer.text.split("<script")[1:])
    for plain in (request(app), request(app, "/events", headers=HTML)):
        assert (plain.status_code, plain.headers["content-type"]) == (401, "text/plain; charset=utf-8")
    assert "<form" not in request(page.app(local_only=True), headers={**HTML, "Host": "evil.example"}).text
    assert "form-action 'none'" in request(page.app(local_only=True)).headers["content-security-policy"]


@pytest.mark.parametrize("options", [{}, {"method": "POST", "data": {"token": TOKEN}}, {"bearer": True}])
def test_a_token_in_the_url_is_refused(options):
    """Right or wrong, alone or with other credentials: URLs are logged. It does not count as a failed sign-in."""
    app = page.app(token=TOKEN)
    if options.pop("bearer", False):
        options["headers"] = {"Authorization": f"Bearer {TOKEN[:-1]}".encode()}
    for token in (TOKEN, "wrong", ""):
        for _ in range(10):
            answer = request(app, params={"token": token}, **options)
            assert (answer.status_code, "set-cookie" in answer.headers) == (400, False)
        assert "servers and proxies write addresses to their logs" in answer.text
        assert "bearer token" in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 303),
        ({"Sec-Fetch-Site": "same-origin"}, 303),
        ({"Sec-Fetch-Site": "none"}, 303),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://shop.example"}, 303),
        ({"Origin": "http://localhost"}, 303),
        ({"Origin": "http://localhost:81"}, 403),
        ({"Origin": "https://localhost.evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "https://shop.example", "X-Forwarded-Host": "shop.example"}, 303),
        ({"Origin": "https://evil.example", "X-Forwarded-Host": "shop.example"}, 403),
    ],
)
def test_only_the_page_s_own_form_signs_in(headers, status):
    """A form of another site is refused by the headers that browsers add, before its token is checked."""
    answer = sign_in(page.app(token=TOKEN), headers)
    assert (answer.status_code, "set-cookie" in answer.headers) == (status, status == 303)


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    ("headers", "content", "status"),
    [
        (FORM, b"token=wrong", 401),
        (FORM, b"", 400),
        (FORM, b"other=1", 400),
        (FORM, b"token=", 400),
        (FORM, b"&".join([b"a=1"] * 11), 400),
        (FORM, b"token=\xff\x00%ff%zz", 401),
        (FORM, b"token=" + b"x" * 12_000, 401),
        (FORM, b"token=" + b"x" * 13_000, 413),
        ({"Content-Type": "text/plain"}, b"token=x", 415),
        ({"Content-Type": "application/json"}, b"{}", 415),
        ({}, b"token=x", 415),
    ],
)
def test_a_malformed_form_is_refused(headers, content, status):
    """The response has the reason, and the form again for a browser."""
    answer = sign_in(page.app(token=TOKEN), {**headers, **HTML}, content)
    assert (answer.status_code, "set-cookie" in answer.headers) == (status, False)
    assert 'role="alert"' in answer.text


def test_a_token_of_any_characters_can_be_sent():
    """Also at its maximum length with every character escaped."""
    token = "\N{SNOWMAN WITHOUT SNOW}\N{WATER BUFFALO}" * 500
    assert request(page.app(token=token), method="POST", data={"token": token}).status_code == 303


@pytest.mark.parametrize("ends", [True, False])
def test_waiting_for_the_form_has_a_timeout(ends):
    """A slow body is answered with 408, and a disconnect with 400."""
    sent = []

    async def receive():
        if ends:
            return {"type": "http.disconnect"}
        await abate.clock.current().asleep(3.0)
        return {"type": "http.request", "body": b"t", "more_body": True}

    async def send(message):
        sent.append(message)

    async def main():
        with abate.testing.VirtualClock() as clock:
            app = page.app(token=TOKEN)
            headers = [(b"content-type", b"application/x-www-form-urlencoded"), (b"host", b"localhost")]
            scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
            await app(scope, receive, send)
            return clock.now()

    assert asyncio.run(main()) == (0.0 if ends else 5.0)
    assert sent[0]["status"] == (400 if ends else 408)
