"""What requests, urllib3 and aiohttp have in common under a policy, against a real server."""

import io
import os
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from tests.clients.drivers import DRIVERS, Ask, basic, policy
from tests.clients.server import Server, close, close_in_body, reset, reset_in_body, respond, say

import abate
from abate.testing import Recorder

pytestmark = pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: type(driver).__name__.lower())

LONG = b"x" * 1_000_000
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


def drip(start: bytes, rest: bytes):
    """Send `start`, and then `rest` one byte at a time, for some seconds."""

    def behave(connection):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(start)
        for byte in rest:
            time.sleep(0.02)
            connection.sendall(bytes([byte]))
        return False

    return behave


DRIPS = {
    "in the head": drip(b"", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 400 + b"\r\nContent-Length: 0\r\n\r\n"),
    "in the body": drip(b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n", b"y" * 400),
}


@contextmanager
def unreachable():
    """A port that accepts no further connection, and refuses none."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for filler in fillers:
                filler.close()


def nobody() -> str:
    """Where nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


class Told:
    """Timeouts that are told what to say, and keep what they are told."""

    def __init__(self, request=10.0, connect=10.0):
        self.seconds = request, connect
        self.observed = []

    def request(self):
        return self.seconds[0]

    def connect(self):
        return self.seconds[1]

    def observe(self, seconds):
        self.observed.append(seconds)


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
    [(["1" + "0" * 18], 1), (["301"], 1), (["0"], 2), (["-5"], 2), (["soon"], 2), (["900", "0"], 2), ([""], 2)],
)
def test_retry_after(driver, values, sent):
    """A hint that is too long ends the call; what cannot be read leaves the policy to its own backoff."""
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
        driver.fetch(Ask(server.url), policy(attempts=2, raises="exhausted"))
    assert getattr(caught.value.result, "status", None) or caught.value.result.status_code == 503
    assert caught.value.report.reason == "attempts"
    caught.value.result.close()


def test_a_closed_gate_sends_nothing(driver):
    """A first attempt that is not admitted raises `Refused`."""
    with Server() as server, abate.Permits(1) as gate, pytest.raises(abate.Refused):
        driver.fetch(Ask(server.url), policy(gate=gate))
    assert server.requests == []


# -- errors


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_refused_connection_is_retried_whatever_the_method(driver, method):
    """Nobody saw the request, so a POST may be sent again as well."""
    with Recorder() as events, pytest.raises(driver.refused) as caught:
        driver.fetch(Ask(nobody(), method=method), policy())
    assert abate.report(caught.value) == abate.Report("shop", 3, 0.0, "attempts")
    assert [event.reason for event in events if isinstance(event, abate.events.Retry)] == ["blip", "blip"]


def test_a_name_that_does_not_resolve_is_retried_whatever_the_method(driver):
    """The same for a host that there is not."""
    with pytest.raises(driver.refused) as caught:
        driver.fetch(Ask("http://nowhere.invalid/", method="POST"), policy(attempts=2))
    assert abate.report(caught.value).attempts == 2


def test_a_connect_timeout_is_overload_that_nobody_saw(driver):
    """A connection that is not made in time is retried for a POST too."""
    with unreachable() as url, Recorder() as events, pytest.raises(driver.connect_timeout) as caught:
        driver.fetch(Ask(url, method="POST", timeout=(0.05, 10.0)), policy(attempts=2))
    assert abate.report(caught.value).reason == "attempts"
    assert [event.reason for event in events if isinstance(event, abate.events.Retry)] == ["overload"]


def test_a_read_timeout_is_overload(driver):
    """A server that accepts and never answers: the library's own timeout, after the attempts of the policy."""
    with Server() as server, Recorder() as events:
        server.script.extend([server.hang] * 2)
        with pytest.raises(driver.read_timeout) as caught:
            driver.fetch(Ask(server.url, timeout=(10.0, 0.05)), policy(attempts=2))
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


# -- streaming


def test_a_streamed_response_comes_through(driver):
    """A long body that is not read at once is whole."""
    with Server(respond(503, body=LONG), respond(200, body=LONG)) as server:
        assert driver.fetch(Ask(server.url, stream=True), policy()).body == LONG
    assert len(server.requests) == 2


@pytest.mark.parametrize("behaviour", [reset_in_body, close_in_body], ids=lambda behaviour: behaviour.__name__)
def test_a_failure_in_a_streamed_body_is_the_caller_s(driver, behaviour):
    """After the first byte nothing is retried."""
    with Server(behaviour) as server, pytest.raises(driver.in_body):
        driver.fetch(Ask(server.url, stream=True), policy())
    assert len(server.requests) == 1


