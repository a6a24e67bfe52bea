"""What a caller's headers may do to a service, on real sockets: nothing, unless the service trusts the caller."""

import asyncio
import ipaddress
import logging
import threading
from contextlib import contextmanager

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

import abate
from abate import proxy_headers
from abate.clients import asgi, wsgi
from abate.clients.asgi import Middleware
from abate.clients.trust import Caller, Secret, Trust
from abate.clients.wsgi import Middleware as WsgiMiddleware
from tests.trust.servers import ask, hypercorn_serving, listen, uvicorn_serving, wsgi_serving

SECRET = Secret("only-our-services-know-this")
OTHER = Secret("a-secret-of-somebody-else")
LOOPBACK = "127.0.0.0/8"
ELSEWHERE = "10.0.0.0/8"
GIVEN = (("Abate-Deadline", "5000"), ("Abate-Attempt", "3"))
TOLD = (3, True)
"""What the application sees of a caller that is believed: its attempt, and that there is a deadline."""
NOT_TOLD = (1, False)


class Shop:
    """An application for either interface that remembers what it was told."""

    def __init__(self):
        self.told = []
        self.seen = []

    def _note(self, attempt, names):
        left = abate.remaining()
        self.told.append((attempt, left is not None and 0.0 < left <= 5.0))
        self.seen.append({name for name in names if name.startswith("abate-")})

    async def asgi(self, scope, receive, send):
        self._note(scope["abate.attempt"], [name.decode("latin-1").lower() for name, _ in scope["headers"]])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    def wsgi(self, environ, start_response):
        names = [key[5:].replace("_", "-").lower() for key in environ if key.startswith("HTTP_")]
        self._note(environ["abate.attempt"], names)
        start_response("200 OK", [("Content-Length", "0")])
        return []


class Server:
    """One kind of server with the middleware that fits."""

    def __init__(self, serve, interface):
        self.serve, self.interface = serve, interface

    @contextmanager
    def serving(self, shop, path=None, **settings):
        """Serve the shop; the value is the address to connect to."""
        wrapped = (
            Middleware(shop.asgi, **settings) if self.interface == "asgi" else WsgiMiddleware(shop.wsgi, **settings)
        )
        with listen(path) as listening:
            address = listening.getsockname()
            with self.serve(wrapped, listening):
                yield address


SERVERS = pytest.mark.parametrize(
    "server",
    [Server(uvicorn_serving, "asgi"), Server(hypercorn_serving, "asgi"), Server(wsgi_serving, "wsgi")],
    ids=["uvicorn", "hypercorn", "wsgi"],
)


# -- who is believed


@SERVERS
def test_no_caller_is_trusted_by_default(server):
    """A deadline and an attempt from anywhere change nothing, and the application does not see them."""
    shop = Shop()
    with server.serving(shop) as address:
        assert ask(address, *GIVEN).status == 200
        assert ask(address, ("Abate-Deadline", "0")).status == 200
    assert shop.told == [NOT_TOLD, NOT_TOLD]
    assert shop.seen == [set(), set()]


@SERVERS
@pytest.mark.parametrize(
    ("trusted", "told"),
    [
        (LOOPBACK, TOLD),
        ("127.0.0.1", TOLD),
        (ipaddress.ip_network(LOOPBACK), TOLD),
        (ipaddress.ip_address("127.0.0.1"), TOLD),
        (["10.0.0.0/8", "::1", LOOPBACK], TOLD),
        (ELSEWHERE, NOT_TOLD),
        ("unix", NOT_TOLD),
    ],
    ids=str,
)
def test_a_network_is_that_of_the_connection(server, trusted, told):
    """A caller is believed if the peer of its connection is in one of the networks."""
    shop = Shop()
    with server.serving(shop, trusted=trusted) as address:
        assert ask(address, *GIVEN).status == 200
    assert shop.told == [told]


@SERVERS
@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Proto"])
@pytest.mark.parametrize("value", ["10.1.2.3", "10.1.2.3:4711", "127.0.0.1", "for=10.1.2.3"])
def test_an_address_from_a_header_is_not_believed(server, header, value):
    """Neither the address that a header names, which servers take for the peer's, nor the proxy's own."""
    shop = Shop()
    with server.serving(shop, trusted=[ELSEWHERE, LOOPBACK]) as address:
        assert ask(address, *GIVEN, (header, value)).status == 200
    assert shop.told == [NOT_TOLD]


