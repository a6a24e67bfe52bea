"""The Prometheus sink beside forks, and the clients that drive their calls themselves."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import warnings

import httpx
import pytest
from prometheus_client import CollectorRegistry

import abate
from abate import observe
from abate.clients.httpx import AsyncTransport, Transport
from abate.observe.call_outcomes import OUTCOMES
from abate.observe.prometheus import PrometheusSink
from abate.testing import Script
from tests.clients.drivers import DRIVERS, Ask, nobody, policy
from tests.clients.server import Server, reset, respond


@pytest.fixture
def registry():
    registry = CollectorRegistry()
    sink = observe.install(PrometheusSink(registry))
    yield registry
    observe.remove(sink)


def ended(registry, name):
    """How the calls of a policy ended, without the outcomes that none had."""
    found = {
        outcome: registry.get_sample_value("abate_calls_total", {"policy": name, "outcome": outcome})
        for outcome in OUTCOMES
    }
    return {outcome: count for outcome, count in found.items() if count}


NO_LAYER = "ABATE_TEST_ALONE"


def run_alone(test):
    """Run a test of this file in a process of its own, unmeasured: coverage has a lock that a fork may copy held."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{test}"]
    done = subprocess.run(words, env=os.environ | {NO_LAYER: "1"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_children_of_a_fork_in_mid_use_count_on(registry):
    """While threads fail and retry: a child counts what it does, is scraped, and never waits for a lock of theirs."""
    if NO_LAYER not in os.environ:
        run_alone("test_children_of_a_fork_in_mid_use_count_on")
        return
    orders = abate.Policy(name="forked", on=OSError, backoff=[0.0], budget=abate.Budget.unlimited())
    over = threading.Event()

    def hammer():
        while not over.is_set():
            orders.call(Script(OSError(), "fine"))

    threads = [threading.Thread(target=hammer) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            read, write = os.pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # forks beside threads are what is tested here
                child = os.fork()
            if child == 0:
                try:
                    before = ended(registry, "forked").get("recovered", 0)
                    orders.call(Script(OSError(), "fine"))
                    os.write(write, b"%d" % (ended(registry, "forked")["recovered"] - before))
                finally:
                    os._exit(0)
            os.close(write)
            answered, _, _ = select.select([read], [], [], 30.0)
            if not answered:
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            with open(read, "rb") as pipe:
                assert answered, "the child hung"
                assert pipe.read() == b"1"
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


@pytest.mark.parametrize("variable", ["PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"])
def test_a_sink_warns_where_processes_are_to_be_joined_by_files(monkeypatch, tmp_path, variable):
    """They would show nothing of abate: it says what to do instead, and counts all the same."""
    monkeypatch.setenv(variable, str(tmp_path))
    registry = CollectorRegistry()
    with pytest.warns(UserWarning, match=r"shows nothing of abate.*start_http_server\(port\) in each worker") as seen:
        sink = PrometheusSink(registry)
    assert [warning.filename for warning in seen] == [__file__]
    observe.install(sink)
    try:
        joined = abate.Policy(name="joined", on=OSError)
        joined.call(max, 1, 2)
        assert ended(registry, "joined") == {"success": 1}
    finally:
        observe.remove(sink)


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: type(driver).__name__)
def test_requests_are_calls(registry, driver):
    """Answered at once, answered after a retry, given up on with a response or an error: each is one call."""
    shop = policy(name=type(driver).__name__, max_attempts=2)
    with Server(respond(200), respond(503), respond(200), respond(503), respond(503), reset, reset) as server:
        driver.fetch(Ask(server.url, times=2), shop)
        assert driver.fetch(Ask(server.url), shop).status == 503
        with pytest.raises(driver.errors):
            driver.fetch(Ask(server.url), shop)
        assert driver.fetch(Ask(server.url), shop).status == 200
    with pytest.raises(driver.errors):
        driver.fetch(Ask(nobody()), shop)
    assert ended(registry, shop.name) == {"success": 2, "recovered": 1, "attempts": 3}
    assert registry.get_sample_value("abate_inflight", {"policy": shop.name}) == 0


@pytest.mark.parametrize("raises", ["original", "exhausted"])
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_requests_of_httpx_are_calls(registry, asynchronous, bounded, raises):
    """In the quick way and in the long one; what is given up on is no success, though a response may be returned."""
    name = f"httpx {asynchronous} {bounded} {raises}"
    shop = policy(name=name, max_attempts=2, timeout=30.0 if bounded else None, raises=raises)

    async def ask(url):
        async with httpx.AsyncClient(transport=AsyncTransport(shop), trust_env=False) as client:
            return await client.get(url)

    def fetch(url):
        try:
            if asynchronous:
                return asyncio.run(ask(url)).status_code
            with httpx.Client(transport=Transport(shop), trust_env=False) as client:
                return client.get(url).status_code
        except (httpx.HTTPError, abate.RetryExhausted) as error:
            return type(error)

    with Server(respond(200), respond(503), respond(200), respond(503), respond(503), respond(404)) as server:
        answers = [fetch(server.url) for _ in range(4)]
    assert answers == [200, 200, 503 if raises == "original" else abate.RetryExhausted, 404]
    fetch(nobody())
    assert ended(registry, name) == {"success": 1, "recovered": 1, "attempts": 2, "fatal": 1}
    assert registry.get_sample_value("abate_inflight", {"policy": name}) == 0


def test_a_transport_of_a_policy_without_a_name_has_one(registry):
    """The library's; its budget is seen as well, though only the transport has the policy."""
    with Server() as server, httpx.Client(transport=Transport(policy(name="")), trust_env=False) as client:
        client.get(server.url)
        assert ended(registry, "httpx") == {"success": 1}
        assert registry.get_sample_value("abate_retry_budget_remaining_ratio", {"policy": "httpx"}) == 1
