"""``abate audit``: find retries that would hurt in an outage. The audited code is parsed, never imported or run.

abate audit src
abate audit src --format sarif > audit.sarif
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from abate import __version__
from abate.cli.terminal import Progress, say, table
from abate.errors import AbateError

if TYPE_CHECKING:
    from abate.audit.auditing import Audit
    from abate.audit.settings import Settings

FOUND, REFUSED = 1, 2
FORMATS = ("terminal", "json", "sarif", "markdown", "github")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "audit",
        help="find retries, timeouts and queues in Python code that would hurt in an outage",
        epilog="Exit codes: 0 nothing found, 1 findings at or above --fail-on, 2 the audit was not possible.",
    )
    add = parser.add_argument
    add("paths", metavar="PATH", nargs="*", type=Path, help="files and folders; files under a folder that are no tests")
    add("--format", choices=FORMATS, default="terminal", help="the form of the output (terminal)")
    add("--fail-on", choices=("note", "warning", "error", "never"), help="the least severity that fails (warning)")
    add("--ignore", metavar="RULE", action="append", default=[], help="switch a rule off; may be repeated")
    add("--exclude", metavar="GLOB", action="append", default=[], help="leave files or folders out; may be repeated")
    add("--tests", action="store_true", help="audit tests as well")
    add("--baseline", metavar="FILE", type=Path, help="don't count the findings in this file")
    add("--write-baseline", metavar="FILE", type=Path, help="write all findings to this file, and succeed")
    add("--isolated", action="store_true", help="let nothing in the audited code silence a finding: code of others")
    add("--rules", action="store_true", help="list the rules and end")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Audit the paths, print the findings, and return whether there are any that count."""
    from abate.audit.auditing import audit
    from abate.audit.baseline import write_baseline

    if options.rules:
        return _list_rules()
    try:
        paths = _checked(options.paths)
        settings, baseline = _settings(options, paths)
        with Progress("audit", "files") as progress:
            found = audit(paths, settings, progress)
        if options.write_baseline is not None:
            count = write_baseline(options.write_baseline, found.findings)
            say(f"wrote {count} findings to {options.write_baseline}")
            return 0
        if baseline is not None:
            found = _without_known(found, baseline)
    except AbateError as error:
        say(str(error))
        return REFUSED
    print(_formatted(found, options.format))
    if options.format not in ("terminal", "markdown"):
        _say_summary(found)
    return FOUND if _fails(found, settings.fail_on) else 0


def _checked(paths: list[Path]) -> list[Path]:
    if not paths:
        raise AbateError("nothing to audit: expected at least one PATH, a file or a folder")
    for path in paths:
        if not path.exists():
            raise AbateError(f"there is no file or folder {path}")
    return paths


def _settings(options: argparse.Namespace, paths: list[Path]) -> tuple[Settings, Path | None]:
    """Return the settings of the project, with those of the command line, and the baseline to read."""
    from abate.audit.settings import Settings, find_settings

    found, folder = (Settings(comments=False), None) if options.isolated else find_settings(paths[0])
    settings = type(found)(
        exclude=(*found.exclude, *options.exclude),
        tests=found.tests or options.tests,
        ignore=(*found.ignore, *options.ignore),
        severity=found.severity,
        fail_on=options.fail_on or found.fail_on,
        baseline=found.baseline,
        comments=found.comments,
    )
    if options.baseline is not None or options.write_baseline is not None:
        return settings, options.baseline
    return settings, folder / found.baseline if folder is not None and found.baseline else None


def _without_known(found: Audit, file: Path) -> Audit:
    from abate.audit.baseline import Baseline

    new, known, gone = Baseline(file).new(found.findings)
    return type(found)(
        tuple(new),
        found.files,
        found.lines,
        found.tests_left_out,
        found.retries,
        found.sound,
        found.silenced,
        known,
        gone,
    )


def _formatted(found: Audit, form: str) -> str:
    from abate.audit.formats import machine, review, terminal_text

    match form:
        case "json":
            return machine.as_json(found)
        case "sarif":
            return machine.as_sarif(found, __version__)
        case "github":
            return machine.as_github(found)
        case "markdown":
            return review.as_markdown(found)
    return terminal_text.as_text(found, sys.stdout.isatty() and not os.environ.get("NO_COLOR"))


def _say_summary(found: Audit) -> None:
    from abate.audit.formats.summary import counted, remarks

    for line in (counted(found), *remarks(found)):
        say(line)


def _fails(found: Audit, fail_on: str) -> bool:
    from abate.audit.findings import SEVERITIES

    if fail_on not in SEVERITIES:
        return False
    least = SEVERITIES.index(fail_on)
    return any(SEVERITIES.index(finding.severity) >= least for finding in found.findings)


def _list_rules() -> int:
    from abate.audit.auditing import ALL_RULES

    print(
        table(["rule", "severity", "what it finds"], [[rule.id, rule.severity, rule.title] for rule in ALL_RULES], 99)
    )
    return 0
