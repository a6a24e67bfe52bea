"""For sinks that may block: events are handed over to a thread, and what does not fit is dropped and counted.

Handing over takes no lock, so that a call is never held up, whatever the sink does; nor is the end of the program,
which waits for `grace` seconds at most. The thread runs the sink in the context of the event: with its clock, its span.

Sinks of which nobody knows are `Attended`: in a thread as well, but the call waits for them, as if it had called them
itself. Nobody can break off a function that blocks; from a thread it can be left behind.
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

from abate import events, forks
from abate.cooldown import Cooldown
from abate.counts import Tick
from abate.errors import number, whole
from abate.events import Event, Sink
from abate.logs import Log

log = Log("abate")

Handed = tuple[Context, Event] | Flag | None
"""An event with its context; a flag to be set when everything before it is done; nothing, to end."""


def says(sink: Sink, name: str) -> bool:
    """Return whether the sink has said so, by an attribute that is True.

    >>> says(Detached(print), "inline"), says(print, "inline")
    (True, False)
    """
    # not by what is true: mocks and proxies have an attribute for every name
    return getattr(sink, name, None) is True


class Detached:
    """Hands events over to `sink` in a thread of its own; `dropped` counts those that found no room.

    A sink that raises is logged, left alone for a while and tried again, as any other. One that blocks has what comes
    meanwhile up to its capacity, when it moves on.

    >>> from abate import events
    >>> seen = []
    >>> sink = Detached(seen.append, capacity=100)
    >>> sink(events.Recovered("orders", attempts=2, waited=0.1))
    >>> sink.flush(timeout=30.0), len(seen), sink.dropped
    (True, 1, 0)
    """

    inline = True
    """A call may call this itself, as it does not block."""

    def __init__(self, sink: Sink, capacity: int = 10_000, grace: float = 2.0) -> None:
        self.sink = events.checked(sink)
        self.capacity = whole("capacity", capacity, least=1)
        self.grace = number("grace", grace, least=0)
        self.counts = says(sink, "counts")
        self.after_fork()
        forks.keep(self)
        _open.add(self)

    def after_fork(self) -> None:
        """A child has no thread yet; what the parent has waiting or has dropped is the parent's."""
        self._dropped = Tick()
        self._handed: SimpleQueue[Handed] = SimpleQueue()
        self._starting = Lock()
        self._at_work: dict[None, Worker] = {}  # one at most, entered by whoever comes first
        finalize(self, self._handed.put, None).atexit = False  # which ends the thread

    @property
    def _worker(self) -> Worker | None:
        return self._at_work.get(None)

    @property
    def dropped(self) -> int:
        """Events that the sink was not given: there was no room, or it had failed lately."""
        return self._dropped.read()

    @property
    def waiting(self) -> int:
        """Events that were handed over and not taken yet."""
        return self._handed.qsize()

    def __call__(self, event: Event) -> None:
        worker = self._worker
        # threads that come at the same time may be one too many each: it is bounded all the same
        if self._handed.qsize() >= self.capacity or (worker is not None and worker.resting):
            self._dropped.add()
            return
        self._handed.put((copy_context(), event))
        if worker is None:
            self._start()

    def flush(self, timeout: float) -> bool:
        """Wait until the sink has seen what was handed over so far, for so many seconds at most: has it?"""
        patience = number("timeout", timeout, least=0)
        if self._worker is None and not self._handed.qsize():
            return True
        if self._handed.qsize() > self.capacity:
            return False  # full, of others who wait for the same as well
        done = Flag()
        self._handed.put(done)
        self._start()
        return done.wait(patience)

    def _start(self) -> None:
        if self._worker is not None:
            return
        starting, at_work = self._starting, self._at_work  # a child that is forked in the middle has others
        # an iterator takes the lock, so that no signal handler can raise between that and the `try`
        for taken in iter(partial(starting.acquire, False), None):
            if not taken:
                return  # somebody else starts it
            try:
                if not at_work:
                    worker = Worker(self.sink, self._handed, self._dropped, at_work)
                    worker.start()
                    at_work.setdefault(None, worker)
            except RuntimeError:
                pass  # no thread to be had: the next event tries again
            finally:
                starting.release()
            break


class Attended(Detached):
    """The same, but whoever hands an event over waits until the sink has had it, `events.STUCK` seconds at most.

    It passes for the sink itself, so that who installed that one can remove it.

    >>> from abate import events
    >>> seen = []
    >>> sink = Attended(seen.append)
    >>> sink(events.Recovered("orders", attempts=2, waited=0.1))
    >>> len(seen), sink == seen.append
    (1, True)
    """

    def __call__(self, event: Event) -> None:
        if current_thread() is self._worker:  # the sink makes calls itself
            self.sink(event)
            return
        worker = self._worker
        if worker is not None and worker.stuck:  # to wait again would hold up another call
            raise TimeoutError("it has not returned from an earlier event")
        super().__call__(event)
        if self._worker is not None:
            self.flush(events.STUCK)

    def __eq__(self, other: object) -> bool:
        return self is other or self.sink == other

    def __hash__(self) -> int:
        return hash(self.sink)


class Worker(Thread):
    """Brings events to a sink, one after another. It does not hold on to who hands them over."""

    def __init__(self, sink: Sink, handed: SimpleQueue[Handed], dropped: Tick, at_work: dict[None, Worker]) -> None:
        super().__init__(name="abate-sink", daemon=True)
        self._sink = sink
        self._handed = handed
        self._dropped = dropped
        self._at_work = at_work
        self._told = False
        self._cooldown = Cooldown()
        self._missed = 0
        """Events that were dropped before the sink failed last."""
        self._since = inf
        """The instant at which the sink was given what it is busy with."""

    @property
    def resting(self) -> bool:
        """Is the sink left alone at the moment?"""
        return self._cooldown.on and monotonic() < self._cooldown.until

    @property
    def stuck(self) -> bool:
        """Has the sink been busy with one event for too long?"""
        return monotonic() - self._since > events.STUCK

    def run(self) -> None:
        # a signal handler may break off who starts a thread, and another one is started then
        if self._at_work.setdefault(None, self) is not self:
            return
        while (handed := self._handed.get()) is not None:
            if isinstance(handed, Flag):
                handed.set()
            elif self.resting:
                self._dropped.add()
            else:
                self._bring(*handed)
            del handed  # it holds on to an error, and that to its frames

    def _bring(self, context: Context, event: Event) -> None:
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
                self._told = True
        finally:
            self._since = inf
        if not self._told and not self._cooldown.on and self._dropped.read():
            self._told = True
            log.warning("the sink %r is too slow: events are dropped, which its `dropped` counts", self._sink)


_open: WeakSet[Detached] = WeakSet()


def flush_all() -> None:
    """Give every sink the rest of its grace: the program ends."""
    began = monotonic()
    for sink in list(_open):
        sink.flush(max(0.0, began + sink.grace - monotonic()))


atexit.register(flush_all)
