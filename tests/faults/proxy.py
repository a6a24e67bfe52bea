"""A TCP proxy on loopback that can close its connections, lose a reply, or discard all traffic."""

import contextlib
import selectors
import socket
import threading


class Proxy:
    """Forwards bytes to a port, in a thread, until the end of the ``with`` block."""

    def __init__(self, port):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._pairs = {}
        self._server_sides = set()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self.discard_all = False
        """Discard all bytes in both directions; the connections stay open."""
        self.drop_next_reply = False
        """Discard the next bytes from the server, and close that connection."""
        self.discard_replies = False
        """Discard all bytes from the server; the connections stay open."""

    def __enter__(self):
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join(30)
        self.cut()
        self._listener.close()
        self._selector.close()

    def cut(self):
        """Close every connection through the proxy."""
        with self._lock:
            for side in list(self._pairs):
                self._close(side)

    def _close(self, side):
        other = self._pairs.pop(side, None)
        if other is not None:
            self._pairs.pop(other, None)
            self._server_sides -= {side, other}
            for sock in (side, other):
                self._selector.unregister(sock)
                sock.close()

    def _run(self):
        while not self._end.is_set():
            for key, _ in self._selector.select(0.02):
                with self._lock, contextlib.suppress(KeyError):
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._forward(key.fileobj)

    def _accept(self):
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:  # the server does not accept connections
            client.close()
            return
        self._pairs[client], self._pairs[server] = server, client
        self._server_sides.add(server)
        for sock in (client, server):
            self._selector.register(sock, selectors.EVENT_READ)

    def _forward(self, side):
        other = self._pairs[side]
        try:
            data = side.recv(65536)
            if data and self.drop_next_reply and side in self._server_sides:
                self.drop_next_reply, data = False, b""
            if data and not self.discard_all and not (self.discard_replies and side in self._server_sides):
                other.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._close(side)
