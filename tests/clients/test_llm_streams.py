"""Streams of the SDKs of OpenAI and Anthropic, on real sockets: errors inside them, and generators around them."""

import asyncio
import threading

import httpx2
import openai
import pytest

import abate
from tests.clients.llm_server import BEGINNINGS, CONTENTS, PIECES, TEXT, LLMServer, cut_off, error_event, fail, stream
from tests.clients.llm_ways import WAYS, policy
from tests.clients.server import close

pytestmark = pytest.mark.parametrize("way", WAYS, ids=repr)


def overload_event(way):
    return error_event(way.path, "overloaded_error")


# -- errors inside streams


@pytest.mark.parametrize("after", [0, 1, 2])
def test_an_overload_inside_a_stream_is_retried(way, after):
    """Before the first content: at once, or after what streams begin with."""
    with LLMServer(stream(*BEGINNINGS[way.path][:after], overload_event(way))) as server:
        assert way.ask(way.client(policy(), server), stream=True) == TEXT
    assert len(server.requests) == 2


def test_it_is_the_error_of_the_status_in_the_end(way):
    """When the attempts have run out, with the error as its body."""
    with LLMServer(*[stream(overload_event(way))] * 3) as server:
        error = way.error(way.client(policy(), server), way.sdk.APIStatusError, stream=True)
    assert error.status_code == 529
    assert "overloaded_error" in str(error.body)
    assert error.response.extensions["abate_report"].attempts == 3
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("kind", "code", "status", "attempts"),
    [
        ("rate_limit_error", None, 429, 3),
        ("requests", "rate_limit_exceeded", 429, 3),
        ("api_error", None, 500, 1),
        ("server_error", None, 500, 1),
        ("invalid_request_error", None, 400, 1),
        ("insufficient_quota", "insufficient_quota", 429, 1),
    ],
)
def test_an_error_counts_as_the_status_that_it_stands_for(way, kind, code, status, attempts):
    """A failure of the server is not repeated: the request was taken."""
    with LLMServer(*[stream(*BEGINNINGS[way.path], error_event(way.path, kind, code))] * 3) as server:
        error = way.error(way.client(policy(), server), way.sdk.APIStatusError, stream=True)
    assert error.status_code == status
    assert len(server.requests) == attempts


def test_an_error_after_the_first_content_is_the_programs(way):
    """It has the content already."""
    content = CONTENTS[way.path][0]
    with LLMServer(stream(*BEGINNINGS[way.path], content, overload_event(way))) as server:
        client = way.client(policy(), server)
        seen = []

        def read():
            with client:
                for item in way.api.create(client, stream=True):
                    seen.append(getattr(item, "type", None) if item == "error" else way.api.piece(item))
                    if getattr(item, "type", "") == "error":  # an event like others, of the Responses API
                        raise openai.APIError("no", None, body=None)

        async def aread():
            async with client:
                async for item in await way.api.create(client, stream=True):
                    seen.append(way.api.piece(item))
                    if getattr(item, "type", "") == "error":
                        raise openai.APIError("no", None, body=None)

        with pytest.raises(way.sdk.APIError):
            read() if way.sync else asyncio.run(aread())
    assert "".join(seen) == PIECES[0]
    assert len(server.requests) == 1


def test_the_first_content_is_handed_on_at_once(way):
    """The server sends the rest only when the program has it."""
    seen = threading.Event()
    with LLMServer() as server:

        def rest(connection):
            assert seen.wait(10.0)
            data = "".join(CONTENTS[way.path][1:]).encode()
            connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n0\r\n\r\n")
            return True

        server.script.append(stream(*BEGINNINGS[way.path], CONTENTS[way.path][0], then=rest))
        client = way.client(policy(), server)
        text = []

        def take(item):
            text.append(way.api.piece(item))
            if text[-1]:
                seen.set()

        async def aread():
            async with client:
                async for item in await way.api.create(client, stream=True):
                    take(item)

        if way.sync:
            with client:
                for item in way.api.create(client, stream=True):
                    take(item)
        else:
            asyncio.run(aread())
    assert "".join(text) == TEXT


def test_connections_of_discarded_streams_are_closed(way):
    """Before the wait: none is taken while the call backs off."""
    taken = []

    def watch(context):
        pool = (client._client._transport).inner.inner._pool
        taken.append([each for each in pool.connections if not each.is_idle()])

    with LLMServer(stream(overload_event(way)), stream(overload_event(way))) as server:
        client = way.client(policy(before_retry=watch), server)
        assert way.ask(client, stream=True) == TEXT
    assert taken == [[], []]


# -- a decorated generator around a stream


def read_through(way, client, rules):
    """The text of a stream that is read by a generator with a policy of its own."""
    if way.sync:

        @rules
        def pieces():
            with way.api.create(client, stream=True) as items:
                yield from items

        with client:
            return "".join(map(way.api.piece, pieces()))

    @rules
    async def apieces():
        async with await way.api.create(client, stream=True) as items:
            async for item in items:
                yield item

    async def read():
        async with client:
            return "".join([way.api.piece(item) async for item in apieces()])

    return asyncio.run(read())


@pytest.mark.parametrize(
    "failure",
    [fail(429), fail(529), fail(503), fail(500), close, cut_off(), None],
    ids=["429", "529", "503", "500", "closed", "cut off", "error event"],
)
def test_a_generator_around_a_stream_is_retried_until_its_first_item(way, failure):
    """By the SDK's real errors, which HTTP's rule knows; the client has no retries of any kind."""
    if failure is None:
        if way.path == "/v1/responses":
            return  # its SDK hands an error event out as an item
        failure = stream(overload_event(way))
    with LLMServer(failure) as server:
        assert read_through(way, way.plain(server), policy(idempotent=True, idle=30.0)) == TEXT
    assert len(server.requests) == 2


def test_items_before_the_content_can_be_held_back(way):
    """`content=` says which items count: the others are not handed out before an error."""
    broken = cut_off(*BEGINNINGS[way.path])
    with LLMServer(broken) as server:
        retried = policy(idempotent=True, content=way.api.piece)
        assert read_through(way, way.plain(server), retried) == TEXT
    assert len(server.requests) == 2


def test_an_error_after_the_first_item_passes(way):
    """It is the SDK's own."""
    broken = cut_off(*BEGINNINGS[way.path], CONTENTS[way.path][0])
    with LLMServer(broken) as server, pytest.raises((way.sdk.APIConnectionError, httpx2.HTTPError)):
        read_through(way, way.plain(server), policy(idempotent=True, content=way.api.piece))
    assert len(server.requests) == 1


def test_idle_bounds_the_silence_of_a_stream(way):
    """Also after the first content; under asyncio it cuts off, in threads the SDK's timeout does."""
    with LLMServer() as server:
        server.script.append(stream(*BEGINNINGS[way.path], CONTENTS[way.path][0], then=server.hang))
        client = way.plain(server, timeout=httpx2.Timeout(10.0, read=0.2)) if way.sync else way.plain(server)
        errors = (way.sdk.APITimeoutError, httpx2.ReadTimeout, abate.IdleTimeout)
        with pytest.raises(errors):
            read_through(way, client, policy(idle=0.2))
    assert len(server.requests) == 1


def test_a_generator_does_not_repeat_what_the_client_gave_up_on(way):
    """One layer retries: three requests, not nine."""
    with LLMServer(*[fail(429)] * 20) as server, pytest.raises(way.sdk.RateLimitError) as raised:
        read_through(way, way.client(policy(), server), policy(name="outer"))
    assert abate.report(raised.value).reason == "layer"
    assert len(server.requests) == 3
