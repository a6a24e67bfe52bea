"""Untrusted clients of the live page, of health and of the demo's page: on real sockets, with real stores."""

import asyncio
import os
import re
import socket
import subprocess
import sys

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Mount

import abate
from abate import event_sinks
from abate.observe import page
from abate.observe.page import sign_in_limit
from tests.cli.commands import GUARD, abate_command, started, until
from tests.clients import asgi_server
from tests.trust.cost import assert_in_proportion

TOKEN = "a secret of some length"
OTHER = "192.0.2.8"


async def ask(app, path="/", client="192.0.2.7", base="http://shop.example", **options):
    """One answer of an app."""
    transport = httpx.ASGITransport(app, client=(client, 1234))
    async with httpx.AsyncClient(transport=transport, base_url=base) as browser:
        return await browser.request("POST" if "data" in options or "content" in options else "GET", path, **options)


def got(app, path="/", **options):
    """The same, in an event loop of its own."""
    return asyncio.run(ask(app, path, **options))


def port_of(address):
    """The port in an address."""
    return int(address.rstrip("/").rpartition(":")[2])


# -- a token is the rule


def test_an_app_needs_a_token_or_the_word_that_it_is_local():
    """Behind nginx's defaults every visitor is 127.0.0.1 and asks for 127.0.0.1: an app can't tell. Nothing is left."""
    before = event_sinks.installed
    with pytest.raises(ValueError, match=r"app\(token=\.\.\.\), or app\(local_only=True\)"):
        page.app()
    assert event_sinks.installed == before
    through_nginx = {"client": "127.0.0.1", "base": "http://127.0.0.1:8000"}
    assert got(page.app(TOKEN), **through_nginx).status_code == 401
    assert got(page.app(local_only=True), **through_nginx).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.7"])
def test_an_address_that_others_reach_needs_a_token_or_the_word(host):
    """The error says what to write."""
    said = r"write serving\(\.\.\., token=\.\.\.\), or serving\(\.\.\., local_only=True\)"
    with pytest.raises(ValueError, match=said), page.serving(host, 0):
        pass


def test_local_only_on_every_address_answers_to_loopback_names_alone():
    """A request from this machine under another name is refused, as is one from elsewhere under a loopback name."""
    assert got(page.app(local_only=True), client="192.0.2.7", base="http://localhost").status_code == 403
    with page.serving("0.0.0.0", 0, local_only=True) as address:
        port = port_of(address)
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 200
        assert httpx.get(f"http://127.0.0.1:{port}/", headers={"Host": "evil.example"}).status_code == 421
        assert httpx.get(f"http://127.0.0.1:{port}/", headers={"X-Forwarded-Proto": "https"}).status_code == 403


