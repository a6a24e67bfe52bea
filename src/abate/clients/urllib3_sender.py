"""Send requests by urllib3, each as a call of a policy: used by the clients for urllib3 and for requests."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import closing, suppress
from contextvars import ContextVar
from functools import partial
from http.client import HTTPResponse as SocketResponse
from socket import socket as Socket
from typing import Any, Generic, TypeVar

from urllib3 import HTTPConnectionPool, HTTPResponse, Timeout
from urllib3.exceptions import HTTPError

from abate.call.policy import Policy
from abate.clients.client_rules import Library
from abate.clients.http_client import (
    BODY_DISCARDED,
    MAX_DECODED,
    MAX_DRAIN_BYTES,
    MIN_TIMEOUT,
    PIECE,
    ClientSettings,
    drain_timeout,
    is_judged_by_body,
    new_idempotency_key,
)
from abate.clients.outer_retries import forbid_retry
from abate.clients.stopwatch import Stopwatch
from abate.decide import http
from abate.decide.outcome import Ruling
from abate.errors import Report, RetryExhausted
from abate.schedule.deadlines import deadline, deadline_aware, deadline_passed, remaining

R = TypeVar("R")


class Sender(Generic[R]):
    """Send the requests of one client, each as a call of the policy.

    `release` frees a response's connection within a number of seconds; `deadline_error` makes the library's error for
    a request whose deadline has passed. The settings are those of `ClientSettings`.
    """

    def __init__(
        self,
        library: Library,
        release: Callable[[R, float], None],
        deadline_error: Callable[[Any], Exception],
        policy: Policy | None,
        **settings: Any,
    ) -> None:
        if isinstance(settings["ours"], Iterator):
            settings["ours"] = tuple(settings["ours"])
        self._pickled = partial(Sender, **settings), (library, release, deadline_error, policy)
        self._library = library
        self._release = release
        self._deadline_error = deadline_error
        self._settings = ClientSettings(library._replace(judge_error=self._judge), policy, **settings)

    def __reduce__(self) -> tuple[Callable[..., Sender[R]], tuple[Any, ...]]:
        return self._pickled

    def send(
        self,
        request: object,
        method: str,
        host: str | None,
        headers: MutableMapping[str, str],
        timeout: Timeout,
        replayable: bool,
        send_once: Callable[[Timeout], R],
    ) -> R:
        """Send a request, again if the policy says so; `send_once` makes one attempt within the timeout it is given."""
        if self._settings.needs_idempotency_key(method, headers):
            headers[http.KEY_HEADER] = new_idempotency_key()
        policy = self._settings.policy_for(request, method, headers, replayable=replayable)
        held: R | None = None
        attempts = 0

        def release(left: float | None) -> None:
            nonlocal held
            response, held = held, None
            if response is not None:
                self._release(response, drain_timeout(left))

        @deadline_aware
        def attempt() -> R:
            nonlocal held, attempts
            release(remaining())
            attempts += 1
            if deadline_passed():
                raise self._deadline_error(request)
            self._settings.set_headers(headers, host, attempts)
            held = self._send_timed(send_once, timeout)
            self._load_error(held, policy, attempts)
            return held

        try:
            return self._settings.drive(policy, request, attempt, release)
        except RetryExhausted:
            raise  # it carries the response
        except BaseException:
            release(0.0)  # the call did not end by the policy's decision
            raise

    def _load_error(self, response: R, policy: Policy, attempt: int) -> None:
        """Read the body of an error that is to be judged by it, if it has not been read."""
        status, headers = self._library.read_response(response)
        unread = status >= 400 and self._library.body_of(response) is None
        if unread and is_judged_by_body(policy, response, status, headers, attempt):
            load(getattr(response, "raw", response), drain_timeout(remaining()))

    def _send_timed(self, send_once: Callable[[Timeout], R], timeout: Timeout) -> R:
        """Make an attempt within the time that is left, and time it if the timeouts learn."""
        timeouts = self._settings.timeouts
        if timeouts is None:
            return send_once(_cut(timeout))
        cut = _cut(timeout, timeouts.connect(), timeouts.request())
        with Stopwatch(timeouts, self._library.judge_error) as watch:
            token = _watch.set(watch)
            try:
                response = send_once(cut)
            finally:
                _watch.reset(token)
            watch.response_received(self._library.read_response(response)[0])
        return response

    def _judge(self, error: Exception) -> Ruling | None:
        """Judge an error; one in the body of a bad response says less than its status and its ``Retry-After``."""
        response = getattr(error, "response", None)
        ruling = None if response is None else http.judge(*self._library.read_response(response))
        return ruling or self._library.judge_error(error)


_watch: ContextVar[Stopwatch | None] = ContextVar("abate_urllib3_watch", default=None)


def with_deadlines(pools: Mapping[str, type[HTTPConnectionPool]]) -> dict[str, type[HTTPConnectionPool]]:
    """Return subclasses of these pools whose connections read within the deadline and time their connects."""
    return {scheme: _with_deadline(pool) for scheme, pool in pools.items()}


def _with_deadline(pool: type[HTTPConnectionPool]) -> type[HTTPConnectionPool]:
    inner: Any = pool.ConnectionCls
    if issubclass(inner, _Connection):
        return pool
    connection = type(inner.__name__, (_Connection, inner), {})
    return type(pool.__name__, (pool,), {"ConnectionCls": connection})


class _Response(SocketResponse):
    """Reads its body within the deadline."""

    def __init__(self, sock: Socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(_SocketOpener(sock), *args, **kwargs)  # type: ignore[arg-type]  # it only calls makefile


class _Connection:
    """A mixin for the connection classes of urllib3."""

    response_class = _Response

    def connect(self) -> None:
        """Open the connection, timed by the stopwatch of the current attempt."""
        watch, connect = _watch.get(), super().connect  # type: ignore[misc]
        if watch is None:
            connect()
        else:
            watch.connect_started()
            connect()
            watch.connect_done()


class _SocketOpener:
    """Stands for a socket, of which ``HTTPResponse`` only calls ``makefile``."""

    def __init__(self, sock: Socket) -> None:
        self._sock = sock

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._sock))


class _DeadlineReader(io.RawIOBase):
    """Read from a socket, and give each read only the time that is left until the deadline."""

    def __init__(self, sock: Socket) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._timeout = sock.gettimeout()

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def readinto(self, buffer: Any) -> int | None:
        left = remaining()
        if left is not None:
            if left <= 0:
                raise TimeoutError("the deadline has passed")
            self._sock.settimeout(_shorter(self._timeout, left))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _cut(timeout: Timeout, connect: float | None = None, request: float | None = None) -> Timeout:
    """Return a timeout cut to these and to the time until the deadline.

    `request` bounds the reads and not the total, which would bound the connect too.
    """
    own = timeout.clone()
    own.total = None  # it would bound the two timeouts for connecting and reading
    total = Timeout.resolve_default_timeout(timeout.total)
    return Timeout(
        total=_positive(_shorter(total, remaining())),
        connect=_positive(_shorter(Timeout.resolve_default_timeout(own.connect_timeout), connect)),
        read=_positive(_shorter(own.read_timeout, request)),
    )


def _shorter(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)


def _positive(seconds: float | None) -> float | None:
    return None if seconds is None else max(seconds, MIN_TIMEOUT)


def release(response: Any, seconds: float) -> None:
    """Discard a response. If its body ends within these seconds, the connection is reused and the body kept.

    Otherwise the connection is closed, and reading the body is an error.
    """
    if not response.closed:
        body: bytes | None = None
        try:
            if seconds and (response.length_remaining or 0) <= MAX_DRAIN_BYTES:
                with suppress(Exception), deadline(seconds):  # a connection that fails here is closed below
                    body = _drain(response)
        finally:
            if body is None:
                response.close()
            response._fp = _DiscardedBody() if body is None else io.BytesIO(body)
            response.length_remaining, response.chunked = None if body is None else len(body), False
    response.release_conn()


def load(response: Any, seconds: float) -> None:
    """Read the body of an error, if it ends in time; the response keeps it unless its connection breaks."""
    if response.closed or (response.length_remaining or 0) > MAX_DRAIN_BYTES or not seconds:
        return
    body, done = bytearray(), False
    try:
        with closing(deadline(seconds)) as bound, bound:
            while len(body) <= MAX_DRAIN_BYTES and not done:
                part = response.read(MAX_DRAIN_BYTES + 1 - len(body), decode_content=False)
                body += part
                done = not part
    except Exception:
        response.close()
        response._fp = _DiscardedBody()
    else:
        response._fp = io.BytesIO(body) if done else _JoinedBody(bytes(body), response._fp)
        if done:
            response.release_conn()
            response.loaded_error = _decoded(response, bytes(body))
    response.length_remaining, response.chunked = len(body) if done else None, False


def _decoded(response: Any, body: bytes) -> bytes | None:
    """Return a body without its content encoding; None if it can't be decoded, or is too large then."""
    copy = HTTPResponse(io.BytesIO(body), headers=response.headers, preload_content=False)
    decoded = bytearray()
    try:
        while part := copy.read(PIECE, decode_content=True):
            decoded += part
            if len(decoded) > MAX_DECODED:
                return None
    except HTTPError:
        return None
    return bytes(decoded)


def loaded_error(response: Any) -> bytes | None:
    """Return the body of an error that `load` has read."""
    return getattr(response, "loaded_error", None)


def mark(response: Any, report: Report, forbids_retry: bool) -> None:
    """Put a report on a response that is given up on."""
    response.abate_report = report
    if forbids_retry:
        forbid_retry(response.headers)


def _drain(response: Any) -> bytes | None:
    """Read a body without decoding it; return None if it is longer than `MAX_DRAIN_BYTES`."""
    body = bytearray()
    while part := response.read(MAX_DRAIN_BYTES + 1 - len(body), decode_content=False):
        body += part
        if len(body) > MAX_DRAIN_BYTES:
            return None
    return bytes(body)


class _DiscardedBody(io.RawIOBase):
    """The body of a response whose connection was closed."""

    def readinto(self, buffer: Any) -> int:
        raise OSError(BODY_DISCARDED)


class _JoinedBody(io.RawIOBase):
    """A body of which the beginning has been read."""

    def __init__(self, beginning: bytes, rest: Any) -> None:
        self._beginning, self._rest = io.BytesIO(beginning), rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._beginning.read(len(buffer)) or self._rest.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._rest.close()
        super().close()
