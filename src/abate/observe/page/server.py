"""The page beside any program: served from a thread of its own, with an event loop of its own.

A program that hangs, or has no event loop at all, can be looked at all the same.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from abate.errors import whole
from abate.observe.extras import needed
from abate.observe.page.guard import is_loopback
from abate.observe.page.site import app

if TYPE_CHECKING:
    import uvicorn

UNREAD = 30.0
"""Seconds after which the machine drops a connection whose other end takes nothing more."""
LAST_WORDS = 5.0
"""Seconds to wait for the thread to end."""


@contextmanager
def serving(host: str = "127.0.0.1", port: int = 8321, token: str | None = None) -> Iterator[str]:
    """Serve the live page while the block runs; it is told the page's address.

    A host that others can reach needs a token. Port 0 is any that is free.

    >>> with serving(port=0) as address:
    ...     address.startswith("http://127.0.0.1:")
    True
    >>> with serving("0.0.0.0", port=0):
    ...     pass
    Traceback (most recent call last):
    ValueError: 0.0.0.0 can be reached from elsewhere: the page needs a token there
    """
    with needed(by="abate.observe.page.serving", extra="page"):
        import uvicorn

    if not isinstance(host, str) or not host:
        raise TypeError(f"host must be a name or an address, not {host!r}")
    if whole("port", port, least=0) > 65535:
        raise ValueError(f"port must be from 0 to 65535, not {port}")
    if token is None and not is_loopback(host):
        raise ValueError(f"{host} can be reached from elsewhere: the page needs a token there")
    listening = _listening(host, port)
    try:
        site = app(token)
    except BaseException:
        listening.close()
        raise
    # its logs go where the program's go; who looks at a page is nothing to log, and a proxy is not to be believed
    config = uvicorn.Config(
        site, log_config=None, access_log=False, proxy_headers=False, ws="none", timeout_graceful_shutdown=1
    )
    page = _Page(uvicorn.Server(config), listening)
    page.start()
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{listening.getsockname()[1]}/"
    finally:
        page.stop(site.state.stream.close)
        site.state.detach()


class _Page(threading.Thread):
    """The thread; it does not keep the program from ending."""

    def __init__(self, server: uvicorn.Server, listening: socket.socket) -> None:
        super().__init__(name="abate-page", daemon=True)
        self._server = server
        self._listening = listening
        self._loop = asyncio.new_event_loop()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._server.serve(sockets=[self._listening]))

    def stop(self, close: Callable[[], object]) -> None:
        """Let all visitors go, and end."""
        self._server.should_exit = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(close)
        self.join(LAST_WORDS)


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens there, or the OSError that says why not."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections have it from here
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD * 1000))
        listening.bind(address)
        listening.listen()
    except BaseException:
        listening.close()
        raise
    return listening
