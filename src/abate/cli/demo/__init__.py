"""``abate demo``: at 02:13 a control plane sneezes.

An API process of limited capacity drops every connection and answers 503 for ten seconds. The same 500 controllers,
in processes of their own, go through it twice: with the loop that most people write, and with abate. All of it is
real but the reason: processes, sockets, seconds. Nothing is needed but the standard library.

    run.py        both ways one after the other, and what is shown meanwhile
    passage.py    one way through the outage, and what was measured
    scenario.py   how long, how many
    children.py   child processes that end with us
    api.py        the API                                     (a process of its own)
    member.py     some of the controllers                     (processes of their own)
    naive.py, calm.py   how they retry
    wire.py       HTTP, from the controller's side
    table.py, picture.py, report.py, live.py   what is shown
"""

from __future__ import annotations

import argparse


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "demo",
        help="500 controllers through a ten-second outage, with and without abate",
        description="500 controllers go through an outage of ten seconds, first with naive retries, then with abate. "
        "Takes about a minute, on this machine alone.",
    )
    parser.add_argument("--fast", action="store_true", help="200 controllers, an outage of two seconds")
    parser.add_argument("--report", metavar="FILE", help="the report, an HTML file (by default a temporary file)")
    parser.add_argument("--picture", metavar="FILE", help="the report's picture alone as well, an SVG file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the demo."""
    from abate.cli.demo.run import show  # an event loop and more, which `abate --help` does not need

    return show(options.fast, options.report, options.picture)
