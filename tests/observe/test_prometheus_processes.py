"""The Prometheus sink with forks, and with clients that drive their own calls."""

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
from abate import event_sinks, observe
from abate.clients.httpx import AsyncTransport, Transport
from abate.observe.call_outcomes import OUTCOMES
from abate.observe.prometheus import PrometheusSink
from abate.testing import Script
from tests.clients.drivers import DRIVERS, Ask, policy, unused_url
from tests.clients.server import Server, reset, respond


@pytest.fixture
def registry():
    registry = CollectorRegistry()
    sink = observe.install(PrometheusSink(registry))
    yield registry
    observe.remove(sink)


def ended(registry, name):
    """Return the count of each outcome of a policy's calls, without zeros."""
    found = {
        outcome: registry.get_sample_value("abate_calls_total", {"policy": name, "outcome": outcome})
        for outcome in OUTCOMES
    }
    return {outcome: count for outcome, count in found.items() if count}


ALONE = "ABATE_TEST_ALONE"


def run_alone(test):
    """Run a test of this file in a process of its own, without coverage, whose lock a fork may copy while held."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{test}"]
    done = subprocess.run(words, env=os.environ | {ALONE: "1"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_children_forked_during_calls_keep_counting(registry):
    """While threads fail and retry, a child counts its own calls, can be scraped, and waits for no parent's lock."""
    if ALONE not in os.environ:
        run_alone("test_children_forked_during_calls_keep_counting")
        return
    event_sinks.MAX_HOLD_UP = 60.0  # on a busy machine two threads and 30 forks may hold up the sink for a second
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
                warnings.simplefilter("ignore", DeprecationWarning)  # this test forks with threads on purpose
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
def test_a_sink_warns_in_multiprocess_mode(monkeypatch, tmp_path, variable):
    """Multiprocess files would show nothing of abate: the warning says what to do, and the sink still counts."""
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
    """A request is one call: answered at once or after a retry, given up on with a response or an error."""
    shop = policy(name=type(driver).__name__, max_attempts=2)
    with Server(respond(200), respond(503), respond(200), respond(503), respond(503), reset, reset) as server:
        driver.fetch(Ask(server.url, times=2), shop)
        assert driver.fetch(Ask(server.url), shop).status == 503
        with pytest.raises(driver.errors):
            driver.fetch(Ask(server.url), shop)
        assert driver.fetch(Ask(server.url), shop).status == 200
    with pytest.raises(driver.errors):
        driver.fetch(Ask(unused_url()), shop)
    assert ended(registry, shop.name) == {"success": 2, "recovered": 1, "attempts": 3}
    assert registry.get_sample_value("abate_inflight", {"policy": shop.name}) == 0


@pytest.mark.parametrize("raises", ["original", "exhausted"])
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_requests_of_httpx_are_calls(registry, asynchronous, bounded, raises):
    """On the fast and the slow path; giving up is not a success, even if a response is returned."""
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
    fetch(unused_url())
    assert ended(registry, name) == {"success": 1, "recovered": 1, "attempts": 2, "fatal": 1}
    assert registry.get_sample_value("abate_inflight", {"policy": name}) == 0


def test_a_policy_without_a_name_is_named_after_its_library(registry):
    """Its budget is shown too, though only the transport refers to the policy."""
    with Server() as server, httpx.Client(transport=Transport(policy(name="")), trust_env=False) as client:
        client.get(server.url)
        assert ended(registry, "httpx") == {"success": 1}
        assert registry.get_sample_value("abate_retry_budget_remaining_ratio", {"policy": "httpx"}) == 1
