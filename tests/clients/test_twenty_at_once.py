"""Twenty calls at once through one client of each library, on real sockets: POST, a hint, and a streamed answer.

Every call is refused at first, and told when to come back. The HTTP clients ask FastAPI under uvicorn.
"""

import asyncio
import json
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import grpc
import pytest
import requests
import trio
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

import abate
from abate.clients import botocore as botocore_rules
from abate.clients.aiohttp import middleware
from abate.clients.asgi import Middleware
from abate.clients.grpc import aio_interceptors, channel_options, interceptors
from abate.clients.requests import Adapter
from abate.clients.urllib3 import PoolManager
from tests.clients.asgi_server import serving
from tests.clients.grpc_server import CODES, Failure, Service, orders
from tests.clients.httpx_ways import WAYS, policy
from tests.clients.server import Server, respond
from tests.clients.test_botocore import aws, error, s3_error

CALLS = range(20)
HINT = 0.2
"""Seconds that each first attempt is asked to wait."""
GUARD = 30.0
"""Seconds after which a test fails because something hangs."""


class Shop:
    """The app: it refuses the first POST for each order, and sends the body of the second back in pieces."""

    def __init__(self):
        self.arrivals = defaultdict(list)
        self.app = FastAPI()
        self.app.add_middleware(Middleware, trusted="127.0.0.0/8")
        self.app.post("/orders/{number}")(self.order)

    async def order(self, number: int, request: Request):
        self.arrivals[number].append(time.monotonic())
        body = await request.body()
        if len(self.arrivals[number]) == 1:
            raise HTTPException(429, "busy", {"Retry-After": str(HINT)})

        async def pieces():
            for byte in body:
                yield bytes([byte])
                await asyncio.sleep(0)

        return StreamingResponse(pieces())


def body(number):
    return b"this is order %d" % number


def in_threads(ask):
    """Make all calls, each in a thread of its own."""
    with ThreadPoolExecutor(len(CALLS)) as pool:
        return list(pool.map(ask, CALLS))


async def in_tasks(ask):
    """Make all calls, each in a task of its own."""
    answers = {}

    async def one(number):
        answers[number] = await ask(number)

    async with trio.open_nursery() as nursery:
        for number in CALLS:
            nursery.start_soon(one, number)
    return [answers[number] for number in CALLS]


def by_requests(policy, url):
    with requests.Session() as session:
        session.mount("http://", Adapter(policy, pool_maxsize=len(CALLS)))

        def ask(number):
            answer = session.post(f"{url}/orders/{number}", data=body(number), stream=True, timeout=GUARD)
            return b"".join(answer.iter_content(4))

        return in_threads(ask)


def by_urllib3(policy, url):
    with PoolManager(policy, maxsize=len(CALLS)) as manager:

        def ask(number):
            answer = manager.request(
                "POST", f"{url}/orders/{number}", body=body(number), preload_content=False, timeout=GUARD
            )
            try:
                return b"".join(answer.stream(4))
            finally:
                answer.release_conn()

        return in_threads(ask)


def by_aiohttp(policy, url):
    async def main():
        async with aiohttp.ClientSession(middlewares=(middleware(policy),)) as session:

            async def ask(number):
                async with session.post(f"{url}/orders/{number}", data=body(number)) as answer:
                    return b"".join([part async for part in answer.content.iter_any()])

            return await asyncio.gather(*map(ask, CALLS))

    return asyncio.run(main())


def by_httpx(way):
    """A function that asks by httpx or httpx2, in threads, under asyncio or under trio."""
    if way.loop == "threads":

        def ask_all(policy, url):
            with way.library.Client(transport=way.transport(policy), timeout=GUARD) as client:

                def ask(number):
                    with client.stream("POST", f"{url}/orders/{number}", content=body(number)) as answer:
                        return b"".join(answer.iter_bytes())

                return in_threads(ask)

        return ask_all

    def ask_all_in_tasks(policy, url):
        async def main():
            async with way.library.AsyncClient(transport=way.transport(policy), timeout=GUARD) as client:

                async def ask(number):
                    async with client.stream("POST", f"{url}/orders/{number}", content=body(number)) as answer:
                        return b"".join([part async for part in answer.aiter_bytes()])

                return await (in_tasks(ask) if way.loop == "trio" else asyncio.gather(*map(ask, CALLS)))

        return way.run(main)

    return ask_all_in_tasks


CLIENTS = {"requests": by_requests, "urllib3": by_urllib3, "aiohttp": by_aiohttp}
CLIENTS |= {repr(way): by_httpx(way) for way in WAYS}


