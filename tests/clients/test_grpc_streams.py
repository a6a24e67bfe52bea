"""Server streams, and the other forms of gRPC calls, against a real server."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import abate
from abate.clients.grpc import aio_interceptors, channel_options, interceptors
from tests.clients.grpc_server import CODES, LIMIT, UNAVAILABLE, WAYS, Failure, Service, closed_port, failed, orders

# -- server streams


@WAYS
def test_a_stream_that_fails_before_its_first_message_is_retried(way):
    """Nothing was handed out yet."""
    messages = []
    with Service(UNAVAILABLE, UNAVAILABLE) as service:
        way.watch(service.target, orders(), messages)
        assert messages == [b"one", b"two", b"three"]
        assert [seen["abate-attempt"] for seen in service.attempts] == ["1", "2", "3"]


@WAYS
def test_a_stream_that_fails_after_its_first_message_is_not_retried(way):
    """Messages that were handed out can't be taken back: the error is raised as it is; the caller may start over."""
    messages = []
    with Service(Failure(CODES.UNAVAILABLE, after=2)) as service:
        error, report = failed(way.watch, service.target, orders(), messages)
        assert messages == [b"one", b"two"]
        assert error.code() is CODES.UNAVAILABLE
        assert report is None
        assert len(service.attempts) == 1


@WAYS
def test_a_stream_that_never_begins_ends_with_a_report(way):
    """The attempts of a stream are counted as those of a call."""
    with Service(*[UNAVAILABLE] * 3) as service:
        error, report = failed(way.watch, service.target, orders(), [])
        assert error.code() is CODES.UNAVAILABLE
        assert (report.attempts, report.reason) == (3, "attempts")


@WAYS
def test_an_empty_stream_is_a_success(way):
    """No message and no error: there is nothing to retry."""
    messages = []
    with Service() as service:
        service.messages = []
        way.watch(service.target, orders(), messages)
        assert messages == []
        assert len(service.attempts) == 1


@WAYS
def test_a_deadline_bounds_a_stream(way):
    """Streams are cut to the deadline as well."""
    with Service() as service:
        service.script.append(service.hang)
        with abate.deadline(0.2):
            error, report = failed(way.watch, service.target, orders(), [])
        assert error.code() is CODES.DEADLINE_EXCEEDED
        assert report.reason == "deadline"


def opened(policy, channel):
    """A stream by a plain channel."""
    return grpc.intercept_channel(channel, *interceptors(policy)).unary_stream("/shop.Orders/Watch")(b"")


def test_a_stream_is_sent_before_it_is_read():
    """The server sees it as soon as it is called, as without interceptors."""
    with Service() as service, grpc.insecure_channel(service.target, channel_options()) as channel:
        stream = opened(orders(), channel)
        assert service.seen.wait(LIMIT)
        assert list(stream) == [b"one", b"two", b"three"]
        assert len(service.attempts) == 1


def test_a_stream_asks_the_gate_before_it_is_sent():
    """A gate that is full keeps the first attempt back: the server sees nothing."""
    permits = abate.ConcurrencyLimit(1, name="streams")
    with Service() as service, grpc.insecure_channel(service.target, channel_options()) as channel:
        with permits:
            stream = opened(orders(gate=permits), channel)
            with pytest.raises(abate.Refused):
                next(stream)
            assert service.attempts == []
            with pytest.raises(abate.Refused):
                stream.code()
        assert stream.cancel()
        assert list(opened(orders(gate=permits), channel)) == [b"one", b"two", b"three"]


def test_a_stream_answers_for_the_attempt_that_went_through():
    """Status and metadata are those of the attempt whose messages are read."""
    with Service(UNAVAILABLE) as service, grpc.insecure_channel(service.target, channel_options()) as channel:
        ended = threading.Event()
        stream = opened(orders(), channel)
        assert isinstance(stream, grpc.Call)
        assert stream.is_active()
        assert stream.initial_metadata() is not None
        assert stream.time_remaining() is None
        assert list(stream) == [b"one", b"two", b"three"]
        assert stream.code() is CODES.OK
        assert stream.details() == ""
        assert stream.trailing_metadata() is not None
        assert not stream.is_active()
        assert not stream.add_callback(ended.set)


