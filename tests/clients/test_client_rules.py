"""What `on` and `unless` of a policy mean in every HTTP client, against a real server."""

import pytest

import abate
from abate.testing import Recorder
from tests.clients.drivers import ALL_DRIVERS, Ask, driver_name, policy, unused_url
from tests.clients.server import Server, close, respond

pytestmark = pytest.mark.parametrize("driver", ALL_DRIVERS, ids=driver_name)

BUSY = respond(503, body=b"busy")


def test_without_a_policy_the_table_decides(driver):
    """A 503 is retried, a 404 is not."""
    with Server(respond(503, ("Retry-After", "0")), respond(404)) as server:
        answer = driver.fetch(Ask(server.url), None)
    assert (answer.status, answer.report.reason, answer.report.attempts) == (404, "fatal", 2)
    assert answer.report.policy == driver_name(driver).rpartition("-")[2]
    assert len(server.requests) == 2


def test_a_policy_for_timeouts_retries_timeouts_only(driver):
    """Neither a 503 nor a broken connection; the timeouts of a library count as the builtin one."""
    with Server(BUSY) as server:
        answer = driver.fetch(Ask(server.url), policy(on=TimeoutError))
    assert (answer.status, answer.report) == (503, abate.Report("shop", 1, 0.0, "fatal"))
    assert "x-should-retry" not in answer.headers
    with Server(close) as server, pytest.raises(driver.broken) as broken:
        driver.fetch(Ask(server.url), policy(on=TimeoutError))
    assert abate.report(broken.value).reason == "fatal"
    with Server() as server:
        server.script.append(server.hang)
        assert driver.fetch(Ask(server.url, timeout=(10.0, 0.2)), policy(on=TimeoutError)).status == 200
    assert len(server.requests) == 2


@pytest.mark.parametrize("kind", [ConnectionError, OSError, Exception])
def test_a_policy_for_errors_retries_errors_and_no_responses(driver, kind):
    """The connection errors of a library count as the builtin one."""
    with Server(close, BUSY) as server:
        answer = driver.fetch(Ask(server.url), policy(on=kind))
    assert (answer.status, answer.report.reason, answer.report.attempts) == (503, "fatal", 2)


@pytest.mark.parametrize("kind", [ConnectionError, OSError, Exception])
def test_an_error_that_reached_no_server_is_retried_for_every_method(driver, kind):
    """The library's errors say so under any rule."""
    with pytest.raises(driver.refused) as caught:
        driver.fetch(Ask(unused_url(), method="POST"), policy(on=kind))
    assert abate.report(caught.value).attempts == 3


def test_a_status_can_be_named(driver):
    """Alone, or beside the table."""
    with Server(respond(423), BUSY) as server:
        answer = driver.fetch(Ask(server.url), policy(on=abate.http.status(423)))
    assert (answer.status, len(server.requests)) == (503, 2)
    with Server(respond(423), BUSY) as server:
        answer = driver.fetch(Ask(server.url), policy(on=(abate.http.status(423), abate.http.transient)))
    assert (answer.status, len(server.requests)) == (200, 3)


def test_a_status_can_be_excepted(driver):
    """`unless` is asked first."""
    with Server(respond(502), BUSY) as server:
        answer = driver.fetch(Ask(server.url), policy(unless=abate.http.status(503)))
    assert (answer.status, answer.report.reason, len(server.requests)) == (503, "fatal", 2)
    with Server(close) as server, pytest.raises(driver.broken):
        driver.fetch(Ask(server.url), policy(unless=ConnectionError))


def test_a_rule_can_be_widened_for_responses(driver):
    """A read that follows a write."""
    fresh = abate.widen(abate.http.transient, by=abate.http.status(404), seconds=60.0)
    with Server(respond(404), BUSY) as server:
        assert driver.fetch(Ask(server.url), policy(on=fresh)).status == 200
    assert len(server.requests) == 3


def test_a_predicate_gets_the_response_of_the_library(driver):
    """A good one as well."""
    seen = []

    def empty(response):
        seen.append(response)
        return response.headers.get("X-Empty") == "yes"

    with Server(respond(200, ("X-Empty", "yes"))) as server:
        assert driver.fetch(Ask(server.url), policy(on=abate.on_result(empty))).body == b"ok"
    assert len(server.requests) == 2
    library = driver_name(driver).rpartition("-")[2]
    assert {type(response).__module__.partition(".")[0] for response in seen} == {library}


def test_a_predicate_gets_the_error_of_the_library(driver):
    """And what it says about the retry counts."""
    seen = []

    def once(error):
        seen.append(type(error))
        return len(seen) == 1

    with Server(close, close) as server, pytest.raises(driver.broken) as caught:
        driver.fetch(Ask(server.url), policy(on=once))
    assert abate.report(caught.value).attempts == 2
    assert issubclass(seen[0], driver.errors)


def test_a_body_that_is_read_once_has_a_reason_of_its_own(driver):
    """The failure counts for events and reports as what it is; only a retry is impossible."""

    def pieces():
        yield b"pay"

    async def apieces():
        yield b"pay"

    asynchronous = driver_name(driver).startswith(("async", "aiohttp"))
    body = apieces() if asynchronous else pieces()
    with Server(respond(429)) as server, Recorder() as events:
        answer = driver.fetch(Ask(server.url, method="POST", body=body), policy())
    assert (answer.status, answer.report.reason, answer.report.attempts) == (429, "body", 1)
    assert [event.reason for event in events if isinstance(event, abate.events.GaveUp)] == ["body"]
    assert [request.body for request in server.requests] == [b"pay"]


def test_events_name_the_request_and_the_status(driver):
    """Without the query and the user info, which may be secret."""
    with Server(BUSY, BUSY, BUSY) as server, Recorder() as events:
        url = server.url.replace("http://", "http://me:hidden@") if driver_name(driver) == "requests" else server.url
        answer = driver.fetch(Ask(f"{url}/orders?token=hidden"), policy())
    told = [event for event in events if isinstance(event, abate.events.Retry | abate.events.GaveUp)]
    assert [(event.target, event.status) for event in told] == [(f"GET {server.url}/orders", 503)] * 3
    assert answer.report == abate.Report("shop", 3, 0.0, "attempts")
    assert "hidden" not in repr(told)


def test_before_retry_changes_the_headers_of_the_next_attempt(driver):
    """As for a token that has expired."""

    def refresh(retry):
        status = getattr(retry.response, "status_code", None) or retry.response.status
        assert status == 401
        retry.request.headers["Authorization"] = f"Bearer {retry.attempt + 1}"

    with Server(respond(401), respond(401)) as server:
        answer = driver.fetch(
            Ask(server.url, headers={"Authorization": "Bearer 1"}),
            policy(on=abate.http.status(401), before_retry=refresh),
        )
    assert answer.status == 200
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer 1", "Bearer 2", "Bearer 3"]
