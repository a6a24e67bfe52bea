"""TLS between gRPC channels and servers on real sockets: a handshake that fails is fatal, and closes no shelter."""

import asyncio
import socket
import threading
from concurrent import futures

import grpc
import pytest

import abate
import abate.clients.grpc as client
from tests.clients.certificates import certificate
from tests.clients.grpc_server import CODES, LIMIT, UNAVAILABLE, WAYS, Service, closed_port, failed, orders

OURS, OTHERS, EXPIRED = certificate(), certificate("other.example"), certificate(days=-1)


@pytest.fixture
def serve():
    """Start servers with a key and certificate; return their targets."""
    running = []

    def start(pair, client_roots=None):
        methods = {"Get": grpc.unary_unary_rpc_method_handler(lambda request, context: b"got " + request)}
        server = grpc.server(futures.ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shop.Orders", methods),))
        credentials = grpc.ssl_server_credentials([pair], client_roots, client_roots is not None)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        running.append(server)
        return f"localhost:{port}"

    yield start
    for server in running:
        server.stop(None).wait(LIMIT)


class Sync:
    """Calls by a plain channel."""

    def get(self, target, policy, roots, **settings):
        credentials = grpc.ssl_channel_credentials(roots)
        with grpc.secure_channel(target, credentials, client.channel_options()) as channel:
            retried = grpc.intercept_channel(channel, *client.interceptors(policy, **settings))
            return retried.unary_unary("/shop.Orders/Get")(b"42", timeout=LIMIT)


class Aio:
    """The same calls by a channel of grpc.aio."""

    def get(self, target, policy, roots, **settings):
        async def main():
            retried, credentials = client.aio_interceptors(policy, **settings), grpc.ssl_channel_credentials(roots)
            options = client.channel_options()
            async with grpc.aio.secure_channel(target, credentials, options, interceptors=retried) as channel:
                return await channel.unary_unary("/shop.Orders/Get")(b"42", timeout=LIMIT)

        return asyncio.run(main())


TLS_WAYS = pytest.mark.parametrize("way", [Sync(), Aio()], ids=["sync", "aio"])


def assert_fatal(way, target, roots):
    """Fatal at once, and the shelter stays calm: it has heard of no failure of the server."""
    shelter = abate.Shelter(name="orders")
    for _ in range(20):
        error, report = failed(way.get, target, orders(shelter=shelter), roots)
        assert error.code() is CODES.UNAVAILABLE
        assert (report.attempts, report.reason) == (1, "fatal"), error.details()
    assert shelter.state == "calm"


@TLS_WAYS
def test_a_certificate_that_is_trusted_is_fine(way, serve):
    """The same server, and the right root."""
    assert way.get(serve(OURS), orders(), OURS[1]) == b"got 42"


@TLS_WAYS
@pytest.mark.parametrize(
    ("pair", "roots"),
    [(OURS, OTHERS[1]), (OTHERS, OTHERS[1]), (EXPIRED, EXPIRED[1])],
    ids=["signed by itself", "for another host", "expired"],
)
def test_a_certificate_that_does_not_verify_is_fatal(way, serve, pair, roots):
    """It is the same the next time."""
    assert_fatal(way, serve(pair), roots)


@TLS_WAYS
def test_a_server_without_tls_is_fatal(way):
    """So is a proxy that answers in plain HTTP."""
    with Service() as service:
        assert_fatal(way, service.target.replace("127.0.0.1", "localhost"), OURS[1])


@TLS_WAYS
def test_a_server_that_is_down_or_breaks_off_the_handshake_is_retried(way):
    """It may be back in a moment."""
    error, report = failed(way.get, closed_port().replace("127.0.0.1", "localhost"), orders(), OURS[1])
    assert (report.attempts, report.reason) == (3, "attempts"), error.details()

    def close_all():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=close_all, daemon=True).start()
        target = f"localhost:{listener.getsockname()[1]}"
        error, report = failed(way.get, target, orders(), OURS[1], idempotent=False)
        listener.shutdown(socket.SHUT_RDWR)
    assert (report.attempts, report.reason) == (3, "attempts"), error.details()


@TLS_WAYS
def test_a_server_that_wants_a_certificate_of_the_client_cannot_be_told_from_a_broken_connection(way, serve):
    """gRPC says only that the socket was closed: a limit of the rule."""
    error, report = failed(way.get, serve(OURS, client_roots=OTHERS[1]), orders(), OURS[1])
    assert "Socket closed" in error.details()
    assert (report.attempts, report.reason) == (3, "attempts")


@WAYS
def test_details_about_tls_from_a_server_that_was_reached_are_its_own(way):
    """It may have failed to reach another server: that is no reason to give up on this one."""
    told = "failed to connect to all addresses; last error: Tls handshake failed ("
    with Service(type(UNAVAILABLE)(CODES.UNAVAILABLE, told, trailing=[("via", "orders")])) as service:
        assert way.get(service.target, orders()) == b"got 42"
