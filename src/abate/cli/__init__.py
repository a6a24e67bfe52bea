"""The ``abate`` command: one file per subcommand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from abate import __version__
from abate.cli import demo


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="abate", description="Retries that let the storm abate.")
    parser.add_argument("--version", action="version", version=f"abate {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (demo,):
        command.register(commands)
    options = parser.parse_args(argv)
    code: int = options.run(options)
    return code
