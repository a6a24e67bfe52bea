"""The beginning of event streams: what is held back, what becomes a response, and what passes unchanged."""

import asyncio
import gzip
import json
import zlib

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.clients import stream_errors
from abate.clients.sse_parser import ServerSentEvent
from abate.clients.stream_errors import (
    AsyncErrorEventTransport,
    ErrorEventTransport,
    StreamError,
    error_status,
    read_event,
)
from abate.testing import VirtualClock

OVERLOADED = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"}}\n\n'
PING = b"event: ping\ndata: {}\n\n"
CONTENT = b'data: {"choices": [{"delta": {"content": "Hello"}}]}\n\n'


class Pieces(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A stream of these pieces; an error among them is raised."""

    def __init__(self, *pieces, before=lambda: None):
        self.pieces, self.before = pieces, before
        self.read = 0
        self.closed = False

    def _next(self, piece):
        self.before()
        if isinstance(piece, BaseException):
            raise piece
        self.read += 1
        return piece

    def __iter__(self):
        for piece in self.pieces:
            yield self._next(piece)

    async def __aiter__(self):
        for piece in self.pieces:
            yield self._next(piece)

    def close(self):
        self.closed = True

    async def aclose(self):
        self.closed = True


class Inner(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    def __init__(self, stream, status=200, **headers):
        headers = {"Content-Type": "text/event-stream", **{k.replace("_", "-"): v for k, v in headers.items()}}
        self.response = httpx2.Response(status, headers=headers, stream=stream, extensions={"http_version": b"HTTP/2"})
        self.closed = False

    def handle_request(self, request):
        return self.response

    async def handle_async_request(self, request):
        return self.response

    def close(self):
        self.closed = True

    async def aclose(self):
        self.closed = True


REQUEST = httpx2.Request("POST", "http://llm.example/v1/messages")


def begin(inner):
    return ErrorEventTransport(inner).handle_request(REQUEST)


def abegin(inner):
    return asyncio.run(AsyncErrorEventTransport(inner).handle_async_request(REQUEST))


both = pytest.mark.parametrize("begin", [begin, abegin], ids=["threads", "asyncio"])


def pieces_of(response):
    return list(response.stream)


@both
def test_an_error_becomes_a_response(begin):
    """With its status, as JSON, and with the headers of the stream; the stream is closed."""
    stream = Pieces(PING, OVERLOADED, CONTENT)
    inner = Inner(stream, request_id="req_1", Content_Encoding="identity", Transfer_Encoding="chunked")
    response = begin(inner)
    body = b"".join(response.stream)
    assert (response.status_code, json.loads(body)["error"]["type"]) == (529, "overloaded_error")
    assert dict(response.headers) == {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "request-id": "req_1",
    }
    assert response.extensions == {"http_version": b"HTTP/2"}
    assert stream.closed
    assert begin is abegin or stream.read == 2  # an async generator without an await can't be cut off


def test_content_passes_byte_by_byte():
    """In the same pieces, and no more of it is read than was needed to see the first content."""
    pieces = (b": hi\n", PING[:5], PING[5:] + CONTENT[:3], CONTENT[3:], OVERLOADED)
    stream = Pieces(*pieces)
    response = begin(Inner(stream))
    assert stream.read == 4
    assert response.status_code == 200
    assert tuple(pieces_of(response)) == pieces
    assert not stream.closed
    response.stream.close()
    assert stream.closed


def test_content_passes_byte_by_byte_under_asyncio():
    """The same."""
    pieces = (PING, CONTENT, OVERLOADED)
    stream = Pieces(*pieces)

    async def read():
        response = await AsyncErrorEventTransport(Inner(stream)).handle_async_request(REQUEST)
        assert stream.read == 2
        found = [piece async for piece in response.stream]
        await response.stream.aclose()
        return tuple(found)

    assert asyncio.run(read()) == pieces
    assert stream.closed


@both
@pytest.mark.parametrize("pieces", [(), (PING,), (OVERLOADED[:-1],)])
def test_a_stream_that_ends_without_content_passes(begin, pieces):
    """It is the program's; an error without its blank line is none."""
    stream = Pieces(*pieces)
    assert begin(Inner(stream)).status_code == 200
    assert stream.read == len(pieces)


@both
@pytest.mark.parametrize("error", [httpx2.ReadError("gone"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_stream_that_breaks_before_its_content_is_closed(begin, error):
    """The error is the attempt's."""
    stream = Pieces(PING, error)
    with pytest.raises(type(error)):
        begin(Inner(stream))
    assert stream.closed


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {"Content_Type": "application/json"}),
        (200, {"Content_Type": "text/event-streams"}),
        (201, {}),
        (503, {}),
        (200, {"Content_Encoding": "br"}),
    ],
)
def test_other_responses_are_not_read(status, headers):
    """Nor are encodings that Python cannot unpack by itself."""
    stream = Pieces(OVERLOADED)
    inner = Inner(stream, status, **headers)
    assert begin(inner) is inner.response
    assert stream.read == 0


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_packed_streams_are_read(encoding, pack):
    """And handed on as they came, packed."""
    packed = pack(OVERLOADED)
    response = begin(Inner(Pieces(packed[:7], packed[7:]), Content_Encoding=encoding))
    assert response.status_code == 529
    assert "content-encoding" not in response.headers
    packed = pack(PING + CONTENT)
    response = begin(Inner(Pieces(packed[:7], packed[7:]), Content_Encoding=encoding))
    assert response.headers["content-encoding"] == encoding
    assert b"".join(pieces_of(response)) == packed


def test_garbage_instead_of_a_packed_stream_passes():
    """The program's decoder says what is wrong with it."""
    assert pieces_of(begin(Inner(Pieces(b"garbage"), Content_Encoding="gzip"))) == [b"garbage"]


@pytest.mark.parametrize("piece", [b": quiet\n" * 1000, PING * 1000, b"data: " + b"x" * 10_000])
def test_no_more_than_some_bytes_are_held_back(piece):
    """Whatever they are: then the stream is handed on."""
    stream = Pieces(*[piece] * 1000)
    response = begin(Inner(stream))
    assert response.status_code == 200
    assert (stream.read - 1) * len(piece) <= stream_errors.MAX_HELD_BYTES
    assert len(pieces_of(response)) == 1000


def test_no_stream_is_held_back_for_ever():
    """After a minute of pings it is handed on."""
    with VirtualClock() as clock:
        stream = Pieces(*[PING] * 100, before=lambda: clock.advance(10.0))
        assert begin(Inner(stream)).status_code == 200
    assert stream.read == 6


@both
def test_a_deadline_ends_the_wait_for_content(begin):
    """Pings do not move it."""
    with VirtualClock() as clock, abate.deadline(25.0):
        stream = Pieces(*[PING] * 100, before=lambda: clock.advance(10.0))
        with pytest.raises(httpx2.ReadTimeout, match="deadline"):
            begin(Inner(stream))
    assert stream.closed
    assert begin is abegin or stream.read == 3  # as above


def test_closing_closes_the_inner_transport():
    """Sync and async."""
    inner = Inner(Pieces())
    ErrorEventTransport(inner).close()
    assert inner.closed
    inner = Inner(Pieces())
    asyncio.run(AsyncErrorEventTransport(inner).aclose())
    assert inner.closed


# -- what events say


def said(data, event="message"):
    return read_event(ServerSentEvent(event, data if isinstance(data, str) else json.dumps(data)))


@pytest.mark.parametrize(
    "data",
    [
        {"type": "ping"},
        {"type": "message_start", "message": {}},
        {"type": "response.created", "response": {"error": None}},
        {"type": "response.in_progress"},
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
        {"type": "response.output_item.added", "item": {"id": "1", "type": "reasoning", "summary": []}},
        {"type": "response.output_item.added", "item": {"id": "2", "type": "message", "content": []}},
        {"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}},
        {"type": "response.reasoning_summary_part.added", "part": {"type": "summary_text", "text": ""}},
        {"choices": [], "prompt_filter_results": []},
        {"choices": [{"delta": {"role": "assistant", "content": None, "tool_calls": []}, "finish_reason": None}]},
    ],
)
def test_some_events_come_before_content(data):
    """Of all three APIs, and of Azure."""
    assert said(data) is False


@pytest.mark.parametrize(
    "data",
    [
        "[DONE]",
        "",
        "not JSON",
        "[" * 100_000,
        "9" * 10_000,
        [1],
        {},
        {"type": "content_block_start"},
        {"type": "something new"},
        {"type": "content_block_start", "content_block": {"type": "text", "text": "Hello"}},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "search", "input": {}}},
        {"type": "content_block_start", "content_block": {"type": ["text"]}},
        {"type": "content_block_delta", "content_block": {"type": "text", "text": ""}},
        {"type": "response.output_item.added"},
        {"type": "response.output_item.added", "item": {"type": "function_call", "name": "search", "arguments": ""}},
        {"type": "response.failed"},
        {"type": "response.failed", "response": 1},
        {"type": "response.failed", "response": {"error": {"code": "invalid_prompt"}}},
        {"choices": [{"delta": {"content": "Hello"}}]},
        {"choices": [{"delta": {"tool_calls": [{}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [{"text": "Hello"}]},
        {"choices": [1]},
        {"choices": [], "usage": {"total_tokens": 3}},
        {"choices": {}},
        {"error": None},
    ],
)
def test_everything_else_is_content(data):
    """Also what is not known, and a failure that is a result of the Responses API."""
    assert said(data) is True


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        ({"error": "broken"}, 500, {"error": "broken"}),
        ({"error": {"code": 502, "message": "x"}}, 502, {"error": {"code": 502, "message": "x"}}),
        ({"error": {"code": True}}, 500, {"error": {"code": True}}),
        ({"error": {"code": 200}}, 500, {"error": {"code": 200}}),
        ({"error": {"code": "429"}}, 429, {"error": {"code": "429"}}),
        ({"error": {"code": "4290"}}, 500, {"error": {"code": "4290"}}),
        ({"type": "error", "code": "rate_limit_exceeded"}, 429, None),
        ({"type": "response.failed", "response": {"error": {"code": "server_error"}}}, 500, None),
        ({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}}, 429, None),
        ({"choices": [{"delta": {"content": ""}}], "error": {"code": "slow_down"}}, 529, None),
    ],
)
def test_errors_have_a_status_and_a_body(data, status, body):
    """Of whatever form they are; the body has an `error`, which the SDKs read."""
    found = said(data)
    assert isinstance(found, StreamError)
    assert found.status == status
    assert "error" in json.loads(found.body)
    assert body is None or json.loads(found.body) == body


@pytest.mark.parametrize(
    "data",
    [
        '{"type": "error", "error": {"type": "overl',
        "",
        "overloaded",
        "null",
        [],
        "[1]",
        {"error": None},
        {"message": "no"},
    ],
)
def test_an_event_named_error_is_one_whatever_its_data(data):
    """Data that can't be read is a failure of the server."""
    found = said(data, "error")
    assert isinstance(found, StreamError)
    assert found.status == 500
    assert "error" in json.loads(found.body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "type", "code", "choices", "delta", "response", "status", "usage", "message"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_whatever_comes_is_an_error_or_content_or_neither(value):
    """No JSON value raises, and every status is one of an error."""
    found = said(value)
    if isinstance(found, StreamError):
        assert 400 <= found.status <= 599
        json.loads(found.body)
    else:
        assert found in (True, False)
    assert 400 <= error_status(value) <= 599


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_whatever_bytes_come_are_handed_on(pieces):
    """Unless they are an error, they pass unchanged."""
    response = begin(Inner(Pieces(*pieces)))
    assert response.status_code == 200
    assert pieces_of(response) == pieces
