"""The timeout of a gRPC call, against a real server: it is the deadline of the whole call, as in gRPC."""

import asyncio
import threading
from concurrent import futures

import grpc
import pytest

import abate
from abate.clients import grpc as client

GUARD = 30.0


@pytest.fixture
def server():
    """Start a server: /t/slow does not answer before the end of the test, /t/busy is unavailable. Yield its address and
    the metadata that it received."""
    seen, over = [], threading.Event()

    def slow(request, context):
        seen.append(dict(context.invocation_metadata()))
        over.wait(GUARD)
        return b""

    def busy(request, context):
        seen.append(dict(context.invocation_metadata()))
        context.abort(grpc.StatusCode.UNAVAILABLE, "busy")

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(slow if details.method == "/t/slow" else busy)

    serving = grpc.server(futures.ThreadPoolExecutor(8), handlers=(Handler(),))
    port = serving.add_insecure_port("127.0.0.1:0")
    serving.start()
    yield f"127.0.0.1:{port}", seen
    over.set()
    serving.stop(0).wait()


def call(address, method, policy, timeout=None, **settings):
    channel = grpc.insecure_channel(address, options=client.channel_options())
    retried = grpc.intercept_channel(channel, *client.interceptors(policy, **settings))
    with channel, pytest.raises(grpc.RpcError) as failed:
        retried.unary_unary(method)(b"", timeout=timeout)
    return failed.value


async def acall(address, method, policy, timeout=None, kind="unary_unary"):
    retried = client.aio_interceptors(policy)
    async with grpc.aio.insecure_channel(address, client.channel_options(), interceptors=retried) as channel:
        ask = getattr(channel, kind)(method)
        with pytest.raises(grpc.RpcError) as failed:
            if kind == "unary_unary":
                await ask(b"", timeout=timeout)
            else:
                await anext(aiter(ask(b"", timeout=timeout)))
    return failed.value


POLICY = abate.Policy(name="orders", on=client.transient, max_attempts=4, backoff=[0.01])


def test_timeout_is_the_deadline_of_all_attempts(server):
    """An attempt that has used the call's timeout up is not repeated, in threads or in asyncio."""
    address, seen = server
    for error in (call(address, "/t/slow", POLICY, 0.2), asyncio.run(acall(address, "/t/slow", POLICY, 0.2))):
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert abate.report(error).attempts == 1
        assert abate.report(error).reason == "deadline"
    assert len(seen) == 2


def test_repeated_attempts_say_how_many_came_before(server):
    """`grpc-previous-rpc-attempts` is absent in the first attempt, and counts from 1."""
    address, seen = server
    call(address, "/t/busy", POLICY)
    asyncio.run(acall(address, "/t/busy", POLICY))
    assert [each.get("grpc-previous-rpc-attempts") for each in seen] == [None, "1", "2", "3"] * 2


def test_deadline_exceeded_is_not_repeated_if_the_call_is_not_idempotent(server):
    """The server may have done the work: the attempt's own timeout does not show otherwise."""
    address, seen = server
    error = call(address, "/t/slow", POLICY.replace(attempt_timeout=0.2), idempotent=False)
    assert (len(seen), abate.report(error).reason) == (1, "unsafe")


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
@pytest.mark.parametrize("setting", ["timeout", "attempt_timeout"])
def test_an_attempt_that_the_policy_cuts_off_ends_with_the_error_of_grpc(server, setting, kind):
    """Under asyncio too, where the policy may be earlier than grpcio's own timeout."""
    address, _ = server
    policy = POLICY.replace(max_attempts=1, **{setting: 0.2})
    error = asyncio.run(acall(address, "/t/slow", policy, kind=kind))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert abate.report(error).attempts == 1
    if kind == "unary_unary":
        assert call(address, "/t/slow", policy).code() is error.code()