@pytest.mark.parametrize("client", CLIENTS)
def test_http(client):
    """Each call has its own answer after exactly two attempts, the second no earlier than asked for."""
    shop = Shop()
    with serving(shop.app) as url:
        answers = CLIENTS[client](policy(budget=abate.Budget.unlimited()), url)
    assert answers == [body(number) for number in CALLS]
    assert [len(shop.arrivals[number]) for number in CALLS] == [2] * len(CALLS)
    assert all(second - first >= HINT for first, second in shop.arrivals.values())


# -- AWS


class Refusing(Server):
    """An AWS service that refuses the first request for each key, and answers the second with it."""

    def __init__(self, key, refusal, answer):
        super().__init__()
        self.arrivals = defaultdict(list)
        self._key, self._refusal, self._answer = key, refusal, answer
        self._picking = threading.Lock()

    def pick(self, request):
        key = self._key(request)
        with self._picking:
            self.arrivals[key].append(time.monotonic())
            first = len(self.arrivals[key]) == 1
        return self._refusal if first else self._answer(key)


def by_s3(client, number):
    answer = client.get_object(Bucket="orders", Key=str(number))
    return b"".join(answer["Body"].iter_chunks(1)).decode()


def by_dynamodb(client, number):
    return client.get_item(TableName="orders", Key={"id": {"N": str(number)}})["Item"]["id"]["N"]


def item(number):
    body = json.dumps({"Item": {"id": {"N": number}}}).encode()
    return respond(200, ("Content-Type", "application/x-amz-json-1.0"), body=body)


WAIT = ("x-amz-retry-after", str(int(HINT * 1000)))
SERVICES = {
    "s3": (
        by_s3,
        lambda request: request.path.rpartition("/")[2],
        s3_error("SlowDown", 503, WAIT),
        lambda key: respond(200, body=key.encode()),
    ),
    "dynamodb": (
        by_dynamodb,
        lambda request: json.loads(request.body)["Key"]["id"]["N"],
        error("ThrottlingException", 400, WAIT),
        item,
    ),
}


@pytest.mark.parametrize("service", SERVICES)
def test_botocore(service):
    """A streamed GET of S3, and a POST of DynamoDB, which must not be repeated unless it was refused."""
    ask, key, refusal, answer = SERVICES[service]
    retried = abate.Policy(
        name="aws", on=botocore_rules.transient, backoff=[0.0], budget=abate.Budget.unlimited(), idempotent=False
    )
    settings = {"max_pool_connections": len(CALLS), "s3": {"addressing_style": "path"}}
    with Refusing(key, refusal, answer) as server, aws(service, server.url, **settings) as client:
        answers = in_threads(lambda number: retried.call(ask, client, number))
    assert answers == [str(number) for number in CALLS]
    assert [len(server.arrivals[str(number)]) for number in CALLS] == [2] * len(CALLS)
    assert all(second - first >= HINT for first, second in server.arrivals.values())


# -- gRPC


def by_channel(policy, target, streamed):
    with grpc.insecure_channel(target, channel_options()) as channel:
        intercepted = grpc.intercept_channel(channel, *interceptors(policy))

        def ask(number):
            if streamed:
                return list(intercepted.unary_stream("/shop.Orders/Watch")(b"", timeout=GUARD))
            return intercepted.unary_unary("/shop.Orders/Get")(b"%d" % number, timeout=GUARD)

        return in_threads(ask)


def by_aio_channel(policy, target, streamed):
    async def main():
        retried = aio_interceptors(policy)
        async with grpc.aio.insecure_channel(target, channel_options(), interceptors=retried) as channel:

            async def ask(number):
                if streamed:
                    call = channel.unary_stream("/shop.Orders/Watch")(b"", timeout=GUARD)
                    return [message async for message in call]
                return await channel.unary_unary("/shop.Orders/Get")(b"%d" % number, timeout=GUARD)

            return await asyncio.gather(*map(ask, CALLS))

    return asyncio.run(main())


@pytest.mark.parametrize("ask_all", [by_channel, by_aio_channel], ids=["sync", "aio"])
@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "stream"])
def test_grpc(ask_all, streamed):
    """The server refuses as many attempts as there are calls, with pushback; then each call has its own answer."""
    busy = Failure(CODES.RESOURCE_EXHAUSTED, trailing=(("grpc-retry-pushback-ms", "10"),))
    patient = orders(max_attempts=len(CALLS) + 1, budget=abate.Budget.unlimited())
    with Service(*[busy] * len(CALLS)) as server:
        answers = ask_all(patient, server.target, streamed)
    assert answers == [server.messages if streamed else b"got %d" % number for number in CALLS]
    assert len(server.attempts) == 2 * len(CALLS)
