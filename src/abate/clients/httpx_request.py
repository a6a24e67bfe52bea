"""One request of the httpx transports: its attempts, and the response that a further attempt may replace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self

from abate import clock as clocks
from abate.call.layers import report
from abate.clients.http_client import (
    BODY_DISCARDED,
    DEADLINE_PASSED,
    MAX_DRAIN_BYTES,
    MIN_TIMEOUT,
    drain_timeout,
    new_idempotency_key,
)
from abate.decide.http import KEY_HEADER
from abate.errors import AttemptTimeout, Report, RetryExhausted
from abate.schedule.deadlines import cut_to_deadline, deadline_aware, deadline_passed, remaining

if TYPE_CHECKING:
    from abate.clients.httpx import RetryingTransport

REPORT = "abate_report"
"""The key of the `Report` of a response that was given up on: ``response.extensions["abate_report"]``."""


class RequestInFlight:
    """One request: the number of its attempts, and the last response, which may yet be discarded."""

    def __init__(
        self,
        owner: RetryingTransport,
        request: Any,
        replayable: bool,
        first_response: Any,
        failure: Exception | None,
    ) -> None:
        self.owner = owner
        self.request = request
        # an idempotency key belongs to this call, not to the next call with the same request
        settings = owner.settings
        self.key = new_idempotency_key() if settings.needs_idempotency_key(request.method, request.headers) else None
        headers = request.headers if self.key is None else {KEY_HEADER: self.key}
        self.policy = settings.policy_for(request, request.method, headers, replayable=replayable)
        self.attempt = 0 if first_response is None and failure is None else 1
        self.first_response = first_response  # of a first attempt that the transport made itself
        self.held: Any = None
        self.sent = False
        self.extensions: Any = request.extensions  # of the attempt that brought the last response
        self.waited = 0.0
        self._began = self.now()
        self._waiting_since: float | None = None
        self._exhausted: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._exhausted = error if self.gave_up(error) else None
        return self._exhausted is not None

    def gave_up(self, error: BaseException | None) -> bool:
        """Return whether this is the policy's own error, which is not raised to the caller."""
        return isinstance(error, RetryExhausted) and report(error) is error.report and not self.owner.raises_exhausted

    @deadline_aware
    def send(self) -> Any:
        """Make the next attempt."""
        if self.first_response is not None:
            self.held, self.first_response = self.first_response, None
            return self.held
        self.sent = False
        self.release(remaining())
        self.begin()
        with self.owner.prepared(self):
            self.held = self.owner.inner.handle_request(self.request)
        return self.held

    @deadline_aware
    async def asend(self) -> Any:
        """Make the next attempt; a deadline cuts it off."""
        if self.first_response is not None:
            self.held, self.first_response = self.first_response, None
            return self.held
        self.sent = False
        await self.arelease(remaining())
        self.begin()
        with self.owner.prepared(self):
            left = remaining()
            cut = nullcontext() if left is None else clocks.current().within(left)
            async with cut:
                self.held = await self.owner.inner.handle_async_request(self.request)
        return self.held

    def now(self) -> float:
        """Return the time on the policy's clock."""
        return (self.policy.clock or clocks.current()).now()

    def left(self, error: BaseException) -> float | None:
        """Return the seconds for reading the response when the call ends with this error; 0 if the error has none."""
        if not isinstance(error, RetryExhausted):
            return 0.0
        timeout = self.policy.timeout
        return cut_to_deadline(None if timeout is None else max(0.0, self._began + timeout - self.now()))

    def begin(self) -> None:
        """Begin an attempt: end the wait before it, and raise a timeout if the deadline has passed."""
        self.attempt += 1
        if self._waiting_since is not None:
            self.waited += self.now() - self._waiting_since
            self._waiting_since = None
        if deadline_passed():
            raise self.owner.library.ConnectTimeout(DEADLINE_PASSED, request=self.request)
        self.sent = True

    def pause(self, left: float | None) -> None:
        """Release the last response before a wait."""
        self._waiting_since = self._waiting_since or self.now()
        self.release(left)

    async def apause(self, left: float | None) -> None:
        """Do the same for async responses."""
        self._waiting_since = self._waiting_since or self.now()
        await self.arelease(left)

    def release(self, left: float | None) -> None:
        """Discard the last response. If its body ends soon, the connection is reused and the body kept.

        Otherwise the connection is closed. `left` is the number of seconds until the call's deadline.
        """
        response, self.held = self.held, None
        if response is None:
            return
        # half of the time for all reads but the last, half for the last
        stream, seconds = response.stream, drain_timeout(left) / 2
        body: bytes | None = None
        try:
            if seconds and _is_small(response):
                with suppress(Exception), _short_reads(self.extensions, seconds):
                    body = _drain(stream, seconds)
        finally:
            self._restore_body(response, body)
            with suppress(Exception):  # a connection that fails here is closed
                stream.close()

    async def arelease(self, left: float | None) -> None:
        """Do the same for async responses."""
        response, self.held = self.held, None
        if response is None:
            return
        stream, seconds = response.stream, drain_timeout(left)
        body: bytes | None = None
        try:
            if seconds and _is_small(response):
                with suppress(Exception):
                    body = await _adrain(stream, seconds)
        finally:
            self._restore_body(response, body)
            with suppress(Exception):  # a connection that fails here is closed
                await stream.aclose()

    def _restore_body(self, response: Any, body: bytes | None) -> None:
        """Give a discarded response the body that was read, or one that raises."""
        response.request = self.request
        discarded = self.owner.discarded_stream
        response.stream = discarded(response, self.request) if body is None else self.owner.byte_stream(body)

    def finish(self, response: Any = None) -> Any:
        """Return the response, with a report if it is a bad one, or raise the library's error."""
        if response is not None:
            if response.status_code >= 400:
                response.extensions[REPORT] = Report(
                    self.owner.settings.policy.name, self.attempt, self.waited, "fatal"
                )
            return response
        exhausted, self._exhausted = self._exhausted, None
        error = exhausted.__cause__
        try:
            if isinstance(error, AttemptTimeout):
                library = self.owner.library
                kind, said = (
                    (library.TimeoutException, str(error)) if self.sent else (library.ConnectTimeout, DEADLINE_PASSED)
                )
                raise kind(said, request=self.request) from error
            if error is not None:
                raise error
            exhausted.result.extensions[REPORT] = exhausted.report
            return exhausted.result
        finally:
            del error, exhausted  # break the cycle: their tracebacks refer to this frame


