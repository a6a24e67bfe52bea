"""Server-sent events on real sockets: reconnected where they broke off, by httpx, httpx2 and aiohttp."""

import threading

import aiohttp
import httpx
import httpx2
import pytest

import abate
from abate.clients import sse
from abate.clients.httpx import AsyncTransport, Transport
from abate.clients.sse import EventTooLarge, NotAnEventStream, ServerSentEvent, StreamEnded
from abate.testing import Recorder
from tests.clients.llm_server import stream
from tests.clients.server import close, reset, respond
from tests.clients.sse_ways import WAYS, EventServer, every, numbered, policy, texts

# -- the stream


@every
def test_events_come_until_the_server_says_that_there_are_no_more(way):
    """204 ends the stream."""
    with EventServer(stream("event: price\nid: 7\ndata: 42\n\n", "data: 43\n\n")) as server:
        found = way.read(server.url, policy=policy())
    assert found == [ServerSentEvent("price", "42", "7"), ServerSentEvent("message", "43", "7")]
    assert server.last_ids == [None, "7"]
    assert server.requests[0].headers["accept"] == "text/event-stream"
    assert server.requests[0].headers["cache-control"] == "no-store"


class Feed(EventServer):
    """Sends two events after the last one that a client names, and then half an event; it has six."""

    def __init__(self, then):
        super().__init__()
        self.then = then

    def pick(self, request):
        last = int(request.headers.get("last-event-id", "0"))
        if last == 6:
            return respond(204)
        return stream(*numbered(last + 1, last + 2)[: 6 - last], "id: 9\ndata: not wh", then=self.then)


@every
@pytest.mark.parametrize("broken", [None, reset, close], ids=["end", "reset", "cut off"])
def test_a_stream_that_broke_off_goes_on_after_its_last_event(way, broken):
    """With the ID of the last whole event. Nothing is lost or doubled, though a client may lose what came last."""
    with Feed(broken) as server:
        found = way.read(server.url, policy=policy(max_attempts=100, budget=abate.Budget.unlimited()))
    assert texts(found) == [f"event {number}" for number in range(1, 7)]
    if broken is None:
        assert server.last_ids == [None, "2", "4", "6"]


@every
def test_an_id_without_data_counts(way):
    """It is where to resume as well; it stays over a connection without an ID."""
    with EventServer(stream("data: a\n\n", "id: 9\n\n"), stream("data: b\n\n")) as server:
        assert [event.id for event in way.read(server.url, policy=policy())] == ["", "9"]
    assert server.last_ids == [None, "9", "9"]


@every
@pytest.mark.parametrize(("sent", "resumed"), [(" 9 \t", "9"), ("  ", None)])
def test_spaces_around_an_id_are_not_sent(way, sent, resumed):
    """HTTP has none around the value of a header: the reconnect would fail."""
    with EventServer(stream(f"id: {sent}\ndata: a\n\n")) as server:
        assert [event.id for event in way.read(server.url, policy=policy())] == [sent]
    assert server.last_ids == [None, resumed]


@every
def test_a_program_can_resume_where_it_was(way):
    """And send headers, parameters and a body of its own."""
    with EventServer(stream(*numbered(8))) as server:
        way.read(
            server.url,
            method="POST",
            policy=policy(idempotent=True),
            last_event_id="ü7",
            headers={"X-Team": "shop", "accept": "text/event-stream;v=2"},
            params={"q": "1"},
            json={"topic": "news"},
        )
    assert [last and last.encode("latin-1").decode() for last in server.last_ids] == ["ü7", "8"]
    for request in server.requests:
        assert (request.method, request.path, request.headers["x-team"]) == ("POST", "/?q=1", "shop")
        assert request.headers["accept"] == "text/event-stream;v=2"
        assert b"news" in request.body


@every
def test_a_stream_may_be_reconnected_for_ever(way):
    """Attempts count from the last event that came: this one ends 20 times."""
    with EventServer(*[stream(*numbered(number)) for number in range(20)]) as server:
        found = way.read(server.url, policy=policy(max_attempts=2))
    assert len(found) == 20
    assert len(server.requests) == 21