@pytest.mark.parametrize("header", ["x-envoy-external-address", *sorted(proxy_headers.HEADERS)])
def test_every_header_of_a_proxy_hides_the_peer(header):
    """In all interfaces, whatever the header holds."""
    scope = {"type": "http", "headers": [], "client": ("127.0.0.1", 4711), "server": ("127.0.0.1", 80)}
    environ = {"REMOTE_ADDR": "127.0.0.1"}
    assert asgi._peer(scope, {"host"}) == wsgi._peer(environ) == "127.0.0.1"
    assert asgi._peer(scope, {"host", header}) is None
    assert wsgi._peer({**environ, "HTTP_" + header.upper().replace("-", "_"): ""}) is None


@SERVERS
def test_a_unix_socket_is_a_network_of_its_own(server, tmp_path):
    """Its peer has no address: it is believed by "unix" alone."""
    shop = Shop()
    for number, trusted in enumerate((["unix"], [LOOPBACK, "0.0.0.0/0", "::/0"])):
        with server.serving(shop, tmp_path / str(number), trusted=trusted) as address:
            assert ask(address, *GIVEN).status == 200
    assert shop.told == [TOLD, NOT_TOLD]


@SERVERS
def test_a_secret_is_believed_and_not_handed_on(server):
    """A caller that sends the secret, or during a change the older one, is believed; the application never sees it."""
    shop = Shop()
    with server.serving(shop, trusted=[SECRET, OTHER]) as address:
        for sent in (
            SECRET.text,
            OTHER.text,
            SECRET.text[:-1],
            SECRET.text + "x",
            "",
            "é",
            "\ud800".encode("utf-8", "surrogatepass"),
        ):
            assert ask(address, *GIVEN, ("Abate-Secret", sent)).status == 200
        assert ask(address, *GIVEN, ("Abate-Secret", SECRET.text), ("Abate-Secret", SECRET.text)).status == 200
        assert ask(address, ("Abate-Secret", SECRET.text)).status == 200
    assert shop.told == [TOLD, TOLD, *[NOT_TOLD] * 7]
    assert all("abate-secret" not in seen for seen in shop.seen)
    assert shop.seen[0] == {"abate-deadline", "abate-attempt"}


@pytest.mark.parametrize(("sent", "seen"), [(SECRET.text, {"abate-deadline"}), (OTHER.text, set())])
def test_a_websocket_is_not_handed_a_secret(sent, seen):
    """The application sees as little of a WebSocket's headers as of a request's."""
    found = []

    async def app(scope, receive, send):
        found.append({name.decode() for name, _ in scope["headers"]})

    headers = [(b"Host", b"shop"), (b"abate-secret", sent.encode()), (b"abate-deadline", b"5000")]
    scope = {"type": "websocket", "headers": headers, "client": ("10.1.2.3", 4711)}
    asyncio.run(Middleware(app, trusted=SECRET)(scope, None, None))
    assert found == [{"Host", *seen}]


@SERVERS
def test_a_function_is_asked_about_the_request(server):
    """It sees the scope or the environ; what is true means yes."""
    shop = Shop()

    def ours(request):
        return request["path" if "path" in request else "PATH_INFO"].startswith("/internal/")

    with server.serving(shop, trusted=ours) as address:
        ask(address, *GIVEN, path="/internal/orders")
        ask(address, *GIVEN, path="/orders")
    assert shop.told == [TOLD, NOT_TOLD]


def test_a_function_that_fails_has_not_said_yes(caplog):
    """An error or a coroutine is logged, the caller is not believed, and the request is served."""

    async def later(scope):
        return True

    for function in (lambda scope: scope["nothing"], lambda scope: later(scope)):
        with caplog.at_level(logging.ERROR):
            assert not Trust(function).believes(Caller({}, None, None))
        assert "the caller is not trusted" in caplog.records[-1].message


def test_callers_do_not_fill_the_log_by_a_function_that_fails(caplog, monkeypatch):
    """It is logged once a minute, with the number of failures in between."""
    now = [100.0]
    monkeypatch.setattr("abate.clients.trust.monotonic", lambda: now[0])
    trust = Trust(lambda scope: scope["nothing"])
    for _ in range(1000):
        assert not trust.believes(Caller({}, None, None))
    now[0] += 60.0
    trust.believes(Caller({}, None, None))
    assert [record.args[1] for record in caplog.records] == [0, 999]


