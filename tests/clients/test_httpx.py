"""httpx: what is sent again, how often, and what the caller gets in the end."""

import io
import socket

import pytest

import abate
from abate.testing import VirtualClock
from tests.clients.httpx_ways import WAYS, policy, taken
from tests.clients.server import Server, close, reset, respond, say

pytestmark = pytest.mark.parametrize("way", WAYS, ids=repr)

BUSY = respond(503, body=b"busy")
GARBAGE = say(b"what is this\r\n\r\n")


def attempts(server):
    return [request.headers["abate-attempt"] for request in server.requests]


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def impatient(way):
    """A client that waits for its connection, and hardly for an answer."""
    return {"timeout": way.library.Timeout(10.0, read=0.05)}


# -- responses


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_transient_status_is_sent_again(way, status):
    """The answer of the second attempt is the caller's; every attempt tells its number."""
    with Server(respond(status, body=b"not yet")) as server:
        response = way.fetch(policy(), server.url)
    assert (response.status_code, response.text) == (200, "ok")
    assert attempts(server) == ["1", "2"]
    assert "abate_report" not in response.extensions


@pytest.mark.parametrize("status", [400, 404, 409, 501, 505])
def test_any_other_status_is_the_callers(way, status):
    """It comes at once, with its body and a report."""
    with Server(respond(status, body=b"no")) as server:
        response = way.fetch(policy(), server.url)
    assert (response.status_code, response.text) == (status, "no")
    assert response.extensions["abate_report"] == abate.Report("orders", 1, 0.0, "fatal")
    assert len(server.requests) == 1


def test_the_last_response_comes_with_a_report(way):
    """When the attempts have run out, the response is returned as it is, body and all."""
    with Server(BUSY, BUSY, respond(503, body=b"still busy")) as server:
        response = way.fetch(policy(), server.url)
    assert (response.status_code, response.text) == (503, "still busy")
    assert response.extensions["abate_report"] == abate.Report("orders", 3, 0.0, "attempts")
    assert attempts(server) == ["1", "2", "3"]


def test_a_fatal_response_after_a_retry_says_what_was_tried(way):
    """Its report counts the attempts and the waits."""
    with Server(BUSY, respond(404)) as server:
        response = way.fetch(policy(backoff=[0.5], clock=VirtualClock()), server.url)
    assert response.extensions["abate_report"] == abate.Report("orders", 2, 0.5, "fatal")


def test_retry_after_is_waited_for(way):
    """The retry never comes earlier than the server asked for."""
    clock = VirtualClock()
    with Server(respond(503, ("Retry-After", "7"))) as server:
        way.fetch(policy(backoff=[0.25], clock=clock), server.url)
    assert clock.waits == [7.25]


def test_retry_after_as_a_date_is_read_by_the_servers_clock(way):
    """A server whose clock is years off is still understood."""
    clock = VirtualClock()
    asked = ("Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT"), ("Date", "Fri, 31 Dec 1999 23:59:49 GMT")
    with Server(respond(429, *asked)) as server:
        way.fetch(policy(clock=clock), server.url)
    assert clock.waits == [10.0]


def test_a_retry_after_that_is_too_long_ends_the_call(way):
    """The response is the caller's, with the reason."""
    with Server(respond(503, ("Retry-After", "301"))) as server:
        response = way.fetch(policy(), server.url)
    assert response.extensions["abate_report"].reason == "hint"
    assert len(server.requests) == 1


@pytest.mark.parametrize("values", [["-5"], [str(10**18)], ["soon"], [""], ["5", "7"], ["1e3"], ["\xff"]])
def test_a_retry_after_that_makes_no_sense_is_passed_over(way, values):
    """The policy's own backoff counts then."""
    clock = VirtualClock()
    with Server(respond(503, *(("Retry-After", value) for value in values))) as server:
        response = way.fetch(policy(backoff=[0.25], clock=clock), server.url)
    assert response.status_code == 200
    assert clock.waits == [0.25]


def test_what_a_service_behind_has_retried_is_not_retried(way):
    """Its response says so, and the report tells the reason."""
    with Server(respond(503, ("Abate-Exhausted", "1"))) as server:
        response = way.fetch(policy(), server.url)
    assert response.extensions["abate_report"].reason == "layer"
    assert len(server.requests) == 1


def test_the_policys_own_rules_come_first(way):
    """They may retry what the table would not, and look at good responses too."""
    unfinished = abate.on_result(lambda response: response.status_code == 202)
    with Server(respond(202), respond(202)) as server:
        assert way.fetch(policy(on=unfinished), server.url).status_code == 200
    with Server(respond(503)) as server:
        final = way.fetch(policy(unless=abate.http.transient_result), server.url)
    assert (final.status_code, len(server.requests)) == (503, 1)


# -- safe to repeat


def test_a_post_is_not_repeated(way):
    """The server has seen it, and nothing says that it may be done twice."""
    with Server(BUSY) as server:
        response = way.fetch(policy(), server.url, "POST", request={"content": b"pay"})
    assert response.status_code == 503
    assert response.extensions["abate_report"].reason == "unsafe"
    assert len(server.requests) == 1


