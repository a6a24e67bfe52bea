"""A small HTTP server for pages and probes: it serves the live page and the health endpoints.

It answers one request per connection and closes it. It reads bodies of POST only, and only up to `max_body`. It runs
beside a program's main job, so strangers must not be able to take much from that:

* A request that is not complete within `request_timeout` is closed, however slowly its bytes come.
* At most `max_connections` are open (and `ACCEPT_BATCH` more for an instant). A new one replaces the connection that
  has been idle for longest; if all are being answered, the new one is closed.
* A response that the client does not read within `WRITE_TIMEOUT` is broken off.
* The head of a request is bounded in bytes and in headers, and so is its body; anything but HTTP is answered 400.
* `allows_host` limits the names under which the server answers. A foreign web page can make its own name resolve to
  this machine (DNS rebinding); its requests carry that name, and are answered 421.
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

REQUEST_TIMEOUT = 5.0
"""Seconds for a complete request."""
WRITE_TIMEOUT = 20.0
"""Seconds for the client to read what it is sent."""
CLOSE_TIMEOUT = 1.0
"""Seconds for the client to close after the response: closing earlier could lose the response."""
MAX_CONNECTIONS = 100
"""Connections open at a time."""
MAX_HEAD_BYTES = 16384
"""Bytes of the head of a request."""
MAX_HEADERS = 100
ACCEPT_BATCH = 32
"""Connections accepted at once, which may exceed the bound for an instant."""
ACCEPT_STEPS = 4
"""Steps of the event loop within which a connection that asyncio has accepted is announced and, if refused, closed."""
BACKLOG = 256
"""Connections that the system keeps until they are accepted; they use no file descriptor."""
END = b"\r\n\r\n"

_LINE = re.compile(rb"([A-Za-z]{1,20}) (/[!-~]*) HTTP/(1\.[01])")
# possessive: a header that does not match costs no more than one that does
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]++):([^\x00-\x08\x0a-\x1f\x7f]*+)")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/?#@%\s]*))(?::[0-9]{0,5})?")
log = Log("abate.http")


class BadRequest(ValueError):
    """Bytes that are not a valid request; `status` is the answer."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class Request(NamedTuple):
    """A request. Header names are in lower case; the path is as it was sent."""

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


PLACEHOLDER_REQUEST = Request("GET", "/", b"", "1.1", ())
PHRASES = {status.value: status.phrase for status in HTTPStatus}


def parse_request(head: bytes) -> Request:
    r"""Parse the head of a request, without the empty line at its end, or raise `BadRequest`.

    >>> parse_request(b"GET /healthz?now HTTP/1.1\r\nHost: localhost").path
    '/healthz'
    >>> parse_request(b"GET /healthz HTTP/1.1")
    Traceback (most recent call last):
    abate.http_server.BadRequest: expected one Host header, not 0
    """
    first, *lines = head.split(b"\r\n")
    found = _LINE.fullmatch(first)
    if found is None:
        raise BadRequest("expected a request such as GET / HTTP/1.1")
    if len(lines) > MAX_HEADERS:
        raise BadRequest(f"expected at most {MAX_HEADERS} headers", 431)
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
    return found[1].lower(), found[2].strip(b" \t")


def body_length(request: Request, most: int) -> int:
    r"""Return the length of a request's body, or raise `BadRequest`.

    >>> body_length(parse_request(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7"), most=100)
    7
    """
    lengths = [value for name, value in request.headers if name == b"content-length"]
    if len(lengths) != 1 or request.header("transfer-encoding") is not None:
        raise BadRequest("expected a body with one Content-Length", 411)
    if not lengths[0].isdigit() or len(lengths[0]) > 10:
        raise BadRequest("expected the length of the body as a number")
    if int(lengths[0]) > most:
        raise BadRequest(f"expected a body of at most {most} bytes", 413)
    return int(lengths[0])


# -- names


def host_name(field: str) -> str:
    """Return the name or address in a Host header, without its port; empty if the header is invalid.

    >>> host_name("localhost:8321"), host_name("[::1]:8321"), host_name("localhost:1:2")
    ('localhost', '::1', '')
    """
    found = _HOST.fullmatch(field)
    return "" if found is None else found[1] or found[2] or ""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach this name or address.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "example.com")]
    [True, True, True, False, False]
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    address: Any = _address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and bool((mapped or address).is_loopback)


def is_address(host: str) -> bool:
    """Return whether this is localhost or an IP address, and so not a name that a stranger's DNS could point here.

    >>> [is_address(host) for host in ("10.0.0.7", "localhost", "pod.example")]
    [True, True, False]
    """
    return _address(host) is not None or is_loopback(host)


def _address(host: str) -> object:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there, or raise OSError with the reason.

    An empty host, and ``::``, mean every address of this machine, IPv4 and IPv6.
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
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(WRITE_TIMEOUT * 1000))
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


class ClientGone(Exception):
    """The client closed the connection, or does not read what it is sent."""


