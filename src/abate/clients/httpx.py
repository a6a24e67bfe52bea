"""Retries for httpx, and for httpx2, which has the same interface: transports that stand around another one.

Redirects, auth, cookies and streaming stay the client's; each request that it sends is one call of the policy.

* A response that is not the final one is read to its end, if that is near, and closed before every wait, for the
  backoff or in a shelter, so that its connection serves others. Where a gate or a shelter refuses the next attempt
  after the wait, it is the final one after all: a body of more than 64 KB is gone then, and reading it is a
  ``ReadError``.
* The final response is handed over unread: what fails later, in its body, is not retried.
* The timeouts of an attempt are cut to what remains until the deadline. Where nothing remains, nothing is sent: the
  error is a ``ConnectTimeout``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self

from abate import clock as clocks
from abate.call import tally, tasks, threads
from abate.call.giveup import give_ups, report
from abate.call.policy import Policy
from abate.clients.exchange import (
    ATTEMPT,
    CUT_OFF,
    DEADLINE,
    EXHAUSTED,
    READ_AT_MOST,
    TOO_LATE,
    JudgeError,
    Key,
    Plan,
    Secrets,
    Stopwatch,
    Timeouts,
    key_of,
    late,
    new_key,
    reading_time,
)
from abate.clients.trust import SECRET, Secret
from abate.decide.http import KEY_HEADER, SAFE_METHODS
from abate.decide.outcome import BLIP, OVERLOAD, UNREACHED, Ruling
from abate.errors import AttemptTimeout, LayeredRetryWarning, Report, RetryExhausted
from abate.redact import shown
from abate.schedule.deadlines import keeps_deadline, remaining, shorter

if TYPE_CHECKING:
    import httpx
else:
    try:
        import httpx
    except ModuleNotFoundError:
        import httpx2 as httpx

REPORT = "abate_report"
"""Where a response that was given up on carries its `Report`: ``response.extensions["abate_report"]``."""

BUSY = Ruling.overload(reached=False)
SHORTEST = 0.001
"""Seconds; a timeout is not cut below this, because zero would mean not to wait for the socket at all."""

CONNECTS = {
    "connect_tcp.started": Stopwatch.connecting,
    "connect_tcp.complete": Stopwatch.connected,
    "connect_unix_socket.started": Stopwatch.connecting,
    "connect_unix_socket.complete": Stopwatch.connected,
    "start_tls.started": Stopwatch.connecting,
    "start_tls.complete": Stopwatch.connected,
}
"""What the events of httpx's ``trace`` extension mean, whoever says so: "connection", "proxy" or "socks"."""


