"""Retries for urllib3: a ``PoolManager`` whose requests are calls of a policy.

Redirects stay the manager's: each hop that it sends is one call. Retries of urllib3's own are switched off inside.

* urllib3's errors: a connection that could not be made is a request that the server never saw; timeouts are overload;
  a connection that broke, and an answer that makes no sense, are blips. Responses are judged by HTTP's table
  (`abate.decide.http`).
* A response that is read whole (``preload_content=True``, as by default) is part of its attempt, and its connection is
  free again before any wait. A streamed one is handed over unread: what fails in its body later is not retried.
* A streamed response that is not the final one is read to its end before every wait, if that is near. Otherwise its
  connection is closed, and reading it after all, where the next attempt is refused after the wait, is a
  ``ProtocolError``.
* A deadline bounds every single read, so that a server which sends byte by byte is cut off in time. After it, nothing
  is sent: the error is a ``ConnectTimeoutError``.

`Sender`, `bounded` and `let_go` serve requests as well, which stands on urllib3.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from http.client import HTTPResponse
from socket import socket as Socket
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import urllib3
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPHeaderDict, HTTPSConnectionPool, Retry, Timeout
from urllib3.exceptions import (
    ConnectTimeoutError,
    EmptyPoolError,
    HTTPError,
    InvalidHeader,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    ReadTimeoutError,
)

from abate.call import tally, threads
from abate.call.policy import Policy
from abate.clients.exchange import (
    CUT_OFF,
    READ_AT_MOST,
    TOO_LATE,
    JudgeError,
    Key,
    KeyOf,
    OnResponses,
    Plan,
    ReadResponse,
    Secrets,
    Stopwatch,
    Timeouts,
    key_of,
    late,
    new_key,
    reading_time,
)
from abate.clients.trust import Secret
from abate.decide import http
from abate.decide.outcome import BLIP, OVERLOAD, UNREACHED, Outcome, Ruling
from abate.decide.rules import nature
from abate.errors import LayeredRetryWarning, RetryExhausted
from abate.schedule.deadlines import deadline, keeps_deadline, remaining

BUSY = Ruling.overload(reached=False)
SHORTEST = 0.001
"""Seconds; a timeout is not cut below this, because urllib3 takes none of zero."""

R = TypeVar("R")


class PoolManager(urllib3.PoolManager):
    """A urllib3 ``PoolManager`` that retries by a policy.

    * `policy`: its own `on` is asked first, then the rules for urllib3's errors and HTTP's table.
    * `idempotency_key`: put an ``Idempotency-Key`` on requests whose method is not safe and which have none, the same
      one on every attempt. Only do so where the server knows what it means.
    * `timeouts`: an object whose ``request()`` and ``connect()`` bound the timeouts further, and whose
      ``observe(seconds)`` is told how long each good response took to come, without connecting. If it has
      ``observe_connect(seconds)``, that is told how long each new connection took to open, TLS included.
    * `secrets`: which hosts are sent which `abate.clients.trust.Secret`, so that services there believe this client:
      ``{"orders.internal": Secret(…), "*.shop.internal": Secret(…)}``. No other host is sent one, wherever redirects
      lead.
    * `key`: ``"host"`` gives each host and port a budget, gate and shelter of its own (see `Policy.keyed`); so does a
      function of the URL, for what it answers.
    * everything else goes to urllib3. Of `retries` only the limits for redirects are kept, with a warning.

    The last response is returned as it is; the last error is urllib3's own, never a ``MaxRetryError`` around it.
    A body that cannot be replayed (a generator, a pipe) is never sent twice. A pool that is taken out of the manager
    and asked to follow redirects by itself is urllib3's, without the policy.

    >>> import abate, urllib3
    >>> policy = abate.Policy(on=abate.http.transient, name="orders", backoff=[0.0])
    >>> with PoolManager(policy) as http:
    ...     try:
    ...         http.request("GET", "http://127.0.0.1:1/")  # where nobody listens
    ...     except urllib3.exceptions.NewConnectionError as error:
    ...         print(abate.report(error))
    orders gave up after 3 attempts: attempts
    """

    def __init__(
        self,
        policy: Policy,
        *,
        idempotency_key: bool = False,
        timeouts: Timeouts | None = None,
        secrets: Mapping[str, Secret] | None = None,
        key: Key = None,
        **kwargs: Any,
    ) -> None:
        self._sender = Sender(
            "urllib3",
            policy,
            judge,
            _read,
            let_go,
            _too_late,
            idempotency_key=idempotency_key,
            timeouts=timeouts,
            secrets=Secrets(secrets),
            key=key,
            host=_host,
        )
        if (retries := kwargs.get("retries")) is not None:
            warn_of(retries if isinstance(retries, Retry) else Retry.from_int(retries), stacklevel=3)
        super().__init__(**kwargs)
        self.pool_classes_by_scheme = bounded({"http": _Pool, "https": _HTTPSPool})

    def connection_from_pool_key(self, pool_key: Any, request_context: dict[str, Any]) -> HTTPConnectionPool:
        """The pool for a host, which sends by the policy."""
        pool = super().connection_from_pool_key(pool_key, request_context)
        assert isinstance(pool, _Pool)
        pool.sender = self._sender
        return pool

    def urlopen(  # type: ignore[override]
        self, method: str, url: str, redirect: bool = True, **kw: Any
    ) -> BaseHTTPResponse:
        """Send a request, again where that is worth it, and follow redirects."""
        if (retries := kw.get("retries")) is not None:
            given = retries if isinstance(retries, Retry) else Retry.from_int(retries, redirect=redirect)
            if not given.history:  # the manager's own count of the redirects so far is nobody's wish
                warn_of(given, stacklevel=4)
        return super().urlopen(method, url, redirect, **kw)


class _Pool(HTTPConnectionPool):
    """A pool that sends by a policy what the manager gives it, one hop at a time."""

    sender: Sender[BaseHTTPResponse] | None = None

    def urlopen(  # type: ignore[override]
        self,
        method: str,
        url: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        retries: Retry | bool | int | None = None,
        redirect: bool = True,
        assert_same_host: bool = True,
        **kw: Any,
    ) -> BaseHTTPResponse:
        send = super().urlopen
        if redirect or self.sender is None:
            return send(method, url, body, headers, retries, redirect, assert_same_host, **kw)
        if not isinstance(retries, Retry):
            retries = Retry.from_int(retries, redirect=redirect, default=self.retries)
        own = HTTPHeaderDict(self.headers if headers is None else headers)
        timeout = self._get_timeout(kw.pop("timeout", Timeout.DEFAULT_TIMEOUT))
        whole = kw.pop("preload_content", True)
        replayable, kw["body_pos"] = _replayable(body, kw.get("body_pos"))

        def once(cut: Timeout) -> BaseHTTPResponse:
            response = send(
                method, url, body, own, False, False, assert_same_host, timeout=cut, preload_content=False, **kw
            )
            response.retries = retries  # the manager counts redirects by it
            if whole:
                _load(response)
            return response

        request = f"{self.scheme}://{self._authority()}{url}"
        return self.sender.send(method, self.host, own, timeout, replayable, once, request)

    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


class _HTTPSPool(_Pool, HTTPSConnectionPool):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The same over TLS."""


