"""A small HTTP server for pages and probes: the live page, health and the demo's page are served by it.

It answers one request per connection, and closes it. Bodies are read of POST alone, and only where a server has said
how long they may be (`bodies`). It is meant for programs whose main job is another one, so strangers can take little
from them:

* A request that is not there whole within `PATIENCE` is closed, however slowly its bytes come.
* `connections` at most are open. A new one takes the place of the one that has been silent for longest; where all are
  being answered, it is closed at once.
* An answer that the other end does not read within `UNREAD` is broken off.
* A request's head is bounded, in bytes and in headers, and so is its body; what is no HTTP is answered 400.
* `hosts` says under which names the server answers. A foreign web page can have its own name resolve to this machine
  (DNS rebinding); its requests carry that name, and are answered 421.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias

from abate.logs import Log

PATIENCE = 5.0
"""Seconds for a request to be there."""
UNREAD = 20.0
"""Seconds for the other end to take what it is sent."""
LINGER = 1.0
"""Seconds for the other end to close, after its answer: closing before it has read would take the answer away."""
CONNECTIONS = 100
"""Connections that are open at a time."""
LONGEST = 16384
"""Bytes of a request."""
MOST_HEADERS = 100
AT_ONCE = 32
"""Connections that are accepted in one go, and so may be there above the bound for an instant."""
BACKLOG = 256
"""Connections that the system keeps until they are accepted; they take no descriptor of the program's."""
END = b"\r\n\r\n"

_LINE = re.compile(rb"([A-Za-z]{1,20}) (/[!-~]*) HTTP/(1\.[01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/?#@%\s]*))(?::[0-9]{0,5})?")
log = Log("abate.http")


class BadRequest(ValueError):
    """Bytes that are no request; the status says why."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class Request(NamedTuple):
    """A request. Names of headers are in small letters; the path is as it was sent."""

    method: str
    path: str
    query: bytes
    version: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """Return the first header of that name."""
        wanted = name.encode()
        return next((value.decode("latin-1") for known, value in self.headers if known == wanted), None)


NO_REQUEST = Request("GET", "/", b"", "1.1", ())
PHRASES = {status.value: status.phrase for status in HTTPStatus}


def parsed(head: bytes) -> Request:
    r"""Return the request that these bytes are, without the empty line at their end, or raise `BadRequest`.

    >>> parsed(b"GET /healthz?now HTTP/1.1\r\nHost: localhost").path
    '/healthz'
    >>> parsed(b"GET /healthz HTTP/1.1")
    Traceback (most recent call last):
    abate.http_server.BadRequest: expected one Host header, not 0
    """
    first, *lines = head.split(b"\r\n")
    found = _LINE.fullmatch(first)
    if found is None:
        raise BadRequest("expected a request such as GET / HTTP/1.1")
    if len(lines) > MOST_HEADERS:
        raise BadRequest(f"expected at most {MOST_HEADERS} headers", 431)
    headers = tuple(map(_header, lines))
    method, target, version = found.groups()
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (hosts == 0 and version != b"1.0"):
        raise BadRequest(f"expected one Host header, not {hosts}")
    path, _, query = target.partition(b"?")
    return Request(method.decode(), path.decode(), query, version.decode(), headers)


def _header(line: bytes) -> tuple[bytes, bytes]:
    found = _HEADER.fullmatch(line)
    if found is None:
        raise BadRequest("expected headers such as Host: localhost")
    return found[1].lower(), found[2]


def body_length(request: Request, most: int) -> int:
    r"""Return how many bytes the body of a request has, or raise `BadRequest`.

    >>> body_length(parsed(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7"), most=100)
    7
    """
    told = [value for name, value in request.headers if name == b"content-length"]
    if len(told) != 1 or request.header("transfer-encoding") is not None:
        raise BadRequest("expected a body with one Content-Length", 411)
    if not told[0].isdigit() or len(told[0]) > 10:
        raise BadRequest("expected the length of the body as a number")
    if int(told[0]) > most:
        raise BadRequest(f"expected a body of at most {most} bytes", 413)
    return int(told[0])


# -- names


def host_name(field: str) -> str:
    """Return the name or address in a Host header, without its port; empty where the header is none.

    >>> host_name("localhost:8321"), host_name("[::1]:8321"), host_name("localhost:1:2")
    ('localhost', '::1', '')
    """
    found = _HOST.fullmatch(field)
    return "" if found is None else found[1] or found[2] or ""


def is_loopback(host: str) -> bool:
    """Is this a name or an address that only this machine can reach?

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "example.com")]
    [True, True, True, False, False]
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    address: Any = _address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and bool((mapped or address).is_loopback)


def is_address(host: str) -> bool:
    """Is this localhost or an IP address, and so no name that a stranger's DNS could point here?

    >>> [is_address(host) for host in ("10.0.0.7", "localhost", "pod.example")]
    [True, True, False]
    """
    return _address(host) is not None or is_loopback(host)


def _address(host: str) -> object:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens there, or raise the OSError that says why not.

    An empty host, and ``::``, is every address of this machine, IPv4 and IPv6.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0"), port, type=socket.SOCK_STREAM
    )[0]
    server = socket.socket(family, kind, protocol)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted connections inherit it
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD * 1000))
        server.bind(address)
        server.listen(BACKLOG)
    except OSError as error:
        server.close()
        raise OSError(
            error.errno, f"can't listen on {host or 'every address'}, port {port}: {error.strerror}"
        ) from None
    return server


