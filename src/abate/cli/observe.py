"""``abate observe``: print alerting rules and a dashboard for abate's metrics.

abate observe rules > /etc/prometheus/rules/abate.yml
"""

from __future__ import annotations

import argparse
from importlib.resources import files

FILES = {
    "rules": ("alerts.yml", "alerting rules for Prometheus"),
    "dashboard": ("dashboard.json", "a dashboard, to be imported into Grafana"),
}


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("observe", help="print alerting rules for Prometheus, or a dashboard for Grafana")
    prints = parser.add_subparsers(metavar="WHAT", required=True)
    for word, (_, text) in FILES.items():
        prints.add_parser(word, help=text, description=f"Print {text}.").set_defaults(run=run, word=word)


def run(options: argparse.Namespace) -> int:
    """Print a shipped file."""
    name, _ = FILES[options.word]
    print((files("abate.observe") / "files" / name).read_text("utf-8"), end="")
    return 0