def test_local_only_and_a_token_are_both_asked_for():
    """A token does not open a page to other machines that is meant for this one."""
    app = page.app(TOKEN, local_only=True)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert got(app, headers=bearer).status_code == 403
    assert got(app, client="127.0.0.1", base="http://localhost").status_code == 401
    assert got(app, client="127.0.0.1", base="http://localhost", headers=bearer).status_code == 200
    with page.serving(port=0, token=TOKEN, local_only=True) as address:
        assert httpx.get(address).status_code == 401
        assert httpx.get(address, headers=bearer).status_code == 200
        assert httpx.get(address, headers={**bearer, "Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize("token", ["", "x" * 15, " " * 10 + "x" * 15, "x" * 1001])
def test_a_token_that_is_short_is_refused_and_not_shown(token):
    """With the length that is expected, and how to make one; the same for an app and for a page that is served."""
    said = r"token must have from 16 to 1000 characters.*secrets\.token_urlsafe\(\)"
    with pytest.raises(ValueError, match=said) as caught:
        page.app(token)
    assert "xxx" not in str(caught.value)
    with pytest.raises(ValueError, match=said), page.serving(port=0, token=token):
        pass


def test_mounted_in_an_app_on_another_server_the_cookie_opens_the_stream():
    """uvicorn serves the app: the token is answered with a cookie, by which the page's own address can be read on."""
    app = Starlette(routes=[Mount("/ops", page.app(TOKEN))])
    with asgi_server.serving(app) as address, httpx.Client(timeout=GUARD) as browser:
        assert browser.get(f"{address}/ops/events").status_code == 401
        answer = browser.post(f"{address}/ops/", data={"token": TOKEN}, follow_redirects=True)
        assert (answer.status_code, answer.url.path) == (200, "/ops/")
        with browser.stream("GET", f"{address}/ops/events") as answer:
            assert next(answer.iter_lines()) == "retry: 1000"


# -- wrong tokens


def test_wrong_tokens_are_slowed_down_and_hold_up_no_other_visitor():
    """On virtual time: five at once, then one a second; other peers, and those with a cookie, don't wait."""

    async def main():
        with abate.testing.VirtualClock(start=100.0) as clock:
            app = page.app(TOKEN)
            cookie = (await ask(app, data={"token": TOKEN})).headers["set-cookie"].partition(";")[0]
            wrong = [asyncio.ensure_future(ask(app, data={"token": f"wrong {n}"})) for n in range(20)]
            await clock.asleep(0.5)
            done = [each.result() for each in wrong if each.done()]
            assert sorted(each.status_code for each in done) == [401] * 5 + [429] * 10
            assert {each.headers.get("retry-after") for each in done} == {None, "5"}
            assert (await ask(app, client=OTHER, data={"token": TOKEN})).status_code == 303
            assert (await ask(app, headers={"Cookie": cookie})).status_code == 200
            assert clock.now() == 100.5
            statuses = [(await each).status_code for each in wrong]
            assert (statuses.count(401), clock.now()) == (10, 105.0)
            assert (await ask(app, data={"token": TOKEN})).status_code == 303  # when its turn comes
            assert clock.now() == 106.0

    asyncio.run(main())


def test_right_tokens_are_never_slowed_down():
    """A program that sends its bearer token with each request does not wait."""

    async def main():
        with abate.testing.VirtualClock() as clock:
            app = page.app(TOKEN)
            for _ in range(50):
                assert (await ask(app, headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 200
            assert clock.now() == 0.0

    asyncio.run(main())


PAUSES = st.sampled_from([0.0, 0.0, 0.0, 0.1, 1.0, 3.0])
PEERS = st.sampled_from(["192.0.2.1", "2001:db8::1", "2001:db8::2", "x" * 500])


@given(st.lists(st.tuples(PAUSES, PEERS), max_size=80))
def test_however_they_come_one_peer_is_judged_no_faster_than_the_rule(tried):
    """At most five, and one a second, in any stretch of time; hosts of one IPv6 network are one peer."""
    kept, now, judged = sign_in_limit.SignInLimit(), 0.0, {}
    for pause, peer in tried:
        now += pause
        wait = kept.count_try(peer, now)
        if wait is not None:
            assert 0 <= wait <= sign_in_limit.MAX_WAIT
            judged.setdefault(peer.partition("::")[0], []).append(now + wait)
    for instants in judged.values():
        for first in range(len(instants)):
            for last in range(first, len(instants)):
                allowed = sign_in_limit.FREE + (instants[last] - instants[first]) / sign_in_limit.PAUSE
                assert last - first + 1 <= allowed + 1e-6


def test_a_host_gets_no_more_tries_by_choosing_among_its_addresses():
    """Of IPv6 a host has a whole network; an IPv4 address is one peer, also where it is written as IPv6."""
    kept = sign_in_limit.SignInLimit()
    assert [kept.count_try(f"2001:db8::{n:x}", 0.0) for n in range(6)] == [0.0] * 5 + [1.0]
    assert kept.count_try("2001:db8:0:1::1", 0.0) == 0.0
    assert [kept.count_try(f"::ffff:192.0.2.{n}", 0.0) for n in range(6)] == [0.0] * 6


def test_any_number_of_peers_takes_bounded_room():
    """The one heard of longest ago is forgotten; tries that wait are bounded over all peers."""
    kept = sign_in_limit.SignInLimit()
    for n in range(3 * sign_in_limit.MAX_PEERS):
        assert kept.count_try(f"10.0.{n // 256}.{n % 256}", 0.0) == 0.0
    assert len(kept) == sign_in_limit.MAX_PEERS
    kept.waiting = sign_in_limit.MAX_WAITING
    assert [kept.count_try("192.0.2.1", 0.0) for _ in range(6)] == [0.0] * 5 + [None]


# -- the cookie


def cookie_of(app, path="/", **options):
    """The cookie that the token is answered with: its pair, and all of it."""
    answer = got(app, path, data={"token": TOKEN}, **options)
    assert answer.status_code == 303
    return answer.headers["set-cookie"].partition(";")[0], answer.headers["set-cookie"]


@pytest.mark.parametrize(
    "elsewhere", ["http://shop.example:81", "http://other.example", "https://shop.example", "http://shop.example/ops"]
)
def test_a_cookie_opens_no_other_page_of_the_same_token(elsewhere):
    """Another port, host or path is another page; a service that the browser sends the cookie to can't use it."""
    app = Starlette(routes=[Mount("/ops", page.app(TOKEN)), Mount("/", page.app(TOKEN))])
    pair, whole = cookie_of(app)
    name, _, value = pair.partition("=")
    assert TOKEN not in whole
    base, slash, rest = elsewhere.partition("/ops")
    answer = got(app, f"{slash}{rest}/", base=base, data={"token": TOKEN})
    there = answer.headers["set-cookie"].partition("=")[0]
    assert there != name  # and neither takes the other's away
    for each in (name, there):
        assert got(app, f"{slash}{rest}/", base=base, headers={"Cookie": f"{each}={value}"}).status_code == 401
    assert got(app, headers={"Cookie": pair}).status_code == 200


def test_over_tls_the_cookie_is_bound_to_its_host():
    """`__Host-` where the page is at the root, `__Secure-` below a path; a proxy that ends TLS says so by a header."""
    app = page.app(TOKEN)
    mounted = Starlette(routes=[Mount("/ops", page.app(TOKEN))])
    for pair, whole in (
        cookie_of(app, base="https://shop.example"),
        cookie_of(app, headers={"X-Forwarded-Proto": "https"}),
    ):
        assert pair.startswith("__Host-abate_page_")
        assert whole.endswith("; Path=/; HttpOnly; SameSite=Strict; Secure")
    pair, whole = cookie_of(mounted, "/ops/", base="https://shop.example")
    assert pair.startswith("__Secure-abate_page_")
    assert whole.endswith("; Path=/ops/; HttpOnly; SameSite=Strict; Secure")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/a; Domain=evil.example", "/a%3B%20Domain%3Devil.example"),
        ("/a%0d%0aX-Evil: 1", "/a%0D%0AX-Evil%3A%201"),
        ("/✓", "/%E2%9C%93"),
    ],
)
def test_a_path_adds_nothing_to_the_cookie(path, shown):
    """Where an app's route has the page below a parameter, a visitor chooses the path that the cookie is for."""
    app = Starlette(routes=[Mount("/{tenant}", page.app(TOKEN))])
    pair, whole = cookie_of(app, f"{path}/")
    assert whole.endswith(f"; Path={shown}/; HttpOnly; SameSite=Strict")
    assert got(app, f"{path}/", headers={"Cookie": pair}).status_code == 200


def test_a_cookie_runs_out_after_a_week():
    """Its end is part of what is sealed: moving it makes the cookie worthless."""

    async def main():
        with abate.testing.VirtualClock(start=1000.0) as clock:
            app = page.app(TOKEN)
            pair = (await ask(app, data={"token": TOKEN})).headers["set-cookie"].partition(";")[0]
            name, _, value = pair.partition("=")
            until, _, seal = value.partition("-")
            clock.advance(7 * 24 * 3600 - 1)
            assert (await ask(app, headers={"Cookie": pair})).status_code == 200
            clock.advance(1)
            assert (await ask(app, headers={"Cookie": pair})).status_code == 401
            moved = f"{name}={int(until) + 1000}-{seal}"
            assert (await ask(app, headers={"Cookie": moved})).status_code == 401

    asyncio.run(main())


@given(st.text(max_size=60))
def test_no_text_is_taken_for_a_cookie_or_a_token(text):
    """Whatever is sent in their places is refused, and nothing breaks."""
    app = page.app(TOKEN)
    name = cookie_of(app)[0].partition("=")[0]
    sent = text.encode("utf-8", "surrogatepass")

    async def main():
        with abate.testing.VirtualClock():
            return [
                await ask(app, headers={b"Cookie": name.encode() + b"=" + sent}),
                await ask(app, headers={b"Authorization": b"Bearer " + sent}),
                await ask(app, data={"token": f"x{text.encode('utf-8', 'replace').decode()}"}),
            ]

    assert {answer.status_code for answer in asyncio.run(main())} == {401}


@pytest.mark.parametrize("piece", ["\\", '\\"', "\\134", "a=b;", ";", "=", "NAME=1-x;"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_a_cookie_takes_time_in_proportion(piece, quote):
    """Anybody may send one, and `http.cookies` takes the square of its length."""
    app = page.app(TOKEN)
    name = cookie_of(app)[0].partition("=")[0]

    def sent(length):
        value = quote + piece.replace("NAME", name) * (length // len(piece)) + quote
        assert got(app, headers={"Cookie": f"{name}={value}"}).status_code == 401

    assert_in_proportion(sent, 4000)


def test_a_cookie_beside_a_forged_one_of_its_name_is_read():
    """Another service of the host can set one of the same name for a longer path, which browsers send first."""
    app = page.app(TOKEN)
    pair, _ = cookie_of(app)
    name = pair.partition("=")[0]
    for sent in (f"{name}=forged; {pair}", f"{pair};{name}=1-forged", f"a=b;  {pair} "):
        assert got(app, headers={"Cookie": sent}).status_code == 200


FORMS = st.one_of(
    st.binary(max_size=300), st.lists(st.sampled_from([b"token=", b"a", b"&", b"%", b";", b"%ff", b"+"])).map(b"".join)
)


@given(FORMS)
def test_no_bytes_are_taken_for_a_form_with_the_token(body):
    """What is posted is refused, and nothing breaks."""

    async def main():
        with abate.testing.VirtualClock():
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            return await ask(page.app(TOKEN), content=body, headers=headers)

    assert asyncio.run(main()).status_code in (400, 401)


# -- the commands

APP = """
import abate

@abate.controller()
def reconcile(key): ...
"""


@pytest.fixture
def app_file(tmp_path, monkeypatch):
    """The directory of an app, as the current one."""
    (tmp_path / "trusted_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ABATE_PAGE_TOKEN", raising=False)
    return tmp_path


def named(process, word):
    """The address that the log names."""
    for text in process.stderr:
        found = re.search(rf"{word} on (\S+?:\d+/)".encode(), text)
        if found:
            return found[1].decode()
    raise AssertionError(f"no {word} was named")


def test_abate_run_guards_its_page_by_the_token_of_the_environment(app_file):
    """On loopback and beyond; the log does not show it."""
    words = ["run", "trusted_app:reconcile", "--page", "0.0.0.0:0"]
    environment = {**os.environ, "ABATE_PAGE_TOKEN": TOKEN}
    with started(*words, env=environment) as process:
        address = named(process, "page").replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(address).status_code == 401
        assert httpx.post(address, data={"token": TOKEN}).status_code == 303
        process.terminate()
        assert TOKEN.encode() not in process.communicate(timeout=GUARD)[1]


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (
            ["--page", ":0"],
            {},
            "reached from other machines: set ABATE_PAGE_TOKEN to what this prints: python -c 'import",
        ),
        (["--page", "0"], {"ABATE_PAGE_TOKEN": ""}, "ABATE_PAGE_TOKEN is empty: expected a token of 16 to 1000"),
        (["--page", "0"], {"ABATE_PAGE_TOKEN": "short"}, "ABATE_PAGE_TOKEN has 5: expected a token of 16 to 1000"),
        (["--health", "::1:8081"], {}, "[::1]:8081"),
        (["--health", "[::1:8081"], {}, "[::1]:8081"),
        (["--health", "8081x"], {}, "'8081x'"),
        (["--page", "localhost:"], {}, "'localhost:'"),
    ],
)
def test_abate_run_refuses_an_open_page_and_an_address_that_is_none(app_file, words, environment, said):
    """In one line, with exit code 2."""
    done = abate_command("run", "trusted_app:reconcile", *words, env={**os.environ, **environment})
    assert (done.returncode, said in done.stderr.decode().splitlines()[-1]) == (2, True)
    assert b"serving(" not in done.stderr, "a shell has no use for Python"
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("where", [":0", "0.0.0.0:0", "[::]:0"])
def test_abate_run_serves_health_where_a_cluster_can_reach_it(app_file, where):
    """On all addresses, by IPv4 too where it is asked for all or for ``::``."""
    if where == "[::]:0" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with started("run", "trusted_app:reconcile", "--health", where) as process:
        port = port_of(named(process, "health"))
        until(lambda: httpx.get(f"http://127.0.0.1:{port}/healthz").json() == {"live": True, "ready": True})
        process.terminate()
        process.communicate(timeout=GUARD)


def test_the_help_names_the_environment_for_the_token():
    """So that it need not be on the command line, which ps shows."""
    done = subprocess.run([sys.executable, "-m", "abate", "run", "--help"], capture_output=True, text=True)
    assert "ABATE_PAGE_TOKEN" in done.stdout
