"""httpx: deadlines, timeouts, budgets, and what a transport is built with."""

import asyncio
import subprocess
import sys
import threading

import httpx
import httpx2
import pytest

import abate
import abate.clients.httpx2
from abate.clients.httpx import AsyncTransport, Transport
from abate.testing import VirtualClock
from tests.clients.httpx_ways import WAYS, policy
from tests.clients.server import Server, respond

every_way = pytest.mark.parametrize("way", WAYS, ids=repr)
tasks = pytest.mark.parametrize("way", [way for way in WAYS if way.loop != "threads"], ids=repr)

BUSY = respond(503, body=b"busy")


class Steady:
    """Timeouts that are what they are, and keep what they are told."""

    def __init__(self, connect=5.0, request=7.0):
        self.bounds = connect, request
        self.observed = []

    def connect(self):
        return self.bounds[0]

    def request(self):
        return self.bounds[1]

    def observe(self, seconds):
        self.observed.append(seconds)


# -- deadlines and timeouts


@every_way
@pytest.mark.parametrize("behaviour", ["hang", "drip"])
@pytest.mark.parametrize("bound", [{"timeout": 0.2}, {"attempt_timeout": 0.1, "max_attempts": 2}, {}], ids=str)
def test_a_deadline_ends_a_request_that_hangs(way, behaviour, bound):
    """It ends with the library's own error, however patient the client is."""
    with Server() as server:
        server.script.extend([getattr(server, behaviour)] * 3)
        with abate.deadline(30.0 if bound else 0.2):
            error, report = way.fail(policy(**bound), server.url, client={"timeout": None})
    assert isinstance(error, way.library.TimeoutException)
    assert report.reason == ("attempts" if "max_attempts" in bound else "deadline")
    assert all(int(each.headers["abate-deadline"]) <= 200 for each in server.requests)


@tasks
def test_a_deadline_cuts_off_a_task_whose_server_drips(way):
    """Each read is in time, and the whole is not."""

    def drip(connection):
        for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" * 100:
            if over.wait(0.02):
                break
            connection.sendall(bytes([byte]))
        return False

    over = threading.Event()
    with Server(drip) as server, abate.deadline(0.3):
        error, report = way.fail(policy(), server.url)
        over.set()
    assert isinstance(error, way.library.TimeoutException)
    assert (report.reason, report.attempts) == ("deadline", 1)


def mock(way, handler):
    return way.library.MockTransport(handler)


@every_way
def test_a_deadline_cuts_every_timeout(way):
    """Each to what remains; where the client is less patient, that counts."""
    seen = []

    def handler(request):
        seen.append(request.extensions["timeout"])
        return way.library.Response(200)

    timeout = way.library.Timeout(connect=3.0, read=60.0, write=None, pool=10.0)
    with VirtualClock(), abate.deadline(5.0):
        response = way.fetch(policy(), "http://a.example/", inner=mock(way, handler), client={"timeout": timeout})
    assert seen == [{"connect": 3.0, "read": 5.0, "write": 5.0, "pool": 5.0}]
    assert response.request.extensions["timeout"] == timeout.as_dict()
    assert "Abate-Deadline" not in response.request.headers


@every_way
def test_timeouts_bound_those_of_the_client(way):
    """The smaller one counts, and every good response is told of: a refusal is quick, and says nothing of answers."""
    seen = []

    def handler(request):
        seen.append(request.extensions["timeout"])
        if len(seen) == 2:
            raise way.library.ReadError("gone")
        clock.advance(0.25)
        return way.library.Response(503 if len(seen) == 1 else 200)

    timeouts, inner = Steady(connect=1.0, request=8.0), mock(way, handler)
    with VirtualClock() as clock:
        way.fetch(policy(), "http://a.example/", inner=inner, timeouts=timeouts, client={"timeout": 4.0})
        way.fetch(policy(), "http://a.example/", inner=inner, timeouts=timeouts, client={"timeout": None})
    assert seen[0] == {"connect": 1.0, "read": 4.0, "write": 4.0, "pool": 4.0}
    assert seen[-1] == {"connect": 1.0, "read": 8.0, "write": None, "pool": None}
    assert timeouts.observed == [0.25, 0.25]