class Sender(Generic[R]):
    """Sends the requests of one client, each as a call of the policy.

    `read` tells status and headers of a response; `let_go` frees its connection, within so many seconds; `too_late`
    makes the library's error for a request whose deadline has passed. A policy without a name goes by `name` in
    reports.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        judge_error: JudgeError,
        read: ReadResponse,
        let_go: Callable[[R, float], None],
        too_late: Callable[[Any], Exception],
        *,
        idempotency_key: bool,
        timeouts: Timeouts | None,
        secrets: Secrets,
        key: Key,
        host: KeyOf,
    ) -> None:
        if not isinstance(idempotency_key, bool):
            raise TypeError(f"idempotency_key must be True or False, not {idempotency_key!r}")
        if timeouts is not None and not all(
            callable(getattr(timeouts, name, None)) for name in ("request", "connect", "observe")
        ):
            raise TypeError(f"timeouts must have request(), connect() and observe(), not be {timeouts!r}")
        if isinstance(policy, Policy) and not policy.name:
            policy = policy.replace(name=name)
        self._made_from = (name, policy, judge_error, read, let_go, too_late)
        self._judge_error = judge_error
        self._responses = OnResponses(read)
        self._plan = Plan(policy, self._judge, read)
        self._read = read
        self._let_go = let_go
        self._too_late = too_late
        self._keys = idempotency_key
        self._timeouts = timeouts
        self._secrets = secrets
        self._key: Key = key
        self._host = host
        self._key_of = key_of(key, host)

    def __reduce__(self) -> tuple[Callable[..., Sender[R]], tuple[Any, ...]]:
        made = partial(
            Sender,
            idempotency_key=self._keys,
            timeouts=self._timeouts,
            secrets=self._secrets,
            key=self._key,
            host=self._host,
        )
        return made, self._made_from

    def send(
        self,
        method: str,
        host: str | None,
        headers: MutableMapping[str, str],
        timeout: Timeout,
        replayable: bool,
        once: Callable[[Timeout], R],
        request: object,
    ) -> R:
        """Make a call of it: `once` makes an attempt, within the timeout it is given; `request` is what has a key."""
        if self._keys and not http.repeatable(method, headers):
            headers[http.KEY_HEADER] = new_key()
        policy = self._plan.for_request(method, headers, replayable=replayable, key=self._key_of(request))
        held: R | None = None
        attempts = 0

        def let_go(left: float | None) -> None:
            nonlocal held
            response, held = held, None
            if response is not None:
                self._let_go(response, reading_time(left))

        @keeps_deadline
        def attempt() -> R:
            nonlocal held, attempts
            let_go(remaining())
            attempts += 1
            if late():
                raise self._too_late(request)
            self._secrets.outfit(headers, host, attempts)
            held = self._timed(once, timeout)
            return held

        try:
            if tally.watch.on:
                counted = partial(tally.counted, self._plan.policy.tally, threads.drive)
                response: R = counted(policy, None, 0, attempt, (), {}, let_go=let_go)
                return response
            return threads.drive(policy, None, 0, attempt, (), {}, let_go=let_go)
        except RetryExhausted:
            raise  # it carries the response
        except BaseException:
            let_go(0.0)  # something else than the policy ended the call
            raise

    def _timed(self, once: Callable[[Timeout], R], timeout: Timeout) -> R:
        """Make an attempt within what time it is allowed, and have it timed."""
        if self._timeouts is None:
            return once(_cut(timeout))
        cut = _cut(timeout, self._timeouts.connect(), self._timeouts.request())
        with Stopwatch(self._timeouts, self._judge_error) as watch:
            token = _watch.set(watch)
            try:
                response = once(cut)
            finally:
                _watch.reset(token)
            watch.answered(self._read(response)[0])
        return response

    def _judge(self, error: Exception) -> Ruling | None:
        """An error in the body of a bad response says less than its status and its ``Retry-After``."""
        response = getattr(error, "response", None)
        ruling = None if response is None else self._responses.judge(Outcome(result=response))
        return ruling or self._judge_error(error)


def judge(error: Exception) -> Ruling | None:
    """The ruling on an error of urllib3's.

    >>> judge(urllib3.exceptions.ProtocolError("Connection aborted."))
    Ruling(retry=True, reason='blip', hint=None, reached=True, safe=None, answered=False)
    """
    if isinstance(error, ProxyError):
        error = error.original_error
    if isinstance(error, NewConnectionError):
        return UNREACHED
    if isinstance(error, (ConnectTimeoutError, EmptyPoolError)):
        return BUSY
    if isinstance(error, ReadTimeoutError):
        return OVERLOAD
    if isinstance(error, ProtocolError):
        return OVERLOAD if isinstance(error.args[-1], TimeoutError) else BLIP  # the request could not be written
    if isinstance(error, InvalidHeader):
        return BLIP
    return nature(error) if isinstance(error, OSError) else None


def _too_late(request: object) -> Exception:
    return ConnectTimeoutError(TOO_LATE)


def _host(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return parts.hostname, parts.port


def warn_of(retry: Retry, stacklevel: int) -> None:
    """Warn if urllib3 is asked to retry by itself; redirects, which it counts as retries, are not meant."""
    counts = (retry.connect, retry.read, retry.status, retry.other)
    allowed = [retry.total if count is None else count for count in counts]
    # False is no number here, and means none
    if (retry.total is None or retry.total > 0) and any(count is None or count > 0 for count in allowed):
        warnings.warn(
            f"{retry!r} would multiply with the retries of the policy, and is not used: leave it out,"
            " or let it limit nothing but redirects",
            LayeredRetryWarning,
            stacklevel=stacklevel,
        )


_watch: ContextVar[Stopwatch | None] = ContextVar("abate_urllib3_watch", default=None)


def bounded(pools: Mapping[str, type[HTTPConnectionPool]]) -> dict[str, type[HTTPConnectionPool]]:
    """The same classes of pools, but the deadline bounds every read from their connections, and connects are timed."""
    return {scheme: _bounded(pool) for scheme, pool in pools.items()}


def _bounded(pool: type[HTTPConnectionPool]) -> type[HTTPConnectionPool]:
    inner: Any = pool.ConnectionCls
    if issubclass(inner, _Connection):
        return pool
    connection = type(inner.__name__, (_Connection, inner), {})
    return type(pool.__name__, (pool,), {"ConnectionCls": connection})


class _Response(HTTPResponse):
    """A response that is read within the deadline."""

    def __init__(self, sock: Socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(_Opener(sock), *args, **kwargs)  # type: ignore[arg-type]  # all it does is to call makefile


class _Connection:
    """What the connections of all pools have in common; to be mixed into a class of urllib3's."""

    response_class = _Response

    def connect(self) -> None:
        """Open the connection, and show that to the attempt that needs it."""
        watch, connect = _watch.get(), super().connect  # type: ignore[misc]
        if watch is None:
            connect()
        else:
            watch.connecting()
            connect()
            watch.connected()


