"""State per clock.

An object without a clock of its own keeps one state for the machine's clock and one for each virtual clock: a test in
virtual time neither sees nor disturbs what the process counts in real time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from abate import clock as clocks
from abate import forks
from abate.clock import MACHINE, Clock
from abate.forks import ForkAware

S = TypeVar("S", bound=ForkAware)


class PerClock(Generic[S]):
    """One state per clock, created on first use.

    A virtual clock holds its state, which refers to the clock and must not keep it alive.
    """

    __slots__ = ("__weakref__", "_make", "clock", "main")

    def __init__(self, make: Callable[[Clock], S], clock: Clock | Callable[[], float] | None) -> None:
        self.clock = clocks.as_clock(clock)
        """The own clock, if one was given."""
        self._make = make
        self.main = self._new(self.clock or MACHINE)

    @property
    def follows_context(self) -> bool:
        """Return whether this has no clock of its own and follows the context's."""
        return self.clock is None

    def here(self) -> S:
        """Return the state of the current clock."""
        clock = None if self.clock is not None else clocks.entered_clock()
        if clock is None:
            return self.main
        state: S | None = clock.states.get(self)
        if state is not None:
            return state
        # two threads that create the state at the same time get the same one
        made: S = clock.states.setdefault(self, self._new(clock))
        return made

    def _new(self, clock: Clock) -> S:
        return forks.register(self._make(clock))