class _Around:
    """What both transports share: everything that doesn't wait."""

    _plain: type[Any]
    _sends_by: str
    _traced: Any

    def __init__(
        self,
        policy: Policy,
        transport: Any = None,
        *,
        idempotency_key: bool = False,
        timeouts: Timeouts | None = None,
        secrets: Mapping[str, Secret] | None = None,
        key: Key = None,
    ) -> None:
        inner = self._plain() if transport is None else transport
        if not isinstance(policy, Policy):
            raise TypeError(f"policy must be a Policy, not {shown(policy)}")
        if not callable(getattr(inner, self._sends_by, None)):
            raise TypeError(f"transport must have {self._sends_by}(), not be {inner!r}")
        if not isinstance(idempotency_key, bool):
            raise TypeError(f"idempotency_key must be True or False, not {shown(idempotency_key)}")
        needed = () if timeouts is None else ("request", "connect", "observe")
        if not all(callable(getattr(timeouts, name, None)) for name in needed):
            raise TypeError(f"timeouts must have request(), connect() and observe(), not be {timeouts!r}")
        self.inner = inner
        self.library = _library(inner)
        self.name: str = policy.name or self.library.__name__
        self.policy = policy if policy.name else policy.replace(name=self.name)
        """The policy as it was given, under its name: it has the tally, which is seen from outside."""
        self.wraps = policy.raises == "exhausted"
        # a final response has no other way to bring its report than inside an error, which is taken off it again
        fitted = self.policy.replace(raises="exhausted")
        self._judge = _judge_by(self.library)
        self.plan = Plan(fitted, self._judge, _read)
        self._keys = idempotency_key
        self._timeouts = timeouts
        self._secrets = Secrets(secrets)
        self.bytes: type = self.library.ByteStream
        self.cut_off = _cut_off(self.library)
        self._deposit = policy.budget.deposit
        self.key_of = key_of(key, _host)
        self._quick = policy.plain and timeouts is None and policy.shelter is None and key is None
        if getattr(getattr(inner, "_pool", None), "_retries", 0):
            multiply = f"{inner!r} retries as well, and retries multiply: build it with retries=0"
            warnings.warn(multiply, LayeredRetryWarning, stacklevel=2)

    def short_of_key(self, request: httpx.Request) -> bool:
        """Is this request to be given a key?"""
        return self._keys and request.method not in SAFE_METHODS and KEY_HEADER not in request.headers

    def foreign(self, request: httpx.Request) -> bool:
        """Are the headers that travel with this request more than its number, or has it some that are not ours?"""
        headers = request.headers
        return bool(self._secrets.given) or DEADLINE in headers or SECRET in headers

    @contextmanager
    def outfitted(self, exchange: _Exchange) -> Iterator[None]:
        """For one attempt: its headers, and its timeouts."""
        request, attempt, key = exchange.request, exchange.attempt, exchange.key
        request.headers[ATTEMPT] = str(attempt)
        kept, watch = (request.headers, request.extensions), None
        if key is not None or self._timeouts is not None or remaining() is not None or self.foreign(request):
            request.headers = request.headers.copy()
            self._secrets.outfit(request.headers, request.url.host, attempt)
            if key is not None:
                request.headers[KEY_HEADER] = key
            request.extensions = {**request.extensions, "timeout": self._cut(request.extensions.get("timeout", {}))}
        if self._timeouts is not None:
            watch = Stopwatch(self._timeouts, self._judge)
            request.extensions["trace"] = self._traced(watch, request.extensions.get("trace"))
        exchange.extensions = request.extensions
        try:
            with watch or nullcontext():
                yield
                if watch is not None:
                    watch.answered(exchange.held.status_code)
        finally:
            request.headers, request.extensions = kept  # whoever sends it again does so at another time

    def _cut(self, given: Mapping[str, float | None]) -> dict[str, float | None]:
        own, left = self._timeouts, remaining()
        bounds = {} if own is None else {"connect": own.connect(), "read": own.request()}
        cut: dict[str, float | None] = {}
        for phase in ("connect", "read", "write", "pool"):
            known = [seconds for seconds in (given.get(phase), bounds.get(phase), left) if seconds is not None]
            cut[phase] = max(min(known), SHORTEST) if known else None
        return cut