@pytest.mark.parametrize("behaviour", [reset_in_body, close_in_body], ids=lambda behaviour: behaviour.__name__)
def test_a_failure_in_a_body_that_is_read_whole_is_a_blip(driver, behaviour):
    """Where the library reads the body before it returns, the caller has seen nothing, and it is retried."""
    if not driver.reads_whole:
        pytest.skip("hands responses over unread")
    with Server(behaviour) as server:
        assert driver.fetch(Ask(server.url), policy()).body == b"ok"
    assert len(server.requests) == 2
    with Server(*[behaviour] * 3) as server, pytest.raises(driver.in_body) as caught:
        driver.fetch(Ask(server.url), policy())
    assert abate.report(caught.value).reason == "attempts"
    with Server(behaviour) as server, pytest.raises(driver.in_body) as caught:
        driver.fetch(Ask(server.url, method="POST"), policy())
    assert abate.report(caught.value).reason == "unsafe"


def test_a_hint_outlives_a_broken_body(driver):
    """A 503 whose body breaks off is still a 503, and its Retry-After counts."""
    if not driver.reads_whole:
        pytest.skip("hands responses over unread")
    broken = say(b"HTTP/1.1 503 Busy\r\nRetry-After: 1000\r\nContent-Length: 100\r\n\r\n0123456789")
    with Server(broken) as server, pytest.raises(driver.in_body) as caught:
        driver.fetch(Ask(server.url), policy())
    assert abate.report(caught.value).reason == "hint"
    assert len(server.requests) == 1


# -- time


def test_the_deadline_travels(driver):
    """With a deadline each attempt says how many milliseconds are left; without one, nothing."""
    with Server(respond(503)) as server:
        with abate.deadline(30.0):
            driver.fetch(Ask(server.url), policy())
        driver.fetch(Ask(server.url), policy())
    left = [request.headers.get("abate-deadline") for request in server.requests]
    assert 0 < int(left[1]) <= int(left[0]) <= 30_000
    assert left[2] is None


def test_a_deadline_cuts_the_read_timeout(driver):
    """A server that never answers is left at the deadline, by the library's own timeout."""
    with Server() as server, abate.deadline(0.2):
        server.script.append(server.hang)
        with pytest.raises(driver.read_timeout) as caught:
            driver.fetch(Ask(server.url), policy())
    assert abate.report(caught.value) == abate.Report("shop", 1, 0.0, "deadline")


def test_a_deadline_cuts_the_connect_timeout(driver):
    """The same for a connection that is not made."""
    with unreachable() as url, abate.deadline(0.2), pytest.raises(driver.connect_timeout) as caught:
        driver.fetch(Ask(url), policy())
    assert abate.report(caught.value).reason == "deadline"


def test_a_deadline_that_has_passed_ends_in_a_timeout(driver):
    """A first attempt that has no time left is the library's own timeout, not an error about the number."""
    with Server() as server, abate.deadline(0.0):
        server.script.append(server.hang)
        with pytest.raises((driver.connect_timeout, *_tuple(driver.read_timeout))) as caught:
            driver.fetch(Ask(server.url), policy())
    assert abate.report(caught.value).attempts == 1


@pytest.mark.parametrize("where", DRIPS)
def test_a_server_that_drips_is_cut_off_at_the_deadline(driver, where):
    """Bytes that come one by one, each in time, don't carry a call past its deadline."""
    if where == "in the body" and not driver.reads_whole:
        pytest.skip("hands responses over unread")
    with Server(DRIPS[where]) as server, abate.deadline(0.3), pytest.raises(driver.read_timeout) as caught:
        driver.fetch(Ask(server.url), policy())
    assert abate.report(caught.value).reason == "deadline"
    assert len(server.requests) == 1


@pytest.mark.parametrize("settings", [{"timeout": 0.3}, {"attempt_timeout": 0.3, "attempts": 1}], ids=str)
def test_a_server_that_drips_is_cut_off_by_the_policy_s_timeouts(driver, settings):
    """The same for the timeouts of the policy: what comes out is the library's own error."""
    with Server(DRIPS["in the head"]) as server, pytest.raises(driver.read_timeout) as caught:
        driver.fetch(Ask(server.url), policy(**settings))
    assert abate.report(caught.value).attempts == 1


