"""``abate run``: run a controller or a consumer as a process.

It runs until SIGTERM or SIGINT: then it finishes what is in flight within the grace period; a second signal aborts it.
On a terminal a status line shows the progress; elsewhere the log has it at the start, each minute, and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, cast

from abate.cli.health_server import HealthServer
from abate.cli.import_target import import_target
from abate.cli.listen_options import TOKEN, listen_address, serving_page
from abate.cli.store_url import HELP, store_url
from abate.cli.terminal import REDRAW, StatusLine, format_seconds, say
from abate.errors import AbateError
from abate.events import DONE_ENDINGS, FAILED_ENDINGS
from abate.logs import Log
from abate.redact import escaped, redacted
from abate.work.bounded_event_loop import run_bounded
from abate.work.controller import Controller
from abate.work.service import Service, Signals
from abate.work.thread_pool import DaemonThreadPool

REFUSED, SIGNALLED = 2, 128
EVERY = 60.0
"""Seconds between two progress lines of the log."""
COUNT = 1.0
"""Seconds between two reads of the queue depth, on a terminal."""
log = Log("abate.run")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("run", help="run a controller or consumer until SIGTERM or SIGINT")
    add = parser.add_argument
    add("target", metavar="MODULE:NAME", help="a controller or consumer")
    add("--store", metavar="URL", help=f"the store that holds its queue, {HELP}")
    add("--queue", metavar="NAME", help="the queue in that store (the name of what is run)")
    add("--lease", type=float, metavar="SECONDS", help="the lease of messages (30)")
    add("--workers", type=int, metavar="N", help="messages at once")
    add("--grace", type=float, metavar="SECONDS", help="to finish what is in flight after a signal")
    add("--drain", action="store_true", help="end when the queue is empty")
    where: dict[str, Any] = {"type": listen_address, "metavar": "[ADDRESS:]PORT"}
    add("--page", **where, help=f"serve the live page there (127.0.0.1); {TOKEN} sets its token")
    add("--health", **where, help="serve /healthz and /readyz there (127.0.0.1); :PORT for probes from other machines")
    parser.set_defaults(run=run, refuse=parser.error)


def run(options: argparse.Namespace) -> int:
    """Load the service, and run it until it ends."""
    if options.store is None and (options.queue is not None or options.lease is not None):
        options.refuse("--queue and --lease need --store")
    if options.lease is not None and not options.lease > 0:
        options.refuse(f"--lease must be a number above 0, not {options.lease:g}")
    try:
        service = load_service(options.target)
    except AbateError as error:
        say(str(error))
        return REFUSED
    try:
        return run_bounded(ServiceRunner(service, options).serve(), service.seconds_left)
    except (AbateError, OSError, TypeError, ValueError, ImportError) as error:
        say(str(error))
        return REFUSED


def load_service(target: str) -> Service[..., Any]:
    """Return the controller or consumer that a target names; modules of the current directory come first.

    >>> load_service("abate.errors:number")
    Traceback (most recent call last):
    abate.errors.AbateError: abate.errors:number is a function: expected a controller or consumer
    """
    if not target.partition(":")[2]:
        raise AbateError(f"expected a module and a name in it, such as app:reconcile, not {target!r}")
    thing = import_target(target)
    if not isinstance(thing, Service):
        raise AbateError(f"{target} is a {type(thing).__name__}: expected a controller or consumer")
    return thing


def summary(tally: Mapping[str, int]) -> str:
    """Return the counts of a run in words. A lost lease is not a lost message.

    >>> summary({"done": 302, "lost": 2})
    '302 done, 2 leases lost (the messages come again)'
    """
    return ", ".join(_counted(ending, count) for ending, count in sorted(tally.items())) or "nothing to do"


def _counted(ending: str, count: int) -> str:
    if ending != "lost":
        return f"{count} {ending}"
    return "1 lease lost (the message comes again)" if count == 1 else f"{count} leases lost (the messages come again)"


class QueueOverride:
    """A store whose queue for a service has the name and the lease of the options."""

    def __init__(self, store: Any, service: str, name: str | None, lease: float | None) -> None:
        self._store = store
        self._service = service
        self._name = name or service
        self._own = {} if lease is None else {"lease": lease}
        self.chosen: Any = None

    def queue(self, name: str, **terms: Any) -> Any:
        """Return the service's queue, which it opens first; then others, such as that of its leader lease."""
        if name != self._service or self.chosen is not None:
            return self._store.queue(name, **terms)
        self.chosen = self._store.queue(self._name, **terms, **self._own)
        return self.chosen


