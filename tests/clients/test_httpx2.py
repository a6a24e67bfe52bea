"""httpx and httpx2 in one process: each has its own transports, and what is mixed up is refused; files as bodies."""

import asyncio
import os
import subprocess
import sys

import httpx
import httpx2
import pytest

import abate
import abate.clients.httpx
import abate.clients.httpx2
from tests.clients.drivers import Ask, AsyncHttpx, Httpx, policy
from tests.clients.server import Server, close, respond

LIBRARIES = [(httpx, httpx2), (httpx2, httpx)]
BOTH = pytest.mark.parametrize(("own", "other"), LIBRARIES, ids=lambda library: library.__name__)


def ours(library):
    """abate's client for a library."""
    return getattr(abate.clients, library.__name__)


@BOTH
def test_the_transports_are_those_of_their_library(own, other):
    """For code that asks, as SDKs do."""
    assert issubclass(ours(own).Transport, own.BaseTransport)
    assert issubclass(ours(own).AsyncTransport, own.AsyncBaseTransport)
    assert not issubclass(ours(own).Transport, other.BaseTransport)


@BOTH
def test_both_work_in_one_process(own, other):
    """With their own default transport."""
    with Server(respond(503), respond(503)) as server:
        for library in (own, other):
            with library.Client(transport=ours(library).Transport()) as client:
                assert client.get(server.url).status_code == 200


@BOTH
def test_a_transport_of_the_other_library_is_refused(own, other):
    """At construction; one of abate's around it as well."""
    for inner in (other.HTTPTransport(), ours(other).Transport()):
        with pytest.raises(
            TypeError, match=rf"not for a transport of {other.__name__}: use abate.clients.{other.__name__} "
        ):
            ours(own).Transport(transport=inner)
    with pytest.raises(
        TypeError, match=rf"not for a transport of {other.__name__}: use abate.clients.{other.__name__} "
    ):
        ours(own).AsyncTransport(transport=other.AsyncHTTPTransport())


@BOTH
def test_a_client_of_the_other_library_is_told_what_to_use(own, other):
    """Instead of an assertion that fails in the library."""
    expected = (
        f"cannot send a request of {other.__name__}: give the client a transport of abate.clients.{other.__name__}"
    )
    with Server() as server:
        with other.Client(transport=ours(own).Transport()) as client, pytest.raises(TypeError, match=expected):
            client.get(server.url)

        async def main():
            async with other.AsyncClient(transport=ours(own).AsyncTransport()) as client:
                await client.get(server.url)

        with pytest.raises(TypeError, match=expected):
            asyncio.run(main())
    assert server.requests == []


@BOTH
def test_a_client_of_the_other_kind_is_told_what_to_use(own, other):
    """A sync client is given an async transport, or the other way round, with a `with` statement or without."""
    name = own.__name__
    for use in (lambda client: client.get("http://shop.invalid/"), lambda client: client.__enter__()):
        with pytest.raises(AttributeError, match=rf"give {name}.Client abate.clients.{name}.Transport$"):
            use(own.Client(transport=ours(own).AsyncTransport()))
    for use in (lambda client: client.get("http://shop.invalid/"), lambda client: client.__aenter__()):
        with pytest.raises(AttributeError, match=rf"give {name}.AsyncClient abate.clients.{name}.AsyncTransport$"):
            asyncio.run(use(own.AsyncClient(transport=ours(own).Transport())))
    with pytest.raises(AttributeError, match=r"'Transport' object has no attribute 'retries'$"):
        ours(own).Transport().retries  # noqa: B018
    assert not hasattr(ours(own).Transport, "__getattr__")  # with it, every attribute would be looked up more slowly


@BOTH
def test_a_proxy_belongs_to_the_transport_that_sends(own, other):
    """With a proxy of the client, the library makes a transport of its own, and the policy is not asked."""
    url = "http://shop.invalid/"
    with Server(respond(503), respond(503)) as proxy:
        sender = own.HTTPTransport(proxy=proxy.url)
        with own.Client(transport=ours(own).Transport(policy(), sender)) as client:
            assert (client.get(url).status_code, len(proxy.requests)) == (200, 3)
        proxy.script.append(respond(503))
        with own.Client(transport=ours(own).Transport(policy()), proxy=proxy.url) as client:
            assert (client.get(url).status_code, len(proxy.requests)) == (503, 4)


@BOTH
def test_a_file_is_sent_again_from_where_it_was(own, other, tmp_path):
    """In threads, where the libraries take files; not from its start."""
    (tmp_path / "order").write_bytes(b"skip order 42")
    fetch = Httpx(own).fetch
    with (tmp_path / "order").open("rb") as file, Server(respond(503), close) as server:
        file.seek(5)
        assert fetch(Ask(server.url, "PUT", file, {"Content-Length": "8"}), policy()).status == 200
    assert [request.body for request in server.requests] == [b"order 42"] * 3


@BOTH
def test_a_pipe_is_sent_once(own, other):
    """What was read from it is gone."""
    receiver, sender = os.pipe()
    os.write(sender, b"order 42")
    os.close(sender)
    with os.fdopen(receiver, "rb") as pipe, Server(respond(503)) as server:
        answer = Httpx(own).fetch(Ask(server.url, "PUT", pipe, {"Content-Length": "8"}), policy())
    assert (answer.status, answer.report.reason) == (503, "body")
    assert [request.body for request in server.requests] == [b"order 42"]


@BOTH
def test_a_file_of_an_async_library_is_sent_once(own, other):
    """It can't be rewound without waiting."""

    class File:
        async def seekable(self):
            return True

        async def __aiter__(self):
            yield b"order 42"

    with Server(respond(503)) as server:
        answer = AsyncHttpx(own).fetch(Ask(server.url, method="PUT", body=File()), policy())
    assert (answer.status, answer.report.reason) == (503, "body")
    assert [request.body for request in server.requests] == [b"order 42"]


def test_an_alias_of_httpx_is_httpx2():
    """httpx2 can stand in for httpx in programs that import it."""
    program = (
        "import httpx2\n"
        "httpx2.alias_httpx()\n"
        "import abate.clients.httpx, abate.clients.httpx2\n"
        "for ours in (abate.clients.httpx, abate.clients.httpx2):\n"
        "    answers = iter([503, 200])\n"
        "    inner = httpx2.MockTransport(lambda request: httpx2.Response(next(answers)))\n"
        "    print(httpx2.Client(transport=ours.Transport(transport=inner)).get('http://a.example/').status_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["200", "200"], done.stderr
