"""Between services, on real sockets: deadlines travel, retries don't multiply, a full service says so."""

import asyncio
import threading
from contextlib import ExitStack

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.clients.asgi import Middleware
from abate.clients.httpx import AsyncTransport
from abate.clients.server_middleware import CallerLimits
from abate.clients.wsgi import Middleware as WsgiMiddleware
from tests.clients.asgi_server import serving, serving_wsgi

SERVICES = 5
OURS = "127.0.0.0/8"
"""Where all callers of these tests are."""
pytestmark = pytest.mark.filterwarnings("ignore::abate.LayeredRetryWarning")


def responding(handler):
    """An ASGI application from a coroutine function of the scope that returns a status."""

    async def app(scope, receive, send):
        status = await handler(scope)
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    return app


class Bottom:
    """The last service: fails every time, and remembers how much time it was given."""

    def __init__(self):
        self.left = []

    async def __call__(self, scope):
        self.left.append(abate.remaining())
        return 503


def naive(url):
    """A service that asks the next one up to three times."""

    async def handler(scope):
        async with httpx.AsyncClient(verify=False) as client:  # reading certificates takes long, and none is needed
            for _ in range(3):
                response = await client.get(url, timeout=30.0)
                if response.status_code < 500:
                    break
        return response.status_code

    return responding(handler)


def abated(url):
    """A service that asks the next one under a policy of three attempts."""
    policy = abate.Policy(
        name=url, on=abate.http.transient, max_attempts=3, backoff=[0.0], budget=abate.Budget.unlimited()
    )

    async def handler(scope):
        async with httpx.AsyncClient(transport=AsyncTransport(policy)) as client:
            return (await client.get(url, timeout=30.0)).status_code

    return Middleware(responding(handler), trusted=OURS)


def row(stack, bottom, service):
    """Five services in a row: the address of the first."""
    url = stack.enter_context(serving(bottom))
    for _ in range(SERVICES):
        url = stack.enter_context(serving(service(url)))
    return url


def test_retries_stacked_naively_multiply():
    """Five layers of three tries make 243 calls to the service below them."""
    bottom = Bottom()
    with ExitStack() as stack:
        url = row(stack, responding(bottom), naive)
        assert httpx.get(url, timeout=120.0).status_code == 503
    assert len(bottom.left) == 243


def test_with_abate_one_layer_retries():
    """The same services with abate make 3 calls, and the answer says that retrying is of no use."""
    bottom = Bottom()
    with ExitStack() as stack:
        url = row(stack, Middleware(responding(bottom), trusted=OURS), abated)
        response = httpx.get(url, timeout=60.0)
    assert response.status_code == 503
    assert response.headers["Abate-Exhausted"] == "1"
    assert len(bottom.left) == 3


def test_a_deadline_at_the_top_is_seen_at_the_bottom():
    """A minute given to the first of five services is what the last one has, less what went by."""
    bottom = Bottom()
    with ExitStack() as stack:
        url = row(stack, Middleware(responding(bottom), trusted=OURS), abated)

        async def ask():
            policy = abate.Policy(on=OSError, max_attempts=1)
            async with httpx.AsyncClient(transport=AsyncTransport(policy)) as client:
                with abate.deadline(60.0):
                    await client.get(url, timeout=60.0)

        asyncio.run(ask())
    assert bottom.left
    assert all(0.0 < left < 60.0 for left in bottom.left)


def test_without_a_deadline_there_is_none():
    """A request that brings no deadline is not given one."""
    bottom = Bottom()
    with serving(Middleware(responding(bottom), trusted=OURS)) as url:
        httpx.get(url, timeout=60.0)
    assert bottom.left == [None]


@pytest.mark.parametrize("value", ["-5", "soon", "", "1e3", "9" * 30, "99999999999999"])
def test_a_deadline_that_cannot_be_believed_is_ignored(value):
    """What comes from outside may only shorten: nonsense changes nothing."""
    bottom = Bottom()
    with serving(Middleware(responding(bottom), trusted=OURS)) as url:
        httpx.get(url, headers={"Abate-Deadline": value}, timeout=60.0)
    assert bottom.left == [None]


def test_a_request_that_comes_too_late_is_not_worked_on():
    """A deadline of zero is answered with 504, and the application is not asked."""
    bottom = Bottom()
    with serving(Middleware(responding(bottom), trusted=OURS)) as url:
        assert httpx.get(url, headers={"Abate-Deadline": "0"}, timeout=60.0).status_code == 504
    with serving_wsgi(WsgiMiddleware(lambda environ, start_response: pytest.fail("asked"), trusted=OURS)) as url:
        assert httpx.get(url, headers={"Abate-Deadline": "0"}, timeout=60.0).status_code == 504
    assert bottom.left == []


def test_work_past_its_deadline_is_cut_off_if_it_may_be():
    """With `cancel`, an application that takes longer than its caller waits is cancelled, and answered for with 504."""
    cancelled = threading.Event()

    async def slow(scope):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with serving(Middleware(responding(slow), trusted=OURS, cancel=True)) as url:
        assert httpx.get(url, headers={"Abate-Deadline": "50"}, timeout=30.0).status_code == 504
        assert cancelled.wait(10)


