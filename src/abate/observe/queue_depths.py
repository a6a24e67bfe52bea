"""Read how deep queues are, without waiting long for any store.

A queue in memory is read at once. A store is read in a thread, because one that does not answer would hold up the
caller. Each queue has at most one open read: until it has ended, no other is started, and nothing waits for it again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextvars import copy_context
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from abate import forks
from abate.redact import described

if TYPE_CHECKING:
    from abate.stores import Depth

TOTAL_TIMEOUT = 1.0
"""Seconds that `read_depths` waits for all stores together."""


class DepthReading:
    """The depth of a queue, or the reason why it could not be read."""

    __slots__ = ("_done", "depth", "failing", "started")

    def __init__(self, started: float, depth: Depth | None, failing: str | None) -> None:
        self.started = started
        self.depth = depth
        self.failing = failing
        self._done = Flag()

    def run(self, service: Any) -> None:
        """Read the depth, for as long as it takes."""
        try:
            self.depth, self.failing = service.depth(), None
        except Exception as error:  # a source of the user's own may raise anything
            self.failing = described(error)
        finally:
            self._done.set()

    def wait(self, until: float) -> bool:
        """Wait until an instant at most; return whether the read has ended."""
        return self._done.wait(max(0.0, until - time.monotonic()))


class DepthReader:
    """Reads the queues of controllers and consumers, each store at most once in `every` seconds.

    While a read has not ended: with `every`, the previous result is returned; without it, the store counts as failing.

    >>> import abate
    >>> @abate.controller()
    ... def reconcile(key): ...
    >>> reconcile.add("orders/42")
    >>> [reading.depth.ready for reading in DepthReader().read([reconcile], wait=1.0, now=0.0)]
    [1]
    """

    __slots__ = ("__weakref__", "_every", "_newest")

    def __init__(self, every: float = 0.0) -> None:
        self._every = every
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        """Forget open reads: their threads do not exist in the child."""
        self._newest: WeakKeyDictionary[Any, DepthReading] = WeakKeyDictionary()

    def read(self, services: Iterable[Any], wait: float, now: float) -> list[DepthReading]:
        """Start the reads that are due at `now`, wait for these, and return the newest reading of each service."""
        until = time.monotonic() + wait
        readings = [self._start(service, now) for service in services]
        for reading, is_new in readings:
            if is_new:
                reading.wait(until)
        return [reading for reading, _ in readings]

    def _start(self, service: Any, now: float) -> tuple[DepthReading, bool]:
        """Return the newest reading of a service, and whether it was started just now."""
        last = self._newest.get(service)
        in_memory = getattr(service, "in_memory", False)
        if last is not None and not in_memory and (now < last.started + self._every or not last.wait(0.0)):
            return last, False
        if not self._every:
            reading = DepthReading(now, None, "the store does not answer")
        else:
            depth, failing = (None, None) if last is None else (last.depth, last.failing)
            reading = DepthReading(now, depth, failing)
        self._newest[service] = reading
        if in_memory:
            reading.run(service)
            return reading, True
        try:
            run = copy_context().run  # a store reads the clock, too
            Thread(target=run, args=(reading.run, service), name="abate-depth", daemon=True).start()
        except RuntimeError:  # no thread can be started
            reading.run(service)
        return reading, True


_reader = DepthReader()


def read_depths(services: Iterable[Any]) -> list[DepthReading]:
    """Return the depths of these services' queues within `TOTAL_TIMEOUT`."""
    return _reader.read(services, TOTAL_TIMEOUT, time.monotonic())
