"""What HTTP clients say to whom, and what an upstream's headers may do to them, on real sockets."""

import asyncio
import pickle

import aiohttp
import httpx
import pytest
import requests

import abate
from abate.clients.aiohttp import middleware
from abate.clients.headers import PrivateHeaders
from abate.clients.httpx import AsyncTransport, Transport
from abate.clients.requests import Adapter
from abate.clients.trust import Secret
from abate.clients.urllib3 import PoolManager
from tests.clients import drivers
from tests.clients.server import Server, respond

SECRET = Secret("only-our-services-know-this")
OTHER = Secret("a-secret-of-somebody-else")
OURS = {"127.0.0.1": SECRET}
FOREIGN = {"abate-deadline": "1", "Abate-Secret": "copied-from-somebody-else", "ABATE-ATTEMPT": "77"}
"""What a program may have copied from a request of its own caller."""


def policy(**settings):
    return abate.Policy(on=abate.http.transient, backoff=[0.0], budget=abate.Budget.unlimited(), **settings)


def by_httpx(url, headers, secrets, **settings):
    transport = Transport(policy(**settings), secrets=secrets)
    with httpx.Client(transport=transport, follow_redirects=True, trust_env=False) as client:
        return client.get(url, headers=headers).status_code


def by_async_httpx(url, headers, secrets, **settings):
    async def main():
        transport = AsyncTransport(policy(**settings), secrets=secrets)
        async with httpx.AsyncClient(transport=transport, follow_redirects=True, trust_env=False) as client:
            return (await client.get(url, headers=headers)).status_code

    return asyncio.run(main())


def by_requests(url, headers, secrets, **settings):
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", Adapter(policy(**settings), secrets=secrets))
        return session.get(url, headers=headers).status_code


def by_urllib3(url, headers, secrets, **settings):
    with PoolManager(policy(**settings), secrets=secrets) as manager:
        return manager.request("GET", url, headers=headers).status


def by_aiohttp(url, headers, secrets, **settings):
    async def main():
        made = middleware(policy(**settings), secrets=secrets)
        async with aiohttp.ClientSession(middlewares=(made,)) as session, session.get(url, headers=headers) as response:
            return response.status

    return asyncio.run(main())


CLIENTS = pytest.mark.parametrize("get", [by_httpx, by_async_httpx, by_requests, by_urllib3, by_aiohttp])


@CLIENTS
@pytest.mark.parametrize("bounded", [False, True], ids=["without a deadline", "with a deadline"])
@pytest.mark.parametrize("name", FOREIGN)
def test_what_a_program_has_copied_is_not_sent(get, bounded, name):
    """A program that passes its callers' headers on does not lend them its name: abate's own are sent alone."""
    with Server(respond(503)) as server:
        if bounded:
            with abate.deadline(20.0):
                get(server.url, {name: FOREIGN[name]}, None)
        else:
            get(server.url, {name: FOREIGN[name]}, None)
    assert [request.headers["abate-attempt"] for request in server.requests] == ["1", "2"]
    assert all("abate-secret" not in request.headers for request in server.requests)
    deadlines = [request.headers.get("abate-deadline") for request in server.requests]
    assert all(1000 < int(deadline) <= 20_000 for deadline in deadlines) if bounded else deadlines == [None, None]


@CLIENTS
def test_a_secret_is_sent_to_its_hosts_only_wherever_redirects_lead(get):
    """On every attempt, in the place of a foreign one; a redirect to another host does not take it along."""
    with Server() as elsewhere:
        url = elsewhere.url.replace("127.0.0.1", "localhost")
        with Server(respond(503), respond(302, ("Location", url))) as ours:
            assert get(ours.url, FOREIGN, OURS) == 200
    assert [request.headers["abate-secret"] for request in ours.requests] == [SECRET.text] * 2
    assert [request.headers.get("abate-secret") for request in elsewhere.requests] == [None]


@CLIENTS
def test_a_client_without_secrets_sends_none(get):
    """Nor does one whose secrets are for other hosts."""
    with Server() as server:
        get(server.url, {}, None)
        get(server.url, {}, {"orders.internal": SECRET})
    assert [request.headers.get("abate-secret") for request in server.requests] == [None, None]


