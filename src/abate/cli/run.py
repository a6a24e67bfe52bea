"""``abate run``: a controller or a consumer as a process of its own.

It works until SIGTERM or SIGINT: then what is in hand is finished within the grace, and a second signal breaks it
off. On a terminal one line shows how it goes; elsewhere the log says so at the start, each minute, and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, cast

from abate import observe
from abate.cli.health import HealthServer
from abate.cli.listening import TOKEN, listen_address, serving_page
from abate.cli.store import HELP, store_url
from abate.cli.target import imported
from abate.cli.terminal import REDRAW, StatusLine, say, seconds
from abate.errors import AbateError
from abate.logs import Log
from abate.redact import quoted, redacted
from abate.work.controller import Controller
from abate.work.crew import Crew
from abate.work.service import Service, Signals, run_to_end

REFUSED, BROKEN_OFF = 2, 128
EVERY = 60.0
"""Seconds between two lines of the log that say how it goes."""
COUNT = 1.0
"""Seconds between two looks at how much waits, on a terminal."""
DONE = ("done", "again", "silent")
FAILED = ("retry", "slow", "buried")
log = Log("abate.run")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("run", help="run a controller or consumer until SIGTERM or SIGINT")
    add = parser.add_argument
    add("target", metavar="MODULE:NAME", help="what @abate.controller or @abate.consumer has made")
    add("--store", metavar="URL", help=f"the store that holds its queue, {HELP}")
    add("--queue", metavar="NAME", help="the queue in that store (the name of what is run)")
    add("--lease", type=float, metavar="SECONDS", help="for which a message of that store is a worker's (30)")
    add("--workers", type=int, metavar="N", help="how many work at once")
    add("--grace", type=float, metavar="SECONDS", help="to finish what is in hand after a signal")
    add("--drain", action="store_true", help="end when nothing is left to do")
    where: dict[str, Any] = {"type": listen_address, "metavar": "[ADDRESS:]PORT"}
    add("--page", **where, help=f"serve the live page there (127.0.0.1); with {TOKEN}, to those who have it")
    add("--health", **where, help="serve /healthz and /readyz there (127.0.0.1); :PORT for probes from elsewhere")
    parser.set_defaults(run=run, refuse=parser.error)


def run(options: argparse.Namespace) -> int:
    """Find it, and run it until it ends."""
    if options.store is None and (options.queue is not None or options.lease is not None):
        options.refuse("--queue and --lease are of a store: give --store")
    if options.lease is not None and not options.lease > 0:
        options.refuse(f"--lease must be a number above 0, not {options.lease:g}")
    try:
        service = found(options.target)
    except AbateError as error:
        say(str(error))
        return REFUSED
    try:
        return run_to_end(Run(service, options).serve(), service.left)
    except (AbateError, OSError, TypeError, ValueError, ImportError) as error:
        say(str(error))
        return REFUSED


def found(target: str) -> Service[..., Any]:
    """The controller or consumer that a target names; modules of the current directory come first.

    >>> found("abate.errors:number")
    Traceback (most recent call last):
    abate.errors.AbateError: abate.errors:number is a function: expected what @abate.controller or @abate.consumer makes
    """
    if not target.partition(":")[2]:
        raise AbateError(f"expected a module and a name in it, such as app:reconcile, not {target!r}")
    thing = imported(target)
    if not isinstance(thing, Service):
        raise AbateError(
            f"{target} is a {type(thing).__name__}: expected what @abate.controller or @abate.consumer makes"
        )
    return thing


def summary(tally: Mapping[str, int]) -> str:
    """Return what a run has done, in words. A lease that was lost is no message that was lost.

    >>> summary({"done": 302, "lost": 2})
    '302 done, 2 leases lost (the messages come again)'
    """
    return ", ".join(_counted(ending, count) for ending, count in sorted(tally.items())) or "nothing to do"


def _counted(ending: str, count: int) -> str:
    if ending != "lost":
        return f"{count} {ending}"
    return "1 lease lost (the message comes again)" if count == 1 else f"{count} leases lost (the messages come again)"


class Chosen:
    """A store in which the queue of a service may be another one than that of its name, with another lease."""

    def __init__(self, store: Any, service: str, name: str | None, lease: float | None) -> None:
        self._store = store
        self._service = service
        self._name = name or service
        self._own = {} if lease is None else {"lease": lease}
        self.chosen: Any = None

    def queue(self, name: str, **terms: Any) -> Any:
        """The queue of the service's work, which it asks for first; after that others, such as its leader's."""
        if name != self._service or self.chosen is not None:
            return self._store.queue(name, **terms)
        self.chosen = self._store.queue(self._name, **terms, **self._own)
        return self.chosen


class Run:
    """One run of a service: its store, its signals, and what is shown of it."""

    def __init__(self, service: Service[..., Any], options: argparse.Namespace) -> None:
        self.service = service
        self.options = options
        self.source: Chosen | None = None
        self.status = StatusLine(sys.stderr) if sys.stderr.isatty() else None
        self._crew = Crew(1)  # not asyncio's threads, for which Python waits at its end
        self.waiting: int | None = None
        self.age: float | None = None

    async def serve(self) -> int:
        """Run until the end; the exit code."""
        options, service = self.options, self.service
        async with AsyncExitStack() as stack:
            self._open_logs(stack)
            if options.store is not None:
                from abate.stores import open_store

                store = stack.enter_context(open_store(store_url(options.store)))
                self.source = Chosen(store, service.name, options.queue, options.lease)
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
                log.warning("%s: broken off", service.name)
                return BROKEN_OFF + (signals.last or signal.SIGINT)
            finally:
                if self.status is not None:
                    self.status.clear()
            self._tell(f"{service.name}: ended: {summary(tally)}")
            return 0

    # -- what is shown

    def _open_logs(self, stack: AsyncExitStack) -> None:
        """Have logs on stderr, unless the module has its own; beside a status line only what is a warning."""
        handler = _Handler(self.status)
        handler.setFormatter(_Plain("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(handlers=[handler], level=logging.INFO if self.status is None else logging.WARNING)
        stack.callback(observe.remove, observe.install(observe.LoggingSink()))

    async def _show(self) -> None:
        """Say how it goes, again and again."""
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
        """The last word: in the log, or under what was a status line."""
        if self.status is None:
            log.info("%s", text)
        else:
            say(text)

    def _line(self) -> str:
        health = self.service.health()
        parts = [
            f"{_sum(health.tally, DONE)} done",
            f"{_sum(health.tally, FAILED)} failed",
            f"{health.in_hand} in hand",
        ]
        if self.waiting is not None:
            parts.append(f"{self.waiting} waiting")
        if self.age is not None:
            parts.append(f"oldest {seconds(self.age)}")
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
        """See how much waits; where the store doesn't say, neither do we."""
        queue: Any = self.source.chosen if self.source is not None else getattr(self.service, "source", None)
        try:
            if hasattr(queue, "depth"):
                depth = await self._crew.run(queue.depth)
                self.waiting, self.age = depth.waiting, depth.age
            elif isinstance(self.service, Controller):
                stored = self.service.store is not None
                self.waiting = await self._crew.run(self.service.waiting) if stored else self.service.waiting()
        except AbateError:
            self.waiting = self.age = None


class _Handler(logging.StreamHandler[Any]):
    """Writes to stderr, in place of the status line, which is drawn again below."""

    def __init__(self, status: StatusLine | None) -> None:
        super().__init__(sys.stderr)
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        if self._status is not None:
            self._status.clear()
        super().emit(record)


class _Plain(logging.Formatter):
    """Lets nothing through that is not text, or is a secret: what is logged may be a peer's words.

    Whatever is logged begins in the first column, and nothing else does.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(map(quoted, redacted(super().format(record)).split("\n")))


def _sum(tally: Mapping[str, int], endings: tuple[str, ...]) -> int:
    return sum(tally.get(ending, 0) for ending in endings)