@pytest.mark.parametrize(
    ("peer", "trusted", "believed"),
    [
        ("::ffff:10.1.2.3", "10.0.0.0/8", True),
        ("::ffff:10.1.2.3", "::/0", True),
        ("fe80::1%eth0", "fe80::/10", True),
        ("10.1.2.3", "::/0", False),
        ("testclient", "0.0.0.0/0", False),
        ("", "0.0.0.0/0", False),
        (None, "0.0.0.0/0", False),
        ("unix", "0.0.0.0/0", False),
        ("unix", "unix", True),
    ],
)
def test_peers_of_all_kinds(peer, trusted, believed):
    """IPv4 in IPv6, addresses with a zone, and what is no address."""
    assert Trust(trusted).believes(Caller(None, peer, None)) is believed


def test_an_asgi_peer_that_is_not_known_is_not_trusted():
    """A server that does not say where a request came from says nothing; a port of zero is a header's."""
    shop = Shop()
    for client, server in ((None, ("127.0.0.1", 80)), (("127.0.0.1", 0), None)):
        headers = [(name.lower().encode(), value.encode()) for name, value in GIVEN]
        scope = {"type": "http", "headers": headers, "client": client, "server": server}

        async def send(message):
            pass

        asyncio.run(Middleware(shop.asgi, trusted=["unix", LOOPBACK])(scope, None, send))
    assert shop.told == [NOT_TOLD, NOT_TOLD]


async def coroutine(scope):
    """Always true, since it is never awaited."""


@pytest.mark.parametrize("middleware", [Middleware, WsgiMiddleware])
@pytest.mark.parametrize(
    ("trusted", "error", "text"),
    [
        (True, TypeError, "not True"),
        (5, TypeError, "not 5"),
        (b"10.0.0.0/8", TypeError, "not a bytes"),
        ({"10.0.0.0/8": True}, TypeError, "not a dict"),
        ([None], TypeError, "not None"),
        (str, TypeError, "not <class 'str'>"),
        ([], ValueError, "must not be empty"),
        ("10.0.0.1/8", ValueError, "'10.0.0.1/8': 10.0.0.1/8 has host bits set"),
        ("10.0.0.0/40", ValueError, "'10.0.0.0/40'"),
        ("10.0.0", ValueError, "'10.0.0'"),
        (coroutine, TypeError, "a plain function"),
    ],
)
def test_what_cannot_be_meant_is_refused(middleware, trusted, error, text):
    """At construction, with the value and what was expected."""
    with pytest.raises(error) as refused:
        middleware(print, trusted=trusted)
    assert text in str(refused.value)
    assert str(refused.value).startswith("trusted must ")


def test_other_settings_are_checked_too():
    """A floor is a number of seconds, `cancel` is yes or no; a thread can't be cancelled."""
    for middleware in (Middleware, WsgiMiddleware):
        with pytest.raises(ValueError, match="min_deadline must be a number at least 0, not -1"):
            middleware(print, min_deadline=-1)
    with pytest.raises(TypeError, match="cancel must be True or False, not 1"):
        Middleware(print, cancel=1)
    with pytest.raises(TypeError, match="cancel"):
        WsgiMiddleware(print, cancel=True)


@pytest.mark.parametrize("given", ["deadbeefdeadbeefdeadbeef", "only-our-services-know-this", "example.com"])
def test_a_secret_in_the_wrong_place_is_not_shown(given):
    """A secret that is given as a plain text, where a network is expected, does not end up in the error."""
    with pytest.raises(ValueError, match=r"write Secret\(…\)") as refused:
        Trust(given)
    assert given not in str(refused.value)


@pytest.mark.parametrize("given", [b"only-our-services-know-this", {"secret": "only-our-services-know-this"}])
def test_a_secret_of_the_wrong_type_is_not_shown(given):
    """Alone or in a list, the error names its type."""
    for trusted in (given, [given]):
        with pytest.raises(TypeError, match=f"not a {type(given).__name__}") as refused:
            Trust(trusted)
        assert "services" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["short", b"only-our-services-know-this", "a secret with spaces", "línea-de-secreto-x", 5]
)
def test_a_secret_is_long_and_can_be_sent(text):
    """Sixteen visible ASCII characters at least; the value is not in the error."""
    with pytest.raises((TypeError, ValueError), match="a Secret must") as refused:
        Secret(text)
    assert repr(text) not in str(refused.value)
    assert SECRET.text not in repr(SECRET)


# -- what a deadline may do


class Bank:
    """A handler that debits, waits, and credits: cancelled in between, the money is gone."""

    def __init__(self, seconds=0.3):
        self.seconds = seconds
        self.accounts = {"a": 100, "b": 0}
        self.left = []

    async def transfer(self, request):
        self.left.append(abate.remaining())
        self.accounts["a"] -= 10
        await asyncio.sleep(self.seconds)
        self.accounts["b"] += 10
        return PlainTextResponse("done")