def test_a_stream_that_failed_keeps_failing():
    """Reading on raises the same error, and sends nothing."""
    with (
        Service(*[UNAVAILABLE] * 3) as service,
        grpc.insecure_channel(service.target, channel_options()) as channel,
    ):
        stream = opened(orders(), channel)
        error, _ = failed(next, stream)
        assert failed(next, stream)[0] is error
        assert stream.code() is CODES.UNAVAILABLE
        assert len(service.attempts) == 3


def test_a_stream_can_be_cancelled_while_it_is_read():
    """A wait for the first message ends with CANCELLED, and nothing is sent again."""
    with Service() as service, grpc.insecure_channel(service.target, channel_options()) as channel:
        service.script.append(service.hang)
        stream = opened(orders(), channel)
        assert service.seen.wait(LIMIT)
        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(failed, next, stream)
            assert stream.cancel()
            error, report = reading.result(LIMIT)
        assert error.code() is CODES.CANCELLED
        assert report.reason == "fatal"
        assert len(service.attempts) == 1


def test_a_stream_cancelled_between_attempts_ends_with_the_next():
    """The attempt after the wait is cancelled as it is sent."""
    waiting = threading.Event()
    cancelled = threading.Event()

    def pause(retry):
        waiting.set()
        assert cancelled.wait(LIMIT)
        return 0.0

    with Service(UNAVAILABLE) as service, grpc.insecure_channel(service.target, channel_options()) as channel:
        stream = opened(orders(backoff=pause), channel)
        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(failed, next, stream)
            assert waiting.wait(LIMIT)
            stream.cancel()
            cancelled.set()
            error, _ = reading.result(LIMIT)
        assert error.code() is CODES.CANCELLED


def test_a_stream_keeps_the_deadline_of_its_caller_in_another_thread():
    """The deadline is the one that held where the stream was called."""
    with Service(UNAVAILABLE) as service, grpc.insecure_channel(service.target, channel_options()) as channel:
        with abate.deadline(20.0):
            stream = opened(orders(), channel)
        with ThreadPoolExecutor(1) as reader:
            assert reader.submit(list, stream).result(LIMIT) == [b"one", b"two", b"three"]
        assert ["abate-deadline" in seen for seen in service.attempts] == [True, True]


def test_a_stream_of_aio_is_read_by_read_as_well():
    """Both ways to read are served, and metadata is that of the attempt that went through."""

    async def main(service):
        retried = aio_interceptors(orders())
        async with grpc.aio.insecure_channel(service.target, channel_options(), interceptors=retried) as channel:
            call = channel.unary_stream("/shop.Orders/Watch")(b"")
            messages = []
            while (message := await call.read()) is not grpc.aio.EOF:
                messages.append(message)
            return messages, await call.code()

    with Service(UNAVAILABLE) as service:
        assert asyncio.run(main(service)) == ([b"one", b"two", b"three"], CODES.OK)


# -- other forms of calls


def test_with_call_tells_the_metadata_of_the_last_attempt():
    """`with_call` returns the answer and the call that brought it."""
    with Service(UNAVAILABLE) as service, grpc.insecure_channel(service.target, channel_options()) as channel:
        get = grpc.intercept_channel(channel, *interceptors(orders())).unary_unary("/shop.Orders/Get")
        answer, call = get.with_call(b"42")
        assert answer == b"got 42"
        assert dict(call.trailing_metadata())["served"] == "yes"


def test_a_call_of_aio_tells_the_metadata_of_the_last_attempt():
    """The call object answers for the attempt that went through."""

    async def main(service):
        retried = aio_interceptors(orders())
        async with grpc.aio.insecure_channel(service.target, channel_options(), interceptors=retried) as channel:
            call = channel.unary_unary("/shop.Orders/Get")(b"42")
            return await call, (await call.trailing_metadata())["served"]

    with Service(UNAVAILABLE) as service:
        assert asyncio.run(main(service)) == (b"got 42", "yes")


