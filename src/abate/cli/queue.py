"""``abate queue``: list the queues and the dead letters of a store; redrive or purge dead letters.

A missing store is not created. Keys and reasons, which other machines have sent, are escaped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from abate.cli.store_url import HELP, store_url
from abate.clock import current
from abate.errors import AbateError

if TYPE_CHECKING:
    from abate.stores import DeadLetter, Depth, Queue, Store

POLL = 0.25
"""Seconds between two reads of the depth while a queue drains."""
STILL_BUSY, REFUSED = 1, 2


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("queue", help="list the queues of a store; redrive and purge dead letters")
    subcommands = parser.add_subparsers(metavar="COMMAND", required=True)

    ls = _add_command(subcommands, "ls", "list the queues and their depths", list_queues)
    ls.add_argument("--json", action="store_true", help="print JSON")

    dead = _add_command(subcommands, "dead", "list the dead letters, newest first", list_dead)
    dead.add_argument("queue", nargs="?", metavar="QUEUE", help="of this queue only")
    dead.add_argument("--limit", type=int, default=20, metavar="N", help="at most N of each queue (20)")
    dead.add_argument("--trace", action="store_true", help="show tracebacks")
    dead.add_argument("--json", action="store_true", help="print JSON, with bodies and tracebacks")

    for name, text, function in (
        ("redrive", "make dead letters ready again", redrive_dead),
        ("purge", "delete dead letters", purge_dead),
    ):
        command = _add_command(subcommands, name, text, function)
        command.add_argument("queue", metavar="QUEUE")
        command.add_argument("keys", nargs="*", metavar="KEY", help="the keys")
        command.add_argument("--all", action="store_true", help="all of the queue")

    drain = _add_command(subcommands, "drain", "wait until a queue is empty; exit code 1 at the timeout", drain_queue)
    drain.add_argument("queue", metavar="QUEUE")
    drain.add_argument("--timeout", type=float, metavar="SECONDS", help="wait at most this long")


def _add_command(subcommands: Any, name: str, text: str, function: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subcommands.add_parser(name, help=text, description=text)
    parser.add_argument("url", metavar="URL", help=f"of the store, {HELP}")
    parser.set_defaults(run=run, handler=function, refuse=parser.error)
    return parser


def run(options: argparse.Namespace) -> int:
    """Open the store, and run the subcommand; an error is one line."""
    from abate.cli.terminal import say

    try:
        with open_existing(options.url) as store:
            code: int = options.handler(store, options)
            return code
    except BrokenPipeError:
        raise
    except (AbateError, OSError, ValueError, ImportError) as error:
        say(str(error))
        return REFUSED


def open_existing(url: str) -> Store:
    """Open the store of a URL, if it exists.

    >>> open_existing("sqlite:///no/such/file.db")
    Traceback (most recent call last):
    abate.errors.AbateError: there is no store no/such/file.db
    """
    import os
    from urllib.parse import unquote

    from abate.stores import open_store

    url = store_url(url)
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        raise AbateError("a memory: store can't be seen from another process")
    path = unquote(rest.partition("?")[0][3:])
    if scheme == "sqlite" and path and rest.startswith("///") and not os.path.exists(path):
        raise AbateError(f"there is no store {path}")
    return open_store(url)


def list_queues(store: Store, options: argparse.Namespace) -> int:
    """Print the queues and their depths."""
    from abate.cli.terminal import format_seconds, table

    queues = sorted(store.queues().items())
    if options.json:
        print(json.dumps([{"queue": name, **_fields(depth)} for name, depth in queues], indent=2))
    elif queues:
        print(
            table(
                ["queue", "ready", "delayed", "leased", "dead", "oldest"],
                [
                    [name, depth.ready, depth.delayed, depth.leased, depth.dead, format_seconds(depth.age)]
                    for name, depth in queues
                ],
            )
        )
    else:
        print("no queues")
    return 0


def list_dead(store: Store, options: argparse.Namespace) -> int:
    """Print the dead letters of one queue or of all."""
    names = sorted(store.queues()) if options.queue is None else [_existing_queue(store, options.queue).name]
    letters = [(name, letter) for name in names for letter in _dead(store, name, options.limit)]
    if options.json:
        print(json.dumps([{"queue": name, **_fields(letter)} for name, letter in letters], indent=2))
    elif letters:
        _print_letters(letters, options.trace)
    else:
        print("no dead letters")
    return 0


def _dead(store: Store, name: str, limit: int) -> list[DeadLetter]:
    """Return the dead letters of a queue; none if its name is not valid, as another program wrote it."""
    from abate.cli.terminal import say

    try:
        queue = store.queue(name)
    except ValueError as error:
        say(f"{name!r:.80} is left out: {error}")
        return []
    return queue.dead(limit)


def _when(died: float) -> str:
    """Format an instant; a dash if it is not valid.

    >>> _when(1e300)
    '-'
    """
    from time import localtime, strftime

    try:
        return strftime("%Y-%m-%d %H:%M:%S", localtime(died))
    except (ValueError, OverflowError, OSError):
        return "-"


def _print_letters(letters: list[tuple[str, DeadLetter]], traces: bool) -> None:
    from abate.cli.terminal import escape, table

    rows = [
        [
            name,
            letter.key,
            _when(letter.died),
            letter.receives,
            letter.kind,
            letter.reason,
        ]
        for name, letter in letters
    ]
    lines = table(["queue", "key", "died", "receives", "kind", "reason"], rows).splitlines()
    print(lines[0])
    for line, (_, letter) in zip(lines[1:], letters, strict=True):
        print(line)
        if traces:
            for text in letter.trace.splitlines():
                print("    " + escape(text))


def redrive_dead(store: Store, options: argparse.Namespace) -> int:
    """Make dead letters ready again."""
    keys = _keys(options)
    return _report_count("redriven to", _existing_queue(store, options.queue).redrive(keys), keys, options)


def purge_dead(store: Store, options: argparse.Namespace) -> int:
    """Delete dead letters."""
    keys = _keys(options)
    return _report_count("purged from", _existing_queue(store, options.queue).purge(keys), keys, options)


def _keys(options: argparse.Namespace) -> list[str] | None:
    """Return the given keys, each once; None for all."""
    if bool(options.keys) == options.all:
        options.refuse("name the keys, or give --all")
    return None if options.all else list(dict.fromkeys(options.keys))


def _report_count(what: str, many: int, keys: list[str] | None, options: argparse.Namespace) -> int:
    """Print the count, and how many of the given keys are not dead letters."""
    from abate.cli.terminal import escape, say

    print(f"{what} {escape(options.queue)}: {many}")
    if keys is not None and many < len(keys):
        say(f"not among the dead letters: {len(keys) - many} of the {len(keys)} keys")
        return 1
    return 0


def drain_queue(store: Store, options: argparse.Namespace) -> int:
    """Wait until nothing is ready, delayed or leased."""
    from abate.cli.terminal import StatusLine, escape, say
    from abate.errors import number

    clock, queue = current(), _existing_queue(store, options.queue)
    end = None if options.timeout is None else clock.now() + number("--timeout", options.timeout, least=0)
    status = StatusLine(sys.stderr) if sys.stderr.isatty() else None
    try:
        while (depth := queue.depth()).waiting + depth.leased:
            text = f"{options.queue}: {depth.ready} ready, {depth.delayed} delayed, {depth.leased} leased"
            left = POLL if end is None else end - clock.now()
            if left <= 0:
                if status is not None:
                    status.clear()
                say(f"not empty after {options.timeout:g} s: {text}")
                return STILL_BUSY
            if status is not None:
                status.draw(text)
            clock.sleep(min(POLL, left))
    finally:
        if status is not None:
            status.clear()
    print(f"{escape(options.queue)} is empty; dead letters: {depth.dead}")
    return 0


def _existing_queue(store: Store, name: str) -> Queue:
    """Return the queue of this name, if it exists."""
    names = sorted(store.queues())
    if name not in names:
        listed = f"there are {', '.join(names)}" if names else "there are none"
        raise AbateError(f"there is no queue {name!r}; {listed}")
    return store.queue(name)


def _fields(value: Depth | DeadLetter) -> dict[str, Any]:
    fields = {name: getattr(value, name) for name in value.__match_args__}
    return {name: dict(field) if isinstance(field, Mapping) else field for name, field in fields.items()}
