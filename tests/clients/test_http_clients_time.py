"""Streams, time, and what stays the library's: requests, urllib3 and aiohttp under a policy, against a real server."""

import os
import threading
import time

import pytest

import abate
from tests.clients.drivers import DRIVERS, Ask, Told, basic, drip, policy, unreachable
from tests.clients.server import Server, close, close_in_body, reset_in_body, respond, say

pytestmark = pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: type(driver).__name__.lower())

LONG = b"x" * 1_000_000
DRIPS = {
    "in the head": drip(b"", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 400 + b"\r\nContent-Length: 0\r\n\r\n"),
    "in the body": drip(b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n", b"y" * 400),
}


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


@pytest.mark.parametrize("where", DRIPS)
def test_a_server_that_drips_is_cut_off_at_the_deadline(driver, where):
    """Bytes that come one by one, each in time, don't carry a call past its deadline."""
    if where == "in the body" and not driver.reads_whole:
        pytest.skip("hands responses over unread")
    with Server(DRIPS[where]) as server, abate.deadline(0.3), pytest.raises(driver.read_timeout) as caught:
        driver.fetch(Ask(server.url), policy())
    assert abate.report(caught.value).reason == "deadline"
    assert len(server.requests) == 1


@pytest.mark.parametrize("settings", [{"timeout": 0.3}, {"attempt_timeout": 0.3, "max_attempts": 1}], ids=str)
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
            driver.fetch(Ask(server.url, built={"timeouts": Told(request=0.05)}), policy(max_attempts=1))
    with unreachable() as url, pytest.raises(driver.connect_timeout) as caught:
        driver.fetch(Ask(url, method="POST", built={"timeouts": Told(connect=0.05)}), policy(max_attempts=2))
    assert abate.report(caught.value).attempts == 2


def test_the_library_s_own_timeout_counts_if_it_is_shorter(driver):
    """`timeouts` never makes one longer, nor does a deadline."""
    with Server() as server, abate.deadline(30.0):
        server.script.append(server.hang)
        ask = Ask(server.url, timeout=(0.1, 0.1), built={"timeouts": Told(request=20.0, connect=20.0)})
        with pytest.raises(driver.read_timeout) as caught:
            driver.fetch(ask, policy(max_attempts=1))
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


def _await(condition):
    """Wait until it is so, for ten seconds at most."""
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not become so")
