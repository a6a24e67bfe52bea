"""Network faults on real sockets, besides those of `tests.clients.server`."""

import contextlib
import datetime
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.clients.server import Server


class TlsServer(Server):
    """The same server behind TLS; a client that does not trust it sees only the handshake."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self.url = f"https://127.0.0.1:{self.port}"
        self._context = context

    def _serve(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connection:
            super()._serve(self._context.wrap_socket(connection, server_side=True), number)


class PlainServer(Server):
    """A server that reads whatever comes first, sends these bytes and closes: nothing that speaks TLS."""

    def __init__(self, answer: bytes = b"") -> None:
        super().__init__()
        self.url = f"https://127.0.0.1:{self.port}"
        self._answer = answer

    def _serve(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(65_536)
            connection.sendall(self._answer)


def untrusted(folder: Path) -> ssl.SSLContext:
    """Return the TLS settings of a server with a certificate that it has signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "orders.example")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    encoding = serialization.Encoding.PEM
    path = folder / "server.pem"
    path.write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + builder.sign(key, hashes.SHA256()).public_bytes(encoding)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """Yield the URL of a port that refuses connections and that no other program gets."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextlib.contextmanager
def full() -> Iterator[str]:
    """Yield the URL of a port whose backlog is full: connecting to it takes for ever."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
