"""Write the lines of a `LogSampler`: at once, when an episode is over, and at the end of the program.

Each clock has its own sampler, so that a test in virtual time does not end the episodes of the process. On the
machine's clock a timer reports the end of an episode; on other clocks the next event does.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from math import isinf
from threading import Timer
from weakref import WeakSet, ref

from abate.clock import MACHINE, Clock
from abate.events import Event
from abate.logs import Log
from abate.observe.log_sampler import LogLine, LogSampler
from abate.per_clock import PerClock

log = Log("abate")


class ClockState:
    """The sampler of one clock."""

    __slots__ = ("__weakref__", "clock", "sampler", "timer", "timers")

    def __init__(self, clock: Clock, transitions: LogSampler) -> None:
        self.clock = clock
        self.sampler = transitions
        self.timer = 0
        """The number of the timer that waits for the next summary; 0 if there is none."""
        self.timers = 0
        """How many timers were started so far."""

    def after_fork(self) -> None:
        self.timer = 0
        self.sampler.after_fork()


class LogWriter:
    """A sink that writes the lines that events are worth (see `abate.observe.log_sampler`).

    >>> from abate import events
    >>> lines = LogWriter(lambda line: print(line.text), burst=1, clock=lambda: 0.0)
    >>> lines(events.Recovered("orders", 2, 0.5)); lines(events.Recovered("orders", 2, 0.5))
    orders: succeeded on attempt 2 after 0.5 s of waiting
    >>> lines.flush()
    orders: … and 1 more calls succeeded after a retry in the last 0 s
    """

    def __init__(
        self,
        write: Callable[[LogLine], object],
        burst: int = 3,
        window: float = 60.0,
        clock: Clock | Callable[[], float] | None = None,
    ) -> None:
        self._write = write
        LogSampler(burst, window)  # check the settings now, not at the first event
        self._by_clock: PerClock[ClockState] = PerClock(
            lambda clock: ClockState(clock, LogSampler(burst, window)), clock
        )
        _open.add(self)

    def __call__(self, event: Event) -> None:
        state = self._by_clock.here()
        for line in state.sampler.lines(event, state.clock.now()):
            self._write(line)
        if state.clock is MACHINE and not state.timer and not isinf(state.sampler.due):
            self._start_timer(state)

    def flush(self) -> None:
        """Write a summary of what was counted and not yet written."""
        state = self._by_clock.here()
        for line in state.sampler.remaining_lines(state.clock.now()):
            self._write(line)

    def _start_timer(self, state: ClockState) -> None:
        number = state.timer = state.timers = state.timers + 1
        wait = max(0.0, state.sampler.due - state.clock.now())
        # events counted meanwhile may be due earlier
        timer = Timer(min(wait, state.sampler.quiet), _write_due, (ref(self), state, number))
        timer.daemon = True
        timer.name = "abate-summary"
        try:
            timer.start()
        except RuntimeError:  # no thread can be started: the next event brings the summary
            state.timer = 0
        except BaseException:  # of a signal handler: the timer may run, and is replaced by that of the next event
            state.timer = 0
            raise

    def write_due(self, state: ClockState, number: int) -> None:
        """Write the summaries that are due: the timer of this number has expired, and no other one has replaced it."""
        if state.timer not in (0, number):
            return
        state.timer = 0
        try:
            for line in state.sampler.due_lines(state.clock.now()):
                self._write(line)
        except Exception:
            log.exception("a summary could not be written")
        if not isinf(state.sampler.due):
            self._start_timer(state)


def _write_due(weak: ref[LogWriter], state: ClockState, number: int) -> None:
    """Write summaries unless the sink was collected: the timer does not keep it alive."""
    lines = weak()
    if lines is not None:
        lines.write_due(state, number)


_open: WeakSet[LogWriter] = WeakSet()


def flush_all() -> None:
    """Write all remaining summaries, at the end of the program."""
    for lines in list(_open):
        try:
            lines.flush()
        except Exception:
            log.exception("the last lines could not be written")


atexit.register(flush_all)
