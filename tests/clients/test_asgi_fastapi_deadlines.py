"""FastAPI under uvicorn: what is bound by the deadline of a trusted caller, and what is never cancelled."""

import asyncio
import socket
import threading
import time

import httpx
import pytest
import wsproto
from fastapi import BackgroundTasks, Depends, FastAPI, WebSocket
from fastapi.responses import StreamingResponse
from wsproto.events import AcceptConnection, Request, TextMessage

import abate
from abate.clients.asgi import Middleware
from tests.clients.asgi_server import serving

LOOPBACK = "127.0.0.0/8"
GUARD = 30.0
"""Seconds after which a test fails because something hangs."""


def telling_app(told):
    """An app that notes what is left of its caller's time, wherever its code may run."""
    app = FastAPI()

    def note(where):
        told[where] = abate.remaining()

    @app.get("/async")
    async def async_endpoint():
        note("async")

    @app.get("/sync")
    def sync_endpoint():
        note("sync")
        told["thread"] = threading.current_thread().name

    def dependency():
        note("dependency")
        yield
        note("after the dependency")

    @app.get("/depends", dependencies=[Depends(dependency)])
    async def depends():
        pass

    @app.get("/stream")
    def stream():
        def parts():
            note("stream begins")
            yield b"a"
            note("stream ends")
            yield b"b"

        return StreamingResponse(parts())

    @app.get("/background")
    async def background(tasks: BackgroundTasks):
        tasks.add_task(note, "background")

    @app.websocket("/socket")
    async def echo(websocket: WebSocket):
        await websocket.accept()
        note("websocket")
        told["headers"] = [name for name in websocket.headers if name.startswith("abate")]
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    return app


@pytest.mark.parametrize(
    ("path", "bound", "free"),
    [
        ("async", ["async"], []),
        ("sync", ["sync"], []),
        ("depends", ["dependency"], []),
        ("stream", ["stream begins", "stream ends"], []),
        ("background", [], ["background"]),
    ],
)
@pytest.mark.parametrize("cancel", [False, True])
def test_handlers_are_told_the_deadline_of_a_trusted_caller(path, bound, free, cancel):
    """In the event loop and in FastAPI's threads, until the response is complete."""
    told = {}
    app = telling_app(told)
    app.add_middleware(Middleware, trusted=LOOPBACK, cancel=cancel)
    with serving(app) as url:
        assert httpx.get(f"{url}/{path}", headers={"Abate-Deadline": "60000"}, timeout=GUARD).status_code == 200
        wait_until(lambda: told.keys() >= {*bound, *free})
    assert all(0.0 < told[where] <= 60.0 for where in bound)
    assert [told[where] for where in free] == [None] * len(free)
    assert told.get("thread", "") != "MainThread"


def test_nothing_is_believed_of_a_stranger():
    """Without `trusted` there is no deadline."""
    told = {}
    app = telling_app(told)
    app.add_middleware(Middleware)
    with serving(app) as url:
        httpx.get(f"{url}/sync", headers={"Abate-Deadline": "60000"}, timeout=GUARD)
    assert told["sync"] is None


def test_background_tasks_are_not_cancelled():
    """The deadline passes while a task runs that FastAPI has begun after the response, with `cancel` as well."""
    passed, done = threading.Event(), threading.Event()
    app = FastAPI()
    app.add_middleware(Middleware, trusted=LOOPBACK, cancel=True)

    @app.post("/mails", status_code=202)
    async def accept(tasks: BackgroundTasks):
        tasks.add_task(send_mail)

    async def send_mail():
        while not passed.is_set():
            await asyncio.sleep(0.01)
        done.set()

    with serving(app) as url:
        begun = time.monotonic()
        response = httpx.post(f"{url}/mails", headers={"Abate-Deadline": "200"}, timeout=GUARD)
        wait_until(lambda: time.monotonic() - begun > 0.3)
        assert not done.is_set()
        passed.set()
        assert done.wait(GUARD)
    assert response.status_code == 202


def test_websockets_pass():
    """Without a deadline; texts arrive in both directions."""
    told = {}
    app = telling_app(told)
    app.add_middleware(Middleware, trusted=LOOPBACK, permits=abate.ConcurrencyLimit(1))
    with serving(app) as url:
        assert echoed(url, "/socket", "hello", [(b"Abate-Deadline", b"5000"), (b"Abate-Secret", b"x" * 20)]) == "hello"
    assert told == {"websocket": None, "headers": ["abate-deadline"]}


def echoed(url, path, text, headers):
    """Send a text through a WebSocket, and return the first text that comes back."""
    host, _, port = url.removeprefix("http://").partition(":")
    client = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
    with socket.create_connection((host, int(port)), GUARD) as connection:
        connection.sendall(client.send(Request(host=host, target=path, extra_headers=headers)))
        while received := connection.recv(65536):
            client.receive_data(received)
            for event in client.events():
                if isinstance(event, AcceptConnection):
                    connection.sendall(client.send(TextMessage(text)))
                if isinstance(event, TextMessage):
                    return event.data
    return None


def wait_until(condition):
    """Wait for a condition that another thread brings about."""
    until = time.monotonic() + GUARD
    while not condition():
        assert time.monotonic() < until
        threading.Event().wait(0.005)