class _Exchange:
    """One request on its way: the number of its attempt, and the response that may yet be discarded."""

    def __init__(
        self, around: _Around, request: httpx.Request, replayable: bool, made: Any, failure: Exception | None
    ) -> None:
        self.around = around
        self.request = request
        # a key is this call's, and not that of the next one with the same request
        self.key = new_key() if around.short_of_key(request) else None
        headers = request.headers if self.key is None else {KEY_HEADER: self.key}
        self.policy = around.plan.for_request(
            request.method, headers, replayable=replayable, key=around.key_of(request)
        )
        self.attempt = 0 if made is None and failure is None else 1
        self.made = made  # the response to a first attempt that is over already
        self.held: Any = None
        self.sent = False
        self.extensions: Any = request.extensions  # those that the response that is held was asked for with
        self.waited = 0.0
        self._began = self.now()
        self._paused: float | None = None
        self._exhausted: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._exhausted = error if self.gave_up(error) else None
        return self._exhausted is not None

    def gave_up(self, error: BaseException | None) -> bool:
        """Is this error the policy's own, and to be taken off again?"""
        return isinstance(error, RetryExhausted) and report(error) is error.report and not self.around.wraps

    @keeps_deadline
    def send(self) -> Any:
        """Make the next attempt."""
        if self.made is not None:
            self.held, self.made = self.made, None
            return self.held
        self.sent = False
        self.let_go(remaining())
        self.begin()
        with self.around.outfitted(self):
            self.held = self.around.inner.handle_request(self.request)
        return self.held

    @keeps_deadline
    async def asend(self) -> Any:
        """Make the next attempt; a deadline cuts it off."""
        if self.made is not None:
            self.held, self.made = self.made, None
            return self.held
        self.sent = False
        await self.alet_go(remaining())
        self.begin()
        with self.around.outfitted(self):
            left = remaining()
            cut = nullcontext() if left is None else clocks.current().within(left)
            async with cut:
                self.held = await self.around.inner.handle_async_request(self.request)
        return self.held

    def now(self) -> float:
        """The time on the policy's clock."""
        return (self.policy.clock or clocks.current()).now()

    def left(self, error: BaseException) -> float | None:
        """Seconds to read the response in, where the call ends with this error: none, unless the error carries it."""
        if not isinstance(error, RetryExhausted):
            return 0.0
        timeout = self.policy.timeout
        return shorter(None if timeout is None else max(0.0, self._began + timeout - self.now()))

    def begin(self) -> None:
        """An attempt begins: whatever was waited for is over, and perhaps the time as well."""
        self.attempt += 1
        if self._paused is not None:
            self.waited += self.now() - self._paused
            self._paused = None
        if late():
            raise self.around.library.ConnectTimeout(TOO_LATE, request=self.request)
        self.sent = True

    def pause(self, left: float | None) -> None:
        """Let go of the response before a wait."""
        self._paused = self._paused or self.now()
        self.let_go(left)

    async def apause(self, left: float | None) -> None:
        """The same, for async responses."""
        self._paused = self._paused or self.now()
        await self.alet_go(left)

    def let_go(self, left: float | None) -> None:
        """Have done with the response that is held: its connection serves others, if the body ends soon.

        Then the body is kept, for who gets the response after all; otherwise it is cut off. `left` are the seconds
        until the call's deadline.
        """
        response, self.held = self.held, None
        if response is None:
            return
        # half of the time for all reads but the last one, half for that
        stream, seconds = response.stream, reading_time(left) / 2
        body: bytes | None = None
        try:
            if seconds and _ends_soon(response):
                with suppress(Exception), _hurried(self.extensions, seconds):
                    body = _read_for(stream, seconds)
        finally:
            self._put_back(response, body)
            with suppress(Exception):  # the connection is gone, and so is the response
                stream.close()

    async def alet_go(self, left: float | None) -> None:
        """The same, for async responses."""
        response, self.held = self.held, None
        if response is None:
            return
        stream, seconds = response.stream, reading_time(left)
        body: bytes | None = None
        try:
            if seconds and _ends_soon(response):
                with suppress(Exception):
                    body = await _aread_for(stream, seconds)
        finally:
            self._put_back(response, body)
            with suppress(Exception):  # the connection is gone, and so is the response
                await stream.aclose()

    def _put_back(self, response: Any, body: bytes | None) -> None:
        """Give a response that was let go what is left of its body."""
        response.request = self.request
        cut_off = self.around.cut_off
        response.stream = cut_off(response, self.request) if body is None else self.around.bytes(body)

    def ended(self, response: Any = None) -> Any:
        """What the caller gets: a response, with its report if it is a bad one, or an error of the library's."""
        if response is not None:
            if response.status_code >= 400:
                response.extensions[REPORT] = Report(self.around.name, self.attempt, self.waited, "fatal")
            return response
        exhausted, self._exhausted = self._exhausted, None
        error = exhausted.__cause__
        try:
            if isinstance(error, AttemptTimeout):
                library = self.around.library
                kind, said = (library.TimeoutException, str(error)) if self.sent else (library.ConnectTimeout, TOO_LATE)
                raise kind(said, request=self.request) from error
            if error is not None:
                raise error
            exhausted.result.extensions[REPORT] = exhausted.report
            return exhausted.result
        finally:
            del error, exhausted  # their tracebacks hold this frame: don't hold them back


def _ends_soon(response: Any) -> bool:
    """Is the end of a body near, as far as its headers tell?"""
    length = response.headers.get("Content-Length", "0")
    return not length.isdecimal() or int(length) <= READ_AT_MOST


@contextmanager
def _hurried(extensions: Any, seconds: float) -> Iterator[None]:
    """Bound each read of a response's body: httpx looks into the request's extensions when the reading begins."""
    missing = object()
    kept = extensions.get("timeout", missing)
    extensions["timeout"] = {**({} if kept is missing else kept), "read": max(seconds, SHORTEST)}
    try:
        yield
    finally:
        if kept is missing:
            del extensions["timeout"]
        else:
            extensions["timeout"] = kept


def _read_for(stream: Any, seconds: float) -> bytes | None:
    """Read a body; None if it does not end soon."""
    body, due = bytearray(), clocks.current().now() + seconds
    for chunk in stream:
        body += chunk
        if len(body) > READ_AT_MOST or clocks.current().now() > due:
            return None
    return bytes(body)