def test_a_post_with_a_key_is_repeated(way):
    """Body and key are the same on every attempt."""
    with Server(BUSY, reset) as server:
        request = {"content": b"pay", "headers": {"Idempotency-Key": "8e03"}}
        assert way.fetch(policy(), server.url, "POST", request=request).status_code == 200
    assert [(each.body, each.headers["idempotency-key"]) for each in server.requests] == [(b"pay", "8e03")] * 3


def test_requests_are_given_a_key_on_demand(way):
    """One for each request that needs it, the same on every attempt."""
    with Server(BUSY, reset, respond(200), respond(200), BUSY) as server:
        for _ in range(2):
            way.fetch(policy(), server.url, "POST", idempotency_key=True, request={"content": b"pay"})
        way.fetch(policy(), server.url, idempotency_key=True)
        way.fetch(policy(), server.url, "POST", idempotency_key=True, request={"headers": {"Idempotency-Key": "own"}})
    keys = [each.headers.get("idempotency-key") for each in server.requests]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert all(len(key) == 36 for key in keys[:4])
    assert keys[4:] == [None, None, "own"]


def test_a_policy_may_declare_that_everything_is_idempotent(way):
    """Then a POST is repeated without a key."""
    with Server(BUSY) as server:
        assert way.fetch(policy(idempotent=True), server.url, "POST").status_code == 200


def test_a_body_that_is_read_once_is_sent_once(way):
    """A generator is not sent again, whatever happened."""

    def pieces():
        yield b"pay"

    async def apieces():
        yield b"pay"

    body = pieces() if way.loop == "threads" else apieces()
    request = {"content": body, "headers": {"Idempotency-Key": "8e03"}}
    with Server(BUSY) as server:
        response = way.fetch(policy(), server.url, "POST", request=request)
    assert (response.status_code, abate.report(response).reason) == (503, "body")
    assert [each.body for each in server.requests] == [b"pay"]


def test_a_form_with_files_is_sent_again_if_they_can_be_rewound(way):
    """Every attempt has the whole of it."""
    files = {"a": b"bytes", "b": io.BytesIO(b"file")}
    request = {"files": files, "data": {"c": "field"}, "headers": {"Idempotency-Key": "8e03"}}
    with Server(BUSY, BUSY) as server:
        assert way.fetch(policy(), server.url, "POST", request=request).status_code == 200
    bodies = [each.body for each in server.requests]
    assert len(bodies) == 3
    assert len(set(bodies)) == 1
    assert all(part in bodies[0] for part in (b"bytes", b"file", b"field"))


def test_a_form_with_a_pipe_is_sent_once(way):
    """What a pipe has given is gone."""

    class Pipe(io.BytesIO):
        def seekable(self):
            return False

        def seek(self, *_):
            raise io.UnsupportedOperation

        def tell(self):
            raise io.UnsupportedOperation

    request = {"files": {"a": Pipe(b"once")}, "headers": {"Idempotency-Key": "8e03"}}
    with Server(BUSY) as server:
        assert way.fetch(policy(), server.url, "POST", request=request).status_code == 503
    assert [b"once" in each.body for each in server.requests] == [True]


# -- errors