class _Opener:
    """Opens a socket for reading, as ``socket.makefile`` does."""

    def __init__(self, sock: Socket) -> None:
        self._sock = sock

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Stream(self._sock))


class _Stream(io.RawIOBase):
    """Reads from a socket. Its timeout is for one read, and a deadline is for all: each read gets what is left."""

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
            self._sock.settimeout(_least(self._timeout, left))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _cut(timeout: Timeout, connect: float | None = None, request: float | None = None) -> Timeout:
    """A timeout that is no longer than these, and than what remains until the deadline.

    `request` bounds reads, and not the total: that would bound the connect by what a request takes.
    """
    own = timeout.clone()
    own.total = None  # what is left are the two for connecting and reading
    total = Timeout.resolve_default_timeout(timeout.total)
    return Timeout(
        total=_positive(_least(total, remaining())),
        connect=_positive(_least(Timeout.resolve_default_timeout(own.connect_timeout), connect)),
        read=_positive(_least(own.read_timeout, request)),
    )


def _least(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)


def _positive(seconds: float | None) -> float | None:
    return None if seconds is None else max(seconds, SHORTEST)


def _replayable(body: Any, position: Any) -> tuple[bool, Any]:
    """Can a body be sent twice? And from which position, if it is a file."""
    if body is None or isinstance(body, (bytes, bytearray, memoryview, str, list, tuple)):
        return True, position
    if not rewinds(body):
        return False, position
    return True, body.tell() if position is None else position


