"""Brings the lines of transitions to those who write them: at once, when it is over, and when the program ends.

Each clock has its own transitions, so that a test in virtual time does not end the episodes of the process. On the
machine's clock it is said in time that it is over; on another that waits for the next event, as nobody can wait there.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from math import isinf
from threading import Timer
from weakref import WeakSet, ref

from abate.admit.timeline import Timeline
from abate.clock import MACHINE, Clock
from abate.events import Event
from abate.logs import Log
from abate.observe.transitions import Line, Transitions

log = Log("abate")


class Desk:
    """The transitions on one clock."""

    __slots__ = ("__weakref__", "armed", "clock", "transitions")

    def __init__(self, clock: Clock, transitions: Transitions) -> None:
        self.clock = clock
        self.transitions = transitions
        self.armed = False
        """Is there a thread that waits for the next summary?"""

    def after_fork(self) -> None:
        self.armed = False
        self.transitions.after_fork()


class Lines:
    """A sink that has the lines written which events are worth (see `abate.observe.transitions`).

    >>> from abate import events
    >>> lines = Lines(lambda line: print(line.text), burst=1, clock=lambda: 0.0)
    >>> lines(events.Recovered("orders", 2, 0.5)); lines(events.Recovered("orders", 2, 0.5))
    orders: succeeded on attempt 2 after 0.5 s of waiting
    >>> lines.flush()
    orders: … and 1 more calls succeeded after a retry in the last 0 s
    """

    def __init__(
        self,
        write: Callable[[Line], object],
        burst: int = 3,
        window: float = 60.0,
        clock: Clock | Callable[[], float] | None = None,
    ) -> None:
        self._write = write
        Transitions(burst, window)  # refuses at once what a desk would refuse at the first event
        self._desks: Timeline[Desk] = Timeline(lambda clock: Desk(clock, Transitions(burst, window)), clock)
        _open.add(self)

    def __call__(self, event: Event) -> None:
        desk = self._desks.here()
        for line in desk.transitions.lines(event, desk.clock.now()):
            self._write(line)
        if desk.clock is MACHINE and not desk.armed and not isinf(desk.transitions.due):
            self._arm(desk)

    def flush(self) -> None:
        """Write what was counted and not told yet."""
        desk = self._desks.here()
        for line in desk.transitions.rest(desk.clock.now()):
            self._write(line)

    def _arm(self, desk: Desk) -> None:
        desk.armed = True
        wait = max(0.0, desk.transitions.due - desk.clock.now())
        # what is counted in the meantime may be due earlier
        timer = Timer(min(wait, desk.transitions.quiet), _ring, (ref(self), desk))
        timer.daemon = True
        timer.name = "abate-summary"
        try:
            timer.start()
        except RuntimeError:  # no thread to be had: the next event brings the summary
            desk.armed = False

    def ring(self, desk: Desk) -> None:
        """Say what is due."""
        desk.armed = False
        try:
            for line in desk.transitions.overdue(desk.clock.now()):
                self._write(line)
        except Exception:
            log.exception("a summary could not be written")
        if not isinf(desk.transitions.due):
            self._arm(desk)


def _ring(weak: ref[Lines], desk: Desk) -> None:
    """A timer keeps nobody alive: who has let a sink go wants to read nothing of it any more."""
    lines = weak()
    if lines is not None:
        lines.ring(desk)


_open: WeakSet[Lines] = WeakSet()


def flush_all() -> None:
    """Write what is left untold, everywhere: the program ends."""
    for lines in list(_open):
        try:
            lines.flush()
        except Exception:
            log.exception("the last lines could not be written")


atexit.register(flush_all)
