"""State that belongs to a clock, and survives a fork.

A gate that was given no clock of its own keeps one state for the machine's clock and one for each virtual clock
that asks: a test in virtual time neither sees nor disturbs what the process counts in real time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from abate import clock as clocks
from abate import forks
from abate.clock import MACHINE, Clock
from abate.forks import Forked

S = TypeVar("S", bound=Forked)


class Timeline(Generic[S]):
    """One state per clock, made when it is first needed.

    The state of a virtual clock is kept by that clock: it refers to the clock, and must not keep it alive.
    """

    __slots__ = ("__weakref__", "_make", "clock", "main")

    def __init__(self, make: Callable[[Clock], S], clock: Clock | Callable[[], float] | None) -> None:
        self.clock = clocks.given(clock)
        """Its own clock, if it was given one."""
        self._make = make
        self.main = self._new(self.clock or MACHINE)

    @property
    def ambient(self) -> bool:
        """Does this follow the context's clock, having none of its own?"""
        return self.clock is None

    def here(self) -> S:
        """The state of the clock that rules here."""
        clock = None if self.clock is not None else clocks.entered()
        if clock is None:
            return self.main
        state: S | None = clock.states.get(self)
        if state is not None:
            return state
        # of two threads that come first, both get the state of one
        made: S = clock.states.setdefault(self, self._new(clock))
        return made

    def _new(self, clock: Clock) -> S:
        return forks.keep(self._make(clock))
