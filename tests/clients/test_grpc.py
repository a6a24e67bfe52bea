"""Unary gRPC calls against a real server: which failures are retried, when, and what travels with them."""

import asyncio

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

import abate
from abate.clients.grpc import aio_interceptors, channel_options, transient
from abate.testing import Recorder
from tests.clients.drivers import oversleeping
from tests.clients.grpc_server import (
    CODES,
    LIMIT,
    UNAVAILABLE,
    WAYS,
    Failure,
    Service,
    Sync,
    closed_port,
    failed,
    orders,
)

RETRIED = {
    CODES.UNAVAILABLE: "blip",
    CODES.ABORTED: "blip",
    CODES.RESOURCE_EXHAUSTED: "overload",
    CODES.DEADLINE_EXCEEDED: "overload",
}
FATAL = sorted(set(CODES) - set(RETRIED) - {CODES.OK, CODES.CANCELLED}, key=lambda code: code.name)


def retry_info(seconds, nanos=0):
    """Trailing metadata that asks to come back later."""
    detail = Any()
    detail.Pack(RetryInfo(retry_delay=Duration(seconds=seconds, nanos=nanos)))
    return ("grpc-status-details-bin", Status(code=14, details=[Any(), detail]).SerializeToString())


# -- which failures are retried


@WAYS
def test_a_call_that_failed_is_made_again(way):
    """Two failures, then the answer."""
    with Service(UNAVAILABLE, Failure(CODES.ABORTED)) as service:
        assert way.get(service.target, orders()) == b"got 42"
        assert len(service.attempts) == 3


@WAYS
@pytest.mark.parametrize("code", RETRIED, ids=lambda code: code.name)
def test_codes_that_are_retried(way, code):
    """Each retried code says whether the server is overloaded; the error that is left is grpc's own."""
    with Service(*[Failure(code)] * 3) as service, Recorder() as events:
        error, report = failed(way.get, service.target, orders())
        assert error.code() is code
        assert error.details() == "told so"
        assert (report.policy, report.attempts, report.reason) == ("orders", 3, "attempts")
        assert len(service.attempts) == 3
    assert [event.reason for event in events if isinstance(event, abate.events.Retry)] == [RETRIED[code]] * 2


@WAYS
@pytest.mark.parametrize("code", FATAL, ids=lambda code: code.name)
def test_codes_that_are_fatal(way, code):
    """Every other code ends the call, UNKNOWN and INTERNAL among them."""
    with Service(Failure(code)) as service:
        error, report = failed(way.get, service.target, orders())
        assert error.code() is code
        assert (report.attempts, report.reason) == (1, "fatal")
        assert len(service.attempts) == 1


def test_a_cancelled_call_is_not_retried():
    """CANCELLED passes at once."""
    with Service(Failure(CODES.CANCELLED)) as service:
        error, report = failed(Sync().get, service.target, orders())
        assert error.code() is CODES.CANCELLED
        assert report.reason == "fatal"
        assert len(service.attempts) == 1


def test_a_cancelled_task_cancels_its_call():
    """Cancelling the task that waits for a call cancels it, and nothing is sent again."""

    async def main(service):
        retried = aio_interceptors(orders())
        async with grpc.aio.insecure_channel(service.target, channel_options(), interceptors=retried) as channel:
            call = channel.unary_unary("/shop.Orders/Get")(b"")
            await asyncio.to_thread(service.seen.wait, LIMIT)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    with Service() as service:
        service.script.append(service.hang)
        asyncio.run(main(service))
        assert len(service.attempts) == 1


@WAYS
@pytest.mark.parametrize(
    ("request_", "options"),
    [(b"x" * 2000, ()), (b"42", [("grpc.max_send_message_length", 1)])],
    ids=["for the server", "to be sent"],
)
def test_a_message_that_is_too_large_is_not_sent_again(way, request_, options):
    """It would be too large every time, though the code is RESOURCE_EXHAUSTED."""
    with Service() as service:
        error, report = failed(way.get, service.target, orders(), request_, options=options)
        assert error.code() is CODES.RESOURCE_EXHAUSTED
        assert (report.attempts, report.reason) == (1, "fatal")


