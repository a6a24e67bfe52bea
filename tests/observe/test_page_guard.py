"""Who may read the live page, and what a browser may do with it."""

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from abate import events
from abate.http_server import is_loopback
from abate.observe import page

TOKEN = "a long; odd, secret ü"


async def _got(app, path="/", method="GET", client="127.0.0.1", **options):
    transport = httpx.ASGITransport(app, client=(client, 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as browser:
        return await browser.request(method, path, **options)


def got(app, path="/", **options):
    """One answer of an app."""
    return asyncio.run(_got(app, path, **options))


ADDRESSES = ["/", "/page.js", "/charts.js", "/page.css", "/uPlot.js", "/uPlot.css", "/favicon.svg"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_file_is_there_with_the_headers_that_keep_it_safe(address):
    """Each is served from the package, and tells the browser to load nothing from elsewhere, nor to be framed."""
    answer = got(page.app(local_only=True), address)
    assert answer.status_code == 200
    assert answer.content
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_document_has_no_script_or_style_of_its_own_and_nothing_from_elsewhere():
    """All that it loads are files beside it, by relative addresses."""
    text = got(page.app(local_only=True)).text
    assert "://" not in text
    assert " style=" not in text
    assert "onclick" not in text
    assert all(part.startswith(" src=") for part in text.split("<script")[1:])
    assert 'src="/' not in text
    assert 'href="/' not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_page_can_only_be_read(method):
    """Every other method is refused, everywhere."""
    answer = got(page.app(local_only=True), "/events", method=method)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_an_unknown_address_is_refused_as_safely():
    """Also an error has the headers."""
    answer = got(page.app(local_only=True), "/../secret")
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
def test_without_a_token_only_this_machine_may_read(options, status):
    """From here, by a name of here, and not through a proxy: a foreign page can't rebind its name to us."""
    assert got(page.app(local_only=True), **options).status_code == status


def test_with_a_token_nobody_reads_without_it():
    """Neither the page nor its stream, wherever from."""
    app = page.app(token=TOKEN)
    for address in (*ADDRESSES, "/events"):
        assert got(app, address).status_code == 401
    assert got(app, params={"token": "wrong"}).status_code == 401
    assert got(app, params={"token": "x" * 5000}).status_code == 401
    assert got(app, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert got(app, headers={"Cookie": "abate_page_00000000=0"}).status_code == 401


def test_a_token_once_is_a_cookie_from_then_on():
    """The cookie is out of reach of scripts and other sites, is not the token, and opens this page alone."""
    app, other = page.app(token=TOKEN), page.app(token="another long secret")
    answer = got(app, params={"token": TOKEN}, client="192.0.2.7", headers={"Host": "shop.example"})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/;" in cookie
    assert "Secure" not in cookie
    assert "secret" not in cookie
    pair = cookie.partition(";")[0]
    here = {"Cookie": pair, "Host": "shop.example"}
    assert got(app, headers=here).status_code == 200
    assert "set-cookie" not in got(app, headers=here).headers
    assert got(other, headers=here).status_code == 401


def test_a_token_may_come_as_a_header():
    """For programs, which keep no cookies."""
    answer = got(page.app(token=TOKEN[:16]), headers={"Authorization": f"bearer {TOKEN[:16]}"})
    assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)


def test_mounted_elsewhere_the_cookie_is_of_that_place():
    """In an app of the user's, the page lives below its own path."""
    mine = Starlette(routes=[Mount("/ops/abate", page.app(token=TOKEN))])
    answer = got(mine, "/ops/abate/", params={"token": TOKEN})
    assert (answer.status_code, "Path=/ops/abate/;" in answer.headers["set-cookie"]) == (200, True)
    assert got(mine, "/ops/abate", params={"token": TOKEN}).status_code == 307


def test_a_websocket_is_refused():
    """There is none."""
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
        ({"local_only": True, "visitors": 0}, ValueError),
        ({"local_only": True, "patience": -1}, ValueError),
        ({"local_only": True, "clock": 3}, TypeError),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, error):
    """At once, and nothing is installed."""
    before = events.sinks
    with pytest.raises(error):
        page.app(**settings)
    assert events.sinks == before


def test_the_text_of_a_refused_token_does_not_show_it():
    """It is a secret."""
    with pytest.raises(ValueError) as caught:
        page.app(token="hush" * 1000)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "shop.example"])
def test_elsewhere_needs_a_token(host):
    """Nobody opens the page to the world by accident."""
    assert not is_loopback(host)
    with pytest.raises(ValueError, match="token"), page.serving(host, 0):
        pass