def _is_small(response: Any) -> bool:
    """Return whether the headers allow a body short enough to read."""
    length = response.headers.get("Content-Length", "0")
    return not length.isdecimal() or int(length) <= MAX_DRAIN_BYTES


@contextmanager
def _short_reads(extensions: Any, seconds: float) -> Iterator[None]:
    """Bound each read of a body: httpx looks at the request's extensions when reading begins."""
    missing = object()
    kept = extensions.get("timeout", missing)
    extensions["timeout"] = {**({} if kept is missing else kept), "read": max(seconds, MIN_TIMEOUT)}
    try:
        yield
    finally:
        if kept is missing:
            del extensions["timeout"]
        else:
            extensions["timeout"] = kept


def _drain(stream: Any, seconds: float) -> bytes | None:
    """Read a body; return None if it does not end soon."""
    body, due = bytearray(), clocks.current().now() + seconds
    for chunk in stream:
        body += chunk
        if len(body) > MAX_DRAIN_BYTES or clocks.current().now() > due:
            return None
    return bytes(body)


async def _adrain(stream: Any, seconds: float) -> bytes | None:
    """Do the same for an async body, and cut it off in time."""
    body, parts = bytearray(), aiter(stream)
    cut = clocks.current().within(seconds)
    async with cut:
        while len(body) <= MAX_DRAIN_BYTES:
            try:
                body += await anext(parts)
            except StopAsyncIteration:
                return bytes(body)
    # the library's generators must not be abandoned: cut them off where they wait
    cut = clocks.current().within(0.0)
    async with cut:
        while True:
            await anext(parts)


def discarded_stream(library: Any) -> Callable[[Any, Any], Any]:
    """Return the stream class for a library's responses whose connection was closed: reading it raises."""

    class DiscardedStream(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, response: Any, request: Any) -> None:
            self._response, self._request = f"{response.status_code} {response.reason_phrase}", request

        def error(self) -> Exception:
            error: Exception = library.ReadError(f"{self._response}: {BODY_DISCARDED}", request=self._request)
            return error

        def __iter__(self) -> Iterator[bytes]:
            raise self.error()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            raise self.error()
            yield b""

    return DiscardedStream
