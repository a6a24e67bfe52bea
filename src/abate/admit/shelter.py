"""The shelter: while a dependency is down, calls wait instead of failing, and few are sent instead of all.

What calls ask is the door on their clock (`abate.admit.door`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any

from abate import forks
from abate.admit.door import Door
from abate.admit.timeline import Timeline
from abate.admit.weather import State
from abate.clock import Clock, before_virtual, switch
from abate.errors import number, whole
from abate.schedule.backoff import Uniform
from abate.values import Shared, clockless


class Shelter(Shared):
    """Where calls wait while a dependency is down: given to the policies of one dependency, which share it.

    * In calm it costs next to nothing and holds nobody back.
    * In a storm first attempts and retries alike wait for their turn, and few are sent. While all fails, one probe at
      a time; when answers come again, more and more.
    * `capacity`: at most so many calls wait; one more is `Refused`.
    * `patience`: seconds that a call waits for its turn at most, and never past its deadline. One that cannot make it
      leaves at once, with reason ``shelter``.
    * `name`: the dependency's, in events and errors.
    * `clock`, `rng`: its own time and chance. Without a clock it follows the context's, and keeps what it knows apart
      for each virtual clock.

    >>> import abate
    >>> shelter = Shelter(name="orders")
    >>> policy = abate.Policy(on=ConnectionError, attempts=4, shelter=shelter)
    >>> with abate.testing.VirtualClock() as clock:
    ...     policy.call(abate.testing.Script(ConnectionError(), ConnectionError(), "fine"))
    'fine'
    >>> shelter.state, shelter.waiters
    ('calm', 0)
    """

    __slots__ = ("__weakref__", "_calls", "_doors", "calm", "capacity", "chance", "name", "patience", "rng")

    def __init__(
        self,
        capacity: int = 1000,
        patience: float = 10.0,
        *,
        name: str = "shelter",
        clock: Clock | Callable[[], float] | None = None,
        rng: Uniform | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be a string, not {name!r}")
        self.name = name
        self.capacity = whole("capacity", capacity, least=1)
        self.patience = number("patience", patience, above=0)
        self.rng = rng
        self.chance: Uniform = random if rng is None else rng
        self.calm = False
        """May a stand-in send an attempt without asking? Only ever true for the machine's clock."""
        self._calls = count()
        self._doors: Timeline[Door] = Timeline(self._door, clock)

    def _door(self, clock: Clock) -> Door:
        # what a virtual clock keeps must not keep the shelter: only the first door, its own, tells it
        own = None if hasattr(self, "_doors") else self._calmed
        return Door(self.name, self.capacity, self.patience, self.chance, clock, own)

    def _calmed(self, calm: bool) -> None:
        self.calm = calm and not switch.virtual

    @property
    def ambient(self) -> bool:
        """Does this follow the context's clock, having none of its own?"""
        return self._doors.ambient

    def sample_some(self) -> None:
        """As `sample`, for one of sixteen calls."""
        if not next(self._calls) % 16:
            self.sample()

    def sample(self) -> None:
        """Have the next attempt of a stand-in measured, if that is due."""
        main = self._doors.main
        if self.calm and main.clock.now() >= main.weather.look:
            self.calm = False

    def door(self) -> Door:
        """The door on the clock that rules here."""
        return self._doors.here() if switch.virtual else self._doors.main

    @property
    def state(self) -> State:
        """``calm``, ``storm``, ``probing`` or ``recovering``."""
        return self.door().weather.state

    @property
    def waiters(self) -> int:
        """How many calls wait."""
        return self.door().waiters

    @property
    def limit(self) -> float:
        """How many attempts may be in flight; infinite in calm."""
        return self.door().weather.limit

    def apart(self) -> Shelter:
        """A shelter with the same settings for another key, in this process alone (see `Policy.keyed`).

        >>> Shelter(capacity=20, name="hooks").apart()
        Shelter(capacity=20, patience=10, name='hooks')
        """
        return Shelter(self.capacity, self.patience, name=self.name, clock=self._doors.clock, rng=self.rng)

    def _made_from(self) -> dict[str, Any]:
        clockless(self, not self.ambient)
        return {"capacity": self.capacity, "patience": self.patience, "name": self.name, "rng": self.rng}

    def __repr__(self) -> str:
        return f"Shelter(capacity={self.capacity}, patience={self.patience:g}, name={self.name!r})"


def _guard_all() -> None:
    for state in forks.kept():
        if isinstance(state, Door):
            state.guard()


before_virtual.append(_guard_all)