def test_an_error_of_another_library_is_left_to_the_other_rules():
    """The rule has nothing to say about what is not gRPC's."""
    assert transient.judge(abate.Outcome(error=OSError())) is None
    assert transient.judge(abate.Outcome(error=grpc.RpcError())) is None


@WAYS
def test_the_rules_of_the_policy_are_asked_first(way):
    """A policy that says more than the table is heard."""
    internal = orders(on=lambda error: isinstance(error, grpc.RpcError) and error.code() is CODES.INTERNAL)
    with Service(Failure(CODES.INTERNAL), UNAVAILABLE) as service:
        assert way.get(service.target, internal) == b"got 42"


# -- hints


def hints(events):
    """The hints of the retries, in seconds."""
    return [event.hint for event in events if isinstance(event, abate.events.Retry)]


@WAYS
@pytest.mark.parametrize(
    ("trailing", "hint"),
    [
        ([("grpc-retry-pushback-ms", "50")], 0.05),
        ([retry_info(0, 40_000_000)], 0.04),
        ([("grpc-retry-pushback-ms", "20"), retry_info(0, 30_000_000)], 0.03),
        ([retry_info(-5)], 0.0),
        ([("grpc-status-details-bin", b"\xff\xff broken")], None),
        ([("grpc-status-details-bin", Status(code=14).SerializeToString())], None),
    ],
    ids=["pushback", "RetryInfo", "the longer of both", "a negative delay", "broken details", "other details"],
)
def test_hints_are_waited_for(way, trailing, hint):
    """Pushback and RetryInfo are the hint; what cannot be read in the details is none."""
    with Service(Failure(CODES.UNAVAILABLE, trailing=trailing)) as service, Recorder() as events:
        assert way.get(service.target, orders()) == b"got 42"
    assert hints(events) == [hint]


@WAYS
@pytest.mark.parametrize("values", [["-1"], ["garbage"], [""]], ids=repr)
def test_pushback_that_is_no_number_stops(way, values):
    """Negative or unreadable: the server does not want to see this call again."""
    trailing = [("grpc-retry-pushback-ms", value) for value in values]
    with Service(Failure(CODES.UNAVAILABLE, trailing=trailing)) as service:
        _, report = failed(way.get, service.target, orders())
        assert (report.attempts, report.reason) == (1, "hint")


@WAYS
def test_pushback_makes_no_fatal_error_retryable(way):
    """The code decides whether, pushback only when."""
    with Service(Failure(CODES.INVALID_ARGUMENT, trailing=[("grpc-retry-pushback-ms", "0")])) as service:
        assert failed(way.get, service.target, orders())[1].reason == "fatal"


@WAYS
def test_a_service_that_has_retried_itself_is_not_asked_again(way):
    """abate-exhausted in the trailing metadata stops the call, with the reason layer."""
    with Service(Failure(CODES.UNAVAILABLE, trailing=[("abate-exhausted", "1")])) as service:
        _, report = failed(way.get, service.target, orders())
        assert (report.attempts, report.reason) == (1, "layer")
        assert len(service.attempts) == 1


# -- what was never sent


@WAYS
def test_a_closed_port_is_tried_again_whatever_the_call_does(way):
    """If nothing listens on the port, the server never saw the call."""
    error, report = failed(way.get, closed_port(), orders(), idempotent=False)
    assert error.code() is CODES.UNAVAILABLE
    assert (report.attempts, report.reason) == (3, "attempts")


@WAYS
def test_a_name_that_does_not_resolve_was_never_reached(way):
    """A server without an address has seen nothing."""
    _, report = failed(way.get, "dns:///no..such..name:1", orders(), idempotent=False)
    assert report.reason == "attempts"


