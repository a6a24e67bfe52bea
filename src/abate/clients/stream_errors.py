"""Errors that an LLM API sends inside a stream that began with 200: before the first content they become responses.

The transports here lie below the retrying one. They read the beginning of each event stream, until the first content:

* `overloaded_error` and the like become a response with the status that the API would have sent (529, 429, 500, …) and
  the error as its JSON body, so that everything above treats it as that. The stream is closed.
* Otherwise the stream is handed on as it came, byte by byte, as soon as its first content is there. Pings, comments,
  `message_start`, `response.created`, announcements of text and chunks without text are held back until then.
* What is held back is bounded: after `MAX_HELD_BYTES` (packed or unpacked) or `MAX_HELD_SECONDS` the stream is handed
  on, whatever comes. A silent server is left to the timeouts of the request.

Streams of the Messages API, of chat completions, of the Responses API and of servers that speak one of them are read
alike. An unknown event is content. An encoding other than gzip and deflate is handed on unread.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, NamedTuple

import httpx2

from abate import clock as clocks
from abate.clients.httpx_bodies import cut_off, is_event_stream
from abate.clients.httpx_call import STREAM_READ
from abate.clients.sse_parser import EventParser, EventTooLarge, ServerSentEvent
from abate.decide.responses import STREAM_ERRORS
from abate.schedule.deadlines import deadline_passed

MAX_HELD_BYTES = 262_144
"""`response.created` repeats the instructions and the tools of the request."""
MAX_HELD_SECONDS = 60.0

PREAMBLE = frozenset(
    {"ping", "keepalive", "message_start", "response.created", "response.queued", "response.in_progress"}
)
"""Types of events that come before any content."""
ANNOUNCEMENTS = {
    "content_block_start": "content_block",
    "response.output_item.added": "item",
    "response.content_part.added": "part",
    "response.reasoning_summary_part.added": "part",
}
"""Types of events that announce content which follows, and the field with what they announce."""
TEXT_TYPES = frozenset(
    {"text", "thinking", "message", "reasoning", "output_text", "reasoning_text", "summary_text", "refusal"}
)
"""The announced types that are empty until their first piece comes. Others, such as a call of a tool, say something."""
TEXT_FIELDS = ("text", "thinking", "content", "summary", "refusal")

RESUMABLE = "httpx2._transports.default"
"""The module of the streams that another iterator continues; others, of transports of users, may begin again."""

STATUS = re.compile(r"[45][0-9]{2}")
UNKNOWN_ERROR = 500
STATUSES = {
    **STREAM_ERRORS,
    "authentication_error": 401,
    "billing_error": 402,
    "content_filter": 400,
    "content_policy_violation": 400,
    "context_length_exceeded": 400,
    "engine_overloaded": 529,
    "insufficient_quota": 429,  # as the API sends it; the body says that it is not to be retried
    "internal_server_error": 500,
    "invalid_api_key": 401,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "model_not_found": 404,
    "not_found_error": 404,
    "overloaded": 529,
    "permission_error": 403,
    "request_too_large": 413,
    "requests": 429,
    "server_is_overloaded": 529,
    "slow_down": 529,
    "tokens": 429,
    "too_many_requests": 429,
}
"""The statuses of errors, by their code or type; an error with none of these is a failure of the server."""


class StreamError(NamedTuple):
    """An error event, as a response: its status and its body."""

    status: int
    body: bytes


def error_status(error: object) -> int:
    """Return the status for the error object of an API.

    >>> error_status({"type": "overloaded_error"}), error_status({"code": "rate_limit_exceeded"}), error_status("?")
    (529, 429, 500)
    """
    if not isinstance(error, Mapping):
        return UNKNOWN_ERROR
    named = [error.get(field) for field in ("code", "type", "status")]
    for name in named:  # some servers send the status itself, Azure as text
        if isinstance(name, str) and STATUS.fullmatch(name):
            return int(name)
        if isinstance(name, int) and not isinstance(name, bool) and 400 <= name <= 599:
            return name
    return next((STATUSES[name] for name in named if isinstance(name, str) and name in STATUSES), UNKNOWN_ERROR)


def _word(data: Mapping[str, Any], field: str) -> str:
    """Return a text field, or an empty text: foreign JSON may hold anything."""
    value = data.get(field)
    return value if isinstance(value, str) else ""


def read_event(event: ServerSentEvent) -> StreamError | bool:
    """Return the error of an event, or else whether the event is content.

    >>> read_event(ServerSentEvent("ping", "{}")), read_event(ServerSentEvent(data="[DONE]"))
    (False, True)
    """
    try:
        data = json.loads(event.data)
    except (ValueError, RecursionError):
        data = event.data
    if event.event == "error" and not isinstance(data, dict):
        data = {"error": data or "unknown"}
    if not isinstance(data, dict):
        return event.event not in PREAMBLE
    found = data if event.event == "error" and not data.get("error") else _error_in(data)
    if found is not None:
        body = data if "error" in data else {"error": found}
        return StreamError(error_status(found), _as_json(body))
    kind = _word(data, "type")
    return not (event.event in PREAMBLE or kind in PREAMBLE or _is_empty_chunk(data) or _is_announcement(kind, data))


def _as_json(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body).encode()
    except RecursionError:  # one level deeper than what could just be read
        return b'{"error": {"message": "the error of the stream is nested too deeply"}}'


def _error_in(data: dict[str, Any]) -> object:
    """Return the error object of an event, or None."""
    if data.get("error"):
        return data["error"]
    if data.get("type") == "error":
        return data  # of the Responses API
    if data.get("type") == "response.failed":
        response = data.get("response")
        error = response.get("error") if isinstance(response, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(code, str) and STATUSES.get(code, 0) >= 429:
            return error  # any other failure is a result, which the SDK hands to the program
    return None


def _is_announcement(kind: str, data: dict[str, Any]) -> bool:
    """Return whether an event only says which kind of text comes next, as between `message_start` and its content."""
    announced = data.get(ANNOUNCEMENTS[kind]) if kind in ANNOUNCEMENTS else None
    if not isinstance(announced, dict) or _word(announced, "type") not in TEXT_TYPES:
        return False
    return not any(announced.get(field) for field in TEXT_FIELDS)


def _is_empty_chunk(data: dict[str, Any]) -> bool:
    """Return whether a chunk of chat completions has no content yet, as the first one, which names the role."""
    choices = data.get("choices")
    return isinstance(choices, list) and not data.get("usage") and all(map(_is_empty_choice, choices))


def _is_empty_choice(choice: object) -> bool:
    if not isinstance(choice, dict) or choice.get("finish_reason"):
        return False
    delta = choice.get("delta")
    return isinstance(delta, dict) and not any(value for name, value in delta.items() if name != "role")


class Beginning:
    """The beginning of one stream: the pieces that are held back, and what they say."""

    def __init__(self, decode: Callable[[bytes], bytes]) -> None:
        self.pieces: list[bytes] = []
        self._decode = decode
        self._parser = EventParser(max_event=MAX_HELD_BYTES)
        self._bytes = 0
        self._due = clocks.current().now() + MAX_HELD_SECONDS

    def hold(self, piece: bytes) -> StreamError | bool:
        """Take a piece; return the error that the stream begins with, or whether to hand it on."""
        self.pieces.append(piece)
        try:
            text = self._decode(piece)
            self._bytes += max(len(piece), len(text))  # a few bytes may stand for a megabyte of comments
            for event in self._parser.feed(text):
                found = read_event(event)
                if found:
                    return found
        except (EventTooLarge, zlib.error):
            return True
        if deadline_passed():
            raise httpx2.ReadTimeout("the deadline passed before any content came")
        return self._bytes > MAX_HELD_BYTES or clocks.current().now() >= self._due


class ErrorEventTransport(httpx2.BaseTransport):
    """Turn the error that a stream begins with into a response."""

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        self.inner = inner

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = self.inner.handle_request(request)
        beginning = _beginning(response)
        if beginning is None:
            return response
        stream: Any = response.stream
        found: StreamError | bool = False
        begun = rest = iter(stream)
        try:
            for piece in rest:
                found = beginning.hold(piece)
                if found:
                    break
        except BaseException:
            stream.close()
            raise
        if isinstance(found, StreamError):
            stream.close()
            return _error_response(response, found)
        if found and _restore_read_timeout(request) and type(stream).__module__ == RESUMABLE:
            # a generator of httpcore's has taken its timeout at its start; another one goes on where it stands
            rest = iter(stream)
        response.stream = _ResumedStream(beginning.pieces, rest, stream, begun)
        return response

    def close(self) -> None:
        self.inner.close()


class AsyncErrorEventTransport(httpx2.AsyncBaseTransport):
    """Do the same for ``httpx2.AsyncClient``."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self.inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self.inner.handle_async_request(request)
        beginning = _beginning(response)
        if beginning is None:
            return response
        stream: Any = response.stream
        found: StreamError | bool = False
        _restore_read_timeout(request)  # the wait for content is cut off from outside
        rest = aiter(stream)
        try:
            async for piece in rest:
                found = beginning.hold(piece)
                if found:
                    break
        except BaseException:
            await cut_off(rest)
            await stream.aclose()
            raise
        if isinstance(found, StreamError):
            await cut_off(rest)
            await stream.aclose()
            return _error_response(response, found)
        response.stream = _AsyncResumedStream(beginning.pieces, rest, stream)
        return response

    async def aclose(self) -> None:
        await self.inner.aclose()