@every
def test_attempts_without_an_event_run_out(way):
    """The last failure is the program's, with a report."""
    seen = []
    server = EventServer(stream(*numbered(1)), respond(503), stream(": still here\n\n"), stream(*numbered(2)))
    with server, pytest.raises(StreamEnded, match="the server ended the stream of http") as raised:
        way.read(server.url, policy=policy(), seen=seen)
    assert texts(seen) == ["event 1"]
    assert len(server.requests) == 3
    assert abate.report(raised.value) == abate.Report("news", 3, 0.0, "attempts")


@every
def test_the_budget_bounds_reconnects(way):
    """Of all streams of the policy together."""
    budget = abate.Budget(ratio=0.0, reserve=0.5, window=10.0)
    with EventServer(*[stream(*numbered(number)) for number in range(20)]) as server:
        seen = []
        with pytest.raises(StreamEnded):
            way.read(server.url, policy=policy(budget=budget), seen=seen)
    assert len(seen) == 6


@every
def test_one_read_is_enough_for_several_events(way):
    """And for an event in pieces."""
    text = "".join(numbered(1, 2, 3))
    with EventServer(stream(text[:10], text[10:37], text[37:])) as server:
        assert texts(way.read(server.url, policy=policy())) == ["event 1", "event 2", "event 3"]


@every
def test_a_program_that_has_enough_closes_the_connection(way):
    """The server sees it."""
    left = threading.Event()

    def wait_for_end(connection):
        connection.settimeout(10.0)
        assert connection.recv(1) == b""
        left.set()
        return False

    with EventServer(stream(*numbered(1, 2), then=wait_for_end)) as server:
        assert texts(way.read(server.url, policy=policy(), count=1)) == ["event 1"]
        assert left.wait(10.0)
    assert len(server.requests) == 1


# -- errors


@every
@pytest.mark.parametrize("status", [400, 401, 404, 410])
def test_an_error_of_the_request_is_the_programs(way, status):
    """The library's own, at once."""
    errors = (httpx.HTTPStatusError, httpx2.HTTPStatusError, aiohttp.ClientResponseError)
    with EventServer(respond(status)) as server, pytest.raises(errors) as raised:
        way.read(server.url, policy=policy())
    assert abate.report(raised.value).reason == "fatal"
    assert len(server.requests) == 1


@every
@pytest.mark.parametrize(("status", "kind"), [(200, "text/html"), (200, ""), (201, "text/event-stream"), (206, "")])
def test_what_is_no_event_stream_is_an_error(way, status, kind):
    """Another attempt would get the same."""
    headers = [("Content-Type", kind)] if kind else []
    server = EventServer(respond(status, *headers, body=b"data: a\n\n"))
    with server, pytest.raises(NotAnEventStream, match=f"the response is .* with status {status}, not text/event"):
        way.read(server.url, policy=policy(on=Exception))
    assert len(server.requests) == 1


@every
def test_an_event_that_is_too_large_is_an_error(way):
    """It would be again."""
    with EventServer(stream(*numbered(1), "data: " + "x" * 1000)) as server:
        seen = []
        with pytest.raises(EventTooLarge):
            way.read(server.url, policy=policy(on=Exception), max_event=500, seen=seen)
    assert texts(seen) == ["event 1"]
    assert len(server.requests) == 1


@every
def test_a_post_is_reconnected_if_it_may_be_repeated(way):
    """A stream that ended may have done something; after a refusal nothing was done."""
    with EventServer(respond(429), stream(*numbered(1))) as server, pytest.raises(StreamEnded) as raised:
        way.read(server.url, method="POST", policy=policy())
    assert abate.report(raised.value).reason == "unsafe"
    assert len(server.requests) == 2


@every
@pytest.mark.parametrize("kind", [dict, list])
def test_an_idempotency_key_allows_to_repeat_a_post(way, kind):
    """Whether the headers are a mapping or pairs."""
    headers = kind({"Idempotency-Key": "8e03978e"}.items())
    with EventServer(stream(*numbered(1))) as server:
        way.read(server.url, method="POST", headers=headers, policy=policy())
    assert len(server.requests) == 2


