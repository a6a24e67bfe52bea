"""Run sinks that may block in a thread; events that do not fit into its queue are dropped and counted.

Queueing takes no lock, so that the sink never holds up a call. The end of the program waits `grace` seconds at most.
The thread runs the sink in the context of the event, with its clock and its span.

Other sinks are wrapped as `TimeLimited`: they run in a thread too, but the call waits for them, as if it had called
them itself. A function that blocks can't be interrupted; in a thread it can be left behind.
"""

from __future__ import annotations

import atexit
from contextvars import Context, copy_context
from functools import partial
from math import inf
from queue import SimpleQueue
from threading import Event as Flag
from threading import Lock, Thread, current_thread
from time import monotonic
from weakref import WeakSet, finalize

from abate import event_sinks, forks
from abate.atomic_counter import AtomicCounter
from abate.cooldown import Cooldown
from abate.errors import number, whole
from abate.events import Event, Sink
from abate.logs import Log

log = Log("abate")

QueueItem = tuple[Context, Event] | Flag | None
"""An event with its context; a flag to set when everything before it is done; None to end the thread."""


def has_flag(sink: Sink, name: str) -> bool:
    """Return whether the sink has this attribute, with the value True.

    >>> has_flag(Detached(print), "inline"), has_flag(print, "inline")
    (True, False)
    """
    # compare with True: mocks and proxies have a truthy attribute for every name
    return getattr(sink, name, None) is True


