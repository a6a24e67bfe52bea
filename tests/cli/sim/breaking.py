"""Ctrl-C, on a terminal."""

import os
import pty
import re
import signal

from tests.cli.commands import GUARD, started


def broken_off(*words: object, after: bytes) -> tuple[int, bytes, bytes]:
    """Run it on a terminal, and press Ctrl-C once that has shown this pattern: exit code, stdout, what it has shown."""
    main_end, terminal = pty.openpty()
    try:
        with started("sim", *words, stderr=terminal, env={**os.environ, "COLUMNS": "100"}) as process:
            os.close(terminal)
            shown = b""
            while not re.search(after, shown):
                shown += os.read(main_end, 4096)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=GUARD)
            try:
                while piece := os.read(main_end, 4096):
                    shown += piece
            except OSError:  # the other end is closed
                pass
            return process.returncode, out, shown
    finally:
        os.close(main_end)