def rewinds(body: Any) -> bool:
    """Is this a file that can be read again?"""
    seekable = getattr(body, "seekable", None)
    return callable(seekable) and bool(seekable())


def _read(response: BaseHTTPResponse) -> tuple[int, Mapping[str, str]]:
    return response.status, response.headers


def _load(response: BaseHTTPResponse) -> None:
    """Read a response whole; an error carries the response in whose body it came."""
    try:
        response.data  # noqa: B018  (kept by the response)
    except HTTPError as error:
        error.response = response  # type: ignore[attr-defined]
        raise


def let_go(response: Any, seconds: float) -> None:
    """Have done with a response: its connection serves others, if the body ends within so many seconds.

    Then the body is kept, for who gets the response after all; otherwise it is cut off.
    """
    if not response.closed:
        body: bytes | None = None
        try:
            if seconds and (response.length_remaining or 0) <= READ_AT_MOST:
                with suppress(Exception), deadline(seconds):  # the connection is gone, and so is the response
                    body = _read_whole(response)
        finally:
            if body is None:
                response.close()
            response._fp = _CutOff() if body is None else io.BytesIO(body)
            response.length_remaining, response.chunked = None if body is None else len(body), False
    response.release_conn()


def _read_whole(response: Any) -> bytes | None:
    """Read a body as it comes, without decoding it; None if its end is not near."""
    body = bytearray()
    while part := response.read(READ_AT_MOST + 1 - len(body), decode_content=False):
        body += part
        if len(body) > READ_AT_MOST:
            return None
    return bytes(body)


class _CutOff(io.RawIOBase):
    """What is left of a body whose connection was closed."""

    def readinto(self, buffer: Any) -> int:
        raise OSError(CUT_OFF)
