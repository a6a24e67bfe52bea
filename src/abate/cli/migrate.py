"""``abate migrate``: rewrite code that retries with another library, and say what changes.

abate migrate src            # shows a diff, and writes nothing
abate migrate src --write
"""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from abate.cli.terminal import escape, say
from abate.errors import AbateError
from abate.optional_dependencies import requires_extra

if TYPE_CHECKING:
    from abate.migrate.program import FileResult
    from abate.migrate.sites import Site

LIBRARIES = ("tenacity", "backoff", "stamina", "retrying", "urllib3")
EVERYWHERE = """\
At every site that is rewritten:
  safer: retries of all calls together stay within a budget (20 % of what succeeds, and 10 per second)
  safer: a Retry-After is kept, where the error carries the response
  safer: what can never succeed, such as a certificate that is not trusted, is not retried
  changed: an error that an inner policy has retried and given up on is not retried by an outer one
  changed: a request whose method is not idempotent is repeated only if the server never took it
  changed: a group of exceptions is retried if each of them would be
  changed: retries and give-ups are in the log, and errors that are raised in the end carry a note
Settings are checked when a policy is made. Add abate to what the program depends on."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "migrate",
        help="rewrite code that retries with another library",
        description="Rewrite code that retries with tenacity, backoff, stamina, retrying or urllib3's Retry. Shows a"
        " diff, what changes at each site, and what has no equivalent; writes nothing without --write. Needs"
        " abate[migrate].",
    )
    parser.add_argument("path", metavar="PATH", type=Path, help="a Python file, or a folder")
    parser.add_argument("--from", dest="library", choices=LIBRARIES, help="only from this library (all of them)")
    parser.add_argument("--write", action="store_true", help="rewrite the files")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Migrate, and print what happens."""
    try:
        with requires_extra(by="abate migrate", extra="migrate"):
            from abate.migrate.files import SourceFile, check_syntax, python_files, read
            from abate.migrate.program import mentions, migrate
    except ModuleNotFoundError as error:
        say(str(error))
        return 2
    peers = LIBRARIES if options.library is None else (options.library,)
    files: list[SourceFile] = []
    skipped = 0
    try:
        for path in python_files(options.path):
            try:
                file = read(path)
                if mentions(file.text, peers):
                    check_syntax(file)
                files.append(file)
            except AbateError as error:
                skipped += 1
                say(f"skipped: {error}")
    except AbateError as error:
        say(str(error))
        return 2
    results = migrate(files, peers)
    for result in results:
        _print_file(result)
    failed = _write(results) if options.write else 0
    _print_summary(results, options.write, failed)
    return 1 if skipped or failed else 0


def _write(results: list[FileResult]) -> int:
    """Write the files that are changed, and return how many can't be written."""
    failed = 0
    for result in results:
        if result.changed:
            try:
                result.file.write(result.after)
            except AbateError as error:
                failed += 1
                say(f"not written: {error}")
    return failed


def _print_file(result: FileResult) -> None:
    """Print one file's sites, and its diff."""
    name = result.file.path
    if result.changed:
        before, after = result.file.text.splitlines(keepends=True), result.after.splitlines(keepends=True)
        for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"):
            print(line.rstrip("\r\n"))
    for site in result.sites:
        print(f"{escape(name)}:{site.line}: {escape(site.title)}")
        if site.mapped:
            for word, lines in (
                ("safer", site.plan.safer),
                ("changed", site.plan.changed),
                ("advice", site.plan.advice),
            ):
                for line in dict.fromkeys(lines):
                    print(f"  {word}: {escape(line)}")
            if not (site.plan.safer or site.plan.changed or site.plan.advice):
                print("  the same as before")
        else:
            print(f"  left as it is: {escape(site.reason)}")
    for line_number in result.handlers:
        print(
            f"{escape(name)}:{line_number}: handles abate.RetryExhausted, and no RetryError of another library any more"
        )
    for line_number, code in result.left:
        print(f"{escape(name)}: line {line_number} of the new file still uses {escape(code)}")
    print()


def _print_summary(results: list[FileResult], written: bool, failed: int) -> None:
    sites: list[Site] = [site for result in results for site in result.sites]
    mapped = [site for site in sites if site.mapped]
    changed = sum(result.changed for result in results)
    if mapped:
        print(f"{EVERYWHERE}\n")
    guides = [f"docs/migrate/{library}.md" for library in LIBRARIES if any(site.peer == library for site in sites)]
    if guides:
        print(f"what each idiom becomes, and what has no equivalent: {', '.join(guides)}")
    left = len(sites) - len(mapped)
    print(f"{len(mapped)} of {len(sites)} sites rewritten in {changed} files; {left} left as they are")
    if failed:
        print(f"{failed} of {changed} files are not written; the others are: repeat the command")
    elif changed:
        print("the files are written" if written else "nothing is written: repeat the command with --write")
