"""What is urllib3's own under a policy, against a real server."""

import socket
import time
import warnings

import pytest
import urllib3

import abate
from abate.clients.urllib3 import PoolManager
from abate.testing import Recorder, VirtualClock
from tests.clients.drivers import policy
from tests.clients.server import Server, close, respond

LONG = b"x" * 1_000_000
ONLY_REDIRECTS = urllib3.Retry(total=9, connect=0, read=0, status=0, other=0, redirect=1)


@pytest.mark.parametrize("retries", [3, urllib3.Retry(3), urllib3.Retry(total=None, connect=0)], ids=str)
def test_retries_of_its_own_are_warned_of_and_not_used(retries):
    """The manager's retries would multiply with the policy: the user is told, and the policy decides alone."""
    with pytest.warns(abate.LayeredRetryWarning, match="would multiply") as caught:
        manager = PoolManager(policy(), retries=retries)
    assert caught[0].filename == __file__
    with Server(*[close] * 9) as server, manager, pytest.raises(urllib3.exceptions.ProtocolError):
        manager.request("GET", server.url, timeout=10)
    assert len(server.requests) == 3


def test_retries_of_a_request_are_warned_of_and_not_used():
    """The same for the retries of one request."""
    server = Server(*[respond(503, ("Retry-After", "0"))] * 9)
    with server, PoolManager(policy()) as manager, pytest.warns(abate.LayeredRetryWarning, match="would multiply"):
        assert manager.request("GET", server.url, retries=5, timeout=10).status == 503
    assert len(server.requests) == 3


@pytest.mark.parametrize("retries", [0, False, ONLY_REDIRECTS, urllib3.Retry(0)], ids=str)
def test_limits_of_redirects_are_fine(retries):
    """Where nothing would multiply, nothing is said."""
    with warnings.catch_warnings(), Server() as server:
        warnings.simplefilter("error")
        with PoolManager(policy(), retries=retries) as manager:
            assert manager.request("GET", server.url, timeout=10).status == 200
            assert manager.request("GET", server.url, timeout=10, retries=retries).status == 200


def test_redirects_are_followed_within_their_limit():
    """A limit for redirects is kept, nothing is warned of on the way, and the response knows where it came from."""
    there = respond(302, ("Location", "/there"))
    with Server(there, respond(503)) as server, PoolManager(policy()) as manager:
        response = manager.request("GET", server.url, timeout=10)
        assert (response.geturl(), response.data) == ("/there", b"ok")
        server.script.extend([there, there])
        with pytest.raises(urllib3.exceptions.MaxRetryError, match="too many redirects"):
            manager.request("GET", server.url, timeout=10, retries=ONLY_REDIRECTS)
        server.script.append(there)
        assert manager.request("GET", server.url, timeout=10, redirect=False).status == 302
        server.script.append(there)
        assert manager.request("GET", server.url, timeout=10, retries=False).status == 302


def test_a_post_that_is_redirected_to_a_get_loses_its_body():
    """The rules for redirects are the manager's."""
    with Server(respond(303, ("Location", "/there"))) as server, PoolManager(policy()) as manager:
        manager.request("POST", server.url, body=b"order", timeout=10)
    assert [(request.method, request.body) for request in server.requests] == [("POST", b"order"), ("GET", b"")]


def test_a_pool_without_a_free_connection_is_overload_that_no_server_saw():
    """Waiting for the pool ends in urllib3's own error, and is retried for a POST too."""
    with Server(respond(200, body=LONG)) as server, PoolManager(policy(), maxsize=1, block=True) as manager:
        held = manager.request("GET", server.url, preload_content=False, timeout=10)
        with Recorder() as events, pytest.raises(urllib3.exceptions.EmptyPoolError) as caught:
            manager.request("POST", server.url, pool_timeout=0.01, timeout=10)
        held.close()
        held.release_conn()
    assert abate.report(caught.value).attempts == 3
    assert [event.reason for event in events if isinstance(event, abate.events.Retry)] == ["overload", "overload"]


