"""State that belongs to a clock, and survives a fork.

A gate that was given no clock of its own keeps one state for the machine's clock and one for each virtual clock
that asks: a test in virtual time neither sees nor disturbs what the process counts in real time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

from abate import clock as clocks
from abate.clock import MACHINE, Clock


class State(Protocol):
    """What a fork's child must be able to mend."""

    def after_fork(self) -> None:
        """Start anew with locks, and with what other threads had in hand: they are not in the child."""
        ...


S = TypeVar("S", bound=State)
_states: WeakSet[State] = WeakSet()


class Timeline(Generic[S]):
    """One state per clock, made when it is first needed.

    The state of a virtual clock is kept by that clock: it refers to the clock, and must not keep it alive.
    """

    __slots__ = ("__weakref__", "_make", "_own", "main")

    def __init__(self, make: Callable[[Clock], S], clock: Clock | Callable[[], float] | None) -> None:
        own = clocks.given(clock)
        self._own = own is not None
        self._make = make
        self.main = self._new(own or MACHINE)

    @property
    def ambient(self) -> bool:
        """Does this follow the context's clock, having none of its own?"""
        return not self._own

    def here(self) -> S:
        """The state of the clock that rules here."""
        clock = None if self._own else clocks.entered()
        if clock is None:
            return self.main
        state: S | None = clock.states.get(self)
        if state is not None:
            return state
        # of two threads that come first, both get the state of one
        made: S = clock.states.setdefault(self, self._new(clock))
        return made

    def _new(self, clock: Clock) -> S:
        state = self._make(clock)
        keep_through_forks(state)
        return state


def keep_through_forks(state: State) -> None:
    """Mend `state` in every child that this process forks."""
    _states.add(state)


def alive() -> list[State]:
    """Every state of this process."""
    return list(_states)


def _mend_in_child() -> None:
    for state in alive():
        state.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mend_in_child)
