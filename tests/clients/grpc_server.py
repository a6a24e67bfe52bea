"""A real gRPC server on loopback that does as it is told, and calls to it by the sync and the asyncio channels."""

import asyncio
import socket
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import abate
from abate.clients.grpc import aio_interceptors, channel_options, interceptors, transient

CODES = grpc.StatusCode
LIMIT = 30.0
"""Seconds; nothing here takes as long, it only keeps a broken test from hanging."""


class Failure:
    """Fail with a status, after the given number of messages of a stream."""

    def __init__(self, code, details="told so", trailing=(), after=0):
        self.code, self.details, self.trailing, self.after = code, details, trailing, after


UNAVAILABLE = Failure(CODES.UNAVAILABLE)


class Service:
    """A server that does as it is told: each attempt takes the next behaviour of the script, then all is well."""

    def __init__(self, *script):
        self.script = deque(script)
        self.attempts = []
        self.left = []
        self.over = threading.Event()
        self.seen = threading.Event()
        self.messages = [b"one", b"two", b"three"]
        self._threads = ThreadPoolExecutor(8)
        self._server = grpc.server(self._threads, options=[("grpc.max_receive_message_length", 1000)])
        methods = {
            "Get": grpc.unary_unary_rpc_method_handler(self.get),
            "Watch": grpc.unary_stream_rpc_method_handler(self.watch),
            "Put": grpc.stream_unary_rpc_method_handler(self.put),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shop.Orders", methods),))
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self._server.stop(None).wait(LIMIT)
        self._threads.shutdown()

    def hang(self, context):
        """Answer only when the test is over."""
        self.over.wait(LIMIT)

    def get(self, request, context):
        behaviour = self._next(context)
        if isinstance(behaviour, Failure):
            self._fail(behaviour, context)
        elif behaviour is not None:
            behaviour(context)
        context.set_trailing_metadata((("served", "yes"),))
        return b"got " + request

    def watch(self, request, context):
        behaviour = self._next(context)
        if isinstance(behaviour, Failure):
            yield from self.messages[: behaviour.after]
            self._fail(behaviour, context)
        elif behaviour is not None:
            behaviour(context)
        yield from self.messages

    def put(self, requests, context):
        self._next(context)
        return b"".join(requests)

    def _next(self, context):
        self.attempts.append(dict(context.invocation_metadata()))
        self.left.append(context.time_remaining())
        self.seen.set()
        return self.script.popleft() if self.script else None

    def _fail(self, failure, context):
        context.set_trailing_metadata(failure.trailing)
        context.abort(failure.code, failure.details)


class Sync:
    """Calls by a plain channel."""

    def get(self, target, policy, request=b"42", *, idempotent=True, options=(), **call):
        with grpc.insecure_channel(target, [*channel_options(), *options]) as channel:
            intercepted = grpc.intercept_channel(channel, *interceptors(policy, idempotent=idempotent))
            return intercepted.unary_unary("/shop.Orders/Get")(request, **call)

    def watch(self, target, policy, messages, **call):
        """Read a stream into `messages`."""
        with grpc.insecure_channel(target, channel_options()) as channel:
            intercepted = grpc.intercept_channel(channel, *interceptors(policy))
            for message in intercepted.unary_stream("/shop.Orders/Watch")(b"", **call):
                messages.append(message)


class Aio:
    """The same calls by a channel of grpc.aio."""

    def get(self, target, policy, request=b"42", *, idempotent=True, options=(), **call):
        async def main():
            retried = aio_interceptors(policy, idempotent=idempotent)
            all_options = [*channel_options(), *options]
            async with grpc.aio.insecure_channel(target, all_options, interceptors=retried) as channel:
                return await channel.unary_unary("/shop.Orders/Get")(request, **call)

        return asyncio.run(main())

    def watch(self, target, policy, messages, **call):
        async def main():
            retried = aio_interceptors(policy)
            async with grpc.aio.insecure_channel(target, channel_options(), interceptors=retried) as channel:
                async for message in channel.unary_stream("/shop.Orders/Watch")(b"", **call):
                    messages.append(message)

        asyncio.run(main())


WAYS = pytest.mark.parametrize("way", [Sync(), Aio()], ids=["sync", "aio"])
"""Either kind of channel."""


def orders(**settings):
    """A policy that waits for nothing of its own."""
    return abate.Policy(**{"name": "orders", "on": transient, "backoff": [0.0], **settings})


def failed(call, *args, **kwargs):
    """The error that a call ends with, and its report."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **kwargs)
    return caught.value, abate.report(caught.value)


def closed_port():
    """A target at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"
