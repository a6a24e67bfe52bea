"""The ``abate`` command: one file per subcommand."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from abate import __version__

COMMANDS = ("audit", "demo", "exec", "migrate", "observe", "page", "queue", "run", "sim")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    >>> main(["--version"])
    Traceback (most recent call last):
    SystemExit: 0
    """
    _open_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _Parser(prog="abate", description="Retries that let the storm abate.")
    parser.add_argument("--version", action="version", version=f"abate {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    # import only the command that is used: a job may run every minute
    for name in words[:1] if words[:1] and words[0] in COMMANDS else COMMANDS:
        importlib.import_module(f"abate.cli.{name}").register(commands)
    if not words:
        parser.print_help()
        return 0
    options = parser.parse_args(words)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe: discard the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return code


class _Parser(argparse.ArgumentParser):
    """Redacts arguments in error messages: one may be a URL with a password."""

    def error(self, message: str) -> NoReturn:
        from abate.redact import escaped, redacted

        super().error(escaped(redacted(message)))


def _open_streams() -> None:
    """Open missing standard streams, and escape characters that their encoding lacks."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed before the start: no other file may take its number
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (open until the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
