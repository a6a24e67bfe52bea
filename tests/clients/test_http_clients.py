"""What requests, urllib3 and aiohttp have in common under a policy, against a real server."""

import io
import os
import socket
import threading

import pytest

import abate
from abate.testing import Recorder
from tests.clients.drivers import DRIVERS, Ask, policy, unreachable, unused_url
from tests.clients.server import Server, close, reset, respond, say

pytestmark = pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: type(driver).__name__.lower())

GARBAGE = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "no status": b"HTTP/1.1 banana\r\n\r\n",
    "a status of 99999": b"HTTP/1.1 99999 No\r\n\r\n",
    "binary": bytes(range(256)),
}
ODD = {
    "a header without colon": b"HTTP/1.1 200 OK\r\nno colon here\r\nContent-Length: 2\r\n\r\nok",
    "a header of bytes": b"HTTP/1.1 200 OK\r\nX-\xff: \xfe\xfd\r\nContent-Length: 2\r\n\r\nok",
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nok",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
    "a huge header": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    "half a header": b"HTTP/1.1 200 OK\r\nX: y",
    "broken chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n",
    "broken gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok",
}


# -- responses


def test_a_bad_response_is_followed_by_a_good_one(driver):
    """A 503 is retried on the same connection, and each attempt carries its number."""
    with Server(respond(503, body=b"busy")) as server:
        answer = driver.fetch(Ask(server.url), policy())
    assert (answer.status, answer.body) == (200, b"ok")
    assert [request.headers["abate-attempt"] for request in server.requests] == ["1", "2"]
    assert server.connections == 1


def test_the_last_bad_response_is_returned_as_it_is(driver):
    """When the attempts have run out, the response comes back with its body and headers."""
    bad = [respond(503, ("X-Try", str(number)), body=b"busy") for number in range(1, 4)]
    with Server(*bad) as server:
        answer = driver.fetch(Ask(server.url), policy())
    assert (answer.status, answer.body, answer.headers["X-Try"]) == (503, b"busy", "3")
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 409, 501, 505])
def test_a_fatal_status_is_not_retried(driver, status):
    """Statuses that another attempt would not change come back at once."""
    with Server(respond(status, body=b"no")) as server:
        assert driver.fetch(Ask(server.url), policy()).status == status
    assert len(server.requests) == 1


def test_the_policy_is_asked_before_the_table(driver):
    """A rule of the user's own makes a good response a bad one."""
    empty = abate.on_result(lambda response: getattr(response, "headers", {}).get("X-Empty") == "yes")
    with Server(respond(200, ("X-Empty", "yes"))) as server:
        assert driver.fetch(Ask(server.url), policy(on=empty)).body == b"ok"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("values", "sent"),
    [(["1" + "0" * 18], 2), (["301"], 1), (["0"], 2), (["-5"], 2), (["soon"], 2), (["900", "0"], 2), ([""], 2)],
)
def test_retry_after(driver, values, sent):
    """A hint that is too long ends the call; what cannot be meant leaves the policy to its own backoff."""
    with Server(respond(503, *[("Retry-After", value) for value in values])) as server:
        assert driver.fetch(Ask(server.url), policy()).status == (503 if sent == 1 else 200)
    assert len(server.requests) == sent


def test_a_service_that_has_retried_is_not_retried(driver):
    """A response that says that retries are used up further in is final."""
    with Server(respond(503, ("Abate-Exhausted", "1"))) as server:
        assert driver.fetch(Ask(server.url), policy()).status == 503
    assert len(server.requests) == 1


def test_an_exhausted_policy_carries_the_response(driver):
    """With raises="exhausted" the last response is in the error."""
    with Server(respond(503), respond(503)) as server, pytest.raises(abate.RetryExhausted) as caught:
        driver.fetch(Ask(server.url), policy(max_attempts=2, raises="exhausted"))
    assert getattr(caught.value.result, "status", None) or caught.value.result.status_code == 503
    assert caught.value.report.reason == "attempts"
    caught.value.result.close()


def test_a_closed_gate_sends_nothing(driver):
    """A first attempt that is not admitted raises `Refused`."""
    with Server() as server, abate.ConcurrencyLimit(1) as gate, pytest.raises(abate.Refused):
        driver.fetch(Ask(server.url), policy(gate=gate))
    assert server.requests == []


