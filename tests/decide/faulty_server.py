"""Servers on real sockets that fail in one way each, and what makes a call fail without any server."""

import contextlib
import datetime
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
MAX_SECONDS = 30.0
"""Seconds after which a server that says nothing ends by itself."""


def closes(connection: socket.socket, over: threading.Event) -> None:
    """Read the request and close."""


def resets(connection: socket.socket, over: threading.Event) -> None:
    """Read the request and reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def is_silent(connection: socket.socket, over: threading.Event) -> None:
    """Accept and never answer."""
    over.wait(MAX_SECONDS)


def cuts_off(connection: socket.socket, over: threading.Event) -> None:
    """Close in the middle of the body."""
    connection.sendall(HEAD + b"abc")


def stalls(connection: socket.socket, over: threading.Event) -> None:
    """Say nothing any more in the middle of the body."""
    connection.sendall(HEAD + b"abc")
    over.wait(MAX_SECONDS)


def sends_garbage(connection: socket.socket, over: threading.Event) -> None:
    """Answer with what is not HTTP."""
    connection.sendall(b"garbage\r\n\r\n")


Behaviour = Callable[[socket.socket, threading.Event], None]


@contextlib.contextmanager
def serving(behaviour: Behaviour, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Run a server that treats every connection like this; yield its port."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def handle(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(MAX_SECONDS)
            if tls is not None:
                connection = tls.wrap_socket(connection, server_side=True)
            with connection:
                connection.recv(65_536)
                behaviour(connection, over)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if over.is_set():
                connection.close()
                return
            threads.append(threading.Thread(target=handle, args=(connection,)))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0), backlog=20) as listener:
        port = listener.getsockname()[1]
        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield port
        finally:
            over.set()
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=MAX_SECONDS).close()  # wakes the accept
            for thread in threads:
                thread.join(MAX_SECONDS)


@contextlib.contextmanager
def refusing() -> Iterator[int]:
    """Yield a port that refuses connections, and belongs to no other."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextlib.contextmanager
def full() -> Iterator[int]:
    """Yield a port whose backlog is full: connecting to it times out."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(listener.getsockname())
        yield listener.getsockname()[1]


def untrusted(folder: Path) -> ssl.SSLContext:
    """Return the TLS settings of a server with a certificate that it has signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "orders.example")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context
