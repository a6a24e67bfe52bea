"""``abate demo``: controllers and an API with an outage, in real processes, first with naive retries, then with abate.

The API process has limited capacity, drops every connection, and answers 503 for ten seconds. The same 500 controllers
go through it twice: with a common retry loop, and with abate. It needs the standard library only.
"""

from __future__ import annotations

import argparse


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "demo",
        help="500 controllers through a ten-second outage, with and without abate",
        description="Run 500 controllers through an outage of ten seconds, first with naive retries, then with abate. "
        "Takes about a minute, on this machine alone.",
    )
    parser.add_argument("--fast", action="store_true", help="200 controllers, an outage of two seconds")
    parser.add_argument("--report", metavar="FILE", help="write the report, an HTML file (a temporary file)")
    parser.add_argument("--picture", metavar="FILE", help="also write the report's picture, an SVG file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the demo."""
    from abate.cli.demo.both_runs import run_demo  # asyncio and more, which `abate --help` does not need

    return run_demo(options.fast, options.report, options.picture)
