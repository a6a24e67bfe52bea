"""The stdin of a command: the same content on every attempt.

* A terminal, or ``/dev/null``, is passed on.
* A file is rewound to its initial position.
* A pipe is read to its end before the first attempt, and buffered up to `MAX_SIZE` bytes. Without repeats it is passed
  on.
"""

from __future__ import annotations

import os
import stat
import tempfile
from types import TracebackType
from typing import IO

from abate.cli.command_process import SignalClock
from abate.cli.terminal import say
from abate.errors import AbateError, AttemptTimeout

MAX_SIZE = 64 * 1024 * 1024
PATIENCE = 5.0
"""Seconds of silence on a pipe until a message says what is awaited."""


class ReplayedStdin:
    """Our stdin, for any number of attempts."""

    def __init__(self, signals: SignalClock, repeated: bool, timeout: float | None = None) -> None:
        self._buffer: IO[bytes] | None = None
        self._start: int | None = None
        try:
            mode = os.fstat(0).st_mode
        except OSError:  # closed before the start
            return
        if stat.S_ISREG(mode):
            self._start = os.lseek(0, 0, os.SEEK_CUR)
        elif repeated and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            self._buffer = _buffered(signals, timeout)

    def __enter__(self) -> ReplayedStdin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._buffer is not None:
            self._buffer.close()

    def file(self) -> int | None:
        """Return the file for the next attempt, rewound; None for our stdin."""
        if self._buffer is not None:
            self._buffer.seek(0)
            return self._buffer.fileno()
        if self._start is not None:
            os.lseek(0, self._start, os.SEEK_SET)
        return None


def _buffered(signals: SignalClock, timeout: float | None) -> IO[bytes]:
    """Return a temporary file with the content of our stdin."""
    buffer = tempfile.TemporaryFile()  # noqa: SIM115  (the caller closes it)
    try:
        _copy(buffer, signals, timeout)
    except BaseException:
        buffer.close()
        raise
    return buffer


def _copy(buffer: IO[bytes], signals: SignalClock, timeout: float | None) -> None:
    until = None if timeout is None else signals.now() + timeout
    size, patient = 0, True
    while True:
        left = None if until is None else until - signals.now()
        if left is not None and left <= 0:
            raise AttemptTimeout(timeout or 0.0)
        if not signals.pause(PATIENCE if patient and (left is None or left > PATIENCE) else left, 0):
            signals.check()
            if patient and (until is None or signals.now() < until):
                say("reading stdin to its end, to repeat it; use </dev/null if the command reads nothing")
            patient = False
            continue
        patient = False
        piece = os.read(0, 1 << 16)
        if not piece:
            buffer.flush()
            return
        size += len(piece)
        if size > MAX_SIZE:
            raise AbateError(f"stdin is longer than the {MAX_SIZE >> 20} MB that can be repeated: use a file instead")
        buffer.write(piece)