class Detached:
    """Passes events to `sink` in a thread; `dropped` counts those that were not passed.

    A sink that raises is logged, skipped for a while and tried again. A sink that blocks receives the events that came
    meanwhile, up to `capacity`, when it continues.

    >>> from abate import events
    >>> seen = []
    >>> sink = Detached(seen.append, capacity=100)
    >>> sink(events.Recovered("orders", attempts=2, waited=0.1))
    >>> sink.flush(timeout=30.0), len(seen), sink.dropped
    (True, 1, 0)
    """

    inline = True
    """Calls may call this directly, as it does not block."""

    def __init__(self, sink: Sink, capacity: int = 10_000, grace: float = 2.0) -> None:
        self.sink = event_sinks.check_sink(sink)
        self.capacity = whole("capacity", capacity, least=1)
        self.grace = number("grace", grace, least=0)
        self.counts = has_flag(sink, "counts")
        self.writes_logs = has_flag(sink, "writes_logs")
        self.after_fork()
        forks.register(self)
        _open.add(self)

    def after_fork(self) -> None:
        """Start anew in the child, which has no thread; the parent delivers or drops what was queued."""
        self._dropped = AtomicCounter()
        self._queue: SimpleQueue[QueueItem] = SimpleQueue()
        self._starting = Lock()
        self._threads: dict[None, SinkThread] = {}  # at most one: the first to register itself
        finalize(self, self._queue.put, None).atexit = False  # ends the thread

    @property
    def _worker(self) -> SinkThread | None:
        return self._threads.get(None)

    @property
    def dropped(self) -> int:
        """Events that were not passed to the sink, because the queue was full or the sink had failed."""
        return self._dropped.read()

    @property
    def waiting(self) -> int:
        """Events in the queue."""
        return self._queue.qsize()

    def __call__(self, event: Event) -> None:
        worker = self._worker
        # concurrent calls may exceed the capacity by one each
        if self._queue.qsize() >= self.capacity or (worker is not None and worker.resting):
            self._dropped.add()
            return
        self._queue.put((copy_context(), event))
        if worker is None:
            self._start()

    def flush(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until the sink has seen all queued events; return whether it has."""
        patience = number("timeout", timeout, least=0)
        if self._worker is None and not self._queue.qsize():
            return True
        if self._queue.qsize() > self.capacity:
            return False  # full of flags of other waiters
        done = Flag()
        self._queue.put(done)
        self._start()
        return done.wait(patience)

    def _start(self) -> None:
        if self._worker is not None:
            return
        starting, at_work = self._starting, self._threads  # a child that is forked here has its own
        # an iterator takes the lock: see `abate.reentrant_locks`
        for taken in iter(partial(starting.acquire, False), None):
            if not taken:
                return  # another thread starts it
            try:
                if not at_work:
                    worker = SinkThread(self.sink, self._queue, self._dropped, at_work)
                    worker.start()
                    at_work.setdefault(None, worker)
            except RuntimeError:
                pass  # no thread can be started: the next event tries again
            finally:
                starting.release()
            break


class TimeLimited(Detached):
    """Like `Detached`, but each call waits until the sink has had its event, at most `event_sinks.MAX_HOLD_UP` seconds.

    It compares equal to the sink, so that the sink can be removed by itself.

    >>> from abate import events
    >>> seen = []
    >>> sink = TimeLimited(seen.append)
    >>> sink(events.Recovered("orders", attempts=2, waited=0.1))
    >>> len(seen), sink == seen.append
    (1, True)
    """

    def __call__(self, event: Event) -> None:
        if current_thread() is self._worker:  # the sink makes calls itself
            self.sink(event)
            return
        worker = self._worker
        if worker is not None and worker.stuck:  # waiting again would hold up another call
            raise TimeoutError("it has not returned from an earlier event")
        super().__call__(event)
        if self._worker is not None:
            self.flush(event_sinks.MAX_HOLD_UP)

    def __eq__(self, other: object) -> bool:
        return self is other or self.sink == other

    def __hash__(self) -> int:
        return hash(self.sink)


class SinkThread(Thread):
    """Calls a sink with one event after another. It does not refer to the `Detached` that it works for."""

    def __init__(
        self, sink: Sink, handed: SimpleQueue[QueueItem], dropped: AtomicCounter, at_work: dict[None, SinkThread]
    ) -> None:
        super().__init__(name="abate-sink", daemon=True)
        self._sink = sink
        self._queue = handed
        self._dropped = dropped
        self._threads = at_work
        self._warned = False
        self._cooldown = Cooldown()
        self._missed = 0
        """Dropped events at the time of the last failure."""
        self._since = inf
        """The instant at which the current event was passed to the sink."""

    @property
    def resting(self) -> bool:
        """Return whether the sink is skipped at the moment."""
        return self._cooldown.on and monotonic() < self._cooldown.until

    @property
    def stuck(self) -> bool:
        """Return whether the sink has been busy with one event for too long."""
        return monotonic() - self._since > event_sinks.MAX_HOLD_UP

    def run(self) -> None:
        # if a signal handler interrupted the start of a thread, a second one was started
        if self._threads.setdefault(None, self) is not self:
            return
        while (handed := self._queue.get()) is not None:
            if isinstance(handed, Flag):
                handed.set()
            elif self.resting:
                self._dropped.add()
            else:
                self._deliver(*handed)
            del handed  # it refers to an error, and so to its frames

    def _deliver(self, context: Context, event: Event) -> None:
        self._since = monotonic()
        trial = self._cooldown.claim(self._since)
        try:
            context.run(self._sink, event)
        except Exception:
            if not trial:
                self._missed = self._dropped.read()
            pause = self._cooldown.begin(monotonic(), trial)
            log.exception("the sink %r failed: it is tried again in %.3g s", self._sink, pause)
        else:
            if trial:
                self._cooldown.end(monotonic())
                missed = self._dropped.read() - self._missed
                log.warning("the sink %r takes events again; %d were dropped meanwhile", self._sink, missed)
                self._warned = True
        finally:
            self._since = inf
        if not self._warned and not self._cooldown.on and self._dropped.read():
            self._warned = True
            log.warning("the sink %r is too slow: events are dropped, which its `dropped` counts", self._sink)


_open: WeakSet[Detached] = WeakSet()


def flush_all() -> None:
    """Let every sink finish within its grace, at the end of the program."""
    began = monotonic()
    for sink in list(_open):
        sink.flush(max(0.0, began + sink.grace - monotonic()))


atexit.register(flush_all)
