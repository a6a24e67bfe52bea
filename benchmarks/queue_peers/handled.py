"""What the handler of every candidate does: it waits for the start once, then records that it was called."""

import os
import struct
import time
from pathlib import Path

LOG = Path(os.environ["QUEUE_PEERS_LOG"])
URL = os.environ["QUEUE_PEERS_URL"]
GATE = LOG.with_suffix(".gate")
RECORD = struct.Struct("<iid")
READY = -1
"""Recorded instead of a message when a process has its first one."""

_file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_started = False


def handled(number: int) -> None:
    """Record a message; the first waits until all processes have one."""
    global _started
    if not _started:
        _record(READY)
        while not GATE.exists():
            time.sleep(0.002)
        _started = True
    _record(number)


def _record(number: int) -> None:
    os.write(_file, RECORD.pack(number, os.getpid(), time.monotonic()))