# -- errors


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_refused_connection_is_retried_whatever_the_method(driver, method):
    """The server never saw the request, so a POST may be sent again as well."""
    with Recorder() as events, pytest.raises(driver.refused) as caught:
        driver.fetch(Ask(unused_url(), method=method), policy())
    assert abate.report(caught.value) == abate.Report("shop", 3, 0.0, "attempts")
    assert [event.reason for event in events if isinstance(event, abate.events.Retry)] == ["blip", "blip"]


def test_a_policy_without_a_name_goes_by_the_library_s(driver):
    """The report says which client gave up."""
    with pytest.raises(driver.refused) as caught:
        driver.fetch(Ask(unused_url()), policy(name=""))
    assert abate.report(caught.value).policy == type(driver).__name__.lower()


def test_a_name_that_does_not_resolve_is_retried_whatever_the_method(driver):
    """The same for a host that there is not."""
    with pytest.raises(driver.refused) as caught:
        driver.fetch(Ask("http://nowhere.invalid/", method="POST"), policy(max_attempts=2))
    assert abate.report(caught.value).attempts == 2


def test_a_connect_timeout_is_overload_that_no_server_saw(driver):
    """A connection that is not made in time is retried for a POST too."""
    with unreachable() as url, Recorder() as events, pytest.raises(driver.connect_timeout) as caught:
        driver.fetch(Ask(url, method="POST", timeout=(0.05, 10.0)), policy(max_attempts=2))
    assert abate.report(caught.value).reason == "attempts"
    assert [event.reason for event in events if isinstance(event, abate.events.Retry)] == ["overload"]


def test_a_read_timeout_is_overload(driver):
    """A server that accepts and never answers: the library's own timeout, after the attempts of the policy."""
    with Server() as server, Recorder() as events:
        server.script.extend([server.hang] * 2)
        with pytest.raises(driver.read_timeout) as caught:
            driver.fetch(Ask(server.url, timeout=(10.0, 0.05)), policy(max_attempts=2))
    assert abate.report(caught.value) == abate.Report("shop", 2, 0.0, "attempts")
    assert [event.reason for event in events if isinstance(event, abate.events.Retry)] == ["overload"]


@pytest.mark.parametrize("behaviour", [close, reset], ids=lambda behaviour: behaviour.__name__)
def test_a_connection_that_breaks_is_a_blip(driver, behaviour):
    """Closed or reset without a response: retried, and in the end raised as the library's own, with a report."""
    with Server(behaviour) as server, Recorder() as events:
        assert driver.fetch(Ask(server.url), policy()).status == 200
    assert len(server.requests) == 2
    assert [event.reason for event in events if isinstance(event, abate.events.Retry)] == ["blip"]
    with Server(*[behaviour] * 9) as server, pytest.raises(driver.broken) as caught:
        driver.fetch(Ask(server.url), policy())
    assert abate.report(caught.value) == abate.Report("shop", 3, 0.0, "attempts")
    assert len(server.requests) == 3  # the library adds none of its own


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_a_blip(driver, garbage):
    """An answer that makes no sense is retried, and in the end raised as the library's own error, with a report."""
    with Server(say(garbage)) as server:
        assert driver.fetch(Ask(server.url), policy()).body == b"ok"
    assert len(server.requests) == 2
    with Server(*[say(garbage)] * 9) as server, pytest.raises(driver.broken) as caught:
        driver.fetch(Ask(server.url), policy())
    assert abate.report(caught.value).reason == "attempts"


@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
def test_odd_answers_end_the_library_s_way(driver, answer):
    """Malformed heads and bodies end in a response, or in an error of the library's, after at most three attempts."""
    with Server(*[say(answer)] * 9) as server:
        try:
            assert driver.fetch(Ask(server.url), policy()).status == 200
        except driver.errors as error:
            assert not driver.reads_whole or abate.report(error) is not None
    assert len(server.requests) <= 3