ASGI_SERVERS = pytest.mark.parametrize("serve", [uvicorn_serving, hypercorn_serving], ids=["uvicorn", "hypercorn"])


@contextmanager
def bank_serving(serve, routes, **settings):
    with listen() as listening:
        address = listening.getsockname()
        with serve(Middleware(Starlette(routes=routes), **settings), listening):
            yield address


@ASGI_SERVERS
@pytest.mark.parametrize("settings", [{}, {"cancel": True}, {"trusted": LOOPBACK}], ids=str)
def test_a_deadline_does_not_cut_a_handler_in_two(serve, settings):
    """Neither a stranger's, whatever the settings, nor by default that of a trusted caller, which is only told."""
    bank = Bank()
    routes = [Route("/", bank.transfer, methods=["POST"])]
    with bank_serving(serve, routes, **settings) as address:
        assert ask(address, ("Abate-Deadline", "30"), ("Content-Length", "0"), method="POST").status == 200
    assert bank.accounts == {"a": 90, "b": 10}
    assert (bank.left[0] is not None) is ("trusted" in settings)


@ASGI_SERVERS
def test_a_floor_keeps_a_trusted_caller_from_ending_a_handler_at_once(serve):
    """A handler has `min_deadline`, and is cut off after that only."""
    bank = Bank()
    routes = [Route("/", bank.transfer)]
    with bank_serving(serve, routes, trusted=LOOPBACK, cancel=True, min_deadline=20.0) as address:
        assert ask(address, ("Abate-Deadline", "1")).status == 200
    with bank_serving(serve, routes, trusted=LOOPBACK, cancel=True, min_deadline=0.0) as address:
        assert ask(address, ("Abate-Deadline", "20")).status == 504
    assert bank.accounts == {"a": 80, "b": 10}
    assert 19.0 < bank.left[0] <= 20.0
    assert bank.left[1] <= 0.02


@SERVERS
def test_the_floor_is_what_the_handler_is_told(server):
    """A handler has a tenth of a second by default, and more if the caller gives more."""
    left = []

    class Telling(Shop):
        def _note(self, attempt, names):
            left.append(abate.remaining())

    with server.serving(Telling(), trusted=LOOPBACK) as address:
        ask(address, ("Abate-Deadline", "1"))
    with server.serving(Telling(), trusted=LOOPBACK, min_deadline=60.0) as address:
        ask(address, ("Abate-Deadline", "1"))
        ask(address, ("Abate-Deadline", "120000"))
    assert 0.0 <= left[0] <= 0.1
    assert 50.0 < left[1] <= 60.0 < left[2] <= 120.0


@ASGI_SERVERS
def test_a_response_that_has_begun_is_not_cut_off(serve):
    """A stream goes on past the deadline, which it is told, and so does what is done after a response, which is not."""
    told, done = [], threading.Event()

    async def stream(request):
        async def parts():
            yield b"x"
            while abate.remaining():
                await asyncio.sleep(0.01)
            told.append(abate.remaining())
            await asyncio.sleep(0.05)
            yield b"y"

        return StreamingResponse(parts())

    async def accept(request):
        async def mail():
            told.append(abate.remaining())
            await asyncio.sleep(0.6)
            done.set()

        return PlainTextResponse("accepted", 202, background=BackgroundTask(mail))

    routes = [Route("/stream", stream), Route("/accept", accept)]
    with bank_serving(serve, routes, trusted=LOOPBACK, cancel=True) as address:
        streamed = ask(address, ("Abate-Deadline", "500"), path="/stream")
        accepted = ask(address, ("Abate-Deadline", "500"), path="/accept")
        assert done.wait(30)
    assert (streamed.status, accepted.status) == (200, 202)
    assert b"y" in streamed.body
    assert told == [0.0, None]


@ASGI_SERVERS
def test_the_middleware_works_inside_other_middleware(serve):
    """Added with `add_middleware`, around one that runs the application in a task of its own."""
    bank = Bank(60.0)

    async def passing(request, call_next):
        return await call_next(request)

    app = Starlette(routes=[Route("/", bank.transfer)])
    app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
    app.add_middleware(Middleware, trusted=LOOPBACK, cancel=True, min_deadline=0.0)
    with listen() as listening:
        address = listening.getsockname()
        with serve(app, listening):
            assert ask(address, ("Abate-Deadline", "50")).status == 504
    assert bank.accounts == {"a": 90, "b": 0}