def test_a_full_service_says_when_to_come_back():
    """With all permits held, the answer is 503 with Retry-After; afterwards it is served again."""
    entered, leave = threading.Event(), threading.Event()

    async def busy(scope):
        entered.set()
        while not leave.is_set():
            await asyncio.sleep(0.005)
        return 200

    app = Middleware(responding(busy), permits=abate.ConcurrencyLimit(1), retry_after=7.0)
    with serving(app) as url:
        first = threading.Thread(target=httpx.get, args=(url,), kwargs={"timeout": 30.0})
        first.start()
        assert entered.wait(10)
        refused = httpx.get(url, timeout=60.0)
        leave.set()
        first.join()
        assert httpx.get(url, timeout=60.0).status_code == 200
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "7")


def test_the_attempts_number_reaches_the_application():
    """`Abate-Attempt` is in the scope, and 1 where there is none or it cannot be read."""
    seen = []

    async def note(scope):
        seen.append(scope["abate.attempt"])
        return 200

    with serving(Middleware(responding(note), trusted=OURS)) as url:
        for headers in ({"Abate-Attempt": "3"}, {}, {"Abate-Attempt": "many"}):
            httpx.get(url, headers=headers, timeout=60.0)
    assert seen == [3, 1, 1]


def test_other_scopes_pass():
    """Lifespan and websockets are the application's own."""
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    asyncio.run(Middleware(app)({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


def gives_up():
    """A call that a policy gives up on."""

    def down():
        raise OSError

    with pytest.raises(OSError):
        abate.Policy(on=OSError, max_attempts=2, backoff=[0.0]).call(down)


def test_a_policy_that_never_retried_tells_callers_nothing():
    """Their retry would be the first: the answer does not say that retrying is of no use."""

    async def handler(scope):
        with pytest.raises(OSError):
            await abate.Policy(on=OSError, max_attempts=1).acall(abate.testing.Script(OSError()).acall)
        return 503

    with serving(Middleware(responding(handler))) as url:
        response = httpx.get(url, timeout=60.0)
    assert (response.status_code, "Abate-Exhausted" in response.headers) == (503, False)


def test_the_error_of_an_application_is_raised_though_its_client_is_gone():
    """The answer in its place can't be sent then."""

    async def app(scope, receive, send):
        gives_up()
        raise RuntimeError("not mapped")

    async def send(message):
        raise OSError("gone")

    with pytest.raises(RuntimeError, match="not mapped"):
        asyncio.run(Middleware(app)({"type": "http", "headers": []}, None, send))


def test_a_wsgi_service_does_the_same():
    """Deadline, attempt, permits and the word that retrying is of no use."""
    seen = []

    def app(environ, start_response):
        seen.append((environ["abate.attempt"], abate.remaining()))
        if environ["PATH_INFO"] == "/down":
            gives_up()
            start_response("503 Service Unavailable", [("Content-Length", "0")])
            return []
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    permits = abate.ConcurrencyLimit(1)
    with serving_wsgi(WsgiMiddleware(app, trusted=OURS, permits=permits, retry_after=3)) as url:
        good = httpx.get(url, headers={"Abate-Attempt": "2", "Abate-Deadline": "5000"}, timeout=60.0)
        bad = httpx.get(url + "/down", timeout=60.0)
        while permits.held:  # the client has its answer before the server has done with it
            threading.Event().wait(0.005)
        with permits:
            full = httpx.get(url, timeout=60.0)
    assert (good.text, bad.status_code) == ("ok", 503)
    assert "Abate-Exhausted" not in good.headers
    assert bad.headers["Abate-Exhausted"] == "1"
    assert (full.status_code, full.headers["Retry-After"]) == (503, "3")
    assert seen[0][0] == 2
    assert 0.0 < seen[0][1] <= 5.0
    assert seen[1] == (1, None)
    assert permits.held == 0


def test_a_wsgi_body_holds_its_permit_until_it_is_closed():
    """A streaming response is in flight until the server has done with it, and its own close is called."""
    closed = []

    class Body:
        def __iter__(self):
            return iter([b"a", b"b"])

        def close(self):
            closed.append(True)

    permits = abate.ConcurrencyLimit(1)
    body = WsgiMiddleware(lambda environ, start_response: Body(), permits=permits)({}, lambda *args: None)
    assert list(body) == [b"a", b"b"]
    assert permits.held == 1
    body.close()
    assert (permits.held, closed) == (0, [True])


def test_a_wsgi_application_that_raises_gives_its_permit_back():
    """The error is the server's to answer."""
    permits = abate.ConcurrencyLimit(1)

    def app(environ, start_response):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        WsgiMiddleware(app, permits=permits)({}, lambda *args: None)
    assert permits.held == 0


@given(attempt=st.text(), deadline=st.text())
def test_any_headers_can_be_read(attempt, deadline):
    """Whatever a peer sends, the attempt is a number from 1 and the time left is none or not negative."""
    asked = CallerLimits(attempt, deadline)
    assert asked.attempt >= 1
    assert asked.left is None or 0.0 <= asked.left <= 10.0**6


@pytest.mark.parametrize("middleware", [Middleware, WsgiMiddleware])
def test_bad_arguments_are_refused(middleware):
    """At construction, by name."""
    with pytest.raises(TypeError, match="app must be"):
        middleware(None)
    with pytest.raises(TypeError, match="permits must be ConcurrencyLimit, not 5"):
        middleware(print, permits=5)
    with pytest.raises(ValueError, match="retry_after must be a number at least 0"):
        middleware(print, retry_after=-1)