class Connection:
    """One request that is being answered: by `send` at once, or by `begin` and `write` in parts.

    They raise `ClientGone` if the client is gone; a handler lets that pass.
    """

    def __init__(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.request = request
        self._reader = reader
        self._writer = writer
        self.peer: tuple[str, int] = (writer.get_extra_info("peername") or ("", 0))[:2]
        self.begun = False

    async def send(self, status: int, kind: str, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send a whole response; `kind` is its content type."""
        length = ("Content-Length", str(len(body)))
        fields = [(name.encode(), value.encode()) for name, value in (("Content-Type", kind), length, *headers)]
        await self.begin(status, fields)
        await self.write(body)

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the head of a response."""
        self.begun = True
        fields = b"".join(b"%b: %b\r\n" % header for header in headers)
        first = f"HTTP/1.1 {status} {PHRASES.get(status, 'Unknown')}\r\n".encode()
        await self._write(first + fields + b"Connection: close\r\n\r\n")

    async def write(self, data: bytes) -> None:
        """Send a part of the body, and wait until the client has taken it."""
        if data and self.request.method != "HEAD":
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self._writer.drain()
        except OSError as error:  # includes TimeoutError
            raise ClientGone from error

    async def wait_closed(self) -> None:
        """Wait until the client has closed its side."""
        with suppress(OSError):
            while await self._reader.read(MAX_HEAD_BYTES):
                pass


Handler: TypeAlias = Callable[[Connection], Awaitable[None]]


class HttpServer:
    """Answers requests by `handler`, in this event loop.

    * `allows_host`: returns whether the server answers to this name. Without it, the handler checks. HTTP/1.0 without a
      Host header passes: browsers always send one.
    * `max_body`: bytes of a POST body; 0 for a server that reads none.
    * `max_connections`, `request_timeout`: see the module's docstring.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        allows_host: Callable[[str], bool] | None = None,
        max_body: int = 0,
        max_connections: int = MAX_CONNECTIONS,
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> None:
        self._handler = handler
        self._allows_host = allows_host
        self._max_body = max_body
        self._max_connections = max_connections
        self._request_timeout = request_timeout
        self._server: asyncio.Server | None = None
        self._closed = False
        self._connections: set[asyncio.Task[None]] = set()
        # before the request or after the response; oldest first
        self._idle: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def open(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    async def start(self, server: socket.socket) -> None:
        """Begin to serve."""
        self._server = await asyncio.start_server(self._accept, sock=server, limit=MAX_HEAD_BYTES, backlog=ACCEPT_BATCH)
        server.listen(BACKLOG)  # asyncio takes one number for both

    async def close(self, grace: float) -> None:
        """Stop accepting, wait `grace` seconds for responses to end, and break off the others."""
        self._closed = True
        if self._server is not None:
            await self._stop_accepting(self._server)
        while self._drop_oldest_idle():
            pass
        if self._connections:
            await asyncio.wait(self._connections, timeout=grace)
        rest = list(self._connections)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _stop_accepting(self, server: asyncio.Server) -> None:
        """Close the listening sockets once all connections that asyncio has accepted are announced.

        A server that is closed before leaks the sockets of those (Python 3.11).
        """
        for listening in server.sockets:
            with suppress(NotImplementedError):  # the event loop of Windows
                asyncio.get_running_loop().remove_reader(listening)
        for _ in range(ACCEPT_STEPS):
            await asyncio.sleep(0)
        server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed or (len(self._connections) >= self._max_connections and not self._drop_oldest_idle()):
            writer.transport.abort()
            return
        writer.transport.set_write_buffer_limits(0)  # `drain` then waits until everything is taken
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        self._idle[task] = writer
        task.add_done_callback(self._ended)

    def _drop_oldest_idle(self) -> bool:
        """Close the connection that has been idle for longest; return False if none is idle."""
        for task, writer in self._idle.items():
            writer.transport.abort()  # here, because a task that is cancelled before it began closes nothing
            self._ended(task)
            task.cancel()
            return True
        return False

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._idle.pop(task, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        with suppress(TimeoutError, OSError, EOFError, ClientGone):  # slow, gone, or gone before it sent a request
            try:
                async with asyncio.timeout(self._request_timeout):
                    request = await _read_request(reader, self._max_body)
                self._idle.pop(task, None)
                if isinstance(request, BadRequest):
                    connection = Connection(PLACEHOLDER_REQUEST, reader, writer)
                    await _refuse(connection, request.status, str(request))
                else:
                    connection = Connection(request, reader, writer)
                    await self._answer(connection)
                self._idle[task] = writer
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    writer.write_eof()
                    await connection.wait_closed()
            finally:
                writer.transport.abort()

    async def _answer(self, connection: Connection) -> None:
        host = connection.request.header("host")
        if self._allows_host is not None and host is not None and not self._allows_host(host_name(host)):
            await _refuse(connection, 421, "this server does not answer to that name")
            return
        try:
            await self._handler(connection)
        except ClientGone:
            raise
        except Exception:
            log.exception("a request could not be answered")
            if not connection.begun:
                await _refuse(connection, 500, "this could not be answered")


async def _read_request(reader: asyncio.StreamReader, max_body: int) -> Request | BadRequest:
    try:
        request = parse_request((await reader.readuntil(END)).removesuffix(END))
        if not max_body or request.method != "POST":
            return request
        return request._replace(body=await reader.readexactly(body_length(request, max_body)))
    except asyncio.LimitOverrunError:
        return BadRequest(f"expected at most {MAX_HEAD_BYTES} bytes", 431)
    except BadRequest as error:
        return error


async def _refuse(connection: Connection, status: int, why: str) -> None:
    await connection.send(status, "text/plain; charset=utf-8", f"{why}\n".encode())
