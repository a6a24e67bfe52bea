"""A TCP proxy on loopback that can cut its connections, drop an answer, or swallow all that goes through them."""

import contextlib
import selectors
import socket
import threading


class Proxy:
    """Passes bytes on to a port; in a thread, until the end of the ``with`` block."""

    def __init__(self, port):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._pairs = {}
        self._answering = set()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self.swallow = False
        """Is everything lost on the way, without a word to either side?"""
        self.drops_next_answer = False
        """Is the next thing that the server says lost, and the connection with it?"""
        self.swallows_answers = False
        """Is everything lost that the server says, without a word to either side?"""

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
        """Close every connection that goes through."""
        with self._lock:
            for one in list(self._pairs):
                self._close(one)

    def _close(self, one):
        other = self._pairs.pop(one, None)
        if other is not None:
            self._pairs.pop(other, None)
            self._answering -= {one, other}
            for end in (one, other):
                self._selector.unregister(end)
                end.close()

    def _run(self):
        while not self._end.is_set():
            for key, _ in self._selector.select(0.02):
                with self._lock, contextlib.suppress(KeyError):
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._pass_on(key.fileobj)

    def _accept(self):
        one, _ = self._listener.accept()
        try:
            other = socket.create_connection(("127.0.0.1", self._target))
        except OSError:  # nobody is there
            one.close()
            return
        self._pairs[one], self._pairs[other] = other, one
        self._answering.add(other)
        for end in (one, other):
            self._selector.register(end, selectors.EVENT_READ)

    def _pass_on(self, one):
        other = self._pairs[one]
        try:
            data = one.recv(65536)
            if data and self.drops_next_answer and one in self._answering:
                self.drops_next_answer, data = False, b""
            if data and not self.swallow and not (self.swallows_answers and one in self._answering):
                other.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._close(one)