def test_futures_are_retried():
    """`future()` hands out the call that went through, or the one that failed for good, with grpc's own status."""
    with (
        Service(UNAVAILABLE, None, *[UNAVAILABLE] * 3) as service,
        grpc.insecure_channel(service.target, channel_options()) as channel,
    ):
        get = grpc.intercept_channel(channel, *interceptors(orders())).unary_unary("/shop.Orders/Get")
        assert get.future(b"42").result() == b"got 42"
        future = get.future(b"42")
        assert future.code() is CODES.UNAVAILABLE
        error, report = failed(future.result)
        assert error is future
        assert report.attempts == 3


def test_client_streams_pass_untouched():
    """What cannot be sent twice is not looked at."""
    with Service() as service, grpc.insecure_channel(service.target, channel_options()) as channel:
        put = grpc.intercept_channel(channel, *interceptors(orders())).stream_unary("/shop.Orders/Put")
        assert put(iter([b"a", b"b"])) == b"ab"
        assert "abate-attempt" not in service.attempts[0]


@WAYS
def test_a_policy_may_wrap_the_error(way):
    """With raises="exhausted" the grpc error is the cause."""
    with Service(*[UNAVAILABLE] * 3) as service, pytest.raises(abate.RetryExhausted) as caught:
        way.get(service.target, orders(raises="exhausted"))
    assert caught.value.__cause__.code() is CODES.UNAVAILABLE


class Reraising(grpc.UnaryUnaryClientInterceptor):
    """Another library's interceptor, which has errors of its own."""

    def __init__(self, error):
        self.error = error
        self.calls = 0

    def intercept_unary_unary(self, continuation, client_call_details, request):
        self.calls += 1
        raise self.error


@pytest.mark.parametrize("error", [ValueError("broken"), grpc.RpcError("bare")], ids=repr)
def test_errors_of_other_interceptors_pass(error):
    """What an interceptor further in raises comes out as it is."""
    inner = Reraising(error)
    with grpc.insecure_channel(closed_port(), channel_options()) as channel:
        get = grpc.intercept_channel(channel, *interceptors(orders()), inner).unary_unary("/shop.Orders/Get")
        with pytest.raises(type(error)) as caught:
            get(b"")
    assert caught.value is error
    assert inner.calls == 1


def test_two_layers_of_interceptors_do_not_multiply():
    """Only the inner one retries, and the pair is warned of."""
    with (
        Service(*[UNAVAILABLE] * 9) as service,
        grpc.insecure_channel(service.target, channel_options()) as channel,
    ):
        both = (*interceptors(orders(name="outer of two")), *interceptors(orders(name="inner of two")))
        get = grpc.intercept_channel(channel, *both).unary_unary("/shop.Orders/Get")
        with pytest.warns(abate.LayeredRetryWarning, match="inner of two"):
            _, report = failed(get, b"")
        assert report.reason == "layer"
        assert len(service.attempts) == 3


@WAYS
def test_the_channel_options_turn_the_library_s_retries_off(way):
    """A service config that asks for retries has no say."""
    retrying = {
        "name": [{}],
        "retryPolicy": {
            "maxAttempts": 5,
            "initialBackoff": "0.01s",
            "maxBackoff": "0.01s",
            "backoffMultiplier": 1,
            "retryableStatusCodes": ["UNAVAILABLE"],
        },
    }
    config = ("grpc.service_config", json.dumps({"methodConfig": [retrying]}))
    with Service(*[UNAVAILABLE] * 9) as service:
        failed(way.get, service.target, orders(max_attempts=2), options=[config])
        assert len(service.attempts) == 2


@pytest.mark.parametrize("make", [interceptors, aio_interceptors])
def test_bad_arguments_are_refused(make):
    """The value is named at once."""
    with pytest.raises(TypeError, match="policy must be a Policy, not 3"):
        make(3)
    with pytest.raises(TypeError, match="idempotent must be True or False, not 'no'"):
        make(orders(), idempotent="no")


def test_who_interrupts_the_wait_for_a_stream_does_not_wait_for_it_too():
    """A signal handler that asks the stream which its own thread is waiting for is told so, and the stream goes on."""
    from abate.clients.grpc_stream import Stream

    class Sender:
        def send(self):
            with pytest.raises(RuntimeError, match="signal handler"):
                stream.code()
            assert stream.is_active()
            return iter(["one"])

    stream = Stream(abate.Policy(on=grpc.RpcError, timeout=5.0), Sender().send)
    assert list(stream) == ["one"]
