"""FastAPI under uvicorn with the middleware added by `add_middleware`: chains of services, unhandled errors."""

import asyncio
from contextlib import ExitStack

import httpx
import pytest
import requests
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.testclient import TestClient

import abate
import abate.clients.requests
from abate.clients.asgi import Middleware
from abate.clients.httpx import AsyncTransport
from tests.clients.asgi_server import serving

LOOPBACK = "127.0.0.0/8"
GUARD = 30.0
"""Seconds after which a test fails because something hangs."""
CALLERS = 20
pytestmark = pytest.mark.filterwarnings("ignore::abate.LayeredRetryWarning")


def three_attempts(name):
    return abate.Policy(
        name=name, on=abate.http.transient, max_attempts=3, backoff=[0.0], budget=abate.Budget.unlimited()
    )


class Bottom:
    """The last service of a chain: answers 503 every time, and counts."""

    def __init__(self):
        self.requests = 0
        self.app = FastAPI()
        self.app.add_middleware(Middleware, trusted=LOOPBACK)
        self.app.get("/")(self.answer)

    async def answer(self):
        self.requests += 1
        raise HTTPException(503)


def service(below, answer="raises", **settings):
    """A service that calls the one below it with three attempts; `answer` says what it does when that fails."""
    app = FastAPI(**settings)
    app.add_middleware(Middleware, trusted=LOOPBACK)
    policy = three_attempts(below)

    async def call(request=None):
        async with httpx.AsyncClient(transport=AsyncTransport(policy)) as client:
            response = await client.get(below, timeout=GUARD)
        response.raise_for_status()

    def call_in_thread():
        with requests.Session() as session:
            session.mount("http://", abate.clients.requests.Adapter(policy))
            session.get(below, timeout=GUARD).raise_for_status()

    async def call_and_answer():
        try:
            await call()
        except httpx.HTTPStatusError as error:
            raise HTTPException(502, "the shop is down") from error

    app.get("/")({"raises": call, "raises in a thread": call_in_thread, "answers": call_and_answer}[answer])
    return app


@pytest.mark.parametrize(
    ("answer", "status", "settings"),
    [
        ("raises", 500, {}),
        ("raises", 500, {"debug": True}),
        ("raises in a thread", 500, {}),
        ("answers", 502, {}),
    ],
)
def test_attempts_of_a_chain_do_not_multiply(answer, status, settings):
    """Three services in a row: three requests reach the last one, not 9 or 27, also if the others raise."""
    bottom = Bottom()
    with ExitStack() as stack:
        middle = stack.enter_context(serving(bottom.app))
        top = stack.enter_context(serving(service(middle, answer, **settings)))
        first = stack.enter_context(serving(service(top, answer, **settings)))
        response = abated_get(first)
    assert bottom.requests == 3
    assert (response.status_code, response.headers["Abate-Exhausted"]) == (status, "1")


def abated_get(*urls):
    """Get all urls at once through the transport, and return the last response."""

    async def main():
        transport = AsyncTransport(three_attempts("caller"))
        async with httpx.AsyncClient(transport=transport, timeout=GUARD) as client:
            return (await asyncio.gather(*map(client.get, urls)))[-1]

    return asyncio.run(main())


def test_concurrent_callers_keep_their_own_count():
    """Of twenty at once each makes three requests at the bottom, and a call that succeeds beside them has no header."""
    bottom, calm = Bottom(), []
    with ExitStack() as stack:
        middle = stack.enter_context(serving(bottom.app))
        app = service(middle)

        @app.get("/fine")
        async def fine():
            calm.append(1)
            raise HTTPException(500)

        top = stack.enter_context(serving(app))
        response = abated_get(*[top] * CALLERS, f"{top}/fine")
    assert bottom.requests == 3 * CALLERS
    assert (len(calm), "Abate-Exhausted" in response.headers) == (3, False)


# -- errors that leave the application


def gives_up():
    with pytest.raises(OSError):
        abate.Policy(on=OSError, max_attempts=2, backoff=[0.0]).call(abate.testing.Script(OSError(), OSError()))


def failing_app(**settings):
    """An app whose handlers raise after a policy inside has given up, at different times."""
    app = FastAPI(**settings)

    @app.get("/before")
    async def before():
        gives_up()
        raise ValueError("not mapped")

    @app.get("/unrelated")
    async def unrelated():
        raise ValueError("a bug")

    @app.get("/within")
    async def within():
        async def parts():
            yield b"first"
            gives_up()
            raise ValueError("too late to answer")

        return StreamingResponse(parts())

    return app


