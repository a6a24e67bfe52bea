"""``abate page``: the live page beside a program of yours.

The program runs in this process, where its policies and queues are to be seen. A controller or consumer is run, and
the page ends with it; a function is called, or a module imported, and the page stays until SIGINT or SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
import traceback
from contextlib import ExitStack
from inspect import iscoroutinefunction, ismodule
from typing import Any

from abate.cli.target import imported
from abate.cli.terminal import say
from abate.errors import AbateError
from abate.work.service import Service

FAILED, REFUSED = 1, 2
TOKEN = "ABATE_PAGE_TOKEN"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("page", help="show what a program does, live, in the browser")
    add = parser.add_argument
    add(
        "target",
        metavar="MODULE[:NAME]",
        help="what to run: a controller, a consumer or a function without arguments; a module alone is imported",
    )
    add("--host", default="127.0.0.1", help="where to listen (127.0.0.1); anything else needs a token")
    add("--port", type=int, default=8321, help="the port (8321); 0 for any that is free")
    add("--token", help=f"who may read; better given as {TOKEN}, as others on this machine can see a command line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve the page, and run the program."""
    try:
        from abate.observe.page import serving
    except ImportError as error:
        say(f"the page needs {error.name}: install abate[page]")
        return REFUSED
    token = options.token or os.environ.get(TOKEN) or None
    with ExitStack() as stack:
        try:
            where = stack.enter_context(serving(options.host, options.port, token))
        except (ValueError, OSError) as error:
            say(f"no page on {options.host}, port {options.port}: {error}")
            return REFUSED
        say(f"the page is on {where}" + ("" if token is None else "?token=..."))
        try:
            program = imported(options.target)
            if not (ismodule(program) or callable(program)):
                kind = type(program).__name__
                raise AbateError(f"{options.target} is a {kind}: expected a controller, a consumer or a function")
        except AbateError as error:
            say(str(error))
            return REFUSED
        except Exception:  # the module's own: whoever wrote it wants to see where
            traceback.print_exc()
            say(f"{options.target} can't be imported")
            return REFUSED
        return _run(program)


def _run(program: Any) -> int:
    """Run the program; where it is no service, wait for somebody to end the page."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        if isinstance(program, Service):
            program.run()
            return 0
        if not ismodule(program):
            if iscoroutinefunction(program):
                asyncio.run(program())
            else:
                program()
            say("the program has ended; the page stays until SIGINT or SIGTERM")
        threading.Event().wait()
    except KeyboardInterrupt:
        return 0
    except Exception:
        traceback.print_exc()
        say("the program has failed")
        return FAILED
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