class ServiceRunner:
    """Runs a service: its store, its signals, its status line."""

    def __init__(self, service: Service[..., Any], options: argparse.Namespace) -> None:
        self.service = service
        self.options = options
        self.source: QueueOverride | None = None
        self.status = StatusLine(sys.stderr) if sys.stderr.isatty() else None
        self._threads = DaemonThreadPool(1)  # not asyncio's threads, which Python joins at exit
        self.waiting: int | None = None
        self.age: float | None = None

    async def serve(self) -> int:
        """Run until the end, and return the exit code."""
        options, service = self.options, self.service
        async with AsyncExitStack() as stack:
            self._open_logs()
            if options.store is not None:
                from abate.stores import open_store

                store = stack.enter_context(open_store(store_url(options.store)))
                self.source = QueueOverride(store, service.name, options.queue, options.lease)
            if options.page is not None:
                log.info("%s: page on %s", service.name, stack.enter_context(serving_page(*options.page)))
            if options.health is not None:
                health = await stack.enter_async_context(HealthServer(service.health, *options.health))
                log.info("%s: health on %shealthz and /readyz", service.name, health)
            running = asyncio.ensure_future(
                service.arun(
                    cast("Any", self.source), workers=options.workers, grace=options.grace, drain=options.drain
                )
            )
            signals = stack.enter_context(Signals(service.stop, running.cancel))
            showing = asyncio.ensure_future(self._show())
            stack.callback(showing.cancel)
            try:
                tally = await running
            except asyncio.CancelledError:
                log.warning("%s: aborted", service.name)
                return SIGNALLED + (signals.last or signal.SIGINT)
            finally:
                if self.status is not None:
                    self.status.clear()
            self._tell(f"{service.name}: ended: {summary(tally)}")
            return 0

    # -- output

    def _open_logs(self) -> None:
        """Log to stderr, unless logging is configured; with a status line, warnings only.

        Events are logged by abate itself, or by a sink of the program.
        """
        handler = _Handler(self.status)
        handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(handlers=[handler], level=logging.INFO if self.status is None else logging.WARNING)

    async def _show(self) -> None:
        """Show the progress, repeatedly."""
        if self.status is None:
            log.info("%s: started", self.service.name)
            while True:
                await asyncio.sleep(EVERY)
                await self._count()
                log.info("%s", self._line())
        while True:
            await self._count()
            for _ in range(int(COUNT / REDRAW)):
                self.status.draw(self._line())
                await asyncio.sleep(REDRAW)

    def _tell(self, text: str) -> None:
        """Print the last line: to the log, or below the status line."""
        if self.status is None:
            log.info("%s", text)
        else:
            say(text)

    def _line(self) -> str:
        health = self.service.health()
        parts = [
            f"{_sum(health.tally, DONE_ENDINGS)} done",
            f"{_sum(health.tally, FAILED_ENDINGS)} failed",
            f"{health.in_hand} in flight",
        ]
        if self.waiting is not None:
            parts.append(f"{self.waiting} waiting")
        if self.age is not None:
            parts.append(f"oldest {format_seconds(self.age)}")
        if health.failing is not None:
            parts.append(f"source fails: {health.failing}")
        elif health.stuck:
            parts.append(f"{health.stuck} stuck")
        elif not health.ready:
            parts.append("stopping")
        parts += [f"{name} fails: {trouble}" for name, trouble in health.feeds.items()]
        if health.skipped:
            parts.append(f"{health.skipped} skipped")
        return f"{self.service.name}: {', '.join(parts)}"

    async def _count(self) -> None:
        """Read the depth of the queue; unknown if the store fails."""
        queue: Any = self.source.chosen if self.source is not None else getattr(self.service, "source", None)
        try:
            if hasattr(queue, "depth"):
                depth = await self._threads.run(queue.depth)
                self.waiting, self.age = depth.waiting, depth.age
            elif isinstance(self.service, Controller):
                stored = self.service.store is not None
                self.waiting = await self._threads.run(self.service.waiting) if stored else self.service.waiting()
        except AbateError:
            self.waiting = self.age = None


class _Handler(logging.StreamHandler[Any]):
    """Writes to stderr, after removing the status line, which is drawn again later."""

    def __init__(self, status: StatusLine | None) -> None:
        super().__init__(sys.stderr)
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        if self._status is not None:
            self._status.clear()
        super().emit(record)


class RedactingFormatter(logging.Formatter):
    """Redacts secrets and escapes control characters: a message may contain text of another machine.

    Only the first line of a record begins in the first column.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(map(escaped, redacted(super().format(record)).split("\n")))


def _sum(tally: Mapping[str, int], endings: Iterable[str]) -> int:
    return sum(tally.get(ending, 0) for ending in endings)
