"""Notice from within an ASGI app that its server shuts down: the server's socket no longer listens.

ASGI tells an app of the end (``lifespan.shutdown``) only after all responses are complete, so an open event stream
would keep the server from ending. But servers stop listening before they wait for responses. So this looks for the
sockets of this process that listen on the port of a request, and then asks the system now and then whether they still
do. No knowledge of the server is needed.
"""

from __future__ import annotations

import os
import socket

DESCRIPTORS = "/dev/fd"
"""The directory that lists the open file descriptors of this process; Windows has none."""
MAX_ADDRESS = 256
"""Bytes; more than any address of a socket has."""


class ServerSockets:
    """The sockets of this process that listen at an address, as ASGI has it: (host, port), or (path, None).

    Only the port counts, or the path. There are none where the system can't tell.

    >>> with socket.create_server(("127.0.0.1", 0)) as server:
    ...     sockets = ServerSockets(server.getsockname())
    ...     sockets.found(), sockets.any_closed()
    (True, False)
    >>> sockets.any_closed()
    True
    """

    def __init__(self, address: tuple[str, int | None] | None) -> None:
        self._name = b""
        self._descriptors: list[int] = []
        if address is not None:
            path, port = address
            self._name = os.fsencode(path) + b"\0" if port is None else port.to_bytes(2, "big")
            self._descriptors = [each for each in _descriptors() if self._listens(each)]

    def found(self) -> bool:
        """Return whether there are such sockets."""
        return bool(self._descriptors)

    def any_closed(self) -> bool:
        """Return whether one of them no longer listens: a server may have duplicated a socket that stays open."""
        return not all(map(self._listens, self._descriptors))

    def _listens(self, descriptor: int) -> bool:
        # after two bytes for its family, the address of a socket begins with the port, or is a path
        return _listening_address(descriptor)[2:].startswith(self._name)


def _descriptors() -> list[int]:
    try:
        import ctypes  # noqa: F401  # some builds of Python lack it

        return [int(each) for each in os.listdir(DESCRIPTORS)]
    except (ImportError, OSError):
        return []


def _listening_address(descriptor: int) -> bytes:
    """Return the address at which a file descriptor listens, as the system has it; empty if it does not.

    This asks the system directly. A `socket.socket` made for the descriptor would close it when it is collected, and
    make it non-blocking if there is a default timeout.
    """
    import ctypes

    system, listens, length = ctypes.CDLL(None), ctypes.c_int(0), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    option = (socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if system.getsockopt(descriptor, *option, ctypes.byref(listens), ctypes.byref(length)) or not listens.value:
        return b""
    address, length = ctypes.create_string_buffer(MAX_ADDRESS), ctypes.c_uint(MAX_ADDRESS)
    failed = system.getsockname(descriptor, address, ctypes.byref(length))
    return b"" if failed else address.raw[: length.value]