@WAYS
@pytest.mark.parametrize("says", ["interceptors", "policy"])
def test_a_call_that_must_not_be_repeated_is_not(way, says):
    """A server that answered has seen the call: one that is not idempotent ends there, however it was declared."""
    policy = orders(idempotent=says != "policy")
    with Service(UNAVAILABLE) as service:
        _, report = failed(way.get, service.target, policy, idempotent=says == "policy")
        assert (report.attempts, report.reason) == (1, "unsafe")
        assert len(service.attempts) == 1


@WAYS
def test_details_passed_on_by_a_server_that_sends_metadata_prove_nothing(way):
    """A service that failed to reach another was reached itself."""
    passed_on = Failure(CODES.UNAVAILABLE, "failed to connect to all addresses", trailing=[("via", "orders")])
    with Service(passed_on) as service:
        assert failed(way.get, service.target, orders(), idempotent=False)[1].reason == "unsafe"


# -- what travels, and how long it may take


@WAYS
def test_attempts_are_numbered_and_metadata_is_kept(way):
    """The server is told which attempt it sees, beside the caller's own metadata; old numbers are replaced."""
    with Service(UNAVAILABLE, UNAVAILABLE) as service:
        way.get(service.target, orders(), metadata=(("tenant", "7"), ("abate-attempt", "9"), ("abate-deadline", "9")))
        assert [seen["abate-attempt"] for seen in service.attempts] == ["1", "2", "3"]
        assert [seen["tenant"] for seen in service.attempts] == ["7"] * 3
        assert not any("abate-deadline" in seen for seen in service.attempts)


@WAYS
def test_a_deadline_travels_and_cuts_the_timeout(way):
    """The server is told the milliseconds that are left, and gets no longer than that."""
    with Service(UNAVAILABLE) as service, abate.deadline(20.0):
        way.get(service.target, orders(), timeout=500.0)
        assert all(0 < int(seen["abate-deadline"]) <= 20_000 for seen in service.attempts)
        assert all(left <= 20.5 for left in service.left)


@WAYS
def test_a_timeout_below_the_deadline_is_kept(way):
    """The nearer of both counts."""
    with Service() as service, abate.deadline(500.0):
        way.get(service.target, orders(), timeout=20.0)
        assert service.left[0] <= 20.5


@WAYS
def test_a_deadline_ends_the_call(way):
    """A server that does not answer is left alone when the time is up, with grpc's own error."""
    with Service() as service:
        service.script.append(service.hang)
        with abate.deadline(0.2):
            error, report = failed(way.get, service.target, orders())
        assert error.code() is CODES.DEADLINE_EXCEEDED
        assert (report.attempts, report.reason) == (1, "deadline")


@WAYS
def test_nothing_is_sent_after_the_deadline(way):
    """With no time left, the server sees nothing."""
    with Service() as service:
        with abate.deadline(0.0):
            error, report = failed(way.get, service.target, orders())
        assert error.code() is CODES.DEADLINE_EXCEEDED
        assert report.reason == "deadline"
        assert service.attempts == []


@WAYS
def test_a_retry_that_has_waited_past_its_deadline_is_not_sent(way):
    """Whatever held it up: the process was stopped, or the machine was busy."""
    with Service(UNAVAILABLE) as service:
        with oversleeping(20.0), abate.deadline(10.0):
            error, report = failed(way.get, service.target, orders())
        assert error.code() is CODES.DEADLINE_EXCEEDED
        assert (report.attempts, report.reason) == (2, "deadline")
        assert len(service.attempts) == 1


@WAYS
def test_the_timeout_of_the_policy_bounds_attempts(way):
    """A policy's own timeout is cut to, as a deadline is."""
    with Service() as service:
        way.get(service.target, orders(timeout=20.0))
        assert service.left[0] <= 20.5
