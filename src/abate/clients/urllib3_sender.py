"""Send requests by urllib3, each as a call of a policy: used by the clients for urllib3 and for requests."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from http.client import HTTPResponse
from socket import socket as Socket
from typing import Any, Generic, TypeVar

from urllib3 import HTTPConnectionPool, Timeout
from urllib3.exceptions import (
    ConnectTimeoutError,
    EmptyPoolError,
    InvalidHeader,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    ReadTimeoutError,
)

from abate.call.policy import Policy
from abate.clients.http_client import (
    BODY_DISCARDED,
    MAX_DRAIN_BYTES,
    MIN_TIMEOUT,
    ClientSettings,
    Key,
    Library,
    OnResponses,
    drain_timeout,
    new_idempotency_key,
)
from abate.clients.stopwatch import Stopwatch, Timeouts
from abate.clients.trust import Secret
from abate.decide import http
from abate.decide.outcome import BLIP, OVERLOAD, OVERLOAD_UNREACHED, UNREACHED, Outcome, Ruling
from abate.decide.rules import classify
from abate.errors import RetryExhausted
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
        policy: Policy,
        *,
        idempotency_key: bool,
        timeouts: Timeouts | None,
        secrets: Mapping[str, Secret] | None,
        key: Key,
    ) -> None:
        options: dict[str, Any] = {
            "idempotency_key": idempotency_key,
            "timeouts": timeouts,
            "secrets": secrets,
            "key": key,
        }
        self._pickled = partial(Sender, **options), (library, release, deadline_error, policy)
        self._library = library
        self._release = release
        self._deadline_error = deadline_error
        self._on_responses = OnResponses(library.read_response)
        self._settings = ClientSettings(library._replace(judge_error=self._judge), policy, **options)

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
            self._settings.secrets.set_headers(headers, host, attempts)
            held = self._send_timed(send_once, timeout)
            return held

        try:
            return self._settings.drive(policy, attempt, release)
        except RetryExhausted:
            raise  # it carries the response
        except BaseException:
            release(0.0)  # the call did not end by the policy's decision
            raise

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
        ruling = None if response is None else self._on_responses.judge(Outcome(result=response))
        return ruling or self._library.judge_error(error)


def judge(error: Exception) -> Ruling | None:
    """Judge an error of urllib3.

    >>> judge(ProtocolError("Connection aborted."))
    Ruling(retry=True, reason='blip', hint=None, reached=True, safe=None, answered=False)
    """
    if isinstance(error, ProxyError):
        error = error.original_error
    if isinstance(error, NewConnectionError):
        return UNREACHED
    if isinstance(error, (ConnectTimeoutError, EmptyPoolError)):
        return OVERLOAD_UNREACHED
    if isinstance(error, ReadTimeoutError):
        return OVERLOAD
    if isinstance(error, ProtocolError):
        return OVERLOAD if isinstance(error.args[-1], TimeoutError) else BLIP  # the request could not be written
    if isinstance(error, InvalidHeader):
        return BLIP
    return classify(error) if isinstance(error, OSError) else None


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


class _Response(HTTPResponse):
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


def is_rewindable(body: Any) -> bool:
    """Return whether this is a file that can be read again."""
    seekable = getattr(body, "seekable", None)
    return callable(seekable) and bool(seekable())


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
