"""Read the bodies of responses of httpx within bounds: of those that are discarded, and of errors that are judged.

Every function takes the response as the inner transport returned it, with a body that was not read.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from abate import clock as clocks
from abate.clients.http_client import BODY_DISCARDED, MAX_DECODED, MAX_DRAIN_BYTES, MIN_TIMEOUT, PIECE

MAX_LENGTH_DIGITS = 20
"""Digits of a ``Content-Length``; Python refuses to convert thousands."""
SMALL_PIECE = 8
"""How many bytes are decoded at once of an encoding whose few bytes may become megabytes, such as Brotli."""


class Streams(NamedTuple):
    """The stream classes for the bodies of one library's responses."""

    discarded: type[Any]
    """Raises when read: the connection was closed."""
    continued: type[Any]
    """A body of which the beginning was read."""
    loaded: type[Any]
    """A body that was read; `decoded` has it without its content encoding."""


def streams_of(library: Any) -> Streams:
    """Return the stream classes of httpx or httpx2."""

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

    class ContinuedStream(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, beginning: bytes, rest: Any, stream: Any) -> None:
            self._beginning, self._rest, self._stream = beginning, rest, stream

        def __iter__(self) -> Iterator[bytes]:
            yield self._beginning
            yield from self._rest

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield self._beginning
            async for part in self._rest:
                yield part

        def close(self) -> None:
            self._stream.close()

        async def aclose(self) -> None:
            await self._stream.aclose()

    class LoadedStream(library.ByteStream):  # type: ignore[misc]
        def __init__(self, response: Any, body: bytes) -> None:
            super().__init__(body)
            self.decoded = _decoded(library, response, body)

    return Streams(DiscardedStream, ContinuedStream, LoadedStream)


def piece_size(encoding: str) -> int:
    """Return how many bytes of an encoded body may be decoded at once; 0 for a body that is encoded twice.

    httpx decodes all that it is given at once. A byte of gzip becomes at most a thousand bytes, of Brotli some
    megabytes. Two encodings multiply.

    >>> piece_size("gzip"), piece_size("br"), piece_size("gzip, identity"), piece_size("gzip, gzip")
    (1024, 8, 1024, 0)
    """
    encodings = [name for name in re.split(r"[\s,]+", encoding.lower()) if name not in ("", "identity")]
    if len(encodings) > 1:
        return 0
    return PIECE if not encodings or encodings[0] in ("gzip", "x-gzip", "deflate") else SMALL_PIECE


def split_pieces(part: bytes, size: int) -> Iterator[bytes]:
    """Yield the bytes in pieces of at most `size`."""
    for start in range(0, len(part), size):
        yield part[start : start + size]


def bound_decoding(library: Any, response: Any) -> bool:
    """Let the body of an unread response be decoded in small pieces; return False if it is encoded twice."""
    if "Content-Encoding" not in response.headers:
        return True
    size, stream = piece_size(response.headers["Content-Encoding"]), response.stream
    if not size:
        return False

    class SplitStream(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            for part in stream:
                yield from split_pieces(part, size)

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for part in stream:
                for piece in split_pieces(part, size):
                    yield piece

        def close(self) -> None:
            stream.close()

        async def aclose(self) -> None:
            await stream.aclose()

    response.stream = SplitStream()
    return True


def _decoded(library: Any, response: Any, body: bytes) -> bytes | None:
    """Return a body without its content encoding; None if it can't be decoded, or is too large then."""
    if "Content-Encoding" not in response.headers:
        return body
    size = piece_size(response.headers["Content-Encoding"])
    if not size:
        return None

    class Pieces(library.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            return split_pieces(body, size)

    decoded = bytearray()
    try:
        for part in library.Response(response.status_code, headers=response.headers, stream=Pieces()).iter_bytes():
            decoded += part
            if len(decoded) > MAX_DECODED:
                return None
    except library.DecodingError:
        return None
    return bytes(decoded)


def is_event_stream(response: Any) -> bool:
    """Return whether the body is a stream of server-sent events, which may be silent between them."""
    kind: str = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return response.status_code == 200 and kind == "text/event-stream"


def is_small(response: Any) -> bool:
    """Return whether the headers allow a body short enough to read."""
    length = response.headers.get("Content-Length", "0")
    if not length.isdecimal():
        return True
    return len(length) <= MAX_LENGTH_DIGITS and int(length) <= MAX_DRAIN_BYTES


def load(streams: Streams, response: Any, request: Any, extensions: Any, seconds: float) -> None:
    """Read the body of an error, if it ends soon; the response keeps it in any case, unless its connection breaks."""
    stream, body, done = response.stream, bytearray(), False
    parts, due = iter(stream), clocks.current().now() + seconds
    try:
        with short_reads(extensions, seconds):
            for part in parts:
                body += part
                if len(body) > MAX_DRAIN_BYTES or clocks.current().now() > due:
                    break
            else:
                done = True
    except Exception:
        response.stream = streams.discarded(response, request)
        with suppress(Exception):  # a connection that fails here is closed
            stream.close()
        return
    _keep(streams, response, bytes(body), done, parts)
    if done:
        stream.close()


async def aload(streams: Streams, response: Any, request: Any, seconds: float) -> None:
    """Do the same for an async response."""
    stream, body, done = response.stream, bytearray(), False
    parts = aiter(stream)
    cut = clocks.current().within(seconds)
    try:
        async with cut:
            while not done and len(body) <= MAX_DRAIN_BYTES:
                part = await anext(parts, None)
                done = part is None
                body += part or b""
    except Exception:
        response.stream = streams.discarded(response, request)
        with suppress(Exception):  # a connection that fails here is closed
            await stream.aclose()
        return
    _keep(streams, response, bytes(body), done, parts)
    if done:
        await stream.aclose()


def _keep(streams: Streams, response: Any, body: bytes, done: bool, rest: Any) -> None:
    response.stream = streams.loaded(response, body) if done else streams.continued(body, rest, response.stream)


@contextmanager
def short_reads(extensions: Any, seconds: float) -> Iterator[None]:
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


def drain(stream: Any, seconds: float) -> bytes | None:
    """Read a body; return None if it does not end soon."""
    body, due = bytearray(), clocks.current().now() + seconds
    for chunk in stream:
        body += chunk
        if len(body) > MAX_DRAIN_BYTES or clocks.current().now() > due:
            return None
    return bytes(body)


async def adrain(stream: Any, seconds: float) -> bytes | None:
    """Do the same for an async body, and cut it off in time."""
    body, parts = bytearray(), aiter(stream)
    cut = clocks.current().within(seconds)
    async with cut:
        while len(body) <= MAX_DRAIN_BYTES:
            try:
                body += await anext(parts)
            except StopAsyncIteration:
                return bytes(body)
    await cut_off(parts)
    return None


async def cut_off(parts: AsyncIterator[bytes]) -> None:
    """End httpx's generators, which must not be abandoned (trio warns): cut them off where they wait."""
    cut = clocks.current().within(0.0)
    with suppress(Exception):
        async with cut:
            while True:
                await anext(parts)