def test_a_failure_of_tls_is_fatal(driver):
    """A server that speaks no TLS will not speak it the next time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak_plainly():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                connection.sendall(b"HTTP/1.1 400 No\r\n\r\n")

        thread = threading.Thread(target=speak_plainly)
        thread.start()
        with pytest.raises(driver.tls) as caught:
            driver.fetch(Ask(f"https://127.0.0.1:{listener.getsockname()[1]}"), policy())
        thread.join(10)
    assert abate.report(caught.value).reason == "fatal"


def test_an_outer_policy_does_not_multiply(driver):
    """What the client has given up on is not retried around it."""
    outer = abate.Policy(on=driver.errors, name="outer", backoff=[0.0])
    with Server(*[close] * 20) as server, pytest.warns(abate.LayeredRetryWarning), pytest.raises(driver.broken):
        outer.call(driver.fetch, Ask(server.url), policy(name=f"inner of {type(driver).__name__}"))
    assert len(server.requests) == 3


# -- what may be repeated


@pytest.mark.parametrize("behaviour", [respond(503), close], ids=["503", "closed"])
def test_an_unsafe_method_is_sent_once(driver, behaviour):
    """A POST that the server may have seen is not sent again."""
    with Server(behaviour) as server:
        try:
            assert driver.fetch(Ask(server.url, method="POST", body=b"1"), policy()).status == 503
        except driver.broken as error:
            assert abate.report(error).reason == "unsafe"
    assert len(server.requests) == 1


def test_an_idempotency_key_makes_a_method_safe(driver):
    """A request that carries a key of its own is repeated with it, and gets no other."""
    with Server(respond(503)) as server:
        ask = Ask(server.url, method="POST", body=b"1", headers={"idempotency-key": "mine"})
        assert driver.fetch(Ask(**{**vars(ask), "built": {"idempotency_key": True}}), policy()).status == 200
    assert [request.headers["idempotency-key"] for request in server.requests] == ["mine"] * 2


def test_a_key_is_made_for_each_call(driver):
    """With idempotency_key=True every attempt of a call carries the same key, and the next call another."""
    with Server(respond(503), respond(200), respond(503)) as server:
        driver.fetch(Ask(server.url, method="POST", body=b"1", times=2, built={"idempotency_key": True}), policy())
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert keys[0] == keys[1] != keys[2] == keys[3]


def test_safe_methods_get_no_key(driver):
    """A GET needs none."""
    with Server() as server:
        driver.fetch(Ask(server.url, built={"idempotency_key": True}), policy())
    assert "idempotency-key" not in server.requests[0].headers


# -- bodies


@pytest.mark.parametrize("body", [b"order 42", "order 42"], ids=["bytes", "text"])
def test_a_body_is_sent_again(driver, body):
    """Bytes and text are the same on every attempt."""
    with Server(respond(503), close) as server:
        assert driver.fetch(Ask(server.url, method="PUT", body=body), policy(idempotent=True)).status == 200
    assert [request.body for request in server.requests] == [b"order 42"] * 3


def test_a_file_is_sent_again_from_where_it_was(driver, tmp_path):
    """A file is rewound to its position at the first attempt, not to its start."""
    (tmp_path / "order").write_bytes(b"skip order 42")
    with (tmp_path / "order").open("rb") as file, Server(respond(503), respond(503)) as server:
        file.seek(5)
        assert driver.fetch(Ask(server.url, method="PUT", body=file), policy(idempotent=True)).status == 200
    assert [request.body for request in server.requests] == [b"order 42"] * 3


def test_a_buffer_is_sent_again_from_where_it_was(driver):
    """The same for a buffer in memory."""
    buffer = io.BytesIO(b"skip order 42")
    buffer.seek(5)
    with Server(respond(503)) as server:
        assert driver.fetch(Ask(server.url, method="PUT", body=buffer), policy(idempotent=True)).status == 200
    assert [request.body for request in server.requests] == [b"order 42"] * 2


def pieces():
    yield b"order "
    yield b"42"


async def apieces():
    for piece in pieces():
        yield piece


@pytest.mark.parametrize("behaviour", [respond(503), close], ids=["503", "closed"])
def test_a_generator_is_never_sent_twice(driver, behaviour):
    """What can be read only once is sent once, whatever the policy says."""
    body = pieces() if driver.reads_whole else apieces()
    with Server(behaviour) as server:
        try:
            assert driver.fetch(Ask(server.url, method="PUT", body=body), policy(idempotent=True)).status == 503
        except driver.broken as error:
            assert abate.report(error).attempts == 1
    assert [request.body for request in server.requests] == [b"order 42"]


def test_a_pipe_is_never_sent_twice(driver):
    """The same for a file that cannot be rewound."""
    receiver, sender = os.pipe()
    os.write(sender, b"order 42")
    os.close(sender)
    with os.fdopen(receiver, "rb") as pipe, Server(respond(503)) as server:
        assert driver.fetch(Ask(server.url, method="PUT", body=pipe), policy(idempotent=True)).status == 503
    assert [request.body for request in server.requests] == [b"order 42"]
