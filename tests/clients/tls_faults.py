"""Servers whose TLS goes wrong, after the greeting of the protocol of Redis, PostgreSQL or MySQL."""

import contextlib
import socket
import ssl
import struct
import threading

from tests.clients.certificates import certificate, server_context

GREETING_OF_MYSQL = (
    b"\x0a8.0.30\0\1\0\0\x0012345678\0\xff\xff\x21\2\0\x0f\0\x15" + bytes(10) + b"123456789012\0mysql_native_password\0"
)
"""It offers TLS."""


class TlsFaults:
    """Servers on loopback: "untrusted", "wrong host", "no TLS", or a handshake that is "closed", "reset", "silent"."""

    def __init__(self, directory):
        self.directory = directory
        self.over = threading.Event()
        self.contexts = {}
        for host in ("localhost", "elsewhere"):
            (directory / host).mkdir()
            pair = certificate(host)
            (directory / host / "trusted.pem").write_bytes(pair[1])
            self.contexts[host] = server_context(directory / host, pair)

    def trusted(self, fault):
        """Return the file of the certificate that a client trusts."""
        return str(self.directory / ("elsewhere" if fault == "wrong host" else "localhost") / "trusted.pem")

    def client_context(self, fault):
        """Return the TLS context of a client."""
        return ssl.create_default_context(cafile=None if fault == "untrusted" else self.trusted(fault))

    @contextlib.contextmanager
    def serving(self, protocol, fault):
        """Yield the port of a server with this fault."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=self._accept, args=(listener, protocol, fault), daemon=True).start()
            yield listener.getsockname()[1]
            listener.shutdown(socket.SHUT_RDWR)

    def close(self):
        """Let silent connections end."""
        self.over.set()

    def _accept(self, listener, protocol, fault):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._answer, args=(connection, protocol, fault), daemon=True).start()

    def _answer(self, connection, protocol, fault):
        with contextlib.suppress(OSError), connection:
            connection.settimeout(30.0)
            if protocol == "postgres":
                connection.recv(8)
                connection.sendall(b"S")
            if protocol == "mysql":
                connection.sendall(struct.pack("<I", len(GREETING_OF_MYSQL)) + GREETING_OF_MYSQL)
                connection.recv(36)
            if fault in ("untrusted", "wrong host"):
                context = self.contexts["elsewhere" if fault == "wrong host" else "localhost"]
                with context.wrap_socket(connection, server_side=True) as secure:
                    secure.recv(1)
            connection.recv(10 if fault == "reset" else 4096)
            if fault == "no TLS":
                connection.sendall(b"-ERR unknown command: this is no TLS\r\n")
            if fault == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if fault == "silent":
                self.over.wait(30.0)
