"""One call of the httpx transports: its request, its attempts, and the response that a retry may replace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from abate import clock as clocks
from abate.call.layers import report
from abate.clients.http_client import (
    DEADLINE_PASSED,
    drain_timeout,
    is_judged_by_body,
    is_rewindable,
    new_idempotency_key,
)
from abate.clients.httpx_bodies import adrain, aload, drain, is_small, load, short_reads
from abate.decide.request_settings import idempotent_by_extension
from abate.errors import AttemptTimeout, RetryExhausted
from abate.schedule.deadlines import cut_by_itself, cut_to_deadline, deadline_aware, deadline_passed, remaining

if TYPE_CHECKING:
    from abate.call.policy import Policy
    from abate.clients.httpx_transport import RetryingTransport

EXTENSION = "abate"
"""The key of what a request says about itself: ``extensions={"abate": {"idempotent": True}}``."""
STREAM_READ = "abate_stream_read"
"""The key of the read timeout for the rest of a stream, after the call: it is not cut to the policy's own deadline."""


class HttpxCall:
    """The state of one request across its attempts: their number, and the last response, which a retry discards."""

    def __init__(
        self,
        owner: RetryingTransport,
        request: Any,
        first_response: Any,
        failure: Exception | None,
    ) -> None:
        self.owner = owner
        self.request = request
        # an idempotency key belongs to this call, not to the next call with the same request
        settings = owner.settings
        self.key = new_idempotency_key() if settings.needs_idempotency_key(request.method, request.headers) else None
        self.attempt = 0 if first_response is None and failure is None else 1
        self.held: Any = first_response
        if failure is not None:
            self._show_request(failure)
        self._first_is_new = first_response is not None
        self.sent = False
        self.extensions: Any = request.extensions  # of the attempt that brought the last response
        self._began = 0.0
        self.stream_read: float | None = None
        """The read timeout of the request, cut to the deadline around the call only."""
        self._exhausted: Any = None
        self._file = _file_of(request.stream)
        self._position = 0 if self._file is None else self._file.tell()

    def choose_policy(self) -> Policy:
        """Return the policy for this request."""
        request, owner = self.request, self.owner
        owner.check_request(request)
        says = request.extensions
        self.policy = owner.settings.policy_for(
            request,
            request.method,
            request.headers,
            has_key=self.key is not None,
            replayable=self._file is not None or _is_replayable(request.stream, owner.byte_stream),
            idempotent=idempotent_by_extension(says[EXTENSION]) if EXTENSION in says else None,
        )
        self._began = self.now()
        self.stream_read = cut_to_deadline(says.get("timeout", {}).get("read"))
        return self.policy

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._exhausted = error if self.gave_up(error) else None
        return self._exhausted is not None

    def gave_up(self, error: BaseException | None) -> bool:
        """Return whether this is the policy's own error; callers get the response or the library's error instead."""
        return isinstance(error, RetryExhausted) and report(error) is error.report and not self.owner.raises_exhausted

    @deadline_aware
    def send(self) -> Any:
        """Make the next attempt."""
        if self._first_is_new:
            self._first_is_new = False
            self._load_error()
            return self.held
        self.sent = False
        self.release(remaining())
        self.begin()
        with self.owner.prepared(self) as request:
            try:
                self.held = self.owner.inner.handle_request(request)
            except Exception as error:
                self._show_request(error)
                raise
        self._load_error()
        return self.held

    @cut_by_itself
    @deadline_aware
    async def asend(self) -> Any:
        """Make the next attempt; a deadline cuts it off."""
        if self._first_is_new:
            self._first_is_new = False
            await self._aload_error()
            return self.held
        self.sent = False
        await self.arelease(remaining())
        self.begin()
        with self.owner.prepared(self) as request:
            try:
                async with _within(remaining()):
                    self.held = await self.owner.inner.handle_async_request(request)
            except Exception as error:
                self._show_request(error)
                raise
        await self._aload_error()
        return self.held

    def _show_request(self, error: Any) -> None:
        """Set the request of an error, as the client does later: rules look at its URL and its method."""
        if isinstance(error, self.owner.library.RequestError):
            error.request = self.request

    def _load_error(self) -> None:
        """Read the body of an error that is to be judged by it."""
        seconds = self._error_seconds()
        if seconds:
            load(self.owner.streams, self.held, self.request, self.extensions, seconds / 2)  # as in `release`

    async def _aload_error(self) -> None:
        seconds = self._error_seconds()
        if seconds:
            await aload(self.owner.streams, self.held, self.request, seconds)

    def _error_seconds(self) -> float:
        """Return for how many seconds the body of the last response is read before it is judged."""
        response = self.held
        response.request = self.request  # for rules that read it
        status, headers = response.status_code, response.headers
        if status < 400 or not is_small(response):
            return 0.0
        if not is_judged_by_body(self.policy, response, status, headers, self.attempt):
            return 0.0
        return drain_timeout(remaining())

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
        """Begin an attempt: raise a timeout if the deadline has passed."""
        self.attempt += 1
        if deadline_passed():
            raise self.owner.library.ConnectTimeout(DEADLINE_PASSED, request=self.request)
        if self._file is not None and self.attempt > 1:
            self._file.seek(self._position)
        self.sent = True

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
            if seconds and is_small(response):
                with suppress(Exception), short_reads(self.extensions, seconds):
                    body = drain(stream, seconds)
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
            if seconds and is_small(response):
                with suppress(Exception):
                    body = await adrain(stream, seconds)
        finally:
            self._restore_body(response, body)
            with suppress(Exception):  # a connection that fails here is closed
                await stream.aclose()

    def _restore_body(self, response: Any, body: bytes | None) -> None:
        """Give a discarded response the body that was read, or one that raises."""
        response.request = self.request
        discarded = self.owner.streams.discarded
        response.stream = discarded(response, self.request) if body is None else self.owner.byte_stream(body)

    def finish(self) -> Any:
        """Return the response that the policy gave up on, or raise the library's error."""
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
            return exhausted.result
        finally:
            del error, exhausted  # break the cycle: their tracebacks refer to this frame


@asynccontextmanager
async def _within(left: float | None) -> AsyncIterator[None]:
    """Cut the block off after `left` seconds, and raise `AttemptTimeout`.

    On the machine's clock, this is done as httpx does it itself, by a scope of anyio. A task that asyncio cancels while
    httpx takes or closes a connection leaves it in the pool, where it is taken for ever.
    """
    clock = clocks.current()
    if left is None:
        yield
    elif clock is not clocks.MACHINE:
        async with clock.within(left):
            yield
    else:
        import anyio  # httpx and httpx2 are made of it, and import it at their first async connection

        with anyio.move_on_after(left) as scope:
            yield
        if scope.cancelled_caught:
            raise AttemptTimeout(left) from None


def _file_of(stream: Any) -> Any:
    """Return the file that is the body of a request (``content=``), if it can be read again."""
    file = getattr(stream, "_stream", None) if type(stream).__name__ == "IteratorByteStream" else None
    return file if is_rewindable(file) else None


def _is_replayable(stream: Any, byte_stream: type) -> bool:
    """Return whether this body can be sent again: a multipart form rewinds its files if they are seekable."""
    if type(stream) is byte_stream:
        return True
    if type(stream).__name__ != "MultipartStream":
        return False
    files = (field.file for field in stream.fields if hasattr(field, "file"))
    return all(isinstance(file, (bytes, str)) or getattr(file, "seekable", bool)() for file in files)
