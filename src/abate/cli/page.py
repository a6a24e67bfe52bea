"""``abate page``: run a program, and serve abate's live page of it.

The program runs in this process, where the page can see its policies and queues. A controller or consumer is run, and
the page ends with it; a function is called, or a module imported, and the page stays until SIGINT or SIGTERM.

One signal ends both, even if the program handles it: by a controller that it runs, or by catching KeyboardInterrupt. A
signal to a handler that the program has installed is not seen here: then the next one ends the page.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import threading
from contextlib import ExitStack
from functools import partial
from inspect import iscoroutinefunction, ismodule
from typing import Any

from abate.cli.import_target import import_target
from abate.cli.listen_options import TOKEN, page_token, serving_page
from abate.cli.terminal import say
from abate.errors import AbateError
from abate.redact import trace
from abate.work.service import Service, Signals

FAILED, REFUSED = 1, 2


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("page", help="show a program's calls and queues live in the browser")
    add = parser.add_argument
    add(
        "target",
        metavar="MODULE[:NAME]",
        help="what to run: a controller, a consumer or a function without arguments; a module alone is imported",
    )
    add("--host", default="127.0.0.1", help="where to listen (127.0.0.1); anything else needs a token")
    add("--port", type=int, default=8321, help="the port (8321); 0 for any that is free")
    add("--token", help=f"the token to read the page; better set {TOKEN}, as other users can see command lines")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve the page, and run the program."""
    token = page_token(options.token)
    with ExitStack() as stack:
        try:
            where = stack.enter_context(serving_page(options.host, options.port, options.token))
        except ImportError as error:
            say(str(error))
            return REFUSED
        except (ValueError, OSError) as error:
            say(f"no page: {error}")
            return REFUSED
        say(f"the page is on {where}" if token is None else f"the page (needs the token) is on {where}")
        end = stack.enter_context(_Interruption())
        try:
            return _run(options.target, end)
        except KeyboardInterrupt:
            return 0


def _run(target: str, end: _Interruption) -> int:
    """Run the program; unless it is a service, wait for a signal afterwards."""
    try:
        program = import_target(target)
        if not (ismodule(program) or callable(program)):
            kind = type(program).__name__
            raise AbateError(f"{target} is a {kind}: expected a controller, a consumer or a function")
    except AbateError as error:
        say(str(error))
        return REFUSED
    end.leave_to_trio()
    try:
        if isinstance(program, Service):
            program.run()
            return 0
        if iscoroutinefunction(program):
            asyncio.run(program())
        elif not ismodule(program):
            program()
    except Exception as error:
        print(trace(error), file=sys.stderr)
        say("the program has failed")
        return FAILED
    end.come_after_handlers()
    if not end.asked:
        if not ismodule(program):
            say("the program has ended; the page stays until SIGINT or SIGTERM")
        threading.Event().wait()
    return 0


class _Interruption:
    """Interrupts the program at SIGTERM or SIGINT, and records whether one came."""

    def __enter__(self) -> _Interruption:
        self._came, self._taken = False, Signals.taken
        self._before = {number: signal.signal(number, self._interrupt) for number in Signals.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def leave_to_trio(self) -> None:
        """Restore Python's SIGINT handler for trio, which needs it to end cleanly."""
        if "trio" in sys.modules and signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @property
    def asked(self) -> bool:
        """Whether a signal has ended this command, or a service that the program ran."""
        return self._came or Signals.taken > self._taken

    def come_after_handlers(self) -> None:
        """Interrupt again, after the handlers that the program has installed."""
        for number in Signals.SIGNALS:
            signal.signal(number, partial(self._interrupt_after, signal.getsignal(number)))

    def _interrupt_after(self, handler: Any, *come: object) -> None:
        if callable(handler):
            handler(*come)
        self._interrupt()

    def _interrupt(self, *_: object) -> None:
        self._came = True
        raise KeyboardInterrupt
