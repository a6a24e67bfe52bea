"""Real ASGI and WSGI servers on loopback, each in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import wsgiref.simple_server
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


@contextmanager
def serving(app: object, port: int = 0, timeout_graceful_shutdown: int | None = 1) -> Iterator[str]:
    """Serve an ASGI application; the value is its address. Fail if the server does not end."""
    config = uvicorn.Config(
        app,
        port=port,
        log_level="critical",
        lifespan="off",
        timeout_graceful_shutdown=timeout_graceful_shutdown,
    )
    server = uvicorn.Server(config)
    over = threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(_serve(server, over),), daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the server did not start")
        threading.Event().wait(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        over.set()
        thread.join(10)
        assert not thread.is_alive()


async def _serve(server: uvicorn.Server, over: threading.Event) -> None:
    """Serve until told to end, and close what uvicorn leaves: connections that a browser opens while it shuts down."""
    serving = asyncio.create_task(server.serve())
    while not (over.is_set() or serving.done()):
        await asyncio.sleep(0.01)
    for each in getattr(server, "servers", ()):
        for listening in each.sockets:  # a server that is closed while it accepts leaks sockets (Python 3.11)
            asyncio.get_running_loop().remove_reader(listening)
    await asyncio.sleep(0.01)
    server.should_exit = True
    await serving
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    await asyncio.sleep(0)


class _Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving_wsgi(app: object) -> Iterator[str]:
    """Serve a WSGI application; the value is its address."""
    with wsgiref.simple_server.make_server("127.0.0.1", 0, app, handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)
