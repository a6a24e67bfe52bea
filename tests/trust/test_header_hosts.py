"""Which hosts receive Abate-Attempt and Abate-Deadline: our own, and no third parties."""

import pickle

import pytest
import requests

import abate
from abate.clients.aiohttp import middleware
from abate.clients.headers import MAX_HOSTS, PrivateHeaders
from abate.clients.httpx import AsyncTransport, Transport
from abate.clients.requests import Adapter
from abate.clients.trust import Secret
from abate.clients.urllib3 import PoolManager
from tests.clients.drivers import ALL_DRIVERS, Ask, driver_name, policy
from tests.clients.server import Server, respond

DRIVERS = pytest.mark.parametrize("driver", ALL_DRIVERS, ids=driver_name)
SECRET = Secret("only-our-services-know-this")
NAMES = ("abate-attempt", "abate-deadline", "abate-secret")


def told(server):
    """Which of abate's headers each request had."""
    return [{name.removeprefix("abate-") for name in NAMES if name in request.headers} for request in server.requests]


@DRIVERS
@pytest.mark.parametrize("bounded", [False, True], ids=["without a deadline", "with a deadline"])
def test_a_host_of_our_own_is_told_the_attempt_and_the_deadline(driver, bounded):
    """Loopback is one."""
    settings = policy(timeout=30.0) if bounded else policy()
    with Server(respond(503)) as server:
        driver.fetch(Ask(server.url), settings)
    assert told(server) == [{"attempt", "deadline"} if bounded else {"attempt"}] * 2


@DRIVERS
@pytest.mark.parametrize("bounded", [False, True], ids=["without a deadline", "with a deadline"])
def test_a_third_party_is_told_nothing(driver, bounded):
    """Nor what the program put on the request itself: it may have copied it from a caller."""
    settings = policy(timeout=30.0) if bounded else policy()
    copied = {"Abate-Attempt": "7", "Abate-Deadline": "7000", "abate-secret": "copied-from-a-caller"}
    with Server(respond(503), respond(503)) as server:
        for headers in ({}, copied):
            driver.fetch(Ask(server.url, headers=headers, built={"ours": ()}), settings)
    assert told(server) == [set()] * 4


@DRIVERS
def test_a_host_with_a_secret_is_ours(driver):
    """Even if no others are."""
    with Server(respond(503)) as server:
        driver.fetch(Ask(server.url, built={"ours": (), "secrets": {"127.0.0.1": SECRET}}), policy(timeout=30.0))
    assert told(server) == [{"attempt", "deadline", "secret"}] * 2


@DRIVERS
def test_after_a_redirect_the_new_host_decides(driver):
    """What the first host was told does not go along."""
    with Server() as elsewhere:
        url = elsewhere.url.replace("127.0.0.1", "localhost")
        with Server(respond(302, ("Location", url))) as ours:
            built = {"ours": (), "secrets": {"127.0.0.1": SECRET}}
            assert driver.fetch(Ask(ours.url, built=built), policy(timeout=30.0)).status == 200
    assert told(ours) == [{"attempt", "deadline", "secret"}]
    assert told(elsewhere) == [set()]


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "10.0.0.1", "172.16.0.1", "172.31.255.255",
        "192.168.1.1", "169.254.7.7", "fd12::1", "fe80::1", "fe80::1%eth0", "::ffff:10.0.0.1", "orders", "Orders_2",
        "api.localhost", "orders.internal", "orders.local", "orders.shop.svc", "orders.shop.svc.cluster.local",
        "nas.home.arpa", "nas.lan", "orders.internal.",
    ],
)  # fmt: skip
def test_hosts_that_cannot_be_third_parties_are_ours(host):
    """Private networks and names."""
    assert PrivateHeaders().is_ours(host)
    assert not PrivateHeaders(ours=()).is_ours(host)


@pytest.mark.parametrize(
    "host",
    [
        "api.example", "8.8.8.8", "172.32.0.1", "192.169.0.1", "11.0.0.1", "2001:db8::1", "::ffff:8.8.8.8", "134744072",
        "0x08080808", "8.8.2056", "api.0x8", "internal.example", "localhost.example", "10.0.0.1.example",
        "evilinternal.io",
        "api.localhost.evil", "ai.", "", None, "a b", "orders..internal.example",
    ],
)  # fmt: skip
def test_any_other_host_may_be_a_third_party(host):
    """An address in an unusual notation, a top-level domain and what merely looks like a private name, too."""
    assert not PrivateHeaders().is_ours(host)


def test_further_hosts_are_named():
    """Beside the private ones; a domain does not include itself, as with secrets."""
    headers = PrivateHeaders(ours=["*.shop.example", "API.mine.example.", "2001:db8::1"])
    named = ["a.b.shop.example", "api.mine.example", "[2001:db8::1]", "orders", "10.1.1.1"]
    others = ["shop.example", "mine.example", "x.api.mine.example", "evilshop.example", "2001:db8::2"]
    assert [host for host in (*named, *others) if headers.is_ours(host)] == named


def test_the_memory_of_hosts_is_bounded():
    """A crawler sees millions."""
    headers = PrivateHeaders()
    for number in range(3 * MAX_HOSTS):
        assert not headers.is_ours(f"h{number}.example")
    assert len(headers.known) <= MAX_HOSTS


@pytest.mark.parametrize("make", [Transport, AsyncTransport, Adapter, PoolManager, middleware])
@pytest.mark.parametrize(
    ("ours", "error", "text"),
    [
        ("*.shop.example", TypeError, "ours must be a list of hosts"),
        ({"a": 1}, TypeError, "ours must be a list of hosts"),
        (5, TypeError, "ours must be a list of hosts"),
        (["*"], ValueError, "not '*'"),
        (["http://orders"], ValueError, "not 'http://orders'"),
        (["orders:8080"], ValueError, "not 'orders:8080'"),
        ([b"orders"], ValueError, "not b'orders'"),
        ([""], ValueError, "not ''"),
    ],
)
def test_bad_hosts_are_refused(make, ours, error, text):
    """At construction."""
    with pytest.raises(error) as refused:
        make(policy(), ours=ours)
    assert text in str(refused.value)


def test_a_session_that_is_pickled_keeps_its_hosts():
    """Also if they were given as an iterator."""
    session = requests.Session()
    session.trust_env = False
    session.mount("http://", Adapter(abate.Policy(on=OSError), ours=iter(())))
    with Server() as server, pickle.loads(pickle.dumps(session)) as copy:
        copy.get(server.url)
        session.get(server.url)
    session.close()
    assert told(server) == [set(), set()]
