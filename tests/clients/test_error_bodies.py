"""The JSON body of an error is read before it is judged, within bounds, and still reaches the caller whole."""

import gzip
import json
import threading

import pytest

import abate
from abate.clients.http_client import DRAIN_SECONDS
from abate.testing import Recorder
from tests.clients.drivers import ALL_DRIVERS, Ask, driver_name, policy
from tests.clients.server import Server, respond, say

pytestmark = pytest.mark.parametrize("driver", ALL_DRIVERS, ids=driver_name)

JSON = ("Content-Type", "application/json; charset=utf-8")
QUOTA = json.dumps({"error": {"message": "pay", "code": "insufficient_quota"}}).encode()
BUSY = json.dumps({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}).encode()
DELAY = json.dumps(
    {"error": {"code": 429, "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}]}}
).encode()

STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["read whole", "streamed"])


def chunked(status, body, pieces=3):
    """Answer with a body in chunks, and close."""
    size = len(body) // pieces + 1
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    head = f"HTTP/1.1 {status} Told So\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    return say(head.encode(), *(b"%x\r\n%s\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n")


@STREAMS
def test_a_quota_that_is_used_up_is_fatal(driver, stream):
    """Other calls with 429 are retried; the body reaches the caller."""
    with Server(respond(429, JSON, body=QUOTA)) as server:
        answer = driver.fetch(Ask(server.url, stream=stream), policy())
    assert (answer.status, answer.body, answer.report.reason) == (429, QUOTA, "fatal")
    with Server(respond(429, JSON, body=BUSY)) as server:
        assert driver.fetch(Ask(server.url, stream=stream), policy()).status == 200


@STREAMS
def test_a_body_in_chunks_is_read_as_well(driver, stream):
    """Its length is not known before."""
    with Server(chunked(429, QUOTA)) as server:
        answer = driver.fetch(Ask(server.url, stream=stream), policy())
    assert (answer.status, answer.body, answer.report.reason) == (429, QUOTA, "fatal")


@STREAMS
def test_a_compressed_body_is_read_as_well(driver, stream):
    """The caller gets it as the server sent it, to decode."""
    body = gzip.compress(QUOTA)
    with Server(respond(429, JSON, ("Content-Encoding", "gzip"), body=body)) as server:
        answer = driver.fetch(Ask(server.url, stream=stream), policy())
    assert (answer.status, answer.body, answer.report.reason) == (429, QUOTA, "fatal")


@STREAMS
def test_a_hint_in_the_body_is_kept(driver, stream):
    """Google says there when to come back; one that is too long ends the call."""
    with Server(respond(429, JSON, body=DELAY)) as server, Recorder() as events:
        answer = driver.fetch(Ask(server.url, stream=stream), policy(max_hint=5.0))
    assert (answer.status, answer.body, answer.report.reason) == (429, DELAY, "hint")
    assert [event.reason for event in events if isinstance(event, abate.events.GaveUp)] == ["hint"]


@STREAMS
def test_a_body_that_is_too_long_to_judge_reaches_the_caller_whole(driver, stream):
    """With its length known or not; an attempt that ends with it is judged by its status."""
    long = json.dumps({"error": {"code": "insufficient_quota", "message": "x" * 200_000}}).encode()
    for answered in (respond(429, JSON, body=long), chunked(429, long, pieces=10)):
        with Server(answered) as server:
            answer = driver.fetch(Ask(server.url, stream=stream), policy(budget=abate.Budget(ratio=0, reserve=0)))
        # what is read whole is judged whole
        assert answer.status == 429
        assert answer.body == long or (answer.report.reason == "budget" and stream)


def test_a_body_that_stalls_is_waited_for_a_moment_only(driver):
    """The attempt is judged by its status, and the next one follows."""
    with Server() as server:

        def stall(connection):
            connection.sendall(b"HTTP/1.1 429 No\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
            return server.hang(connection)

        server.script.append(stall)
        # a client that reads bodies whole has its own read timeout as well
        answer = driver.fetch(Ask(server.url, stream=True, timeout=(10.0, 60.0)), policy(timeout=20.0))
    assert answer.status == 200
    assert len(server.requests) == 2
    assert DRAIN_SECONDS < 1.0


def test_a_body_that_stalls_does_not_outlast_the_deadline(driver):
    """The bound is the nearer of the two; a client that has time left may send a second attempt, in time."""
    with Server() as server, abate.deadline(0.1):

        def stall(connection):
            connection.sendall(b"HTTP/1.1 429 No\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
            return server.hang(connection)

        server.script.extend([stall, server.hang])
        try:
            driver.fetch(Ask(server.url, stream=True, timeout=(10.0, 0.3)), policy())
        except driver.errors as error:
            assert abate.report(error) is None or abate.report(error).reason == "deadline"
    assert len(server.requests) <= 2
    assert all(int(request.headers["abate-deadline"]) <= 100 for request in server.requests)


def test_the_body_of_a_final_response_is_not_waited_for(driver):
    """The last attempt, and one that may not be repeated, hand it over as it comes."""
    slow = json.dumps({"error": {"code": "insufficient_quota"}}).encode()

    def late(connection):
        head = f"HTTP/1.1 500 No\r\nContent-Type: application/json\r\nContent-Length: {len(slow)}\r\n\r\n".encode()
        connection.sendall(head)
        server._over.wait(2 * DRAIN_SECONDS)
        connection.sendall(slow)
        return False

    with Server(late) as server:
        answer = driver.fetch(Ask(server.url, method="POST", stream=True), policy())
    assert (answer.status, answer.body, answer.report.reason) == (500, slow, "unsafe")
    with Server(late) as server:
        answer = driver.fetch(Ask(server.url, stream=True), policy(max_attempts=1))
    assert (answer.status, answer.body, answer.report.reason) == (500, slow, "attempts")


@STREAMS
@pytest.mark.parametrize(
    "rules",
    [{"on": TimeoutError}, {"on": abate.http.status(429)}, {"unless": abate.http.status(503)}],
    ids=["errors only", "another status", "not this status"],
)
def test_the_body_of_a_response_that_is_not_retried_is_not_waited_for(driver, stream, rules):
    """However late it comes, it reaches the caller."""
    let_go = threading.Event()

    def late(connection):
        head = f"HTTP/1.1 503 Busy\r\nContent-Type: application/json\r\nContent-Length: {len(BUSY)}\r\n\r\n"
        connection.sendall(head.encode())
        let_go.wait(DRAIN_SECONDS * 2)
        connection.sendall(BUSY)
        return True

    with Server(late) as server:
        answer = driver.fetch(Ask(server.url, stream=stream), policy(**rules))
    assert (answer.status, answer.body) == (503, BUSY)
    assert len(server.requests) == 1
