"""Servers end although a browser has the live page open, with their default settings."""

import asyncio
import os
import socket
import threading
import time
from contextlib import contextmanager

import httpx
import hypercorn.asyncio
import hypercorn.config
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

import abate
from abate.observe import page
from abate.observe.page import shutdown_detection
from abate.observe.page.shutdown_detection import ServerSockets
from abate.observe.page.stream import MAX_UNWATCHED
from tests.observe.page.test_server import Visitor

ENDS = 10.0
"""Seconds within which a server must end: less than a stream lasts that can't notice the end."""
assert ENDS < MAX_UNWATCHED
TOKEN = "a-token-for-this-page"


class Uvicorn:
    """Uvicorn in a thread, waiting for open responses for as long as it takes."""

    def __init__(self, app, listening):
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]}, daemon=True)
        self.thread.start()

    def stop(self):
        self.server.should_exit = True


class Hypercorn:
    """Hypercorn in a thread, waiting a minute for open responses."""

    def __init__(self, app, listening):
        config = hypercorn.config.Config()
        config.bind = [f"fd://{listening.detach()}"]
        config.graceful_timeout = 60.0
        config.errorlog = None
        self.started = threading.Event()
        self.thread = threading.Thread(target=asyncio.run, args=(self.serve(app, config),), daemon=True)
        self.thread.start()

    async def serve(self, app, config):
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        self.started.set()
        await hypercorn.asyncio.serve(app, config, shutdown_trigger=self.over.wait)

    def stop(self):
        assert self.started.wait(ENDS)
        self.loop.call_soon_threadsafe(self.over.set)


@contextmanager
def listening_socket(kind, directory):
    """A socket that listens, and the transport and address of a client for it."""
    if kind == "unix":
        path = str(directory / "page.sock")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen()
        yield listening, httpx.HTTPTransport(uds=path), "http://localhost"
        return
    family, host = (socket.AF_INET6, "::1") if kind == "IPv6" else (socket.AF_INET, "127.0.0.1")
    listening = socket.create_server((host, 0), family=family)
    shown = f"[{host}]" if kind == "IPv6" else host
    yield listening, httpx.HTTPTransport(), f"http://{shown}:{listening.getsockname()[1]}"


@pytest.mark.parametrize("mount", ["", "/abate"])
@pytest.mark.parametrize("server", [Uvicorn, Hypercorn])
@pytest.mark.parametrize("kind", ["IPv4", "IPv6"])
def test_an_open_page_does_not_keep_a_server_from_ending(server, mount, kind, tmp_path):
    """Its stream is complete, and the server ends while the client stays connected."""
    ends(server, mount, kind, tmp_path)


def test_the_end_is_noticed_at_a_unix_socket(tmp_path):
    """As behind a proxy."""
    ends(Uvicorn, "", "unix", tmp_path)


def ends(server, mount, kind, directory):
    app = page.app(TOKEN)
    whole = Starlette(routes=[Mount(mount, app)]) if mount else app
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with listening_socket(kind, directory) as (listening, transport, address):
        running = server(whole, listening)
        with (
            httpx.Client(transport=transport, headers=headers, timeout=30.0) as client,
            client.stream("GET", f"{address}{mount}/events") as response,
        ):
            assert response.status_code == 200
            lines = response.iter_lines()
            while not next(lines).startswith('data: {"at"'):
                pass
            running.stop()
            end = time.monotonic() + ENDS
            for _ in lines:  # raises if the stream is broken off
                assert time.monotonic() < end
            running.thread.join(ENDS)
            assert not running.thread.is_alive()
    assert app.state.stream.visitors == 0


def test_a_server_beside_it_does_not_end_its_streams():
    """Only the sockets on the port of the request count."""

    async def main():
        with abate.testing.VirtualClock() as clock, socket.create_server(("127.0.0.1", 0)) as own:
            with socket.create_server(("127.0.0.1", 0)):
                app = page.app(local_only=True)
                visitor = visiting(app, own)
                await clock.asleep(2.0)
            await clock.asleep(100.5)
            assert visitor.frames()[-1] == 102.0
            own.close()
            await clock.asleep(1.0)
            assert visitor.task.done()
            assert visitor.ended
            assert b"renew" not in b"".join(visitor.body)

    asyncio.run(main())


def visiting(app, listening):
    visitor = Visitor(app)
    visitor.scope["server"] = listening.getsockname()
    return visitor.connect()


def test_a_page_whose_server_ended_is_served_by_the_next():
    """The app is the same, as in tests and in servers that reload."""

    async def main():
        with abate.testing.VirtualClock() as clock:
            app = page.app(local_only=True)
            for _ in range(2):
                with socket.create_server(("127.0.0.1", 0)) as listening:
                    visitor = visiting(app, listening)
                    await clock.asleep(50.0)
                    assert not visitor.task.done()
                await clock.asleep(1.0)
                assert visitor.task.done()

    asyncio.run(main())


@pytest.mark.parametrize("server", [None, ("127.0.0.1", 1), ("/tmp/no.sock", None)])
def test_a_stream_whose_server_is_not_found_ends_in_time(server):
    """It tells the page to come back at once."""

    async def main():
        with abate.testing.VirtualClock() as clock:
            app = page.app(local_only=True)
            visitor = Visitor(app)
            visitor.scope["server"] = server
            visitor.connect()
            await clock.asleep(MAX_UNWATCHED - 1.0)
            assert not visitor.ended
            await clock.asleep(2.0)
            assert visitor.ended
            assert visitor.body[-1] == b"retry: 100\nevent: renew\ndata:\n\n"
            app.state.stream.close()

    asyncio.run(main())


def test_a_duplicate_that_stays_open_does_not_hide_the_end():
    """Servers that are given a file descriptor duplicate it."""
    with socket.create_server(("127.0.0.1", 0)) as given:
        duplicate = given.dup()
        sockets = ServerSockets(given.getsockname())
        assert sockets.found()
        assert not sockets.any_closed()
        duplicate.close()
        assert sockets.any_closed()


def test_a_descriptor_that_is_taken_again_is_noticed():
    """By anything that does not listen there."""
    listening = socket.create_server(("127.0.0.1", 0))
    number, sockets = listening.fileno(), ServerSockets(listening.getsockname())
    with socket.create_server(("127.0.0.1", 0)) as other:
        listening.close()
        os.dup2(other.fileno(), number)
        assert sockets.any_closed()
        os.close(number)


def test_connections_and_files_are_not_taken_for_the_server(tmp_path):
    """A connection has the server's port, too."""
    with socket.create_server(("127.0.0.1", 0)) as listening, (tmp_path / "file").open("w"):
        name = listening.getsockname()
        with socket.create_connection(name), listening.accept()[0]:
            sockets = ServerSockets(name)
        assert sockets.found()
        assert not sockets.any_closed()


def test_where_the_system_lists_no_descriptors_nothing_is_found(monkeypatch):
    """As on Windows."""
    monkeypatch.setattr(shutdown_detection, "DESCRIPTORS", "/nonexistent")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sockets = ServerSockets(listening.getsockname())
    assert (sockets.found(), sockets.any_closed()) == (False, False)