def test_a_wait_that_is_broken_off_frees_the_connection():
    """The program ends while a streamed bad response is held: the next request gets the one connection there is."""

    class Ended(BaseException):
        pass

    class Interrupted(VirtualClock):
        def sleep(self, seconds):
            raise Ended

    interrupted = policy(clock=Interrupted(), backoff=[1.0])
    with Server(respond(503, body=LONG)) as server, PoolManager(interrupted, maxsize=1, block=True) as manager:
        with pytest.raises(Ended):
            manager.request("GET", server.url, preload_content=False, timeout=10)
        assert manager.request("GET", server.url, timeout=10, pool_timeout=1).data == b"ok"


def test_a_deadline_bounds_reading_a_stream():
    """A deadline that begins after the response has come cuts the reads of its body as well."""

    def late(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        time.sleep(1.0)
        connection.sendall(b"ok")
        return False

    with Server(late) as server, PoolManager(policy()) as manager:
        response = manager.request("GET", server.url, preload_content=False, timeout=10)
        assert response.fileno() >= 0  # the stream is still one that can be waited for
        with abate.deadline(0.1), pytest.raises(urllib3.exceptions.ReadTimeoutError):
            response.read()
        response.close()


def test_a_body_that_cannot_be_written_is_overload():
    """A server that accepts and doesn't read: writing times out, and that is what a busy server looks like."""
    with socket.create_server(("127.0.0.1", 0)) as listener, PoolManager(policy(idempotent=True)) as manager:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Recorder() as events, pytest.raises(urllib3.exceptions.ProtocolError) as caught:
            manager.request("PUT", url, body=LONG * 20, timeout=0.1)
    assert abate.report(caught.value).attempts == 3
    assert [event.reason for event in events if isinstance(event, abate.events.Retry)] == ["overload", "overload"]


def test_a_list_of_pieces_is_sent_again():
    """What can be gone through twice is replayed."""
    with Server(respond(503)) as server, PoolManager(policy(idempotent=True)) as manager:
        manager.request("PUT", server.url, body=[b"order ", b"42"], timeout=10)
    assert [request.body for request in server.requests] == [b"order 42"] * 2


def test_json_and_fields_are_sent_again():
    """What urllib3 encodes beforehand is the same on every attempt."""
    server = Server(respond(503), respond(200), respond(503))
    with server, PoolManager(policy(idempotent=True)) as manager:
        manager.request("POST", server.url, json={"order": 42}, timeout=10)
        manager.request("POST", server.url, fields={"order": "42"}, timeout=10)
    bodies = [request.body for request in server.requests]
    assert bodies[0] == bodies[1] == b'{"order":42}'
    assert bodies[2] == bodies[3]


def test_headers_of_the_caller_are_left_as_they_were():
    """The headers of an attempt are put on a copy: of the manager's, or of the request's."""
    own = {"X-Own": "1"}
    with Server(respond(503)) as server, PoolManager(policy(), headers={"X-All": "1"}) as manager:
        manager.request("GET", server.url, timeout=10)
        manager.request("GET", server.url, headers=own, timeout=10)
    assert (own, dict(manager.headers)) == ({"X-Own": "1"}, {"X-All": "1"})
    assert [request.headers.get("x-all") for request in server.requests] == ["1", "1", None]


def test_a_pool_that_is_taken_out_is_urllib3_s():
    """A pool that follows redirects by itself sends without the policy, and works."""
    with Server(respond(302, ("Location", "/there")), respond(503)) as server, PoolManager(policy()) as manager:
        response = manager.connection_from_url(server.url).request("GET", "/", timeout=10)
    assert response.status == 503
    assert [request.headers.get("abate-attempt") for request in server.requests] == [None, None]


def test_the_manager_s_own_timeout_counts():
    """A timeout that was given to the manager is the one that is cut."""
    with Server() as server, PoolManager(policy(max_attempts=1), timeout=0.05) as manager:
        server.script.append(server.hang)
        with pytest.raises(urllib3.exceptions.ReadTimeoutError):
            manager.request("GET", server.url)


def test_it_is_a_manager_and_takes_what_one_takes():
    """Settings of urllib3's PoolManager go through."""
    with PoolManager(policy(), num_pools=3) as manager:
        assert isinstance(manager, urllib3.PoolManager)
        assert manager.pools._maxsize == 3