class Recorder:
    """An ASGI app around another, like an error tracker: what is sent and what is raised."""

    def __init__(self, app):
        self.app = app
        self.sent = []
        self.raised = []

    async def __call__(self, scope, receive, send):
        async def recorded(message):
            self.sent.append(message)
            await send(message)

        try:
            await self.app(scope, receive, recorded)
        except Exception as error:
            self.raised.append(str(error))
            raise

    @property
    def starts(self):
        return [message["status"] for message in self.sent if message["type"] == "http.response.start"]


@pytest.mark.parametrize("debug", [False, True])
def test_an_unhandled_error_is_answered_once_and_raised(debug):
    """The answer is a 500 with the header; servers and error trackers still see the error."""
    app = failing_app(debug=debug)
    app.add_middleware(Middleware)
    recorder = Recorder(app)
    with serving(recorder) as url:
        response = httpx.get(f"{url}/before", timeout=GUARD)
    assert (response.status_code, response.text) == (500, "Internal Server Error")
    assert response.headers["Abate-Exhausted"] == "1"
    assert (recorder.starts, recorder.raised) == ([500], ["not mapped"])


def test_an_app_without_a_framework_is_answered_for_too():
    """Uvicorn answers 500 for an app that raises, unless the middleware has done so with the header."""

    async def app(scope, receive, send):
        gives_up()
        raise ValueError("not mapped")

    with serving(Middleware(app)) as url:
        response = httpx.get(url, timeout=GUARD)
    assert (response.status_code, response.headers["Abate-Exhausted"]) == (500, "1")


def test_an_error_without_a_give_up_is_left_to_the_framework():
    """Nothing has been retried, so callers may retry: the framework's own answer, without the header."""
    app = failing_app(debug=True)
    app.add_middleware(Middleware)
    recorder = Recorder(app)
    with serving(recorder) as url:
        response = httpx.get(f"{url}/unrelated", timeout=GUARD)
    assert "Traceback" in response.text
    assert "Abate-Exhausted" not in response.headers
    assert (recorder.starts, recorder.raised) == ([500], ["a bug"])


def test_an_error_within_a_response_sends_nothing_more():
    """The response has begun: the server breaks it off."""
    app = failing_app()
    app.add_middleware(Middleware)
    recorder = Recorder(app)
    with serving(recorder) as url, pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{url}/within", timeout=GUARD)
    assert (recorder.starts, recorder.raised) == ([200], ["too late to answer"])


def enveloped(app):
    """Add the handler of errors that many APIs have."""

    @app.exception_handler(Exception)
    async def envelope(request, error):
        return JSONResponse({"error": str(error)}, 500)


def test_a_handler_outside_of_the_middleware_is_replaced_and_said_so(caplog):
    """Its answer could not have the header. The log says once what to do about it."""
    app = failing_app()
    enveloped(app)
    app.add_middleware(Middleware)
    recorder = Recorder(app)
    with serving(recorder) as url:
        answers = [httpx.get(f"{url}/{path}", timeout=GUARD) for path in ("unrelated", "before", "before")]
    assert [answer.text for answer in answers] == ['{"error":"a bug"}', *["Internal Server Error"] * 2]
    assert ["Abate-Exhausted" in answer.headers for answer in answers] == [False, True, True]
    assert recorder.starts == [500] * 3
    assert [record.message for record in caplog.records if "app = Middleware(app)" in record.message] == [
        "the answer of this app's handler for Exception was replaced by a plain 500 with Abate-Exhausted, as the "
        "middleware is inside of the handler: wrap the whole app instead, app = Middleware(app)"
    ]


def test_around_the_whole_app_its_handler_answers():
    """With its own body, and with the header."""
    app = failing_app()
    enveloped(app)
    with serving(Middleware(app)) as url:
        response = httpx.get(f"{url}/before", timeout=GUARD)
    assert (response.status_code, response.text) == (500, '{"error":"not mapped"}')
    assert response.headers["Abate-Exhausted"] == "1"


def test_the_test_client_raises_or_answers():
    """`raise_server_exceptions` works as without the middleware."""
    app = failing_app()
    app.add_middleware(Middleware)
    with pytest.raises(ValueError, match="not mapped"):
        TestClient(app).get("/before")
    response = TestClient(app, raise_server_exceptions=False).get("/before")
    assert (response.status_code, response.headers["Abate-Exhausted"]) == (500, "1")