async def _aread_for(stream: Any, seconds: float) -> bytes | None:
    """The same for an async one, which is cut off in time."""
    body, parts = bytearray(), aiter(stream)
    cut = clocks.current().within(seconds)
    async with cut:
        while len(body) <= READ_AT_MOST:
            try:
                body += await anext(parts)
            except StopAsyncIteration:
                return bytes(body)
    # the library's generators do not take it well to be left before their end: cut them off where they wait
    cut = clocks.current().within(0.0)
    async with cut:
        while True:
            await anext(parts)


class Transport(_Around, httpx.BaseTransport):
    """An httpx transport that retries by a policy. It stands around `transport`, or a plain ``HTTPTransport``.

    * `policy`: asked after the rules for httpx's own errors, and before HTTP's table for responses.
    * `transport`: what sends; one of httpx2's makes this one fit for ``httpx2.Client``.
    * `idempotency_key`: put an ``Idempotency-Key`` on requests whose method is not safe and which have none, the same
      one on every attempt. For servers that know what it means.
    * `timeouts`: an object whose ``request()`` and ``connect()`` bound the read and connect timeouts, and whose
      ``observe(seconds)`` is told how long each good response took to come, without connecting. If it has
      ``observe_connect(seconds)``, that is told how long each new connection took to open, TLS included.
    * `secrets`: which hosts are sent which `abate.clients.trust.Secret`, so that services there believe this client:
      ``{"orders.internal": Secret(…), "*.shop.internal": Secret(…)}``. No other host is sent one, wherever redirects
      lead.
    * `key`: ``"host"`` gives each host and port a budget, gate and shelter of its own (see `Policy.keyed`); so does a
      function of the request, for what it answers.

    A body that cannot be replayed (a generator) is never sent twice. A response that was given up on has its
    `Report` in ``response.extensions["abate_report"]``, an error has it by `abate.report`. A deadline cuts httpx's
    timeouts, and those are for each read: in threads, a server that sends byte after byte is not interrupted.

    >>> import abate, httpx
    >>> answers = iter([503, 200])
    >>> server = httpx.MockTransport(lambda request: httpx.Response(next(answers)))
    >>> policy = abate.Policy(on=abate.http.transient, backoff=[0.0], name="orders")
    >>> with httpx.Client(transport=Transport(policy, server)) as client:
    ...     client.get("http://orders.example/42").status_code
    200
    """

    _plain = httpx.HTTPTransport
    _sends_by = "handle_request"

    def _traced(self, watch: Stopwatch, own: Callable[[str, Any], object] | None) -> Callable[[str, Any], object]:
        """A trace function that shows connects to a stopwatch, and everything to the request's own one."""

        def trace(event: str, info: Any) -> object:
            connect = CONNECTS.get(event.partition(".")[2])
            if connect is not None:
                connect(watch)
            return None if own is None else own(event, info)

        return trace

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, again where that is worth it."""
        return tally.counted(self.policy.tally, self._handle, request) if tally.watch.on else self._handle(request)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        replayable = type(request.stream) is self.bytes or _replays(request.stream)
        since, made, failure = give_ups.last, None, None
        if self._quick and remaining() is None and not self.short_of_key(request) and not self.foreign(request):
            request.headers[ATTEMPT] = "1"
            try:
                made = self.inner.handle_request(request)
                if made.status_code < 400:
                    self._deposit()
                    return made  # type: ignore[no-any-return]
            except Exception as error:
                failure = error
        with _Exchange(self, request, replayable, made, failure) as exchange:
            try:
                response = threads.drive(exchange.policy, failure, since, exchange.send, (), {}, let_go=exchange.pause)
                return exchange.ended(response)  # type: ignore[no-any-return]
            except BaseException as error:
                if not exchange.gave_up(error):
                    exchange.let_go(exchange.left(error))
                raise
            finally:
                del failure  # its traceback holds this frame: don't hold it back
        return exchange.ended()  # type: ignore[no-any-return]

    def close(self) -> None:
        self.inner.close()


class AsyncTransport(_Around, httpx.AsyncBaseTransport):
    """The same for ``httpx.AsyncClient``, under asyncio and trio; a deadline cuts off the attempt that it finds.

    >>> import abate, asyncio, httpx
    >>> answers = iter([503, 200])
    >>> server = httpx.MockTransport(lambda request: httpx.Response(next(answers)))
    >>> async def load():
    ...     policy = abate.Policy(on=abate.http.transient, backoff=[0.0], name="orders")
    ...     async with httpx.AsyncClient(transport=AsyncTransport(policy, server)) as client:
    ...         return (await client.get("http://orders.example/42")).status_code
    >>> asyncio.run(load())
    200
    """

    _plain = httpx.AsyncHTTPTransport
    _sends_by = "handle_async_request"

    def _traced(
        self, watch: Stopwatch, own: Callable[[str, Any], Awaitable[object]] | None
    ) -> Callable[[str, Any], Awaitable[object]]:
        """A trace function that shows connects to a stopwatch, and everything to the request's own one."""

        async def trace(event: str, info: Any) -> object:
            connect = CONNECTS.get(event.partition(".")[2])
            if connect is not None:
                connect(watch)
            return None if own is None else await own(event, info)

        return trace

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, again where that is worth it."""
        if tally.watch.on:
            return await tally.acounted(self.policy.tally, self._handle, request)
        return await self._handle(request)

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        replayable = type(request.stream) is self.bytes or _replays(request.stream)
        since, made, failure = give_ups.last, None, None
        if self._quick and remaining() is None and not self.short_of_key(request) and not self.foreign(request):
            request.headers[ATTEMPT] = "1"
            try:
                made = await self.inner.handle_async_request(request)
                if made.status_code < 400:
                    self._deposit()
                    return made  # type: ignore[no-any-return]
            except Exception as error:
                failure = error
        with _Exchange(self, request, replayable, made, failure) as exchange:
            try:
                response = await tasks.drive(
                    exchange.policy, failure, since, exchange.asend, (), {}, let_go=exchange.apause
                )
                return exchange.ended(response)  # type: ignore[no-any-return]
            except BaseException as error:
                if not exchange.gave_up(error):
                    await exchange.alet_go(exchange.left(error))
                raise
            finally:
                del failure  # its traceback holds this frame: don't hold it back
        return exchange.ended()  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        await self.inner.aclose()


def _library(inner: Any) -> Any:
    """The library that a transport belongs to: the errors and types of one are not those of the other."""
    if isinstance(inner, _Around):
        return inner.library
    roots = {kind.__module__.partition(".")[0] for kind in type(inner).__mro__}
    return sys.modules["httpx2"] if "httpx2" in roots else httpx


def _cut_off(library: Any) -> Callable[[Any, Any], Any]:
    """What a library's response has for a stream once its connection was closed: to read it is an error."""

    class CutOff(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, response: Any, request: Any) -> None:
            self._what, self._request = f"{response.status_code} {response.reason_phrase}", request

        def error(self) -> Exception:
            error: Exception = library.ReadError(f"{self._what}: {CUT_OFF}", request=self._request)
            return error

        def __iter__(self) -> Iterator[bytes]:
            raise self.error()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            raise self.error()
            yield b""

    return CutOff