# -- budgets


@every_way
def test_a_request_that_succeeds_pays_in(way):
    """Once, on the short way and on the long one."""
    for settings in ({}, {"timeout": 60.0}):
        budget = abate.Budget(ratio=0.5, reserve=0)
        with Server() as server:
            way.fetch(policy(budget=budget, **settings), server.url)
            assert budget.balance() == 0.5
        with Server(BUSY) as server:
            response = way.fetch(policy(budget=budget, **settings), server.url)
        assert response.extensions["abate_report"].reason == "budget"


# -- construction


@every_way
def test_retries_of_the_librarys_own_are_warned_of(way):
    """They would multiply."""
    with pytest.warns(abate.LayeredRetryWarning, match="retries=0"):
        way.transport(policy(), way.inner(retries=2))


@pytest.mark.parametrize("kind", [Transport, AsyncTransport])
def test_arguments_that_make_no_sense_are_refused(kind):
    """The error names the value."""
    inner = httpx.MockTransport(lambda request: httpx.Response(200))
    with pytest.raises(TypeError, match="policy must be a Policy, not 3"):
        kind(3, inner)
    with pytest.raises(TypeError, match=r"transport must have handle_\w+\(\), not be 'http'"):
        kind(policy(), "http")
    with pytest.raises(TypeError, match="idempotency_key must be True or False, not 'yes'"):
        kind(policy(), inner, idempotency_key="yes")
    with pytest.raises(TypeError, match=r"timeouts must have request\(\), connect\(\) and observe\(\), not be 3"):
        kind(policy(), inner, timeouts=3)


def test_a_transport_of_the_other_kind_is_refused():
    """A sync transport cannot be awaited, nor the other way round."""
    with pytest.raises(TypeError, match="handle_async_request"):
        AsyncTransport(policy(), httpx.HTTPTransport(verify=False))
    with pytest.raises(TypeError, match="handle_request"):
        Transport(policy(), httpx.AsyncHTTPTransport(verify=False))


def test_a_transport_of_its_own_is_made_where_none_is_given():
    """Around which everything is as usual; the policy is named after the library if it has no name."""
    with Server(respond(404)) as server, httpx.Client(transport=Transport(policy(name=""))) as client:
        assert client.get(server.url).extensions["abate_report"].policy == "httpx"


def test_httpx2_alone_is_enough():
    """Where httpx is not installed, httpx2 stands in for it."""
    script = (
        "import sys; sys.modules['httpx'] = None\n"
        "import abate, httpx2\n"
        "from abate.clients.httpx import Transport\n"
        "answers = iter([503, 200])\n"
        "inner = httpx2.MockTransport(lambda request: httpx2.Response(next(answers)))\n"
        "transport = Transport(abate.Policy(on=abate.http.transient, backoff=[0.0]), inner)\n"
        "assert isinstance(transport, httpx2.BaseTransport)\n"
        "print(httpx2.Client(transport=transport).get('http://a.example/').status_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "200\n"


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
def test_tasks_that_send_one_request_at_the_same_time_share_nothing(library):
    """Each call has a key of its own, or the server would take several orders for one."""
    seen = []

    async def run():
        async def answer(request):
            seen.append(request.headers["Idempotency-Key"])
            if len(seen) == 3:
                all_sent.set()
            await all_sent.wait()
            return library.Response(200)

        all_sent = asyncio.Event()
        ours = getattr(abate.clients, library.__name__)
        transport = ours.AsyncTransport(policy(), library.MockTransport(answer), idempotency_key=True)
        async with library.AsyncClient(transport=transport) as client:
            request = client.build_request("POST", "http://orders/", content=b"one pizza")
            await asyncio.gather(*(client.send(request) for _ in range(3)))
            return request

    request = asyncio.run(run())
    assert len(set(seen)) == 3
    assert "Idempotency-Key" not in request.headers