@every
def test_a_refused_connection_is_tried_again(way):
    """By the default policy's rule for network errors."""
    with EventServer() as server:
        url = server.url
    errors = (httpx.ConnectError, httpx2.ConnectError, aiohttp.ClientConnectorError)
    with pytest.raises(errors) as raised:
        way.read(url, policy=policy())
    assert abate.report(raised.value).attempts == 3


def test_one_layer_retries():
    """A client with a policy of its own retries the request; what it gave up on is not retried again."""
    inner = policy(name="inner")
    for way, transport in ((WAYS[0], Transport(inner)), (WAYS[2], AsyncTransport(inner))):
        with EventServer(*[respond(503)] * 20) as server, pytest.raises(httpx.HTTPStatusError) as raised:
            way.read(server.url, policy=policy(), client={"transport": transport})
        assert abate.report(raised.value).reason == "layer"
        assert len(server.requests) == 3


def test_rules_of_the_program_are_kept():
    """`unless`, and rules about events: one that says so is not handed out, and the stream is made again."""
    way = WAYS[0]
    with EventServer(respond(503), stream(*numbered(1))) as server, pytest.raises(httpx.HTTPStatusError):
        way.read(server.url, policy=policy(unless=httpx.HTTPStatusError))
    overloaded = abate.on_result(lambda event: event.data == "overloaded")
    with EventServer(stream("id: 1\ndata: overloaded\n\n"), stream(*numbered(1))) as server:
        assert texts(way.read(server.url, policy=policy(on=(abate.http.transient, overloaded)))) == ["event 1"]
    assert server.last_ids == [None, None, "1"]


# -- arguments


@pytest.mark.parametrize("client", [None, object(), httpx, "http://news.example", aiohttp.ClientSession])
def test_a_client_is_one_of_three_libraries(client):
    """The error says which."""
    with pytest.raises(
        TypeError, match="client must be a Client or AsyncClient of httpx or httpx2, or a ClientSession"
    ):
        sse.events(client, "GET", "http://news.example")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"policy": 1}, "policy must be a Policy"),
        ({"policy": policy(resume=lambda last: {})}, "neither resume nor content"),
        ({"policy": policy(content=bool)}, "neither resume nor content"),
        ({"timeout": 5.0}, "write idle= for silence"),
        ({"idle": 0}, "idle must be a number above 0"),
        ({"max_event": 0}, "max_event must be a whole number"),
        ({"last_event_id": 7}, "last_event_id must be a string"),
    ],
)
def test_settings_are_checked_before_anything_is_sent(setting, message):
    """When the generator is made."""
    with httpx.Client(verify=False) as client, pytest.raises((TypeError, ValueError), match=message):
        sse.events(client, "GET", "http://news.example", **setting)


def test_subclasses_of_clients_are_clients():
    """Also those of the program."""

    class Ours(httpx.Client):
        pass

    with EventServer(stream(*numbered(1))) as server, Ours(verify=False) as client:
        assert texts(sse.events(client, "GET", server.url, policy=policy())) == ["event 1"]


def test_without_a_policy_there_is_one():
    """It is called sse, and repeats what HTTP's table says."""
    with Recorder() as events, EventServer(stream("retry: 1\n\n", *numbered(1))) as server:
        assert texts(WAYS[0].read(server.url)) == ["event 1"]
    assert [event.name for event in events if isinstance(event, abate.events.Retry)] == ["sse"]


def test_clients_keep_their_timeouts_for_connecting():
    """`idle` replaces the one for reads only; None is no limit."""
    seen = []

    def answer(request):
        seen.append(request.extensions["timeout"])
        return httpx.Response(204)

    timeout = httpx.Timeout(1.0, connect=2.0, pool=3.0)
    with httpx.Client(transport=httpx.MockTransport(answer), timeout=timeout) as client:
        assert list(sse.events(client, "GET", "http://news.example", idle=None)) == []
        assert list(sse.events(client, "GET", "http://news.example")) == []
    assert seen == [{"connect": 2.0, "read": read, "write": 1.0, "pool": 3.0} for read in (None, 60.0)]