def _judge_by(library: Any) -> JudgeError:
    """The rule for a library's errors; those it doesn't name are the program's own."""
    rulings = {
        (library.ConnectError,): UNREACHED,
        (library.ConnectTimeout, library.PoolTimeout): BUSY,
        (library.TimeoutException,): OVERLOAD,
        (library.ReadError, library.WriteError, library.RemoteProtocolError): BLIP,
    }
    return lambda error: next((ruling for kinds, ruling in rulings.items() if isinstance(error, kinds)), None)


def _read(response: Any) -> tuple[int, Mapping[str, str]]:
    """Status and headers of a response; one that a transport of ours inside gave up on says so."""
    inner = response.extensions.get(REPORT)
    layered = inner is not None and inner.reason != "fatal"
    return response.status_code, {EXHAUSTED: "1"} if layered else response.headers


def _host(request: Any) -> tuple[str, int | None]:
    return request.url.host, request.url.port


def _replays(stream: Any) -> bool:
    """Can this body be sent again? A multipart form rewinds its files, where they can be rewound."""
    if type(stream).__name__ != "MultipartStream":
        return False
    files = (field.file for field in stream.fields if hasattr(field, "file"))
    return all(isinstance(file, (bytes, str)) or getattr(file, "seekable", bool)() for file in files)
