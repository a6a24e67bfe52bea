"""HTTP clients and gRPC: keys by host, and whose timeout it was, against real servers."""

import asyncio
import pickle

import aiohttp
import grpc
import httpx
import pytest
import requests

import abate
import abate.clients.aiohttp
import abate.clients.grpc
import abate.clients.httpx
import abate.clients.requests
import abate.clients.urllib3
from abate import AdaptiveThrottle, Policy, Shelter
from tests.clients.server import Server, respond


def in_httpx(policy, urls, timeout=5.0, **options):
    """The statuses, or the errors, of these requests."""
    with httpx.Client(
        transport=abate.clients.httpx.Transport(policy, **options), trust_env=False, timeout=timeout
    ) as client:
        return [_tried(lambda url=url: client.get(url).status_code) for url in urls]


def in_httpx_async(policy, urls, timeout=5.0, **options):
    async def main():
        transport = abate.clients.httpx.AsyncTransport(policy, **options)
        async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=timeout) as client:

            async def one(url):
                try:
                    return (await client.get(url)).status_code
                except Exception as error:
                    return type(error)

            return [await one(url) for url in urls]

    return asyncio.run(main())


def in_requests(policy, urls, timeout=5.0, **options):
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", abate.clients.requests.Adapter(policy, **options))
        return [_tried(lambda url=url: session.get(url, timeout=timeout).status_code) for url in urls]


def in_urllib3(policy, urls, timeout=5.0, **options):
    with abate.clients.urllib3.PoolManager(policy, **options) as manager:
        return [_tried(lambda url=url: manager.request("GET", url, timeout=timeout).status) for url in urls]


def in_aiohttp(policy, urls, timeout=5.0, **options):
    async def main():
        middleware = abate.clients.aiohttp.middleware(policy, **options)
        limits = aiohttp.ClientTimeout(total=None, sock_read=timeout)
        async with aiohttp.ClientSession(middlewares=(middleware,), timeout=limits) as session:

            async def one(url):
                try:
                    async with session.get(url) as response:
                        return response.status
                except Exception as error:
                    return type(error)

            return [await one(url) for url in urls]

    return asyncio.run(main())


def _tried(get):
    try:
        return get()
    except Exception as error:
        return type(error)


CLIENTS = [in_httpx, in_httpx_async, in_requests, in_urllib3, in_aiohttp]
each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)


def sheltered(**settings):
    given = {
        "name": "hooks",
        "on": abate.http.transient,
        "max_attempts": 1,
        "backoff": abate.Backoff(60.0, 60.0, jitter="none"),
    }
    return Policy(**{**given, "shelter": Shelter(name="hooks", patience=0.2), **settings})


# -- keys


@each_client
def test_each_host_has_a_shelter_of_its_own(client):
    """A host that is down has its own calls refused, and no other's; the port belongs to it."""
    with Server(*[respond(503)] * 20) as down, Server() as up:
        policy = sheltered()
        statuses = client(policy, [down.url] * 8 + [up.url] * 3, key="host")
    assert statuses[0] == 503
    assert abate.Refused in statuses[1:8]
    assert statuses[8:] == [200] * 3
    assert policy.shelter.state == "calm"
    assert len(policy.shelters) == 3, "one for each host, and one without a host"


@each_client
def test_a_function_of_the_request_tells_the_key(client):
    """By what it answers; where that is None, there is none."""
    asked = []

    def tenant(request):
        url = str(getattr(request, "url", request))
        asked.append(url)
        return None if url.endswith("/open") else url.rpartition("/")[2]

    with Server() as server:
        policy = sheltered()
        client(policy, [f"{server.url}/{path}" for path in ("a", "b", "a", "open")], key=tenant)
    assert [url.rpartition("/")[2] for url in asked] == ["a", "b", "a", "open"]
    assert len(policy.shelters) == 3, "one for each tenant, and one without a tenant"


@each_client
def test_a_key_that_is_none_is_refused(client):
    """At construction, by name."""
    with pytest.raises(TypeError, match=r"key must be .host. or a function of the request, not 'tenant'"):
        client(sheltered(), [], key="tenant")


def test_a_session_keeps_its_keys_in_a_pickle():
    """The setting, that is; what is known of the keys begins anew."""
    adapter = pickle.loads(pickle.dumps(abate.clients.requests.Adapter(sheltered(), key="host")))
    with Server() as server, requests.Session() as session:
        session.trust_env = False
        session.mount("http://", adapter)
        assert session.get(server.url).status_code == 200
    assert len(adapter._sender._settings.policy._keys) == 1


# -- whose timeout it was


def slow(seconds):
    """Answers, but too late for most."""

    def behave(connection):
        import time

        time.sleep(seconds)
        return respond(200)(connection)

    return behave


@each_client
def test_a_deadline_that_cuts_a_client_off_is_no_verdict(client):
    """The throttle forgets the request, and so does the shelter: the caller had no time, the server was well."""
    with Server(*[slow(0.3)] * 3) as server:
        gate = AdaptiveThrottle()
        policy = sheltered(gate=gate, shelter=Shelter(name="slow"))
        with abate.deadline(0.1):
            (status,) = client(policy, [server.url])
        assert issubclass(status, Exception)
        assert (gate.probability(), policy.shelter.state) == (0.0, "calm")


@each_client
def test_a_timeout_of_the_clients_own_is_a_verdict(client):
    """The server had the time that it is usually given, whatever the deadline."""
    with Server(*[slow(0.5)] * 3) as server:
        gate = AdaptiveThrottle()
        policy = sheltered(gate=gate, shelter=Shelter(name="slow"))
        with abate.deadline(5.0):
            (status,) = client(policy, [server.url], timeout=0.1)
        assert issubclass(status, Exception)
        assert gate.probability() > 0.0
        assert policy.shelter.state == "probing"


@pytest.mark.parametrize("kind", ["sync", "aio"])
@pytest.mark.parametrize(("deadline", "timeout", "verdict"), [(0.2, 5.0, False), (5.0, 0.2, True)])
def test_whose_deadline_ended_a_call_of_grpc(kind, deadline, timeout, verdict):
    """The caller's is no verdict on a server that hangs for a moment; the call's own timeout is."""
    gate = AdaptiveThrottle()
    policy = Policy(name="orders", on=abate.clients.grpc.transient, max_attempts=1, gate=gate)
    options = abate.clients.grpc.channel_options()
    with Server(slow(1.0)) as server:
        address = server.url.removeprefix("http://").rstrip("/")

        def sync():
            channel = grpc.insecure_channel(address, options=options)
            with grpc.intercept_channel(channel, *abate.clients.grpc.interceptors(policy)) as retried:
                retried.unary_unary("/shop.Orders/Get")(b"42", timeout=timeout, wait_for_ready=True)

        async def aio():
            retried = abate.clients.grpc.aio_interceptors(policy)
            async with grpc.aio.insecure_channel(address, options, interceptors=retried) as channel:
                await channel.unary_unary("/shop.Orders/Get")(b"42", timeout=timeout, wait_for_ready=True)

        with abate.deadline(deadline), pytest.raises(grpc.RpcError) as caught:
            sync() if kind == "sync" else asyncio.run(aio())
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (gate.probability() > 0.0) is verdict
