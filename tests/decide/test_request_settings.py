"""What a program says about single requests counts for every client, in its tasks and threads only."""

import asyncio
import contextvars
import threading

import httpx
import pytest

import abate
from abate.clients.httpx import Transport
from abate.decide.request_settings import declared_idempotent
from tests.clients.drivers import ALL_DRIVERS, HTTPX_DRIVERS, Ask, driver_name, policy
from tests.clients.server import Server, respond

DRIVERS = pytest.mark.parametrize("driver", ALL_DRIVERS, ids=driver_name)
HTTPX = pytest.mark.parametrize("driver", HTTPX_DRIVERS, ids=driver_name)


def sent(driver, method, *, settings=None, **request):
    """How many requests a server saw that answers 500."""
    with Server(*[respond(500)] * 3) as server:
        driver.fetch(Ask(server.url, method=method), policy(**settings or {}), **request)
    return len(server.requests)


@DRIVERS
def test_a_block_says_whether_its_requests_may_be_repeated(driver):
    """Whatever the method and the policy say; the innermost block counts."""
    assert sent(driver, "POST") == 1
    with abate.http.request(idempotent=True):
        assert sent(driver, "POST") == 3
        assert sent(driver, "POST", settings={"idempotent": False}) == 3
        with abate.http.request(idempotent=False):
            assert sent(driver, "GET") == 1
        assert sent(driver, "PATCH") == 3
    assert sent(driver, "POST") == 1
    assert sent(driver, "PUT") == sent(driver, "DELETE") == 3


@HTTPX
def test_a_request_of_httpx_says_so_itself(driver):
    """Its own word wins over the block's."""
    with abate.http.request(idempotent=False):
        assert sent(driver, "POST", extensions={"abate": {"idempotent": True}}) == 3
    assert sent(driver, "GET", extensions={"abate": {"idempotent": False}}) == 1
    assert sent(driver, "GET", extensions={"abate": {}}) == 3


@HTTPX
@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        (True, TypeError, "not True"),
        (None, TypeError, "not None"),
        ({"idempotent": "yes"}, TypeError, "idempotent must be True or False, not 'yes'"),
        ({"idempotent": None}, TypeError, "not None"),
        ({"retries": 3}, ValueError, "it has no 'retries'"),
    ],
)
def test_an_extension_that_cannot_be_read_is_refused(driver, said, error, text):
    """Before anything is sent."""
    with Server() as server, pytest.raises(error) as refused:
        driver.fetch(Ask(server.url), policy(), extensions={"abate": said})
    assert text in str(refused.value)
    assert server.requests == []


def test_a_key_and_a_word_agree_with_the_word():
    """A request that must not be repeated is not, though it has a key of abate's making."""
    seen = []
    server = httpx.MockTransport(lambda request: seen.append(request) or httpx.Response(500))
    with httpx.Client(transport=Transport(policy(), server, idempotency_key=True)) as client:
        client.post("http://orders/")
        assert len(seen) == 3
        client.post("http://orders/", extensions={"abate": {"idempotent": False}})
        assert len(seen) == 4


def test_tasks_inside_hear_it_until_the_block_ends():
    """A task that outlives the block does not."""

    async def main():
        ended = asyncio.Event()

        async def task():
            during = declared_idempotent()
            await ended.wait()
            return during, declared_idempotent()

        with abate.http.request(idempotent=True):
            running = asyncio.create_task(task())
            await asyncio.sleep(0)
        ended.set()
        return await running

    assert asyncio.run(main()) == (True, None)


def test_threads_inside_do_not_hear_it_unless_they_are_given_the_context():
    """As with deadlines."""
    heard = []
    with abate.http.request(idempotent=True):
        for run in (lambda f: f(), contextvars.copy_context().run):
            thread = threading.Thread(target=lambda run=run: run(lambda: heard.append(declared_idempotent())))
            thread.start()
            thread.join(60)
    assert heard == [None, True]


def test_a_block_can_be_entered_again_and_within_itself():
    """The object holds no state of one pass."""
    block = abate.http.request(idempotent=True)
    with block, block:
        assert declared_idempotent() is True
    with pytest.raises(KeyError), block:
        raise KeyError
    assert declared_idempotent() is None


@pytest.mark.parametrize("value", [None, 1, "no"])
def test_a_bad_value_is_refused(value):
    """With the value."""
    with pytest.raises(TypeError, match=f"idempotent must be True or False, not {value!r}"):
        abate.http.request(idempotent=value)
