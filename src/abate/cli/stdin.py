"""What a command reads: our stdin, from its beginning on every attempt.

* A terminal, or ``/dev/null``, is passed on as it is.
* A file is wound back to where it stood.
* A pipe can be read once only: it is read to its end before the first attempt, and kept, if that is no more than
  `MOST`. Where nothing is repeated it is passed on as it is.
"""

from __future__ import annotations

import os
import stat
import tempfile
from types import TracebackType
from typing import IO

from abate.cli.child import Signals
from abate.cli.terminal import say
from abate.errors import AbateError, AttemptTimeout

MOST = 64 * 1024 * 1024
PATIENCE = 5.0
"""Seconds of silence on a pipe after which we say what we wait for."""


class Stdin:
    """Our stdin, as often as it is wanted."""

    def __init__(self, signals: Signals, repeated: bool, timeout: float | None = None) -> None:
        self._kept: IO[bytes] | None = None
        self._start: int | None = None
        try:
            mode = os.fstat(0).st_mode
        except OSError:  # it was closed before we began
            return
        if stat.S_ISREG(mode):
            self._start = os.lseek(0, 0, os.SEEK_CUR)
        elif repeated and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            self._kept = _kept(signals, timeout)

    def __enter__(self) -> Stdin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept is not None:
            self._kept.close()

    def file(self) -> int | None:
        """The file that the next attempt reads, at its beginning; None for our stdin as it is."""
        if self._kept is not None:
            self._kept.seek(0)
            return self._kept.fileno()
        if self._start is not None:
            os.lseek(0, self._start, os.SEEK_SET)
        return None


def _kept(signals: Signals, timeout: float | None) -> IO[bytes]:
    """A file with all that can be read from our stdin."""
    kept = tempfile.TemporaryFile()  # noqa: SIM115  (it is closed by whoever reads it)
    try:
        _copy(kept, signals, timeout)
    except BaseException:
        kept.close()
        raise
    return kept


def _copy(kept: IO[bytes], signals: Signals, timeout: float | None) -> None:
    until = None if timeout is None else signals.now() + timeout
    size, patient = 0, True
    while True:
        left = None if until is None else until - signals.now()
        if left is not None and left <= 0:
            raise AttemptTimeout(timeout or 0.0)
        if not signals.pause(PATIENCE if patient and (left is None or left > PATIENCE) else left, 0):
            signals.check()
            if patient and (until is None or signals.now() < until):
                say("reading stdin to its end first, to repeat it; give </dev/null if the command reads nothing")
            patient = False
            continue
        patient = False
        piece = os.read(0, 1 << 16)
        if not piece:
            kept.flush()
            return
        size += len(piece)
        if size > MOST:
            raise AbateError(f"stdin is longer than the {MOST >> 20} MB that can be repeated: give a file instead")
        kept.write(piece)
