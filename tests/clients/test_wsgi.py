"""The WSGI middleware: bodies that are produced and closed late, elsewhere or not at all."""

import sys
import threading
from contextvars import copy_context

import httpx
import pytest

import abate
from abate.clients.wsgi import Middleware
from tests.clients.asgi_server import serving_wsgi

GUARD = 30.0
"""Seconds after which a test fails because something hangs."""
LOOPBACK = "127.0.0.0/8"
ENVIRON = {"HTTP_ABATE_DEADLINE": "60000", "REMOTE_ADDR": "127.0.0.1"}


def start_response(status, headers, exc_info=None):
    """Ignore the response's head."""


def in_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(GUARD)
    assert not thread.is_alive()


def in_a_copy(function):
    copy_context().run(function)


@pytest.mark.parametrize("called", [in_a_copy, in_a_thread, lambda function: function()])
@pytest.mark.parametrize("closed", [in_a_copy, in_a_thread, lambda function: function()])
def test_a_response_may_be_closed_in_another_context(called, closed):
    """As servers do that run each step in a pool of threads. Permit and deadline end, wherever it is closed."""
    told, bodies = [], []

    def app(environ, start_response):
        told.append(abate.remaining())
        start_response("200 OK", [])
        return [b"x"]

    permits = abate.ConcurrencyLimit(1)
    middleware = Middleware(app, trusted=LOOPBACK, permits=permits)
    called(lambda: bodies.append(middleware(dict(ENVIRON), start_response)))
    (body,) = bodies
    assert list(body) == [b"x"]
    assert permits.held == 1
    closed(body.close)
    assert permits.held == 0
    assert 0.0 < told[0] <= 60.0
    assert abate.remaining() is None


def gives_up():
    with pytest.raises(OSError):
        abate.Policy(on=OSError, max_attempts=2, backoff=[0.0]).call(abate.testing.Script(OSError(), OSError()))


def test_a_generator_is_bound_until_its_end():
    """It runs after the application has returned: deadline, permit and header are those of its request."""
    told, permits = [], abate.ConcurrencyLimit(1)

    def app(environ, start_response):
        if environ["PATH_INFO"] == "/down":
            gives_up()
            start_response("503 Service Unavailable", [])
        else:
            start_response("200 OK", [])
        for part in (b"a", b"b"):
            told.append((abate.remaining(), permits.held))
            yield part

    with serving_wsgi(Middleware(app, trusted=LOOPBACK, permits=permits)) as url:
        good = httpx.get(url, headers={"Abate-Deadline": "60000"}, timeout=GUARD)
        bad = httpx.get(f"{url}/down", timeout=GUARD)
    assert (good.text, bad.status_code) == ("ab", 503)
    assert "Abate-Exhausted" not in good.headers
    assert bad.headers["Abate-Exhausted"] == "1"
    assert all(0.0 < left <= 60.0 for left, _ in told[:2])
    assert [left for left, _ in told[2:]] == [None, None]
    assert {held for _, held in told} == {1}
    assert permits.held == 0


def test_a_file_is_sent_and_closed(tmp_path):
    """Also by the server's own wrapper for files."""
    path, files = tmp_path / "file", []
    path.write_bytes(b"x" * 100_000)

    def app(environ, start_response):
        start_response("200 OK", [])
        files.append(path.open("rb"))
        return environ["wsgi.file_wrapper"](files[0])

    permits = abate.ConcurrencyLimit(1)
    with serving_wsgi(Middleware(app, permits=permits)) as url:
        response = httpx.get(url, timeout=GUARD)
    assert response.content == path.read_bytes()
    assert files[0].closed
    assert permits.held == 0


class Answers:
    """An application that raises after it has begun: before, or while its body is produced."""

    def __init__(self, when):
        self.when = when

    def __call__(self, environ, start_response):
        start_response("200 OK", [])
        if self.when == "in the application":
            raise RuntimeError("after start_response")
        return self.body()

    def body(self):
        if self.when == "in the body":
            raise RuntimeError("in the body")
        yield b""


@pytest.mark.parametrize("when", ["in the application", "in the body"])
def test_an_application_that_raises_after_start_response_is_the_servers_to_answer(when, capsys):
    """Nothing was sent yet, so the server answers 500; the permit is free again, and no deadline stays."""
    permits = abate.ConcurrencyLimit(1)
    with serving_wsgi(Middleware(Answers(when), trusted=LOOPBACK, permits=permits)) as url:
        for _ in range(2):
            assert httpx.get(url, headers={"Abate-Deadline": "60000"}, timeout=GUARD).status_code == 500
    assert permits.held == 0
    assert "RuntimeError" in capsys.readouterr().err


def test_an_application_may_replace_its_answer():
    """`exc_info` reaches the server; the new answer has the header."""

    def app(environ, start_response):
        start_response("200 OK", [("X-First", "1")])
        try:
            gives_up()
            raise RuntimeError("not mapped")
        except RuntimeError:
            start_response("500 Internal Server Error", [("Content-Length", "0")], sys.exc_info())
        return []

    with serving_wsgi(Middleware(app)) as url:
        response = httpx.get(url, timeout=GUARD)
    assert (response.status_code, response.headers["Abate-Exhausted"]) == (500, "1")
    assert "X-First" not in response.headers