BAD_DAYS = {
    "closed at once": (close, "RemoteProtocolError"),
    "reset": (reset, "ReadError"),
    "no status line": (GARBAGE, "RemoteProtocolError"),
    "a status of letters": (say(b"HTTP/1.1 abc Hm\r\n\r\n"), "RemoteProtocolError"),
    "a status of four digits": (say(b"HTTP/1.1 2000 OK\r\n\r\n"), "RemoteProtocolError"),
    "a header without a colon": (say(b"HTTP/1.1 200 OK\r\nwhat\r\n\r\n"), "RemoteProtocolError"),
    "a header that never ends": (say(b"HTTP/1.1 200 OK\r\nA: " + b"a" * 200_000), "RemoteProtocolError"),
    "two lengths": (
        say(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok"),
        "RemoteProtocolError",
    ),
    "closed in the headers": (say(b"HTTP/1.1 200 OK\r\nContent-"), "RemoteProtocolError"),
    "nothing but zeros": (say(bytes(100) + b"\r\n\r\n"), "RemoteProtocolError"),
}


@pytest.mark.parametrize(("behave", "name"), BAD_DAYS.values(), ids=BAD_DAYS)
def test_an_answer_that_makes_no_sense_is_a_blip(way, behave, name):
    """It is sent again; in the end the caller gets the library's own error, with a report."""
    with Server(behave) as server:
        assert way.fetch(policy(), server.url).status_code == 200
    with Server(behave, behave) as server:
        error, report = way.fail(policy(max_attempts=2), server.url)
    assert type(error) is getattr(way.library, name)
    assert report == abate.Report("orders", 2, 0.0, "attempts")
    with Server(behave) as server:
        assert way.fail(policy(), server.url, "POST")[1].reason == "unsafe"
    assert len(server.requests) == 1


def test_a_request_that_never_arrived_is_sent_again_even_if_it_is_a_post(way):
    """If nothing listens on the port, nothing was done."""
    error, report = way.fail(policy(), f"http://127.0.0.1:{unused_port()}", "POST")
    assert type(error) is way.library.ConnectError
    assert (report.reason, report.attempts) == ("attempts", 3)


def test_a_connection_that_cannot_be_made_in_time_was_never_made(way):
    """A connect timeout is an overload that the server did not see."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        error, report = way.fail(policy(max_attempts=2), url, "POST", client={"timeout": 0.05})
        for each in waiting:
            each.close()
    assert type(error) is way.library.ConnectTimeout
    assert report.attempts == 2


def test_a_full_pool_is_an_overload_that_the_server_did_not_see(way):
    """A POST that found no connection is sent again."""
    inner = way.inner(limits=way.library.Limits(max_connections=0))
    with Server() as server:
        error, report = way.fail(policy(max_attempts=2), server.url, "POST", inner=inner, client={"timeout": 0.02})
    assert type(error) is way.library.PoolTimeout
    assert (report.attempts, server.requests) == (2, [])


def test_a_server_that_accepts_and_never_answers_is_overloaded(way):
    """A read timeout is sent again, after the longer backoff of an overload."""
    clock = VirtualClock()
    settings = {"backoff": abate.Backoff(base=0.001, cap=8.0, jitter="none"), "clock": clock}
    with Server() as server:
        server.script.extend([server.hang, server.hang])
        error, report = way.fail(policy(max_attempts=2, **settings), server.url, client=impatient(way))
    assert type(error) is way.library.ReadTimeout
    assert (report.attempts, clock.waits) == (2, [1.0])


def test_a_server_that_drips_ends_in_a_timeout(way):
    """A byte a second is too slow for the read timeout."""
    with Server() as server:
        server.script.append(server.drip)
        error, _ = way.fail(policy(max_attempts=1), server.url, client=impatient(way))
    assert type(error) is way.library.ReadTimeout


def test_the_programs_own_mistakes_are_not_retried(way):
    """A URL that can't be sent is no blip."""
    error, report = way.fail(policy(), "gopher://127.0.0.1/")
    assert type(error) is way.library.UnsupportedProtocol
    assert (report.reason, report.attempts) == ("fatal", 1)


def test_an_error_can_be_wrapped(way):
    """With raises="exhausted" the caller gets one kind of error; a response in it can be read."""
    with Server(BUSY, BUSY, BUSY) as server:
        error, report = way.fail(policy(raises="exhausted"), server.url)
        assert type(error) is abate.RetryExhausted
        assert report.reason == "attempts"
        assert error.result.raise_for_status
        body = error.result.read() if way.loop == "threads" else way.run(error.result.aread)
    assert body == b"busy"
    refused, _ = way.fail(policy(raises="exhausted"), f"http://127.0.0.1:{unused_port()}")
    assert type(refused.__cause__) is way.library.ConnectError


def test_two_transports_don_t_multiply(way):
    """The outer one leaves alone what the inner one gave up on, response or error."""
    with Server(*[BUSY] * 9) as server:
        response = way.fetch(policy(), server.url, inner=way.transport(policy(name="inner")))
    assert response.extensions["abate_report"].reason == "layer"
    assert len(server.requests) == 3
    with Server(*[reset] * 9) as server, pytest.warns(abate.LayeredRetryWarning):
        name = f"outer {way!r}"  # each pair is warned of once
        _, report = way.fail(policy(name=name), server.url, inner=way.transport(policy(name="inner")))
    assert (report.reason, report.inner.policy) == ("layer", "inner")
    assert len(server.requests) == 3
    with Server(*[BUSY] * 9) as server:
        error, _ = way.fail(policy(), server.url, inner=way.transport(policy(name="inner", raises="exhausted")))
    assert (error.report.policy, error.report.reason) == ("inner", "attempts")
    assert len(server.requests) == 3


def test_redirects_stay_the_clients(way):
    """Each hop is a call of its own."""
    hop = respond(307, ("Location", "/there"), body=b"moved")
    with Server(BUSY, hop, reset) as server:
        response = way.fetch(policy(), server.url, client={"follow_redirects": True})
    assert response.text == "ok"
    assert [each.status_code for each in response.history] == [307]
    assert [each.path for each in server.requests] == ["/", "/", "/there", "/there"]
    assert attempts(server) == ["1", "2", "1", "2"]


def test_auth_stays_the_clients(way):
    """Its own second request is a call of its own, and carries what the server asked for."""
    challenge = respond(401, ("WWW-Authenticate", 'Digest realm="r", nonce="n", qop="auth", algorithm=MD5'))
    with Server(BUSY, challenge, BUSY) as server:
        response = way.fetch(policy(), server.url, client={"auth": way.library.DigestAuth("user", "secret")})
    assert response.status_code == 200
    assert ["authorization" in each.headers for each in server.requests] == [False, False, True, True]


def test_closing_the_client_closes_what_is_inside(way):
    """No connection outlives it."""
    inner = way.inner()
    with Server() as server:
        way.fetch(policy(), server.url, inner=inner)
    assert inner._pool.connections == []
    assert taken(inner) == []
