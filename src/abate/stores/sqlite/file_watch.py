"""Wait until a file is written to, without polling it: by inotify, on Linux.

Elsewhere, without ctypes, and if the system's limit of inotify instances is reached, `FileWatch` raises OSError.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Any
from weakref import finalize

IN_MODIFY = 0x2
IN_CLOEXEC, IN_NONBLOCK = os.O_CLOEXEC if hasattr(os, "O_CLOEXEC") else 0, getattr(os, "O_NONBLOCK", 0)
EVENTS = 65_536
"""Bytes of events that are read at once."""


class FileWatch:
    """Watches one path for one thread; other threads may interrupt its wait.

    The descriptors are closed when nothing refers to the watch any more, so that no thread can use a closed one.
    """

    def __init__(self, path: str) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError("only Linux has inotify")
        try:
            import ctypes
        except ImportError as error:  # Python was built without libffi
            raise OSError(f"inotify needs ctypes: {error}") from error
        self._path = path.encode(errors="surrogateescape")
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._file = -1
        self._events = self._checked(self._libc.inotify_init1(IN_CLOEXEC | IN_NONBLOCK))
        finalize(self, os.close, self._events).atexit = False
        self._interrupts = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        finalize(self, os.close, self._interrupts).atexit = False
        self._poll = select.poll()
        self._poll.register(self._events, select.POLLIN)
        self._poll.register(self._interrupts, select.POLLIN)

    def _checked(self, answer: int) -> int:
        if answer < 0:
            import ctypes

            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return answer

    def arm(self) -> bool:
        """Watch the file that is at the path now. Return whether it is another one than before: writes to it from
        before this call are not noticed. Raise OSError if there is no file."""
        before = self._file
        self._file = self._checked(self._libc.inotify_add_watch(self._events, self._path, IN_MODIFY))
        return self._file != before

    def wait(self, seconds: float) -> bool:
        """Block until the file was written to since the last wait, or until `interrupt`, at most for `seconds`.

        Return whether it was written to.
        """
        ready = [descriptor for descriptor, _ in self._poll.poll(seconds * 1000)]
        for descriptor in ready:
            try:
                os.read(descriptor, EVENTS)
            except BlockingIOError:
                pass
        return self._events in ready

    def interrupt(self) -> None:
        """End the wait of the thread that waits now, or else the next one."""
        os.eventfd_write(self._interrupts, 1)