class _ResumedStream(httpx2.SyncByteStream):
    """A stream of which the first pieces were read already."""

    def __init__(
        self, pieces: list[bytes], rest: Iterator[bytes], stream: httpx2.SyncByteStream, begun: Iterator[bytes]
    ) -> None:
        self._pieces, self._rest, self._stream = pieces, rest, stream
        self._begun = begun  # its end would close the stream

    def __iter__(self) -> Iterator[bytes]:
        pieces, self._pieces = self._pieces, []
        yield from pieces
        yield from self._rest

    def close(self) -> None:
        self._stream.close()


class _AsyncResumedStream(httpx2.AsyncByteStream):
    def __init__(self, pieces: list[bytes], rest: AsyncIterator[bytes], stream: httpx2.AsyncByteStream) -> None:
        self._pieces, self._rest, self._stream = pieces, rest, stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            yield piece
        async for piece in self._rest:
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def _restore_read_timeout(request: httpx2.Request) -> bool:
    """Give the rest of a stream its own read timeout if the attempt has cut it; return whether it has."""
    if STREAM_READ not in request.extensions:
        return False
    request.extensions["timeout"]["read"] = request.extensions[STREAM_READ]
    return True


def _beginning(response: httpx2.Response) -> Beginning | None:
    """Return where to keep the beginning of a response; None if it is not an event stream that can be read."""
    if not is_event_stream(response):
        return None
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding == "identity":
        return Beginning(bytes)
    if encoding in ("gzip", "x-gzip", "deflate"):
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
        return Beginning(lambda piece: unpacker.decompress(piece, MAX_HELD_BYTES + 1))
    return None


def _error_response(response: httpx2.Response, error: StreamError) -> httpx2.Response:
    headers = response.headers.copy()
    for name in ("Content-Encoding", "Transfer-Encoding"):
        headers.pop(name, None)
    headers["Content-Type"], headers["Content-Length"] = "application/json", str(len(error.body))
    return httpx2.Response(
        error.status, headers=headers, stream=httpx2.ByteStream(error.body), extensions=response.extensions
    )