def test_timeouts_are_bounded_further(driver):
    """`timeouts` bounds waiting for a response, and a connection, below what the library was told."""
    with Server() as server:
        server.script.append(server.hang)
        with pytest.raises(driver.read_timeout):
            driver.fetch(Ask(server.url, built={"timeouts": Told(request=0.05)}), policy(attempts=1))
    with unreachable() as url, pytest.raises(driver.connect_timeout) as caught:
        driver.fetch(Ask(url, method="POST", built={"timeouts": Told(connect=0.05)}), policy(attempts=2))
    assert abate.report(caught.value).attempts == 2


def test_the_library_s_own_timeout_counts_if_it_is_shorter(driver):
    """`timeouts` never makes one longer, nor does a deadline."""
    with Server() as server, abate.deadline(30.0):
        server.script.append(server.hang)
        ask = Ask(server.url, timeout=(0.1, 0.1), built={"timeouts": Told(request=20.0, connect=20.0)})
        with pytest.raises(driver.read_timeout) as caught:
            driver.fetch(ask, policy(attempts=1))
    assert abate.report(caught.value).reason == "attempts"


def test_good_responses_are_observed(driver):
    """`timeouts` is told of responses below 400, and of no others."""
    timeouts = Told()
    with Server(respond(503), respond(200), respond(404), close, respond(302)) as server:
        driver.fetch(Ask(server.url, times=4, built={"timeouts": timeouts}), policy())
    assert len(server.requests) == 6
    assert len(timeouts.observed) == 3
    assert all(seconds >= 0 for seconds in timeouts.observed)


# -- the rest of the library


def test_redirects_are_the_library_s(driver):
    """Each hop is one call: what fails is the hop that is sent again."""
    with Server(respond(503), respond(302, ("Location", "/there")), respond(503)) as server:
        assert driver.fetch(Ask(server.url + "/here"), policy()).body == b"ok"
    asked = [(request.path, request.headers["abate-attempt"]) for request in server.requests]
    assert asked == [("/here", "1"), ("/here", "2"), ("/there", "1"), ("/there", "2")]


def test_an_endless_redirect_ends(driver):
    """The library's own limit still holds."""
    with Server(*[respond(302, ("Location", "/again"))] * 60) as server, pytest.raises(driver.too_many):
        driver.fetch(Ask(server.url), policy())
    assert len(server.requests) < 60


def test_auth_is_sent_with_every_attempt(driver):
    """Credentials are there on the retry as well."""
    with Server(respond(503)) as server:
        driver.fetch(Ask(server.url, auth=("me", "secret")), policy())
    assert [request.headers["authorization"] for request in server.requests] == [basic("me", "secret")] * 2


def test_retries_use_one_connection(driver):
    """Two thousand requests, every other one retried, on a single connection."""
    with Server(*[respond(503, body=b"busy"), respond(200, body=b"ok")] * 1000) as server:
        driver.fetch(Ask(server.url, times=1000), policy())
    assert len(server.requests) == 2000
    assert server.connections == 1


def test_discarded_streams_leave_no_connection_behind(driver):
    """Bad responses that are not read are closed: with one connection at most, the next attempt gets it."""
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else None
    with Server(*[respond(503, body=LONG), respond(200, body=b"ok")] * 50) as server:
        driver.fetch(Ask(server.url, times=50, stream=True), policy())
        assert len(server.requests) == 100
    if before is not None:
        _await(lambda: len(os.listdir("/proc/self/fd")) <= before + 1)  # the listener's thread may hold its socket


def test_no_thread_is_left(driver):
    """A call that fails leaves no thread that would keep the program alive."""
    with Server() as server:
        server.script.extend([server.hang] * 3)
        with pytest.raises(driver.errors):
            driver.fetch(Ask(server.url, timeout=(0.05, 0.05)), policy())
    assert [thread for thread in threading.enumerate() if not thread.daemon] == [threading.main_thread()]


@pytest.mark.parametrize(
    ("built", "message"),
    [
        ({"idempotency_key": "yes"}, "idempotency_key must be True or False, not 'yes'"),
        ({"timeouts": 3.0}, r"timeouts must have request\(\), connect\(\) and observe\(\), not be 3.0"),
    ],
)
def test_bad_arguments_are_named(driver, built, message):
    """What cannot be is refused at construction, by its value."""
    with pytest.raises(TypeError, match=message):
        driver.fetch(Ask("http://127.0.0.1:1/", built=built), policy())


def test_a_policy_is_needed(driver):
    """Anything else is refused at construction."""
    with pytest.raises(TypeError, match="policy must be a Policy, not 3"):
        driver.fetch(Ask("http://127.0.0.1:1/"), 3)


def _tuple(errors):
    return errors if isinstance(errors, tuple) else (errors,)


def _await(condition):
    """Wait until it is so, for ten seconds at most."""
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not become so")
