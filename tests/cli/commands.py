"""The `abate` command as a process of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

GUARD = 30.0
"""Seconds after which a test takes it that something hangs."""


def line(*words: object) -> list[str]:
    """The command line of `abate` with these words."""
    return [sys.executable, "-m", "abate", *map(str, words)]


def abate_command(*words: object, stdin: bytes | int = subprocess.DEVNULL, **options: object):
    """Run it to its end."""
    given = {"stdin": stdin} if isinstance(stdin, int) else {"input": stdin}
    return subprocess.run(line(*words), capture_output=True, timeout=GUARD, **given, **options)


@contextmanager
def started(*words: object, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run it beside the test; it is killed when the block is left."""
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    # whatever started the tests may ignore SIGHUP, as nohup does, and children inherit that
    given.setdefault("preexec_fn", lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    with subprocess.Popen(line(*words), **given) as process:
        try:
            yield process
        finally:
            process.kill()


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another process brings about."""
    guard = time.monotonic() + GUARD
    while not condition():
        assert time.monotonic() < guard, "it never came about"
        time.sleep(0.01)


def lines(path: Path) -> list[str]:
    """What was written to a file, line by line."""
    return path.read_text().splitlines() if path.exists() else []


def running(pid: int) -> bool:
    """Is there such a process (and not only what is left of it)?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