@CLIENTS
def test_an_upstream_can_only_end_the_call_that_it_answers(get):
    """After ``Abate-Exhausted`` that call is not retried; the next one is."""
    exhausted = respond(503, ("Abate-Exhausted", "1"))
    with Server(exhausted, respond(503)) as server:
        assert get(server.url, {}, None) == 503
        assert get(server.url, {}, None) == 200
    assert [request.headers["abate-attempt"] for request in server.requests] == ["1", "1", "2"]


@pytest.mark.parametrize("driver", drivers.ALL_DRIVERS, ids=drivers.driver_name)
def test_the_word_of_an_upstream_counts_whatever_rule_retries(driver):
    """Also by a predicate on the library's own response, which knows nothing of it."""
    every_result = drivers.policy(on=abate.on_result(lambda response: True))
    with Server(*[respond(503, ("Abate-Exhausted", "1"))] * 3) as server:
        answer = driver.fetch(drivers.Ask(server.url), every_result)
    assert (answer.status, answer.report.reason, len(server.requests)) == (503, "layer", 1)


@CLIENTS
@pytest.mark.parametrize("word", ["0", "", "yes", "x" * 60_000])
def test_another_word_than_one_does_not_end_a_call(get, word):
    """Only what abate writes itself is understood."""
    with Server(respond(503, ("Abate-Exhausted", word))) as server:
        assert get(server.url, {}, None) == 200
    assert len(server.requests) == 2


def test_an_upstream_that_gives_up_closes_no_shelter():
    """Its word is about the call that it answers: other calls of the policy are not held back."""
    shelter = abate.Shelter()
    with Server(*[respond(503, ("Abate-Exhausted", "1"), ("Retry-After", "299"))] * 20) as server:
        transport = Transport(policy(shelter=shelter, timeout=20.0))
        with httpx.Client(transport=transport, trust_env=False) as client:
            assert [client.get(server.url).status_code for _ in range(21)] == [503] * 20 + [200]


@pytest.mark.parametrize(
    ("host", "sent"),
    [
        ("orders.internal", SECRET),
        ("ORDERS.Internal.", SECRET),
        ("eu.shop.example", OTHER),
        ("a.b.shop.example", OTHER),
        ("::1", OTHER),
        ("[::1]", OTHER),
        ("shop.example", None),
        ("eviltshop.example", None),
        ("orders.internal.evil.example", None),
        ("xorders.internal", None),
        ("", None),
        (None, None),
    ],
)
def test_hosts_are_matched_whole(host, sent):
    """A name is that host, ``*.`` all names below one, whatever the case; nothing is matched by its end alone."""
    secrets = PrivateHeaders({"Orders.internal": SECRET, "*.shop.example": OTHER, "::1": OTHER})
    assert secrets.secret_for(host) is sent


@pytest.mark.parametrize(
    ("secrets", "error", "text"),
    [
        (SECRET, TypeError, "secrets must map hosts to Secrets, not be a Secret"),
        ({"*": SECRET}, ValueError, "not '*'"),
        ({"http://orders.internal": SECRET}, ValueError, "not 'http://orders.internal'"),
        ({"orders.internal:8080": SECRET}, ValueError, "not 'orders.internal:8080'"),
        ({"cafe.de:8080": SECRET}, ValueError, "not 'cafe.de:8080'"),
        ({"orders.*": SECRET}, ValueError, r"not 'orders.*'"),
        ({"": SECRET}, ValueError, "not ''"),
        ({5: SECRET}, ValueError, "not 5"),
        ({"orders.internal": SECRET.text}, TypeError, "secrets['orders.internal'] must be a Secret, not a str"),
    ],
)
@pytest.mark.parametrize("make", [Transport, AsyncTransport, Adapter, PoolManager, middleware])
def test_bad_secrets_are_refused(make, secrets, error, text):
    """At construction; the secret itself is not in the error."""
    with pytest.raises(error) as refused:
        make(policy(), secrets=secrets)
    assert text in str(refused.value)
    assert SECRET.text not in str(refused.value)


def test_a_session_that_is_pickled_keeps_its_secrets():
    """The copy in another process is believed as well."""
    session = requests.Session()
    session.trust_env = False
    session.mount("http://", Adapter(policy(), secrets=OURS))
    with Server() as server, pickle.loads(pickle.dumps(session)) as copy:
        copy.get(server.url)
    session.close()
    assert [request.headers["abate-secret"] for request in server.requests] == [SECRET.text]