def url(host: str, server: socket.socket) -> str:
    """Return the address to open in a browser."""
    shown = host or server.getsockname()[0]
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{server.getsockname()[1]}/"


# -- serving


class Gone(Exception):
    """The other end closed the connection, or does not take what it is sent."""


class Connection:
    """One request that is being answered: `send` answers it at once, `begin` and `write` in parts.

    They raise `Gone` where the other end is not there any more; a handler lets that pass.
    """

    def __init__(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.request = request
        self._reader = reader
        self._writer = writer
        self.peer: tuple[str, int] = (writer.get_extra_info("peername") or ("", 0))[:2]
        self.begun = False

    async def send(self, status: int, kind: str, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send a whole answer; `kind` is its type."""
        length = ("Content-Length", str(len(body)))
        fields = [(name.encode(), value.encode()) for name, value in (("Content-Type", kind), length, *headers)]
        await self.begin(status, fields)
        await self.write(body)

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the head of an answer."""
        self.begun = True
        fields = b"".join(b"%b: %b\r\n" % header for header in headers)
        first = f"HTTP/1.1 {status} {PHRASES.get(status, 'Unknown')}\r\n".encode()
        await self._write(first + fields + b"Connection: close\r\n\r\n")

    async def write(self, data: bytes) -> None:
        """Send a part of the body, and wait until it is taken."""
        if data and self.request.method != "HEAD":
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            async with asyncio.timeout(UNREAD):
                await self._writer.drain()
        except OSError as error:  # TimeoutError is one
            raise Gone from error

    async def left(self) -> None:
        """Wait until the other end is gone, or sends no more."""
        with suppress(OSError):
            while await self._reader.read(LONGEST):
                pass


Handler: TypeAlias = Callable[[Connection], Awaitable[None]]


class HttpServer:
    """Answers requests by `handler`, in this event loop.

    * `hosts`: is this a name that the server answers to? Without it, the handler checks. HTTP/1.0 without a Host header
      passes: no browser sends that.
    * `bodies`: the longest body of a POST, in bytes; 0 for a server that reads none.
    * `connections`, `patience`: as in the module's docstring.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        hosts: Callable[[str], bool] | None = None,
        bodies: int = 0,
        connections: int = CONNECTIONS,
        patience: float = PATIENCE,
    ) -> None:
        self._handler = handler
        self._hosts = hosts
        self._bodies = bodies
        self._most = connections
        self._patience = patience
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # no request yet, or answered; oldest first

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self._open)

    async def start(self, server: socket.socket) -> None:
        """Begin to serve."""
        self._server = await asyncio.start_server(self._accepted, sock=server, limit=LONGEST, backlog=AT_ONCE)
        server.listen(BACKLOG)  # asyncio takes one number for both

    async def close(self, grace: float) -> None:
        """Accept no more, wait so many seconds for answers to end, and break off the others."""
        if self._server is not None:
            self._server.close()
        while self._drop_silent():
            pass
        if self._open:
            await asyncio.wait(self._open, timeout=grace)
        rest = list(self._open)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= self._most and not self._drop_silent():
            writer.transport.abort()
            return
        writer.transport.set_write_buffer_limits(0)  # so `drain` waits until all is taken
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._open.add(task)
        self._silent[task] = writer
        task.add_done_callback(self._ended)

    def _drop_silent(self) -> bool:
        """Close the connection that has been silent for longest, if one is."""
        for task, writer in self._silent.items():
            writer.transport.abort()  # here, as a task that is cancelled before it began closes nothing
            self._ended(task)
            task.cancel()
            return True
        return False

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._silent.pop(task, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        with suppress(TimeoutError, OSError, EOFError, Gone):  # slow, gone, or gone before it had asked
            try:
                async with asyncio.timeout(self._patience):
                    request = await _received(reader, self._bodies)
                self._silent.pop(task, None)
                if isinstance(request, BadRequest):
                    connection = Connection(NO_REQUEST, reader, writer)
                    await _refuse(connection, request.status, str(request))
                else:
                    connection = Connection(request, reader, writer)
                    await self._answer(connection)
                self._silent[task] = writer
                async with asyncio.timeout(LINGER):
                    writer.write_eof()
                    await connection.left()
            finally:
                writer.transport.abort()

    async def _answer(self, connection: Connection) -> None:
        host = connection.request.header("host")
        if self._hosts is not None and host is not None and not self._hosts(host_name(host)):
            await _refuse(connection, 421, "this server does not answer to that name")
            return
        try:
            await self._handler(connection)
        except Gone:
            raise
        except Exception:
            log.exception("a request could not be answered")
            if not connection.begun:
                await _refuse(connection, 500, "this could not be answered")


async def _received(reader: asyncio.StreamReader, bodies: int) -> Request | BadRequest:
    try:
        request = parsed((await reader.readuntil(END)).removesuffix(END))
        if not bodies or request.method != "POST":
            return request
        return request._replace(body=await reader.readexactly(body_length(request, bodies)))
    except asyncio.LimitOverrunError:
        return BadRequest(f"expected at most {LONGEST} bytes", 431)
    except BadRequest as error:
        return error


async def _refuse(connection: Connection, status: int, why: str) -> None:
    await connection.send(status, "text/plain; charset=utf-8", f"{why}\n".encode())
